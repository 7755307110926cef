/* replay-demo: a broker, two synthetic actors and one learner, each on a thread of its own, and a line of live rates per second. It is
 * an example of the library: actor() and learner() below are complete. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "replay/replay.h"
#include "replay/server.h"

#define ACTORS 2
#define BATCH 256

static volatile sig_atomic_t stopping;
static atomic_bool acted; /* the actors have ended: their last items may have waited for samples */
static const char *endpoint;

static void on_signal(int number)
{
    (void)number;
    stopping = 1;
}

static void fail(const char *what, const rp_error *err)
{
    fprintf(stderr, "replay-demo: %s: %s\n", what, err->text);
    exit(1);
}

static rp_client *connect_as(const char *name)
{
    rp_error err = {0};
    rp_client_options options = {.struct_size = sizeof options, .name = name};
    rp_client *client = rp_client_connect(endpoint, &options, 10000, &err);
    if (!client)
        fail(name, &err);
    return client;
}

/* A pole on a cart, pushed at random: enough of an environment to make data that compresses like real data. */
static void environment_step(float state[4], int32_t action)
{
    float force = action ? 10.0f : -10.0f, sine = sinf(state[2]), cosine = cosf(state[2]);
    float push = (force + 0.05f * state[3] * state[3] * sine) / 1.1f;
    float angular = (9.8f * sine - cosine * push) / (0.5f * (4.0f / 3.0f - 0.1f * cosine * cosine / 1.1f));
    float linear = push - 0.05f * angular * cosine / 1.1f;
    state[0] += 0.02f * state[1];
    state[1] += 0.02f * linear;
    state[2] += 0.02f * state[3];
    state[3] += 0.02f * angular;
}

static void *actor(void *ctx)
{
    const char *name = ctx;
    rp_client *client = connect_as(name);
    const rp_column columns[] = {
        {.name = "observation", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {4}},
        {.name = "action", .dtype = RP_DTYPE_INT32, .codec = RP_CODEC_AUTO},
        {.name = "reward", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO},
    };
    /* A transition: the observations of two steps, the action and reward of the first. Each is stored once. */
    const rp_slice transition[] = {
        {.field = "observation", .column = 0, .start = -2, .count = 1, .squeeze = 1},
        {.field = "action", .column = 1, .start = -2, .count = 1, .squeeze = 1},
        {.field = "reward", .column = 2, .start = -2, .count = 1, .squeeze = 1},
        {.field = "next_observation", .column = 0, .start = -1, .count = 1, .squeeze = 1},
    };
    rp_error err = {0};
    rp_writer_options options = {.struct_size = sizeof options,
                                 .name = name,
                                 .chunk_length = 16,
                                 .keep_alive = 16,
                                 .max_in_flight_items = 4000}; /* the items left at the end wait for samples */
    rp_writer *writer = rp_writer_new(client, columns, 3, &options, 10000, &err);
    if (!writer)
        fail(name, &err);
    unsigned seed = (unsigned)name[strlen(name) - 1];
    while (!stopping) {
        float state[4] = {0}, reward = 1.0f;
        for (int step = 0; !stopping && fabsf(state[2]) < 0.2095f && step < 500; step++) {
            int32_t action = rand_r(&seed) & 1;
            const void *const values[] = {state, &action, &reward};
            if (rp_writer_append(writer, values, 1000, &err) != RP_OK)
                continue;
            environment_step(state, action);
            if (step > 0)
                rp_writer_item(writer, "replay", 0.1 + fabs((double)state[2]), transition, 4, 1000, NULL, &err);
        }
        rp_writer_end_episode(writer, RP_END_GO, 1000, &err);
    }
    if (rp_writer_destroy(&writer, 30000, &err) != RP_OK)
        fail(name, &err);
    rp_client_destroy(&client);
    return NULL;
}

static void *learner(void *name)
{
    rp_client *client = connect_as(name);
    rp_error err = {0};
    rp_sampler_options options = {.struct_size = sizeof options};
    options.batch_size = BATCH;
    options.beta = 0.4;
    rp_sampler *sampler = rp_sampler_new(client, "replay", &options, &err);
    rp_updater *updater = sampler ? rp_updater_new(client, "replay", NULL, &err) : NULL;
    if (!updater)
        fail(name, &err);
    uint64_t batches = 0;
    while (!acted) {
        rp_batch *batch;
        if (rp_sampler_next(sampler, &batch, 1000, &err) != RP_OK)
            continue;
        rp_batch_arrays arrays = {.struct_size = sizeof arrays};
        rp_batch_get_arrays(batch, &arrays);
        const float *observation = rp_batch_find(batch, "observation")->data;
        const float *next = rp_batch_find(batch, "next_observation")->data;
        double priority[BATCH];
        for (uint32_t i = 0; i < arrays.n; i++) /* stands in for a TD error */
            priority[i] = 0.01 + fabs((double)(next[4 * i + 2] - observation[4 * i + 2])) * (double)arrays.weight[i];
        rp_updater_add(updater, arrays.key, priority, arrays.n, 1000, NULL, &err);
        rp_batch_release(&batch);
        if (++batches % 200 == 0)
            rp_params_put(client, "policy", &batches, sizeof batches, 1000, NULL, &err);
    }
    rp_updater_destroy(&updater, 1000, &err);
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&client);
    return NULL;
}

