/* The conductor of chaos over shards: starts everything, injects faults, brings everything to rest, reports.
 *
 *   chaos_shards [--shards N] [--faults N] [--seed S] [--no-journal] [--seconds-at-most T]
 *
 * The broker is $RP_BROKER. Exit status 0: the books agree. */
#include "tests/chaos/shards.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "proto/base/clock.h"

const char *const table_names[TABLES] = {"replay", "queue", "plain", "once", "twice"};
const uint32_t table_times[TABLES] = {[QUEUE] = 1, [ONCE] = 1, [TWICE] = 2};

static const char tables[] =
    "  - {name: replay, max_size: 16000000, sampler: {kind: prioritized, exponent: \"1\"},\n"
    "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 40, error_buffer: 16000}}\n"
    "  - {name: queue, max_size: 100000, max_times_sampled: 1, sampler: {kind: fifo},\n"
    "     limiter: {kind: queue}}\n"
    "  - {name: plain, max_size: 16000000, sampler: {kind: uniform}, limiter: {kind: min_size, min_size: 1}}\n"
    "  - {name: once, max_size: 16000000, max_times_sampled: 1, sampler: {kind: uniform},\n"
    "     limiter: {kind: min_size, min_size: 1}}\n"
    "  - {name: twice, max_size: 16000000, max_times_sampled: 2, sampler: {kind: prioritized, exponent: "
    "\"1\"},\n"
    "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 4, error_buffer: 4000000}}\n";

struct fault_counts {
    uint32_t kills, stops, cuts;
};

/* ---- small things ---- */

void chaos_sleep(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&time, NULL);
}

static void say(const char *format, va_list args)
{
    flockfile(stdout);
    printf("  ");
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    funlockfile(stdout);
}

struct moment chaos_moment(const struct chaos *self)
{
    int64_t now = clock_ns(), since = atomic_load(&self->disk_since_ns);
    return (struct moment){now, atomic_load(&self->disk_ns) + (since ? now - since : 0)};
}

int64_t chaos_waited(const struct chaos *self, struct moment since)
{
    struct moment now = chaos_moment(self);
    return now.ns - since.ns - (self->journal ? 2 * (now.disk_ns - since.disk_ns) : 0);
}

void chaos_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

void chaos_complain(struct chaos *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (atomic_fetch_add(&self->complaints, 1) < 20)
        say(format, args);
    va_end(args);
}

void chaos_raise(_Atomic int64_t *most, int64_t value)
{
    int64_t seen = atomic_load(most);
    while (value > seen && !atomic_compare_exchange_weak(most, &seen, value))
        ;
}

rp_client *chaos_connect(struct chaos *self, uint32_t shard, const char *name)
{
    rp_client_options options = {.struct_size = sizeof options, .name = name};
    rp_client *client = rp_client_connect(self->set.services[shard % self->n], &options, 60000, &err);
    if (!client)
        chaos_complain(self, "no client: %s", err.text);
    return client;
}

/* ---- faults ---- */

/* Cuts all connections to a shard, also in the middle of a message: to both sides, the other one has closed them. */
static void cut(const struct chaos *self, uint32_t shard)
{
    char service[64], ingest[64];
    snprintf(service, sizeof service, "%s/s%u", self->set.dir, shard);
    snprintf(ingest, sizeof ingest, "%s/i%u", self->set.dir, shard);
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_un peer = {0};
        socklen_t size = sizeof peer - 1;
        if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sun_family == AF_UNIX &&
            (strcmp(peer.sun_path, service) == 0 || strcmp(peer.sun_path, ingest) == 0))
            shutdown(fd, SHUT_RDWR);
    }
}

/* An item that was created around a kill has another number of kills than the next one. */
static void kill_shard(struct chaos *self, uint32_t shard, struct fault_counts *counts)
{
    atomic_fetch_add(&self->kills[shard], 1);
    broker_process_stop(&self->set.shards[shard], SIGKILL);
    atomic_fetch_add(&self->kills[shard], 1);
    counts->kills++;
}

