/* When checkpoints are made, and how they end. */
#include "broker/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broker/checkpoint/checkpoint_run.h"
#include "broker/spill/spill.h"
#include "proto/base/error.h"

#define PROGRESS_NS (2 * NS_PER_S)
/* Delay before the next checkpoint that no client asked for, after a failure. */
#define RETRY_NS (30 * NS_PER_S)
#define RETRY_LOW_NS NS_PER_S /* inserts wait for it */
/* How long the last checkpoint waits for a disk that makes no progress, and for one that cannot be written. */
#define EXIT_STILL_NS (10 * NS_PER_S)
#define EXIT_TROUBLE_NS NS_PER_S
#define SLICE_SLOTS 256u
/* Estimated bytes of a checkpoint: per item, and for the rest. */
#define ITEM_BYTES (sizeof(struct entry_head) + sizeof(struct entry_item) + sizeof(uint64_t))
#define REST_BYTES (64u << 10)
/* A checkpoint to free space must free at least this much. */
#define GAIN_LEAST (64u << 10)

const char *checkpoint_reason_name(enum checkpoint_reason reason)
{
    static const char *const names[] = {"asked", "signal", "period", "journal", "space", "sync", "exit"};
    return names[reason];
}

static uint64_t bytes_of(const struct checkpoint *self)
{
    return self->file.offset + self->file.chunk_bytes;
}

static double rate_of(uint64_t bytes, int64_t took_ns)
{
    return took_ns > 0 ? (double)bytes * 1e3 / (double)took_ns : 0;
}

static double share_done(const struct checkpoint *self)
{
    if (self->ended || self->slots_all == 0)
        return self->ended ? 1 : 0;
    double share = (double)self->slots_done / (double)self->slots_all;
    return share < 1 ? share : 1;
}

void checkpoints_clean(struct checkpoints *self)
{
    kept_checkpoints_clean(&self->kept, self->low ? 1 : (uint64_t)self->state.config->checkpoint_keep);
}

static void tell_ended(const struct checkpoints *self, uint64_t number, const char *error)
{
    if (self->listener.ended)
        self->listener.ended(self->listener.ctx, number, error);
}

/* Delays the next checkpoint that no client asked for; longer after each failure, if it is to replace bad segments. */
static void pause_after_failure(struct checkpoints *self)
{
    self->heal_pause_ns = self->heal_pause_ns ? 2 * self->heal_pause_ns : RETRY_LOW_NS;
    if (self->heal_pause_ns > RETRY_NS)
        self->heal_pause_ns = RETRY_NS;
    self->heal_ns = self->state.loop->now_ns + self->heal_pause_ns;
    self->not_before_ns = self->state.loop->now_ns + (self->low ? RETRY_LOW_NS : RETRY_NS);
}

/* ---- begin ---- */

rp_status checkpoint_start(struct checkpoints *self, enum checkpoint_reason reason, uint64_t *number, rp_error *err)
{
    if (!self)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "checkpoints are off: set checkpoint.dir (or journal.dir) in the broker's configuration");
    if (!self->wanted || reason == CHECKPOINT_ASKED)
        self->reason = reason;
    self->wanted = true;
    if (number)
        *number = self->next;
    return RP_OK;
}

bool checkpoint_is_running(const struct checkpoints *self)
{
    return self && self->running;
}

bool checkpoint_is_pending(const struct checkpoints *self)
{
    return self && (self->running || self->wanted);
}

static void begin(struct checkpoints *self)
{
    rp_error err = {0};
    self->wanted = false;
    struct checkpoint *run = self->running = checkpoint_begin(self, self->reason, &err);
    if (!run) {
        log_line(LEVEL_ERROR, "B0523", "checkpoint failed", "checkpoint=%llu why=\"%s\"",
                 (unsigned long long)self->next, err.text);
        tell_ended(self, self->next, err.text);
        pause_after_failure(self);
        return;
    }
    log_line(LEVEL_INFO, "B0520", "checkpoint begun", "checkpoint=%llu reason=%s base=%llu items=%llu took_us=%lld",
             (unsigned long long)run->number, checkpoint_reason_name(run->reason), (unsigned long long)run->base,
             (unsigned long long)run->items,
             (long long)((clock_now(&self->state.loop->clock) - run->start_ns) / NS_PER_US));
    timer_set(&self->state.loop->timers, &self->progress, self->state.loop->now_ns + PROGRESS_NS);
    chores_add(&self->state.loop->chores, &run->chore);
}

