/* Runs that could not work, found before anything starts: each mistake with its place and its sentence. */
#include "agent/config/config.h"

#include "tests/support/runtext.h"
#include "tests/support/test.h"

#define RATIO "limiter: {kind: sample_to_insert_ratio, samples_per_insert: 8, min_size: 100, error_buffer: 800}"

TEST(min_size)
{
    static const char *const kinds[] = {"min_size", "sample_to_insert_ratio, samples_per_insert: 2, error_buffer: 500"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "broker:\n"
                 "  tables:\n"
                 "    - {name: replay, max_size: 100, limiter: {min_size: 101, kind: %s}}\n",
                 kinds[i]);
        runtext_expect(
            text, "run.yaml:3:37: broker.tables[0].limiter: min_size 101 can never be reached: max_size is 100, so "
                  "every sample would wait for ever\n");
    }
    runtext_expect("broker: {tables: [{name: replay, max_size: 100, limiter: {kind: min_size, min_size: 100}}]}", "");
}

TEST(error_buffer)
{
    runtext_expect(
        "agent: {batch: 32}\n"
        "broker:\n"
        "  tables:\n"
        "    - name: replay\n"
        "      limiter:\n"
        "        kind: sample_to_insert_ratio\n"
        "        error_buffer: 31\n",
        "run.yaml:7:23: broker.tables[0].limiter.error_buffer: 31 is below one batch of 32 (agent.batch): actors and "
        "learners would wait for each other at every batch; write at least 32\n");
}

TEST(batch)
{
    runtext_expect("agent: {batch: 4096}\nbroker: {tables: [{name: replay}]}\n", "");
    runtext_expect("agent: {batch: 4097}\nbroker: {tables: [{name: replay}]}\n",
                   "run.yaml:1:16: agent.batch: a broker gives at most 4096 items in one sample: write at most 4096\n");
    runtext_expect("agent: {batch: 8192}\nlearners: {command: [mine]}\nbroker: {tables: [{name: replay}]}\n", "");
}

#define SHARDED                                                                                                        \
    "agent: {batch: 32}\n"                                                                                             \
    "broker:\n"                                                                                                        \
    "  shards: 4\n"                                                                                                    \
    "  tables:\n"                                                                                                      \
    "    - name: replay\n"                                                                                             \
    "      sampler: {kind: uniform}\n"                                                                                 \
    "      limiter:\n"                                                                                                 \
    "        kind: sample_to_insert_ratio\n"

TEST(shards)
{
    runtext_expect(SHARDED "        error_buffer: 128\n", "");
    runtext_expect(SHARDED "        error_buffer: 127\n",
                   "run.yaml:9:23: broker.tables[0].limiter.error_buffer: 127 is 31.75 for each of 4 shards, below one "
                   "batch of 32 (agent.batch): samplers would wait at every batch; write at least 128, or fewer "
                   "shards\n");
    /* The first sentence names a number that is enough for the batch, the ratio and the shards. */
    runtext_expect(SHARDED "        error_buffer: 0.5\n        samples_per_insert: 8\n",
                   "run.yaml:9:23: broker.tables[0].limiter.error_buffer: 0.5 is 0.125 for each of 4 shards, below one "
                   "batch of 32 (agent.batch): samplers would wait at every batch; write at least 128, or fewer "
                   "shards\n");
    runtext_expect(SHARDED "        error_buffer: 100\n        samples_per_insert: 40\n",
                   "run.yaml:9:23: broker.tables[0].limiter.error_buffer: 100 is 25 for each of 4 shards, below one "
                   "batch of 32 (agent.batch): samplers would wait at every batch; write at least 160, or fewer "
                   "shards\n");
    runtext_expect(
        SHARDED "        error_buffer: 159\n        samples_per_insert: 40\n",
        "run.yaml:7:7: broker.tables[0].limiter: error_buffer 159 is too small for 4 shards: with "
        "samples_per_insert 40 inserts and samples of a shard could block each other; write at least 160, or "
        "fewer shards\n");
    runtext_expect(SHARDED "        error_buffer: 160\n        samples_per_insert: 40\n", "");
    runtext_expect(SHARDED "        min_diff: 0\n        max_diff: 240\n",
                   "run.yaml:7:7: broker.tables[0].limiter: max_diff less min_diff is 60 for each of 4 shards, below "
                   "two batches of 32 (agent.batch): samplers would wait at every batch; let them be 256 apart, or "
                   "write fewer shards\n");
    runtext_expect("broker: {shards: 2, tables: [{name: replay, sampler: {kind: max_heap}, limiter: {kind: none}}]}",
                   "run.yaml:1:45: broker.tables[0].sampler: the sampler 'max_heap' cannot be used over shards: it has "
                   "no mass by which a batch could be divided among them. Use uniform or prioritized, or fifo with the "
                   "limiter queue\n");
}

