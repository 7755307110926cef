/* A disk that is full: writers wait, everybody who asks is told why, nothing is torn or lost, also if the broker is killed
 * meanwhile, and all goes on when there is room. With a real broker on a file system of a few MiB. */

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>

#include "replay/admin.h"
#include "replay/replay.h"
#include "tests/support/asked.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define TABLES                                                                                                         \
    "  - {name: log, max_size: 100000, sampler: {kind: fifo}, remover: {kind: fifo}, max_times_sampled: 1,\n"          \
    "     limiter: {kind: none}}\n"
#define STEPS 3000u
#define STEP_BYTES 2000u

struct scene {
    struct broker_process broker;
    rp_client *client;
    atomic_bool done;
    char text[600];
};

static rp_client *connect_to(const struct scene *self, rp_error *error)
{
    rp_client_options options = {.struct_size = sizeof options, .backoff_min_ms = 5, .backoff_max_ms = 40};
    return rp_client_connect(self->broker.service, &options, WAIT, error);
}

static void *write_steps(void *ctx)
{
    struct scene *self = ctx;
    static uint32_t row[STEP_BYTES / 4];
    rp_client *client = connect_to(self, &err);
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT32, .rank = 1, .shape = {STEP_BYTES / 4}};
    rp_writer *writer = client ? rp_writer_new(client, &column, 1, NULL, WAIT, &err) : NULL;
    bool ok = writer != NULL;
    for (uint32_t i = 0; ok && i < STEPS; i++) {
        for (uint32_t k = 0; k < STEP_BYTES / 4; k++)
            row[k] = i * 2654435761u + k * k; /* does not compress to nothing */
        row[0] = i;
        const void *values[] = {row};
        ok = rp_writer_append(writer, values, WAIT, &err) == RP_OK &&
             rp_writer_item_last(writer, "log", 1, 1, WAIT, NULL, &err) == RP_OK;
    }
    ok = ok && rp_writer_flush(writer, 0, WAIT, &err) == RP_OK;
    if (writer && rp_writer_destroy(&writer, WAIT, &err) != RP_OK)
        ok = false;
    if (!ok)
        snprintf(self->text, sizeof self->text, "writer: %s", err.text);
    rp_client_destroy(&client);
    atomic_store(&self->done, true);
    return NULL;
}

/* Whether the broker says that it waits for its journal, and why. */
static int is_stuck(void *ctx)
{
    struct scene *self = ctx;
    char text[512] = "";
    asked_waits(self->client, "journal", text, sizeof text);
    return strstr(text, "No space left on device") != NULL;
}

static int is_done(void *ctx)
{
    return atomic_load(&((struct scene *)ctx)->done);
}

static void read_all(struct scene *self)
{
    rp_sampler_options options = {
        .struct_size = sizeof options, .batch_size = 16, .fill = RP_FILL_AT_ONCE, .max_samples = STEPS};
    rp_sampler *sampler = must(rp_sampler_new(self->client, "log", &options, &err));
    uint32_t next = 0;
    for (rp_batch *batch = NULL; rp_sampler_next(sampler, &batch, WAIT, &err) == RP_OK; rp_batch_release(&batch)) {
        const rp_field_view *field = rp_batch_find(batch, "x");
        const uint32_t *values = field->data;
        for (uint64_t i = 0; i < field->shape[0]; i++)
            assert_int_equal(values[i * (STEP_BYTES / 4)], next++);
    }
    assert_int_equal(next, STEPS);
    rp_sampler_destroy(&sampler);
}

static void end(struct scene *self)
{
    assert_int_equal(WEXITSTATUS(broker_process_stop(&self->broker, SIGTERM)), 0);
    broker_process_fini(&self->broker);
    free(self);
}

static void full_disk(const char *sync, bool kills)
{
    if (!tempdir_mount("size=2m"))
        skip();
    struct scene *self = calloc(1, sizeof *self);
    char more[256];
    snprintf(more, sizeof more, "session: {expiry: 3s}\nfolder: %s/journal\njournal: %s\n", tempdir, sync);
    broker_process_start(&self->broker, TABLES, more);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_steps, self), 0);
    self->client = must(connect_to(self, &err));
    assert_true(process_await(is_stuck, self));
    assert_false(atomic_load(&self->done));
    if (kills) {
        broker_process_stop(&self->broker, SIGKILL);
        broker_process_again(&self->broker, NULL);
        assert_true(process_await(is_stuck, self));
    }
    /* who comes now is let in, and told */
    rp_client_destroy(&self->client);
    self->client = must(connect_to(self, &err));
    assert_true(is_stuck(self));
    assert_false(atomic_load(&self->done));
    assert_int_equal(mount("tmpfs", tempdir, "tmpfs", MS_REMOUNT, "size=64m"), 0);
    assert_true(process_await(is_done, self));
    pthread_join(thread, NULL);
    if (self->text[0])
        fail_msg("%s", self->text);
    broker_process_stop(&self->broker, SIGKILL);
    broker_process_again(&self->broker, NULL);
    read_all(self);
    rp_client_destroy(&self->client);
    end(self);
}

TEST(writers_wait_for_a_full_disk, tempdir_enter, tempdir_leave)
{
    full_disk("1s", false);
}

TEST(a_kill_on_a_full_disk_loses_nothing, tempdir_enter, tempdir_leave)
{
    full_disk("0s", true);
}

/* Nothing at all can be written, and nobody will free space while the broker is told to end. */
TEST(the_end_does_not_wait_for_a_full_disk, tempdir_enter, tempdir_leave)
{
    if (!tempdir_mount("size=2m"))
        skip();
    struct scene *self = calloc(1, sizeof *self);
    char more[256];
    snprintf(more, sizeof more, "session: {expiry: 3s}\nfolder: %s/journal\n", tempdir);
    broker_process_start(&self->broker, TABLES, more);
    int file = open(tempdir_at("hog"), O_WRONLY | O_CREAT, 0644);
    static const char block[4096];
    while (write(file, block, sizeof block) > 0) {
    }
    close(file);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_steps, self), 0);
    self->client = must(connect_to(self, &err));
    assert_true(process_await(is_stuck, self));
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    assert_int_equal(WEXITSTATUS(broker_process_stop(&self->broker, SIGTERM)), 0);
    clock_gettime(CLOCK_MONOTONIC, &to);
    assert_in_range(to.tv_sec - from.tv_sec, 0, 60); /* it tries for a second, twice */
    assert_int_equal(mount("tmpfs", tempdir, "tmpfs", MS_REMOUNT, "size=64m"), 0);
    broker_process_again(&self->broker, NULL);
    assert_true(process_await(is_done, self));
    pthread_join(thread, NULL);
    if (self->text[0])
        fail_msg("%s", self->text);
    read_all(self);
    rp_client_destroy(&self->client);
    end(self);
}
