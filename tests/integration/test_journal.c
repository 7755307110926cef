/* A broker with a journal is killed at any instant, again and again, under real writers, samplers and learners: nothing
 * that was confirmed is missing, nothing is there twice, and the order is kept. */

#include <pthread.h>
#include <stdatomic.h>

#include "tests/support/asked.h"
#include "tests/support/naive.h"
#include "tests/support/numbers.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"
#include "tests/support/twin.h"

#define TABLES                                                                                                         \
    "  - {name: log, max_size: 100000, sampler: {kind: fifo}, remover: {kind: fifo}, max_times_sampled: 1,\n"          \
    "     limiter: {kind: none}}\n"                                                                                    \
    "  - {name: queue, max_size: 200, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: queue}}\n"
#define TIMES "session: {expiry: 3s}\n"
#define WRITERS 2u

struct scene {
    struct broker_process broker;
    struct twin_folder folder;
    uint64_t steps; /* of each writer */
    atomic_uint busy;
    atomic_bool stop;
    pthread_t threads[WRITERS + 2];
    struct part {
        struct scene *scene;
        uint32_t number;
    } parts[WRITERS + 2];
    int64_t counted; /* answered additions */
    uint64_t version;
};

static rp_client *connect_to(const struct scene *scene)
{
    return CONNECT(scene->broker.service, .backoff_min_ms = 5, .backoff_max_ms = 40);
}

/* Step i of writer w is the number w << 32 | i; it becomes an item of both tables. */
static void *write_steps(void *ctx)
{
    const struct part *part = ctx;
    SCOPED(rp_client) client = connect_to(part->scene);
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT64};
    rp_writer *writer = WRITER(client, &column, 1, .max_in_flight_items = 300, .batch_items = 7);
    for (uint64_t i = 0; i < part->scene->steps; i++) {
        uint64_t value = (uint64_t)part->number << 32 | i;
        const void *values[] = {&value};
        ok(rp_writer_append(writer, values, WAIT, &err));
        ok(rp_writer_item_last(writer, "log", 1, 1, WAIT, NULL, &err));
        ok(rp_writer_item_last(writer, "queue", 1, 1, WAIT, NULL, &err));
    }
    ok(rp_writer_flush(writer, 0, WAIT, &err));
    ok(rp_writer_destroy(&writer, WAIT, &err));
    atomic_fetch_sub(&part->scene->busy, 1);
    return NULL;
}

/* Takes n items, and checks that each writer's come once and in order. */
static void read_all(const struct scene *scene, const char *table, uint64_t n)
{
    SCOPED(rp_client) client = connect_to(scene);
    SCOPED(rp_sampler) sampler = SAMPLER(client, table, .batch_size = 16, .fill = RP_FILL_AT_ONCE, .max_samples = n);
    uint64_t next[WRITERS] = {0}, taken = 0;
    for (rp_batch *batch; rp_sampler_next(sampler, &batch, WAIT, &err) == RP_OK; rp_batch_release(&batch)) {
        const rp_field_view *field = rp_batch_find(batch, "x");
        const uint64_t *values = field->data;
        for (uint64_t i = 0; i < field->shape[0]; i++, taken++) {
            uint64_t writer = values[i] >> 32, step = values[i] & UINT32_MAX;
            if (writer >= WRITERS || step != next[writer]++)
                fail_msg("%s: item %llu of writer %llu comes out of order", table, (unsigned long long)step,
                         (unsigned long long)writer);
        }
    }
    must_fail(err.status, RP_END_OF_STREAM, NULL);
    assert_int_equal(taken, n);
}

static void *read_queue(void *ctx)
{
    const struct part *part = ctx;
    read_all(part->scene, "queue", WRITERS * part->scene->steps);
    atomic_fetch_sub(&part->scene->busy, 1);
    return NULL;
}

