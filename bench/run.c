/* The harness: processes and their files, parties that are measured in turn, and figures as text or as JSON. */
#include "bench/bench.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "broker/broker.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/io.h"
#include "proto/base/rng.h"
#include "proto/keys/allow.h"

#define MOST_LANES 256u
#define MOST_PROCESSES 256u

static struct {
    char dir[64];
    struct tally *tallies;
    uint32_t n_tallies, n_brokers, n_pids;
    pid_t pids[MOST_PROCESSES];
} all;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

double children_now(void)
{
    return (double)clock_ns() * 1e-9;
}

double time_calls(void (*call)(void *self), void *self, double seconds)
{
    int64_t from = clock_of(CLOCK_THREAD_CPUTIME_ID), took = 0;
    uint64_t n = 0;
    for (; (double)took < seconds * 1e9; took = clock_of(CLOCK_THREAD_CPUTIME_ID) - from, n += 8)
        for (int i = 0; i < 8; i++)
            call(self);
    return (double)took * 1e-9 / (double)n;
}

/* ---- folders ---- */

bool files_folder(const char *parent, char *out, size_t size)
{
    snprintf(out, size, "%s/disk-XXXXXX", parent ? parent : all.dir);
    if (mkdtemp(out))
        return true;
    fprintf(stderr, "replay-bench: cannot make a folder like %s: %s\n", out, strerror(errno));
    return false;
}

void files_each(const char *folder, void (*fn)(const char *path, void *ctx), void *ctx)
{
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            fn(path, ctx);
    }
    if (dir)
        closedir(dir);
}

static void remove_one(const char *path, void *ctx)
{
    (void)ctx;
    unlink(path);
}

void files_remove(const char *folder)
{
    files_each(folder, remove_one, NULL);
    rmdir(folder);
}

/* ---- keys ---- */

static struct {
    char folder[128]; /* empty: off */
    struct key broker, client;
} keys;

/* The key files of the broker's folder, and the client's for libreplay. */
static rp_status write_files(rp_error *err)
{
    char path[256];
    struct allowed_key allowed = {.name = "bench", .roles = KEY_ANY, .quota = {-1, -1, -1, -1, -1}};
    memcpy(allowed.public_key, keys.client.public_key, KEY_BYTES);
    snprintf(path, sizeof path, "%s/%s", keys.folder, ALLOW_BROKER_KEY);
    rp_status status = key_write(path, &keys.broker, true, err);
    if (status == RP_OK)
        status = allow_add(keys.folder, &allowed, err);
    snprintf(path, sizeof path, "%s/bench.key", keys.folder);
    if (status == RP_OK)
        status = key_write(path, &keys.client, true, err);
    setenv(KEY_FILE_VARIABLE, path, 1);
    return status;
}

bool curve_init(void)
{
    rp_error err = {0};
    if (!files_folder(NULL, keys.folder, sizeof keys.folder))
        return false;
    rp_status status = key_make(&keys.broker, "broker", &err);
    if (status == RP_OK)
        status = key_make(&keys.client, "bench", &err);
    if (status == RP_OK) {
        key_add_broker(&keys.client, keys.broker.public_key);
        status = write_files(&err);
        curve_use(&keys.broker, &keys.client);
    }
    if (status != RP_OK)
        fprintf(stderr, "replay-bench: %s\n", err.text);
    return status == RP_OK;
}

void curve_fini(void)
{
    if (keys.folder[0])
        files_remove(keys.folder);
    curve_use(NULL, NULL);
    unsetenv(KEY_FILE_VARIABLE);
    key_wipe(&keys.broker);
    key_wipe(&keys.client);
    keys.folder[0] = '\0';
}

/* ---- processes ---- */

bool children_init(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(all.dir, sizeof all.dir, "%.40s/replay-bench-XXXXXX", parent && parent[0] ? parent : "/tmp");
    all.tallies =
        mmap(NULL, MOST_LANES * sizeof *all.tallies, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all.tallies == MAP_FAILED || !mkdtemp(all.dir)) {
        fprintf(stderr, "replay-bench: cannot make a folder like %s: %s\n", all.dir, strerror(errno));
        return false;
    }
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return true;
}

void children_fini(void)
{
    while (all.n_pids)
        child_end(all.pids[all.n_pids - 1]);
    files_remove(all.dir);
}

struct tally *children_tally(void)
{
    struct tally *tally = &all.tallies[all.n_tallies++ % MOST_LANES];
    memset(tally, 0, sizeof *tally);
    return tally;
}

