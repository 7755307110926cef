/* The list of a run's hosts: names, roles and sizes from the file, hosts of a source that come and go, and a connection to a node
 * agent that fails or ends. */

#include <sys/wait.h>

#include "agent/launch/host/host_pool.h"
#include "proto/base/clock.h"
#include "tests/support/runbed.h"

#define TABLES "broker: {tables: [{name: replay}]}\n"

FIXTURE(struct runbed, (void), runbed_close)

CASE(home_alone)
{
    runbed_open(f, TABLES, NULL);
    assert_non_null(f->pool);
    assert_int_equal(host_pool_count(f->pool), 1);
    assert_null(host_pool_at(f->pool, HOST_POOL_HOME)->host);
    assert_true(host_pool_at(f->pool, HOST_POOL_HOME)->ready);
    for (enum role role = 0; role < ROLES; role++)
        assert_true(host_pool_at(f->pool, HOST_POOL_HOME)->takes[role]);
    assert_true(host_pool_at(f->pool, HOST_POOL_HOME)->cores == 4);
    struct command_context base = {.folder = "x", .programs = "y"}, there;
    host_pool_context(f->pool, HOST_POOL_HOME, &base, &there);
    assert_ptr_equal(there.folder, base.folder);
    assert_false(there.elsewhere);
    assert_int_equal(host_pool_await(f->pool, NS_PER_S, NULL, NULL), 1);
}

CASE(hosts_of_the_file)
{
    runbed_open(f,
                "hosts:\n"
                "  - {name: 'cpu[09-10]', cores: 32, programs: /opt}\n"
                "  - {command: [sh, -c], roles: [learner], programs: /opt}\n" TABLES,
                NULL);
    assert_non_null(f->pool);
    static const char *const names[] = {"cpu09", "cpu10", "host2"};
    assert_int_equal(host_pool_count(f->pool), 4);
    for (uint32_t i = 0; i < 3; i++) {
        assert_string_equal(host_pool_at(f->pool, i + 1)->info->name, names[i]);
        assert_int_equal(host_pool_at(f->pool, i + 1)->takes[ROLE_ACTOR], i < 2);
        assert_int_equal(host_pool_at(f->pool, i + 1)->takes[ROLE_LEARNER], i == 2);
        assert_false(host_pool_at(f->pool, i + 1)->takes[ROLE_BROKER]);
        assert_false(host_pool_at(f->pool, i + 1)->ready);
        char kind[64]; /* nothing is known of them yet */
        assert_has(host_pool_kind(f->pool, i + 1, kind, sizeof kind), names[i]);
    }
    assert_true(host_pool_at(f->pool, 1)->cores == 32 && host_pool_at(f->pool, 3)->cores == 0);
    assert_true(host_pool_at(f->pool, HOST_POOL_HOME)->memory == 1e9 && host_pool_at(f->pool, 3)->memory == 0);
    assert_false(host_pool_at(f->pool, HOST_POOL_HOME)->takes[ROLE_ACTOR]);
    assert_false(host_pool_at(f->pool, HOST_POOL_HOME)->takes[ROLE_LEARNER]);
    assert_true(host_pool_at(f->pool, HOST_POOL_HOME)->takes[ROLE_EVALUATOR]);
    assert_false(host_pool_has(f->pool, ROLE_ACTOR));
}

static bool stop_when_lost(void *context)
{
    const struct runbed *bed = context;
    return host_pool_at(bed->pool, 1)->info->state == HOST_LOST;
}

/* A carrier that ends at once makes the host lost, with what it printed as the reason; then the pool tries again. */
CASE(a_carrier_that_fails)
{
    runbed_open(f, "hosts: [{command: [sh, -c, 'echo no such box >&2; exit 3', sh], programs: /opt}]\n" TABLES, NULL);
    int64_t now_ns = clock_ns();
    assert_int_equal(host_pool_await(f->pool, WAIT * NS_PER_MS, stop_when_lost, f), 1);
    const struct host *host = host_pool_at(f->pool, 1)->host;
    assert_int_equal(host_info(host)->state, HOST_LOST);
    assert_non_null(strstr(host_info(host)->reason, "no such box"));
    host_pool_tend(f->pool, now_ns);
    assert_int_equal(host_info(host)->state, HOST_LOST); /* the pause is not over */
    host_pool_tend(f->pool, clock_ns() + 2 * NS_PER_S);
    assert_int_equal(host_info(host)->state, HOST_CONNECTING);
}

