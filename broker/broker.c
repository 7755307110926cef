#include "broker/broker.h"

#include <errno.h>
#include <libgen.h>
#include <malloc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/checkpoint/restore.h"
#include "broker/journal/stream.h"
#include "broker/peer/peers.h"
#include "broker/sample/kept_samples.h"
#include "broker/session/session.h"
#include "broker/spill/spill.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/need.h"
#include "proto/base/text.h"

/* Most messages that a turn reads from each socket, and most time: bounded by messages alone, ingest would starve samplers. */
#define DRAIN_MESSAGES 64u
#define DRAIN_NS (100 * NS_PER_US)
#define CHORES_NS (300 * NS_PER_US)
#define TIMERS_PER_TURN 256u
/* Time after which the log says that inserts wait for the disk. */
#define HELD_NS (500 * NS_PER_MS)
/* How long the end waits for the disk beyond PEER_DRAIN_NS; and if the disk cannot be written. */
#define FINISH_NS (30 * NS_PER_S)
#define TROUBLE_NS NS_PER_S
/* How long the destruction of a broker that was not finished waits for the disk. */
#define DESTROY_NS (10 * NS_PER_S)

/* ---- other threads ---- */

static void wake_clear(struct broker *self)
{
    eventfd_t count;
    eventfd_read(self->wake_fd, &count);
}

void broker_stop(struct broker *self)
{
    atomic_store(&self->stop, true);
    eventfd_write(self->wake_fd, 1);
}

void broker_hurry(struct broker *self)
{
    atomic_store(&self->hurry, true);
    broker_stop(self);
}

void broker_checkpoint(struct broker *self)
{
    atomic_store(&self->checkpoint_wanted, true);
    eventfd_write(self->wake_fd, 1);
}

/* ---- the journal ---- */

/* Reads what the disk writer reports, and sends the messages that waited for it. */
static void take_news(struct broker *self)
{
    stream_run(self->stream);
    if (!STAILQ_EMPTY(&self->peers.commit.parked))
        commit_release(&self->peers);
}

/* Holds ingest while the journal cannot be written: writers run out of credit and wait. */
static void hold_ingest(struct broker *self)
{
    char why[256];
    bool held = self->stream->journal && stream_is_full(self->stream, why, sizeof why);
    if (held && !self->sessions.ingest_held)
        self->held_ns = self->loop.now_ns;
    self->sessions.ingest_held = held;
    /* A short wait is how a fast writer and a disk keep pace: it is not logged. */
    if (held && !self->sessions.ingest_stuck && self->loop.now_ns - self->held_ns >= HELD_NS) {
        self->sessions.ingest_stuck = true;
        log_line(LEVEL_WARN, "B0505", "inserts wait: the disk does not keep up", "why=%s", log_text(why));
    } else if (!held && self->sessions.ingest_stuck) {
        self->sessions.ingest_stuck = false;
        log_line(LEVEL_INFO, "B0506", "inserts are accepted again", "backlog_bytes=%llu",
                 (unsigned long long)self->stream->backlog);
    }
}

/* ---- stages of a turn ---- */

/* Receives until the socket is empty or the turn's share is used up. True: there was a message. */
static bool drain(struct broker *self, bool (*receive)(struct broker *), bool *idle)
{
    int64_t end = self->loop.now_ns + DRAIN_NS;
    for (uint32_t n = 0; n < DRAIN_MESSAGES; n++) {
        int64_t arrived_ns = self->loop.now_ns;
        if (!receive(self)) {
            *idle = true;
            return n > 0;
        }
        self->loop.now_ns = clock_now(&self->loop.clock);
        if (self->sessions.inserted)
            sessions_measure(&self->sessions, self->loop.now_ns - arrived_ns);
        if (self->loop.now_ns >= end)
            return true;
    }
    return true;
}

/* Reads an ingest message, unless the journal has reached a limit in this turn: the next turn flushes it first. */
static bool receive_ingest(struct broker *self)
{
    if (self->journal_is_full)
        return false;
    errno = 0;
    bool received = ingest_receive(&self->sessions);
    self->peers.ingest_used = received || errno == EINTR;
    if (!received)
        return false;
    self->journal_is_full = self->stream && self->stream->journal && !stream_has_room(self->stream);
    return true;
}

static bool receive_request(struct broker *self)
{
    errno = 0;
    bool received = service_receive(&self->service);
    self->peers.service_used = received || errno == EINTR;
    return received;
}