/* Forks. In the parent: the new pid, which is remembered. In the child: 0. */
static pid_t start(void)
{
    fflush(NULL);
    pid_t parent = getpid();
    pid_t pid = all.n_pids < MOST_PROCESSES ? fork() : -1;
    if (pid < 0)
        fprintf(stderr, "replay-bench: cannot start a process: %s\n", strerror(errno));
    if (pid > 0)
        all.pids[all.n_pids++] = pid;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_DFL);
    }
    return pid;
}

pid_t child_start(child_job *job, void *ctx)
{
    pid_t pid = start();
    if (pid == 0) {
        broker_memory_settings();
        job(ctx);
        _exit(0);
    }
    return pid;
}

static void find_broker(char *path, size_t size)
{
    const char *given = getenv("RP_BROKER");
    if (given && given[0]) {
        snprintf(path, size, "%s", given);
        return;
    }
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    size_t at = slash ? (size_t)(slash + 1 - path) : 0;
    snprintf(path + at, size - at, "replay-broker");
}

static bool write_config(const struct options *options, uint64_t items, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    static const char *const names[] = {"service", "ingest", "events"};
    for (uint32_t i = 0; i < 3; i++) {
        if (i == 0 && options->service)
            fprintf(file, "service: %s\n", options->service);
        else if (options->ipc)
            fprintf(file, "%s: ipc://%s/%s%u\n", names[i], all.dir, names[i], all.n_brokers);
        else
            fprintf(file, "%s: tcp://127.0.0.1:0\n", names[i]);
    }
    if (keys.folder[0])
        fprintf(file, "security: {mode: curve, keys: %s}\n", keys.folder);
    /* Sessions outlive the pauses between measurements. */
    fprintf(file,
            "io_threads: %u\n"
            "memory_limit: %lluMiB\n"
            "peer_backlog_bytes: 8GiB\n"
            "session: {expiry: 3600s}\n"
            "log: {level: warn}\n"
            "tables:\n"
            "  - name: replay\n"
            "    max_size: %llu\n"
            "    sampler: {%s}\n"
            "    remover: {kind: fifo}\n"
            "    limiter: {%s}\n",
            options->io_threads, (unsigned long long)4096 + ((unsigned long long)items * (options->size + 256) >> 19),
            (unsigned long long)items, options->sampler ? options->sampler : "kind: prioritized, exponent: 0.6",
            options->limiter ? options->limiter : "kind: min_size, min_size: 1");
    fprintf(file, "%s%s", options->table_extra ? options->table_extra : "", options->extra ? options->extra : "");
    return fclose(file) == 0;
}

static bool read_service(const char *path, char *service, size_t size)
{
    char *found = NULL;
    bool ok = endpoints_from_file(path, &found, NULL) == RP_OK && strcspn(found, ",") < size;
    if (ok)
        snprintf(service, size, "%.*s", (int)strcspn(found, ","), found);
    free(found);
    return ok;
}

pid_t child_start_broker(const struct options *options, uint64_t items, char *service, size_t size)
{
    char program[4096], config[128], endpoints[128];
    find_broker(program, sizeof program);
    snprintf(config, sizeof config, "%s/broker%u.yaml", all.dir, all.n_brokers);
    snprintf(endpoints, sizeof endpoints, "%s/endpoints%u", all.dir, all.n_brokers);
    if (!write_config(options, items, config)) {
        fprintf(stderr, "replay-bench: cannot write %s: %s\n", config, strerror(errno));
        return -1;
    }
    all.n_brokers++;
    const char *const argv[] = {program, "-c", config, "--endpoints-file", endpoints, NULL};
    const struct spawn spawn = {
        .argv = argv, .in = SPAWN_KEEP, .out = SPAWN_NULL, .err = SPAWN_KEEP, .dies_with_us = true};
    int error = EAGAIN;
    pid_t pid = all.n_pids < MOST_PROCESSES ? spawn_start(&spawn, &error) : -1;
    if (pid < 0)
        fprintf(stderr, "replay-bench: cannot run %s: %s\n", program, strerror(error));
    else
        all.pids[all.n_pids++] = pid;
    double end = children_now() + 20;
    while (pid > 0 && !read_service(endpoints, service, size))
        if (!children_wait(0.005) || children_now() > end) {
            fprintf(stderr, "replay-bench: the broker %s did not start\n", program);
            return -1;
        }
    return pid;
}

