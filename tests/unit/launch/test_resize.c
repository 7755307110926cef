

#include "agent/launch/resize.h"
#include "tests/support/naive.h"

#define SECOND INT64_C(1000000000)

static const struct resize_limits usual = {.least = 1,
                                           .most = 64,
                                           .after_ns = 20 * SECOND,
                                           .margin = 0.2,
                                           .predicted_actor_idle = 0,
                                           .predicted_learner_idle = 0.05,
                                           .cores = 2};

struct feed {
    struct resize resize;
    struct resize_limits limits;
    int64_t now_ns;
    char reason[200];
};

static struct feed make(void)
{
    return (struct feed){.limits = usual, .now_ns = 5 * SECOND};
}

/* The same observation every second for `seconds`; gives the number at the first change, or the last one. */
static uint32_t feed(struct feed *self, uint32_t actors, double actor_idle, double learner_idle, double cpu,
                     int seconds)
{
    struct resize_seen seen = {actors, actor_idle, learner_idle, cpu, true};
    uint32_t wanted = actors;
    for (int i = 0; i < seconds && wanted == actors; i++) {
        self->now_ns += SECOND;
        wanted = resize_decide(&self->resize, &self->limits, &seen, self->now_ns, self->reason, sizeof self->reason);
    }
    return wanted;
}

TEST(reasons)
{
    struct feed it = make();
    assert_int_equal(feed(&it, 4, 0, 0.45, 1, 20), 4);
    assert_string_equal(it.reason, "");
    assert_int_equal(feed(&it, 4, 0, 0.45, 1, 1), 7);
    assert_string_equal(it.reason, "learners waited 45% of the last 20 s (plan: 5%) for items: 4 -> 7 actors");
    it = make();
    assert_int_equal(feed(&it, 8, 0.4, 0, 1, 21), 5); /* 8 * 0.6 * 0.95 = 4.6 */
    assert_string_equal(it.reason, "actors waited 40% of the last 20 s (plan: 0%) for learners: 8 -> 5 actors");
}

/* What is seen for some seconds, and the number of actors that should run then. A row with limits begins anew with them. */
TEST(decisions)
{
    static const struct {
        struct {
            uint32_t least, most;
            double predicted_actor_idle;
        } limits; /* without `most`: the row goes on from the one before */
        uint32_t actors;
        double actor_idle, learner_idle, cpu;
        int seconds;
        uint32_t wanted;
    } rows[] = {
        /* What the plan predicts is left alone. */
        {{1, 64, 0}, 4, 0.15, 0.2, 1, 1000, 4},
        {{1, 64, 0.5}, 4, 0.65, 0, 1, 1000, 4},
        {{1, 64, NAN}, 4, 0.65, 0, 1, 1000, 2},
        /* Both wait: for something that another actor would not change. */
        {{1, 64, 0}, 4, 0.6, 0.6, 1, 1000, 4},
        /* One step, not a doubling every 20 s: 3 * 0.95 / 0.1 = 28.5, with cores for it; 20 of them wait 0.9 of the time, and two
         * would do. */
        {{1, 64, 0}, 3, 0, 0.9, 0.1, 21, 29},
        {{0}, 20, 0.9, 0, 0.1, 21, 2},
        /* Twice the work is all that the cores carry: 0.95 * 2 / 1. A share of nothing is no measure. */
        {{0}, 10, 0, 0.9, 1, 21, 19},
        {{0}, 1, 0, 1, 0.01, 21, 19},
        /* Bounds are kept. */
        {{8, 64, 0}, 2, 0, 0.5, 0.1, 21, 8},
        {{1, 5, 0}, 4, 0, 0.9, 1, 21, 5},
        {{0}, 5, 0, 0.9, 1, 1000, 5},
        {{4, 5, 0}, 5, 0.9, 0, 1, 21, 4},
        {{0}, 4, 0.9, 0, 1, 1000, 4},
        {{0, 5, 0}, 1, 0.9, 0, 1, 1000, 1},
        /* No actor is added while all cores are busy; some are retired all the more. 4 * 1.9 / 1.5 = 5.1. */
        {{1, 64, 0}, 4, 0, 0.9, 1.95, 1000, 4},
        {{0}, 4, 0, 0.9, 1.5, 21, 5},
        {{0}, 4, 0.9, 0, 2, 21, 1},
        /* What is not known changes nothing, and leaves a gap in a window. */
        {{1, 64, 0}, 4, NAN, 0.9, 1, 1000, 4},
        {{0}, 4, 0.9, NAN, 1, 1000, 4},
        {{1, 64, 0}, 4, 0, 0.45, 1, 10, 4},
        {{0}, 4, NAN, NAN, 1, 5, 4},
        {{0}, 4, 0, 0.45, 1, 5, 4},
        {{0}, 4, 0, 0.45, 1, 1, 7},
        /* A change begins a new window, and so does the other side if it waits instead. */
        {{0}, 7, 0, 0.45, 1, 20, 7},
        {{0}, 7, 0.5, 0, 1, 20, 7},
        {{0}, 7, 0, 0.45, 1, 20, 7},
        {{0}, 7, 0, 0, 1, 1, 7},
        {{0}, 7, 0, 0.45, 1, 20, 7},
        /* A moment below the margin does not end a window, and does not make one either. */
        {{1, 64, 0}, 4, 0, 0.27, 1, 1, 4},
        {{0}, 4, 0, 0.2, 1, 40, 4},
        {{1, 64, 0}, 4, 0, 0.45, 1, 10, 4},
        {{0}, 4, 0, 0.2, 1, 1, 4},
        {{0}, 4, 0, 0.45, 1, 10, 7},
    };
    struct feed it = make();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].limits.most) {
            it = make();
            it.limits.least = rows[i].limits.least;
            it.limits.most = rows[i].limits.most;
            it.limits.predicted_actor_idle = rows[i].limits.predicted_actor_idle;
        }
        uint32_t wanted =
            feed(&it, rows[i].actors, rows[i].actor_idle, rows[i].learner_idle, rows[i].cpu, rows[i].seconds);
        if (wanted != rows[i].wanted)
            fail_msg("row %zu: %u actors, and not %u", i, wanted, rows[i].wanted);
    }
}

