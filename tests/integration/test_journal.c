/* A broker with a journal is killed at any instant, again and again, under real writers, samplers and learners: nothing
 * that was confirmed is missing, nothing is there twice, and the order is kept. */

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

#include "replay/admin.h"
#include "replay/collective.h"
#include "replay/replay.h"
#include "tests/support/asked.h"
#include "tests/support/naive.h"
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
        char text[600]; /* what went wrong */
    } parts[WRITERS + 2];
    int64_t counted; /* answered additions */
    uint64_t version;
};

static void complain(struct part *part, const char *what, const rp_error *error)
{
    if (!part->text[0])
        snprintf(part->text, sizeof part->text, "%s: %s", what, error->text);
}

static rp_client *connect_to(const struct scene *scene, rp_error *error)
{
    rp_client_options options = {.struct_size = sizeof options, .backoff_min_ms = 5, .backoff_max_ms = 40};
    return rp_client_connect(scene->broker.service, &options, WAIT, error);
}

/* Step i of writer w is the number w << 32 | i; it becomes an item of both tables. */
static void *write_steps(void *ctx)
{
    struct part *part = ctx;
    const struct scene *scene = part->scene;
    rp_client *client = connect_to(scene, &err);
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT64};
    rp_writer_options options = {.struct_size = sizeof options, .max_in_flight_items = 300, .batch_items = 7};
    rp_writer *writer = client ? rp_writer_new(client, &column, 1, &options, WAIT, &err) : NULL;
    if (!writer)
        complain(part, "writer", &err);
    for (uint64_t i = 0; writer && i < scene->steps && !part->text[0]; i++) {
        uint64_t value = (uint64_t)part->number << 32 | i;
        const void *values[] = {&value};
        if (rp_writer_append(writer, values, WAIT, &err) != RP_OK ||
            rp_writer_item_last(writer, "log", 1, 1, WAIT, NULL, &err) != RP_OK ||
            rp_writer_item_last(writer, "queue", 1, 1, WAIT, NULL, &err) != RP_OK)
            complain(part, "append", &err);
    }
    if (writer && rp_writer_flush(writer, 0, WAIT, &err) != RP_OK)
        complain(part, "flush", &err);
    if (writer && rp_writer_destroy(&writer, WAIT, &err) != RP_OK)
        complain(part, "close", &err);
    rp_client_destroy(&client);
    atomic_fetch_sub(&part->scene->busy, 1);
    return NULL;
}

/* Takes n items, and checks that each writer's come once and in order. */
static void read_all(struct part *part, const char *table, uint64_t n)
{
    rp_client *client = connect_to(part->scene, &err);
    rp_sampler_options options = {
        .struct_size = sizeof options, .batch_size = 16, .fill = RP_FILL_AT_ONCE, .max_samples = n};
    rp_sampler *sampler = client ? rp_sampler_new(client, table, &options, &err) : NULL;
    if (!sampler)
        complain(part, "sampler", &err);
    uint64_t next[WRITERS] = {0}, taken = 0;
    while (sampler && !part->text[0]) {
        rp_batch *batch = NULL;
        rp_status status = rp_sampler_next(sampler, &batch, WAIT, &err);
        if (status == RP_END_OF_STREAM)
            break;
        if (status != RP_OK) {
            complain(part, table, &err);
            break;
        }
        const rp_field_view *field = rp_batch_find(batch, "x");
        const uint64_t *values = field->data;
        for (uint64_t i = 0; i < field->shape[0]; i++, taken++) {
            uint64_t writer = values[i] >> 32, step = values[i] & UINT32_MAX;
            if (writer >= WRITERS || step != next[writer])
                snprintf(part->text, sizeof part->text, "%s: item %llu of writer %llu comes after %llu", table,
                         (unsigned long long)step, (unsigned long long)writer,
                         (unsigned long long)(writer < WRITERS ? next[writer] : 0));
            else
                next[writer]++;
        }
        rp_batch_release(&batch);
    }
    if (taken != n && !part->text[0])
        snprintf(part->text, sizeof part->text, "%s: %llu items instead of %llu", table, (unsigned long long)taken,
                 (unsigned long long)n);
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&client);
}

