/* Work whose instructions are counted: work KIND N does N operations through libreplay at a broker on the same thread, which is one
 * connection without sockets, other threads or a clock that runs. tests/integration/instructions_test.py runs it under callgrind. */
#include <time.h>

#include "agent/client/conn/client.h"
#include "replay/sampler.h"
#include "replay/writer.h"
#include "tests/support/embed.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#ifdef __clang__
static const char compiler[] = "clang" STRING(__clang_major__);
#else
static const char compiler[] = "gcc" STRING(__GNUC__);
#endif

#define WAIT_MS 600000
#define LOOK_NS 10000 /* long enough that waiting for a timer takes few turns */
#define ITEMS 2000u
#define BATCH 64u
#define PER_MESSAGE 50u
#define ITEM_BYTES 4u
#define SHARED_BYTES 8192u /* of an item that a reply leaves in shared memory */

static const char yaml[] = "service: inproc://service\n" /* not bound */
                           "tables:\n"
                           "  - {name: replay, max_size: 1000, sampler: {kind: prioritized}, limiter: {kind: none}}\n"
                           "  - {name: queue, max_size: 100000, max_times_sampled: 1, sampler: {kind: fifo},\n"
                           "     limiter: {kind: queue}}\n";

static struct {
    struct broker_config config;
    struct channels channels;
    struct broker *broker;
    rp_client *client;
    rp_writer *writer;
    uint64_t keys[ITEMS]; /* of the newest items */
} all;

/* The linker puts these in the place of the system's, so that every run is the same: time passes with each look at a clock, and
 * random numbers are the same ones. */
int __wrap_clock_gettime(clockid_t id, struct timespec *now);
int __wrap_clock_gettime(clockid_t id, struct timespec *now)
{
    static int64_t now_ns = 1000 * NS_PER_S;
    (void)id;
    now_ns += LOOK_NS;
    *now = (struct timespec){now_ns / NS_PER_S, now_ns % NS_PER_S};
    return 0;
}

void __wrap_rng_system(void *data, size_t size);
void __wrap_rng_system(void *data, size_t size)
{
    static struct rng rng = {.s = {1, 2, 3, 4}};
    for (uint8_t *at = data; size-- > 0; at++)
        *at = (uint8_t)rng_next(&rng);
}

/* A function of its own, so that what it calls is known as the broker's part. */
void broker_part(void);
__attribute__((noinline)) void broker_part(void)
{
    broker_turn(all.broker, 0);
}

static void turn(void *ctx, int wait_ms)
{
    (void)ctx;
    (void)wait_ms;
    broker_part();
}

static void sure(rp_status status)
{
    if (status == RP_OK)
        return;
    fprintf(stderr, "work: %s\n", err.text);
    exit(1);
}

static void start(uint32_t item_bytes)
{
    char problems[2048];
    log_set_level(LEVEL_OFF);
    if (!embed_read_config(yaml, &all.config, problems, sizeof problems)) {
        fputs(problems, stderr);
        exit(1);
    }
    all.broker = broker_new_local(&all.config, clock_system(), &all.channels, &err);
    sure(all.broker ? RP_OK : (rp_status)err.status);
    const struct conn_host host = {.channels = &all.channels, .turn = turn};
    rp_client_options options = {.struct_size = sizeof options, .name = "work"};
    all.client = client_connect("this process", &options, &host, WAIT_MS, &err);
    sure(all.client ? RP_OK : (rp_status)err.status);
    const rp_column column = {
        .name = "x", .dtype = RP_DTYPE_UINT8, .codec = RP_CODEC_RAW, .rank = 1, .shape = {item_bytes}};
    all.writer = rp_writer_new(all.client, &column, 1, NULL, WAIT_MS, &err);
    sure(all.writer ? RP_OK : (rp_status)err.status);
}

static void insert(const char *table, uint32_t n)
{
    static uint8_t row[SHARED_BYTES];
    const void *value = row;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(row, &i, sizeof i);
        sure(rp_writer_append(all.writer, &value, WAIT_MS, &err));
        sure(rp_writer_item_last(all.writer, table, 1 + i % 7, 1, WAIT_MS, &all.keys[i % ITEMS], &err));
        if (i % PER_MESSAGE == PER_MESSAGE - 1)
            sure(rp_writer_flush(all.writer, 0, WAIT_MS, &err));
    }
    sure(rp_writer_flush(all.writer, 0, WAIT_MS, &err));
}

