/* Runs that could not work, found before anything starts: each mistake with its place, its key and its numbers. */
#include "agent/config/config.h"

#include "tests/support/runtext.h"
#include "tests/support/test.h"

#define RATIO "limiter: {kind: sample_to_insert_ratio, samples_per_insert: 8, min_size: 100, error_buffer: 800}"

TEST(min_size)
{
    static const char *const kinds[] = {"min_size", "sample_to_insert_ratio, samples_per_insert: 2, error_buffer: 500"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        runtext_expect(textf("broker:\n"
                             "  tables:\n"
                             "    - {name: replay, max_size: 100, limiter: {min_size: 101, kind: %s}}\n",
                             kinds[i]),
                       "run.yaml:3:37 broker.tables[0].limiter min_size 101 max_size 100\n");
    runtext_expect("broker: {tables: [{name: replay, max_size: 100, limiter: {kind: min_size, min_size: 100}}]}", "");
}

TEST(batch)
{
    runtext_expect("agent: {batch: 4096}\nbroker: {tables: [{name: replay}]}\n", "");
    runtext_expect("agent: {batch: 4097}\nbroker: {tables: [{name: replay}]}\n",
                   "run.yaml:1:16 agent.batch 4096 4096\n");
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
                   "run.yaml:9:23 broker.tables[0].limiter.error_buffer 127 32 agent.batch 4 128\n");
    /* The first sentence names a number that is enough for the batch, the ratio and the shards. */
    runtext_expect(SHARDED "        error_buffer: 0.5\n        samples_per_insert: 8\n",
                   "run.yaml:9:23 broker.tables[0].limiter.error_buffer 0.5 32 agent.batch 4 128\n");
    runtext_expect(SHARDED "        error_buffer: 100\n        samples_per_insert: 40\n",
                   "run.yaml:9:23 broker.tables[0].limiter.error_buffer 100 32 agent.batch 4 160\n");
    runtext_expect(SHARDED "        error_buffer: 159\n        samples_per_insert: 40\n",
                   "run.yaml:7:7 broker.tables[0].limiter error_buffer 159 4 samples_per_insert 40 160\n");
    runtext_expect(SHARDED "        error_buffer: 160\n        samples_per_insert: 40\n", "");
    runtext_expect(SHARDED "        min_diff: 0\n        max_diff: 240\n",
                   "run.yaml:7:7 broker.tables[0].limiter max_diff min_diff 240 32 agent.batch 4 256\n");
    runtext_expect("broker: {shards: 2, tables: [{name: replay, sampler: {kind: max_heap}, limiter: {kind: none}}]}",
                   "run.yaml:1:45 broker.tables[0].sampler 'max_heap' max_times_sampled 1\n");
    runtext_expect(
        "broker: {shards: 2, tables: [{name: replay, max_times_sampled: 1, max_lag: 1, sampler: fifo, limiter: "
        "{kind: lag, batch: 2560}}]}\nlearners: {count: 2}",
        "run.yaml:1:94 broker.tables[0].limiter one's 1} 1}\n");
    runtext_expect(
        "broker: {shards: 2, tables: [{name: replay, max_times_sampled: 1, max_lag: 1, sampler: fifo, limiter: "
        "{kind: lag, batch: 2560}}]}\nlearners: {count: auto}",
        "run.yaml:1:94 broker.tables[0].limiter one's 1} 1}\n");
}

/* What auto may try: as many as leave each shard room for a batch. */
TEST(most_shards)
{
    struct run_config config =
        runtext_read("broker: {shards: auto, tables: [{name: replay, sampler: {kind: uniform}, limiter: "
                     "{kind: sample_to_insert_ratio, min_size: 100, error_buffer: 800}}]}",
                     NULL);
    assert_int_equal(config.broker.shards.count, 0);
    assert_int_equal(config_shards(&config.broker), 1);
    assert_int_equal(run_config_most_shards(&config, 100), 8);
    assert_int_equal(run_config_most_shards(&config, 101), 4);
    assert_int_equal(run_config_most_shards(&config, 500), 1);
    run_config_set_shards(&config, 4);
    assert_int_equal(config_shards(&config.broker), 4);
    assert_null(config_shard_endpoint(&config.broker, 0));
    run_config_free(&config);
}

