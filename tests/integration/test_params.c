/* Parameter slots, counters and reduce against a real broker. */
#include <pthread.h>
#include <sys/wait.h>

#include "replay/admin.h"
#include "replay/client.h"
#include "replay/collective.h"
#include "replay/params.h"
#include "tests/support/asked.h"
#include "tests/support/process.h"

struct member {
    rp_client *client;
    rp_reduce *reduce;
    pthread_t thread;
    int64_t round_ms, timeout_ms;
    float values[3];
    rp_reduced result;
    rp_status status;
    rp_error err;
};

#define MEMBERS 3u
struct fixture {
    SERVED;
    struct member m[MEMBERS];
};

static rp_client *connect_to(const struct fixture *f)
{
    return must(rp_client_connect(f->broker.service, NULL, WAIT, &err));
}

static void set_up(struct fixture *f)
{
    served_start(f, "  - {name: replay, max_size: 10}\n", NULL);
}

static void tear_down(struct fixture *f)
{
    for (uint32_t i = 0; i < MEMBERS; i++) {
        if (f->m[i].reduce)
            ok(rp_reduce_leave(&f->m[i].reduce, WAIT, &err));
        rp_client_destroy(&f->m[i].client);
    }
    served_stop(f);
}

/* ---- slots ---- */

FIXTURE(struct fixture, set_up, tear_down)