static bool take_ingest(struct broker *self)
{
    if (self->stream)
        hold_ingest(self);
    bool reads = self->peers.ingest_used && !self->sessions.ingest_held;
    self->sessions.ingest_idle = !reads;
    self->journal_is_full = false;
    return reads && drain(self, receive_ingest, &self->sessions.ingest_idle);
}

/* Runs a stage of the turn; while a trace is recorded, a stage that had work to do is a span. */
static bool stage(struct broker *self, const char *name, bool (*run)(struct broker *))
{
    int64_t start = loop_trace_start(&self->loop);
    bool busy = run(self);
    if (busy && start)
        loop_trace_end(&self->loop, name, start, (struct trace_span){0});
    return busy;
}

static bool run_chores(struct broker *self)
{
    return chores_run(&self->loop.chores, &self->loop.clock, CHORES_NS);
}

static bool write_checkpoint(struct broker *self)
{
    return checkpoints_run(self->checkpoints);
}

static bool run_checkpoints(struct broker *self)
{
    if (atomic_load_explicit(&self->checkpoint_wanted, memory_order_relaxed) &&
        atomic_exchange(&self->checkpoint_wanted, false)) {
        rp_error err = {0};
        if (checkpoint_start(self->checkpoints, CHECKPOINT_SIGNAL, NULL, &err) != RP_OK)
            log_line(LEVEL_WARN, "B0525", "no checkpoint", "why=\"%s\"", err.text);
    }
    return self->checkpoints && stage(self, "checkpoint", write_checkpoint);
}

/* Measures the processor time of a turn. Sleeping takes none, so the end of a turn is the start of the next. */
static void measure_stretch(struct broker *self)
{
    int64_t cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
    uint64_t took = self->cpu_ns && cpu > self->cpu_ns ? (uint64_t)(cpu - self->cpu_ns) : 0;
    self->cpu_ns = cpu;
    if (took > self->loop.longest_stretch_ns)
        self->loop.longest_stretch_ns = took;
}

/* Returns the milliseconds until the first timer is due, at most wait_ms; -1: no timer is set, and no bound was given. */
static int ms_until_due(const struct broker *self, int wait_ms)
{
    int64_t due = timers_next(&self->loop.timers);
    if (due == INT64_MAX)
        return wait_ms;
    int64_t left = due - clock_now(&self->loop.clock);
    int64_t left_ms = left <= 0 ? 0 : (left + NS_PER_MS - 1) / NS_PER_MS;
    return wait_ms < 0 || left_ms < wait_ms ? (int)left_ms : wait_ms;
}

enum { LOOK_MONITOR, LOOK_SERVICE, LOOK_INGEST, LOOK_SOCKETS, LOOK_WAKE = LOOK_SOCKETS, LOOK_OTHERS, LOOK_MOST = 8 };

/* Waits for the first n descriptors, and notes which sockets are to be read in the next turn. */
static void look(struct broker *self, struct pollfd *fds, uint32_t n, int wait_ms)
{
    struct peers *peers = &self->peers;
    fds[LOOK_MONITOR] = (struct pollfd){socket_fd(peers->monitor.socket), POLLIN, 0};
    fds[LOOK_SERVICE] = (struct pollfd){self->closed ? -1 : socket_fd(peers->service), POLLIN, 0};
    fds[LOOK_INGEST] = (struct pollfd){self->sessions.ingest_held ? -1 : socket_fd(peers->ingest), POLLIN, 0};
    int found = poll(fds, n, wait_ms);
    self->looked = true;
    if (found <= 0)
        return;
    peers->service_used |= fds[LOOK_SERVICE].revents != 0;
    peers->ingest_used |= fds[LOOK_INGEST].revents != 0;
    if (fds[LOOK_MONITOR].revents) /* in every turn: an I/O thread waits while the monitor's queue is full */
        monitor_run(peers);
}

static void sleep_until_due(struct broker *self, int wait_ms)
{
    struct peers *peers = &self->peers;
    void *const others[] = {peers->identities.on ? peers->identities.zap : NULL,
                            self->stream ? disk_writer_socket(self->stream->disk_writer) : NULL,
                            self->spill ? spill_socket(self->spill) : NULL};
    struct pollfd fds[LOOK_MOST] = {[LOOK_WAKE] = {self->wake_fd, POLLIN, 0}};
    uint32_t n = LOOK_OTHERS;
    /* Credit notices were sent after the requests were read. */
    peers->service_used = peers->service_used && !self->closed && socket_has(peers->service, ZMQ_POLLIN);
    bool ready = peers->service_used || (peers->ingest_used && !self->sessions.ingest_held);
    for (uint32_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        ready |= socket_has(others[i], ZMQ_POLLIN);
        fds[n++] = (struct pollfd){socket_fd(others[i]), POLLIN, 0};
    }
    look(self, fds, n, ready ? 0 : ms_until_due(self, wait_ms));
    if (fds[LOOK_WAKE].revents)
        wake_clear(self);
    if (self->stream)
        take_news(self);
}

