/* fork: in the child, every call with an object of the parent returns at once and says why; new objects work. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "replay/server.h"
#include "tests/support/numbers.h"

#define CHILD_S 20 /* a child that takes longer hangs, and SIGALRM ends it */

/* "closed" takes no items after its first few, so that writers wait; nothing can be sampled from "empty". */
static const char config[] = "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"
                             "tables:\n- {name: replay, max_size: 10000}\n- {name: empty, max_size: 10}\n"
                             "- {name: closed, sampler: fifo, max_size: 4, max_times_sampled: 1, limiter: queue}\n";

struct objects {
    rp_server *server;
    rp_client *client;
    rp_writer *writer;
    rp_sampler *sampler, *demand;
    rp_updater *updater;
    rp_publisher *publisher;
    rp_subscriber *subscriber;
    rp_reduce *reduce;
    rp_addition *addition;
    rp_batch *batch;
};

static const rp_column column = {.name = "number", .dtype = RP_DTYPE_INT32};

static void write_some(rp_writer *writer, const char *table, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        numbers_write(writer, table, i, 1);
}

static rp_sampler *sample(rp_client *client, const char *table, uint32_t on_demand)
{
    return rp_sampler_new(client, table, OPTIONS(rp_sampler, .batch_size = 2, .on_demand = on_demand), NULL);
}

static int set_up(void **state)
{
    static struct objects all;
    all = (struct objects){.server = must(rp_server_start(config, NULL, &err))};
    all.client = must(rp_client_connect(rp_server_endpoint(all.server), NULL, WAIT, &err));
    all.writer = numbers_writer(all.client);
    write_some(all.writer, "replay", 10);
    ok(rp_writer_flush(all.writer, 0, WAIT, &err));
    all.sampler = sample(all.client, "replay", 0);
    all.demand = sample(all.client, "replay", 1);
    all.updater = rp_updater_new(all.client, "replay", NULL, &err);
    all.publisher = rp_publisher_new(all.client, "slot", &err);
    all.subscriber = rp_subscriber_new(all.client, "slot", 0, &err);
    all.reduce = rp_reduce_join(all.client, "group", WAIT, &err);
    all.addition = rp_counter_begin(all.client, "count", 1, &err);
    ok(rp_sampler_next(all.sampler, &all.batch, WAIT, &err));
    assert_non_null(all.reduce);
    *state = &all;
    return 0;
}

static int tear_down(void **state)
{
    struct objects *all = *state;
    write_some(all->writer, "replay", 10); /* the parent's objects go on */
    ok(rp_writer_destroy(&all->writer, WAIT, &err));
    rp_batch_release(&all->batch);
    ok(rp_sampler_next(all->sampler, &all->batch, WAIT, &err));
    rp_batch_release(&all->batch);
    rp_sampler_destroy(&all->sampler);
    rp_sampler_destroy(&all->demand);
    ok(rp_updater_destroy(&all->updater, WAIT, &err));
    ok(rp_publisher_destroy(&all->publisher, WAIT, &err));
    rp_subscriber_destroy(&all->subscriber);
    ok(rp_reduce_leave(&all->reduce, WAIT, &err));
    ok(rp_counter_end(&all->addition, WAIT, NULL, &err));
    rp_client_destroy(&all->client);
    rp_server_stop(&all->server);
    return 0;
}

/* ---- what a child does: functions without cmocka, which return the number of the line that is wrong, or 0 */

#define EXPECT(test)                                                                                                   \
    do {                                                                                                               \
        if (!(test))                                                                                                   \
            return __LINE__;                                                                                           \
    } while (0)

#define CALL(expression)                                                                                               \
    if (i == n++)                                                                                                      \
    return (expression)
#define MADE(object) CALL((object) ? RP_OK : (rp_status)error->status)

