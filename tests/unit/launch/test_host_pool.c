/* The list of a run's hosts: names, roles and sizes from the file, hosts of a source that come and go, and a connection to a node
 * agent that fails or ends. */

#include <sys/wait.h>

#include "agent/launch/host/host_pool.h"
#include "proto/base/clock.h"
#include "tests/support/process.h"
#include "tests/support/runtext.h"
#include "tests/support/tempdir.h"

#define TABLES "broker: {tables: [{name: replay}]}\n"

struct world {
    struct run_config config;
    struct host_pool *pool;
};

static void open_world(struct world *self, const char *yaml, struct host_source *source)
{
    *self = (struct world){0};
    assert_int_equal(tempdir_enter(NULL), 0);
    self->config = runtext_read(yaml, NULL);
    const struct host_pool_options options = {.home.config = &self->config,
                                              .home.folder = tempdir,
                                              .home.config_path = "config.yaml",
                                              .home.here = tempdir,
                                              .home.programs = "/nowhere",
                                              .cores = 3,
                                              .memory = 1e9,
                                              .source = source};
    self->pool = host_pool_new(&options, &err);
}

static void close_world(struct world *self)
{
    host_pool_destroy(&self->pool);
    run_config_free(&self->config);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct world, (void), close_world)

CASE(home_alone)
{
    open_world(f, TABLES, NULL);
    assert_non_null(f->pool);
    assert_int_equal(host_pool_count(f->pool), 1);
    assert_null(host_pool_at(f->pool, HOST_POOL_HOME));
    assert_true(host_pool_ready(f->pool, HOST_POOL_HOME));
    for (enum role role = 0; role < ROLES; role++)
        assert_true(host_pool_takes(f->pool, HOST_POOL_HOME, role));
    assert_true(host_pool_cores(f->pool, HOST_POOL_HOME) == 3);
    struct command_context base = {.folder = "x", .programs = "y"}, there;
    host_pool_context(f->pool, HOST_POOL_HOME, &base, &there);
    assert_ptr_equal(there.folder, base.folder);
    assert_false(there.elsewhere);
    assert_int_equal(host_pool_await(f->pool, NS_PER_S, NULL, NULL), 1);
}

CASE(hosts_of_the_file)
{
    open_world(f,
               "hosts:\n"
               "  - {name: 'cpu[09-10]', cores: 32, programs: /opt}\n"
               "  - {command: [sh, -c], roles: [learner], programs: /opt}\n" TABLES,
               NULL);
    assert_non_null(f->pool);
    static const char *const names[] = {"cpu09", "cpu10", "host2"};
    assert_int_equal(host_pool_count(f->pool), 4);
    for (uint32_t i = 0; i < 3; i++) {
        assert_string_equal(host_pool_name(f->pool, i + 1), names[i]);
        assert_int_equal(host_pool_takes(f->pool, i + 1, ROLE_ACTOR), i < 2);
        assert_int_equal(host_pool_takes(f->pool, i + 1, ROLE_LEARNER), i == 2);
        assert_false(host_pool_takes(f->pool, i + 1, ROLE_BROKER));
        assert_false(host_pool_ready(f->pool, i + 1));
        assert_int_equal(host_pool_kind(f->pool, i + 1), i + 1); /* nothing is known of them yet */
    }
    assert_true(host_pool_cores(f->pool, 1) == 32 && host_pool_cores(f->pool, 3) == 0);
    assert_true(host_pool_memory(f->pool, HOST_POOL_HOME) == 1e9 && host_pool_memory(f->pool, 3) == 0);
    assert_false(host_pool_takes(f->pool, HOST_POOL_HOME, ROLE_ACTOR));
    assert_false(host_pool_takes(f->pool, HOST_POOL_HOME, ROLE_LEARNER));
    assert_true(host_pool_takes(f->pool, HOST_POOL_HOME, ROLE_EVALUATOR));
    assert_false(host_pool_has(f->pool, ROLE_ACTOR));
}

static bool stop_when_lost(void *context)
{
    const struct world *world = context;
    return host_info(host_pool_at(world->pool, 1))->state == HOST_LOST;
}

