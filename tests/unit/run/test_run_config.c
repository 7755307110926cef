/* The configuration of a run: defaults, the broker's rows inside it, and every mistake that is found before a start. */
#include "agent/config/config.h"

#include "tests/support/facts.h"
#include "tests/support/runtext.h"

/* The default run with overrides has exactly these problems. */
static void expect(const char *const *overrides, const char *problems)
{
    struct run_config config = {0}, zero = {0};
    struct schema_report *report = schema_report_new();
    assert_false(run_config_read(NULL, overrides, &config, report));
    facts_same(schema_report_text(report), problems);
    assert_memory_equal(&config, &zero, sizeof config);
    schema_report_destroy(&report);
}

#define EXPECT(problems, ...) expect((const char *const[]){__VA_ARGS__, NULL}, problems)

TEST(embedded)
{
    struct run_config config = runtext_read(NULL, NULL);
    assert_string_equal(config.environment.name, "CartPole-v1");
    assert_string_equal(run_config_algorithm(&config)->name, "dqn");
    assert_string_equal(run_config_table(&config)->name, "replay");
    assert_true(config.adder.discount == 0.99); /* the algorithm's */
    assert_true(config.agent.double_q);
    assert_true(isinf(config.stop.value));
    assert_int_equal(config.seed, 1);
    assert_int_equal(config.adder.buffer_items, 200);
    assert_string_equal(config.broker.service, "tcp://127.0.0.1:7600");
    run_config_free(&config);
    config = runtext_read(NULL, (const char *const[]){"agent.discount=0.9", NULL});
    assert_true(config.adder.discount == 0.9);
    run_config_free(&config);
}