static void strike(struct chaos *self, uint32_t shard, uint32_t kind, struct fault_counts *counts)
{
    if (shard == 0)
        atomic_store(&self->zero_ns, INT64_MAX);
    if (kind == 0) {
        kill_shard(self, shard, counts);
    } else if (kind == 1) {
        kill(self->set.shards[shard].pid, SIGSTOP);
        counts->stops++;
    } else {
        cut(self, shard);
        counts->cuts++;
    }
}

static void heal(struct chaos *self, uint32_t shard, uint32_t kind, struct fault_counts *counts)
{
    if (kind == 0) {
        broker_process_again(&self->set.shards[shard], NULL);
        if (rng_below(&self->rng, 8) == 0) { /* while everybody comes back */
            kill_shard(self, shard, counts);
            broker_process_again(&self->set.shards[shard], NULL);
        }
    } else if (kind == 1) {
        kill(self->set.shards[shard].pid, SIGCONT);
    }
    if (shard == 0)
        atomic_store(&self->zero_ns, clock_ns());
}

/* One fault, or two at once. */
static void inject(struct chaos *self, struct fault_counts *counts)
{
    uint32_t before = atomic_load(&self->n_strikes);
    struct strike *now = &self->strikes[before];
    double longest = 0.02;
    *now = (struct strike){.start_ns = clock_ns(), .n = self->n > 2 && rng_below(&self->rng, 5) == 0 ? 2 : 1};
    for (uint32_t i = 0; i < now->n; i++) {
        now->shard[i] = (uint32_t)rng_below(&self->rng, self->n);
        now->kind[i] = (uint32_t)rng_below(&self->rng, 3);
        if (i == 1 && now->shard[1] == now->shard[0])
            now->shard[1] = (now->shard[0] + 1) % self->n;
        if (now->kind[i] < 2)
            longest = rng_below(&self->rng, 8) == 0 ? 2.5 : longest < 0.3 ? 0.3 : longest;
        strike(self, now->shard[i], now->kind[i], counts);
    }
    double pause = longest * rng_unit(&self->rng);
    now->pause_ns = (int64_t)(pause * 1e9);
    atomic_store(&self->n_strikes, before + 1);
    chaos_sleep(pause);
    for (uint32_t i = 0; i < now->n; i++)
        heal(self, now->shard[i], now->kind[i], counts);
    chaos_sleep(0.1 * rng_unit(&self->rng));
}

/* ---- the run ---- */

static void drain(struct chaos *self)
{
    uint64_t taken = 0;
    uint32_t waiting = audit_waiting(self);
    for (int64_t progress = clock_ns(); waiting && clock_ns() - progress < 20 * NS_PER_S;) {
        chaos_sleep(0.05);
        if (atomic_load(&self->taken) != taken)
            progress = clock_ns();
        taken = atomic_load(&self->taken);
        waiting = audit_waiting(self);
    }
    if (waiting)
        chaos_complain(self, "%u items were not given as often as they should be", waiting);
}

static void check_waits(struct chaos *self)
{
    int64_t slack = 8 * atomic_load(&self->late_ns); /* a machine with other work */
    if (atomic_load(&self->learner_ns) > PAUSE_NS + slack)
        chaos_complain(self, "a learner waited for %.2f s", (double)atomic_load(&self->learner_ns) * 1e-9);
    if (atomic_load(&self->actor_ns) > PAUSE_NS + slack)
        chaos_complain(self, "an actor waited for %.2f s", (double)atomic_load(&self->actor_ns) * 1e-9);
}

static void perform(struct chaos *self, uint32_t faults, double seconds, struct fault_counts *counts)
{
    pthread_t watch;
    int64_t end = clock_ns() + (int64_t)(seconds * 1e9);
    if (pthread_create(&watch, NULL, audit_watch, self) != 0)
        abort();
    cast_start(self);
    chaos_sleep(0.3);
    while (counts->kills + counts->stops + counts->cuts < faults && !atomic_load(&self->complaints)) {
        inject(self, counts);
        if (clock_ns() > end)
            chaos_complain(self, "only %u faults in %g s", counts->kills + counts->stops + counts->cuts, seconds);
    }
    atomic_store(&self->phase, DRAIN);
    cast_join_writers();
    drain(self);
    atomic_store(&self->phase, STOP);
    cast_join();
    pthread_join(watch, NULL);
    rp_client *client = chaos_connect(self, 0, "audit");
    if (client)
        audit(self, client);
    if (client && self->journal && !atomic_load(&self->complaints)) { /* and once more, with what is on disk */
        for (uint32_t s = 0; s < self->n; s++)
            kill_shard(self, s, counts);
        for (uint32_t s = 0; s < self->n; s++)
            broker_process_again(&self->set.shards[s], NULL);
        audit(self, client);
    }
    rp_client_destroy(&client);
    check_waits(self);
}

