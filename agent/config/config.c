/* The rows of a run's configuration, and its reader. */
#include "agent/config/config.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define ROOT(member) offsetof(struct run_config, member)
#define MAX_COUNT ((double)RUN_MAX_COUNT)
#define MAX_STEPS 1e15
#define MAX_TIME 9e18
#define TABLE_STEPS 1e9
#define SEQUENCE_STEPS 21 /* of an item, unless the file says otherwise */
#define EPISODE_STEPS 1000
#define EPSILON_ALPHA 7.0 /* steepness of the ladder of epsilons, as in Ape-X */
#define HOLD_MOST 1000000

static const char *const activations[] = {"relu", "tanh", NULL};
static const char *const adder_kinds[] = {
    [ADDER_TRANSITION] = "transition", [ADDER_SEQUENCE] = "sequence", [ADDER_EPISODE] = "episode", NULL};
static const char *const adder_ends[] = {
    [ADDER_PAD] = "pad", [ADDER_TRUNCATE] = "truncate", [ADDER_WRITE] = "write", [ADDER_CONTINUE] = "continue", NULL};

static const char *const engines[] = {[ENGINE_LOCAL] = "local", [ENGINE_SLURM] = "slurm", NULL};
#define HOST(member) offsetof(struct host_config, member)

/* Words that stand for RUN_AUTO. */
static const char *const automatic[] = {"auto", NULL};