/* What auto may try: as many as leave each shard room for a batch. */
TEST(most_shards)
{
    struct run_config config = {0};
    struct schema_report *report = schema_report_new();
    assert_true(
        run_config_read_text("run.yaml",
                             "broker: {shards: auto, tables: [{name: replay, sampler: {kind: uniform}, limiter: "
                             "{kind: sample_to_insert_ratio, min_size: 100, error_buffer: 800}}]}",
                             NULL, &config, report));
    assert_int_equal(config.broker.shards.count, 0);
    assert_int_equal(config_shards(&config.broker), 1);
    assert_int_equal(run_config_most_shards(&config, 100), 8);
    assert_int_equal(run_config_most_shards(&config, 101), 4);
    assert_int_equal(run_config_most_shards(&config, 500), 1);
    run_config_set_shards(&config, 4);
    assert_int_equal(config_shards(&config.broker), 4);
    assert_null(config_shard_endpoint(&config.broker, 0));
    run_config_free(&config);
    schema_report_destroy(&report);
}

TEST(queue)
{
    for (int i = 0; i < 2; i++) {
        const char *kind = i ? "stack" : "queue";
        char text[512], want[512];
        snprintf(text, sizeof text,
                 "agent: {batch: 8}\n"
                 "broker:\n"
                 "  tables:\n"
                 "    - name: replay\n"
                 "      max_times_sampled: 1\n"
                 "      limiter: {kind: %s}\n"
                 "      max_size: 9\n",
                 kind);
        snprintf(want, sizeof want,
                 "run.yaml:6:7: broker.tables[0].limiter: a %s of 9 items is not larger than a batch of 8 "
                 "(agent.batch) and one more: write a max_size of at least 10\n",
                 kind);
        runtext_expect(text, want);
    }
    runtext_expect("agent: {batch: 8}\n"
                   "broker: {tables: [{name: replay, max_size: 10, max_times_sampled: 1, limiter: queue}]}",
                   "");
    runtext_expect(
        "agent: {batch: 8}\n"
        "broker:\n"
        "  tables:\n"
        "    - name: replay\n"
        "      max_times_sampled: 0\n"
        "      sampler: {kind: fifo}\n"
        "      limiter: {kind: queue}\n",
        "run.yaml:5:26: broker.tables[0].max_times_sampled: is 0, so items of this queue never leave, and a fifo "
        "sampler would give the same one again and again: write 1\n");
}

/* Each item takes seven samples with it that the limiter waits for. */
TEST(times_sampled)
{
    runtext_expect(
        "broker:\n"
        "  tables:\n"
        "    - name: replay\n"
        "      max_times_sampled: 7\n"
        "      " RATIO "\n",
        "run.yaml:4:26: broker.tables[0].max_times_sampled: an item leaves after 7 samples, but the limiter wants 8 "
        "for each insert: inserts would end up waiting for samples, and samples for items; write at least 8, or "
        "0\n");
    runtext_expect("broker: {tables: [{name: replay, max_times_sampled: 8, " RATIO "}]}", "");
    /* Inserts are never held back here. */
    runtext_expect("broker:\n"
                   "  tables:\n"
                   "    - name: replay\n"
                   "      max_times_sampled: 7\n"
                   "      limiter: {kind: sample_to_insert_ratio, samples_per_insert: 8, min_diff: -1000}\n",
                   "");
}

#define TWO_TABLES                                                                                                     \
    "broker:\n"                                                                                                        \
    "  tables:\n"                                                                                                      \
    "    - {name: replay, sampler: {kind: prioritized, exponent: 0.6}}\n"                                              \
    "    - name: other\n"                                                                                              \
    "      sampler: {kind: prioritized, exponent: 0.6}\n"

