/* Where processes go, and what hosts do together. */

#include "tests/support/curves.h"
#include "tests/support/naive.h"

#define MOST_HOSTS 8u
#define ROUNDS 100

struct counts {
    uint32_t actors[MOST_HOSTS], learners[MOST_HOSTS];
};

static struct counts place(const struct plan_input *input, uint32_t actors, uint32_t learners)
{
    struct counts counts;
    memset(&counts, 0xff, sizeof counts);
    plan_place(input, actors, learners, counts.actors, counts.learners);
    return counts;
}

static void check_actors(const struct counts *counts, uint32_t n, const uint32_t *wanted)
{
    for (uint32_t i = 0; i < n; i++)
        if (counts->actors[i] != wanted[i])
            fail_msg("host %u has %u actors, not %u", i, counts->actors[i], wanted[i]);
}

static double real(struct rng *rng, double least, double most)
{
    return least + (most - least) * rng_unit(rng);
}

static void make_hosts(struct rng *rng, struct plan_input *input, struct plan_host *hosts, bool measured)
{
    uint32_t n = 1 + (uint32_t)rng_below(rng, MOST_HOSTS);
    *input = (struct plan_input){.hosts = hosts, .n_hosts = n, .spi = 1};
    memset(hosts, 0, MOST_HOSTS * sizeof *hosts);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t like = i == 0 || rng_below(rng, 2) ? i : (uint32_t)rng_below(rng, i);
        hosts[i] = (struct plan_host){.cores = like == i ? (double)(1 + rng_below(rng, 8)) : hosts[like].cores};
        if (like == i)
            snprintf(hosts[i].kind, sizeof hosts[i].kind, "%u", i);
        else
            memcpy(hosts[i].kind, hosts[like].kind, sizeof hosts[i].kind);
        hosts[i].actors = rng_below(rng, 4) > 0;
        hosts[i].learners = rng_below(rng, 2) > 0;
        if (measured && like == i)
            hosts[i].actor = unit_of(real(rng, 50, 500), real(rng, 0.1, 1.5), 0, 10 * MIB);
    }
}

/* ---- properties ---- */

static bool any_takes(const struct plan_input *input, bool actors)
{
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (actors ? input->hosts[i].actors : input->hosts[i].learners)
            return true;
    return false;
}

static void check_counts(const struct plan_input *input, const struct counts *counts, uint32_t actors,
                         uint32_t learners)
{
    uint32_t sum_a = 0, sum_l = 0;
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        const struct plan_host *host = &input->hosts[i];
        sum_a += counts->actors[i];
        sum_l += counts->learners[i];
        if (!host->actors && counts->actors[i] > 0)
            assert_true(i == 0 && !any_takes(input, true)); /* home takes what nobody takes */
        if (!host->learners && counts->learners[i] > 0)
            assert_true(i == 0 && !any_takes(input, false));
    }
    assert_int_equal(sum_a, actors);
    assert_int_equal(sum_l, learners);
}

TEST(counts_are_right_and_an_actor_more_moves_none)
{
    struct rng rng = naive_rng(__func__);
    for (int round = 0; round < ROUNDS; round++) {
        struct plan_host hosts[MOST_HOSTS];
        struct plan_input input;
        make_hosts(&rng, &input, hosts, rng_below(&rng, 2) > 0);
        uint32_t learners = (uint32_t)rng_below(&rng, 6);
        struct counts before = place(&input, 0, learners);
        check_counts(&input, &before, 0, learners);
        for (uint32_t actors = 1; actors < 40; actors++) {
            struct counts now = place(&input, actors, learners);
            uint32_t moved = 0;
            check_counts(&input, &now, actors, learners);
            for (uint32_t i = 0; i < input.n_hosts; i++) {
                assert_int_equal(now.learners[i], before.learners[i]);
                assert_in_range(now.actors[i], before.actors[i], before.actors[i] + 1);
                moved += now.actors[i] - before.actors[i];
            }
            assert_int_equal(moved, 1);
            before = now;
        }
    }
}

/* Cores that are taken by the rule without measurements: one for each process and one for the broker. */
static double free_cores(const struct plan_input *input, const struct counts *counts, uint32_t host)
{
    return input->hosts[host].cores - counts->actors[host] - counts->learners[host] - (host == 0);
}

TEST(cores_are_respected_while_some_are_free)
{
    struct rng rng = naive_rng(__func__);
    for (int round = 0; round < ROUNDS; round++) {
        struct plan_host hosts[MOST_HOSTS];
        struct plan_input input;
        make_hosts(&rng, &input, hosts, false);
        uint32_t learners = (uint32_t)rng_below(&rng, 4);
        for (uint32_t actors = 1; actors < 60; actors++) {
            struct counts before = place(&input, actors - 1, learners), now = place(&input, actors, learners);
            double most = 0, chosen = 0;
            for (uint32_t i = 0; i < input.n_hosts; i++) {
                if (input.hosts[i].actors)
                    most = fmax(most, free_cores(&input, &before, i));
                if (now.actors[i] > before.actors[i])
                    chosen = free_cores(&input, &before, i);
            }
            if (most > 0)
                assert_true(chosen == most);
        }
    }
}

/* What the actors of a host do within its cores. */
static double rate_at(const struct plan_input *input, uint32_t host, uint32_t actors)
{
    struct plan_unit actor = plan_actor_on(input, host);
    return actor.rate * fmin(actors, input->hosts[host].cores / actor.cpu);
}