void broker_turn(struct broker *self, int wait_ms)
{
    struct loop *loop = &self->loop;
    struct pollfd fds[LOOK_SOCKETS];
    if (self->peers.channels)
        self->peers.service_used = self->peers.ingest_used = true; /* to read them costs nothing */
    else if (!self->looked)
        look(self, fds, LOOK_SOCKETS, 0);
    self->looked = false;
    loop->now_ns = clock_now(&loop->clock);
    if (self->stream)
        take_news(self);
    bool busy = self->peers.identities.on && zap_run(&self->peers), returns = wait_ms >= 0, idle = false;
    /* A socket that is empty now is no reason for another turn, unless the caller wants to see what this one did. */
    busy |= take_ingest(self) && (returns || !self->sessions.ingest_idle);
    self->peers.commit.gathers = true;
    if (self->peers.service_used && !self->closed)
        busy |= drain(self, receive_request, &idle) && (returns || !idle);
    busy |= timers_run(&loop->timers, loop->now_ns, TIMERS_PER_TURN);
    busy |= !self->closed && pump_run(&self->tables);
    commit_release(&self->peers);
    busy |= run_checkpoints(self);
    busy |= snapshot_maker_run(&self->snapshots);
    busy |= loop->chores.first && stage(self, "chores", run_chores);
    busy |= self->spill && spill_run(self->spill);
    busy |= pump_wake(&self->tables);
    if (!LIST_EMPTY(&self->sessions.dirty))
        sessions_notify(&self->sessions);
    busy |= !self->closed && self->tables.dirty; /* a chore has returned items, or made room */
    busy |= loop->chores.first != NULL;          /* a session that has ended leaves its chunks to one */
    if (self->stream)
        stream_flush(self->stream);
    if (!loop->stepped)
        measure_stretch(self);
    if (!busy && wait_ms != 0)
        sleep_until_due(self, LIST_EMPTY(&self->sessions.dirty) ? wait_ms : 1);
}

bool broker_run(struct broker *self)
{
    while (!atomic_load(&self->stop))
        broker_turn(self, -1);
    return broker_finish(self);
}

/* ---- the end ---- */

/* Waits until every record is durable and every message has been sent, without new input. Uses the system's clock: a test's clock may not
 * move. */
static void settle(struct broker *self, int64_t timeout_ns)
{
    int64_t start = clock_ns(), now = start, end = now + timeout_ns, log_ns = now + NS_PER_S;
    for (;; now = clock_ns()) {
        stream_hand_over(self->stream);
        take_news(self);
        if (STAILQ_EMPTY(&self->peers.commit.parked) && self->stream->durable >= stream_now(self->stream))
            return;
        if (self->stream->trouble[0] && end > start + TROUBLE_NS)
            end = start + TROUBLE_NS;
        if (now >= end || atomic_load(&self->hurry))
            break;
        if (now >= log_ns) {
            log_line(LEVEL_WARN, "B0507", "the end waits for the disk", "why=%s messages=%llu left_s=%.0f",
                     log_text(self->stream->trouble[0] ? self->stream->trouble : "the disk is slow"),
                     (unsigned long long)self->peers.commit.count, (double)(end - now) / (double)NS_PER_S);
            log_ns = now + 5 * NS_PER_S;
        }
        zmq_pollitem_t items[] = {{disk_writer_socket(self->stream->disk_writer), 0, ZMQ_POLLIN, 0},
                                  {NULL, self->wake_fd, ZMQ_POLLIN, 0}};
        if (zmq_poll(items, 2, 100) > 0 && items[1].revents)
            wake_clear(self);
    }
    if (timeout_ns && self->peers.commit.count)
        log_line(LEVEL_ERROR, "B0508", "ended with messages unsent: the disk could not be written",
                 "messages=%llu records=%llu", (unsigned long long)self->peers.commit.count,
                 (unsigned long long)(stream_now(self->stream) - self->stream->durable));
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
    /* Writers hear which items are in tables; they keep the items that still wait. */
    for (struct session *session = LIST_FIRST(&self->sessions.list); session; session = LIST_NEXT(session, link))
        credit_mark(session, true);
    sessions_notify(&self->sessions);
}

