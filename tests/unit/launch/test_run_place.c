/* Which host each process of a run is on: numbers for each host, and as few moves as possible when hosts come and go. */

#include "tests/support/runbed.h"

#define TABLES "broker: {tables: [{name: replay}]}\n"

/* Opens a run with hosts h1, h2, ... of a source, which never connects to any. */
static void open_run(struct runbed *self, const char *yaml, const double *cores, uint32_t n)
{
    static const char *const carrier[] = {"true", NULL};
    runbed_open(self, yaml, NULL);
    for (uint32_t i = 0; i < n; i++)
        ok(host_pool_appear(self->pool, textf("h%u", i + 1), carrier, cores[i], 0, &err));
    run_hosts_open(&self->run);
    for (uint32_t i = 1; i <= n; i++)
        self->run.hosts.sites[i].in = true;
}

FIXTURE(struct runbed, (void), runbed_close)

static void add(struct runbed *self, enum role role, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        run_place(&self->run, runbed_add(self, role, i));
}

/* Number of members of a role on a host. */
static uint32_t count_at(const struct runbed *self, enum role role, uint32_t host)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->run.n_members; i++)
        n += self->members[i].role == role && self->members[i].host == host;
    return n;
}

CASE(alone)
{
    open_run(f, "actors: {count: 3}\n" TABLES, NULL, 0);
    add(f, ROLE_ACTOR, 3);
    add(f, ROLE_LEARNER, 1);
    assert_int_equal(count_at(f, ROLE_ACTOR, HOST_POOL_HOME), 3);
    assert_int_equal(count_at(f, ROLE_LEARNER, HOST_POOL_HOME), 1);
}

/* Home does not take the actors of a cluster, and each host gets what it has cores for. */
#define SLURM "launch: {engine: slurm}\n"

CASE(numbers)
{
    open_run(f, "actors: {count: 6}\n" SLURM TABLES, (double[]){2, 4}, 2);
    add(f, ROLE_BROKER, 1);
    add(f, ROLE_LEARNER, 1);
    add(f, ROLE_ACTOR, 6);
    add(f, ROLE_EVALUATOR, 1);
    assert_int_equal(count_at(f, ROLE_BROKER, HOST_POOL_HOME), 1);
    assert_int_equal(count_at(f, ROLE_EVALUATOR, HOST_POOL_HOME), 1);
    assert_int_equal(count_at(f, ROLE_LEARNER, HOST_POOL_HOME), 1);
    assert_int_equal(count_at(f, ROLE_ACTOR, HOST_POOL_HOME), 0);
    assert_int_equal(count_at(f, ROLE_ACTOR, 1), 2);
    assert_int_equal(count_at(f, ROLE_ACTOR, 2), 4);
}

/* Actors for which no host has a core wait, and a host that comes takes them; nobody else moves. */
CASE(a_host_comes)
{
    uint32_t before[6];
    open_run(f, "actors: {count: 6}\n" SLURM TABLES, (double[]){2, 2, 2}, 3);
    f->run.hosts.sites[3].in = false;
    add(f, ROLE_ACTOR, 6);
    assert_int_equal(count_at(f, ROLE_ACTOR, RUN_NO_HOST), 2);
    for (uint32_t i = 0; i < 6; i++)
        before[i] = f->members[i].host;
    f->run.hosts.sites[3].in = true;
    run_place_again(&f->run, 1);
    assert_int_equal(count_at(f, ROLE_ACTOR, 3), 2);
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(f->members[i].host == (before[i] == RUN_NO_HOST ? 3 : before[i]));
        assert_true(f->members[i].waits);
    }
    f->run.hosts.sites[1].in = false; /* and one goes */
    run_place_again(&f->run, 1);
    assert_int_equal(count_at(f, ROLE_ACTOR, RUN_NO_HOST), 2);
    assert_int_equal(count_at(f, ROLE_ACTOR, 1), 0);
}

/* One actor more moves no other. */
CASE(growing)
{
    uint32_t before[RUNBED_MEMBERS];
    open_run(f, "actors: {count: 1}\n" SLURM TABLES, (double[]){8, 3, 5}, 3);
    for (uint32_t n = 1; n <= 16; n++) {
        f->run.actors_wanted = n;
        f->run.hosts.counted = false;
        for (uint32_t i = 0; i < n - 1; i++)
            before[i] = f->members[i].host;
        add(f, ROLE_ACTOR, 1);
        run_place_again(&f->run, 1);
        for (uint32_t i = 0; i < n - 1; i++)
            assert_int_equal(f->members[i].host, before[i]);
        assert_int_not_equal(f->members[n - 1].host, RUN_NO_HOST);
    }
    assert_int_equal(count_at(f, ROLE_ACTOR, 1), 8);
    assert_int_equal(count_at(f, ROLE_ACTOR, 2), 3);
    assert_int_equal(count_at(f, ROLE_ACTOR, 3), 5);
}

/* Without a host that takes actors, none is placed anywhere. */
CASE(nowhere)
{
    open_run(f, "actors: {count: 2}\n" SLURM TABLES, (double[]){2}, 1);
    f->run.hosts.sites[1].in = false;
    add(f, ROLE_ACTOR, 2);
    assert_int_equal(count_at(f, ROLE_ACTOR, RUN_NO_HOST), 2);
}

/* Resizing counts the machines that take actors and are there; a scheduler gives machines to more actors. */
TEST(room_for_actors)
{
    static const char two[] =
        "hosts: [{name: local, roles: [actor], cores: 3}, {name: far, command: [sh, -c], programs: /nowhere}]\n" TABLES;
    static const struct {
        const char *yaml;
        double cpu, cores;
    } cases[] = {{TABLES, 9, 8}, {two, 0.75, 3}, {"launch: {engine: slurm}\n" TABLES, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct runbed bed;
        double cpu = 9, cores = 8;
        open_run(&bed, cases[i].yaml, (double[]){4}, i == 2);
        add(&bed, ROLE_ACTOR, 2);
        for (uint32_t k = 0; k < 2; k++) {
            bed.members[k].process.running = k == 0;
            bed.members[k].at = HOST_POOL_HOME;
            bed.members[k].cpu = 0.75;
        }
        run_actor_machines(&bed.run, &cpu, &cores);
        assert_true(cpu == cases[i].cpu && cores == cases[i].cores);
        bed.members[0].process.running = false;
        runbed_close(&bed);
    }
}