/* Actors explore on a ladder or on a schedule, and random actions are held for as long as noise is correlated. */
TEST(exploration)
{
    static const struct {
        const char *const overrides[3];
        double alpha;
        int64_t hold;
    } cases[] = {{{"actors.epsilon_steps=0"}, 7, 1},
                 {{"actors.epsilon_steps=1"}, 0, 1},
                 {{"actors.epsilon_steps=0", "actors.noise_correlation=0.5"}, 7, 3},
                 {{"actors.noise_correlation=0.95"}, 0, 39},
                 {{"actors.noise_correlation=1"}, 0, 1000000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct run_config config = runtext_read(run_default_yaml, cases[i].overrides);
        assert_true(config.actors.epsilon_alpha == cases[i].alpha);
        assert_int_equal(config.actors.random_hold, cases[i].hold);
        run_config_free(&config);
    }
}

/* Batches under way: what the file says, or what the limiter leaves room for. */
TEST(prefetch)
{
    static const struct {
        const char *const overrides[4];
        int64_t batch;
        uint32_t expected;
    } cases[] = {
        {{"learners.prefetch=3"}, 64, 3},
        {{"broker.tables[0].limiter={kind: sample_to_insert_ratio, samples_per_insert: 32, error_buffer: 1280}"},
         64,
         16},
        {{"broker.tables[0].limiter={kind: sample_to_insert_ratio, samples_per_insert: 32, error_buffer: 640}"}, 64, 8},
        {{"broker.tables[0].limiter={kind: sample_to_insert_ratio, samples_per_insert: 32, error_buffer: 640}",
          "learners.count=2"},
         64,
         4},
        {{"broker.tables[0].limiter={kind: sample_to_insert_ratio, samples_per_insert: 32, error_buffer: 200}"}, 64, 2},
        {{"broker.tables[0].limiter={kind: min_size, min_size: 10}"}, 64, 16},
        {{"broker.tables[0].limiter=queue", "broker.tables[0].max_size=100"}, 8, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct run_config config = runtext_read(run_default_yaml, cases[i].overrides);
        assert_int_equal(run_config_prefetch(&config, cases[i].batch), cases[i].expected);
        run_config_free(&config);
    }
}

/* Values of the broker's rows land in the broker's struct, as if it had read its section alone. */
TEST(broker_rows)
{
    static const char text[] = "learners: {command: [./mine]}\n"
                               "broker:\n"
                               "  service: tcp://127.0.0.1:1\n"
                               "  memory_limit: 2GiB\n"
                               "  session: {expiry: 77s}\n"
                               "  log: {level: warn}\n"
                               "  plugins: []\n"
                               "  tables:\n"
                               "    - {name: replay, max_size: 5, remover: {kind: lifo}}\n"
                               "    - name: other\n"
                               "      max_times_sampled: 3\n"
                               "      sampler: {kind: prioritized, exponent: 0.5}\n"
                               "      limiter: {kind: queue}\n"
                               "      signature: {x: [float32, 0, 3]}\n";
    struct run_config config = runtext_read(text, NULL);
    struct broker_config alone = {0};
    struct schema_report *report = schema_report_new();
    const struct schema_source source = {.name = "run.yaml", .text = text, .section = "broker"};
    assert_true(schema_read(&broker_schema, &source, &alone, report));
    schema_report_destroy(&report);
    const char *whole = PRINTED(schema_print(&broker_schema, &config.broker, printing));
    assert_string_equal(PRINTED(schema_print(&broker_schema, &alone, printing)), whole);
    assert_int_equal(alone.expiry_ns, INT64_C(77000000000));
    run_config_free(&config);
    schema_free(&broker_schema, &alone);
}

static const char *print(const struct run_config *config)
{
    return PRINTED(schema_print(run_schema(), config, printing));
}

TEST(print_reads_back)
{
    static const char *const overrides[] = {"environment.name=Pendulum-v1", "environment.delay=3ms",
                                            "agent.algorithm=sac",          "agent.hidden=[32, 16]",
                                            "agent.activation=tanh",        "stop.value=-165.5",
                                            "evaluator.every=500",          "actors.count=auto",
                                            "folder=/tmp/with blank",       NULL};
    struct run_config config = runtext_read(run_default_yaml, overrides);
    const char *first = print(&config);
    struct run_config back = runtext_read(first, NULL);
    const char *second = print(&back);
    assert_string_equal(first, second);
    assert_int_equal(back.agent.hidden.count, 2);
    assert_int_equal(back.agent.activation, 1);
    assert_true(back.stop.value == -165.5);
    assert_int_equal(back.actors.count, RUN_AUTO);
    run_config_free(&config);
    run_config_free(&back);
}

/* Rows have help, unless only programs write them, and no two the same path; the schema is what both readers and the reference use. */
TEST(rows)
{
    const struct schema *schema = run_schema();
    assert_ptr_equal(schema, run_schema());
    for (uint32_t i = 0; i < schema->n_rows; i++) {
        assert_true(schema->rows[i].help ? schema->rows[i].help[0] != 0
                                         : strstr(schema->rows[i].path, ".spec.") != NULL);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(schema->rows[i].path, schema->rows[j].path);
    }
}

TEST(names)
{
    EXPECT("override 'environment.name=CartPol-v1': environment.name: unknown environment 'CartPol-v1' (did you mean "
           "'CartPole-v1'?)\n",
           "environment.name=CartPol-v1");
    EXPECT("override 'agent.algorithm=dqm': agent.algorithm: unknown algorithm 'dqm' (did you mean 'dqn'?)\n",
           "agent.algorithm=dqm");
    EXPECT("override 'agent.algorithm=reinforce': agent.algorithm: unknown algorithm 'reinforce'; there are dqn, ddpg, "
           "td3, sac, impala, bc\n",
           "agent.algorithm=reinforce");
    EXPECT("override 'adder.table=repla': adder.table: there is no table 'repla' in broker.tables (did you mean "
           "'replay'?)\n",
           "adder.table=repla");
    EXPECT("override 'adder.table=q': adder.table: there is no table 'q' in broker.tables\n", "adder.table=q");
    EXPECT("override 'actors.count=-1': actors.count: must be auto, or between 0 and 4096, not -1\n",
           "actors.count=-1");
    EXPECT("override 'learners.count=65': learners.count: must be auto, or between 0 and 64, not 65\n",
           "learners.count=65");
    EXPECT("override 'actor.count=2': actor: unknown key (did you mean 'actors'?)\n", "actor.count=2");
}

#define IMPALA "agent.algorithm=impala", "agent.target=0", "broker.tables[0].sampler={kind: uniform}"

TEST(parts_that_do_not_fit)
{
    EXPECT("override 'agent.algorithm=ddpg': agent.algorithm: ddpg needs continuous actions; CartPole-v1 has 2 "
           "discrete ones: use dqn, impala or bc\n",
           "agent.algorithm=ddpg");
    EXPECT("(embedded):3:20: agent.algorithm: dqn needs discrete actions; an action of Pendulum-v1 is 1 real number: "
           "use ddpg, td3, sac or bc\n",
           "environment.name=Pendulum-v1");
    EXPECT("(embedded):3:1: agent: agent.filters asks for a convolution over images, but observations of CartPole-v1 "
           "have rank 1, not 3 (height, width, planes): leave filters out\n",
           "agent.filters=8");
    EXPECT("(embedded):4:15: adder.kind: impala learns from sequences: write kind: sequence\n", IMPALA);
    EXPECT("override 'adder.kind=sequence': adder.kind: dqn learns from transitions: write kind: transition\n",
           "adder.kind=sequence");
    EXPECT("override 'adder.period=22': adder.period: 22 is more than length - burn_in, 21: no item would train on the "
           "steps in between; write at most 21\n",
           IMPALA, "adder.kind=sequence", "adder.period=22");
    EXPECT("override 'adder.period=12': adder.period: 12 is more than length - burn_in, 11: no item would train on the "
           "steps in between; write at most 11\n",
           IMPALA, "adder.kind=sequence", "adder.burn_in=10", "adder.period=12");
    EXPECT("override 'adder.burn_in=21': adder.burn_in: 21 leaves nothing to train on of a length of 21: write at most "
           "20\n",
           IMPALA, "adder.kind=sequence", "adder.burn_in=21");
    EXPECT("override 'adder.length=1': adder.length: a sequence of 1 steps has nothing to learn from: write at least "
           "2\n",
           IMPALA, "adder.kind=sequence", "adder.length=1");
    EXPECT(
        "override 'adder.length=65537': adder.length: a sequence of 65537 steps is longer than an item may be: write "
        "at most 65536\n",
        IMPALA, "adder.kind=sequence", "adder.length=65537", "broker.memory_limit=1TiB");
    EXPECT("override 'agent.batch=300': agent.batch: 300 sequences of up to 65536 steps are too much for one learner "
           "step: write at most 256\n",
           IMPALA, "adder.kind=sequence", "adder.length=65536", "agent.batch=300", "broker.memory_limit=1TiB");
    EXPECT("override 'adder.actor_priorities=yes': adder.actor_priorities: are those of transitions: leave them out "
           "with this kind\n",
           IMPALA, "adder.kind=sequence", "adder.actor_priorities=yes");
}

/* What only programs of the user read is theirs: their algorithm, and its options. */
TEST(own_programs)
{
    static const char *const all[] = {"actors.command=[./a]", "learners.command=[./l]", "evaluator.command=[./e]",
                                      "agent={algorithm: mine, options: {clip: 0.2, horizon: 32}}", NULL};
    struct run_config config = runtext_read(run_default_yaml, all);
    assert_false(run_config_needs_ours(&config));
    assert_int_equal(config.agent_options.count, 2);
    run_config_free(&config);
}

TEST(limiters)
{
    EXPECT("(embedded):12:7: broker.tables[0].limiter: max_diff less min_diff is 127, below two batches of 64 "
           "(agent.batch): actors and learners would wait for each other at every batch; let them be 128 apart\n",
           "broker.tables[0].limiter.error_buffer=-1", "broker.tables[0].limiter.min_diff=0",
           "broker.tables[0].limiter.max_diff=127");
    /* The broker's own checks speak of their place in the run. */
    EXPECT("override 'broker.tables[0].sampler={kind: priritized}': broker.tables[0].sampler: no selector 'priritized' "
           "(did you mean 'prioritized'?)\n",
           "broker.tables[0].sampler={kind: priritized}");
}
