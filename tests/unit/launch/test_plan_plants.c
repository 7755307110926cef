/* Plans for plants that compute: what plan_next asks for is measured on a model of a machine, with noise, until it asks
 * for nothing more; then the plan is held against every pair of counts. */

#include "agent/launch/plan/plan.h"
#include "tests/support/curves.h"
#include "tests/support/naive.h"

/* As the profile has them. */
#define MOST_RUNS 9
/* The bars. */
#define LEAST_SHARE 0.95
#define MOST_OFF 0.15

/* ---- a machine ---- */

/* Seconds for one item, unless it says otherwise. Whoever waits for the broker waits longer while it sleeps. */
struct plant {
    double cores, spi;
    uint32_t max_actors, max_learners;
    double actor_cpu, actor_wait;     /* for an insert; the wait is the environment's */
    double learner_cpu, learner_wait; /* for a sample; the wait is a round trip's part */
    double wake;                      /* added to learner_wait by a broker that sleeps whenever it can */
    double reduce_cpu, reduce_wait;   /* for a sample, where there is more than one learner */
    double broker_insert, broker_sample;
    double switching; /* share lost to switches between processes, where all cores are busy, for each process */
    double noise;     /* of what is measured: one standard deviation */
};

struct load {
    double inserts, samples;         /* items/s */
    double actor_idle, learner_idle; /* held back by the limiter */
    double cpu, broker;              /* cores */
};

static double learner_cpu(const struct plant *plant, uint32_t y)
{
    return plant->learner_cpu + (y > 1 ? plant->reduce_cpu : 0);
}

/* What each side can do, with a broker that is busy for a share of the time and processes that get `speed` of a core. */
static double actors_can(const struct plant *plant, uint32_t x, double speed)
{
    return x / (plant->actor_cpu / speed + plant->actor_wait);
}

static double learners_can(const struct plant *plant, uint32_t y, double speed, double busy)
{
    double wait = plant->learner_wait + plant->wake * (1 - busy) + (y > 1 ? plant->reduce_wait : 0);
    return y / (learner_cpu(plant, y) / speed + wait);
}

static double cores_of(const struct plant *plant, uint32_t y, double inserts, double samples)
{
    return inserts * (plant->actor_cpu + plant->broker_insert) +
           samples * (learner_cpu(plant, y) + plant->broker_sample);
}

/* Processes that would like to run at a time, if there were cores for all. */
static double awake(const struct plant *plant, uint32_t x, uint32_t y)
{
    return 1 + y + x * plant->actor_cpu / (plant->actor_cpu + plant->actor_wait);
}

/* Rates at which a pair goes on; x or y may be 0: the other side alone, without a limiter. */
static struct load run_plant(const struct plant *plant, uint32_t x, uint32_t y)
{
    struct load load = {0};
    double busy = 0, speed = 1;
    for (int i = 0; i < 200; i++) {
        double a = x ? actors_can(plant, x, speed) : 0, l = y ? learners_can(plant, y, speed, busy) : 0;
        double inserts = x && y ? fmin(a, l / plant->spi) : a, samples = x && y ? inserts * plant->spi : l;
        double broker = inserts * plant->broker_insert + samples * plant->broker_sample;
        double cores = plant->cores * (1 - fmin(0.5, plant->switching * fmax(0, awake(plant, x, y) - plant->cores)));
        double over = fmax(broker, cores_of(plant, y, inserts, samples) / cores);
        double fits = over > 1 ? 1 / over : 1, lost = over > 1 && over > broker ? plant->cores / cores : 1;
        load = (struct load){.inserts = inserts * fits,
                             .samples = samples * fits,
                             .actor_idle = a > 0 ? fmax(0, 1 - inserts * fits / a) : 0,
                             .learner_idle = l > 0 ? fmax(0, 1 - samples * fits / l) : 0,
                             .cpu = cores_of(plant, y, inserts, samples) * fits * lost,
                             .broker = broker * fits};
        busy += 0.3 * (fmin(1, load.broker) - busy);
    }
    /* A bound by cores or by the broker makes no side wait for the limiter. */
    if (x && y && fmin(load.actor_idle, load.learner_idle) > 0) {
        double both = fmin(load.actor_idle, load.learner_idle);
        load.actor_idle = 1 - (1 - load.actor_idle) / (1 - both);
        load.learner_idle = 1 - (1 - load.learner_idle) / (1 - both);
    }
    return load;
}