/* Learners that wait 0.5 and 0.9 of the time in turn: 4 * 0.95 / 0.3 = 12.7 on average, but the mean is not certain. */
TEST(what_may_be_noise_is_not_counted_on)
{
    struct feed it = make();
    uint32_t wanted = 4;
    for (int i = 0; i < 21 && wanted == 4; i++)
        wanted = feed(&it, 4, 0, i % 2 ? 0.5 : 0.9, 0.1, 1);
    assert_in_range(wanted, 9, 11);
}

TEST(an_unsteady_moment_begins_anew)
{
    struct feed it = make();
    assert_int_equal(feed(&it, 4, 0, 0.45, 1, 15), 4);
    struct resize_seen seen = {4, 0, 0.45, 1, false};
    it.now_ns += SECOND;
    assert_int_equal(resize_decide(&it.resize, &it.limits, &seen, it.now_ns, it.reason, sizeof it.reason), 4);
    assert_int_equal(feed(&it, 4, 0, 0.45, 1, 20), 4);
    assert_int_equal(feed(&it, 4, 0, 0.45, 1, 1), 7);
}

/* ---- a run whose load changes ---- */

struct plant {
    double actor_rate, learner_rate; /* of one actor; of the learners, both in inserts/s */
    uint32_t actors;
    uint32_t up, down; /* changes since the load did */
};

static void go_on(struct plant *plant, struct feed *it, struct rng *rng, int seconds)
{
    plant->up = plant->down = 0;
    for (int i = 0; i < seconds; i++) {
        double all = plant->actors * plant->actor_rate, rate = fmin(all, plant->learner_rate);
        double noise_a = 0.06 * (rng_unit(rng) - 0.5), noise_l = 0.06 * (rng_unit(rng) - 0.5);
        struct resize_seen seen = {plant->actors, fmax(0, 1 - rate / all + noise_a),
                                   fmax(0, 1 - rate / plant->learner_rate + noise_l), 0.1, true};
        it->now_ns += SECOND;
        uint32_t wanted = resize_decide(&it->resize, &it->limits, &seen, it->now_ns, it->reason, sizeof it->reason);
        assert_in_range(wanted, it->limits.least, it->limits.most);
        assert_int_equal(wanted != plant->actors, it->reason[0] != '\0');
        plant->up += wanted > plant->actors;
        plant->down += wanted < plant->actors;
        plant->actors = wanted;
    }
}

static void check_settled(const struct plant *plant, const struct feed *it)
{
    double all = plant->actors * plant->actor_rate, rate = fmin(all, plant->learner_rate);
    bool full = plant->actors == it->limits.most;
    if (!full && 1 - rate / plant->learner_rate > 0.05 + it->limits.margin + 0.03)
        fail_msg("with %u actors learners wait %.2f", plant->actors, 1 - rate / plant->learner_rate);
    /* One fewer would starve the learners, or actors wait no more than they may. */
    bool needed = plant->actors == 1 || (plant->actors - 1) * plant->actor_rate < 0.97 * plant->learner_rate;
    if (!needed && 1 - rate / all > it->limits.margin + 0.03)
        fail_msg("with %u actors they wait %.2f", plant->actors, 1 - rate / all);
}

TEST(a_run_settles_after_its_load_changed)
{
    struct rng rng = naive_rng(__func__);
    int again = 0, thrice = 0;
    for (int trial = 0; trial < 200; trial++) {
        struct plant plant = {.actor_rate = 100, .actors = 1 + (uint32_t)rng_below(&rng, 16)};
        plant.learner_rate = 100 * plant.actors;
        struct feed it = make();
        go_on(&plant, &it, &rng, 300);
        assert_int_equal(plant.up + plant.down, 0);
        for (int change = 0; change < 4; change++) {
            double factor = exp(2.4 * rng_unit(&rng) - 1.2);
            *(rng_below(&rng, 2) ? &plant.actor_rate : &plant.learner_rate) *= factor;
            go_on(&plant, &it, &rng, 400);
            assert_true(plant.up == 0 || plant.down == 0); /* it never turns back */
            assert_true(plant.up + plant.down <= 3);
            again += plant.up + plant.down > 1;
            thrice += plant.up + plant.down > 2;
            check_settled(&plant, &it);
        }
    } /* One step is enough, unless the load changed within a window: that step is too small, and the rest may be a fraction of
       * an actor away from the next number. */
    assert_true(again <= 40);
    assert_true(thrice <= 3);
}
