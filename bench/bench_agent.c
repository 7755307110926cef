/* The actor's part: the environment loop of the real actors on CartPole-v1 with a network of 64 x 64, in processes
 * that are measured in turn: the environment alone, with the network that acts, and with the adder that writes
 * transitions into a broker. What one adds to the other is read off the differences. With Ape-X's bound of 100 items
 * that are not confirmed, the way to the broker and back limits the rate; with a wider one the work does. */
#include "bench/bench_agent.h"

#include "agent/run/environment_loop.h"
#include "bench/children.h"
#include "bench/lane.h"
#include "bench/load.h"
#include "bench/report.h"

#define GOAL_STEPS 300e3
#define TABLE_ITEMS 100000u
#define START_SECONDS 60
#define TIMEOUT_MS 30000
/* Steps between two updates of the counter. */
#define COUNT_EVERY 256u

enum part { PART_ENV, PART_NET, PART_ADDER, PART_APEX, PART_WIDE, N_PARTS };

static const char *const part_names[N_PARTS] = {
    [PART_ENV] = "environment alone",
    [PART_NET] = "environment and network",
    [PART_ADDER] = "... and adder, at most 100 items in flight",
    [PART_APEX] = "... 3-step, with the actor's priorities",
    [PART_WIDE] = "... and adder, at most 2000 items in flight",
};

struct bench_actor {
    struct load load; /* for load_fail */
    enum part part;
    pid_t pid;
    double rate[MOST_REPEATS], cpu[MOST_REPEATS], broker_cpu[MOST_REPEATS];
};

/* ---- the life of a process ---- */

static void step_env(struct bench_actor *self, struct env *env)
{
    float observation[4];
    struct rng rng;
    rng_seed(&rng, 1);
    env_reset(env, observation);
    for (;;) {
        for (uint32_t i = 0; i < COUNT_EVERY; i++) {
            int32_t action = (int32_t)(rng_next(&rng) >> 63);
            rp_env_result result;
            env_step(env, &action, observation, &result);
            if (result.terminal || result.truncated)
                env_reset(env, observation);
        }
        lane_add(self->load.lane, COUNT_EVERY);
    }
}

static struct adder *open_adder(struct bench_actor *self, const struct run_config *config, const rp_env_spec *spec)
{
    rp_error err = {0};
    rp_client *client = rp_client_connect(self->load.service, NULL, TIMEOUT_MS, &err);
    struct adder *adder =
        client ? adder_new(&(struct adder_options){client, "bench", &config->adder, spec, false, TIMEOUT_MS}, &err)
               : NULL;
    if (!adder)
        load_fail(&self->load, "%s", err.text);
    return adder;
}

static void step_actor(struct bench_actor *self, struct env *env, const struct run_config *config)
{
    rp_error err = {0};
    struct actor actor;
    struct environment_loop loop;
    struct actor_options options = {.config = config, .seed = 1};
    options.agent = agent_new(&config->agent, env->ops->name, &env->spec, 1, &err);
    if (!options.agent)
        load_fail(&self->load, "%s", err.text);
    if (self->part >= PART_ADDER)
        options.adder = open_adder(self, config, &env->spec);
    actor_init(&actor, &options);
    if (environment_loop_init(&loop, env, &actor, &err) != RP_OK)
        load_fail(&self->load, "%s", err.text);
    lane_set_state(self->load.lane, LANE_READY);
    for (;;) {
        for (uint32_t i = 0; i < COUNT_EVERY; i++) {
            bool ended;
            if (environment_loop_step(&loop, &ended, &err) != RP_OK)
                load_fail(&self->load, "%s", err.text);
        }
        lane_add(self->load.lane, COUNT_EVERY);
    }
}