/* ---- measuring it ---- */

static double noisy(struct rng *rng, const struct plant *plant)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += rng_unit(rng);
    return 1 + plant->noise * fmax(-2.5, fmin(2.5, sum - 6));
}

static struct plan_unit measure_unit(const struct plant *plant, struct rng *rng, bool actor)
{
    struct load load = run_plant(plant, actor, !actor);
    double factor = noisy(rng, plant);
    return (struct plan_unit){(actor ? load.inserts : load.samples) * factor, (load.cpu - load.broker) * factor,
                              load.broker * factor, MIB};
}

/* Measures a pair on some machine. */
typedef struct plan_pair measure(const void *machine, struct rng *rng, uint32_t actors, uint32_t learners);

static struct plan_pair measure_pair(const void *machine, struct rng *rng, uint32_t x, uint32_t y)
{
    const struct plant *plant = machine;
    struct load load = run_plant(plant, x, y);
    double factor = noisy(rng, plant);
    return run_of(x, y, load.inserts * factor, load.samples * factor,
                  fmin(1, fmax(0, load.actor_idle + noisy(rng, plant) - 1)),
                  fmin(1, fmax(0, load.learner_idle + noisy(rng, plant) - 1)), load.cpu);
}

/* Measures what the plan asks for; returns how many runs that were. */
static int run_all(struct plan_input *input, measure *measured, const void *machine, struct rng *rng)
{
    struct plan_pair next;
    int runs = 0;
    for (; runs < MOST_RUNS && plan_next(input, &next); runs++) {
        assert_in_range(next.actors, 1, input->max_actors);
        assert_in_range(next.learners, 1, input->max_learners);
        struct plan_pair pair = measured(machine, rng, next.actors, next.learners);
        assert_true(plan_add_run(input, &pair));
    }
    for (uint32_t i = 0; i < input->n_runs; i++)
        assert_in_range(input->runs[i].runs, 1, 2);
    return runs;
}

static struct plan_input input_of(struct plan_unit actor, struct plan_unit learner, double spi, double cores,
                                  uint32_t max_actors, uint32_t max_learners)
{
    struct plan_input input = curves_input(actor, learner, spi);
    input.hosts[0].cores = cores;
    input.max_actors = max_actors;
    input.max_learners = max_learners;
    return input;
}

/* The curves of a plant. */
static struct plan_input curves_of(const struct plant *plant, struct rng *rng)
{
    struct plan_unit actor = measure_unit(plant, rng, true), learner = measure_unit(plant, rng, false);
    return input_of(actor, learner, plant->spi, plant->cores, plant->max_actors, plant->max_learners);
}

/* ---- the bars ---- */

struct verdict {
    double share; /* of the best pair */
    double off;   /* the worst alternative's distance from what it really gives */
    bool spare;   /* one learner fewer would do */
};

static double best_of(const struct plant *plant)
{
    double best = 0;
    for (uint32_t x = 1; x <= plant->max_actors; x++)
        for (uint32_t y = 1; y <= plant->max_learners; y++)
            best = fmax(best, run_plant(plant, x, y).inserts);
    return best;
}