/* run_schema appends the broker's rows to these. */
static const struct schema_row own_rows[] = {
    {"name", SCHEMA_STRING, ROOT(name), "run", 1, 128, NULL, 0, "name of the run, for people"},
    {"seed", SCHEMA_INT, ROOT(seed), "1", 0, 9e18, NULL, 0,
     "seed of everything random; in one process a run depends only on its configuration and this seed"},
    {"folder", SCHEMA_STRING, ROOT(folder), "", 0, 400, NULL, 0,
     "folder for logs and the learner's state; empty: nothing is written"},

    {"environment.name", SCHEMA_STRING, ROOT(environment.name), "", 0, 0, NULL, 0,
     "a built-in environment (docs/GUIDE.md) or one of the plug-in; python:MODULE:CALLABLE, such as python:my_env:make "
     "for make() in my_env.py beside the file; or gym:ID for what gymnasium.make or gym.make makes; empty: "
     "CartPole-v1"},
    {"environment.plugin", SCHEMA_PATH, ROOT(environment.plugin), "", 0, 0, NULL, 0,
     "a shared object with environments (include/replay/env.h); relative to the file, if it exists there"},
    {"environment.interpreter", SCHEMA_STRING, ROOT(environment.interpreter), "python3", 1, 400, NULL, 0,
     "program that runs environments in Python; it needs the package replaybus (docs/GUIDE.md)"},
    {"environment.options", SCHEMA_OPTIONS, ROOT(environment.options), NULL, 0, 32, NULL, 0,
     "options of the environment; in Python: keyword arguments"},
    {"environment.max_steps", SCHEMA_INT, ROOT(environment.max_steps), "0", 0, 4294967295.0, NULL, 0,
     "number of steps after which an episode is truncated; 0: the environment's own limit"},
    {"environment.delay", SCHEMA_TIME, ROOT(environment.delay_ns), "0s", 0, 3.6e12, NULL, 0,
     "additional time per step, to simulate an environment that waits"},
    {"environment.spec", SCHEMA_TUPLES, ROOT(environment.spec), NULL, 0, 7, NULL, 0,
     "an environment in Python as it describes itself (dtype, shape, actions, low, high, max_steps, scale); empty: "
     "replay-launch asks the environment, and writes this into the run's file"},

    {"agent.algorithm", SCHEMA_STRING, ROOT(agent.algorithm), "dqn", 0, 0, NULL, 0,
     "dqn, ddpg, td3, sac, impala or bc"},
    {"agent.hidden", SCHEMA_INTS, ROOT(agent.hidden), NULL, 0, NET_MAX_HIDDEN, NULL, 0,
     "units of the hidden layers; empty: the algorithm's default"},
    {"agent.activation", SCHEMA_ENUM, ROOT(agent.activation), "relu", 0, 0, activations, 0,
     "activation of the hidden layers: relu or tanh"},
    {"agent.filters", SCHEMA_INT, ROOT(agent.filters), "0", 0, 1024, NULL, 0,
     "number of filters of a convolution before the hidden layers, for images; 0: no convolution"},
    {"agent.batch", SCHEMA_INT, ROOT(agent.batch), "0", 0, 1 << 20, NULL, 0,
     "items, or sequences, in a learner step; 0: the algorithm's default"},
    {"agent.discount", SCHEMA_REAL, ROOT(agent.discount), "0", 0, 1, NULL, 0,
     "discount per step; 0: the algorithm's default"},
    {"agent.learning_rate", SCHEMA_REAL, ROOT(agent.learning_rate), "0", 0, 10, NULL, 0,
     "learning rate of Adam; 0: the algorithm's default"},
    {"agent.anneal", SCHEMA_INT, ROOT(agent.anneal), "0", 0, 1e12, NULL, 0,
     "learner steps over which learning rates fall linearly to a tenth; 0: constant rates"},
    {"agent.clip_norm", SCHEMA_REAL, ROOT(agent.clip_norm), "0", -1, 1e9, NULL, 0,
     "maximum norm of a gradient; 0: the algorithm's default; -1: no clipping"},
    {"agent.target", SCHEMA_REAL, ROOT(agent_target), "0", 0, 1e12, NULL, 0,
     "how the target networks follow. Below 1: how far they move at each learner step (tau); from 1 on: learner steps "
     "between copies (target period); 0: the algorithm's default"},
    {"agent.importance_exponent", SCHEMA_REAL, ROOT(agent.importance_exponent), "-1", -1, 1, NULL, 0,
     "prioritized sampling: exponent of the importance weights; 0: no weights; -1: the algorithm's default"},
    {"agent.options", SCHEMA_OPTIONS, ROOT(agent_options), NULL, 0, 32, NULL, 0,
     "options of the algorithm. dqn, ddpg, td3, sac: huber (TD errors beyond this value count linearly; 0: all "
     "squared; -1: the algorithm's default). dqn: double (true: the online network chooses the action that the target "
     "network evaluates), dueling (false; true: separate streams for the value and the advantages). td3: policy_delay "
     "(2 learner steps per policy step). sac: alpha (the temperature; 0: learned), target_entropy (of a learned "
     "temperature; 0: minus the size of an action). impala: entropy_cost, value_cost (weights in the loss; -1: none). "
     "Your own programs: whatever they read"},

    {"adder.kind", SCHEMA_ENUM, ROOT(adder.kind), "transition", 0, 0, adder_kinds, 0,
     "what an item is: transition (n-step), sequence or episode"},
    {"adder.table", SCHEMA_STRING, ROOT(adder.table), "replay", 1, 255, NULL, 0,
     "table into which actors insert and from which learners sample: one of broker.tables"},
    {"adder.n_step", SCHEMA_INT, ROOT(adder.n_step), "1", 1, 1000, NULL, 0,
     "transition: number of steps that an item spans"},
    {"adder.length", SCHEMA_INT, ROOT(adder.length), "0", 0, TABLE_STEPS, NULL, 0,
     "sequence: number of steps in an item, at most 65536; episode: longer ones are rejected; 0: 21, and 1000 for "
     "episodes"},
    {"adder.period", SCHEMA_INT, ROOT(adder.period), "20", 1, 65536, NULL, 0,
     "sequence: steps between the starts of two items; at most length - burn_in"},
    {"adder.burn_in", SCHEMA_INT, ROOT(adder.burn_in), "0", 0, 65536, NULL, 0,
     "sequence: steps at the start of an item with which a recurrent learner of yours only warms up its state"},
    {"adder.end", SCHEMA_ENUM, ROOT(adder.end), "pad", 0, 0, adder_ends, 0,
     "sequence, at the end of an episode: pad, truncate, write the last steps, or continue into the next episode"},
    {"adder.actor_priorities", SCHEMA_BOOL, ROOT(adder.actor_priorities), "false", 0, 0, NULL, 0,
     "transition: take first priorities from the actor's own values (Ape-X)"},
    {"adder.chunk_length", SCHEMA_INT, ROOT(adder.chunk_length), "1", 1, 65536, NULL, 0,
     "number of steps that are stored together"},
    {"adder.buffer_items", SCHEMA_INT, ROOT(adder.buffer_items), "200", 1, 1 << 30, NULL, 0,
     "maximum number of items that are created and not yet confirmed; a quarter of them is sent together"},

    {"actors.count", SCHEMA_INT, ROOT(actors.count), "1", 0, MAX_COUNT, automatic, 0,
     "number of actors; 0: learners train on what the broker loads (docs/LAUNCH.md); auto: replay-launch measures and "
     "decides (other programs: 1)"},
    {"actors.environments", SCHEMA_INT, ROOT(actors.environments), "1", 1, MAX_COUNT, NULL, 0,
     "number of environments that each actor steps in turns"},
    {"actors.command", SCHEMA_STRINGS, ROOT(actors.command), NULL, 0, 256, NULL, 0,
     "your own actor instead of replay-actor, in any language: [./my_actor, --endpoint, '{service}'] (docs/LAUNCH.md)"},
    {"actors.epsilon", SCHEMA_REAL, ROOT(actors.epsilon), "0.1", 0, 1, NULL, 0,
     "dqn: share of random actions; without epsilon_steps, actor i of N uses epsilon^(1 + 7 * i / (N - 1))"},
    {"actors.epsilon_steps", SCHEMA_INT, ROOT(actors.epsilon_steps), "0", 0, MAX_STEPS, NULL, 0,
     "environment steps of all actors over which epsilon falls from 1, for all actors alike; 0: at once"},
    {"actors.random_steps", SCHEMA_INT, ROOT(actors.random_steps), "0", 0, MAX_STEPS, NULL, 0,
     "environment steps of all actors that are random at the start"},
    {"actors.noise_sigma", SCHEMA_REAL, ROOT(actors.noise_sigma), "0", 0, 10, NULL, 0,
     "ddpg, td3: noise on actions, in units in which their bounds are -1 and 1"},
    {"actors.noise_correlation", SCHEMA_REAL, ROOT(actors.noise_correlation), "0", 0, 1, NULL, 0,
     "correlation c between the noise of consecutive steps; a random action is kept for (1 + c) / (1 - c) steps"},
    {"actors.pull_every", SCHEMA_INT, ROOT(actors.pull_every), "20", 1, 1e9, NULL, 0,
     "steps between checks for new parameters"},
    {"actors.weights", SCHEMA_STRING, ROOT(actors.weights), "", 0, 400, NULL, 0,
     "a learner's saved state to act by, such as runs/latest/best.weights; empty: the newest parameters of a learner"},
    {"actors.greedy", SCHEMA_BOOL, ROOT(actors.greedy), "false", 0, 0, NULL, 0,
     "act like an evaluator, without exploration: an expert to imitate"},

    {"learners.count", SCHEMA_INT, ROOT(learners.count), "1", 0, 64, automatic, 0,
     "number of learners, which average their gradients and stay identical; 0: actors fill the table (with "
     "actors.weights or actors.command); auto: replay-launch decides"},
    {"learners.command", SCHEMA_STRINGS, ROOT(learners.command), NULL, 0, 256, NULL, 0,
     "your own learner instead of replay-learner"},
    {"learners.delay", SCHEMA_TIME, ROOT(learners.delay_ns), "0s", 0, 3.6e12, NULL, 0,
     "additional time per learner step, to simulate a learner that waits for an accelerator"},
    {"learners.prefetch", SCHEMA_INT, ROOT(learners.prefetch), "auto", 1, 1024, automatic, 0,
     "batches in flight; auto: up to 16, and at most two fifths of what the limiter allows between samples and "
     "inserts"},
    {"learners.publish_every", SCHEMA_INT, ROOT(learners.publish_every), "10", 1, 1e9, NULL, 0,
     "learner steps between new parameters for the actors"},
    {"learners.save_every", SCHEMA_TIME, ROOT(learners.save_every_ns), "60s", 0, MAX_TIME, NULL, 0,
     "time between copies of the learner's state in the folder; 0s: only at the end"},
    {"learners.snapshot_every", SCHEMA_INT, ROOT(learners.snapshot_every), "0", 0, MAX_STEPS, NULL, 0,
     "learner steps between permanent copies of the learner's state, snapshots/STEPS.weights; 0: none"},

    {"evaluator.episodes", SCHEMA_INT, ROOT(evaluator.episodes), "20", 0, 1e6, NULL, 0,
     "number of episodes in an evaluation"},
    {"evaluator.command", SCHEMA_STRINGS, ROOT(evaluator.command), NULL, 0, 256, NULL, 0,
     "your own evaluator, for parameters that only your own programs read"},
    {"evaluator.every", SCHEMA_INT, ROOT(evaluator.every), "0", 0, MAX_STEPS, NULL, 0,
     "environment steps (without actors: learner steps) between evaluations; 0: only at the end"},

    {"stop.steps", SCHEMA_INT, ROOT(stop.steps), "0", 0, MAX_STEPS, NULL, 0,
     "stop after this many environment steps of all actors, including random ones; 0: no such limit"},
    {"stop.learner_steps", SCHEMA_INT, ROOT(stop.learner_steps), "0", 0, MAX_STEPS, NULL, 0,
     "stop after this many learner steps; 0: no such limit"},
    {"stop.value", SCHEMA_REAL, ROOT(stop.value), ".inf", -INFINITY, INFINITY, NULL, 0,
     "stop when an evaluation reaches this mean return; .inf: no such limit"},
    {"stop.time", SCHEMA_TIME, ROOT(stop.time_ns), "0s", 0, MAX_TIME, NULL, 0,
     "stop after this time; 0s: no such limit"},

    {"plan.cores", SCHEMA_REAL, ROOT(plan.cores), "0", 0, 1e6, NULL, 0,
     "processors for all processes, including the broker; 0: all that this machine allows"},
    {"plan.memory", SCHEMA_BYTES, ROOT(plan.memory), "0", 0, 9e18, NULL, 0,
     "memory for all processes with full tables; 0: four fifths of the free memory"},
    {"plan.max_actors", SCHEMA_INT, ROOT(plan.max_actors), "64", 1, MAX_COUNT, NULL, 0,
     "maximum number of actors to try"},
    {"plan.max_learners", SCHEMA_INT, ROOT(plan.max_learners), "4", 1, 64, NULL, 0,
     "maximum number of learners to try"},
    {"plan.measure", SCHEMA_TIME, ROOT(plan.measure_ns), "1s", 1e8, 3.6e12, NULL, 0,
     "how long actors and learners run in each measurement"},

    {"launch.http", SCHEMA_STRING, ROOT(launch.http), LAUNCH_HTTP, 0, 60, NULL, 0,
     "address of the page that shows all runs in a browser (without this key: what REPLAY_PAGE says); port 0: a page "
     "of its own at a free port; empty: no page"},
    {"launch.backoff", SCHEMA_TIME, ROOT(launch.backoff_ns), "500ms", 1e6, MAX_TIME, NULL, 0,
     "pause before a failed process is started again; doubled each time, up to 60 times as long"},
    {"launch.failures", SCHEMA_INT, ROOT(launch.failures), "5", 1, 1e6, NULL, 0,
     "the run stops when a process fails in the same way this many times in a row"},
    {"launch.grace", SCHEMA_TIME, ROOT(launch.grace_ns), "7s", 1e6, MAX_TIME, NULL, 0,
     "time that processes have to end before they are killed"},
    {"launch.hang", SCHEMA_TIME, ROOT(launch.hang_ns), "60s", 0, MAX_TIME, NULL, 0,
     "a process that uses no processor time at all for this long is killed and started again, and an environment in "
     "Python has this long to describe itself; 0s: no limit"},
    {"launch.engine", SCHEMA_ENUM, ROOT(launch.engine), "local", 0, 0, engines, 0,
     "local: this machine and hosts; slurm: jobs of a Slurm cluster (docs/LAUNCH.md)"},
    {"launch.send", SCHEMA_STRINGS, ROOT(launch.send), NULL, 0, 256, NULL, 0,
     "files and folders beside the run's file that hosts need, such as my_env.py; without this, {here} is the same "
     "path there"},
    {"launch.slurm.core", SCHEMA_OPTIONS, ROOT(launch.slurm.core), NULL, 0, 64, NULL, 0,
     "options of sbatch for the core job (broker, learners, evaluator and launcher): {partition: main, cpus-per-task: "
     "8, mem: 16G, time: 12:00:00}; before its time is over the run saves itself, is queued again and goes on; "
     "signal (B:USR1@120): how many seconds before"},
    {"launch.slurm.actors", SCHEMA_OPTIONS, ROOT(launch.slurm.actors), NULL, 0, 64, NULL, 0,
     "options of sbatch for the actor array, which may be preempted; cpus-per-task (8) is also the number of actors in "
     "each task"},
    {"launch.slurm.count", SCHEMA_STRING, ROOT(launch.slurm.count), "", 0, 32, NULL, 0,
     "least and most actors (not tasks), such as 4-64; empty: actors.count, or with auto as many as plan.max_actors"},

    {"hosts", SCHEMA_LIST, ROOT(hosts), NULL, 0, 256, NULL, sizeof(struct host_config),
     "machines that run actors and learners beside this one (docs/LAUNCH.md)"},
    {"hosts[].name", SCHEMA_STRING, HOST(name), "", 0, 400, NULL, 0,
     "destination as ssh takes it; cpu[1-4] stands for four hosts; local: this machine with its roles, which in any "
     "case runs the broker, the evaluator and the roles that no host has"},
    {"hosts[].command", SCHEMA_STRINGS, HOST(command), NULL, 0, 64, NULL, 0,
     "instead of ssh: a command to which a line for the shell there is added, such as [docker, exec, -i, box, sh, -c]; "
     "without a name, the host is host1, host2, ... by its place in the list"},
    {"hosts[].roles", SCHEMA_STRINGS, HOST(roles), NULL, 0, 2, NULL, 0,
     "which processes run there: actor, learner; empty: actor"},
    {"hosts[].cores", SCHEMA_REAL, HOST(cores), "0", 0, 1e6, NULL, 0,
     "processors that may be used there; 0: all that the machine allows"},
    {"hosts[].programs", SCHEMA_STRING, HOST(programs), "", 0, 400, NULL, 0,
     "folder of our programs there; empty: the same build is found there, or sent once"},

    {"report.every", SCHEMA_TIME, ROOT(report.every_ns), "2s", 1e6, MAX_TIME, NULL, 0, "time between two reports"},
};