static const char demo_config[] = "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"
                                  "tables:\n"
                                  "  - name: replay\n"
                                  "    max_size: 200000\n"
                                  "    sampler: {kind: prioritized, exponent: 0.6}\n"
                                  "    remover: {kind: fifo}\n"
                                  "    limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 1000, "
                                  "error_buffer: 8000}\n";

/* Prints one line per second. */
static void show(rp_client *client, double seconds)
{
    rp_error err = {0};
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    uint64_t inserts = 0, samples = 0, updates = 0;
    printf("%6s %10s %11s %11s %11s %8s %8s %9s  %s\n", "time", "items", "inserts/s", "samples/s", "updates/s", "ratio",
           "age", "memory", "waits");
    for (int second = 1; !stopping && second <= (int)seconds; second++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        double left = second - (double)(now.tv_sec - began.tv_sec) - 1e-9 * (double)(now.tv_nsec - began.tv_nsec);
        if (left > 0)
            nanosleep(&(struct timespec){(time_t)left, (long)((left - (double)(time_t)left) * 1e9)}, NULL);
        rp_info *info;
        if (rp_admin_info(client, "replay", 0, 10000, &info, &err) != RP_OK)
            fail("info", &err);
        const rp_info *table = rp_info_at(info, "tables", 0);
        uint64_t in = rp_info_u64(table, "limiter.inserts"), out = rp_info_u64(table, "limiter.samples");
        uint64_t changed = rp_info_u64(table, "updates");
        const char *insert = rp_info_text(table, "limiter.inserts_wait");
        const char *sample = rp_info_text(table, "limiter.samples_wait");
        const char *waits = insert[0] ? insert : sample[0] ? sample : "-";
        printf("%5ds %10llu %11llu %11llu %11llu %8.2f %7.1fs %6.1f MB  %s%.*s\n", second,
               (unsigned long long)rp_info_u64(table, "size"), (unsigned long long)(in - inserts),
               (unsigned long long)(out - samples), (unsigned long long)(changed - updates),
               in ? (double)out / (double)in : 0.0, rp_info_real(table, "mean_age_s"),
               rp_info_real(info, "server.memory_bytes") / 1e6,
               insert[0]   ? "an insert "
               : sample[0] ? "a sample "
                           : "",
               (int)strcspn(waits, ":"), waits);
        fflush(stdout);
        inserts = in;
        samples = out;
        updates = changed;
        rp_info_free(&info);
    }
}

static const char usage[] =
    "Usage: replay-demo [SECONDS]\n"
    "\n"
    "Runs a broker, two synthetic actors and a learner for SECONDS (10) and shows their rates. bench/demo.c is\n"
    "the whole of it: an example of the C interface.\n"
    "\n"
    "  -h, --help     this text\n"
    "      --version  the version\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong command line.\n";

/* Returns the exit status if there is nothing to run, otherwise -1. */
static int read_arguments(int argc, char **argv, double *seconds)
{
    const char *word = argc > 1 ? argv[1] : "10";
    if (argc == 2 && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0))
        return fputs(usage, stdout) < 0;
    if (argc == 2 && strcmp(word, "--version") == 0)
        return printf("replay-demo %s\n", rp_version()) < 0;
    char *end;
    *seconds = strtod(word, &end);
    if (argc <= 2 && end != word && *end == 0 && *seconds > 0 && *seconds <= 86400)
        return -1;
    fprintf(stderr, "replay-demo: '%s' is no number of seconds between 0 and 86400\n%s", argv[argc - 1], usage);
    return 2;
}

int main(int argc, char **argv)
{
    double seconds;
    int status = read_arguments(argc, argv, &seconds);
    if (status >= 0)
        return status;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    rp_error err = {0};
    rp_server *server = rp_server_start(demo_config, NULL, &err);
    if (!server)
        fail("broker", &err);
    endpoint = rp_server_endpoint(server);
    printf("broker at %s; %d actors, 1 learner; try: replay-ctl -e %s top\n\n", endpoint, ACTORS, endpoint);
    fflush(stdout);
    static char names[][16] = {"actor-1", "actor-2", "learner"};
    pthread_t threads[1 + ACTORS];
    for (int i = 0; i <= ACTORS; i++)
        if (pthread_create(&threads[i], NULL, i < ACTORS ? actor : learner, names[i]) != 0) {
            fputs("replay-demo: no thread\n", stderr);
            return 1;
        }
    rp_client *client = connect_as("demo");
    show(client, seconds);
    rp_client_destroy(&client);
    stopping = 1;
    for (int i = 0; i <= ACTORS; i++) {
        acted = i == ACTORS;
        pthread_join(threads[i], NULL);
    }
    rp_server_stop(&server);
    printf("\ndone: every actor and the learner ended well, nothing accepted was lost\n");
    return 0;
}