/* Runs a turn while the last checkpoint is written. False: the end must not wait any longer. */
static bool exit_turn(void *ctx)
{
    struct broker *self = ctx;
    broker_turn(self, 10);
    return !atomic_load(&self->hurry);
}

bool broker_finish(struct broker *self)
{
    broker_drain(self);
    if (!self->stream)
        return true;
    self->closed = !self->stream->journal;
    bool saved = !self->checkpoints || checkpoint_exit(self->checkpoints, exit_turn, self);
    settle(self, PEER_DRAIN_NS + FINISH_NS);
    return saved || self->stream->journal;
}

void broker_memory_settings(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
}

/* ---- creation ---- */

static void every_second(struct timer *timer)
{
    struct broker *self = timer->ctx;
    tables_tick(&self->tables);
    peers_sweep(&self->peers);
    kept_samples_sweep(&self->samples);
    leases_sweep(&self->samples.leases);
    params_sweep(&self->params, &self->loop);
    resident_check(&self->resident, store_memory(&self->store) + self->params.bytes, self->peers.unfinished_bytes);
    timer_set(&self->loop.timers, timer, self->loop.now_ns + NS_PER_S);
}

#define LOOK_AT_KEYS_NS (20 * NS_PER_MS)

static void look_at_keys(struct timer *timer)
{
    struct broker *self = timer->ctx;
    peers_look_at_keys(&self->peers);
    peers_bound(&self->peers);
    timer_set(&self->loop.timers, timer, self->loop.now_ns + LOOK_AT_KEYS_NS);
}

static void loop_init(struct loop *self, struct clock clock)
{
    self->clock = clock;
    self->stepped = clock.now != clock_system().now;
    self->now_ns = self->start_ns = clock_now(&clock);
    self->wall_offset_ns = clock_of(CLOCK_REALTIME) - self->start_ns;
    chores_init(&self->chores);
    trace_init(&self->trace);
}

