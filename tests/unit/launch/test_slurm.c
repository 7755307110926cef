/* Runs under Slurm, as far as no cluster is needed: numbers of actors and tasks, the scripts, answers of squeue and sbatch, what a
 * folder remembers, and calls of programs that answer, fail or hang. */
#include <sys/stat.h>
#include <time.h>

#include "agent/launch/slurm/slurm.h"
#include "agent/launch/slurm/slurm_source.h"
#include "proto/base/clock.h"
#include "proto/base/need.h"
#include "tests/support/tempdir.h"

#define SLURM "launch.engine=slurm"

/* Reads the default run with overrides; the number of mistakes. */
static uint32_t read_config(struct run_config *out, const char *first, const char *second, const char *third)
{
    const char *const overrides[] = {SLURM, first, second, third, NULL};
    struct schema_report *report = schema_report_new();
    assert_non_null(report);
    *out = (struct run_config){0};
    run_config_read(NULL, overrides, out, report);
    uint32_t n = schema_report_count(report);
    schema_report_destroy(&report);
    return n;
}

static void assert_actors(const char *count, uint32_t least, uint32_t most, uint32_t tasks)
{
    char text[64];
    struct run_config config;
    uint32_t low = 0, high = 0;
    snprintf(text, sizeof text, "launch.slurm={count: %s}", count);
    assert_int_equal(read_config(&config, text, "actors.count=auto", NULL), 0);
    assert_true(run_config_slurm_actors(&config, &low, &high));
    assert_int_equal(low, least);
    assert_int_equal(high, most);
    assert_int_equal(run_config_slurm_tasks(&config, high), tasks);
    run_config_free(&config);
}

TEST(counts)
{
    assert_actors("4-64", 4, 64, 8);
    assert_actors("8", 8, 8, 1);
    assert_actors("1-9", 1, 9, 2);
    assert_actors("1-9, actors: {cpus-per-task: 3}", 1, 9, 3);
    static const char *const wrong[] = {"0", "-4", "4-", "8-4", "four", "4-8-16", "1-99999", "4..8"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[64];
        struct run_config config;
        snprintf(text, sizeof text, "launch.slurm.count=%s", wrong[i]);
        assert_int_not_equal(read_config(&config, text, NULL, NULL), 0);
        run_config_free(&config);
    }
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
    struct run_config config;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(read_config(&config, wrong[i][0], wrong[i][1], NULL), 1);
        run_config_free(&config);
    }
    assert_int_equal(read_config(&config, "launch.slurm.count=2-8", "actors.count=8", "launch.slurm.core.time=1-0"), 0);
    run_config_free(&config);
}

/* A requeued job needs its tables: there is a folder of checkpoints, unless the file names one. */
TEST(complete)
{
    struct run_config config;
    assert_int_equal(read_config(&config, "launch.slurm.count=4-24", "actors.count=auto", NULL), 0);
    run_config_complete_slurm(&config);
    assert_int_equal(config.plan.max_actors, 24);
    assert_string_equal(config.broker.folder, "checkpoint");
    assert_int_equal(config.broker.journal_ns, JOURNAL_OFF);
    run_config_free(&config);
    assert_int_equal(read_config(&config, "broker.folder=kept", NULL, NULL), 0);
    run_config_complete_slurm(&config);
    assert_string_equal(config.broker.folder, "kept");
    run_config_free(&config);
}

static bool has_line(const char *text, const char *line)
{
    char wanted[256];
    snprintf(wanted, sizeof wanted, "\n%s\n", line);
    return strstr(text, wanted) != NULL;
}