static struct verdict judge(const struct plant *plant, struct rng *rng, struct plan *plan)
{
    struct plan_input input = curves_of(plant, rng);
    run_all(&input, measure_pair, plant, rng);
    *plan = curves_solve(&input);
    uint32_t x = plan->chosen.actors, y = plan->chosen.learners;
    double inserts = run_plant(plant, x, y).inserts;
    struct verdict verdict = {.share = inserts / best_of(plant),
                              .spare = y > 1 && run_plant(plant, x, y - 1).inserts > 0.99 * inserts};
    for (uint32_t i = 0; i < input.n_runs; i++) {
        const struct plan_pair *pair = &input.runs[i];
        if (pair->actors + pair->learners < x + y && pair->inserts > plan->chosen.inserts)
            fail_msg("%u+%u was measured slower than %u+%u: %g and %g", x, y, pair->actors, pair->learners,
                     plan->chosen.inserts, pair->inserts);
    }
    for (uint32_t i = 0; i < input.n_runs; i++) {
        const struct plan_pair *other = &input.runs[i];
        double off = fabs(other->inserts / run_plant(plant, other->actors, other->learners).inserts - 1);
        verdict.off = fmax(verdict.off, off);
    }
    return verdict;
}

static double between(struct rng *rng, double low, double high)
{
    return low * exp(log(high / low) * rng_unit(rng));
}

/* Anything from a table of toy environments to a heavy network, on 1 to 64 cores. */
static struct plant random_plant(struct rng *rng)
{
    struct plant plant = {.cores = (double)(1u << rng_below(rng, 7)),
                          .spi = between(rng, 0.5, 128),
                          .max_actors = 1u << rng_below(rng, 7),
                          .max_learners = 1u << rng_below(rng, 3),
                          .actor_cpu = between(rng, 2e-5, 2e-3),
                          .learner_cpu = between(rng, 5e-7, 1e-4),
                          .broker_insert = between(rng, 1e-6, 1e-5),
                          .broker_sample = between(rng, 2e-7, 2e-6),
                          .switching = between(rng, 1e-3, 2e-2),
                          .noise = 0.02};
    plant.actor_wait = rng_below(rng, 2) ? plant.actor_cpu * between(rng, 0.1, 20) : 0;
    plant.learner_wait = plant.learner_cpu * between(rng, 0.05, 2);
    plant.wake = plant.learner_cpu * between(rng, 0.05, 2);
    plant.reduce_cpu = plant.learner_cpu * between(rng, 0.02, 0.5);
    plant.reduce_wait = plant.learner_cpu * between(rng, 0.05, 2);
    return plant;
}

/* What is measured is noisy, and a pair can win by luck: so a few may be a little below the bar, and one far. */
TEST(any_plant_is_planned_well)
{
    struct rng rng = naive_rng(__func__);
    int n = 1000, low = 0, far = 0, spare = 0;
    for (int i = 0; i < n; i++) {
        struct plant plant = random_plant(&rng);
        struct plan plan;
        struct verdict verdict = judge(&plant, &rng, &plan);
        low += verdict.share < LEAST_SHARE;
        far += verdict.share < 0.75;
        spare += verdict.spare;
        if (verdict.share < 0.6 || far > 1 || verdict.off > MOST_OFF)
            fail_msg("%g cores, %.3g samples per insert: %u+%u gives %.3f of the best, an alternative is off by %.3f",
                     plant.cores, plant.spi, plan.chosen.actors, plan.chosen.learners, verdict.share, verdict.off);
    }
    if (low > n / 50)
        fail_msg("%d of %d plans are below %g of the best pair", low, n, LEAST_SHARE);
    if (spare > n / 50)
        fail_msg("%d of %d plans have a learner too many", spare, n);
}

/* ---- a machine whose figures were measured ---- */

/* The demo on 16 x86-64 cores. Two learners alone make fewer samples than one, since each step waits for a broker that has to
 * wake up. Beside actors the broker is awake, and two learners make more than one: what the curves say is wrong by a third. */
static const struct {
    uint32_t actors, learners;
    double inserts, actor_idle, learner_idle, cpu;
} demo[] = {
    {1, 1, 6300, 0.15, 0.02, 2.3}, {2, 1, 6350, 0.57, 0.01, 2.5}, {3, 1, 6350, 0.72, 0.01, 2.6},
    {4, 1, 6350, 0.79, 0.01, 2.7}, {1, 2, 7400, 0.01, 0.05, 3.3}, {2, 2, 7600, 0.48, 0.01, 3.5},
    {3, 2, 7700, 0.65, 0.01, 3.6}, {4, 2, 7800, 0.74, 0.00, 3.7},
};

