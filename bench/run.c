#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/base/rng.h"

#define WARM_STORE_BYTES (4u << 20)
#define COLD_STORE_BYTES (1000u << 20)
#define FILL_SECONDS 300
/* How much longer than asked a measurement may last so that everybody has done something. */
#define MORE_SECONDS 10
#define TABLE_BYTES 1000000000u

void options_settle(struct options *self)
{
    bool large = self->size >= LARGE_BYTES;
    uint64_t fit = TABLE_BYTES / self->size;
    if (!self->clients)
        self->clients = 1;
    if (!self->items)
        self->items = fit < 1000000 ? (fit < 1000 ? 1000 : fit) : 1000000;
    if (self->quick && large && self->items * self->size > TABLE_BYTES / 8)
        self->items = TABLE_BYTES / 8 / self->size;
    if (!self->per_message)
        self->per_message = large ? 1 : 50;
    if (!self->batch)
        self->batch = !large ? 256 : self->size < 100000 ? 64 : 16;
    if (!self->lend_set)
        self->lend = large;
    if (!self->in_flight)
        self->in_flight = 8;
    if (!self->processes || self->processes > self->clients)
        self->processes = self->clients < 4 ? self->clients : 4;
}

const uint8_t *run_store(const struct options *options, size_t *size)
{
    static uint8_t *store;
    static size_t have;
    uint64_t table = options->items * options->size;
    uint64_t most_message =
        options->size * (options->batch > options->per_message ? options->batch : options->per_message);
    *size = options->size < LARGE_BYTES ? WARM_STORE_BYTES : table < COLD_STORE_BYTES ? table : COLD_STORE_BYTES;
    if (*size < 2 * most_message + WARM_STORE_BYTES)
        *size = 2 * most_message + WARM_STORE_BYTES;
    if (store && *size <= have)
        return store;
    if (store)
        munmap(store, have);
    have = *size;
    store = mmap(NULL, have, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (store == MAP_FAILED) {
        fprintf(stderr, "replay-bench: no memory for %zu bytes to send from\n", have);
        store = NULL;
        return NULL;
    }
    struct rng rng;
    rng_seed(&rng, 3);
    for (size_t i = 0; i + 8 <= have; i += 8) {
        uint64_t value = rng_next(&rng);
        memcpy(store + i, &value, 8);
    }
    return store;
}

static struct load *new_load(const struct options *options, const struct party *party)
{
    struct load *load = calloc(1, sizeof *load);
    if (!load)
        return NULL;
    *load = (struct load){.lane = children_lane(), .options = options, .service = party->service, .connections = 1};
    load->store.data = run_store(options, &load->store.size);
    load->store.lend = options->lend;
    load->first_key = party->first_key;
    load->n_keys = party->n_keys;
    return load->store.data ? load : NULL;
}

bool run_broker(const struct options *options, uint64_t items, struct party *out)
{
    return run_broker_filled(options, items, items, out);
}

bool run_broker_filled(const struct options *options, uint64_t items, uint64_t filled, struct party *out)
{
    *out = (struct party){.memory_per_item = NAN};
    struct load *load = new_load(options, out);
    out->server = load ? child_start_broker(options, items, out->service, sizeof out->service) : -1;
    if (out->server < 0)
        return false;
    double before = (double)child_resident(out->server);
    load->fill = filled;
    if (filled == 0) {
        free(load);
        return true;
    }
    struct lane *lane = load->lane;
    bool ok = child_start(load_insert, load) > 0 && children_await(lane, LANE_DONE, FILL_SECONDS);
    free(load);
    if (!ok)
        return false;
    out->memory_per_item = ((double)child_resident(out->server) - before) / (double)filled - (double)options->size;
    out->first_key = lane->first_key;
    out->n_keys = lane->n_keys;
    return true;
}

/* What a thin load generator has sent and received. */
static void collect_frames(struct party *party, const struct lane *lane)
{
    if (lane->ingest.n)
        party->frames.ingest = lane->ingest;
    for (uint32_t r = 0; r < 2; r++)
        if (lane->request[r].n) {
            party->frames.request[r] = lane->request[r];
            party->frames.reply[r] = lane->reply[r];
        }
}

static uint32_t share_of(const struct options *options, uint32_t i)
{
    return options->clients / options->processes + (i < options->clients % options->processes);
}

static bool add_member(const struct options *options, struct party *party, enum work work, uint32_t connections,
                       bool library)
{
    static void (*const jobs[][2])(void *) = {[WORK_INSERT] = {load_insert, load_library_insert},
                                              [WORK_SAMPLE] = {load_sample, load_library_sample},
                                              [WORK_UPDATE] = {load_update, load_library_update},
                                              [WORK_BOTH] = {load_sample_update, load_library_sample_update},
                                              [WORK_LIBRARY] = {load_library_insert, load_library_insert},
                                              [WORK_IDLE] = {load_library_idle, load_library_idle}};
    struct load *load = new_load(options, party);
    if (!load)
        return false;
    load->connections = connections;
    if (party->n_members == MOST_MEMBERS) {
        fprintf(stderr, "replay-bench: more than %u processes at one broker\n", MOST_MEMBERS);
        return false;
    }
    struct member *member = &party->members[party->n_members++];
    member->lane = load->lane;
    member->groups = work == WORK_IDLE                             ? GROUP_WATCH
                     : work == WORK_INSERT || work == WORK_LIBRARY ? GROUP_WRITE
                                                                   : GROUP_ASK;
    member->pid = child_start(jobs[work][library], load);
    bool ok = member->pid > 0 && children_await(member->lane, LANE_READY, 60);
    free(load);
    if (ok)
        collect_frames(party, member->lane);
    return ok;
}

bool run_add_load(const struct options *options, struct party *party, enum work work)
{
    if (options->library && !options->shards) { /* only a thin generator knows the frames, which the raw side copies */
        if (!add_member(options, party, work, 1, false))
            return false;
        child_end(party->members[--party->n_members].pid);
    }
    for (uint32_t i = 0; i < options->processes; i++)
        if (!add_member(options, party, work, share_of(options, i), options->library))
            return false;
    return true;
}

static void run_raw_server(void *ctx)
{
    raw_server(ctx);
}
static void run_raw_client(void *ctx)
{
    raw_client(ctx);
}

bool run_raw(const struct options *options, const struct party *like, struct party *out)
{
    static char bind[2][160];
    *out = (struct party){.memory_per_item = NAN};
    struct raw_job job = {.io_threads = (int)options->io_threads, .in_flight = options->in_flight};
    job.ingest = like->frames.ingest;
    memcpy(job.request, like->frames.request, sizeof job.request);
    memcpy(job.reply, like->frames.reply, sizeof job.reply);
    job.store.data = run_store(options, &job.store.size);
    job.store.lend = options->lend;
    snprintf(bind[0], sizeof bind[0], options->ipc ? "ipc://%s/raw-pull" : "tcp://127.0.0.1:*", children_dir());
    snprintf(bind[1], sizeof bind[1], options->ipc ? "ipc://%s/raw-router" : "tcp://127.0.0.1:*", children_dir());
    job.bind[0] = bind[0];
    job.bind[1] = bind[1];
    job.lane = job.server = out->lane = children_lane();
    job.items = options->per_message;
    out->server = child_start(run_raw_server, &job);
    if (out->server < 0 || !children_await(out->lane, LANE_READY, 10))
        return false;
    for (uint32_t i = 0; i < like->n_members; i++) {
        struct raw_job client = job;
        struct member *member = &out->members[out->n_members++];
        *member = (struct member){.lane = children_lane(), .groups = like->members[i].groups};
        client.lane = member->lane;
        client.items = options->batch;
        client.connections = share_of(options, i % options->processes);
        if (member->groups == GROUP_ASK)
            client.ingest.n = 0;
        member->pid = child_start(run_raw_client, &client);
        if (member->pid < 0 || !children_await(member->lane, LANE_READY, 10))
            return false;
    }
    return true;
}

static void party_pause(const struct party *party)
{
    for (uint32_t i = 0; i < party->n_members; i++)
        child_pause(party->members[i].pid);
    child_pause(party->server);
}

static void party_go(const struct party *party, unsigned groups)
{
    child_go(party->server);
    for (uint32_t i = 0; i < party->n_members; i++)
        if (party->members[i].groups & groups)
            child_go(party->members[i].pid);
}

struct reading {
    double at, items[2], updates, server_cpu, thread_cpu, client_cpu;
};

static struct reading party_read(const struct phase *phase)
{
    const struct party *party = phase->party;
    struct reading out = {.at = children_now(),
                          .server_cpu = child_cpu(party->server),
                          .thread_cpu = child_first_thread_cpu(party->server)};
    for (uint32_t i = 0; i < party->n_members; i++) {
        const struct member *member = &party->members[i];
        if (member->server) {
            out.server_cpu += child_cpu(member->pid);
            continue;
        }
        out.items[member->groups == GROUP_ASK] += (double)atomic_load(&member->lane->items);
        out.updates += (double)atomic_load(&member->lane->updates);
        out.client_cpu += child_cpu(member->pid);
    }
    if (phase->count_server)
        out.items[0] = (double)atomic_load(&party->lane->items);
    return out;
}

/* Returns true if each group that takes part has done something since then. */
static bool all_moved(const struct phase *phase, const struct reading *before, const struct reading *now)
{
    bool wrote = now->items[0] > before->items[0];
    bool asked = now->items[1] > before->items[1] || now->updates > before->updates;
    return (wrote || !(phase->groups & GROUP_WRITE)) && (asked || !(phase->groups & GROUP_ASK));
}

static bool measure(const struct options *options, const struct phase *phase, struct figures *out)
{
    party_go(phase->party, phase->groups);
    if (!children_wait(options->warm_seconds))
        return false;
    struct reading before = party_read(phase);
    if (!children_wait(options->seconds))
        return false;
    struct reading after = party_read(phase);
    /* On a busy machine a process may get no time at all. */
    while (!all_moved(phase, &before, &after) && after.at - before.at < options->seconds + MORE_SECONDS) {
        if (!children_wait(0.05))
            return false;
        after = party_read(phase);
    }
    party_pause(phase->party);
    double seconds = after.at - before.at;
    uint32_t n = out->n++;
    for (int g = 0; g < 2; g++)
        out->rate[g][n] = (after.items[g] - before.items[g]) / seconds;
    out->updates[n] = (after.updates - before.updates) / seconds;
    out->server_cpu[n] = (after.server_cpu - before.server_cpu) / seconds;
    double items = after.items[0] - before.items[0] + after.items[1] - before.items[1];
    out->thread_ns[n] = items > 0 ? (after.thread_cpu - before.thread_cpu) * 1e9 / items : 0;
    out->client_cpu[n] = (after.client_cpu - before.client_cpu) / seconds;
    return true;
}

bool run_phases(const struct options *options, const struct phase *phases, uint32_t n, struct figures *out)
{
    memset(out, 0, n * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        party_pause(phases[i].party);
    for (uint32_t repeat = 0; repeat < options->repeats; repeat++)
        for (uint32_t i = 0; i < n; i++)
            if (!measure(options, &phases[i], &out[i]))
                return false;
    return true;
}

void run_end(struct party *party)
{
    for (uint32_t i = 0; i < party->n_members; i++)
        child_end(party->members[i].pid);
    child_end(party->server);
}