CASE(put_and_get)
{
    rp_params *params = NULL;
    uint64_t version = 0;
    assert_int_equal(rp_params_get(f->client, "policy", 0, 0, &params, &err), RP_DEADLINE_EXCEEDED);
    assert_null(params);
    ok(rp_params_put(f->client, "policy", "first", 5, WAIT, &version, &err));
    assert_int_equal(version, 1);
    ok(rp_params_put(f->client, "policy", "second!", 7, WAIT, &version, &err));
    assert_int_equal(version, 2);
    ok(rp_params_get(f->client, "policy", 1, 0, &params, &err));
    const rp_param *slot = rp_params_slot(params);
    assert_string_equal(slot->name, "policy");
    assert_int_equal(slot->version, 2);
    assert_int_equal(slot->bytes, 7);
    assert_memory_equal(slot->data, "second!", 7);
    rp_params_release(&params);
    assert_int_equal(rp_params_get(f->client, "policy", 2, 0, &params, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(rp_params_get(f->client, "policy", 2, 50, &params, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(rp_params_get(f->client, "", 2, 50, &params, &err), RP_INVALID_ARGUMENT);
}

CASE(large_and_empty)
{
    rp_params *params = NULL;
    size_t size = 8 << 20;
    uint8_t *data = malloc(size);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 31 >> 3);
    ok(rp_params_put(f->client, "large", data, size, WAIT, NULL, &err));
    ok(rp_params_put(f->client, "empty", NULL, 0, WAIT, NULL, &err));
    ok(rp_params_get(f->client, "empty", 0, WAIT, &params, &err));
    assert_int_equal(rp_params_slot(params)->bytes, 0);
    assert_int_equal(rp_params_slot(params)->version, 1);
    assert_non_null(rp_params_slot(params)->data);
    rp_params_release(&params);
    ok(rp_params_get(f->client, "large", 0, WAIT, &params, &err));
    assert_int_equal(rp_params_slot(params)->bytes, size);
    assert_memory_equal(rp_params_slot(params)->data, data, size);
    rp_params_release(&params);
    free(data);
}

struct poll {
    rp_client *client;
    rp_status status;
    uint64_t version;
};

static void *poll_main(void *arg)
{
    struct poll *poll = arg;
    rp_params *params = NULL;
    poll->status = rp_params_get(poll->client, "policy", 0, WAIT, &params, &err);
    if (params)
        poll->version = rp_params_slot(params)->version;
    rp_params_release(&params);
    return NULL;
}

static int one_waits(void *ctx)
{
    char text[512] = "";
    int one = asked_waits(ctx, "params", text, sizeof text) == 1;
    assert_true(!one || strstr(text, "policy"));
    return one;
}

CASE(long_poll)
{
    struct poll poll = {.client = f->client, .status = RP_INTERNAL};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, poll_main, &poll), 0);
    rp_client *other = connect_to(f);
    assert_true(process_await(one_waits, other));
    ok(rp_params_put(other, "policy", "x", 1, WAIT, NULL, &err));
    pthread_join(thread, NULL);
    assert_int_equal(poll.status, RP_OK);
    assert_int_equal(poll.version, 1);
    rp_client_destroy(&other);
}

/* ---- counters ---- */

CASE(counters)
{
    rp_client *other = connect_to(f);
    int64_t value = -1;
    ok(rp_counter_read(f->client, "steps", WAIT, &value, &err));
    assert_int_equal(value, 0);
    ok(rp_counter_add(f->client, "steps", 40, WAIT, &value, &err));
    assert_int_equal(value, 40);
    ok(rp_counter_add(other, "steps", -50, WAIT, &value, &err));
    assert_int_equal(value, -10);
    ok(rp_counter_read(f->client, "steps", WAIT, &value, &err));
    assert_int_equal(value, -10);
    rp_info *info = asked_info(f->client, NULL);
    assert_int_equal(rp_info_count(info, "counters"), 1);
    assert_int_equal(rp_info_i64(rp_info_find(info, "counters", "steps"), "value"), -10);
    assert_true(rp_info_real(info, "counters.0.value") == -10);
    rp_info_free(&info);
    rp_client_destroy(&other);
}

/* ---- reduce ---- */

static void join(struct fixture *f, uint32_t members)
{
    for (struct member *m = f->m; m < f->m + members; m++) {
        m->client = connect_to(f);
        m->reduce = must(rp_reduce_join(m->client, "learners", WAIT, &err));
        m->round_ms = -1;
        m->timeout_ms = WAIT;
    }
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    m->status = rp_reduce_add(m->reduce, m->values, 3, m->round_ms, m->timeout_ms, &m->result, &m->err);
    return NULL;
}

static void member_start(struct member *m, float a)
{
    m->values[0] = a;
    m->values[1] = 10 * a;
    m->values[2] = -a;
    assert_int_equal(pthread_create(&m->thread, NULL, member_main, m), 0);
}

static void member_expect(struct member *m, float sum, uint32_t contributors, uint32_t counted)
{
    pthread_join(m->thread, NULL);
    if (m->status != RP_OK)
        fail_msg("%s", m->err.text);
    assert_true(m->values[0] == sum);
    assert_true(m->values[1] == 10 * sum);
    assert_true(m->values[2] == -sum);
    assert_int_equal(m->result.contributors, contributors);
    assert_int_equal(m->result.counted, counted);
}

/* A round of two. */
static void add_both(struct member *m, float a, float b)
{
    member_start(&m[0], a);
    member_start(&m[1], b);
    member_expect(&m[0], a + b, 2, 1);
    member_expect(&m[1], a + b, 2, 1);
}

CASE(reduce_rounds)
{
    struct member *m = f->m;
    join(f, 3);
    for (uint32_t round = 1; round <= 5; round++) {
        for (uint32_t i = 0; i < 3; i++)
            member_start(&m[i], (float)(round + i));
        for (uint32_t i = 0; i < 3; i++) {
            member_expect(&m[i], (float)(3 * round + 3), 3, 1);
            assert_int_equal(m[i].result.round, round);
            assert_int_equal(m[i].result.members, 3);
        }
    }
}

/* This program again, as a process that joins the group, says so, and waits to be killed. */
static int die_main(const char *endpoint)
{
    rp_client *client = rp_client_connect(endpoint, NULL, WAIT, &err);
    rp_reduce *reduce = client ? rp_reduce_join(client, "learners", WAIT, &err) : NULL;
    if (!reduce || write(STDOUT_FILENO, "joined", 6) != 6)
        return 1;
    for (;;)
        pause();
}

static pid_t start_victim(const struct fixture *f)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        execl("/proc/self/exe", "test_params", "--die", f->broker.service, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    char text[6];
    assert_int_equal(read(pipes[0], text, sizeof text), 6);
    close(pipes[0]);
    return pid;
}

/* A member whose process is killed holds the others up no longer than their deadline, and only once. */
CASE(reduce_dying_member)
{
    struct member *m = f->m;
    join(f, 2);
    pid_t victim = start_victim(f);
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    m[0].round_ms = m[1].round_ms = 200;
    add_both(m, 1, 2);
    m[0].round_ms = m[1].round_ms = -1; /* would wait for ever if the dead one still counted */
    add_both(m, 4, 5);
    assert_int_equal(m[0].result.members, 2);
}

/* One that comes too late gets the sum without its part and is in the group again. */
CASE(reduce_late_member)
{
    struct member *m = f->m;
    join(f, 2);
    m[0].round_ms = 100;
    member_start(&m[0], 1);
    member_expect(&m[0], 1, 1, 1);
    member_start(&m[1], 7);
    member_expect(&m[1], 1, 1, 0);
    m[0].round_ms = -1;
    add_both(m, 2, 3);
}

/* A call that times out leaves its vector in the round; the next one takes up the wait. */
CASE(reduce_deadline)
{
    struct member *m = f->m;
    join(f, 2);
    m[0].timeout_ms = 50;
    member_start(&m[0], 1);
    pthread_join(m[0].thread, NULL);
    assert_int_equal(m[0].status, RP_DEADLINE_EXCEEDED);
    assert_true(m[0].values[0] == 1);
    m[0].timeout_ms = WAIT;
    member_start(&m[1], 2);
    member_start(&m[0], 1);
    member_expect(&m[0], 3, 2, 1);
    member_expect(&m[1], 3, 2, 1);
    /* Leaving lets the others go on. */
    member_start(&m[0], 5);
    ok(rp_reduce_leave(&m[1].reduce, WAIT, &err));
    member_expect(&m[0], 5, 1, 1);
}

CASE(reduce_broker_restart)
{
    struct member *m = f->m;
    join(f, 1);
    for (uint32_t i = 0; i < 3; i++) {
        member_start(m, 1);
        member_expect(m, 1, 1, 1);
    }
    broker_process_stop(&f->broker, SIGKILL);
    broker_process_again(&f->broker, NULL);
    member_start(m, 6);
    pthread_join(m->thread, NULL);
    assert_int_equal(m->status, RP_FAILED_PRECONDITION);
    assert_non_null(strstr(m->err.text, "joined again"));
    assert_true(m->values[0] == 6);
    member_start(m, 6);
    member_expect(m, 6, 1, 1);
    assert_int_equal(m->result.round, 1);
}

CASE(reduce_wrong_length)
{
    struct member *m = f->m;
    join(f, 2);
    member_start(&m[0], 1);
    float longer[4] = {1, 2, 3, 4};
    rp_reduced result;
    /* Whoever comes second with another length is refused. */
    rp_status status = rp_reduce_add(m[1].reduce, longer, 4, 200, WAIT, &result, &err);
    if (status == RP_INVALID_ARGUMENT) {
        member_start(&m[1], 2);
        member_expect(&m[0], 3, 2, 1);
        member_expect(&m[1], 3, 2, 1);
    } else {
        pthread_join(m[0].thread, NULL);
        assert_int_equal(m[0].status, RP_INVALID_ARGUMENT);
    }
    assert_int_equal(rp_reduce_add(m[1].reduce, NULL, 0, 200, WAIT, &result, &err), RP_INVALID_ARGUMENT);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--die") == 0)
        return die_main(argv[2]);
    return test_run(NULL, NULL);
}