/* True if the journal has passed its limit. */
static bool journal_is_long(const struct checkpoints *self)
{
    const struct stream *stream = self->stream;
    return stream->journal && stream->journal_bytes > space_limit(&stream->space);
}

/* True if a checkpoint would free enough: segments without live chunks, which only the journal and older checkpoints
 * need. */
static bool gains_space(const struct checkpoints *self)
{
    const struct stream *stream = self->stream;
    uint64_t gain = 0;
    for (uint32_t i = 0; i < stream->segments.n; i++)
        if (!stream->segments.list[i].live && stream->segments.list[i].number != stream->segment)
            gain += stream->segments.list[i].bytes;
    return gain > 2 * stream->space.state + GAIN_LEAST;
}

/* Asks for checkpoints that the disk needs. On a disk that is short of space only the newest checkpoint is kept, and
 * the next one is made as soon as it frees anything. */
static void mind_space(struct checkpoints *self)
{
    bool low = space_is_low(&self->stream->space);
    if (low != self->low) {
        self->low = low;
        log_line(low ? LEVEL_WARN : LEVEL_INFO, low ? "B0528" : "B0529",
                 low ? "the disk is short of space" : "the disk has space again", "free_bytes=%llu reserve_bytes=%llu",
                 (unsigned long long)self->stream->space.free, (unsigned long long)space_reserve(&self->stream->space));
        if (low)
            checkpoints_clean(self);
    }
    if (self->stream->bad_last && !self->wanted && self->state.loop->now_ns >= self->heal_ns)
        checkpoint_start(self, CHECKPOINT_SYNC, NULL, NULL);
    if (self->wanted || self->state.loop->now_ns < self->not_before_ns)
        return;
    if (low && gains_space(self))
        checkpoint_start(self, CHECKPOINT_SPACE, NULL, NULL);
    else if (journal_is_long(self))
        checkpoint_start(self, CHECKPOINT_JOURNAL, NULL, NULL);
}

bool checkpoints_run(struct checkpoints *self)
{
    struct checkpoint *run = self->running;
    bool can_go = run && (!run->reads || spill_reads(self->spill) >= run->reads || !self->spill->bring_bytes);
    if (run && run->waits && can_go && self->stream->backlog <= checkpoint_ahead(self->stream) / 2) {
        run->waits = false;
        run->reads = 0;
        chores_add(&self->state.loop->chores, &run->chore);
        return true;
    }
    if (run)
        return false;
    mind_space(self);
    if (!self->wanted)
        return false;
    begin(self);
    return true;
}

/* ---- end ---- */

/* Which slots have changed since the base is not known any more: the next checkpoint is whole. */
static void lose_chain(struct checkpoints *self)
{
    self->base = 0;
    for (uint32_t i = 0; i < self->state.tables->n; i++)
        self->state.tables->list[i].in.marks->all_changed = true;
}

void checkpoint_abandon(struct checkpoint *run)
{
    struct checkpoints *self = run->checkpoints;
    char quoted[320];
    checkpoint_let_go(run);
    lose_chain(self);
    self->stream->journal_bytes += run->replaces;
    stream_file_job(self->stream, DISK_JOB_ABANDON, DISK_CHECKPOINT, run->number);
    log_line(LEVEL_ERROR, "B0523", "checkpoint failed", "checkpoint=%llu why=%s", (unsigned long long)run->number,
             log_quote(quoted, sizeof quoted, run->file.error));
    pause_after_failure(self);
    /* They were dead at its instant, but the journal since the checkpoint before may still need them. */
    self->kept.n_dead = 0;
    self->running = NULL;
    timer_clear(&self->state.loop->timers, &self->progress);
    tell_ended(self, run->number, run->file.error);
    checkpoint_free(run);
}

/* This checkpoint becomes the base of the next incremental one. */
static void extend_chain(struct checkpoints *self, const struct checkpoint *run)
{
    self->links = run->base ? self->links + 1 : 0;
    self->chain_bytes = run->base ? self->chain_bytes + run->file.offset : 0;
    if (!run->base)
        self->base_bytes = run->file.offset;
    self->base = run->number;
}