#define AGENT(member) offsetof(struct agent_config, member)

static const struct schema_row agent_rows[] = {
    {"huber", SCHEMA_REAL, AGENT(huber), "-1", -1, 1e9, NULL, 0, NULL},
    {"double", SCHEMA_BOOL, AGENT(double_q), "true", 0, 0, NULL, 0, NULL},
    {"dueling", SCHEMA_BOOL, AGENT(dueling), "false", 0, 0, NULL, 0, NULL},
    {"policy_delay", SCHEMA_INT, AGENT(policy_delay), "0", 0, 1e6, NULL, 0, NULL},
    {"alpha", SCHEMA_REAL, AGENT(alpha), "-1", -1, 1e6, NULL, 0, NULL},
    {"target_entropy", SCHEMA_REAL, AGENT(target_entropy), "0", -1e6, 1e6, NULL, 0, NULL},
    {"entropy_cost", SCHEMA_REAL, AGENT(entropy_cost), "0", -1, 1e6, NULL, 0, NULL},
    {"value_cost", SCHEMA_REAL, AGENT(value_cost), "0", -1, 1e6, NULL, 0, NULL},
};
static const struct schema agent_schema = {.rows = agent_rows, .n_rows = sizeof agent_rows / sizeof agent_rows[0]};

/* Names that other frameworks use for these keys. The broker's own follow. */
static const struct schema_alias own_aliases[] = {
    {"lr", "agent.learning_rate"},
    {"batch_size", "agent.batch"},
    {"gamma", "agent.discount"},
    {"algo", "agent.algorithm"},
    {"hidden_sizes", "agent.hidden"},
    {"hidden_layers", "agent.hidden"},
    {"polyak", "agent.target"},
    {"tau", "agent.target"},
    {"target_period", "agent.target"},
    {"target_update_period", "agent.target"},
    {"target_update_interval", "agent.target"},
    {"max_grad_norm", "agent.clip_norm"},
    {"huber", "agent.options.huber"},
    {"env", "environment.name"},
    {"env_name", "environment.name"},
    {"env_id", "environment.name"},
    {"id", "environment.name"},
    {"gymnasium", "environment.name"},
    {"entry_point", "environment.name"},
    {"num_envs", "actors.environments"},
    {"n_envs", "actors.environments"},
    {"num_actors", "actors.count"},
    {"n_actors", "actors.count"},
    {"num_learners", "learners.count"},
    {"learning_starts", "limiter.min_size"},
    {"exploration_noise", "actors.noise_sigma"},
    {"prefetch_size", "learners.prefetch"},
    {"variable_update_period", "actors.pull_every"},
    {"total_timesteps", "stop.steps"},
    {"total_steps", "stop.steps"},
    {"max_steps", "stop.steps"},
    {"num_steps", "stop.steps"},
    {"nstep", "adder.n_step"},
    {"n_steps", "adder.n_step"},
};