TEST(core_script)
{
    struct run_config config;
    assert_int_equal(
        read_config(&config,
                    "launch.slurm={core: {partition: gpu, exclusive: '', time: 90, account: x, signal: B:USR1@30}}",
                    "name=my run", NULL),
        0);
    const char *const words[] = {"/runs/it's", "a-$SLURM_JOB_ID", "$X", NULL};
    struct slurm_script script = {
        .config = &config, .program = "/bin/replay-launch", .output = "/runs/a b/core.log", .core = words};
    char *text = slurm_script_core(&script);
    assert_non_null(text);
    assert_ptr_equal(strstr(text, "#!/bin/sh\n#SBATCH --job-name=my-run\n"), text);
    static const char *const lines[] = {"#SBATCH --partition=gpu",
                                        "#SBATCH --exclusive",
                                        "#SBATCH --time=90",
                                        "#SBATCH --account=x",
                                        "#SBATCH --signal=B:USR1@30",
                                        "#SBATCH --requeue",
                                        "#SBATCH --open-mode=append",
                                        "#SBATCH --output=\"/runs/a b/core.log\"",
                                        "exec '/bin/replay-launch' core '/runs/it'\\''s' 'a-'\"$SLURM_JOB_ID\"'' '$X'"};
    for (size_t i = 0; i + 1 < sizeof lines / sizeof lines[0]; i++)
        assert_true(has_line(text, lines[i]));
    assert_non_null(strstr(text, lines[8]));
    free(text);
    run_config_free(&config);
}