TEST(updates)
{
    runtext_expect(
        "name: x\n" TWO_TABLES,
        "run.yaml:6:7: broker.tables[1].sampler: no learner updates the priorities of table 'other': learners "
        "sample and "
        "update 'replay' (adder.table) alone; write another sampler, or name this table in adder.table\n");
    runtext_expect(
        "adder: {table: other}\n" TWO_TABLES,
        "run.yaml:4:22: broker.tables[0].sampler: no learner updates the priorities of table 'replay': learners sample "
        "and update 'other' (adder.table) alone; write another sampler, or name this table in adder.table\n");
    /* Nobody knows what the user's own programs do. */
    runtext_expect("learners: {command: [./mine]}\n" TWO_TABLES, "");
    runtext_expect("actors: {command: [./mine]}\n" TWO_TABLES, "");
}

TEST(stop)
{
    runtext_expect("stop: {value: 475}\n"
                   "broker: {tables: [{name: replay}]}",
                   "run.yaml:1:15: stop.value: is the mean return of an evaluation, and there is one only at the end "
                   "(evaluator.every is 0): write how many steps lie between two, such as evaluator.every: 2500\n");
    runtext_expect(
        "evaluator: {episodes: 0, every: 100}\n"
        "stop: {value: 475}\n"
        "broker: {tables: [{name: replay}]}",
        "run.yaml:2:15: stop.value: is the mean return of an evaluation, and evaluator.episodes is 0: nobody would "
        "measure it; write some episodes\n");
    runtext_expect("evaluator: {every: 100}\nstop: {value: 475}\nbroker: {tables: [{name: replay}]}", "");
    runtext_expect("evaluator: {episodes: 0}\nstop: {value: .inf}\nbroker: {tables: [{name: replay}]}", "");
}

TEST(plan)
{
    runtext_expect(
        "actors: {count: auto}\n"
        "broker: {tables: [{name: replay}]}",
        "run.yaml:1:17: actors.count: auto needs to know how many samples there should be per insert, and the limiter "
        "of table 'replay' (min_size) does not say: write plan.spi\n");
    runtext_expect(
        "learners: {count: auto}\n"
        "broker: {tables: [{name: replay, limiter: {kind: none}}]}",
        "run.yaml:1:19: learners.count: auto needs to know how many samples there should be per insert, and the "
        "limiter of table 'replay' (none) does not say: write plan.spi\n");
    runtext_expect("actors: {count: auto}\nplan: {spi: 8}\nbroker: {tables: [{name: replay}]}", "");
    runtext_expect("actors: {count: auto}\nlearners: {count: auto}\nbroker: {tables: [{name: replay, " RATIO "}]}", "");
    runtext_expect(
        "plan: {spi: 4}\n"
        "broker: {tables: [{name: replay, " RATIO "}]}",
        "run.yaml:1:13: plan.spi: counts would be chosen for 4 samples per insert, but the limiter of table 'replay' "
        "holds 8: leave plan.spi out, or change the limiter\n");
    runtext_expect("plan: {spi: 8.5}\nbroker: {tables: [{name: replay, " RATIO "}]}", "");
    runtext_expect("plan: {spi: 7.5}\nbroker: {tables: [{name: replay, " RATIO "}]}", "");
    runtext_expect(
        "plan: {spi: 2}\n"
        "broker: {tables: [{name: replay, max_times_sampled: 1, limiter: {kind: queue}}]}",
        "run.yaml:1:13: plan.spi: counts would be chosen for 2 samples per insert, but the limiter of table 'replay' "
        "holds 1: leave plan.spi out, or change the limiter\n");
}

