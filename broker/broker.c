#include "broker/broker.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/checkpoint/restore.h"
#include "broker/journal/stream.h"
#include "broker/peer/sockets.h"
#include "broker/sample/kept_samples.h"
#include "broker/sample/samples.h"
#include "broker/session/credit.h"
#include "broker/session/ingest.h"
#include "broker/session/pump.h"
#include "broker/session/session.h"
#include "broker/spill/spill.h"
#include "proto/base/error.h"

/* A turn looks at each socket for so long at most: counted by messages alone, ingest would starve samplers. */
#define DRAIN_MESSAGES 64u
#define DRAIN_NS (100 * NS_PER_US)
#define CHORES_NS (300 * NS_PER_US)
#define TIMERS_PER_TURN 256u
/* How long the end waits for the disk beyond drain_timeout; and the destruction of a broker that was not ended so. */
#define FINISH_NS (30 * NS_PER_S)
#define DESTROY_NS (10 * NS_PER_S)
/* And so long, if it cannot be written. */
#define TROUBLE_NS NS_PER_S
/* Inserts that have waited so long for the disk are told of in the log. */
#define HELD_NS (500 * NS_PER_MS)

/* ---- the end ---- */

static void wake_clear(struct broker *self)
{
    uint64_t count;
    ssize_t ignored = read(self->wake_fd, &count, sizeof count);
    (void)ignored;
}

/* Reads what the disk writer reports, and sends the messages that waited for it. */
static void take_news(struct broker *self)
{
    stream_run(self->stream);
    if (self->peers.commit.first)
        commit_release(&self->peers);
}

/* Until everything recorded is durable and everything said has left, without new input. By the system's clock: the
 * broker's may stand still. */
static void settle(struct broker *self, int64_t timeout_ns)
{
    struct clock clock = clock_system();
    int64_t start = clock_now(&clock), now = start, end = now + timeout_ns, say = now + NS_PER_S;
    for (;; now = clock_now(&clock)) {
        stream_hand_over(self->stream);
        take_news(self);
        if (!self->peers.commit.first && self->stream->durable >= stream_now(self->stream))
            return;
        if (self->stream->trouble[0] && end > start + TROUBLE_NS)
            end = start + TROUBLE_NS;
        if (now >= end || atomic_load(&self->hurry))
            break;
        if (now >= say) {
            char why[320] = "\"the disk is slow\"";
            if (self->stream->trouble[0])
                log_quote(why, sizeof why, self->stream->trouble);
            log_line(LEVEL_WARN, "B0507", "the end waits for the disk", "why=%s messages=%llu left_s=%.0f", why,
                     (unsigned long long)self->peers.commit.count, (double)(end - now) / (double)NS_PER_S);
            say = now + 5 * NS_PER_S;
        }
        zmq_pollitem_t items[] = {{disk_writer_socket(self->stream->disk_writer), 0, ZMQ_POLLIN, 0},
                                  {NULL, self->wake_fd, ZMQ_POLLIN, 0}};
        if (zmq_poll(items, 2, 100) > 0 && items[1].revents)
            wake_clear(self);
    }
    if (timeout_ns)
        log_line(LEVEL_ERROR, "B0508", "ended without having told clients all: it could not be written",
                 "messages=%llu records=%llu", (unsigned long long)self->peers.commit.count,
                 (unsigned long long)(stream_now(self->stream) - self->stream->durable));
}

/* ---- life ---- */

void broker_memory_settings(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
}

static void every_second(struct timer *timer, void *ctx)
{
    struct broker *self = ctx;
    tables_tick(&self->tables);
    peers_sweep(&self->peers);
    kept_samples_sweep(&self->samples);
    timer_set(&self->loop.timers, timer, self->loop.now_ns + NS_PER_S);
}

static struct durable_state durable_state(struct broker *self)
{
    return (struct durable_state){
        .config = self->config,
        .instance = self->instance,
        .loop = &self->loop,
        .store = &self->store,
        .layouts = &self->layouts,
        .tables = &self->tables,
        .peers = &self->peers,
        .samples = &self->samples,
        .sessions = &self->sessions,
        .params = &self->params,
    };
}