/* The best sum of all placements, by trying all of them. */
static double best_sum(const struct plan_input *input, uint32_t host, uint32_t actors)
{
    if (host == input->n_hosts)
        return actors == 0 ? 0 : -INFINITY;
    double best = -INFINITY;
    for (uint32_t n = 0; n <= actors && (n == 0 || input->hosts[host].actors); n++)
        best = fmax(best, rate_at(input, host, n) + best_sum(input, host + 1, actors - n));
    return best;
}

TEST(the_sum_is_the_best_of_all_placements)
{
    struct rng rng = naive_rng(__func__);
    for (int round = 0; round < ROUNDS; round++) {
        struct plan_host hosts[MOST_HOSTS];
        struct plan_input input;
        make_hosts(&rng, &input, hosts, true);
        input.n_hosts = input.n_hosts > 3 ? 3 : input.n_hosts;
        if (!any_takes(&input, true))
            continue;
        for (uint32_t actors = 1; actors <= 20; actors++) {
            struct counts counts = place(&input, actors, 0);
            double best = best_sum(&input, 0, actors), sum = 0;
            for (uint32_t i = 0; i < input.n_hosts; i++)
                sum += rate_at(&input, i, counts.actors[i]);
            if (!(fabs(sum - best) <= 1e-9 * best))
                fail_msg("%u actors do %g, and the best placement %g", actors, sum, best);
        }
    }
}

/* ---- known answers ---- */

TEST(actors_go_where_they_add_most)
{
    struct plan_host hosts[3] = {{.kind = "0", .cores = 4, .actors = true},
                                 {.kind = "1", .cores = 4, .actors = true},
                                 {.kind = "1", .cores = 4, .actors = true}};
    struct plan_input input = {.hosts = hosts, .n_hosts = 3};
    hosts[0].actor = unit_of(100, 1, 0, 10 * MIB);
    hosts[1].actor = unit_of(200, 1, 0, 10 * MIB);
    struct counts counts = place(&input, 4, 0);
    check_actors(&counts, 3, (uint32_t[]){0, 2, 2}); /* the fast kind, evenly */
    counts = place(&input, 10, 0);
    check_actors(&counts, 3, (uint32_t[]){2, 4, 4});
}

TEST(learners_go_to_their_own_host_and_home_is_the_first)
{
    struct plan_host hosts[3] = {{.kind = "0", .cores = 4, .actors = true, .learners = true},
                                 {.kind = "0", .cores = 4, .actors = true},
                                 {.kind = "2", .cores = 2, .learners = true}};
    struct plan_input input = {.hosts = hosts, .n_hosts = 3};
    struct counts counts = place(&input, 5, 3);
    assert_int_equal(counts.learners[2], 2); /* two cores there */
    assert_int_equal(counts.learners[0], 1);
    assert_int_equal(counts.learners[1], 0);
    check_actors(&counts, 3, (uint32_t[]){2, 3, 0}); /* home has the broker and a learner */
    hosts[0].actors = hosts[1].actors = false;
    counts = place(&input, 5, 3);
    check_actors(&counts, 3, (uint32_t[]){5, 0, 0});
    hosts[0].actors = hosts[1].actors = hosts[1].learners = true;
    input.n_hosts = 2;
    assert_int_equal(place(&input, 1, 1).learners[0], 1); /* nothing was measured, and there is no ratio */
}

/* Actors beside a learner: half of a core is free at home, and another host is slower. */
TEST(an_actor_beside_a_learner_adds_what_its_cores_allow)
{
    struct plan_host hosts[2] = {{.kind = "0", .cores = 2, .actors = true, .learners = true},
                                 {.kind = "1", .cores = 2, .actors = true}};
    struct plan_input input = {.hosts = hosts, .n_hosts = 2, .learner = unit_of(1000, 1.5, 0, 10 * MIB)};
    hosts[0].actor = unit_of(100, 1, 0, 10 * MIB);
    hosts[1].actor = unit_of(60, 1, 0, 10 * MIB);
    struct counts counts = place(&input, 2, 1);
    check_actors(&counts, 2, (uint32_t[]){0, 2});
    counts = place(&input, 3, 1);
    check_actors(&counts, 2, (uint32_t[]){1, 2});
    counts = place(&input, 2, 0);
    check_actors(&counts, 2, (uint32_t[]){2, 0});
}

TEST(memory_keeps_actors_away)
{
    struct plan_host hosts[2] = {{.kind = "0", .cores = 8, .memory = 130 * MIB, .actors = true},
                                 {.kind = "1", .cores = 8, .memory = GIB, .actors = true}};
    struct plan_input input = {.hosts = hosts, .n_hosts = 2, .broker_memory = 100 * MIB};
    hosts[0].actor = unit_of(100, 1, 0, 10 * MIB);
    hosts[1].actor = unit_of(50, 1, 0, 10 * MIB);
    struct counts counts = place(&input, 8, 0);
    check_actors(&counts, 2, (uint32_t[]){3, 5});
}

/* A machine that came after the measurements is like the most similar one. */
TEST(a_host_that_was_not_measured_is_like_another)
{
    struct plan_host hosts[4] = {{.kind = "0", .cores = 2},
                                 {.kind = "1", .cores = 4, .actors = true},
                                 {.kind = "2", .cores = 32, .actors = true},
                                 {.kind = "3", .cores = 5, .actors = true}};
    struct plan_input input = {.hosts = hosts, .n_hosts = 4};
    hosts[1].actor = unit_of(100, 1, 0, 10 * MIB);
    hosts[2].actor = unit_of(10, 1, 0, 10 * MIB);
    struct counts counts = place(&input, 9, 0);
    check_actors(&counts, 4, (uint32_t[]){0, 4, 0, 5});
}