/* Connects each room to the rooms that it uses. */
static void connect_rooms(struct broker *self, struct channels *channels)
{
    const struct broker_config *config = self->config;
    peers_init(&self->peers, &self->loop, config, channels);
    self->peers.kept_replies.account = &self->store.overhead;
    self->tables = (struct tables){
        .loop = &self->loop,
        .store = &self->store,
        .layouts = &self->layouts,
        .config = config,
    };
    self->samples = (struct samples){
        .loop = &self->loop,
        .config = config,
        .store = &self->store,
        .layouts = &self->layouts,
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
        .ingest_budget = (uint64_t)config_ingest_budget(config),
    };
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

static void start_service(struct broker *self)
{
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
    snapshot_maker_init(&self->snapshots, &self->service, self->wake_fd);
    service_init(&self->service);
}

/* Opens the disk, makes the tables, and restores what the disk has. */
static rp_status load(struct broker *self, rp_error *err)
{
    struct durable_state state = durable_state(self);
    const char *folder = config_folder(self->config);
    if (folder) {
        char *whole = need_text(folder);
        rp_status status =
            config_check_folder(self->config, config_shards(self->config) > 1 ? dirname(whole) : whole, err);
        free(whole);
        RP_TRY(status);
        RP_TRY(stream_open(&self->stream, &state, err));
        RP_TRY(spill_open(&self->spill, &state, self->stream, err));
    }
    RP_TRY(tables_create(&self->tables, &self->rng, err));
    /* Keys are made from ordinals: a writer that outlives this broker must not meet its own keys in the next broker. So the
     * first ordinal does not depend on a configured seed. */
    self->tables.ordinals.next = 1 + self->instance % (KEY_ORDINALS / 2);
    if (!self->stream)
        return RP_OK;
    struct checkpoint_listener listener = {request_checkpoint_ended, &self->service};
    RP_TRY(restore(&state, self->stream, err));
    stream_begin(self->stream);
    /* Notes which segments the files do without, before more is removed. */
    checkpoints_init(&self->checkpoints, &state, self->stream, self->spill, listener);
    tables_follow(&self->tables, &self->params);
    restore_finish(&self->tables);
    if (self->stream->dropped && self->checkpoints)
        return checkpoint_start(self->checkpoints, CHECKPOINT_SYNC, NULL, err);
    return RP_OK;
}

static rp_status broker_init(struct broker *self, void *context, rp_error *err)
{
    uint64_t seed = (uint64_t)self->config->seed;
    RP_TRY(descriptors_init(self->config, err));
    if (seed == 0)
        rng_system(&seed, sizeof seed);
    else if (config_shards(self->config) > 1) /* or all shards would draw the same numbers */
        seed += (uint64_t)self->config->shard * UINT64_C(0xd1342543de82ef95);
    rng_seed(&self->rng, seed);
    rng_system(&self->instance, sizeof self->instance);
    self->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (self->wake_fd < 0)
        return err_set(err, RP_NO_MEMORY, "no memory or descriptors for the broker");
    store_init(&self->store, (uint64_t)self->config->memory_limit);
    self->store.relieve = kept_samples_relieve;
    self->store.relieve_ctx = &self->samples;
    if (self->config->shared_memory)
        self->store.shm = shm_new((uint64_t)self->config->memory_limit);
    self->params.shares = self->store.shm != NULL;
    RP_TRY(tables_init(&self->tables, err));
    if (!self->peers.channels)
        RP_TRY(identities_open(&self->peers, err));
    RP_TRY(load(self, err));
    self->layouts.most = (uint64_t)self->config->memory_limit / 16 + (8u << 20);
    start_service(self);
    RP_TRY(sockets_open(&self->peers, context, err));
    self->second = (struct timer){.fire = every_second, .ctx = self};
    self->keys = (struct timer){.fire = look_at_keys, .ctx = self};
    if (self->peers.identities.on)
        timer_set(&self->loop.timers, &self->keys, self->loop.now_ns);
    timer_set(&self->loop.timers, &self->second, self->loop.now_ns + NS_PER_S);
    tables_start(&self->tables);
    return RP_OK;
}

static struct broker *create(const struct broker_config *config, struct clock clock, void *context,
                             struct channels *channels, rp_error *err)
{
    struct broker *self = need_alloc(sizeof *self);
    self->config = config;
    self->wake_fd = -1;
    loop_init(&self->loop, clock);
    connect_rooms(self, channels);
    if (broker_init(self, context, err) != RP_OK)
        broker_destroy(&self);
    return self;
}

struct broker *broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err)
{
    return create(config, clock, context, NULL, err);
}

struct broker *broker_new_local(const struct broker_config *config, struct clock clock, struct channels *channels,
                                rp_error *err)
{
    return create(config, clock, NULL, channels, err);
}

rp_status broker_write_endpoints(const struct broker *self, const char *http, const char *path, rp_error *err)
{
    struct text text = {0};
    text_add(&text, "service %s\ningest %s\nevents %s\n", self->peers.told.service, self->peers.told.ingest,
             self->peers.told.events);
    if (http[0])
        text_add(&text, "http %s\n", http);
    bool ok = io_replace(path, text.data, text.size, 0666, false);
    int error = errno;
    text_fini(&text);
    return ok ? RP_OK : err_set(err, RP_IO, "cannot write the endpoints to %s: %s", path, strerror(error));
}

/* ---- destruction ---- */

void broker_destroy(struct broker **at)
{
    struct broker *self = *at;
    if (!self)
        return;
    if (self->stream) {
        settle(self, self->stream->trouble[0] ? 0 : DESTROY_NS);
        /* What is freed now is not recorded as removed, and messages whose record is not durable are not sent. */
        stream_record(self->stream, false);
        self->store.freed = NULL;
        commit_fini(&self->peers.commit);
    }
    if (self->peers.service || self->peers.channels)
        waits_cancel_all(&self->peers.waits, RP_CANCELLED, "the broker has stopped");
    snapshot_maker_fini(&self->snapshots);
    checkpoints_fini(&self->checkpoints);
    spill_close(&self->spill);
    sessions_fini(&self->sessions);
    while (chores_run(&self->loop.chores, &self->loop.clock, NS_PER_S)) {
    }
    samples_fini(&self->samples);
    tables_fini(&self->tables);
    params_fini(&self->params);
    service_fini(&self->service);
    peers_fini(&self->peers);
    timers_fini(&self->loop.timers);
    trace_fini(&self->loop.trace);
    stream_close(&self->stream, 0);
    layouts_fini(&self->layouts);
    store_fini(&self->store);
    if (self->wake_fd >= 0)
        close(self->wake_fd);
    free(self);
    *at = NULL;
}