static rp_status broker_init(struct broker *self, void *context, rp_error *err)
{
    RP_TRY(descriptors_init(self->config, err));
    rng_seed(&self->rng, (uint64_t)self->config->seed);
    if (self->config->seed == 0) {
        uint64_t seed;
        rng_system(&seed, sizeof seed);
        rng_seed(&self->rng, seed);
    }
    rng_system(&self->instance, sizeof self->instance);
    self->sessions.ingest_budget = (uint64_t)config_ingest_budget(self->config);
    self->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (self->wake_fd < 0)
        return err_set(err, RP_NO_MEMORY, "no memory or descriptors for the broker");
    RP_TRY(store_init(&self->store, err));
    RP_TRY(tables_init(&self->tables, err));
    if (config_folder(self->config)) {
        struct durable_state state = durable_state(self);
        RP_TRY(stream_open(&self->stream, &state, err));
        RP_TRY(spill_open(&self->spill, &state, self->stream, err));
    }
    RP_TRY(tables_create(&self->tables, &self->rng, err));
    /* Keys are made from ordinals: a writer that outlives this broker must not meet its own keys in the next one. */
    self->tables.ordinals.next = 1 + self->instance % (KEY_ORDINALS / 2); /* not from a configured seed */
    if (self->stream) {
        struct durable_state state = durable_state(self);
        struct checkpoint_listener listener = {request_checkpoint_ended, &self->service};
        RP_TRY(restore(&state, self->stream, err));
        RP_TRY(stream_begin(self->stream, err));
        /* Notes which segments the files do without, before more is removed. */
        RP_TRY(checkpoints_init(&self->checkpoints, &state, self->stream, self->spill, listener, err));
        restore_finish(&self->tables);
    }
    self->service = (struct service){
        .config = self->config,
        .loop = &self->loop,
        .store = &self->store,
        .tables = &self->tables,
        .params = &self->params,
        .peers = &self->peers,
        .samples = &self->samples,
        .sessions = &self->sessions,
        .stream = self->stream,
        .checkpoints = self->checkpoints,
        .spill = self->spill,
        .instance = self->instance,
    };
    RP_TRY(service_init(&self->service, err));
    RP_TRY(sockets_open(&self->peers, context, err));
    self->second = (struct timer){.fire = every_second, .ctx = self};
    if (!timer_set(&self->loop.timers, &self->second, self->loop.now_ns + NS_PER_S) ||
        !timer_reserve(&self->loop.timers))
        return err_set(err, RP_NO_MEMORY, "no memory for the broker's timers");
    tables_start(&self->tables);
    return RP_OK;
}

static struct broker *create(const struct broker_config *config, struct clock clock, void *context, struct ducts *ducts,
                             rp_error *err)
{
    struct broker *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for the broker");
        return NULL;
    }
    self->config = config;
    self->loop.clock = clock;
    self->loop.stepped = clock.now != clock_system().now;
    self->loop.now_ns = self->loop.start_ns = clock_now(&clock);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    self->loop.wall_offset_ns = wall.tv_sec * NS_PER_S + wall.tv_nsec - self->loop.start_ns;
    self->wake_fd = -1;
    chores_init(&self->loop.chores);
    peers_init(&self->peers, &self->loop, config, ducts);
    self->tables =
        (struct tables){.loop = &self->loop, .store = &self->store, .layouts = &self->layouts, .config = config};
    self->samples = (struct samples){
        .loop = &self->loop,
        .config = config,
        .store = &self->store,
        .layouts = &self->layouts,
        .params = &self->params,
        .peers = &self->peers,
    };
    samples_init(&self->samples);
    self->sessions = (struct sessions){
        .loop = &self->loop,
        .config = config,
        .store = &self->store,
        .layouts = &self->layouts,
        .tables = &self->tables,
        .peers = &self->peers,
    };
    if (broker_init(self, context, err) != RP_OK)
        broker_destroy(&self);
    return self;
}

struct broker *broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err)
{
    return create(config, clock, context, NULL, err);
}

struct broker *broker_new_local(const struct broker_config *config, struct clock clock, struct ducts *ducts,
                                rp_error *err)
{
    return create(config, clock, NULL, ducts, err);
}

void broker_destroy(struct broker **at)
{
    struct broker *self = *at;
    if (!self)
        return;
    if (self->stream) {
        settle(self, self->stream->trouble[0] ? 0 : DESTROY_NS);
        /* What is taken apart now is no effect, and what could not be recorded is not told. */
        stream_record(self->stream, false);
        self->store.freed = NULL;
        commit_fini(&self->peers.commit);
    }
    if (self->peers.service || self->peers.ducts)
        waits_cancel_all(&self->peers.waits, RP_CANCELLED, "the broker has stopped");
    checkpoints_fini(&self->checkpoints);
    spill_close(&self->spill);
    sessions_fini(&self->sessions);
    while (chores_run(&self->loop.chores, self->loop.clock.now, self->loop.clock.ctx, NS_PER_S)) {
    }
    samples_fini(&self->samples);
    tables_fini(&self->tables);
    params_fini(&self->params);
    service_fini(&self->service);
    peers_fini(&self->peers);
    timers_fini(&self->loop.timers);
    stream_close(&self->stream, 0);
    layouts_fini(&self->layouts);
    store_fini(&self->store);
    if (self->wake_fd >= 0)
        close(self->wake_fd);
    free(self);
    *at = NULL;
}

