/* A broker is created and destroyed. */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/checkpoint/checkpoint.h"
#include "broker/checkpoint/restore.h"
#include "broker/journal/stream.h"
#include "broker/peer/sockets.h"
#include "broker/sample/kept_samples.h"
#include "broker/spill/spill.h"
#include "proto/base/error.h"

/* How long the destruction of a broker that was not finished waits for the disk. */
#define DESTROY_NS (10 * NS_PER_S)

void broker_memory_settings(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
}

/* ---- creation ---- */

/* Returns the memory that the broker knows of. */
static uint64_t counted_bytes(const struct broker *self)
{
    return store_memory(&self->store) + self->params.bytes;
}

static void every_second(struct timer *timer, void *ctx)
{
    struct broker *self = ctx;
    tables_tick(&self->tables);
    peers_sweep(&self->peers);
    kept_samples_sweep(&self->samples);
    resident_check(&self->resident, counted_bytes(self), self->peers.unfinished_bytes);
    timer_set(&self->loop.timers, timer, self->loop.now_ns + NS_PER_S);
}

#define LOOK_AT_KEYS_NS (20 * NS_PER_MS)

static void look_at_keys(struct timer *timer, void *ctx)
{
    struct broker *self = ctx;
    identities_look(&self->peers);
    peers_bound(&self->peers);
    timer_set(&self->loop.timers, timer, self->loop.now_ns + LOOK_AT_KEYS_NS);
}

static void loop_init(struct loop *self, struct clock clock)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    self->clock = clock;
    self->stepped = clock.now != clock_system().now;
    self->now_ns = self->start_ns = clock_now(&clock);
    self->wall_offset_ns = wall.tv_sec * NS_PER_S + wall.tv_nsec - self->start_ns;
    chores_init(&self->chores);
    trace_init(&self->trace);
}

/* Connects each room to the rooms that it uses. */
static void connect_rooms(struct broker *self, struct ducts *ducts)
{
    const struct broker_config *config = self->config;
    peers_init(&self->peers, &self->loop, config, ducts);
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

static rp_status start_service(struct broker *self, rp_error *err)
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
    return service_init(&self->service, err);
}

/* Opens the disk, makes the tables, and restores what the disk has. */
static rp_status load(struct broker *self, rp_error *err)
{
    struct durable_state state = durable_state(self);
    const char *folder = config_folder(self->config);
    if (folder) {
        if (!self->config->checkpoint_load || strcmp(self->config->checkpoint_load, "none") != 0)
            RP_TRY(folder_check_shards(folder, config_shards(self->config), err));
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
    RP_TRY(checkpoints_init(&self->checkpoints, &state, self->stream, self->spill, listener, err));
    restore_finish(&self->tables);
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
    RP_TRY(store_init(&self->store, (uint64_t)self->config->memory_limit, err));
    RP_TRY(tables_init(&self->tables, err));
    if (!self->peers.ducts)
        RP_TRY(identities_open(&self->peers, err));
    RP_TRY(load(self, err));
    RP_TRY(start_service(self, err));
    RP_TRY(sockets_open(&self->peers, context, err));
    self->second = (struct timer){.fire = every_second, .ctx = self};
    self->keys = (struct timer){.fire = look_at_keys, .ctx = self};
    if (self->peers.identities.on && !timer_set(&self->loop.timers, &self->keys, self->loop.now_ns))
        return err_set(err, RP_NO_MEMORY, "no memory for the broker's timers");
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
    self->wake_fd = -1;
    loop_init(&self->loop, clock);
    connect_rooms(self, ducts);
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

rp_status broker_set_shards(struct broker *self, char *const *endpoints, uint32_t n, rp_error *err)
{
    return service_set_shards(&self->service, endpoints, n, err);
}

rp_status broker_write_endpoints(const struct broker *self, const char *http, const char *path, rp_error *err)
{
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid()) >= sizeof temporary)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the endpoints file is too long");
    FILE *file = fopen(temporary, "w");
    bool ok = file && fprintf(file, "service %s\ningest %s\nevents %s\n%s%s%s", self->peers.told.service,
                              self->peers.told.ingest, self->peers.told.events, http[0] ? "http " : "", http,
                              http[0] ? "\n" : "") > 0;
    if (file)
        ok = fclose(file) == 0 && ok;
    if (ok && rename(temporary, path) == 0)
        return RP_OK;
    int error = errno;
    unlink(temporary);
    return err_set(err, RP_IO, "cannot write the endpoints to %s: %s", path, strerror(error));
}

/* ---- destruction ---- */

void broker_destroy(struct broker **at)
{
    struct broker *self = *at;
    if (!self)
        return;
    if (self->stream) {
        broker_settle(self, self->stream->trouble[0] ? 0 : DESTROY_NS);
        /* What is freed now is not recorded as removed, and messages whose record is not durable are not sent. */
        stream_record(self->stream, false);
        self->store.freed = NULL;
        commit_fini(&self->peers.commit);
    }
    if (self->peers.service || self->peers.ducts)
        waits_cancel_all(&self->peers.waits, RP_CANCELLED, "the broker has stopped");
    snapshot_maker_fini(&self->snapshots);
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
    trace_fini(&self->loop.trace);
    stream_close(&self->stream, 0);
    layouts_fini(&self->layouts);
    store_fini(&self->store);
    if (self->wake_fd >= 0)
        close(self->wake_fd);
    free(self);
    *at = NULL;
}