TEST(queue)
{
    for (int i = 0; i < 2; i++) {
        const char *kind = i ? "stack" : "queue";
        runtext_expect(textf("agent: {batch: 8}\n"
                             "broker:\n"
                             "  tables:\n"
                             "    - name: replay\n"
                             "      max_times_sampled: 1\n"
                             "      limiter: {kind: %s}\n"
                             "      max_size: 9\n",
                             kind),
                       textf("run.yaml:6:7: broker.tables[0].limiter: a %s of 9 items is not larger than a batch of 8 "
                             "(agent.batch) and one more: write a max_size of at least 10\n",
                             kind));
    }
    runtext_expect("agent: {batch: 8}\n"
                   "broker: {tables: [{name: replay, max_size: 10, max_times_sampled: 1, limiter: queue}]}",
                   "");
    runtext_expect("agent: {batch: 8}\n"
                   "broker:\n"
                   "  tables:\n"
                   "    - name: replay\n"
                   "      max_times_sampled: 0\n"
                   "      sampler: {kind: fifo}\n"
                   "      limiter: {kind: queue}\n",
                   "run.yaml:5:26 broker.tables[0].max_times_sampled 0 1\n");
}

/* Each item takes seven samples with it that the limiter waits for. */
TEST(times_sampled)
{
    runtext_expect("broker:\n"
                   "  tables:\n"
                   "    - name: replay\n"
                   "      max_times_sampled: 7\n"
                   "      " RATIO "\n",
                   "run.yaml:4:26 broker.tables[0].max_times_sampled 7 8 8 0\n");
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
    runtext_expect("adder: {table: other}\n" TWO_TABLES,
                   "run.yaml:4:22 broker.tables[0].sampler 'replay' 'other' adder.table adder.table\n");
    /* Nobody knows what the user's own programs do. */
    runtext_expect("learners: {command: [./mine]}\n" TWO_TABLES, "");
    runtext_expect("actors: {command: [./mine]}\n" TWO_TABLES, "");
}

TEST(stop)
{
    runtext_expect("evaluator: {episodes: 0, every: 100}\n"
                   "stop: {value: 475}\n"
                   "broker: {tables: [{name: replay}]}",
                   "run.yaml:2:15 stop.value evaluator.episodes 0\n");
    runtext_expect("evaluator: {every: 100}\nstop: {value: 475}\nbroker: {tables: [{name: replay}]}", "");
    runtext_expect("evaluator: {episodes: 0}\nstop: {value: .inf}\nbroker: {tables: [{name: replay}]}", "");
}

TEST(plan)
{
    runtext_expect(
        "actors: {count: auto}\n"
        "broker: {tables: [{name: replay}]}",
        "run.yaml:1:17 actors.count 'replay' min_size sample_to_insert_ratio} actors.count learners.count\n");
    runtext_expect("learners: {count: auto}\n"
                   "broker: {tables: [{name: replay, limiter: {kind: none}}]}",
                   "run.yaml:1:19 learners.count 'replay' sample_to_insert_ratio} actors.count learners.count\n");
    runtext_expect("actors: {count: auto}\nlearners: {count: auto}\nbroker: {tables: [{name: replay, " RATIO "}]}", "");
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
    char *text = owned(strdup(wrong));
    *strstr(text, "0}") = '1';
    runtext_expect(text, "run.yaml:1:21 environment.name 'Mine' CartPole-v1 Acrobot-v1 MountainCar-v0 "
                         "MountainCarContinuous-v0 Pendulum-v1 DeepSea SpaceInvaders InvertedPendulum CartPoleSwingUp\n"
                         "run.yaml:2:20 agent.algorithm 'mine' td3\n");
    /* A given batch counts, also for a learner of the user. */
    runtext_expect("agent: {batch: 4}\n"
                   "learners: {command: [./l]}\n"
                   "broker: {tables: [{name: replay, limiter: {kind: sample_to_insert_ratio, error_buffer: 3}}]}",
                   "run.yaml:3:88 broker.tables[0].limiter.error_buffer 3 4 agent.batch 4\n");
    runtext_expect("learners: {command: [./l]}\n"
                   "broker: {tables: [{name: replay, limiter: {kind: sample_to_insert_ratio, error_buffer: 3}}]}",
                   "");
}

/* ---- memory ---- */

