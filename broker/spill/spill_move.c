/* Removes segments that hold no live chunk, and moves the chunks of sparse segments, so that spilled chunks take at
 * most about twice their size on disk. Only without checkpoints; with them, the checkpoint room decides which files
 * are needed. */
#include "broker/journal/stream.h"
#include "broker/spill/spill.h"

bool spill_owns_files(const struct spill *self)
{
    const struct folder *folder = &self->stream->folder;
    for (uint32_t i = 0; i < folder->n_files; i++)
        if (folder->files[i].kind == DISK_CHECKPOINT)
            return false;
    return !config_makes_checkpoints(self->state.config);
}

bool spill_move_chunk(struct spill *self, struct chunk *chunk)
{
    struct stream *stream = self->stream;
    enum spill_brings found = spill_bring(self, chunk);
    if (found != SPILL_HERE) {
        self->round_waiting += found == SPILL_COMING;
        return false;
    }
    if (stream->full || stream->backlog > stream->backlog_most / 2) {
        self->round_waiting++;
        return false;
    }
    if (!stream_chunk_again(stream, chunk)) {
        self->round_waiting++;
        return false;
    }
    self->round_work++;
    return true;
}

void spill_sweep(struct spill *self)
{
    struct stream *stream = self->stream;
    uint64_t live = 0, sparsest = 0;
    double least = 0.5;
    for (uint32_t i = stream->segments.n; i-- > 0;) {
        const struct segment_use use = stream->segments.list[i];
        live += use.live;
        /* Keep the segments of an earlier broker's journal: there is nothing else to restore its state from. */
        if (use.number == stream->segment || use.number < stream->first_own)
            continue;
        if (use.live == 0) {
            stream_remove_segment(stream, use.number);
            continue;
        }
        double part = (double)use.live / (double)(use.bytes ? use.bytes : 1);
        if (part < least) {
            least = part;
            sparsest = use.number;
        }
    }
    if (self->moving && !segments_find(&stream->segments, self->moving))
        self->moving = 0;
    bool may = !self->moving && self->state.loop->now_ns >= self->move_after_ns;
    if (may && stream->segments.total_bytes > 2 * live + 2 * stream_segment_bytes(stream))
        self->moving = sparsest;
}