rp_status broker_write_endpoints(const struct broker *self, const char *path, rp_error *err)
{
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid()) >= sizeof temporary)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the endpoints file is too long");
    FILE *file = fopen(temporary, "w");
    bool ok = file && fprintf(file, "service %s\ningest %s\nevents %s\n", self->peers.service_endpoint,
                              self->peers.ingest_endpoint, self->peers.events_endpoint) > 0;
    if (file)
        ok = fclose(file) == 0 && ok;
    if (ok && rename(temporary, path) == 0)
        return RP_OK;
    int error = errno;
    unlink(temporary);
    return err_set(err, RP_IO, "can not write the endpoints to %s: %s", path, strerror(error));
}

/* ---- the loop ---- */

static bool drain(struct broker *self, bool (*receive)(struct broker *), bool *idle)
{
    int64_t end = self->loop.now_ns + DRAIN_NS;
    for (uint32_t n = 0; n < DRAIN_MESSAGES; n++) {
        if (!receive(self)) {
            *idle = true;
            return n > 0;
        }
        self->loop.now_ns = clock_now(&self->loop.clock);
        if (self->loop.now_ns >= end)
            return true;
    }
    return true;
}

/* No more is taken in this turn where the journal has come to a limit: the next turn sees to it. */
static bool ingest_next(struct broker *self)
{
    if (self->ingest_enough || !ingest_receive(&self->sessions))
        return false;
    self->ingest_enough = self->stream && self->stream->journal && !stream_has_room(self->stream);
    return true;
}

static bool request_next(struct broker *self)
{
    return dispatch_receive(&self->service);
}

static int64_t cpu_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return at.tv_sec * NS_PER_S + at.tv_nsec;
}

static void sleep_until_due(struct broker *self, int wait_ms)
{
    int64_t due = timers_next(&self->loop.timers);
    if (due != INT64_MAX) {
        int64_t left = due - clock_now(&self->loop.clock);
        int64_t left_ms = left <= 0 ? 0 : (left + NS_PER_MS - 1) / NS_PER_MS;
        if (wait_ms < 0 || left_ms < wait_ms)
            wait_ms = (int)left_ms;
    }
    zmq_pollitem_t items[6] = {{NULL, self->wake_fd, ZMQ_POLLIN, 0}, {self->peers.monitor.socket, 0, ZMQ_POLLIN, 0}};
    int n = self->peers.monitor.socket ? 2 : 1;
    if (self->peers.service && !self->closed)
        items[n++] = (zmq_pollitem_t){self->peers.service, 0, ZMQ_POLLIN, 0};
    if (self->peers.ingest && !self->sessions.ingest_held)
        items[n++] = (zmq_pollitem_t){self->peers.ingest, 0, ZMQ_POLLIN, 0};
    if (self->stream)
        items[n++] = (zmq_pollitem_t){disk_writer_socket(self->stream->disk_writer), 0, ZMQ_POLLIN, 0};
    if (self->spill)
        items[n++] = (zmq_pollitem_t){spill_socket(self->spill), 0, ZMQ_POLLIN, 0};
    zmq_poll(items, n, wait_ms);
    if (items[0].revents)
        wake_clear(self);
    if (self->peers.monitor.socket && items[1].revents)
        monitor_run(&self->peers);
    if (self->stream)
        take_news(self);
}

/* With the journal on, nothing more is taken in while it can not be written: writers run out of credit and wait. */
static void hold_ingest(struct broker *self)
{
    char why[256], quoted[320];
    bool held = self->stream->journal && stream_is_full(self->stream, why, sizeof why);
    if (held && !self->sessions.ingest_held)
        self->held_ns = self->loop.now_ns;
    self->sessions.ingest_held = held;
    /* A moment's wait is how a fast writer and a disk keep pace, and no news. */
    if (held && !self->held_told && self->loop.now_ns - self->held_ns >= HELD_NS) {
        self->held_told = true;
        log_line(LEVEL_WARN, "B0505", "nothing more is taken in: the disk does not keep up", "why=%s",
                 log_quote(quoted, sizeof quoted, why));
    } else if (!held && self->held_told) {
        self->held_told = false;
        log_line(LEVEL_INFO, "B0506", "inserts are taken in again", "backlog_bytes=%llu",
                 (unsigned long long)self->stream->backlog);
    }
}