static double table_bytes(const char *text, const char *set)
{
    const char *const overrides[] = {set, NULL};
    struct run_config config = runtext_read(text, set ? overrides : NULL);
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
    runtext_expect("broker:\n"
                   "  memory_limit: 64MiB\n"
                   "  tables:\n"
                   "    - name: replay\n"
                   "      max_size: 1000000\n",
                   "run.yaml:5:17 broker.tables[0].max_size 1000000 144B 79B 213MiB 56MiB broker.memory_limit 64MiB "
                   "max_bytes max_size memory_limit\n");
    runtext_expect("broker: {memory_limit: 64MiB, tables: [{name: replay, max_size: 260000}]}", "");
    runtext_expect("broker: {memory_limit: 64MiB, tables: [{name: replay, max_bytes: 35MiB}]}", "");
    runtext_expect("broker:\n"
                   "  memory_limit: 64MiB\n"
                   "  tables:\n"
                   "    - name: replay\n"
                   "      max_bytes: 60MiB\n",
                   "run.yaml:5:18 broker.tables[0].max_bytes 436906 144B 79B 93MiB 56MiB broker.memory_limit 64MiB "
                   "max_bytes max_size memory_limit\n");
}

/* Tables of others: by their signature. What is next to an observation is another item's observation. */
TEST(memory_of_signatures)
{
    runtext_expect("actors: {command: [./a]}\n"
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
                   "run.yaml:7:17 broker.tables[1].max_size 100000 16KiB 79B 1.5GiB 1.5GiB 896MiB broker.memory_limit "
                   "1.0GiB max_bytes max_size memory_limit\n");
}

/* ---- everything at once ---- */

TEST(all_at_once)
{
    runtext_expect("agent: {batch: 32, importance_exponent: 0.4}\n"
                   "adder: {buffer_items: 0}\n"
                   "actors: {count: -2}\n"
                   "learners: {count: atuo}\n"
                   "evaluator: {evry: 10}\n"
                   "stop: {value: 475}\n"
                   "plan: {cores: -2}\n"
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
                   "run.yaml:1:41 agent.importance_exponent 'replay' 0\n"
                   "run.yaml:2:23 adder.buffer_items 1 1073741824 0\n"
                   "run.yaml:3:17 actors.count 0 4096 -2\n"
                   "run.yaml:4:19 learners.count 'atuo' 'auto'\n"
                   "run.yaml:5:13 evaluator.evry 'every'\n"
                   "run.yaml:6:15 stop.value evaluator.every 0 evaluator.every 2500\n"
                   "run.yaml:7:15 plan.cores 0 1e+06 -2\n"
                   "run.yaml:8:17 launch.grace '7' 60s 500ms\n"
                   "run.yaml:13:17 broker.tables[0].max_size 400000 144B 79B 85MiB 85MiB 28MiB broker.memory_limit "
                   "32MiB max_bytes max_size memory_limit\n"
                   "run.yaml:14:26 broker.tables[0].max_times_sampled 2 8 8 0\n"
                   "run.yaml:15:84 broker.tables[0].limiter.error_buffer 16 32 agent.batch 32\n"
                   "run.yaml:18:7 broker.tables[1].sampler 'other' 'replay' adder.table adder.table\n"
                   "run.yaml:19:7 broker.tables[1].limiter min_size 11 max_size 10\n");
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
        const char *problem = cases[i].problem ? textf("run.yaml:3:5: actors.command[1]: %s\n", cases[i].problem) : "";
        runtext_expect(textf("actors:\n  command: [./a,\n    \"%s\"]\n"
                             "broker: {tables: [{name: replay, limiter: {kind: min_size}}]}\n",
                             cases[i].word),
                       problem);
    }
    runtext_expect("learners: {command: ['']}\n"
                   "broker: {tables: [{name: replay, limiter: {kind: min_size}}]}\n",
                   "run.yaml:1:22 learners.command[0]\n");
}

/* An algorithm that gives no priorities. */
TEST(no_priorities)
{
    runtext_expect("agent: {algorithm: impala}\n"
                   "adder: {kind: sequence}\n"
                   "broker:\n"
                   "  tables: [{name: replay, sampler: {kind: prioritized}, limiter: {kind: min_size}}]\n",
                   "run.yaml:4:27 broker.tables[0].sampler 'replay'\n");
}

#define EXPERT "broker: {folder: x, journal: off, tables: [{name: replay, limiter: {kind: min_size}}]}\n"