/* What the user's own programs make of the environment, the agent and the batch is theirs. */
TEST(commands)
{
    static const char wrong[] = "environment: {name: Mine}\n"
                                "agent: {algorithm: mine}\n"
                                "adder: {kind: sequence, length: 2, period: 3}\n"
                                "actors: {command: [./a]}\n"
                                "learners: {command: [./l]}\n"
                                "evaluator: {episodes: 0}\n"
                                "broker:\n"
                                "  tables:\n"
                                "    - name: replay\n"
                                "      limiter: {kind: sample_to_insert_ratio, error_buffer: 3}\n";
    runtext_expect(wrong, "");
    char text[1024];
    snprintf(text, sizeof text, "%s", wrong);
    *strstr(text, "0}") = '1';
    runtext_expect(
        text, "run.yaml:1:21: environment.name: unknown environment 'Mine'; there are CartPole-v1, Acrobot-v1, "
              "MountainCar-v0, MountainCarContinuous-v0, Pendulum-v1, Catch, DeepSea, Breakout, Freeway, Asterix, "
              "SpaceInvaders, Memory, InvertedPendulum, "
              "CartPoleSwingUp, Cheetah\n"
              "run.yaml:2:20: agent.algorithm: unknown algorithm 'mine'; there are dqn, ddpg, td3, sac, impala, bc\n");
    /* A given batch counts, also for a learner of the user. */
    runtext_expect(
        "agent: {batch: 4}\n"
        "learners: {command: [./l]}\n"
        "broker: {tables: [{name: replay, limiter: {kind: sample_to_insert_ratio, error_buffer: 3}}]}",
        "run.yaml:3:88: broker.tables[0].limiter.error_buffer: 3 is below one batch of 4 (agent.batch): actors and "
        "learners would wait for each other at every batch; write at least 4\n");
    runtext_expect("learners: {command: [./l]}\n"
                   "broker: {tables: [{name: replay, limiter: {kind: sample_to_insert_ratio, error_buffer: 3}}]}",
                   "");
}

/* ---- memory ---- */

static double table_bytes(const char *text, const char *set)
{
    struct run_config config = {0};
    struct schema_report *report = schema_report_new();
    const char *const overrides[] = {set, NULL};
    if (!run_config_read_text("run.yaml", text, set ? overrides : NULL, &config, report))
        fail_msg("%s", schema_report_text(report));
    schema_report_destroy(&report);
    struct env env;
    assert_int_equal(env_open(&env, &config.environment, NULL), RP_OK);
    double bytes = run_config_table_bytes(&config, run_config_table(&config), &env.spec);
    env_close(&env);
    run_config_free(&config);
    return bytes;
}

/* A row of CartPole-v1 is 16 + 4 + 4 + 4 bytes; 48 and 4 + 4 * 5 are its chunk's; 16-byte grains; two or more in a list; and 79 bytes
 * without data: with uniform and fifo. */
TEST(table_bytes)
{
    static const char text[] = "broker: {tables: [{name: replay, max_size: 1000}]}";
    assert_true(table_bytes(text, NULL) == 1000.0 * (112 + 32 + 79));
    assert_true(table_bytes(text, "adder.n_step=10") == 1000.0 * (112 + 96 + 79));
    assert_true(table_bytes(text, "adder.chunk_length=10") == 1000.0 * (352 / 10.0 + 32 + 79));
    assert_true(table_bytes(text, "broker.tables[0].max_bytes=4KiB") == 28.0 * (112 + 32 + 79));
    static const char sequences[] = "agent: {algorithm: impala, batch: 2}\n"
                                    "adder: {kind: sequence, length: 21, period: 20}\n"
                                    "broker: {tables: [{name: replay, max_size: 100, max_times_sampled: 1,\n"
                                    "  limiter: {kind: queue}}]}";
    /* 28 + 1 + 4 bytes in six columns; only 100 of them wait in the queue. */
    assert_true(table_bytes(sequences, NULL) == 100.0 * (20 * 128 + 176 + 79));
}

TEST(memory)
{
    runtext_expect(
        "broker:\n"
        "  memory_limit: 64MiB\n"
        "  tables:\n"
        "    - name: replay\n"
        "      max_size: 1000000\n",
        "run.yaml:5:17: broker.tables[0].max_size: 1000000 items of 144B and 79B of overhead need 213MiB, and tables "
        "may take 56MiB: "
        "broker.memory_limit 64MiB less what is under way; write max_bytes, a smaller max_size, or a "
        "higher memory_limit\n");
    runtext_expect("broker: {memory_limit: 64MiB, tables: [{name: replay, max_size: 260000}]}", "");
    runtext_expect("broker: {memory_limit: 64MiB, tables: [{name: replay, max_bytes: 35MiB}]}", "");
    runtext_expect(
        "broker:\n"
        "  memory_limit: 64MiB\n"
        "  tables:\n"
        "    - name: replay\n"
        "      max_bytes: 60MiB\n",
        "run.yaml:5:18: broker.tables[0].max_bytes: 436906 items of 144B and 79B of overhead need 93MiB, and tables "
        "may take 56MiB: "
        "broker.memory_limit 64MiB less what is under way; write a smaller max_bytes, a smaller "
        "max_size, or a higher memory_limit\n");
}

