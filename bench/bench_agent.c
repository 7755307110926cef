/* The actor's part: the environment loop of the real actors on CartPole-v1 with a network of 64 x 64, in processes
 * that are measured in turn: the environment alone, with the network that acts, and with the adder that writes
 * transitions into a broker. What one adds to the other is read off the differences. With Ape-X's bound of 100 items
 * that are not confirmed, the way to the broker and back limits the rate; with a wider one the work does. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/learn/agent.h"
#include "agent/run/actor.h"
#include "bench/bench.h"

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
        tally_add(self->load.tally, COUNT_EVERY);
    }
}

static void step_actor(struct bench_actor *self, struct env *env, const struct run_config *config)
{
    struct load *load = &self->load;
    struct environment_loop loop;
    struct actor_options options = {.config = config, .seed = 1};
    options.agent = load_got(load, agent_new(&config->agent, env->ops->name, &env->spec, 1, &load->err));
    if (self->part >= PART_ADDER) {
        struct adder_options adder = {load_client(load), "bench", &config->adder, &env->spec, false, TIMEOUT_MS};
        options.adder = load_got(load, adder_new(&adder, &load->err));
    }
    environment_loop_init(&loop, env, &options);
    tally_set_state(load->tally, TALLY_READY);
    for (;;) {
        for (uint32_t i = 0; i < COUNT_EVERY; i++) {
            bool ended;
            load_ok(load, environment_loop_step(&loop, &ended, &load->err));
        }
        tally_add(self->load.tally, COUNT_EVERY);
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
                  .batch_items = 50,
                  .buffer_items = self->part == PART_WIDE ? 2000 : 100},
        .actors = {.count = 1, .epsilon = 0.1, .pull_every = 400},
    };
    struct env env;
    net_single_thread();
    load_ok(&self->load, env_open(&env, &config.environment, &self->load.err));
    env_seed(&env, 1);
    if (self->part == PART_ENV) {
        tally_set_state(self->load.tally, TALLY_READY);
        step_env(self, &env);
    }
    step_actor(self, &env, &config);
}

/* ---- measuring: a party whose members work one at a time ---- */

/* The group of a part's process. */
static unsigned group_of(int part)
{
    return GROUP_OTHERS << part;
}

static void report_part(const struct options *options, enum part part, const struct figures *figures)
{
    bool goal = part == PART_ADDER || part == PART_WIDE;
    double rate = spread_of(figures->rate[0], figures->n).median;
    double cpu = spread_of(figures->client_cpu, figures->n).median;
    report_value(options, part_names[part], rate, goal ? GOAL_STEPS : 0, "steps/s");
    report_value(options, "  actor's CPU time", rate > 0 ? cpu / rate * 1e9 : 0, 0, "ns/step");
    if (part >= PART_ADDER)
        report_value(options, "  broker's cores", spread_of(figures->server_cpu, figures->n).median, 0, "cores");
}

static bool bench_actors(struct options *options)
{
    static struct party party;
    static struct figures figures[N_PARTS];
    struct phase phases[N_PARTS];
    if (!options->items)
        options->items = TABLE_ITEMS;
    bool ok = run_broker(options, options->items, 0, &party);
    for (int i = 0; ok && i < N_PARTS; i++) {
        struct bench_actor actor = {.part = (enum part)i};
        phases[i] = (struct phase){&party, group_of(i), false};
        ok = load_init(&actor.load, options, &party) && run_add(&party, group_of(i), live, &actor, START_SECONDS);
        if (ok)
            child_pause(party.members[i].pid);
    }
    ok = ok && run_phases(options, phases, N_PARTS, figures);
    for (int i = 0; ok && i < N_PARTS; i++)
        report_part(options, (enum part)i, &figures[i]);
    run_end(&party);
    return ok;
}

/* ---- the learner: agent_learn of DQN on a batch that stays the same, in turn with the matrix products that it cannot avoid,
 * called bare: forward through the online network, forward through the target, backward by weights and inputs. CPU time of one
 * thread; nothing is sampled or sent ---- */

#define GOAL_COST 2.0
#define N_INPUTS 4u
#define N_ACTIONS 2u
#define MOST_BATCH 256u

struct variant {
    uint32_t batch, width;
    bool apex; /* double and dueling: the online network sees both observations */
};

static const struct variant variants[] = {{64, 64, false}, {256, 256, false}, {64, 64, true}, {256, 256, true}};

static float *new_numbers(struct arena *memory, size_t n)
{
    float *out = arena_take(memory, n, sizeof *out);
    struct rng rng;
    rng_seed(&rng, n);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(2 * rng_unit(&rng) - 1);
    return out;
}

/* ---- the bare products ---- */

struct bare {
    struct net net; /* for its layers */
    uint32_t batch, online_rows;
    float *params, *grads, *x, *y;
};

static bool bare_init(struct bare *self, struct arena *memory, const struct variant *variant, rp_error *err)
{
    struct net_spec spec = {.inputs = N_INPUTS,
                            .n_hidden = 2,
                            .hidden = {variant->width, variant->width},
                            .activation = NET_RELU,
                            .outputs = N_ACTIONS,
                            .dueling = variant->apex};
    *self = (struct bare){.batch = variant->batch, .online_rows = variant->batch * (variant->apex ? 2 : 1)};
    if (net_init(&self->net, &spec, err) != RP_OK)
        return false;
    size_t most = (size_t)self->online_rows * variant->width;
    self->params = new_numbers(memory, self->net.n_params);
    self->grads = new_numbers(memory, self->net.n_params);
    self->x = new_numbers(memory, most);
    self->y = new_numbers(memory, most);
    return true;
}