static void finish(struct checkpoints *self, struct checkpoint *run)
{
    int64_t now = clock_now(&self->state.loop->clock), took = now - run->start_ns;
    extend_chain(self, run);
    stream_healed(self->stream, run->failures);
    self->heal_pause_ns = 0;
    self->last = run->number;
    self->last_ns = now;
    self->last_base = run->base;
    self->last_items = run->items;
    self->last_bytes = bytes_of(run);
    self->last_took_ns = (uint64_t)took;
    self->running = NULL;
    timer_clear(&self->state.loop->timers, &self->progress);
    log_line(LEVEL_INFO, "B0522", "checkpoint is whole",
             "checkpoint=%llu base=%llu items=%llu bytes=%llu of_them_chunks=%llu took_ms=%.1f mb_per_s=%.0f",
             (unsigned long long)run->number, (unsigned long long)run->base, (unsigned long long)run->items,
             (unsigned long long)bytes_of(run), (unsigned long long)run->file.chunk_bytes, (double)took / 1e6,
             rate_of(bytes_of(run), took));
    if (kept_checkpoints_add(&self->kept, &run->file, run->base, run->journal))
        checkpoints_clean(self);
    tell_ended(self, run->number, NULL);
    checkpoint_free(run);
}

void checkpoint_finished(struct checkpoints *self, uint64_t number, bool ok)
{
    struct checkpoint *run = self->running;
    if (!run || run->number != number)
        return;
    if (ok) {
        finish(self, run);
        return;
    }
    checkpoint_file_fail(&run->file, "it could not be written: %.200s",
                         self->stream->trouble[0] ? self->stream->trouble : "the log says why");
    if (run->ended || run->waits)
        checkpoint_abandon(run); /* otherwise its next slice abandons it */
}

void checkpoint_exit(struct checkpoints *self, bool (*turn)(void *ctx), void *ctx)
{
    const struct stream *stream = self->stream;
    if (self->state.config->checkpoint_on_exit)
        checkpoint_start(self, CHECKPOINT_EXIT, NULL, NULL);
    struct clock clock = clock_system(); /* the broker's may stand still */
    uint64_t seen = 0;
    int64_t moved_ns = clock_now(&clock);
    while (checkpoint_is_pending(self)) {
        bool patient = turn(ctx);
        uint64_t moved = stream->given - stream->backlog + (self->running ? self->running->file.entries : 0);
        int64_t now = clock_now(&clock);
        if (moved != seen)
            moved_ns = now;
        seen = moved;
        if (now - moved_ns < (stream->trouble[0] ? EXIT_TROUBLE_NS : EXIT_STILL_NS) && patient)
            continue;
        log_line(LEVEL_ERROR, "B0526", "the last checkpoint is abandoned", "why=\"%s\"",
                 patient ? "the disk makes no progress" : "asked twice to end");
        self->wanted = false;
        return;
    }
}

/* ---- what the stream asks ---- */

static enum checkpoint_activity ops_activity(const void *ctx)
{
    const struct checkpoints *self = ctx;
    const struct checkpoint *run = self->running;
    if (run ? run->reason == CHECKPOINT_SPACE : self->wanted && self->reason == CHECKPOINT_SPACE)
        return CHECKPOINT_MAKES_ROOM;
    return run ? CHECKPOINT_RUNS : CHECKPOINT_NONE;
}

static uint64_t ops_bytes(const void *ctx)
{
    const struct checkpoints *self = ctx;
    const struct tables *tables = self->state.tables;
    uint64_t items = 0;
    for (uint32_t i = 0; i < tables->n; i++)
        items += tables->list[i].in.size;
    uint64_t bytes = items * ITEM_BYTES + self->state.params->bytes + REST_BYTES;
    return bytes > self->base_bytes ? bytes : self->base_bytes;
}

static void ops_finished(void *ctx, uint64_t number, bool ok)
{
    checkpoint_finished(ctx, number, ok);
}

static const struct checkpoint_ops ops = {ops_activity, ops_bytes, ops_finished};

/* ---- life ---- */