/* Calls that return a status and a sentence. */
static rp_status call(const struct objects *all, uint32_t i, rp_error *error)
{
    uint32_t n = 0;
    float value = 1;
    const void *row, *values[] = {&value};
    uint64_t key = 1;
    double priority = 1;
    rp_batch *batch;
    rp_params *params;
    rp_info *info;
    rp_client_info client_info = {.struct_size = sizeof client_info};
    rp_writer_info writer_info = {.struct_size = sizeof writer_info};
    rp_slice slice = {.start = -1};
    rp_pattern pattern = {.table = "replay", .slices = &slice, .n_slices = 1};
    rp_limiter_change change = {.struct_size = sizeof change};
    CALL(rp_client_wait(all->client, -1, error));
    CALL(rp_client_get_info(all->client, &client_info, error));
    CALL(rp_writer_append(all->writer, values, -1, error));
    CALL(rp_writer_set(all->writer, 0, &value, sizeof value, error));
    CALL(rp_writer_end_step(all->writer, -1, error));
    CALL(rp_writer_item(all->writer, "replay", 1, &slice, 1, -1, &key, error));
    CALL(rp_writer_item_last(all->writer, "replay", 1, 1, -1, &key, error));
    CALL(rp_writer_check_item(all->writer, "replay", &slice, 1, error));
    CALL(rp_writer_flush(all->writer, 0, -1, error));
    CALL(rp_writer_end_episode(all->writer, RP_END_WAIT, -1, error));
    CALL(rp_writer_add_pattern(all->writer, &pattern, error));
    CALL(rp_writer_get_info(all->writer, &writer_info, error));
    CALL(rp_writer_row(all->writer, 0, -1, &row, error));
    CALL(rp_sampler_next(all->sampler, &batch, -1, error));
    CALL(rp_sampler_next(all->demand, &batch, -1, error));
    CALL(rp_sampler_stop(all->sampler, error));
    CALL(rp_updater_add(all->updater, &key, &priority, 1, -1, NULL, error));
    CALL(rp_updater_flush(all->updater, -1, NULL, error));
    CALL(rp_priorities_update(all->client, "replay", &key, &priority, 1, -1, NULL, error));
    CALL(rp_items_delete(all->client, "replay", &key, 1, -1, NULL, error));
    CALL(rp_publisher_put(all->publisher, &value, sizeof value, error));
    CALL(rp_publisher_flush(all->publisher, -1, NULL, error));
    CALL(rp_subscriber_take(all->subscriber, -1, &params, error));
    CALL(rp_params_put(all->client, "slot", &value, sizeof value, -1, NULL, error));
    CALL(rp_params_get(all->client, "slot", 0, -1, &params, error));
    CALL(rp_counter_add(all->client, "count", 1, -1, NULL, error));
    CALL(rp_counter_read(all->client, "count", -1, NULL, error));
    CALL(rp_reduce_add(all->reduce, &value, 1, -1, -1, NULL, error));
    CALL(rp_admin_info(all->client, NULL, 1, -1, &info, error));
    CALL(rp_admin_why(all->client, -1, &info, error));
    CALL(rp_admin_list(all->client, "replay", 0, 1, -1, &info, error));
    CALL(rp_admin_fetch(all->client, "replay", &key, 1, -1, &batch, error));
    CALL(rp_admin_reset(all->client, "replay", -1, NULL, error));
    CALL(rp_admin_checkpoint(all->client, -1, NULL, error));
    CALL(rp_admin_set_limiter(all->client, "replay", &change, -1, NULL, error));
    MADE(rp_writer_new(all->client, &column, 1, NULL, -1, error));
    MADE(rp_sampler_new(all->client, "replay", NULL, error));
    MADE(rp_updater_new(all->client, "replay", NULL, error));
    MADE(rp_publisher_new(all->client, "slot", error));
    MADE(rp_subscriber_new(all->client, "slot", 0, error));
    MADE(rp_reduce_join(all->client, "group", -1, error));
    MADE(rp_counter_begin(all->client, "count", 1, error));
    return RP_END_OF_STREAM;
}

/* Returns 0, or 1000 + the number of the call that did not refuse with the parent's process id. */
static int all_refuse(const struct objects *all, pid_t parent)
{
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld,", (long)parent);
    for (uint32_t i = 0;; i++) {
        err = (rp_error){0};
        rp_status status = call(all, i, &err);
        if (status == RP_END_OF_STREAM)
            return i == 42 ? 0 : __LINE__;
        if (status != RP_FAILED_PRECONDITION || err.status != (int32_t)status || !strstr(err.text, pid))
            return 1000 + (int)i;
    }
}

/* Calls without a sentence, and all that destroy. */
static int all_end(struct objects *all)
{
    rp_rejection rejection;
    rp_sampler_stats sampler_stats = {.struct_size = sizeof sampler_stats};
    rp_publisher_stats publisher_stats = {.struct_size = sizeof publisher_stats};
    rp_subscriber_stats subscriber_stats = {.struct_size = sizeof subscriber_stats};
    EXPECT(rp_client_get_state(all->client) == RP_CLIENT_CONNECTING);
    EXPECT(strcmp(rp_client_table(all->client, 0), "replay") == 0);
    EXPECT(rp_writer_next_rejection(all->writer, &rejection) == RP_FAILED_PRECONDITION);
    EXPECT(rp_sampler_get_stats(all->sampler, &sampler_stats) == RP_FAILED_PRECONDITION);
    EXPECT(rp_publisher_get_stats(all->publisher, &publisher_stats) == RP_FAILED_PRECONDITION);
    EXPECT(rp_subscriber_get_stats(all->subscriber, &subscriber_stats) == RP_FAILED_PRECONDITION);
    rp_writer_set_policy(all->writer, 3);
    EXPECT(rp_batch_find(all->batch, "number") != NULL);
    rp_batch_release(&all->batch);
    EXPECT(rp_counter_end(&all->addition, -1, NULL, &err) == RP_FAILED_PRECONDITION && !all->addition);
    rp_counter_forget(&all->addition);
    EXPECT(rp_writer_destroy(&all->writer, -1, &err) == RP_OK && !all->writer);
    rp_sampler_destroy(&all->sampler);
    rp_sampler_destroy(&all->demand);
    EXPECT(!all->sampler && !all->demand);
    EXPECT(rp_updater_destroy(&all->updater, -1, &err) == RP_OK && !all->updater);
    EXPECT(rp_publisher_destroy(&all->publisher, -1, &err) == RP_OK && !all->publisher);
    rp_subscriber_destroy(&all->subscriber);
    EXPECT(!all->subscriber);
    EXPECT(rp_reduce_leave(&all->reduce, -1, &err) == RP_OK && !all->reduce);
    return 0;
}