#define N_ALIASES (sizeof own_aliases / sizeof own_aliases[0])
#define MAX_ALIASES 64u
static struct schema_alias all_aliases[MAX_ALIASES + 1]; /* the last one has no word */

#define N_OWN (sizeof own_rows / sizeof own_rows[0])
#define MAX_BORROWED 96u
#define MAX_PATH 96u

/* Built once: the broker's rows are in another file, so a constant cannot hold them. */
static struct schema_row all_rows[N_OWN + MAX_BORROWED];
static char borrowed_paths[MAX_BORROWED][MAX_PATH];
static struct schema whole = {.name = "run", .rows = all_rows, .root_size = sizeof(struct run_config)};

/* Environments in Python are named python:MODULE:CALLABLE or gym:ID. */
static char *after(char *name, const char *prefix)
{
    static char none[] = "";
    size_t length = strlen(prefix);
    return name && strncmp(name, prefix, length) == 0 ? name + length : none;
}

/* Steps for which a random action is kept: as long as noise of this correlation takes to forget its past. */
static int64_t hold_of(double correlation)
{
    return correlation < 1 ? llround(fmin((1 + correlation) / (1 - correlation), HOLD_MOST)) : HOLD_MOST;
}

/* Derives what the rows of other structs say, then checks. */
static void check_run(void *root, struct schema_report *report)
{
    struct run_config *self = root;
    self->environment.python = after(self->environment.name, "python:");
    self->environment.gym = after(self->environment.name, "gym:");
    if (self->adder.kind == ADDER_EPISODE)
        self->adder.max_length = self->adder.length = self->adder.length > 0 ? self->adder.length : EPISODE_STEPS;
    else if (self->adder.length == 0)
        self->adder.length = SEQUENCE_STEPS;
    self->actors.epsilon_alpha = self->actors.epsilon_steps > 0 ? 0.0 : EPSILON_ALPHA;
    self->actors.random_hold = hold_of(self->actors.noise_correlation);
    self->agent.tau = self->agent_target < 1 ? self->agent_target : 0;
    self->agent.target_period = self->agent_target < 1 ? 0 : (int64_t)self->agent_target;
    if (run_config_needs_ours(self))
        schema_read_options(&agent_schema, &self->agent_options, "agent.options", &self->agent, report);
    run_config_check(self, report);
}

