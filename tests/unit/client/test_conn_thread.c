/* The I/O thread of a client and its wake-ups: nothing that was left for it may be slept over. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <time.h>

#include "agent/client/conn/client.h"
#include "agent/client/conn/conn.c"
#include "proto/base/clock.h"
#include "replay/log.h"
#include "tests/support/fakepeer.h"

struct fixture {
    struct fakepeer peer;
    rp_client *client;
    struct conn *conn;
    int flags; /* of the wake-up pipe */
};

static void set_up(struct fixture *f)
{
    fakepeer_start(&f->peer);
    f->client = must(rp_client_connect(f->peer.endpoint, NULL, WAIT, &err));
    f->conn = client_conn(f->client);
}

static void tear_down(struct fixture *f)
{
    rp_client_destroy(&f->client);
    fakepeer_stop(&f->peer);
}

FIXTURE(struct fixture, set_up, tear_down)

static bool is_drained(const struct conn *conn)
{
    int bytes = 0;
    assert_int_equal(ioctl(conn->wake_read, FIONREAD, &bytes), 0);
    return bytes == 0;
}

/* Wakes the thread and holds it while it takes the wake-up: it reads until its pipe is empty, and a pipe that blocks keeps
 * it there. */
static void hold(struct fixture *f)
{
    f->flags = fcntl(f->conn->wake_read, F_GETFL);
    assert_true(f->flags & O_NONBLOCK);
    assert_int_equal(fcntl(f->conn->wake_read, F_SETFL, f->flags & ~O_NONBLOCK), 0);
    conn_wake(f->conn);
    wait_until(is_drained(f->conn));
}

static void let_go(struct fixture *f)
{
    assert_int_equal(fcntl(f->conn->wake_read, F_SETFL, f->flags), 0);
    assert_int_equal(write(f->conn->wake_write, "", 1), 1);
}

CASE(stop_while_waking)
{
    struct timespec until;
    hold(f);
    conn_stop(f->conn);
    let_go(f);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT / 1000;
    int rc = pthread_timedjoin_np(f->conn->thread, NULL, &until);
    f->conn->started = rc != 0; /* if it still runs, tear_down wakes it once more */
    assert_int_equal(rc, 0);
}

static void on_answer(void *ctx, struct conn_reply *reply)
{
    rp_status status = reply->status;
    conn_reply_destroy(&reply);
    atomic_store((atomic_int *)ctx, (int)status);
}

CASE(cancel_while_waking)
{
    atomic_int answer = -1;
    fakepeer_set(&f->peer, &f->peer.deaf, true);
    hold(f);
    struct conn_message why = {.field = REPLAY__REQUEST__BODY_WHY, .timeout_ms = -1};
    uint64_t id = conn_send(f->conn, &why, on_answer, &answer);
    conn_cancel(f->conn, id);
    let_go(f);
    wait_until(atomic_load(&answer) != -1);
    assert_int_equal(atomic_load(&answer), RP_CANCELLED);
}

/* Without any hold: the end of a client right after its last request, at all distances between the two. */
CASE(ends_at_any_time)
{
    for (long spins = 0; spins < 200; spins++) {
        rp_client *client = must(rp_client_connect(f->peer.endpoint, NULL, WAIT, &err));
        conn_cancel(client_conn(client), UINT64_MAX);
        for (int64_t until = clock_ns() + spins * 500; clock_ns() < until;)
            ;
        rp_client_destroy(&client);
    }
}

static void count_warnings(void *ctx, int32_t level, const char *line)
{
    if (level == RP_LOG_WARN && strstr(line, " C0106 "))
        atomic_fetch_add((atomic_int *)ctx, 1);
}

/* The log says it after five seconds, and again after pauses that double up to ten minutes. */
TEST(says_that_nobody_answers)
{
    static const int64_t seconds[] = {5, 15, 35, 75, 155, 315, 635, 1235, 1835};
    struct conn conn = {.link = LINK_DOWN, .link_time = INT64_MAX, .endpoint = "tcp://127.0.0.1:1"};
    atomic_int lines = 0;
    rp_log_set(count_warnings, &lines, RP_LOG_WARN);
    pthread_mutex_init(&conn.mutex, NULL);
    link_expect(&conn, 0);
    for (int i = 0; i < (int)(sizeof seconds / sizeof seconds[0]); i++) {
        link_step(&conn, seconds[i] * NS_PER_S - 1);
        assert_int_equal(atomic_load(&lines), i);
        link_step(&conn, seconds[i] * NS_PER_S);
        assert_int_equal(atomic_load(&lines), i + 1);
    }
    conn.link = LINK_UP;
    link_step(&conn, 10000 * NS_PER_S);
    assert_int_equal(atomic_load(&lines), sizeof seconds / sizeof seconds[0]);
    rp_log_set(NULL, NULL, RP_LOG_OFF);
    pthread_mutex_destroy(&conn.mutex);
}

static void *stand_in(void *hello)
{
    for (int i = 0; i < 2000; i++) {
        struct conn_hello *same = hello_ref(hello);
        assert_ptr_equal(same, hello);
        conn_hello_unref(&same);
    }
    return NULL;
}

/* Connections to several shards stand in for one another; a sanitizer sees what they share without care. */
TEST(stand_ins_of_one_hello)
{
    struct conn_hello hello = {.refs = 1};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, stand_in, &hello), 0);
    stand_in(&hello);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(hello.refs, 1);
}