static void *read_queue(void *ctx)
{
    struct part *part = ctx;
    read_all(part, "queue", WRITERS * part->scene->steps);
    atomic_fetch_sub(&part->scene->busy, 1);
    return NULL;
}

/* Adds to a counter and puts parameters: each answered one counts once. */
static void *put_and_count(void *ctx)
{
    struct part *part = ctx;
    struct scene *scene = part->scene;
    rp_client *client = connect_to(scene, &err);
    if (!client)
        complain(part, "client", &err);
    while (client && !atomic_load(&scene->stop) && !part->text[0]) {
        int64_t value = 0;
        uint64_t version = 0;
        if (rp_counter_add(client, "steps", 3, WAIT, &value, &err) != RP_OK)
            complain(part, "counter", &err);
        scene->counted += 3;
        if (value != scene->counted && !part->text[0])
            snprintf(part->text, sizeof part->text, "the counter is %lld, not %lld", (long long)value,
                     (long long)scene->counted);
        if (rp_params_put(client, "policy", &value, sizeof value, WAIT, &version, &err) != RP_OK)
            complain(part, "params", &err);
        if (version != ++scene->version && !part->text[0])
            snprintf(part->text, sizeof part->text, "version %llu, not %llu", (unsigned long long)version,
                     (unsigned long long)scene->version);
    }
    rp_client_destroy(&client);
    return NULL;
}

static void pause_ms(uint64_t ms)
{
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static void check_counters(struct scene *scene, uint64_t n)
{
    rp_client *client = must(connect_to(scene, &err));
    rp_info *info = asked_info(client, "");
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
    rp_params *params = NULL;
    assert_int_equal(rp_params_get(client, "policy", 0, WAIT, &params, &err), RP_OK);
    assert_int_equal(rp_params_slot(params)->version, scene->version);
    rp_params_release(&params);
    rp_info_free(&info);
    rp_client_destroy(&client);
}

static void kill_again_and_again(const char *test, const char *sync, uint64_t steps, uint32_t least)
{
    struct rng rng = naive_rng(test);
    struct scene *scene = calloc(1, sizeof *scene);
    char more[512];
    twin_folder_init(&scene->folder);
    snprintf(more, sizeof more, TIMES "folder: %s\njournal: %s\ncheckpoint: {every: 20ms, keep: 1}\n",
             scene->folder.path, sync);
    broker_process_start(&scene->broker, TABLES, more);
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
        pause_ms(1 + rng_below(&rng, 120));
        if (!atomic_load(&scene->busy) && killed >= least)
            break;
        broker_process_stop(&scene->broker, SIGKILL);
        broker_process_again(&scene->broker, NULL);
        killed++;
    }
    atomic_store(&scene->stop, true);
    for (uint32_t i = 0; i < WRITERS + 2; i++)
        pthread_join(scene->threads[i], NULL);
    for (uint32_t i = 0; i < WRITERS + 2; i++)
        if (scene->parts[i].text[0])
            fail_msg("%s", scene->parts[i].text);
    broker_process_stop(&scene->broker, SIGKILL);
    broker_process_again(&scene->broker, NULL);
    print_message("%s: killed %u times\n", test, killed + 1);
    assert_true(killed >= least);
    check_counters(scene, WRITERS * steps);
    struct part last = {.scene = scene};
    read_all(&last, "log", WRITERS * steps);
    if (last.text[0])
        fail_msg("%s", last.text);
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

static void write_items(const struct scene *scene, uint64_t first, uint64_t n)
{
    rp_client *client = connect_to(scene, &err);
    rp_column column = {.name = "x", .dtype = RP_DTYPE_UINT64};
    rp_writer *writer = must(rp_writer_new(client, &column, 1, NULL, WAIT, &err));
    for (uint64_t i = first; i < first + n; i++) {
        const void *values[] = {&i};
        assert_int_equal(rp_writer_append(writer, values, WAIT, &err), RP_OK);
        assert_int_equal(rp_writer_item_last(writer, "log", 1, 1, WAIT, NULL, &err), RP_OK);
    }
    assert_int_equal(rp_writer_destroy(&writer, WAIT, &err), RP_OK);
    rp_client_destroy(&client);
}

static bool log_has(const struct scene *scene, const char *words)
{
    return strstr(file_text(file_in(scene->broker.dir, "log")), words) != NULL;
}

/* Cuts so many bytes out of the last segment. before: the part of the rest that lies before the cut, 1 for its end. */
static void cut_last_segment(const struct scene *scene, double before, size_t bytes)
{
    static uint8_t data[1 << 20];
    char last[256] = "", path[512];
    DIR *dir = opendir(scene->folder.path);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strncmp(entry->d_name, "segment-", 8) == 0 && strcmp(entry->d_name, last) > 0)
            snprintf(last, sizeof last, "%s", entry->d_name);
    closedir(dir);
    snprintf(path, sizeof path, "%s/%s", scene->folder.path, last);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    size_t size = fread(data, 1, sizeof data, file), at = (size_t)(before * (double)(size - bytes));
    assert_true(size > bytes && size < sizeof data);
    rewind(file);
    memmove(data + at, data + at + bytes, size - bytes - at);
    assert_int_equal(fwrite(data, 1, size - bytes, file), size - bytes);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(path, (off_t)(size - bytes)), 0);
}