static void forget(pid_t pid)
{
    for (uint32_t i = 0; i < all.n_pids; i++)
        if (all.pids[i] == pid)
            all.pids[i--] = all.pids[--all.n_pids];
}

void child_end(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    forget(pid);
}

void child_pause(pid_t pid)
{
    kill(pid, SIGSTOP);
}

/* A process that ends by itself with status 0 has done its work; any other end is a failure. */
static bool look_after(void)
{
    for (uint32_t i = 0; i < all.n_pids; i++) {
        int status = 0;
        if (waitpid(all.pids[i], &status, WNOHANG) != all.pids[i])
            continue;
        forget(all.pids[i--]);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        for (uint32_t n = 0; n < MOST_LANES; n++)
            if (tally_get_state(&all.tallies[n]) == TALLY_FAILED)
                fprintf(stderr, "replay-bench: %s\n", all.tallies[n].text);
        if (WIFSIGNALED(status))
            fprintf(stderr, "replay-bench: a process was ended by signal %d\n", WTERMSIG(status));
        return false;
    }
    return !interrupted;
}

bool children_wait(double seconds)
{
    double end = children_now() + seconds;
    for (;;) {
        double left = end - children_now();
        if (left <= 0)
            return true;
        struct timespec pause = {0, (long)((left < 0.1 ? left : 0.1) * 1e9)};
        nanosleep(&pause, NULL);
        if (!look_after())
            return false;
    }
}

bool children_await(struct tally *tally, enum tally_state state, double seconds)
{
    double end = children_now() + seconds;
    while (tally_get_state(tally) != (int)state) {
        if (!children_wait(0.002))
            return false;
        if (children_now() > end) {
            fprintf(stderr, "replay-bench: a process took more than %g s to start or to fill the table\n", seconds);
            return false;
        }
    }
    return true;
}

struct tally *child_run(child_job *job, void *ctx, double seconds)
{
    struct tally *tally = *(struct tally **)ctx = children_tally();
    return child_start(job, ctx) > 0 && children_await(tally, TALLY_DONE, seconds) ? tally : NULL;
}

static double child_cpu(pid_t pid)
{
    clockid_t id;
    return clock_getcpuclockid(pid, &id) == 0 ? (double)clock_of(id) * 1e-9 : 0;
}

static double child_first_thread_cpu(pid_t pid)
{
    char path[64], text[128];
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/schedstat", (long)pid, (long)pid);
    return io_text(path, text, sizeof text) ? (double)strtoull(text, NULL, 10) * 1e-9 : 0;
}

static uint64_t child_resident(pid_t pid)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    const char *line = io_text(path, text, sizeof text) ? strstr(text, "\nVmRSS:") : NULL;
    return line ? strtoull(line + 7, NULL, 10) * 1024 : 0;
}

/* ---- a run ---- */

#define WARM_STORE_BYTES (4u << 20)
#define COLD_STORE_BYTES (1000u << 20)
#define FILL_SECONDS 300
/* How much longer than asked a measurement may last so that everybody has done something. */
#define MORE_SECONDS 10
#define TABLE_BYTES 1000000000u

bool options_want(const struct options *self, const char *name)
{
    return !self->only || strstr(name, self->only);
}

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
    if (!self->processes || self->processes > self->clients)
        self->processes = self->clients < 4 ? self->clients : 4;
}

uint32_t options_in_flight(const struct options *self, enum work work)
{
    return self->in_flight ? self->in_flight : work == WORK_UPDATE ? 64 : 16;
}

void random_bytes(void *out, size_t size)
{
    struct rng rng;
    rng_seed(&rng, 3);
    for (size_t i = 0; i + 8 <= size; i += 8) {
        uint64_t value = rng_next(&rng);
        memcpy((uint8_t *)out + i, &value, 8);
    }
}

/* Returns the memory that senders walk. NULL: an error was printed. */
static const uint8_t *run_store(const struct options *options, size_t *size)
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
    random_bytes(store, have);
    return store;
}

bool load_init(struct load *self, const struct options *options, const struct party *party)
{
    *self = (struct load){.options = options,
                          .service = party->service,
                          .connections = 1,
                          .first_key = party->first_key,
                          .n_keys = party->n_keys};
    self->store.data = run_store(options, &self->store.size);
    self->store.lend = options->lend;
    return self->store.data;
}

