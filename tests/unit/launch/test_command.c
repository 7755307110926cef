/* Command lines of a run's processes. */

#include "agent/launch/process/command.h"
#include "agent/run/program.h"
#include "tests/support/facts.h"
#include "tests/support/runtext.h"
#include "tests/support/tempdir.h"

static const struct endpoints bound = {"tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002", "tcp://127.0.0.1:5003"};

struct fixture {
    struct run_config config;
    struct command_context context;
};

/* Reads the default run with these overrides, in place of the one before. */
static void read_with(struct fixture *self, const char *const *overrides)
{
    run_config_free(&self->config);
    self->config = runtext_read(NULL, overrides);
    self->context = (struct command_context){.config = &self->config,
                                             .programs = "/opt/bin",
                                             .config_path = "run/config.yaml",
                                             .here = "configs",
                                             .folder = "run",
                                             .endpoints_file = "run/endpoints",
                                             .endpoints = &bound,
                                             .actors = 3,
                                             .learners = 2};
}

#define READ_WITH(f, ...) read_with(f, (const char *const[]){__VA_ARGS__, NULL})

static void begin(struct fixture *self)
{
    READ_WITH(self, NULL);
}

static void end(struct fixture *self)
{
    run_config_free(&self->config);
}

FIXTURE(struct fixture, begin, end)

static void free_words(void *words)
{
    words_free(&(char **){words});
}

/* The words with blanks between them. */
static const char *joined(char **list)
{
    const char *text = "";
    at_end(free_words, must(list));
    for (char **word = list; *word; word++)
        text = textf("%s%s%s", text, word == list ? "" : " ", *word);
    return text;
}

static void expect(const struct command_context *context, enum role role, uint32_t index, const char *expected)
{
    assert_string_equal(joined(command_build(context, role, index, &err)), expected);
}

CASE(workers)
{
    expect(
        &f->context, ROLE_LEARNER, 1,
        "/opt/bin/replay-learner -c run/config.yaml --endpoint tcp://127.0.0.1:5001 --index 1 --set learners.count=2 "
        "--set actors.count=3 --set stop.time=0s --folder run --fresh");
    f->context.resume = true;
    expect(
        &f->context, ROLE_LEARNER, 0,
        "/opt/bin/replay-learner -c run/config.yaml --endpoint tcp://127.0.0.1:5001 --index 0 --set learners.count=2 "
        "--set actors.count=3 --set stop.time=0s --folder run");
    /* One that was added later; and more to say, last. */
    static const char *const more[] = {"stop.steps=5", "adder.n=1", NULL};
    f->context.overrides = more;
    expect(&f->context, ROLE_ACTOR, 7,
           "/opt/bin/replay-actor -c run/config.yaml --endpoint tcp://127.0.0.1:5001 --index 7 --set learners.count=2 "
           "--set actors.count=8 --set stop.time=0s --folder run --set stop.steps=5 --set adder.n=1");
    f->context.overrides = NULL;
    f->context.endpoints = NULL;
    f->context.programs = "";
    f->context.folder = "";
    f->context.learners = f->context.actors = 0;
    expect(&f->context, ROLE_EVALUATOR, 0,
           "replay-actor -c run/config.yaml --endpoints-file run/endpoints --index 0 --evaluate --set learners.count=1 "
           "--set actors.count=1 --set stop.time=0s --folder ");
    f->context.folder = "it's: here";
    expect(&f->context, ROLE_ACTOR, 0,
           "replay-actor -c run/config.yaml --endpoints-file run/endpoints --index 0 --set learners.count=1 "
           "--set actors.count=1 --set stop.time=0s --folder 'it''s: here'");
}

/* What our programs make of it, by their own parser. */
static void expect_read(const struct command_context *context, enum role role, enum program_kind kind,
                        const char *folder)
{
    struct program program = {.kind = kind, .name = "test"};
    char **list = command_build(context, role, 2, &err);
    int count = 0;
    while (list[count])
        count++;
    optind = 0;
    assert_int_equal(program_start(&program, count, list), -1);
    assert_int_equal(program.index, 2);
    assert_string_equal(program.run.folder, folder);
    assert_string_equal(program.service, bound.service);
    assert_int_equal(program.run.stop.time_ns, 0);
    assert_int_equal(program.run.actors.count, 3);
    assert_int_equal(program.run.learners.count, 3);
    program_end(&program);
    words_free(&list);
    assert_null(list);
}