static void live(void *ctx)
{
    struct bench_actor *self = ctx;
    static char env_name[] = "CartPole-v1", algorithm[] = "dqn", table[] = LOAD_TABLE;
    static int64_t hidden[] = {64, 64};
    bool apex = self->part == PART_APEX;
    const struct run_config config = {
        .environment = {.name = env_name},
        .agent = {.algorithm = algorithm, .hidden = {.data = hidden, .count = 2}, .batch = 1},
        .adder = {.kind = ADDER_TRANSITION,
                  .table = table,
                  .n_step = apex ? 3 : 1,
                  .discount = 0.99,
                  .actor_priorities = apex,
                  .buffer_items = self->part == PART_WIDE ? 2000 : 100},
        .actors = {.count = 1, .epsilon = 0.1, .pull_every = 400},
    };
    rp_error err = {0};
    struct env env;
    net_single_thread();
    if (env_open(&env, &config.environment, &err) != RP_OK)
        load_fail(&self->load, "%s", err.text);
    env_seed(&env, 1);
    if (self->part == PART_ENV) {
        lane_set_state(self->load.lane, LANE_READY);
        step_env(self, &env);
    }
    step_actor(self, &env, &config);
}

/* ---- measuring ---- */

static bool measure(const struct options *options, struct bench_actor *self, pid_t broker, uint32_t n)
{
    bool with_broker = self->part >= PART_ADDER;
    if (with_broker)
        child_go(broker);
    child_go(self->pid);
    if (!children_wait(options->warm_seconds))
        return false;
    double from = children_now(), cpu = child_cpu(self->pid), broker_cpu = child_cpu(broker);
    uint64_t steps = atomic_load(&self->load.lane->items);
    if (!children_wait(options->seconds))
        return false;
    double seconds = children_now() - from;
    self->rate[n] = (double)(atomic_load(&self->load.lane->items) - steps) / seconds;
    self->cpu[n] = (child_cpu(self->pid) - cpu) / seconds;
    self->broker_cpu[n] = (child_cpu(broker) - broker_cpu) / seconds;
    child_pause(self->pid);
    if (with_broker)
        child_pause(broker);
    return true;
}

static void report_part(const struct options *options, const struct bench_actor *self)
{
    bool goal = self->part == PART_ADDER || self->part == PART_WIDE;
    double rate = spread_of(self->rate, options->repeats).median, cpu = spread_of(self->cpu, options->repeats).median;
    report_value(options, part_names[self->part], rate, goal ? GOAL_STEPS : 0, "steps/s");
    report_value(options, "  actor's CPU time", rate > 0 ? cpu / rate * 1e9 : 0, 0, "ns/step");
    if (self->part >= PART_ADDER)
        report_value(options, "  broker's cores", spread_of(self->broker_cpu, options->repeats).median, 0, "cores");
}

static bool start(const struct options *options, struct bench_actor *self, const char *service)
{
    self->load = (struct load){.lane = children_lane(), .options = options, .service = service, .connections = 1};
    self->pid = child_start(live, self);
    if (self->pid <= 0 || !children_await(self->load.lane, LANE_READY, START_SECONDS))
        return false;
    child_pause(self->pid);
    return true;
}

static bool bench_actors(struct options *options)
{
    static struct bench_actor actors[N_PARTS];
    char service[160];
    if (!options->items)
        options->items = TABLE_ITEMS;
    pid_t broker = child_start_broker(options, options->items, service, sizeof service);
    bool ok = broker > 0;
    for (int i = 0; ok && i < N_PARTS; i++) {
        actors[i].part = (enum part)i;
        ok = start(options, &actors[i], service);
    }
    if (ok)
        child_pause(broker);
    for (uint32_t n = 0; ok && n < options->repeats; n++)
        for (int i = 0; ok && i < N_PARTS; i++)
            ok = measure(options, &actors[i], broker, n);
    for (int i = 0; i < N_PARTS; i++) {
        if (ok)
            report_part(options, &actors[i]);
        child_end(actors[i].pid);
    }
    child_end(broker);
    return ok;
}

int command_agent(struct options *options)
{
    options->library = true;
    report_begin(options, "agent");
    bool ok = bench_actors(options) && bench_agent_learn(options);
    report_end(options);
    return ok ? 0 : 1;
}