bool run_broker(const struct options *options, uint64_t items, uint64_t filled, struct party *out)
{
    *out = (struct party){.memory_per_item = NAN};
    struct load load;
    out->server =
        load_init(&load, options, out) ? child_start_broker(options, items, out->service, sizeof out->service) : -1;
    if (out->server < 0)
        return false;
    if (filled == 0)
        return true;
    double before = (double)child_resident(out->server);
    load.fill = filled;
    const struct tally *tally = child_run(load_insert, &load, FILL_SECONDS);
    if (!tally)
        return false;
    out->memory_per_item = ((double)child_resident(out->server) - before) / (double)filled - (double)options->size;
    out->first_key = tally->first_key;
    out->n_keys = tally->n_keys;
    return true;
}

/* What a thin load generator has sent and received. */
static void collect_frames(struct party *party, const struct tally *tally)
{
    if (tally->ingest.n)
        party->frames.ingest = tally->ingest;
    for (uint32_t r = 0; r < 2; r++)
        if (tally->request[r].n) {
            party->frames.request[r] = tally->request[r];
            party->frames.reply[r] = tally->reply[r];
        }
}

static uint32_t share_of(const struct options *options, uint32_t i)
{
    return options->clients / options->processes + (i < options->clients % options->processes);
}

bool run_add(struct party *party, unsigned groups, child_job *job, void *ctx, double seconds)
{
    if (party->n_members == MOST_MEMBERS) {
        fprintf(stderr, "replay-bench: more than %u processes at one broker\n", MOST_MEMBERS);
        return false;
    }
    struct member *member = &party->members[party->n_members++];
    *member = (struct member){.tally = *(struct tally **)ctx = children_tally(), .groups = groups};
    member->pid = child_start(job, ctx);
    return member->pid > 0 && (seconds <= 0 || children_await(member->tally, TALLY_READY, seconds));
}

