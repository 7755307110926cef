/* When checkpoints are made, and what becomes of them. */
#include "broker/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/checkpoint/checkpoint_run.h"
#include "broker/peer/sockets.h"
#include "broker/spill/spill.h"
#include "proto/base/error.h"

#define PROGRESS_NS (2 * NS_PER_S)
/* After one that failed, the next that nobody asked for. */
#define RETRY_NS (30 * NS_PER_S)
#define RETRY_LOW_NS NS_PER_S /* inserts wait for it */
/* At the end: the disk may stand still for so long; if it cannot be written, for so long. */
#define EXIT_STILL_NS (10 * NS_PER_S)
#define EXIT_TROUBLE_NS NS_PER_S
#define SLICE_SLOTS 256u
/* Of a checkpoint that was not written yet: for an item, and for what every state has. */
#define ITEM_BYTES (sizeof(struct entry_head) + sizeof(struct entry_item) + sizeof(uint64_t))
#define REST_BYTES (64u << 10)
/* A checkpoint for space is not worth less than this. */
#define GAIN_LEAST (64u << 10)

const char *checkpoint_reason_name(enum checkpoint_reason reason)
{
    static const char *const names[] = {"asked", "signal", "period", "journal", "space", "sync", "exit"};
    return names[reason];
}

static uint64_t bytes_of(const struct checkpoint *self)
{
    return self->offset + self->chunk_bytes;
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

/* After a failure those that nobody asked for wait: longer each time, if they are to replace bad segments. */
static void pause_after_failure(struct broker *broker)
{
    struct checkpoints *self = broker->checkpoints;
    self->heal_pause_ns = self->heal_pause_ns ? 2 * self->heal_pause_ns : RETRY_LOW_NS;
    if (self->heal_pause_ns > RETRY_NS)
        self->heal_pause_ns = RETRY_NS;
    self->heal_ns = broker->loop.now_ns + self->heal_pause_ns;
    self->not_before_ns = broker->loop.now_ns + (self->low ? RETRY_LOW_NS : RETRY_NS);
}

/* ---- begin ---- */

rp_status checkpoint_start(struct broker *broker, enum checkpoint_reason reason, uint64_t *number, rp_error *err)
{
    struct checkpoints *self = broker->checkpoints;
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

bool checkpoint_is_running(const struct broker *broker)
{
    return broker->checkpoints && broker->checkpoints->running;
}

bool checkpoint_makes_room(const struct broker *broker)
{
    const struct checkpoints *self = broker->checkpoints;
    if (!self)
        return false;
    return self->running ? self->running->reason == CHECKPOINT_SPACE : self->wanted && self->reason == CHECKPOINT_SPACE;
}

uint64_t checkpoint_bytes(const struct broker *broker)
{
    if (!broker->checkpoints)
        return 0;
    uint64_t items = 0;
    for (uint32_t i = 0; i < broker->tables.n; i++)
        items += broker->tables.list[i].in.size;
    uint64_t bytes = items * ITEM_BYTES + broker->params.bytes + REST_BYTES;
    return bytes > broker->checkpoints->base_bytes ? bytes : broker->checkpoints->base_bytes;
}

void checkpoint_signal(struct broker *broker)
{
    atomic_store(&broker->checkpoint_wanted, true);
    uint64_t one = 1;
    ssize_t ignored = write(broker->wake_fd, &one, sizeof one);
    (void)ignored;
}

static void begin(struct broker *broker)
{
    struct checkpoints *self = broker->checkpoints;
    rp_error err = {0};
    self->wanted = false;
    struct checkpoint *run = self->running = checkpoint_begin(broker, self->reason, &err);
    if (!run) {
        log_line(LEVEL_ERROR, "B0523", "checkpoint failed", "checkpoint=%llu why=\"%s\"",
                 (unsigned long long)self->next, err.text);
        checkpoint_answer(broker, self->next, err.text);
        pause_after_failure(broker);
        return;
    }
    log_line(LEVEL_INFO, "B0520", "checkpoint begun", "checkpoint=%llu reason=%s base=%llu items=%llu took_us=%lld",
             (unsigned long long)run->number, checkpoint_reason_name(run->reason), (unsigned long long)run->base,
             (unsigned long long)run->items, (long long)((clock_now(&broker->loop.clock) - run->start_ns) / NS_PER_US));
    timer_set(&broker->loop.timers, &self->progress, broker->loop.now_ns + PROGRESS_NS);
    chores_add(&broker->loop.chores, &run->chore);
}

/* The journal is larger than it should be, and than what it could be replaced by. */
static bool journal_is_long(const struct broker *broker)
{
    const struct stream *stream = broker->stream;
    return stream->journal && stream->journal_bytes > space_limit(&stream->space);
}

/* Whether a checkpoint would let enough go: segments in which nothing lives, and that only the journal and older
 * checkpoints need. */
static bool gains_space(const struct broker *broker)
{
    const struct stream *stream = broker->stream;
    uint64_t gain = 0;
    for (uint32_t i = 0; i < stream->n_segments; i++)
        if (!stream->segments[i].live && stream->segments[i].number != stream->segment)
            gain += stream->segments[i].bytes;
    return gain > 2 * stream->space.state + GAIN_LEAST;
}

/* On a disk that is short of space only the newest checkpoint is kept, and the next is made as soon as it gains some. */
static void mind_space(struct broker *broker)
{
    struct checkpoints *self = broker->checkpoints;
    bool low = space_is_low(&broker->stream->space);
    if (low != self->low) {
        self->low = low;
        log_line(low ? LEVEL_WARN : LEVEL_INFO, low ? "B0528" : "B0529",
                 low ? "the disk is short of space" : "the disk has space again", "free_bytes=%llu reserve_bytes=%llu",
                 (unsigned long long)broker->stream->space.free,
                 (unsigned long long)space_reserve(&broker->stream->space));
        if (low)
            checkpoints_clean(broker);
    }
    if (broker->stream->bad_last && !self->wanted && broker->loop.now_ns >= self->heal_ns)
        checkpoint_start(broker, CHECKPOINT_SYNC, NULL, NULL);
    if (self->wanted || broker->loop.now_ns < self->not_before_ns)
        return;
    if (low && gains_space(broker))
        checkpoint_start(broker, CHECKPOINT_SPACE, NULL, NULL);
    else if (journal_is_long(broker))
        checkpoint_start(broker, CHECKPOINT_JOURNAL, NULL, NULL);
}

bool checkpoints_run(struct broker *broker)
{
    struct checkpoints *self = broker->checkpoints;
    if (atomic_load_explicit(&broker->checkpoint_wanted, memory_order_relaxed) &&
        atomic_exchange(&broker->checkpoint_wanted, false)) {
        uint64_t count;
        ssize_t ignored = read(broker->wake_fd, &count, sizeof count);
        (void)ignored;
        rp_error err = {0};
        if (checkpoint_start(broker, CHECKPOINT_SIGNAL, NULL, &err) != RP_OK)
            log_line(LEVEL_WARN, "B0525", "no checkpoint", "why=\"%s\"", err.text);
    }
    if (!self)
        return false;
    struct checkpoint *run = self->running;
    bool can_go = run && (!run->reads || spill_reads(broker) >= run->reads || !broker->spill->bring_bytes);
    if (run && run->waits && can_go && broker->stream->backlog <= checkpoint_ahead(broker->stream) / 2) {
        run->waits = false;
        run->reads = 0;
        chores_add(&broker->loop.chores, &run->chore);
        return true;
    }
    if (run)
        return false;
    mind_space(broker);
    if (!self->wanted)
        return false;
    begin(broker);
    return true;
}

/* ---- end ---- */

void checkpoint_end(struct checkpoint *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_segments; i++)
        n += named_is_needed(&self->segments[i], self->journal);
    checkpoint_flush(self);
    struct entry_named *entry = checkpoint_entry(self, ENTRY_PARTS, 0, sizeof *entry + n * sizeof(struct entry_part));
    entry->number = self->number;
    struct entry_part *part = (struct entry_part *)(void *)(entry + 1);
    for (uint32_t i = 0; i < self->n_segments; i++)
        if (named_is_needed(&self->segments[i], self->journal))
            *part++ = (struct entry_part){
                .segment = self->segments[i].number,
                .chunks = self->segments[i].chunks,
                .bytes = self->segments[i].bytes,
            };
    struct entry_end *end = checkpoint_entry(self, ENTRY_END, 0, sizeof *end);
    *end = (struct entry_end){
        .items = self->items, .chunks = self->chunks, .bytes = self->bytes, .entries = self->entries};
    checkpoint_flush(self);
    if (!self->journal)
        checkpoints_note_dead(self->broker);
    struct disk_job *job = self->failed ? NULL : calloc(1, sizeof *job);
    if (!job) {
        checkpoint_fail(self, "no memory for its end");
        checkpoint_abandon(self);
        return;
    }
    *job = (struct disk_job){
        .what = DISK_JOB_FINISH, .kind = DISK_CHECKPOINT, .file = self->number, .failures = self->failures};
    self->ended = true;
    stream_give(self->broker->stream, job);
}

/* What changed since the base is not known any more: the next one is whole. */
static void lose_chain(struct broker *broker)
{
    broker->checkpoints->base = 0;
    for (uint32_t i = 0; i < broker->tables.n; i++)
        broker->tables.list[i].in.marks->all_changed = true;
}

void checkpoint_abandon(struct checkpoint *run)
{
    struct broker *broker = run->broker;
    struct checkpoints *self = broker->checkpoints;
    char quoted[320];
    checkpoint_let_go(run);
    lose_chain(broker);
    broker->stream->journal_bytes += run->replaces;
    checkpoint_tell(broker, DISK_JOB_ABANDON, DISK_CHECKPOINT, run->number);
    log_line(LEVEL_ERROR, "B0523", "checkpoint failed", "checkpoint=%llu why=%s", (unsigned long long)run->number,
             log_quote(quoted, sizeof quoted, run->error));
    pause_after_failure(broker);
    self->n_dead = 0; /* those were dead at its instant: the journal since the one before may still need them */
    self->running = NULL;
    timer_clear(&broker->loop.timers, &self->progress);
    checkpoint_answer(broker, run->number, run->error);
    checkpoint_free(run);
}

/* Becomes what the next one may be a change of. */
static void extend_chain(struct checkpoints *self, const struct checkpoint *run)
{
    self->links = run->base ? self->links + 1 : 0;
    self->chain_bytes = run->base ? self->chain_bytes + run->offset : 0;
    if (!run->base)
        self->base_bytes = run->offset;
    self->base = run->number;
}

static void finish(struct broker *broker, struct checkpoint *run)
{
    struct checkpoints *self = broker->checkpoints;
    int64_t now = clock_now(&broker->loop.clock), took = now - run->start_ns;
    extend_chain(self, run);
    stream_healed(broker->stream, run->failures);
    self->heal_pause_ns = 0;
    self->last = run->number;
    self->last_ns = now;
    self->last_base = run->base;
    self->last_items = run->items;
    self->last_bytes = bytes_of(run);
    self->last_took_ns = (uint64_t)took;
    self->running = NULL;
    timer_clear(&broker->loop.timers, &self->progress);
    log_line(LEVEL_INFO, "B0522", "checkpoint is whole",
             "checkpoint=%llu base=%llu items=%llu bytes=%llu of_them_chunks=%llu took_ms=%.1f mb_per_s=%.0f",
             (unsigned long long)run->number, (unsigned long long)run->base, (unsigned long long)run->items,
             (unsigned long long)bytes_of(run), (unsigned long long)run->chunk_bytes, (double)took / 1e6,
             rate_of(bytes_of(run), took));
    if (checkpoints_keep(self, run))
        checkpoints_clean(broker);
    checkpoint_answer(broker, run->number, NULL);
    sockets_announce(&broker->peers, "checkpoint %llu", (unsigned long long)run->number);
    checkpoint_free(run);
}

void checkpoint_finished(struct broker *broker, uint64_t number, bool ok)
{
    struct checkpoint *run = broker->checkpoints ? broker->checkpoints->running : NULL;
    if (!run || run->number != number)
        return;
    if (ok) {
        finish(broker, run);
        return;
    }
    checkpoint_fail(run, "it could not be written: %.200s",
                    broker->stream->trouble[0] ? broker->stream->trouble : "the log says why");
    if (run->ended || run->waits)
        checkpoint_abandon(run); /* otherwise its next slice does */
}

void checkpoint_exit(struct broker *broker)
{
    struct checkpoints *self = broker->checkpoints;
    if (!self)
        return;
    if (broker->config->checkpoint_on_exit)
        checkpoint_start(broker, CHECKPOINT_EXIT, NULL, NULL);
    struct clock clock = clock_system(); /* the broker's may stand still */
    uint64_t seen = 0;
    int64_t moved_ns = clock_now(&clock);
    while (self->running || self->wanted) {
        broker_turn(broker, 10);
        uint64_t moved = broker->stream->given - broker->stream->backlog;
        moved += self->running ? self->running->entries : 0;
        int64_t now = clock_now(&clock);
        if (moved != seen)
            moved_ns = now;
        seen = moved;
        bool hurry = atomic_load(&broker->hurry);
        if (now - moved_ns < (broker->stream->trouble[0] ? EXIT_TROUBLE_NS : EXIT_STILL_NS) && !hurry)
            continue;
        log_line(LEVEL_ERROR, "B0526", "the last checkpoint is given up", "why=\"%s\"",
                 hurry ? "asked twice to end" : "the disk does not move");
        self->wanted = false;
        return;
    }
}

/* ---- life ---- */

static void period_timer(struct timer *timer, void *ctx)
{
    struct broker *broker = ctx;
    if (!broker->checkpoints->running && broker->loop.now_ns >= broker->checkpoints->not_before_ns)
        checkpoint_start(broker, CHECKPOINT_PERIOD, NULL, NULL);
    timer_set(&broker->loop.timers, timer, broker->loop.now_ns + broker->config->checkpoint_every_ns);
}

static void progress_timer(struct timer *timer, void *ctx)
{
    struct broker *broker = ctx;
    const struct checkpoint *run = broker->checkpoints->running;
    if (!run)
        return;
    log_line(LEVEL_INFO, "B0521", "checkpoint goes on", "checkpoint=%llu done=%.1f%% bytes=%llu mb_per_s=%.0f",
             (unsigned long long)run->number, 100 * share_done(run), (unsigned long long)bytes_of(run),
             rate_of(bytes_of(run), broker->loop.now_ns - run->start_ns));
    timer_set(&broker->loop.timers, timer, broker->loop.now_ns + PROGRESS_NS);
}

rp_status checkpoints_init(struct broker *broker, rp_error *err)
{
    if (!broker->stream || !config_makes_checkpoints(broker->config))
        return RP_OK;
    struct checkpoints *self = broker->checkpoints = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for checkpoints");
    self->slice = SLICE_SLOTS;
    self->progress = (struct timer){.fire = progress_timer, .ctx = broker};
    self->period = (struct timer){.fire = period_timer, .ctx = broker};
    self->next = folder_next(&broker->stream->folder, DISK_CHECKPOINT);
    RP_TRY(checkpoints_read(broker, err));
    checkpoints_note_dead(broker);
    if (broker->config->checkpoint_every_ns &&
        !timer_set(&broker->loop.timers, &self->period, broker->loop.now_ns + broker->config->checkpoint_every_ns))
        return err_set(err, RP_NO_MEMORY, "no memory for a timer");
    return RP_OK;
}

/* One that is under way comes to nothing. */
void checkpoints_fini(struct broker *broker)
{
    struct checkpoints *self = broker->checkpoints;
    if (!self)
        return;
    struct checkpoint *run = self->running;
    self->running = NULL;
    if (run) {
        checkpoint_let_go(run);
        checkpoint_tell(broker, DISK_JOB_ABANDON, DISK_CHECKPOINT, run->number);
        for (struct chore **at = &broker->loop.chores.first; *at; at = &(*at)->next)
            if (*at == &run->chore) {
                *at = run->chore.next;
                if (!*at)
                    broker->loop.chores.last = at;
                break;
            }
        checkpoint_free(run);
    }
    timer_clear(&broker->loop.timers, &self->period);
    timer_clear(&broker->loop.timers, &self->progress);
    checkpoints_keep_fini(self);
    free(self);
    broker->checkpoints = NULL;
}

void checkpoints_info(const struct broker *broker, Replay__DiskInfo *out)
{
    const struct checkpoints *self = broker->checkpoints;
    if (!self)
        return;
    out->checkpoint = self->last;
    out->checkpoint_age_ns =
        self->last && broker->loop.now_ns > self->last_ns ? (uint64_t)(broker->loop.now_ns - self->last_ns) : 0;
    out->checkpoint_running = self->running != NULL;
    out->checkpoint_progress = self->running ? share_done(self->running) : 0;
}