static void period_timer(struct timer *timer, void *ctx)
{
    struct checkpoints *self = ctx;
    struct loop *loop = self->state.loop;
    if (!self->running && loop->now_ns >= self->not_before_ns)
        checkpoint_start(self, CHECKPOINT_PERIOD, NULL, NULL);
    timer_set(&loop->timers, timer, loop->now_ns + self->state.config->checkpoint_every_ns);
}

static void progress_timer(struct timer *timer, void *ctx)
{
    struct checkpoints *self = ctx;
    struct loop *loop = self->state.loop;
    const struct checkpoint *run = self->running;
    if (!run)
        return;
    log_line(LEVEL_INFO, "B0521", "checkpoint in progress", "checkpoint=%llu done=%.1f%% bytes=%llu mb_per_s=%.0f",
             (unsigned long long)run->number, 100 * share_done(run), (unsigned long long)bytes_of(run),
             rate_of(bytes_of(run), loop->now_ns - run->start_ns));
    timer_set(&loop->timers, timer, loop->now_ns + PROGRESS_NS);
}

static int64_t wall_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return at.tv_sec * NS_PER_S + at.tv_nsec;
}

/* Finds the checkpoints in the folder, and the newest of them. */
static rp_status read_kept(struct checkpoints *self, rp_error *err)
{
    const char *load = self->state.config->checkpoint_load;
    RP_TRY(kept_checkpoints_init(&self->kept, self->stream, load && strcmp(load, "none") == 0, err));
    for (uint32_t i = 0; i < self->kept.n; i++) {
        const struct kept_checkpoint *kept = &self->kept.list[i];
        if (kept->useless)
            continue;
        self->last = kept->number;
        self->last_base = kept->base;
        self->last_ns = self->state.loop->now_ns - (wall_now() - kept->changed_ns);
    }
    kept_checkpoints_note_dead(&self->kept);
    return RP_OK;
}

rp_status checkpoints_init(struct checkpoints **out, const struct durable_state *state, struct stream *stream,
                           struct spill *spill, struct checkpoint_listener listener, rp_error *err)
{
    const struct broker_config *config = state->config;
    if (!config_makes_checkpoints(config))
        return RP_OK;
    struct checkpoints *self = *out = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for checkpoints");
    self->state = *state;
    self->stream = stream;
    self->spill = spill;
    self->listener = listener;
    self->slice = SLICE_SLOTS;
    self->progress = (struct timer){.fire = progress_timer, .ctx = self};
    self->period = (struct timer){.fire = period_timer, .ctx = self};
    self->next = folder_next(&stream->folder, DISK_CHECKPOINT);
    stream->ops = &ops;
    stream->ops_ctx = self;
    RP_TRY(read_kept(self, err));
    if (config->checkpoint_every_ns &&
        !timer_set(&state->loop->timers, &self->period, state->loop->now_ns + config->checkpoint_every_ns))
        return err_set(err, RP_NO_MEMORY, "no memory for a timer");
    return RP_OK;
}

void checkpoints_fini(struct checkpoints **at)
{
    struct checkpoints *self = *at;
    if (!self)
        return;
    struct loop *loop = self->state.loop;
    struct checkpoint *run = self->running;
    self->running = NULL;
    if (run) {
        checkpoint_let_go(run);
        stream_file_job(self->stream, DISK_JOB_ABANDON, DISK_CHECKPOINT, run->number);
        chores_remove(&loop->chores, &run->chore);
        checkpoint_free(run);
    }
    self->stream->ops = NULL;
    timer_clear(&loop->timers, &self->period);
    timer_clear(&loop->timers, &self->progress);
    kept_checkpoints_fini(&self->kept);
    free(self);
    *at = NULL;
}

struct checkpoint_report checkpoints_report(const struct checkpoints *self)
{
    if (!self)
        return (struct checkpoint_report){0};
    int64_t now_ns = self->state.loop->now_ns;
    return (struct checkpoint_report){
        .last = self->last,
        .base = self->last_base,
        .items = self->last_items,
        .bytes = self->last_bytes,
        .took_ns = self->last_took_ns,
        .age_ns = self->last && now_ns > self->last_ns ? (uint64_t)(now_ns - self->last_ns) : 0,
        .running = self->running ? self->running->number : 0,
        .done = self->running ? share_done(self->running) : 0,
    };
}