CASE(our_programs_understand_it)
{
    assert_int_equal(tempdir_enter(NULL), 0);
    file_put(tempdir_at("run.yaml"), run_default_yaml);
    READ_WITH(f, "stop.time=5s");
    f->context.config_path = owned(strdup(tempdir_at("run.yaml")));
    f->context.learners = 3;
    static const char *const folders[] = {"", "runs/a-1", "it's: here", "a #b", "'x'", "[x]", "- y"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        f->context.folder = folders[i];
        expect_read(&f->context, ROLE_LEARNER, PROGRAM_LEARNER, folders[i]);
        expect_read(&f->context, ROLE_ACTOR, PROGRAM_ACTOR, folders[i]);
        expect_read(&f->context, ROLE_EVALUATOR, PROGRAM_ACTOR, folders[i]);
    }
    assert_int_equal(tempdir_leave(NULL), 0);
}

#define BROKER "/opt/bin/replay-broker -c run/config.yaml --section broker --endpoints-file run/endpoints"

CASE(broker)
{
    READ_WITH(f, "broker.service=tcp://127.0.0.1:0", "broker.ingest=tcp://127.0.0.1:0",
              "broker.events=tcp://127.0.0.1:0");
    f->context.endpoints = NULL;
    expect(&f->context, ROLE_BROKER, 0, BROKER);
    f->context.endpoints = &bound;
    static const char *const more[] = {"broker.tables[0].limiter.kind=none", NULL};
    f->context.overrides = more;
    expect(&f->context, ROLE_BROKER, 0,
           BROKER " --set broker.service=tcp://127.0.0.1:5001 --set broker.ingest=tcp://127.0.0.1:5002 "
                  "--set broker.events=tcp://127.0.0.1:5003 --set broker.tables[0].limiter.kind=none");
    /* What the user wrote stays: a port, a path, all interfaces with any port. */
    READ_WITH(f, "broker.service=tcp://*:0", "broker.ingest=tcp://*:7777", "broker.events=ipc:///tmp/x");
    expect(&f->context, ROLE_BROKER, 0, BROKER " --set broker.service=tcp://*:5001");
    f->context.endpoints = NULL;
    expect(&f->context, ROLE_BROKER, 0, BROKER);
}

/* Each shard has ports of its own, which a restarted broker finds in its file. */
CASE(broker_with_shards)
{
    READ_WITH(f, "broker.shards=4", "broker.service=tcp://*:0");
    expect(&f->context, ROLE_BROKER, 0, BROKER " --again");
    f->context.endpoints = NULL;
    expect(&f->context, ROLE_BROKER, 0, BROKER);
}

/* What the broker keeps lies in the run's folder, unless the file says another place. */
CASE(broker_keeps)
{
    READ_WITH(f, "broker.folder=broker");
    f->context.endpoints = NULL;
    f->context.folder = "runs/it's 1";
    expect(&f->context, ROLE_BROKER, 0, BROKER " --set broker.folder='runs/it''s 1/broker'");
    static const struct {
        const char *dir, *path;
    } cases[] = {{"broker", "run/broker"}, {"a/b", "run/a/b"},     {".x", "run/.x"},  {"/var/x", "/var/x"},
                 {"./x", "./x"},           {"../../x", "../../x"}, {"..x", "run/..x"}};
    begin(f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[64];
        assert_string_equal(command_keep(&f->context, cases[i].dir, out, sizeof out), cases[i].path);
    }
    f->context.folder = "";
    char out[64];
    assert_string_equal(command_keep(&f->context, "broker", out, sizeof out), "broker");
}

CASE(placeholders)
{
    READ_WITH(f, "name=mine", "seed=40",
              "actors.command=[./my_actor, '{service}|{ingest}|{events}', '{index}/{count}', '{seed}', 'x{folder}y', "
              "'{config}', '{here}/a', '{table}', '{name}', '{{\"a\":{{}}', '']",
              "learners.command=[python3, '{here}/learner.py', '{count}']");
    expect(&f->context, ROLE_ACTOR, 2,
           "./my_actor tcp://127.0.0.1:5001|tcp://127.0.0.1:5002|tcp://127.0.0.1:5003 2/3 42 xruny run/config.yaml "
           "configs/a replay mine {\"a\":{}} ");
    expect(&f->context, ROLE_LEARNER, 0, "python3 configs/learner.py 2");
    f->context.endpoints = NULL;
    assert_null(command_build(&f->context, ROLE_ACTOR, 0, &err));
    assert_non_null(strstr(err.text, "{service}"));
}