/* Adds to a counter and puts parameters: each answered one counts once. */
static void *put_and_count(void *ctx)
{
    struct scene *scene = ((const struct part *)ctx)->scene;
    SCOPED(rp_client) client = connect_to(scene);
    while (!atomic_load(&scene->stop)) {
        int64_t value = 0;
        uint64_t version = 0;
        ok(rp_counter_add(client, "steps", 3, WAIT, &value, &err));
        scene->counted += 3;
        if (value != scene->counted)
            fail_msg("the counter is %lld, not %lld", (long long)value, (long long)scene->counted);
        ok(rp_params_put(client, "policy", &value, sizeof value, WAIT, &version, &err));
        if (version != ++scene->version)
            fail_msg("version %llu, not %llu", (unsigned long long)version, (unsigned long long)scene->version);
    }
    return NULL;
}

static void check_counters(struct scene *scene, uint64_t n)
{
    SCOPED(rp_client) client = connect_to(scene);
    SCOPED(rp_info) info = asked_info(client, "");
    for (uint32_t i = 0; i < 2; i++) {
        const rp_info *table = rp_info_at(info, "tables", i);
        bool queue = strcmp(rp_info_text(table, "name"), "queue") == 0;
        assert_int_equal(rp_info_u64(table, "limiter.inserts"), n);
        assert_int_equal(rp_info_u64(table, "limiter.samples"), queue ? n : 0);
        assert_int_equal(rp_info_u64(table, "limiter.deletes"), queue ? n : 0);
        assert_int_equal(rp_info_u64(table, "size"), queue ? 0 : n);
        assert_int_equal(rp_info_u64(table, "rejected"), 0);
    }
    int64_t value = 0;
    assert_int_equal(rp_counter_read(client, "steps", WAIT, &value, &err), RP_OK);
    assert_int_equal(value, scene->counted);
    SCOPED(rp_params) params = NULL;
    assert_int_equal(rp_params_get(client, "policy", 0, WAIT, &params, &err), RP_OK);
    assert_int_equal(rp_params_slot(params)->version, scene->version);
}

static void kill_again_and_again(const char *test, const char *sync, uint64_t steps, uint32_t least)
{
    struct rng rng = naive_rng(test);
    struct scene *scene = calloc(1, sizeof *scene);
    twin_folder_init(&scene->folder);
    broker_process_start(
        &scene->broker, TABLES,
        textf(TIMES "folder: %s\njournal: %s\ncheckpoint: {every: 20ms, keep: 1}\n", scene->folder.path, sync));
    scene->steps = steps;
    scene->busy = WRITERS + 1;
    for (uint32_t i = 0; i < WRITERS + 2; i++) {
        scene->parts[i] = (struct part){.scene = scene, .number = i};
        void *(*const work)(void *) = i < WRITERS ? write_steps : i == WRITERS ? read_queue : put_and_count;
        assert_int_equal(pthread_create(&scene->threads[i], NULL, work, &scene->parts[i]), 0);
    }
    uint32_t killed = 0;
    /* A quick machine is through before that: counters and parameters go on. */
    while (atomic_load(&scene->busy) || killed < least) {
        usleep((useconds_t)(1 + rng_below(&rng, 120)) * 1000);
        if (!atomic_load(&scene->busy) && killed >= least)
            break;
        broker_process_stop(&scene->broker, SIGKILL);
        broker_process_again(&scene->broker, NULL);
        killed++;
    }
    atomic_store(&scene->stop, true);
    for (uint32_t i = 0; i < WRITERS + 2; i++)
        pthread_join(scene->threads[i], NULL);
    broker_process_stop(&scene->broker, SIGKILL);
    broker_process_again(&scene->broker, NULL);
    print_message("%s: killed %u times\n", test, killed + 1);
    assert_true(killed >= least);
    check_counters(scene, WRITERS * steps);
    read_all(scene, "log", WRITERS * steps);
    broker_process_fini(&scene->broker);
    twin_folder_fini(&scene->folder);
    free(scene);
}

TEST(nothing_is_lost_whenever_the_broker_is_killed)
{
    kill_again_and_again(__func__, "1s", 30000, 8);
}

TEST(nor_with_a_sync_before_every_answer)
{
    kill_again_and_again(__func__, "0s", 1500, 1);
}