/* A carrier that ends at once makes the host lost, with what it printed as the reason; then the pool tries again. */
CASE(a_carrier_that_fails)
{
    open_world(f, "hosts: [{command: [sh, -c, 'echo no such box >&2; exit 3', sh], programs: /opt}]\n" TABLES, NULL);
    int64_t now_ns = clock_ns();
    assert_int_equal(host_pool_await(f->pool, WAIT * NS_PER_MS, stop_when_lost, f), 1);
    const struct host *host = host_pool_at(f->pool, 1);
    assert_int_equal(host_info(host)->state, HOST_LOST);
    assert_non_null(strstr(host_info(host)->reason, "no such box"));
    host_pool_tend(f->pool, now_ns);
    assert_int_equal(host_info(host)->state, HOST_LOST); /* the pause is not over */
    host_pool_tend(f->pool, clock_ns() + 2 * NS_PER_S);
    assert_int_equal(host_info(host)->state, HOST_CONNECTING);
}

CASE(files_to_send)
{
    open_world(f, "hosts: [{name: a, programs: /opt}]\nlaunch: {send: [none.py]}\n" TABLES, NULL);
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
    open_world(f, "launch: {engine: slurm}\n" TABLES, &source.base);
    assert_int_equal(host_pool_appear(f->pool, "task-0", first, 8, 0, &err), RP_OK);
    assert_int_equal(host_pool_appear(f->pool, "task-1", first, 8, 0, &err), RP_OK);
    assert_int_equal(host_pool_count(f->pool), 3);
    assert_true(host_pool_takes(f->pool, 1, ROLE_ACTOR) && !host_pool_takes(f->pool, 1, ROLE_LEARNER));
    host_pool_tend(f->pool, clock_ns());
    assert_int_equal(source.looks, 1);
    assert_int_equal(host_info(host_pool_at(f->pool, 1))->state, HOST_CONNECTING);
    host_pool_vanish(f->pool, "task-0");
    host_pool_tend(f->pool, clock_ns());
    assert_int_equal(host_info(host_pool_at(f->pool, 1))->state, HOST_ABSENT);
    /* It comes back elsewhere: the index and the host are the same, the carrier is another. */
    assert_int_equal(host_pool_appear(f->pool, "task-0", second, 4, 0, &err), RP_OK);
    assert_string_equal(host_pool_name(f->pool, 1), "task-0");
    assert_int_equal(host_pool_count(f->pool), 3);
    assert_false(host_set_carrier(host_pool_at(f->pool, 1), second)); /* it has this one */
    assert_true(host_pool_cores(f->pool, 1) == 4);
    host_pool_want(f->pool, 24);
    assert_int_equal(source.wanted, 24);
}

struct carrier {
    struct host_pool *pool;
    char path[128]; /* of the file with its process id */
    int pid;
};

static int is_started(void *ctx)
{
    struct carrier *carrier = ctx;
    FILE *file = fopen(carrier->path, "r");
    bool read = file && fscanf(file, "%d\n", &carrier->pid) == 1;
    if (file)
        fclose(file);
    return read;
}

static int is_reaped(void *ctx)
{
    const struct carrier *carrier = ctx;
    siginfo_t info;
    host_pool_tend(carrier->pool, clock_ns() + 5 * NS_PER_S);
    return waitid(P_PID, (id_t)carrier->pid, &info, WEXITED | WNOHANG | WNOWAIT) == -1;
}

/* The carrier of a connection that was replaced ends long before the pool does. */
CASE(a_replaced_carrier_is_reaped)
{
    static const char *const second[] = {"sleep", "101", NULL};
    open_world(f, "launch: {engine: slurm}\n" TABLES, NULL);
    struct carrier carrier = {.pool = f->pool};
    snprintf(carrier.path, sizeof carrier.path, "%s/pid", tempdir);
    const char *const first[] = {"sh", "-c", "echo $$ > \"$0\"; exec sleep 100", carrier.path, NULL};
    assert_int_equal(host_pool_appear(f->pool, "task-0", first, 8, 0, &err), RP_OK);
    host_pool_tend(f->pool, clock_ns());
    assert_true(process_await(is_started, &carrier));
    assert_int_equal(host_pool_appear(f->pool, "task-0", second, 8, 0, &err), RP_OK);
    host_pool_vanish(f->pool, "task-0");
    assert_true(process_await(is_reaped, &carrier));
    unlink(carrier.path);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as the launcher: a carrier may end while it is written to */
    return test_run(NULL, NULL);
}