CASE(error_names_the_placeholder)
{
    char *words[] = {"./x", "--at={servise}"};
    struct schema_list before = f->config.actors.command;
    f->config.actors.command = (struct schema_list){words, 2};
    must_fail_new(command_build(&f->context, ROLE_ACTOR, 0, &err), RP_INVALID_ARGUMENT, NULL);
    assert_true(facts_within(err.text, "actors.command: there is no placeholder like '{servise}'"));
    f->config.actors.command = before;
}

CASE(environment)
{
    assert_string_equal(joined(command_environment(&f->context, ROLE_ACTOR, 4)),
                        "REPLAY_ENDPOINT=tcp://127.0.0.1:5001 REPLAY_INDEX=4 REPLAY_FOLDER=run "
                        "REPLAY_CONFIG=run/config.yaml REPLAY_COUNT=5 REPLAY_SEED=5 REPLAY_TABLE=replay "
                        "OPENBLAS_NUM_THREADS=1 REPLAY_KEY_FILE="); /* not that of the user's environment */
    assert_memory_equal(joined(command_environment(&f->context, ROLE_BROKER, 0)), "REPLAY_INDEX=0", 14);
}

/* A thousand writers with one key are enough for most runs; a larger run tells its broker. */
CASE(writers_of_a_run)
{
    static const char *const own[] = {"actors.count=300", "actors.environments=4", NULL};
    const struct run_keys keys = {.on = true, .list = "keys"};
    for (int large = 0; large < 2; large++) {
        read_with(f, large ? own : NULL);
        f->context.keys = &keys;
        const char *words = joined(command_build(&f->context, ROLE_BROKER, 0, &err));
        assert_int_equal(strstr(words, " broker.security.quota.sessions=2400") != NULL, large);
    }
}

CASE(measure)
{
    struct command_evaluation evaluation = {.weights = "w"};
    READ_WITH(f, "evaluator.episodes=33");
    assert_string_equal(joined(command_evaluate(&f->context, &evaluation, NULL)),
                        "/opt/bin/replay-actor -c run/config.yaml --weights w --episodes 33 --folder ");
    READ_WITH(f, "evaluator.command=[python3, '{here}/a.py', evaluator]");
    expect(&f->context, ROLE_EVALUATOR, 0, "python3 configs/a.py evaluator");
    evaluation.episodes = "7";
    evaluation.json = true;
    assert_string_equal(joined(command_evaluate(&f->context, &evaluation, NULL)),
                        "python3 configs/a.py evaluator --weights w --episodes 7 --json");
}

static rp_status read_endpoints(const char *text, size_t size, struct endpoints *out)
{
    const char *path = tempdir_at("endpoints");
    err = (rp_error){0};
    file_write(path, text, size, 0600);
    rp_status status = endpoints_read(path, out, &err);
    if (status != RP_OK)
        assert_has(err.text, path);
    return status;
}

TEST(endpoints, tempdir_enter, tempdir_leave)
{
    struct endpoints out;
    static const char good[] = "service tcp://0.0.0.0:1\ningest ipc:///tmp/service/events\nevents tcp://*:3\n";
    assert_int_equal(read_endpoints(good, sizeof good - 1, &out), RP_OK);
    assert_string_equal(out.service, "tcp://127.0.0.1:1");
    assert_string_equal(out.ingest, "ipc:///tmp/service/events");
    assert_string_equal(out.events, "tcp://127.0.0.1:3");
    for (size_t cut = 0; cut < strlen("service tcp://0.0.0.0:1\ningest ipc:///tmp/service/events\nevents tcp:/"); cut++)
        assert_int_equal(read_endpoints(good, cut, &out), RP_NOT_FOUND);
    char junk[5000];
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (char)(i * 37);
    assert_int_equal(read_endpoints(junk, sizeof junk, &out), RP_NOT_FOUND);
    memset(junk, 'x', sizeof junk);
    memcpy(junk, "service tcp://", 14);
    assert_int_equal(read_endpoints(junk, sizeof junk, &out), RP_INVALID_ARGUMENT);
    assert_int_equal(endpoints_read("/no/such/file", &out, &err), RP_IO);
}