static void start(struct scene *scene, const char *tables)
{
    *scene = (struct scene){.steps = 0};
    twin_folder_init(&scene->folder);
    char more[512];
    snprintf(more, sizeof more, TIMES "folder: %s\njournal: never\n", scene->folder.path);
    broker_process_start(&scene->broker, tables, more);
}

static uint64_t size_of_log(const struct scene *scene)
{
    rp_client *client = must(connect_to(scene, &err));
    uint64_t size = asked_table(client, "log", "size");
    rp_client_destroy(&client);
    return size;
}

TEST(a_torn_end_is_reported_and_the_broker_starts)
{
    struct scene scene;
    start(&scene, TABLES);
    write_items(&scene, 0, 500);
    broker_process_stop(&scene.broker, SIGKILL);
    cut_last_segment(&scene, 1, 5);
    broker_process_again(&scene.broker, NULL);
    assert_true(log_has(&scene, "torn end of the journal"));
    uint64_t size = size_of_log(&scene);
    assert_true(size > 0 && size <= 500);
    write_items(&scene, 1000, 10);
    broker_process_stop(&scene.broker, SIGKILL);
    broker_process_again(&scene.broker, NULL);
    assert_int_equal(size_of_log(&scene), size + 10);
    broker_process_fini(&scene.broker);
    twin_folder_fini(&scene.folder);
}

/* Items that were confirmed are gone, and the broker must not go on as if nothing had happened. */
static void a_cut_is_refused_until_told(double before)
{
    struct scene scene;
    start(&scene, TABLES);
    for (uint64_t i = 0; i < 20; i++)
        write_items(&scene, 100 * i, 20);
    broker_process_stop(&scene.broker, SIGKILL);
    cut_last_segment(&scene, before, 200);
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
    broker_process_fini(&scene.broker);
    twin_folder_fini(&scene.folder);
}

TEST(a_cut_in_the_middle_is_refused_until_told)
{
    a_cut_is_refused_until_told(0.5);
}

/* Nothing of the journal can be applied, but there was something. */
TEST(a_cut_at_the_beginning_is_refused_until_told)
{
    a_cut_is_refused_until_told(0.002);
}

TEST(a_smaller_table_is_reported_and_trimmed)
{
    struct scene scene;
    start(&scene, TABLES);
    write_items(&scene, 0, 500);
    assert_int_equal(size_of_log(&scene), 500);
    broker_process_stop(&scene.broker, SIGKILL);
    broker_process_again(&scene.broker,
                         "  - {name: log, max_size: 100, sampler: {kind: fifo}, limiter: {kind: none}}\n");
    assert_int_equal(size_of_log(&scene), 100);
    assert_true(log_has(&scene, "setting=max_size files=100000 configuration=100"));
    assert_true(log_has(&scene, "B0514"));
    broker_process_fini(&scene.broker);
    twin_folder_fini(&scene.folder);
}