/* noise: of the inserts, one standard deviation. More than four actors wait and change nothing. */
static struct plan_pair run_demo(const void *noise, struct rng *rng, uint32_t actors, uint32_t learners)
{
    const struct plant plant = {.noise = *(const double *)noise};
    size_t i = 0;
    while (demo[i].actors != (actors < 4 ? actors : 4) || demo[i].learners != learners)
        assert_true(++i < sizeof demo / sizeof demo[0]);
    double inserts = demo[i].inserts * noisy(rng, &plant);
    return run_of(actors, learners, inserts, 32 * inserts, demo[i].actor_idle, demo[i].learner_idle, demo[i].cpu);
}

TEST(curves_that_are_wrong_about_learners_are_found_out)
{
    struct rng rng = naive_rng(__func__);
    const struct plan_unit actor = {14500, 0.9, 0.6, MIB}, learner = {206000, 0.95, 0.5, MIB};
    for (int trial = 0; trial < 100; trial++) {
        struct plan_input input = input_of(actor, learner, 32, 16, 64, 2);
        run_all(&input, run_demo, &(double){0.003}, &rng);
        struct plan plan = curves_solve(&input);
        assert_int_equal(plan.chosen.learners, 2);
        assert_true(run_demo(&(double){0}, &rng, plan.chosen.actors, 2).inserts >= 7400);
        assert_true(plan.chosen.actors == 1 || plan.chosen.bottleneck == PLAN_MAX_LEARNERS);
    }
}

/* Ape-X on the same machine, whose idle cores wake slowly: actors that wait nearly all the time make four learners nearly
 * twice as fast, as long as there is one for each core. */
static struct plan_pair run_apex(const void *machine, struct rng *rng, uint32_t actors, uint32_t learners)
{
    static const double rates[] = {2200, 2000, 2400, 2600};
    double crowd = fmin(1, (actors - 1) / 15.0), rate = rates[learners - 1] * (1 + (learners == 4 ? 0.8 : 0.3) * crowd);
    (void)machine, (void)rng;
    return run_of(actors, learners, rate, 64 * rate, 1 - rate / (20000.0 * actors), 0.01,
                  1.2 + 0.35 * learners + 0.05 * actors);
}

TEST(a_crowd_that_helps_is_found)
{
    const struct plan_unit actor = {20500, 0.43, 0.29, MIB}, learner = {150800, 1.06, 0.56, MIB};
    struct plan_input input = input_of(actor, learner, 64, 16, 64, 4);
    run_all(&input, run_apex, NULL, NULL);
    struct plan plan = curves_solve(&input);
    assert_true(run_apex(NULL, NULL, plan.chosen.actors, plan.chosen.learners).inserts >= LEAST_SHARE * 4680);
    /* On two cores there is no room for one. */
    input = input_of(actor, learner, 64, 2, 64, 4);
    run_all(&input, run_apex, NULL, NULL);
    for (uint32_t i = 0; i < input.n_runs; i++)
        assert_true(input.runs[i].actors <= 4);
}

/* What the file says is not tried with other numbers; if it says all, one run is enough. */
TEST(numbers_of_the_file_are_kept)
{
    struct rng rng = naive_rng(__func__);
    for (int trial = 0; trial < 200; trial++) {
        struct plant plant = random_plant(&rng);
        struct plan_input input = curves_of(&plant, &rng);
        input.fixed_actors = 1 + (uint32_t)rng_below(&rng, plant.max_actors);
        input.fixed_learners = trial % 2 ? 1 + (uint32_t)rng_below(&rng, plant.max_learners) : 0;
        int runs = run_all(&input, measure_pair, &plant, &rng);
        for (uint32_t i = 0; i < input.n_runs; i++) {
            assert_int_equal(input.runs[i].actors, input.fixed_actors);
            assert_true(input.fixed_learners == 0 || input.runs[i].learners == input.fixed_learners);
        }
        assert_true(runs == 1 || !input.fixed_learners);
    }
}