/* Sleeping takes no time of the processor: the end of a turn is the start of the next. */
static void measure_stretch(struct broker *self)
{
    int64_t cpu = cpu_now();
    uint64_t took = self->cpu_ns && cpu > self->cpu_ns ? (uint64_t)(cpu - self->cpu_ns) : 0;
    self->cpu_ns = cpu;
    if (took > self->loop.longest_stretch_ns)
        self->loop.longest_stretch_ns = took;
}

void broker_checkpoint(struct broker *self)
{
    atomic_store(&self->checkpoint_wanted, true);
    uint64_t one = 1;
    ssize_t ignored = write(self->wake_fd, &one, sizeof one);
    (void)ignored;
}

static bool run_checkpoints(struct broker *self)
{
    if (atomic_load_explicit(&self->checkpoint_wanted, memory_order_relaxed) &&
        atomic_exchange(&self->checkpoint_wanted, false)) {
        rp_error err = {0};
        wake_clear(self);
        if (checkpoint_start(self->checkpoints, CHECKPOINT_SIGNAL, NULL, &err) != RP_OK)
            log_line(LEVEL_WARN, "B0525", "no checkpoint", "why=\"%s\"", err.text);
    }
    return self->checkpoints && checkpoints_run(self->checkpoints);
}

void broker_turn(struct broker *self, int wait_ms)
{
    self->loop.now_ns = clock_now(&self->loop.clock);
    bool service_idle = false;
    if (self->stream) {
        take_news(self);
        hold_ingest(self);
    }
    self->sessions.ingest_idle = self->sessions.ingest_held;
    self->ingest_enough = false;
    bool busy = !self->sessions.ingest_held && drain(self, ingest_next, &self->sessions.ingest_idle);
    busy |= !self->closed && drain(self, request_next, &service_idle);
    busy |= timers_run(&self->loop.timers, self->loop.now_ns, TIMERS_PER_TURN);
    busy |= !self->closed && pump_run(&self->tables);
    busy |= run_checkpoints(self);
    busy |= chores_run(&self->loop.chores, self->loop.clock.now, self->loop.clock.ctx, CHORES_NS);
    if (self->spill)
        busy |= spill_run(self->spill);
    busy |= pump_wake(&self->tables);
    if (self->sessions.dirty)
        credit_notify(&self->sessions);
    if (self->stream)
        stream_flush(self->stream);
    if (!self->loop.stepped)
        measure_stretch(self);
    if (!busy && wait_ms != 0)
        sleep_until_due(self, self->sessions.dirty ? 1 : wait_ms);
}

void broker_stop(struct broker *self)
{
    atomic_store(&self->stop, true);
    uint64_t one = 1;
    ssize_t ignored = write(self->wake_fd, &one, sizeof one);
    (void)ignored;
}

void broker_hurry(struct broker *self)
{
    atomic_store(&self->hurry, true);
    broker_stop(self);
}

void broker_drain(struct broker *self)
{
    self->loop.draining = true;
    self->loop.now_ns = clock_now(&self->loop.clock);
    uint64_t waiting = 0;
    for (uint32_t i = 0; i < self->tables.n; i++)
        waiting += self->tables.list[i].n_waiting_items;
    log_line(LEVEL_INFO, "B0003", "draining", "waiters=%llu sessions=%u items_not_accepted=%llu",
             (unsigned long long)self->peers.waits.count, self->sessions.n_open, (unsigned long long)waiting);
    waits_cancel_all(&self->peers.waits, RP_CANCELLED, "the broker is shutting down");
    sockets_announce(&self->peers, "broker stop");
    /* What is in tables is told to the writers; what waits is not, and they keep it. */
    for (struct session *session = self->sessions.list; session; session = session->next)
        credit_mark(session, true);
    credit_notify(&self->sessions);
}

void broker_run(struct broker *self)
{
    while (!atomic_load(&self->stop))
        broker_turn(self, -1);
    broker_finish(self);
}

/* False: the end must not wait any longer. */
static bool exit_turn(void *ctx)
{
    struct broker *self = ctx;
    broker_turn(self, 10);
    return !atomic_load(&self->hurry);
}

void broker_finish(struct broker *self)
{
    broker_drain(self);
    if (!self->stream)
        return;
    self->closed = !self->stream->journal;
    if (self->checkpoints)
        checkpoint_exit(self->checkpoints, exit_turn, self);
    settle(self, self->config->drain_timeout_ns + FINISH_NS);
}