/* Moves a row of the broker by the offset of its struct in the run's, unless the row belongs to an element of a
 * list. */
static void build(void)
{
    memcpy(all_rows, own_rows, sizeof own_rows);
    assert(broker_schema.n_rows <= MAX_BORROWED);
    for (uint32_t i = 0; i < broker_schema.n_rows; i++) {
        struct schema_row *row = &all_rows[N_OWN + i];
        *row = broker_schema.rows[i];
        int length = snprintf(borrowed_paths[i], MAX_PATH, "broker.%s", row->path);
        assert(length > 0 && (uint32_t)length < MAX_PATH);
        (void)length;
        if (!strchr(row->path, '['))
            row->offset += ROOT(broker);
        row->path = borrowed_paths[i];
    }
    whole.n_rows = (uint32_t)N_OWN + broker_schema.n_rows;
    whole.check = check_run;
    uint32_t n = N_ALIASES;
    memcpy(all_aliases, own_aliases, sizeof own_aliases);
    for (const struct schema_alias *alias = broker_aliases; alias->word && n < MAX_ALIASES; alias++)
        all_aliases[n++] = *alias;
    whole.aliases = all_aliases;
}

const struct schema *run_schema(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, build);
    return &whole;
}

const char run_default_yaml[] =
    "# The embedded default: DQN on CartPole-v1.\n"
    "environment: {name: CartPole-v1}\n"
    "agent: {algorithm: dqn, hidden: [64, 64], batch: 64, learning_rate: 1e-3, target: 100}\n"
    "adder: {kind: transition, table: replay, n_step: 3}\n"
    "actors: {epsilon: 0.05, epsilon_steps: 5000}\n"
    "stop: {steps: 50000}\n"
    "broker:\n"
    "  tables:\n"
    "    - name: replay\n"
    "      max_size: 100000\n"
    "      sampler: {kind: prioritized, exponent: 0.6}\n"
    "      limiter: {kind: sample_to_insert_ratio, samples_per_insert: 32, min_size: 1000, error_buffer: 3200}\n";

static bool read_source(const struct schema_source *source, struct run_config *out, struct schema_report *report)
{
    if (!schema_read(run_schema(), source, out, report))
        return false;
    out->agent.scale = env_scale(&out->environment);
    const struct agent_ops *ops = run_config_algorithm(out); /* NULL: only programs of the user act and learn */
    out->adder.discount                                      /* n-step returns are discounted as values are */
        = out->agent.discount > 0 || !ops ? out->agent.discount : ops->defaults->discount;
    return true;
}

bool run_config_read(const char *path, const char *const *overrides, struct run_config *out,
                     struct schema_report *report)
{
    const struct schema_source source = {
        .file = path, .name = "(embedded)", .text = run_default_yaml, .overrides = overrides};
    return read_source(&source, out, report);
}

bool run_config_read_text(const char *name, const char *text, const char *const *overrides, struct run_config *out,
                          struct schema_report *report)
{
    const struct schema_source source = {.name = name, .text = text, .overrides = overrides};
    return read_source(&source, out, report);
}

void run_config_free(struct run_config *self)
{
    schema_free(run_schema(), self);
}