/* Learners that only have what the broker loads. */
TEST(without_actors)
{
    runtext_expect("actors: {count: 0}\nagent: {algorithm: bc}\nstop: {learner_steps: 5}\n" EXPERT, "");
    runtext_expect("actors: {count: 0}\n"
                   "broker: {tables: [{name: replay, limiter: {kind: min_size}}]}\n",
                   "run.yaml:1:17 actors.count 0 'replay' broker.folder\n");
    runtext_expect(
        "actors: {count: 0}\n"
        "broker: {folder: x, journal: off, checkpoint: {load: none}, tables: [{name: replay, limiter: {kind: "
        "min_size}}]}\n",
        "run.yaml:2:54 broker.checkpoint.load actors.count 0 'replay'\n");
    runtext_expect("actors: {count: 0}\n"
                   "broker: {folder: x, journal: off, tables: [{name: replay, " RATIO "}]}\n",
                   "run.yaml:2:59 broker.tables[0].limiter sample_to_insert_ratio actors.count 0 min_size\n");
    /* One that only holds inserts back does no harm. */
    runtext_expect(
        "actors: {count: 0}\n"
        "agent: {batch: 8}\n"
        "broker: {folder: x, journal: off, tables: [{name: replay, limiter: {kind: sample_to_insert_ratio, max_diff: "
        "1000}}]}\n",
        "");
    runtext_expect("actors: {count: 0}\n"
                   "agent: {batch: 8}\n"
                   "broker:\n"
                   "  folder: x\n"
                   "  tables: [{name: replay, max_times_sampled: 1, limiter: {kind: queue}}]\n",
                   "run.yaml:5:46 broker.tables[0].max_times_sampled 1 actors.count 0 0\n"
                   "run.yaml:5:49 broker.tables[0].limiter actors.count 0 min_size\n");
    runtext_expect("actors: {count: 0}\n"
                   "learners: {count: auto}\n"
                   "stop: {steps: 100}\n" EXPERT,
                   "run.yaml:2:19 learners.count actors.count 0\n"
                   "run.yaml:3:15 stop.steps actors.count 0 stop.learner_steps stop.time\n");
}

/* Actors that fill a table for later. */
TEST(without_learners)
{
    runtext_expect("actors: {weights: x, greedy: true}\nlearners: {count: 0}\nstop: {steps: 5}\n" EXPERT, "");
    runtext_expect("actors: {command: [x]}\nlearners: {count: 0}\n" EXPERT, "");
    runtext_expect("learners: {count: 0}\n" EXPERT,
                   "run.yaml:1:19 learners.count 0 actors.weights runs/latest/learner.weights\n");
    runtext_expect("actors: {weights: x, count: auto}\n"
                   "learners: {count: 0}\n"
                   "evaluator: {every: 10}\n"
                   "stop: {learner_steps: 5, value: 1}\n"
                   "broker: {tables: [{name: replay, " RATIO "}]}\n",
                   "run.yaml:1:29 actors.count learners.count 0\n"
                   "run.yaml:4:23 stop.learner_steps learners.count 0 stop.steps stop.time\n"
                   "run.yaml:4:33 stop.value learner's learners.count 0 stop.steps stop.time\n"
                   "run.yaml:5:34 broker.tables[0].limiter sample_to_insert_ratio learners.count 0 min_size\n");

    runtext_expect("actors: {count: 0}\nlearners: {count: 0}\n" EXPERT,
                   "run.yaml:2:19 learners.count actors.count 0\n");
}

#define TABLES "broker: {tables: [{name: replay, limiter: {kind: min_size, min_size: 100}}]}\n"

TEST(python_environments)
{
    runtext_expect("environment: {name: 'python:my_env:make'}\n" TABLES,
                   ""); /* not described yet: replay-launch asks */
    runtext_expect("environment: {name: 'gym:LunarLander-v2'}\n" TABLES, "");
    runtext_expect("environment: {name: 'python:my_env:make', spec: {shape: [4], actions: 2}}\n" TABLES, "");
    runtext_expect(
        "environment: {name: 'python:my_env'}\n" TABLES,
        "run.yaml:1:21 environment.name 'python:my_env' python:MODULE:CALLABLE python:my_env:make my_env.py\n");
    runtext_expect("environment: {name: 'gym:CartPole-v1', plugin: a.so}\n" TABLES,
                   "run.yaml:1:48 environment.plugin environment.name\n");
    runtext_expect("environment: {name: CartPole-v1, spec: {shape: [4], actions: 2}}\n" TABLES,
                   "run.yaml:1:34 environment.spec\n");
    runtext_expect("environment: {name: 'python:my_env:make', spec: {shape: [3], low: [-1], high: [1]}}\n" TABLES,
                   "run.yaml:1:1 agent.algorithm my_env:make 1 td3\n");
    runtext_expect("environment: {nam: 'my_env:make'}\n" TABLES, "run.yaml:1:15 environment.nam 'name'\n");
}
