/* Runs under Slurm, as far as no cluster is needed: numbers of actors and tasks, the scripts, answers of squeue and sbatch, what a
 * folder remembers, and calls of programs that answer, fail or hang. */
#include <sys/stat.h>
#include <time.h>

#include "agent/launch/slurm/slurm.h"
#include "agent/launch/slurm/slurm_source.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "tests/support/tempdir.h"

#define SLURM "launch.engine=slurm"

static void free_config(void *config)
{
    run_config_free(config);
    free(config);
}

/* Reads the default run with overrides, which has so many mistakes. */
static struct run_config *read_config(uint32_t mistakes, const char *first, const char *second, const char *third)
{
    const char *const overrides[] = {SLURM, first, second, third, NULL};
    struct schema_report *report = schema_report_new();
    struct run_config *out = must(calloc(1, sizeof *out));
    run_config_read(NULL, overrides, out, report);
    assert_int_equal(schema_report_count(report), mistakes);
    schema_report_destroy(&report);
    at_end(free_config, out);
    return out;
}

static void assert_actors(const char *count, uint32_t least, uint32_t most, uint32_t tasks)
{
    uint32_t low = 0, high = 0;
    struct run_config *config = read_config(0, textf("launch.slurm={count: %s}", count), "actors.count=auto", NULL);
    assert_true(run_config_slurm_actors(config, &low, &high));
    assert_int_equal(low, least);
    assert_int_equal(high, most);
    assert_int_equal(run_config_slurm_tasks(config, high), tasks);
}