/* Tables of others: by their signature. What is next to an observation is another item's observation. */
TEST(memory_of_signatures)
{
    runtext_expect(
        "actors: {command: [./a]}\n"
        "broker:\n"
        "  memory_limit: 1GiB\n"
        "  tables:\n"
        "    - {name: replay, max_size: 1000}\n"
        "    - name: frames\n"
        "      max_size: 100000\n"
        "      signature:\n"
        "        observation: [uint8, 64, 64, 4]\n"
        "        next_observation: [uint8, 64, 64, 4]\n"
        "    - {name: small, max_size: 1024, signature: {x: [float32, 0, 64]}}\n",
        "run.yaml:7:17: broker.tables[1].max_size: 100000 items of 16KiB and 79B of overhead need 1.5GiB (1.5GiB with "
        "the other tables), "
        "and tables may take 896MiB: broker.memory_limit 1.0GiB less what is under way; write "
        "max_bytes, a smaller max_size, or a higher memory_limit\n");
}

/* ---- everything at once ---- */

TEST(all_at_once)
{
    runtext_expect(
        "agent: {batch: 32, importance_exponent: 0.4}\n"
        "adder: {batch_items: 50, buffer_items: 20}\n"
        "actors: {count: -2}\n"
        "learners: {count: atuo}\n"
        "evaluator: {evry: 10}\n"
        "stop: {value: 475}\n"
        "plan: {spi: 2}\n"
        "launch: {grace: 7}\n"
        "broker:\n"
        "  memory_limit: 32MiB\n"
        "  tables:\n"
        "    - name: replay\n"
        "      max_size: 400000\n"
        "      max_times_sampled: 2\n"
        "      limiter: {kind: sample_to_insert_ratio, samples_per_insert: 8, error_buffer: 16}\n"
        "    - name: other\n"
        "      max_size: 10\n"
        "      sampler: {kind: prioritized}\n"
        "      limiter: {kind: min_size, min_size: 11}\n",
        "run.yaml:1:41: agent.importance_exponent: importance weights make up for prioritized sampling, and the "
        "sampler of table 'replay' is uniform: write 0, or a prioritized sampler\n"
        "run.yaml:2:40: adder.buffer_items: a batch of 50 items (batch_items) does not fit into 20\n"
        "run.yaml:3:17: actors.count: must be auto, or between 0 and 4096, not -2\n"
        "run.yaml:4:19: learners.count: 'atuo' is not auto, or a whole number (did you mean 'auto'?)\n"
        "run.yaml:5:13: evaluator.evry: unknown key (did you mean 'every'?)\n"
        "run.yaml:6:15: stop.value: is the mean return of an evaluation, and there is one only at the end "
        "(evaluator.every is 0): write how many steps lie between two, such as evaluator.every: 2500\n"
        "run.yaml:7:13: plan.spi: counts would be chosen for 2 samples per insert, but the limiter of table 'replay' "
        "holds 8: leave plan.spi out, or change the limiter\n"
        "run.yaml:8:17: launch.grace: '7' is a bare number and needs a unit: 60s, 500ms\n"
        "run.yaml:13:17: broker.tables[0].max_size: 400000 items of 144B and 79B of overhead need 85MiB (85MiB with "
        "the other "
        "tables), and tables may take 28MiB: "
        "broker.memory_limit 32MiB less what is under way; write max_bytes, a smaller max_size, or a "
        "higher memory_limit\n"
        "run.yaml:14:26: broker.tables[0].max_times_sampled: an item leaves after 2 samples, but the limiter wants 8 "
        "for each insert: inserts would end up waiting for samples, and samples for items; write at least 8, or 0\n"
        "run.yaml:15:84: broker.tables[0].limiter.error_buffer: 16 is below one batch of 32 (agent.batch): actors and "
        "learners would wait for each other at every batch; write at least 32\n"
        "run.yaml:18:7: broker.tables[1].sampler: no learner updates the priorities of table 'other': learners sample "
        "and update 'replay' (adder.table) alone; write another sampler, or name this table in adder.table\n"
        "run.yaml:19:7: broker.tables[1].limiter: min_size 11 can never be reached: max_size is 10, so every sample "
        "would wait for ever\n");
}