/* A new client of the parent's broker, and then a broker of the child's own. */
static int new_ones_work(rp_client **client, rp_server **server)
{
    rp_client *own = rp_client_connect(rp_server_endpoint(*server), NULL, WAIT, &err);
    EXPECT(own);
    EXPECT(rp_counter_add(own, "children", 1, WAIT, NULL, &err) == RP_OK);
    rp_sampler *sampler = sample(own, "replay", 0);
    rp_batch *batch;
    EXPECT(sampler && rp_sampler_next(sampler, &batch, WAIT, &err) == RP_OK);
    rp_batch_release(&batch);
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&own);
    rp_client_destroy(client);
    rp_server_stop(server);
    EXPECT(!*client && !*server);
    rp_server *second = rp_server_start(NULL, NULL, &err);
    EXPECT(second);
    own = rp_client_connect(rp_server_endpoint(second), NULL, WAIT, &err);
    EXPECT(own);
    rp_client_destroy(&own);
    rp_server_stop(&second);
    return 0;
}

static int child_main(struct objects *all, pid_t parent)
{
    int line = all_refuse(all, parent);
    if (line == 0)
        line = all_end(all);
    if (line == 0)
        line = new_ones_work(&all->client, &all->server);
    return line;
}

static void fork_once(struct objects *all)
{
    int fds[2], wrong = -1, status = 0;
    pid_t parent = getpid();
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(CHILD_S);
        wrong = child_main(all, parent);
        ssize_t n = write(fds[1], &wrong, sizeof wrong);
        _exit(n == (ssize_t)sizeof wrong ? 0 : 1);
    }
    close(fds[1]);
    ssize_t n = read(fds[0], &wrong, sizeof wrong);
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (n != (ssize_t)sizeof wrong || wrong != 0)
        fail_msg("the child ended with status %d at line %d", status, wrong);
}

TEST_WITH(struct objects, all, every_call, set_up, tear_down)
{
    int64_t children = 0;
    fork_once(all);
    ok(rp_counter_read(all->client, "children", WAIT, &children, &err));
    assert_int_equal(children, 1);
}

/* ---- fork while other threads are inside the library */

struct busy {
    struct objects *all;
    atomic_bool stop;
    rp_writer *blocked, *quick;
    rp_sampler *waits, *takes;
};

static void *wait_for_a_batch(void *arg)
{
    struct busy *self = arg;
    rp_batch *batch;
    while (!atomic_load(&self->stop))
        rp_sampler_next(self->waits, &batch, 50, NULL);
    return NULL;
}

static void *wait_for_a_flush(void *arg)
{
    struct busy *self = arg;
    while (!atomic_load(&self->stop))
        rp_writer_flush(self->blocked, 0, 50, NULL);
    return NULL;
}

static void *write_and_sample(void *arg)
{
    struct busy *self = arg;
    while (!atomic_load(&self->stop)) {
        rp_batch *batch;
        numbers_try(self->quick, "replay", 1, 1, -1, NULL, NULL);
        if (rp_sampler_next(self->takes, &batch, -1, NULL) == RP_OK)
            rp_batch_release(&batch);
    }
    return NULL;
}

static void *ask(void *arg)
{
    struct busy *self = arg;
    rp_params *params;
    while (!atomic_load(&self->stop)) {
        rp_counter_add(self->all->client, "asked", 1, -1, NULL, NULL);
        rp_params_get(self->all->client, "never", 0, 20, &params, NULL);
    }
    return NULL;
}

TEST_WITH(struct objects, all, while_threads_wait, set_up, tear_down)
{
    struct busy busy = {.all = all};
    pthread_t threads[4];
    busy.blocked = numbers_writer(all->client);
    busy.quick = numbers_writer(all->client);
    busy.waits = sample(all->client, "empty", 0);
    busy.takes = sample(all->client, "replay", 0);
    write_some(busy.blocked, "closed", 20);
    void *(*const mains[])(void *) = {wait_for_a_batch, wait_for_a_flush, write_and_sample, ask};
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, mains[i], &busy), 0);
    for (uint32_t i = 0; i < 40; i++)
        fork_once(all);
    atomic_store(&busy.stop, true);
    for (uint32_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ok(rp_writer_destroy(&busy.quick, WAIT, &err));
    rp_writer_destroy(&busy.blocked, 0, NULL);
    rp_sampler_destroy(&busy.waits);
    rp_sampler_destroy(&busy.takes);
}