static void bare_forward(const struct bare *self, const struct net_layer *layer, uint32_t rows)
{
    int n = (int)rows, in = (int)layer->inputs, out = (int)layer->outputs;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, out, in, 1, self->x, in, self->params + layer->weight,
                out, 0, self->y, out);
}

static void bare_backward(const struct bare *self, const struct net_layer *layer, bool first)
{
    int n = (int)self->batch, in = (int)layer->inputs, out = (int)layer->outputs;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, in, out, n, 1, self->x, in, self->y, out, 0,
                self->grads + layer->weight, out);
    /* The derivative by the observation is not needed. */
    if (!first)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, in, out, 1, self->x, out, self->params + layer->weight,
                    out, 0, self->y, in);
}

static void bare_step(void *bare)
{
    struct bare *self = bare;
    uint32_t n = self->net.n_layers;
    for (uint32_t l = 0; l < n; l++)
        bare_forward(self, &self->net.layers[l], self->batch);
    for (uint32_t l = 0; l < n; l++)
        bare_forward(self, &self->net.layers[l], self->online_rows);
    for (uint32_t l = n; l-- > 0;)
        bare_backward(self, &self->net.layers[l], l == 0);
    /* Keeps values from growing from step to step. */
    self->y[0] = self->x[0];
}

/* ---- the learner ---- */

struct learning {
    struct agent *agent;
    struct agent_batch batch;
    int32_t action[MOST_BATCH];
    struct agent_result result;
};

static void learning_fill(struct learning *self, struct arena *memory, uint32_t n)
{
    float *discount = new_numbers(memory, n), *weight = new_numbers(memory, n);
    for (uint32_t i = 0; i < n; i++) {
        self->action[i] = (int32_t)(i % N_ACTIONS);
        discount[i] = i % 16 ? 1 : 0;
        weight[i] = 0.5f + 0.5f * weight[i] * weight[i];
    }
    self->batch = (struct agent_batch){.n = n,
                                       .length = 1,
                                       .observation = new_numbers(memory, (size_t)n * N_INPUTS),
                                       .next_observation = new_numbers(memory, (size_t)n * N_INPUTS),
                                       .action = self->action,
                                       .reward = new_numbers(memory, n),
                                       .discount = discount,
                                       .weight = weight};
}

static bool learning_init(struct learning *self, struct arena *memory, const struct variant *variant, rp_error *err)
{
    static char algorithm[] = "dqn";
    static int64_t hidden[2]; /* the agent borrows it; one agent at a time */
    hidden[0] = hidden[1] = variant->width;
    struct agent_config config = {.algorithm = algorithm,
                                  .hidden = {.data = hidden, .count = 2},
                                  .batch = variant->batch,
                                  .double_q = variant->apex,
                                  .dueling = variant->apex};
    const rp_env_spec spec = {.observation_dtype = RP_DTYPE_FLOAT32,
                              .observation_rank = 1,
                              .observation_shape = {N_INPUTS},
                              .n_actions = N_ACTIONS};
    *self = (struct learning){0};
    self->agent = agent_new(&config, "bench", &spec, 1, err);
    learning_fill(self, memory, variant->batch);
    return self->agent;
}

static void learning_step(void *learning)
{
    struct learning *self = learning;
    agent_learn(self->agent, &self->batch, &self->result);
}

/* ---- measuring ---- */

static void report_variant(const struct options *options, const struct variant *variant, const double *ours,
                           const double *bare)
{
    char name[128];
    const char *kind = variant->apex ? "Ape-X dqn" : "dqn";
    snprintf(name, sizeof name, "%s step, batch %u, net %ux%u", kind, variant->batch, variant->width, variant->width);
    report_value(options, name, spread_of(ours, options->repeats).median, 0, "us");
    report_value(options, "  bare CBLAS calls", spread_of(bare, options->repeats).median, 0, "us");
    snprintf(name, sizeof name, "%s, batch %u / bare CBLAS", kind, variant->batch);
    report_cost(options, name, spread_ratio(ours, bare, options->repeats).median, GOAL_COST, "ratio");
}

static bool run_variant(const struct options *options, const struct variant *variant)
{
    double ours[MOST_REPEATS], bare_us[MOST_REPEATS];
    rp_error err = {0};
    struct learning learning;
    struct bare bare;
    struct arena memory = {0};
    bool ok = learning_init(&learning, &memory, variant, &err) && bare_init(&bare, &memory, variant, &err);
    if (!ok)
        fprintf(stderr, "replay-bench agent: %s\n", err.text);
    double seconds = options->seconds / 4;
    if (ok) {
        time_calls(learning_step, &learning, options->warm_seconds / 2);
        time_calls(bare_step, &bare, options->warm_seconds / 2);
    }
    for (uint32_t n = 0; ok && n < options->repeats; n++) {
        ours[n] = 1e6 * time_calls(learning_step, &learning, seconds);
        bare_us[n] = 1e6 * time_calls(bare_step, &bare, seconds);
    }
    if (ok)
        report_variant(options, variant, ours, bare_us);
    agent_destroy(&learning.agent);
    arena_fini(&memory);
    return ok;
}

static bool bench_learner(const struct options *options)
{
    net_single_thread();
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        if (!run_variant(options, &variants[i]))
            return false;
    return true;
}

bool command_agent(struct options *options)
{
    options->library = true;
    return bench_actors(options) && bench_learner(options);
}