/* shared: the data must come from memory that the broker shares. */
static void sample(uint32_t n, bool shared)
{
    rp_sampler_options options = {.struct_size = sizeof options};
    options.batch_size = BATCH;
    options.on_demand = true;
    options.gather_threads = 1;
    rp_sampler *sampler = rp_sampler_new(all.client, "replay", &options, &err);
    sure(sampler ? RP_OK : (rp_status)err.status);
    for (uint32_t i = 0; i < n; i++) {
        rp_batch *batch;
        sure(rp_sampler_next(sampler, &batch, WAIT_MS, &err));
        rp_batch_release(&batch);
    }
    rp_sampler_stats stats = {.struct_size = sizeof stats};
    sure(rp_sampler_get_stats(sampler, &stats));
    if (shared != (stats.shared_bytes > 0)) {
        fprintf(stderr, "work: %llu bytes of shared memory were read\n", (unsigned long long)stats.shared_bytes);
        exit(1);
    }
    rp_sampler_destroy(&sampler);
}

/* Inserts a batch into a queue n times, and takes it out again: not at all, by a plain sample, or by one with a lease that is
 * acknowledged. */
enum queue_use { FILLED, PLAIN, LEASED };
static void queue(uint32_t n, enum queue_use use)
{
    rp_sampler_options options = {.struct_size = sizeof options};
    options.batch_size = BATCH;
    options.on_demand = true;
    options.lease_ms = use == LEASED ? 1000000 : 0;
    rp_sampler *sampler = rp_sampler_new(all.client, "queue", &options, &err);
    sure(sampler ? RP_OK : (rp_status)err.status);
    const rp_updater_options acknowledge = {.struct_size = sizeof acknowledge, .acknowledge = 1};
    rp_updater *acks = rp_updater_new(all.client, "queue", &acknowledge, &err);
    sure(acks ? RP_OK : (rp_status)err.status);
    for (uint32_t i = 0; i < n; i++) {
        rp_batch *batch = NULL;
        insert("queue", BATCH);
        if (use != FILLED)
            sure(rp_sampler_next(sampler, &batch, WAIT_MS, &err));
        if (use == LEASED)
            sure(rp_updater_add(acks, all.keys, NULL, BATCH, WAIT_MS, NULL, &err));
        rp_batch_release(&batch);
    }
    sure(rp_updater_destroy(&acks, WAIT_MS, &err));
    rp_sampler_destroy(&sampler);
}

static void update(uint32_t n)
{
    double priorities[BATCH];
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < BATCH; k++)
            priorities[k] = 1 + (i + k) % 5;
        const uint64_t *keys = all.keys + ITEMS / 2 + i * BATCH % (ITEMS / 2 - BATCH);
        rp_change change = {0};
        sure(rp_priorities_update(all.client, "replay", keys, priorities, BATCH, WAIT_MS, &change, &err));
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc == 3 ? argv[1] : "";
    uint32_t n = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    if (strcmp(kind, "compiler") == 0)
        return puts(compiler) < 0;
    bool inserts = strcmp(kind, "insert") == 0, samples = strncmp(kind, "sample", 6) == 0;
    bool shared = strcmp(kind, "sample-shared") == 0;
    static const char *const uses[] = {"queue-fill", "queue", "queue-lease"};
    uint32_t use = 0;
    while (use < 3 && strcmp(kind, uses[use]) != 0)
        use++;
    if (n == 0 || (use == 3 && !inserts && !samples && strcmp(kind, "update") != 0)) {
        fputs("usage: work compiler|insert|sample|sample-shared|update|queue-fill|queue|queue-lease N\n", stderr);
        return 2;
    }
    setenv("REPLAY_SHM", shared ? "1" : "0", 1);
    start(shared ? SHARED_BYTES : ITEM_BYTES);
    insert("replay", inserts ? n : ITEMS);
    if (use < 3)
        queue(n, (enum queue_use)use);
    else if (samples)
        sample(n, shared);
    else if (!inserts)
        update(n);
    sure(rp_writer_destroy(&all.writer, WAIT_MS, &err));
    rp_client_destroy(&all.client);
    broker_destroy(&all.broker);
    channels_fini(&all.channels);
    schema_free(&broker_schema, &all.config);
    return 0;
}