static void report(const struct chaos *self, const struct fault_counts *counts, double seconds)
{
    printf("  %u faults in %.1f s: %u kills, %u stops, %u cuts; %u steps, %" PRIu64 " batches, %" PRIu64
           " items taken for good\n",
           counts->kills + counts->stops + counts->cuts, seconds, counts->kills, counts->stops, counts->cuts,
           atomic_load(&self->count), atomic_load(&self->batches), atomic_load(&self->taken));
    printf(
        "  longest: a learner %.2f s (with shard 0 away %.2f s), an actor %.2f s, a thread that woke up late %.2f s, "
        "files %.2f s in all; the sum of the cursors was between %g and %g\n",
        (double)atomic_load(&self->learner_ns) * 1e-9, (double)atomic_load(&self->zero_learner_ns) * 1e-9,
        (double)atomic_load(&self->actor_ns) * 1e-9, (double)atomic_load(&self->late_ns) * 1e-9,
        (double)atomic_load(&self->disk_ns) * 1e-9, self->lowest, self->highest);
}

static int run(uint32_t shards, uint32_t faults, uint64_t seed, bool journal, double seconds)
{
    static struct chaos self;
    struct fault_counts counts = {0};
    char dir[] = "/tmp/replay-chaos-shards-XXXXXX", more[128] = "", command[80];
    int64_t begin = clock_ns();
    self = (struct chaos){.n = shards, .journal = journal, .lowest = INFINITY, .highest = -INFINITY};
    pthread_mutex_init(&self.lock, NULL);
    rng_seed(&self.rng, seed);
    self.books = calloc(MOST_ITEMS, sizeof *self.books);
    self.strikes = calloc(MOST_STRIKES, sizeof *self.strikes);
    if (!self.books || !self.strikes || !mkdtemp(dir))
        return 1;
    if (journal)
        snprintf(more, sizeof more, "folder: %s\njournal: never\n", dir);
    printf("chaos over %u shards %s a journal: seed %" PRIu64 "\n", shards, journal ? "with" : "without", seed);
    fflush(stdout);
    shardbed_start(&self.set, shards, tables, more);
    perform(&self, faults, seconds, &counts);
    report(&self, &counts, (double)(clock_ns() - begin) * 1e-9);
    bool ok = atomic_load(&self.complaints) == 0;
    shardbed_stop(&self.set);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0)
        ok = false;
    puts(ok ? "the ledger holds" : "the ledger does NOT hold");
    free(self.books);
    free(self.strikes);
    free(self.doubts);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"shards", required_argument, NULL, 'n'},
                                            {"faults", required_argument, NULL, 'f'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"no-journal", no_argument, NULL, 'j'},
                                            {"seconds-at-most", required_argument, NULL, 't'},
                                            {0}};
    uint32_t shards = 4, faults = 200;
    uint64_t seed = 0;
    bool journal = true;
    double seconds = 1e6;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'n')
            shards = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'f')
            faults = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 's')
            seed = strtoull(optarg, NULL, 10);
        else if (c == 't')
            seconds = strtod(optarg, NULL);
        else if (c == 'j')
            journal = false;
        else
            return 2;
    }
    if (shards < 2 || shards > SHARDBED_MOST || faults > MOST_STRIKES) {
        fprintf(stderr, "chaos_shards: --shards may be 2 to %u, --faults at most %u\n", SHARDBED_MOST, MOST_STRIKES);
        return 2;
    }
    if (seed == 0)
        rng_system(&seed, sizeof seed);
    return run(shards, faults, seed, journal, seconds);
}