TEST(actors_script)
{
    struct run_config config;
    assert_int_equal(read_config(&config,
                                 "launch.slurm={core: {time: 90}, actors: {partition: spare, nice: 10}, count: 4-20}",
                                 "actors.count=auto", NULL),
                     0);
    struct slurm_script script = {.config = &config};
    char *text = slurm_script_actors(&script);
    assert_non_null(text);
    static const char *const lines[] = {"#SBATCH --array=0-2", "#SBATCH --partition=spare", "#SBATCH --cpus-per-task=8",
                                        "#SBATCH --requeue", "#SBATCH --nice=10"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        assert_true(has_line(text, lines[i]));
    assert_null(strstr(text, "--time=")); /* that of the core job */
    free(text);
    run_config_free(&config);
}

TEST(paths)
{
    assert_int_equal(slurm_check_path("/home/a b/runs/x-2", &err), RP_OK);
    assert_int_equal(slurm_check_path("/home/100%", &err), RP_INVALID_ARGUMENT);
    assert_int_equal(slurm_check_path("/home/$x", &err), RP_INVALID_ARGUMENT);
    assert_int_equal(slurm_check_path("/home/\"x", &err), RP_INVALID_ARGUMENT);
    assert_int_equal(slurm_check_path("/home/x\ny", &err), RP_INVALID_ARGUMENT);
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
    assert_int_equal(jobs[0].id, 13);
    assert_int_equal(jobs[0].index, 0);
    assert_int_equal(jobs[0].state, SLURM_RUNNING);
    assert_string_equal(jobs[0].node, "n1");
    assert_string_equal(jobs[0].reason, "");
    assert_int_equal(jobs[1].index, 1);
    assert_int_equal(jobs[1].state, SLURM_PENDING);
    assert_string_equal(jobs[1].reason, "ReqNodeNotAvail, UnavailableNodes:n1|x");
    assert_int_equal(jobs[2].state, SLURM_ENDING);
    assert_int_equal(jobs[3].id, 9);
    assert_int_equal(jobs[4].state, SLURM_GONE);
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
    assert_int_equal(slurm_record_write(tempdir, &record, &err), RP_OK);
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
    assert_int_equal(slurm_run(SLURM_WORDS("sh", "-c", "echo \"$SLURM_JOB_ID,$SLURM_CONF\""), 0, &text, &err), RP_OK);
    assert_string_equal(text, ",/x\n");
    free(text);
    assert_int_equal(unsetenv("SLURM_JOB_ID"), 0); /* outside of a job, variables are the user's own */
    assert_int_equal(setenv("SLURM_CLUSTERS", "x", 1), 0);
    assert_int_equal(slurm_run(SLURM_WORDS("sh", "-c", "echo $SLURM_CLUSTERS"), 0, &text, &err), RP_OK);
    assert_string_equal(text, "x\n");
    free(text);
    assert_int_equal(slurm_run(SLURM_WORDS("sh", "-c", "echo 'x: error: wrong partition' >&2; exit 3"), 0, NULL, &err),
                     RP_FAILED_PRECONDITION);
    assert_string_equal(err.text, "Slurm: wrong partition");
    assert_int_equal(slurm_run(SLURM_WORDS("no-such-program-of-slurm"), 0, NULL, &err), RP_NOT_FOUND);
    const char *const hangs[] = {"sleep", "60", NULL};
    assert_int_equal(slurm_run(hangs, 50000000, NULL, &err), RP_DEADLINE_EXCEEDED);
    assert_non_null(strstr(err.text, "after 0.05 s")); /* the limit of this call */
}

/* ---- programs of Slurm that are scripts of the test ---- */

static char path_before[4096];

static int enter_fakes(void **state)
{
    char path[4200];
    if (tempdir_enter(state) != 0)
        return -1;
    snprintf(path_before, sizeof path_before, "%s", getenv("PATH"));
    snprintf(path, sizeof path, "%s:%s", tempdir, path_before);
    return setenv("PATH", path, 1) || setenv("FAKES", tempdir, 1);
}

static int leave_fakes(void **state)
{
    return setenv("PATH", path_before, 1) || tempdir_leave(state);
}

static void fake(const char *name, const char *body)
{
    char path[128], fresh[136];
    snprintf(path, sizeof path, "%s/%s", tempdir, name);
    snprintf(fresh, sizeof fresh, "%s.new", path); /* the one before may run now */
    char *text = need_print("#!/bin/sh\n%s\n", body);
    file_write(fresh, text, strlen(text), 0755);
    free(text);
    assert_int_equal(rename(fresh, path), 0);
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
    struct run_config config;
    struct schema_report *report = schema_report_new();
    assert_int_equal(read_config(&config, "launch.slurm={core: {partition: gpu, account: x}, count: 1-16}",
                                 "launch.slurm.actors={cpus-per-task: 4, partition: spare}", NULL),
                     0);
    fake("sbatch", "echo \"$*\" >>\"$FAKES/words\"");
    slurm_check(&config, report);
    assert_int_equal(schema_report_count(report), 0);
    char *words = run_folder_read(tempdir, "words");
    static const char *const wanted[] = {" --partition=gpu --account=x --wrap=true\n",
                                         " --partition=spare --cpus-per-task=4 --array=0-3 --wrap=true\n"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        assert_non_null(strstr(words, wanted[i]));
    free(words);
    fake("sbatch", "echo 'allocation failure: Invalid partition name specified' >&2; exit 1");
    slurm_check(&config, report);
    assert_int_equal(schema_report_count(report), 2);
    assert_non_null(strstr(schema_report_text(report), "Invalid partition name"));
    schema_report_destroy(&report);
    run_config_free(&config);
}

/* The question whether nodes see a folder has the partition and the options of the core job. */
TEST(shared, enter_fakes, leave_fakes)
{
    struct run_config config;
    assert_int_equal(read_config(&config, "launch.slurm={core: {partition: gpu, account: x}}", NULL, NULL), 0);
    fake("srun", "echo \"$*\" >\"$FAKES/words\"; echo seen");
    assert_int_equal(slurm_check_shared(&config, tempdir, &err), RP_OK);
    char *words = run_folder_read(tempdir, "words");
    assert_non_null(words);
    assert_non_null(strstr(words, " --partition=gpu --account=x --cpus-per-task=1 --mem=64M -- sh -c "));
    free(words);
    fake("srun", "echo missing");
    assert_int_equal(slurm_check_shared(&config, tempdir, &err), RP_FAILED_PRECONDITION);
    fake("srun", "echo 'srun: error: Unable to allocate resources' >&2; exit 1");
    assert_int_equal(slurm_check_shared(&config, tempdir, &err), RP_UNAVAILABLE);
    run_config_free(&config);
}

static void write_record(const char *name, uint64_t array)
{
    char folder[96];
    struct slurm_record record = {.core = 5, .array = array, .tasks = 2, .script = "/a \"array\": 4"};
    snprintf(folder, sizeof folder, "%s/%s", tempdir, name);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(slurm_record_write(folder, &record, &err), RP_OK);
}

/* Tasks of array 9 stay while slurm.json has no number, an older one for a moment, or theirs; not if it keeps to another one,
 * although the run goes on. */
TEST(stray_array, enter_fakes, leave_fakes)
{
    struct run_config config;
    write_record("none", 0);
    write_record("older", 8);
    write_record("own", 9);
    assert_int_equal(read_config(&config, NULL, NULL, NULL), 0);
    struct slurm_script script = {.config = &config};
    char *text = slurm_script_actors(&script);
    assert_non_null(text);
    assert_int_equal(run_folder_write(tempdir, "hold", text, &err), RP_OK);
    free(text);
    run_config_free(&config);
    fake("sleep",
         "n=$(($(cat \"$FAKES/n\") + 1)); echo $n >\"$FAKES/n\"\n"
         "case $n in 1) from= ;; 2) from=none ;; 3 | 4 | 5) from=older ;; 6) from=own ;; *) from=older ;; esac\n"
         "[ -z \"$from\" ] || cp \"$FAKES/$from/slurm.json\" \"$FAKES/slurm.json\"\n"
         "touch \"$FAKES/status.json\"\n"
         "[ $n -lt 30 ] || kill -9 $PPID");
    fake("scancel", "echo \"$*\" >\"$FAKES/cancelled\"");
    assert_int_equal(run_folder_write(tempdir, "n", "0\n", &err), RP_OK);
    assert_int_equal(system("SLURM_ARRAY_JOB_ID=9 SLURM_ARRAY_TASK_ID=0 sh \"$FAKES/hold\" \"$FAKES\" 5 >/dev/null"),
                     0);
    assert_string_equal(file_text(tempdir_at("n")), "10\n");
    assert_string_equal(file_text(tempdir_at("cancelled")), "9\n");
}

static void count_loud(void *context, bool loud, const char *text)
{
    (void)text;
    *(uint32_t *)context += loud;
}

/* Lets a source look until it has said something loud, or for some looks. */
static void look_at_tasks(struct slurm_source *source, const uint32_t *loud, uint32_t looks)
{
    int64_t end_ns = clock_ns() + 20 * NS_PER_S;
    struct host_source *hosts = slurm_source_hosts(source);
    for (uint32_t before = *loud, seen = 0; *loud == before && seen < looks && clock_ns() < end_ns;) {
        static int64_t now_ns = NS_PER_S;
        hosts->look(hosts, NULL, now_ns += NS_PER_S);
        nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
        char *text = run_folder_read(tempdir, "looks");
        seen = text ? (uint32_t)strlen(text) : 0;
        free(text);
    }
}

/* A task that is gone for good is named once; the array as a whole is still there. */
TEST(lost_task, enter_fakes, leave_fakes)
{
    struct run_config config;
    uint32_t loud = 0;
    assert_int_equal(
        read_config(&config, "launch.slurm={count: 2, actors: {cpus-per-task: 1}}", "actors.count=2", NULL), 0);
    fake("sbatch", "echo 12");
    fake("scancel", "");
    fake("squeue", "printf x >>\"$FAKES/looks\"; echo '12_0|13|PENDING||Priority'; echo '12_1|14|PENDING||Priority'");
    const struct slurm_source_options options = {
        .config = &config, .folder = tempdir, .programs = tempdir, .say = count_loud, .context = &loud};
    struct slurm_source *source = must(slurm_source_new(&options, &err));
    look_at_tasks(source, &loud, 8);
    assert_int_equal(loud, 0);
    fake("squeue", "printf x >>\"$FAKES/looks\"; echo '12_1|14|PENDING||Priority'");
    look_at_tasks(source, &loud, 100);
    assert_int_equal(loud, 1);
    run_folder_remove(tempdir, "looks");
    look_at_tasks(source, &loud, 12);
    assert_int_equal(loud, 1);
    slurm_source_destroy(&source);
    run_config_free(&config);
}