static bool add_member(const struct options *options, struct party *party, enum work work, uint32_t connections,
                       bool library)
{
    struct load load;
    if (!load_init(&load, options, party))
        return false;
    load.work = work;
    load.connections = connections;
    unsigned groups = work == WORK_INSERT ? GROUP_WRITE : GROUP_ASK;
    bool ok = run_add(party, groups, load_job_of(work, library), &load, 60);
    if (ok)
        collect_frames(party, load.tally);
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

bool run_raw(const struct options *options, const struct party *like, struct party *out)
{
    static char bind[2][160];
    *out = (struct party){.memory_per_item = NAN};
    struct raw_job job = {.io_threads = (int)options->io_threads,
                          .in_flight = options_in_flight(options, options->work)};
    job.ingest = like->frames.ingest;
    memcpy(job.request, like->frames.request, sizeof job.request);
    memcpy(job.reply, like->frames.reply, sizeof job.reply);
    job.store.data = run_store(options, &job.store.size);
    job.store.lend = options->lend;
    snprintf(bind[0], sizeof bind[0], options->ipc ? "ipc://%s/raw-pull" : "tcp://127.0.0.1:*", all.dir);
    snprintf(bind[1], sizeof bind[1], options->ipc ? "ipc://%s/raw-router" : "tcp://127.0.0.1:*", all.dir);
    job.bind[0] = bind[0];
    job.bind[1] = bind[1];
    job.tally = job.server = out->tally = children_tally();
    job.items = options->per_message;
    out->server = child_start(raw_server, &job);
    if (out->server < 0 || !children_await(out->tally, TALLY_READY, 10))
        return false;
    for (uint32_t i = 0; i < like->n_members; i++) {
        struct raw_job client = job;
        client.items = options->batch;
        client.connections = share_of(options, i % options->processes);
        if (like->members[i].groups == GROUP_ASK)
            client.ingest.n = 0;
        if (!run_add(out, like->members[i].groups, raw_client, &client, 10))
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
    kill(party->server, SIGCONT);
    for (uint32_t i = 0; i < party->n_members; i++)
        if (party->members[i].groups & groups)
            kill(party->members[i].pid, SIGCONT);
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
        out.items[member->groups == GROUP_ASK] += (double)atomic_load(&member->tally->items);
        out.updates += (double)atomic_load(&member->tally->updates);
        out.client_cpu += child_cpu(member->pid);
    }
    if (phase->count_server)
        out.items[0] = (double)atomic_load(&party->tally->items);
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
    *party = (struct party){0};
}

/* ---- figures ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sort_to(double *values, uint32_t n, double share)
{
    qsort(values, n, sizeof *values, compare);
    return n ? values[(uint32_t)(share * (n - 1))] : 0;
}

struct spread spread_of(const double *values, uint32_t n)
{
    double sorted[MOST_REPEATS];
    if (n == 0)
        return (struct spread){0, 0, 0};
    memcpy(sorted, values, n * sizeof *sorted);
    sort_to(sorted, n, 0);
    double median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    return (struct spread){median, sorted[0], sorted[n - 1]};
}

struct spread spread_ratio(const double *ours, const double *theirs, uint32_t n)
{
    double ratios[MOST_REPEATS];
    for (uint32_t i = 0; i < n; i++)
        ratios[i] = theirs[i] > 0 ? ours[i] / theirs[i] : 0;
    return spread_of(ratios, n);
}

static uint32_t n_rows, n_missed;

void report_begin(const struct options *options, const char *command, const char *client)
{
    n_rows = n_missed = 0;
    if (options->json)
        printf("{\"command\": \"%s\", \"transport\": \"%s\", \"io_threads\": %u, \"client\": \"%s\", \"repeats\": %u, "
               "\"seconds\": %g, \"quick\": %s, \"rows\": [",
               command, options->ipc ? "ipc" : "tcp", options->io_threads, client, options->repeats, options->seconds,
               options->quick ? "true" : "false");
    else if (client[0])
        printf("%s, %s client, %s, %u I/O thread%s; medians of %u x %g s, each side in turn\n", command, client,
               options->ipc ? "ipc" : "tcp", options->io_threads, options->io_threads == 1 ? "" : "s", options->repeats,
               options->seconds);
    else
        printf("%s, CPU time of one thread; medians of %u\n", command, options->repeats);
    if (options->table && !options->json)
        printf("\n%-37s %14s %14s  %-11s %6s  %-14s %6s\n", "", "items/s", "reference", "", "ratio", "from, to",
               "goal");
    fflush(stdout);
}

static void json_spread(const char *name, const struct spread *spread)
{
    printf(", \"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}", name, spread->median, spread->least,
           spread->most);
}

/* CPU time of server and clients together for one item. */
static double cpu_ns(const struct row *row, int side)
{
    double rate = side ? row->theirs.median : row->ours.median;
    return rate > 0 ? (row->server_cpu[side] + row->client_cpu[side]) / rate * 1e9 : 0;
}

static void row_json(const struct options *options, const struct row *row)
{
    printf("%s\n  {\"what\": \"%s\", \"against\": \"%s\", \"size\": %llu, \"items\": %llu, \"per_message\": %u, "
           "\"batch\": "
           "%u, \"in_flight\": %u, \"clients\": %u, \"processes\": %u, \"frames\": \"%s\"",
           n_rows ? "," : "", row->what, row->other, (unsigned long long)options->size,
           (unsigned long long)options->items, options->per_message, options->batch,
           options_in_flight(options, options->work), options->clients, options->processes,
           options->lend ? "lent" : "copied");
    json_spread("items_per_s", &row->ours);
    json_spread("reference_items_per_s", &row->theirs);
    json_spread("ratio_spread", &row->ratio);
    printf(", \"ratio\": %.4g", row->ratio.median);
    if (row->goal > 0)
        printf(", \"goal\": %g, \"met\": %s", row->goal, row->ratio.median >= row->goal ? "true" : "false");
    printf(
        ", \"broker_cores\": %.3g, \"client_cores\": %.3g, \"reference_server_cores\": %.3g, "
        "\"reference_client_cores\": %.3g, \"core_thread_ns_per_item\": %.4g, "
        "\"reference_core_thread_ns_per_item\": %.4g, \"cpu_ns_per_item\": %.4g, \"reference_cpu_ns_per_item\": %.4g",
        row->server_cpu[0], row->client_cpu[0], row->server_cpu[1], row->client_cpu[1], row->thread_ns[0],
        row->thread_ns[1], cpu_ns(row, 0), cpu_ns(row, 1));
    if (!isnan(row->memory_per_item))
        printf(", \"memory_per_item_beyond_payload\": %.4g", row->memory_per_item);
    printf("}");
}

static void text_side(const char *name, const struct row *row, int side, uint64_t size)
{
    const struct spread *rate = side ? &row->theirs : &row->ours;
    printf("  %-8s %11.0f items/s  (%.0f to %.0f)  %6.2f GB/s\n", name, rate->median, rate->least, rate->most,
           rate->median * (double)size * 1e-9);
    printf("  %-8s %11.2f cores in the server, %.2f in clients; ns an item: %.0f in all, %.0f in the server's first "
           "thread\n",
           "", row->server_cpu[side], row->client_cpu[side], cpu_ns(row, side), row->thread_ns[side]);
}

static void row_text(const struct options *options, const struct row *row)
{
    printf("\n%s: %llu B items, %llu in the table, %u to a message, batch %u, %u connection%s in %u process%s, frames "
           "%s\n",
           row->what, (unsigned long long)options->size, (unsigned long long)options->items, options->per_message,
           options->batch, options->clients, options->clients == 1 ? "" : "s", options->processes,
           options->processes == 1 ? "" : "es", options->lend ? "lent" : "copied");
    text_side("broker", row, 0, options->size);
    text_side(row->other, row, 1, options->size);
    printf("  ratio    %11.2f  (%.2f to %.2f)", row->ratio.median, row->ratio.least, row->ratio.most);
    if (row->goal > 0)
        printf("   goal >= %.2f: %s", row->goal, row->ratio.median >= row->goal ? "met" : "missed");
    printf("\n");
    if (!isnan(row->memory_per_item))
        printf("  memory   %11.0f B for each item beyond its payload\n", row->memory_per_item);
}

static void row_line(const struct row *row)
{
    printf("%-37s %14.0f %14.0f  %-11s %6.2f  %5.2f, %-5.2f", row->what, row->ours.median, row->theirs.median,
           row->other, row->ratio.median, row->ratio.least, row->ratio.most);
    if (row->goal > 0)
        printf("   >= %4.2f  %s", row->goal, row->ratio.median >= row->goal ? "met" : "missed");
    printf("\n");
}

static void report_row(const struct options *options, const struct row *row)
{
    n_missed += row->goal > 0 && row->ratio.median < row->goal;
    if (options->json)
        row_json(options, row);
    else if (options->table)
        row_line(row);
    else
        row_text(options, row);
    n_rows++;
    fflush(stdout);
}

void report_figures(const struct options *options, struct row row, const struct figures *ours,
                    const struct figures *theirs, bool askers)
{
    const struct figures *const sides[] = {ours, theirs};
    row.ours = spread_of(ours->rate[askers], ours->n);
    row.theirs = spread_of(theirs->rate[askers], theirs->n);
    row.ratio = spread_ratio(ours->rate[askers], theirs->rate[askers], ours->n);
    for (int i = 0; i < 2; i++) {
        row.server_cpu[i] = spread_of(sides[i]->server_cpu, sides[i]->n).median;
        row.thread_ns[i] = spread_of(sides[i]->thread_ns, sides[i]->n).median;
        row.client_cpu[i] = spread_of(sides[i]->client_cpu, sides[i]->n).median;
    }
    report_row(options, &row);
}

bool report_pair(bool started, const struct options *options, struct row row, const struct phase phases[2], bool askers)
{
    static struct figures figures[2];
    bool ok = started && run_phases(options, phases, 2, figures);
    if (ok)
        report_figures(options, row, &figures[0], &figures[1], askers);
    run_end(phases[0].party);
    if (phases[1].party != phases[0].party)
        run_end(phases[1].party);
    return ok;
}

static void print_value(const struct options *options, const char *name, double value, double goal, bool at_most,
                        const char *unit)
{
    bool met = at_most ? value <= goal : value >= goal;
    n_missed += goal > 0 && !met;
    if (options->json) {
        /* Names may be indented for readers of the text. */
        printf("%s\n  {\"what\": \"%s\", \"%s\": %.6g", n_rows++ ? "," : "", name + strspn(name, " "),
               strcmp(unit, "ratio") == 0 ? "ratio" : "value", value);
        if (goal > 0)
            printf(", \"goal\": %g, \"met\": %s", goal, met ? "true" : "false");
        printf(", \"unit\": \"%s\"}", unit);
        return;
    }
    printf("%s%-37s %14.6g %s", options->table ? "" : "  ", name, value, unit);
    if (goal > 0)
        printf("   goal %s %.3g: %s", at_most ? "<=" : ">=", goal, met ? "met" : "missed");
    printf("\n");
}

void report_value(const struct options *options, const char *name, double value, double goal, const char *unit)
{
    print_value(options, name, value, goal, false, unit);
}

void report_cost(const struct options *options, const char *name, double value, double goal, const char *unit)
{
    print_value(options, name, value, goal, true, unit);
}

uint32_t report_end(const struct options *options)
{
    if (options->json)
        printf("\n], \"missed\": %u}\n", n_missed);
    return n_missed;
}