CASE(files_to_send)
{
    runbed_open(f, "hosts: [{name: a, programs: /opt}]\nlaunch: {send: [none.py]}\n" TABLES, NULL);
    assert_null(f->pool);
    assert_int_equal(err.status, RP_NOT_FOUND);
}

/* ---- sources ---- */

struct source {
    struct host_source base;
    uint32_t looks, wanted;
};

static void look(struct host_source *self, struct host_pool *pool, int64_t now_ns)
{
    (void)pool, (void)now_ns;
    ((struct source *)self)->looks++;
}

static void want(struct host_source *self, uint32_t actors)
{
    ((struct source *)self)->wanted = actors;
}

CASE(a_source)
{
    static const char *const first[] = {"sleep", "100", NULL}, *const second[] = {"sleep", "101", NULL};
    struct source source = {.base = {.look = look, .want = want}};
    runbed_open(f, "launch: {engine: slurm}\n" TABLES, &source.base);
    assert_int_equal(host_pool_appear(f->pool, "task-0", first, 8, 0, &err), RP_OK);
    assert_int_equal(host_pool_appear(f->pool, "task-1", first, 8, 0, &err), RP_OK);
    assert_int_equal(host_pool_count(f->pool), 3);
    assert_true(host_pool_at(f->pool, 1)->takes[ROLE_ACTOR] && !host_pool_at(f->pool, 1)->takes[ROLE_LEARNER]);
    host_pool_tend(f->pool, clock_ns());
    assert_int_equal(source.looks, 1);
    assert_int_equal(host_pool_at(f->pool, 1)->info->state, HOST_CONNECTING);
    host_pool_vanish(f->pool, "task-0");
    host_pool_tend(f->pool, clock_ns());
    assert_int_equal(host_pool_at(f->pool, 1)->info->state, HOST_ABSENT);
    /* It comes back elsewhere: the index and the host are the same, the carrier is another. */
    assert_int_equal(host_pool_appear(f->pool, "task-0", second, 4, 0, &err), RP_OK);
    assert_string_equal(host_pool_at(f->pool, 1)->info->name, "task-0");
    assert_int_equal(host_pool_count(f->pool), 3);
    assert_false(host_set_carrier(host_pool_at(f->pool, 1)->host, second)); /* it has this one */
    assert_true(host_pool_at(f->pool, 1)->cores == 4);
    host_pool_want(f->pool, 24);
    assert_int_equal(source.wanted, 24);
}

static bool is_reaped(struct host_pool *pool, int pid)
{
    siginfo_t info;
    host_pool_tend(pool, clock_ns() + 5 * NS_PER_S);
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == -1;
}

/* The carrier of a connection that was replaced ends long before the pool does. */
CASE(a_replaced_carrier_is_reaped)
{
    static const char *const second[] = {"sleep", "101", NULL};
    runbed_open(f, "launch: {engine: slurm}\n" TABLES, NULL);
    int pid = 0;
    const char *const first[] = {"sh", "-c", "echo $$ > \"$0\"; exec sleep 100", tempdir_at("pid"), NULL};
    assert_int_equal(host_pool_appear(f->pool, "task-0", first, 8, 0, &err), RP_OK);
    host_pool_tend(f->pool, clock_ns());
    wait_until(sscanf(file_text(tempdir_at("pid")), "%d\n", &pid) == 1);
    assert_int_equal(host_pool_appear(f->pool, "task-0", second, 8, 0, &err), RP_OK);
    host_pool_vanish(f->pool, "task-0");
    wait_until(is_reaped(f->pool, pid));
}