/* One word of a command, and what is wrong with it; NULL: nothing. */
TEST(placeholders)
{
    static const struct {
        const char *word, *problem;
    } cases[] = {
        {"plain", NULL},
        {"", NULL},
        {"{index}{index}", NULL},
        {"a}b", NULL},
        {"{{x}", NULL},
        {"{{{index}", NULL},
        {"{indx}", "there is no placeholder {indx} (did you mean {index}?)"},
        {"{index}{}", "there is no placeholder {}; docs/LAUNCH.md lists them ('{{' is a brace)"},
        {"{index", "'{index' has no closing brace; '{{' stands for a brace"},
        {"{{{", "'{' has no closing brace; '{{' stands for a brace"},
        {"{a{index}", "there is no placeholder {a{index} (did you mean {index}?)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512], problem[256] = "";
        snprintf(text, sizeof text,
                 "actors:\n  command: [./a,\n    \"%s\"]\n"
                 "broker: {tables: [{name: replay, limiter: {kind: min_size}}]}\n",
                 cases[i].word);
        if (cases[i].problem)
            snprintf(problem, sizeof problem, "run.yaml:3:5: actors.command[1]: %s\n", cases[i].problem);
        runtext_expect(text, problem);
    }
    runtext_expect("learners: {command: ['']}\n"
                   "broker: {tables: [{name: replay, limiter: {kind: min_size}}]}\n",
                   "run.yaml:1:22: learners.command[0]: is empty: write the program to start\n");
}

/* An algorithm that gives no priorities. */
TEST(no_priorities)
{
    runtext_expect(
        "agent: {algorithm: impala}\n"
        "adder: {kind: sequence}\n"
        "broker:\n"
        "  tables: [{name: replay, sampler: {kind: prioritized}, limiter: {kind: min_size}}]\n",
        "run.yaml:4:27: broker.tables[0].sampler: no learner updates the priorities of table 'replay': impala gives "
        "none; write another sampler\n");
}

#define EXPERT "broker: {folder: x, journal: off, tables: [{name: replay, limiter: {kind: min_size}}]}\n"

/* Learners that only have what the broker loads. */
TEST(without_actors)
{
    runtext_expect("actors: {count: 0}\nagent: {algorithm: bc}\nstop: {learner_steps: 5}\n" EXPERT, "");
    runtext_expect(
        "actors: {count: 0}\n"
        "broker: {tables: [{name: replay, limiter: {kind: min_size}}]}\n",
        "run.yaml:1:17: actors.count: is 0, so no actor fills table 'replay': write broker.folder, the folder "
        "of a checkpoint to load\n");
    runtext_expect(
        "actors: {count: 0}\n"
        "broker: {folder: x, journal: off, checkpoint: {load: none}, tables: [{name: replay, limiter: {kind: "
        "min_size}}]}\n",
        "run.yaml:2:54: broker.checkpoint.load: is none, and actors.count is 0, so no actor fills table 'replay': "
        "write newest\n");
    runtext_expect(
        "actors: {count: 0}\n"
        "broker: {folder: x, journal: off, tables: [{name: replay, " RATIO "}]}\n",
        "run.yaml:2:59: broker.tables[0].limiter: a sample_to_insert_ratio limiter lets learners sample as often as "
        "actors insert, and no actor inserts (actors.count is 0): they would wait for ever; write kind: min_size\n");
    /* One that only holds inserts back does no harm. */
    runtext_expect(
        "actors: {count: 0}\n"
        "agent: {batch: 8}\n"
        "broker: {folder: x, journal: off, tables: [{name: replay, limiter: {kind: sample_to_insert_ratio, max_diff: "
        "1000}}]}\n",
        "");
    runtext_expect(
        "actors: {count: 0}\n"
        "agent: {batch: 8}\n"
        "broker:\n"
        "  folder: x\n"
        "  tables: [{name: replay, max_times_sampled: 1, limiter: {kind: queue}}]\n",
        "run.yaml:5:46: broker.tables[0].max_times_sampled: items leave after 1 samples, and no actor inserts others "
        "(actors.count is 0): the table would run empty; write 0\n"
        "run.yaml:5:49: broker.tables[0].limiter: a queue limiter lets learners sample as often as actors insert, "
        "and no actor inserts (actors.count is 0): they would wait for ever; write kind: min_size\n");
    runtext_expect("actors: {count: 0}\n"
                   "learners: {count: auto}\n"
                   "stop: {steps: 100}\n" EXPERT,
                   "run.yaml:2:19: learners.count: auto weighs learners against actors, and actors.count is 0: write a "
                   "number\n"
                   "run.yaml:3:15: stop.steps: are taken by actors, and actors.count is 0: this end never comes; write "
                   "stop.learner_steps or stop.time\n");
}

/* Actors that fill a table for later. */
TEST(without_learners)
{
    runtext_expect("actors: {weights: x, greedy: true}\nlearners: {count: 0}\nstop: {steps: 5}\n" EXPERT, "");
    runtext_expect("actors: {command: [x]}\nlearners: {count: 0}\n" EXPERT, "");
    runtext_expect("learners: {count: 0}\n" EXPERT,
                   "run.yaml:1:19: learners.count: is 0, so actors have no parameters: write actors.weights, "
                   "the saved state of a learner such as runs/latest/learner.weights\n");
    runtext_expect(
        "actors: {weights: x, count: auto}\n"
        "learners: {count: 0}\n"
        "evaluator: {every: 10}\n"
        "stop: {learner_steps: 5, value: 1}\n"
        "broker: {tables: [{name: replay, " RATIO "}]}\n",
        "run.yaml:1:29: actors.count: auto weighs actors against learners, and learners.count is 0: write a "
        "number\n"
        "run.yaml:4:23: stop.learner_steps: are made by learners, and learners.count is 0: this end never comes; "
        "write stop.steps or stop.time\n"
        "run.yaml:4:33: stop.value: is what a learner's parameters give, and learners.count is 0: this end never "
        "comes; write stop.steps or stop.time\n"
        "run.yaml:5:34: broker.tables[0].limiter: a sample_to_insert_ratio limiter lets actors insert as often as "
        "learners sample, and no learner samples (learners.count is 0): they would wait for ever; write kind: "
        "min_size\n");

    runtext_expect(
        "actors: {count: 0}\nlearners: {count: 0}\n" EXPERT,
        "run.yaml:2:19: learners.count: no actor runs (actors.count is 0) and no learner: nothing would happen\n");
}

#define TABLES "broker: {tables: [{name: replay, limiter: {kind: min_size, min_size: 100}}]}\n"

TEST(python_environments)
{
    runtext_expect("environment: {name: 'python:my_env:make'}\n" TABLES,
                   ""); /* not described yet: replay-launch asks */
    runtext_expect("environment: {name: 'gym:LunarLander-v2'}\n" TABLES, "");
    runtext_expect("environment: {name: 'python:my_env:make', spec: {shape: [4], actions: 2}}\n" TABLES, "");
    runtext_expect("environment: {name: 'python:my_env'}\n" TABLES,
                   "run.yaml:1:21: environment.name: 'python:my_env' is not python:MODULE:CALLABLE: write "
                   "python:my_env:make for the "
                   "function make in my_env.py\n");
    runtext_expect("environment: {name: 'gym:CartPole-v1', plugin: a.so}\n" TABLES,
                   "run.yaml:1:48: environment.plugin: is a shared object with C environments, and environment.name is "
                   "Python: leave one of them out\n");
    runtext_expect(
        "environment: {name: CartPole-v1, spec: {shape: [4], actions: 2}}\n" TABLES,
        "run.yaml:1:34: environment.spec: describes an environment in Python, and this one is C: leave it out\n");
    runtext_expect(
        "environment: {name: 'python:my_env:make', spec: {shape: [3], low: [-1], high: [1]}}\n" TABLES,
        "run.yaml:1:1: agent.algorithm: dqn needs discrete actions; my_env:make has 1 continuous action: use ddpg, "
        "td3, sac or bc\n");
    runtext_expect("environment: {nam: 'my_env:make'}\n" TABLES,
                   "run.yaml:1:15: environment.nam: unknown key (did you mean 'name'?)\n");
}