TEST(counts)
{
    assert_actors("4-64", 4, 64, 8);
    assert_actors("8", 8, 8, 1);
    assert_actors("1-9", 1, 9, 2);
    assert_actors("1-9, actors: {cpus-per-task: 3}", 1, 9, 3);
    static const char *const wrong[] = {"0", "-4", "4-", "8-4", "four", "4-8-16", "1-99999", "4..8"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        read_config(1, textf("launch.slurm.count=%s", wrong[i]), NULL, NULL);
}

TEST(mistakes)
{
    static const char *const wrong[][2] = {
        {"launch.slurm.count=2-4", "actors.count=8"},
        {"launch.slurm.count=1-2000", "launch.slurm.actors.cpus-per-task=1"},
        {"launch.slurm.actors.cpus-per-task=0", NULL},
        {"launch.slurm.actors.cpus-per-task=many", NULL},
        {"launch.slurm.actors.cpus-per-task=1025", NULL},
        {"launch.slurm.core.signal=B:USR1", NULL},
        {"launch.slurm.core.signal=USR1@60", NULL},
        {"launch.slurm.core.signal=B:USR1@0", NULL},
        {"launch.slurm.core={--account: x}", NULL},
        {"launch.slurm.actors={'gres ': x}", NULL},
        {"launch.slurm.core.partition=\"main\\ntouch x\"", NULL}, /* would be a command of the script */
        {"launch.slurm.actors.partition=\"main\\rx\"", NULL},
        {"launch.slurm.core.partition=\"main --wrap=x\"", NULL},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        read_config(1, wrong[i][0], wrong[i][1], NULL);
    read_config(0, "launch.slurm.count=2-8", "actors.count=8", "launch.slurm.core.time=1-0");
}

/* A requeued job needs its tables: there is a folder of checkpoints, unless the file names one. */
TEST(complete)
{
    struct run_config *config = read_config(0, "launch.slurm.count=4-24", "actors.count=auto", NULL);
    run_config_complete_slurm(config);
    assert_int_equal(config->plan.max_actors, 24);
    assert_string_equal(config->broker.folder, "checkpoint");
    assert_int_equal(config->broker.journal_ns, JOURNAL_OFF);
    config = read_config(0, "broker.folder=kept", NULL, NULL);
    run_config_complete_slurm(config);
    assert_string_equal(config->broker.folder, "kept");
}

TEST(core_script)
{
    struct run_config *config =
        read_config(0, "launch.slurm={core: {partition: gpu, exclusive: '', time: 90, account: x, signal: B:USR1@30}}",
                    "name=my run", NULL);
    const char *const words[] = {"/runs/it's", "a-$SLURM_JOB_ID", "$X", NULL};
    struct slurm_script script = {
        .config = config, .program = "/bin/replay-launch", .output = "/runs/a b/core.log", .core = words};
    char *text = owned(slurm_script_core(&script));
    assert_ptr_equal(strstr(text, "#!/bin/sh\n#SBATCH --job-name=my-run\n"), text);
    HAS(text, "\n#SBATCH --partition=gpu\n", "\n#SBATCH --exclusive\n", "\n#SBATCH --time=90\n",
        "\n#SBATCH --account=x\n", "\n#SBATCH --signal=B:USR1@30\n", "\n#SBATCH --requeue\n",
        "\n#SBATCH --open-mode=append\n", "\n#SBATCH --output=\"/runs/a b/core.log\"\n",
        "exec '/bin/replay-launch' core '/runs/it'\\''s' 'a-'\"$SLURM_JOB_ID\"'' '$X'");
}

TEST(actors_script)
{
    struct run_config *config =
        read_config(0, "launch.slurm={core: {time: 90}, actors: {partition: spare, nice: 10}, count: 4-20}",
                    "actors.count=auto", NULL);
    char *text = owned(slurm_script_actors(&(struct slurm_script){.config = config}));
    HAS(text, "\n#SBATCH --array=0-2\n", "\n#SBATCH --partition=spare\n", "\n#SBATCH --cpus-per-task=8\n",
        "\n#SBATCH --requeue\n", "\n#SBATCH --nice=10\n");
    assert_has_not(text, "--time="); /* that of the core job */
}

TEST(paths)
{
    static const char *const wrong[] = {"/home/100%", "/home/$x", "/home/\"x", "/home/x\ny"};
    ok(slurm_check_path("/home/a b/runs/x-2", &err));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(slurm_check_path(wrong[i], &err), RP_INVALID_ARGUMENT);
}

TEST(answers)
{
    struct slurm_job jobs[8];
    static const char text[] = "12_0|13|RUNNING|n1|None\n"
                               "12_1|14|PENDING||ReqNodeNotAvail, UnavailableNodes:n1|x\n"
                               "12_[2-5]|12|PENDING||Priority\n" /* without -r */
                               "slurm: a warning\n"
                               "12_6|15|COMPLETING|n2|None\n"
                               "12_7|x|RUNNING|n2|None\n"
                               "9|9|RUNNING|n[1-2]|None\n"
                               "10|10|NODE_FAIL||None";
    assert_int_equal(slurm_parse_jobs(text, jobs, 8), 5);
    static const struct {
        uint64_t id;
        uint32_t index;
        enum slurm_state state;
        const char *node, *reason;
    } wanted[] = {{13, 0, SLURM_RUNNING, "n1", ""},
                  {14, 1, SLURM_PENDING, "", "ReqNodeNotAvail, UnavailableNodes:n1|x"},
                  {15, 6, SLURM_ENDING, "n2", ""},
                  {9, 0, SLURM_RUNNING, "n[1-2]", ""},
                  {10, 0, SLURM_GONE, "", ""}};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(jobs[i].id, wanted[i].id);
        assert_int_equal(jobs[i].index, wanted[i].index);
        assert_int_equal(jobs[i].state, wanted[i].state);
        assert_string_equal(jobs[i].node, wanted[i].node);
        assert_string_equal(jobs[i].reason, wanted[i].reason);
    }
    assert_int_equal(slurm_parse_jobs(text, jobs, 2), 2);
    assert_int_equal(slurm_parse_jobs("", jobs, 8), 0);
    assert_int_equal(slurm_parse_jobs("|||||||\n1|2|3\n\n", jobs, 8), 0);
}

TEST(ids)
{
    uint64_t id = 0;
    assert_int_equal(slurm_take_id("123\n", &id, NULL), RP_OK);
    assert_int_equal(id, 123);
    assert_int_equal(slurm_take_id("77;cluster\n", &id, NULL), RP_OK);
    assert_int_equal(id, 77);
    static const char *const wrong[] = {"", "\n", "-3", "0", "x", "99999999999999999999999", "Submitted batch job 3"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(slurm_take_id(wrong[i], &id, NULL), RP_INTERNAL);
}

TEST(record, tempdir_enter, tempdir_leave)
{
    struct slurm_record record = {.core = 5, .array = UINT64_C(1) << 40, .tasks = 8, .script = "/x"}, back;
    assert_false(slurm_record_read(tempdir, &back));
    ok(slurm_record_write(tempdir, &record, &err));
    assert_true(slurm_record_read(tempdir, &back));
    assert_memory_equal(&record, &back, sizeof record);
    assert_int_equal(run_folder_write(tempdir, SLURM_RECORD, "{\"core\":", &err), RP_OK);
    assert_false(slurm_record_read(tempdir, &back));
}

/* The variables of the launcher's own job do not reach the programs of Slurm, but the place of the cluster does. */
TEST(calls)
{
    char *text = NULL;
    assert_int_equal(setenv("SLURM_JOB_ID", "7", 1), 0);
    assert_int_equal(setenv("SLURM_CONF", "/x", 1), 0);
    ok(slurm_run(WORDS("sh", "-c", "echo \"$SLURM_JOB_ID,$SLURM_CONF\""), 0, &text, &err));
    assert_string_equal(owned(text), ",/x\n");
    assert_int_equal(unsetenv("SLURM_JOB_ID"), 0); /* outside of a job, variables are the user's own */
    assert_int_equal(setenv("SLURM_CLUSTERS", "x", 1), 0);
    ok(slurm_run(WORDS("sh", "-c", "echo $SLURM_CLUSTERS"), 0, &text, &err));
    assert_string_equal(owned(text), "x\n");
    assert_int_equal(slurm_run(WORDS("sh", "-c", "echo 'x: error: wrong partition' >&2; exit 3"), 0, NULL, &err),
                     RP_FAILED_PRECONDITION);
    assert_string_equal(err.text, "Slurm: wrong partition");
    assert_int_equal(slurm_run(WORDS("no-such-program-of-slurm"), 0, NULL, &err), RP_NOT_FOUND);
    const char *const hangs[] = {"sleep", "60", NULL};
    assert_int_equal(slurm_run(hangs, 50000000, NULL, &err), RP_DEADLINE_EXCEEDED);
    assert_non_null(strstr(err.text, "after 0.05 s")); /* the limit of this call */
}

/* ---- programs of Slurm that are scripts of the test ---- */

static char path_before[4096];

static int enter_fakes(void **state)
{
    if (tempdir_enter(state) != 0)
        return -1;
    snprintf(path_before, sizeof path_before, "%s", getenv("PATH"));
    return setenv("PATH", textf("%s:%s", tempdir, path_before), 1) || setenv("FAKES", tempdir, 1);
}

static int leave_fakes(void **state)
{
    return setenv("PATH", path_before, 1) || tempdir_leave(state);
}

static void fake(const char *name, const char *body)
{
    const char *text = textf("#!/bin/sh\n%s\n", body);
    file_write(tempdir_at("fake.new"), text, strlen(text), 0755); /* the one before may run now */
    assert_int_equal(rename(tempdir_at("fake.new"), tempdir_at(name)), 0);
}

/* Slurm forgets jobs, and some callers do not want to hear why. */
TEST(forgotten, enter_fakes, leave_fakes)
{
    struct slurm_job job;
    fake("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
    fake("scancel", "echo 'scancel: error: Kill job error on job id 5: Invalid job id specified' >&2; exit 1");
    assert_int_equal(slurm_poll(5, &job, NULL), RP_OK);
    assert_int_equal(job.state, SLURM_GONE);
    assert_int_equal(slurm_cancel(5, NULL), RP_OK);
    fake("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1");
    fake("scancel", "echo 'scancel: error: Access/permission denied' >&2; exit 1");
    assert_int_equal(slurm_poll(5, &job, NULL), RP_FAILED_PRECONDITION);
    assert_int_equal(slurm_cancel(5, NULL), RP_FAILED_PRECONDITION);
}

/* Slurm is asked whether it would take both jobs, and what it says is reported. */
TEST(jobs_are_tested, enter_fakes, leave_fakes)
{
    struct schema_report *report = schema_report_new();
    struct run_config *config = read_config(0, "launch.slurm={core: {partition: gpu, account: x}, count: 1-16}",
                                            "launch.slurm.actors={cpus-per-task: 4, partition: spare}", NULL);
    fake("sbatch", "echo \"$*\" >>\"$FAKES/words\"");
    slurm_check(config, report);
    assert_int_equal(schema_report_count(report), 0);
    HAS(file_text(tempdir_at("words")), " --partition=gpu --account=x --wrap=true\n",
        " --partition=spare --cpus-per-task=4 --array=0-3 --wrap=true\n");
    fake("sbatch", "echo 'allocation failure: Invalid partition name specified' >&2; exit 1");
    slurm_check(config, report);
    assert_int_equal(schema_report_count(report), 2);
    assert_non_null(strstr(schema_report_text(report), "Invalid partition name"));
    schema_report_destroy(&report);
}

/* The question whether nodes see a folder has the partition and the options of the core job. */
TEST(shared, enter_fakes, leave_fakes)
{
    struct run_config *config = read_config(0, "launch.slurm={core: {partition: gpu, account: x}}", NULL, NULL);
    fake("srun", "echo \"$*\" >\"$FAKES/words\"; echo seen");
    assert_int_equal(slurm_check_shared(config, tempdir, &err), RP_OK);
    assert_has(file_text(tempdir_at("words")), " --partition=gpu --account=x --cpus-per-task=1 --mem=64M -- sh -c ");
    fake("srun", "echo missing");
    assert_int_equal(slurm_check_shared(config, tempdir, &err), RP_FAILED_PRECONDITION);
    fake("srun", "echo 'srun: error: Unable to allocate resources' >&2; exit 1");
    assert_int_equal(slurm_check_shared(config, tempdir, &err), RP_UNAVAILABLE);
}

static void write_record(const char *name, uint64_t array)
{
    struct slurm_record record = {.core = 5, .array = array, .tasks = 2, .script = "/a \"array\": 4"};
    assert_int_equal(mkdir(tempdir_at(name), 0700), 0);
    ok(slurm_record_write(tempdir_at(name), &record, &err));
}

/* Tasks of array 9 stay while slurm.json has no number, an older one for a moment, or theirs; not if it keeps to another one,
 * although the run goes on. */
TEST(stray_array, enter_fakes, leave_fakes)
{
    write_record("none", 0);
    write_record("older", 8);
    write_record("own", 9);
    const struct slurm_script script = {.config = read_config(0, NULL, NULL, NULL)};
    file_put(tempdir_at("hold"), owned(slurm_script_actors(&script)));
    fake("sleep",
         "n=$(($(cat \"$FAKES/n\") + 1)); echo $n >\"$FAKES/n\"\n"
         "case $n in 1) from= ;; 2) from=none ;; 3 | 4 | 5) from=older ;; 6) from=own ;; *) from=older ;; esac\n"
         "[ -z \"$from\" ] || cp \"$FAKES/$from/slurm.json\" \"$FAKES/slurm.json\"\n"
         "touch \"$FAKES/status.json\"\n"
         "[ $n -lt 30 ] || kill -9 $PPID");
    fake("scancel", "echo \"$*\" >\"$FAKES/cancelled\"");
    file_put(tempdir_at("n"), "0\n");
    assert_int_equal(system("SLURM_ARRAY_JOB_ID=9 SLURM_ARRAY_TASK_ID=0 sh \"$FAKES/hold\" \"$FAKES\" 5 >/dev/null"),
                     0);
    assert_string_equal(file_text(tempdir_at("n")), "10\n");
    assert_string_equal(file_text(tempdir_at("cancelled")), "9\n");
}

/* Bytes of the log, which has warnings alone. */
#define warned() strlen(file_text(tempdir_at("log")))

/* Lets a source look until it has warned of something, or for some looks. */
static void look_at_tasks(struct slurm_source *source, uint32_t looks)
{
    int64_t end_ns = clock_ns() + 20 * NS_PER_S;
    struct host_source *hosts = slurm_source_hosts(source);
    for (size_t before = warned(), seen = 0; warned() == before && seen < looks && clock_ns() < end_ns;) {
        static int64_t now_ns = NS_PER_S;
        hosts->look(hosts, NULL, now_ns += NS_PER_S);
        nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
        seen = strlen(file_text(tempdir_at("looks")));
    }
}

/* A task that is gone for good is named once; the array as a whole is still there. */
TEST(lost_task, enter_fakes, leave_fakes)
{
    struct run_config *config =
        read_config(0, "launch.slurm={count: 2, actors: {cpus-per-task: 1}}", "actors.count=2", NULL);
    fake("sbatch", "echo 12");
    fake("scancel", "");
    fake("squeue", "printf x >>\"$FAKES/looks\"; echo '12_0|13|PENDING||Priority'; echo '12_1|14|PENDING||Priority'");
    const struct slurm_source_options options = {.config = config, .folder = tempdir, .programs = tempdir};
    log_set_level(LEVEL_WARN);
    ok(log_open(tempdir_at("log"), &err));
    struct slurm_source *source = must(slurm_source_new(&options, &err));
    look_at_tasks(source, 8);
    assert_int_equal(warned(), 0);
    fake("squeue", "printf x >>\"$FAKES/looks\"; echo '12_1|14|PENDING||Priority'");
    look_at_tasks(source, 100);
    size_t once = warned();
    assert_has(file_text(tempdir_at("log")), "1 of the 2 tasks");
    run_folder_remove(tempdir, "looks");
    look_at_tasks(source, 12);
    assert_int_equal(warned(), once);
    slurm_source_destroy(&source);
    log_close();
    log_set_level(LEVEL_OFF);
}
