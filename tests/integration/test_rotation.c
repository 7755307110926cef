/* The broker's key is rotated under a writer and a sampler of the library, over tcp: nothing is lost, and clients that know only
 * the old key are told what to do. */

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define TABLES                                                                                                         \
    "  - {name: log, max_size: 1000000, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: none}}\n"

struct scene {
    struct broker_process broker;
    char keys[96], writer_key[96], sampler_key[96];
    atomic_bool stop, ended; /* the writer is to end; it has ended */
    atomic_ullong written, sampled;
};

/* Runs replay-ctl key; copies what it prints. */
static int ctl_key(char *out, size_t size, const char *a, const char *b, const char *c)
{
    const char *const argv[] = {process_env("RP_CTL"), "key", a, b, c, NULL};
    return process_run(argv, out, size, NULL, 0);
}

static void new_key(const struct scene *self, const char *path, const char *role)
{
    const char *const argv[] = {process_env("RP_CTL"), "key", "new", path, "--keys", self->keys, "--role", role, NULL};
    assert_int_equal(process_run(argv, NULL, 0, NULL, 0), 0);
}

/* Returns a port that nobody has, below the range from which the system takes ports for others: nobody takes it while the broker is
 * away. */
static int free_port(void)
{
    static unsigned seed;
    seed = seed ? seed : (unsigned)getpid();
    for (;;) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int port = 20000 + rand_r(&seed) % 12000, probe = socket(AF_INET, SOCK_STREAM, 0);
        address.sin_port = htons((uint16_t)port);
        bool bound = bind(probe, (const struct sockaddr *)&address, sizeof address) == 0;
        close(probe);
        if (bound)
            return port;
    }
}

/* Options of a client with this key file. */
#define WITH_KEY(file) OPTIONS(rp_client, .backoff_min_ms = 5, .backoff_max_ms = 40, .key_file = (file))

static void scene_start(struct scene *self)
{
    *self = (struct scene){0};
    snprintf(self->keys, sizeof self->keys, "%s/keys", tempdir);
    snprintf(self->writer_key, sizeof self->writer_key, "%s/writer.key", tempdir);
    snprintf(self->sampler_key, sizeof self->sampler_key, "%s/sampler.key", tempdir);
    new_key(self, self->writer_key, "actor");
    new_key(self, self->sampler_key, "learner");
    broker_process_start(&self->broker, TABLES,
                         textf("service: tcp://127.0.0.1:%d\ningest: tcp://127.0.0.1:%d\nevents: tcp://127.0.0.1:%d\n"
                               "security: {mode: curve, keys: %s}\nfolder: %s/disk\n",
                               free_port(), free_port(), free_port(), self->keys, tempdir));
}

/* Writes 0, 1, 2 ... until it is stopped. */
static void *write_steps(void *ctx)
{
    struct scene *self = ctx;
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT64};
    SCOPED(rp_client) client = must(rp_client_connect(self->broker.service, WITH_KEY(self->writer_key), WAIT, &err));
    rp_writer *writer = WRITER(client, &column, 1);
    for (uint64_t i = 0; !atomic_load(&self->stop); i++) {
        const void *values[] = {&i};
        ok(rp_writer_append(writer, values, WAIT, &err));
        ok(rp_writer_item_last(writer, "log", 1, 1, WAIT, NULL, &err));
        atomic_store(&self->written, i + 1);
        while (i % 20 == 0 && i > atomic_load(&self->sampled) + 2000 && !atomic_load(&self->stop))
            usleep(1000); /* a sampler that stalled catches up */
        if (i % 20 == 0)
            usleep(1000);
    }
    ok(rp_writer_destroy(&writer, WAIT, &err));
    atomic_store(&self->ended, true);
    return NULL;
}

/* Takes every item once, in order. */
static void *sample_steps(void *ctx)
{
    struct scene *self = ctx;
    SCOPED(rp_client) client = must(rp_client_connect(self->broker.service, WITH_KEY(self->sampler_key), WAIT, &err));
    SCOPED(rp_sampler) sampler = SAMPLER(client, "log", .batch_size = 16, .fill = RP_FILL_AT_ONCE);
    for (uint64_t next = 0; !atomic_load(&self->ended) || next < atomic_load(&self->written);) {
        SCOPED(rp_batch) batch = NULL;
        rp_status status = rp_sampler_next(sampler, &batch, 1000, &err);
        if (status == RP_DEADLINE_EXCEEDED)
            continue;
        ok(status);
        const rp_field_view *field = rp_batch_find(batch, "x");
        const uint64_t *values = field->data;
        for (uint64_t i = 0; i < field->shape[0]; i++, next++)
            if (values[i] != next)
                fail_msg("%llu came, not %llu", (unsigned long long)values[i], (unsigned long long)next);
        atomic_store(&self->sampled, next);
    }
    return NULL;
}

/* The broker's log says that it has changed its key. */
static bool has_changed_key(const struct scene *self)
{
    return strstr(file_text(file_in(self->broker.dir, "log")), "B0607") != NULL;
}

/* Both go on: each has passed this many more items. */
static void await_progress(struct scene *self)
{
    uint64_t target = atomic_load(&self->written) + 200;
    wait_until(atomic_load(&self->sampled) >= target);
}

/* A client with this key file gets in, or is told why not. */
static void check_client(const struct scene *self, const char *key_file, bool comes_in)
{
    SCOPED(rp_client) client = rp_client_connect(self->broker.service, WITH_KEY(key_file), WAIT, &err);
    if (comes_in)
        must(client);
    else
        must_fail_new(client, RP_PERMISSION_DENIED, "'sampler'");
}

TEST(rotation_under_load, tempdir_enter, tempdir_leave)
{
    struct scene scene;
    pthread_t writer, sampler;
    char out[256], public_key[64] = "";
    scene_start(&scene);
    assert_int_equal(pthread_create(&writer, NULL, write_steps, &scene), 0);
    assert_int_equal(pthread_create(&sampler, NULL, sample_steps, &scene), 0);
    await_progress(&scene);
    assert_int_equal(ctl_key(out, sizeof out, "rotate", scene.keys, NULL), 0);
    assert_int_equal(sscanf(out, "next %63s", public_key), 1);
    usleep(9000000); /* clients ask every 5 s, and may stall */
    assert_int_equal(ctl_key(out, sizeof out, "rotate", scene.keys, "finish"), 0);
    wait_until(has_changed_key(&scene));
    await_progress(&scene);
    broker_process_stop(&scene.broker, SIGTERM);
    broker_process_again(&scene.broker, NULL);
    await_progress(&scene);
    broker_process_stop(&scene.broker, SIGKILL);
    broker_process_again(&scene.broker, NULL);
    await_progress(&scene);
    check_client(&scene, scene.sampler_key, false);
    assert_int_equal(ctl_key(NULL, 0, "trust", scene.sampler_key, public_key), 0);
    check_client(&scene, scene.sampler_key, true);
    atomic_store(&scene.stop, true);
    pthread_join(writer, NULL);
    pthread_join(sampler, NULL);
    assert_int_equal(scene.sampled, scene.written);
    broker_process_fini(&scene.broker);
}