/* ---- the files ---- */

static void write_items(const struct scene *scene, int32_t first, uint32_t n)
{
    SCOPED(rp_client) client = connect_to(scene);
    numbers_insert(client, "log", first, n, NULL);
}

static bool log_has(const struct scene *scene, const char *words)
{
    return strstr(file_text(file_in(scene->broker.dir, "log")), words) != NULL;
}

/* Cuts so many bytes out of the last segment: out of its middle, or off its end. */
static void cut_last_segment(const struct scene *scene, bool end, size_t bytes)
{
    uint32_t n;
    char **segments = files_like(file_in(scene->folder.path, "segment-*"), &n);
    assert_true(n > 0);
    size_t size;
    char *data = file_bytes(segments[n - 1], &size);
    assert_true(size > bytes);
    size_t at = end ? size - bytes : (size - bytes) / 2;
    memmove(data + at, data + at + bytes, size - bytes - at);
    file_write(segments[n - 1], data, size - bytes, 0644);
}

static void start(struct scene *scene)
{
    *scene = (struct scene){.steps = 0};
    twin_folder_init(&scene->folder);
    broker_process_start(&scene->broker, TABLES, textf(TIMES "folder: %s\njournal: never\n", scene->folder.path));
}

static void end(struct scene *scene)
{
    broker_process_fini(&scene->broker);
    twin_folder_fini(&scene->folder);
}

static void restart(struct scene *scene, const char *tables)
{
    broker_process_stop(&scene->broker, SIGKILL);
    broker_process_again(&scene->broker, tables);
}

static uint64_t size_of_log(const struct scene *scene)
{
    SCOPED(rp_client) client = connect_to(scene);
    uint64_t size = asked_table(client, "log", "size");
    return size;
}

/* Items that were confirmed are gone, and the broker must not go on as if nothing had happened. */
TEST(a_cut_is_refused_until_told)
{
    struct scene scene;
    start(&scene);
    for (int32_t i = 0; i < 20; i++)
        write_items(&scene, 100 * i, 20);
    broker_process_stop(&scene.broker, SIGKILL);
    cut_last_segment(&scene, false, 200);
    char text[4096];
    const char *const argv[] = {process_env("RP_BROKER"), "-c", file_in(scene.broker.dir, "broker.yaml"), NULL};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(process_run(argv, NULL, 0, text, sizeof text), 1);
        assert_non_null(strstr(text, "B0512"));
        assert_non_null(strstr(text, "checkpoint.load: salvage"));
        assert_null(strstr(text, "B0511"));
    }
    size_t used = strlen(scene.broker.more);
    snprintf(scene.broker.more + used, sizeof scene.broker.more - used, "checkpoint: {load: salvage}\n");
    broker_process_again(&scene.broker, TABLES);
    uint64_t size = size_of_log(&scene);
    assert_true(size < 400);
    write_items(&scene, 10000, 10);
    broker_process_stop(&scene.broker, SIGKILL);
    scene.broker.more[used] = '\0';
    broker_process_again(&scene.broker, TABLES);
    assert_int_equal(size_of_log(&scene), size + 10);
    end(&scene);
}

TEST(a_torn_end_and_a_smaller_table_are_reported)
{
    struct scene scene;
    start(&scene);
    write_items(&scene, 0, 500);
    assert_int_equal(size_of_log(&scene), 500);
    broker_process_stop(&scene.broker, SIGKILL);
    cut_last_segment(&scene, true, 5);
    broker_process_again(&scene.broker,
                         "  - {name: log, max_size: 100, sampler: {kind: fifo}, limiter: {kind: none}}\n");
    assert_int_equal(size_of_log(&scene), 100);
    assert_true(log_has(&scene, "torn end of the journal"));
    assert_true(log_has(&scene, "setting=max_size files=100000 configuration=100"));
    restart(&scene, TABLES);
    write_items(&scene, 1000, 10);
    restart(&scene, NULL);
    assert_int_equal(size_of_log(&scene), 110);
    end(&scene);
}
