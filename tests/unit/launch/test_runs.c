/* Runs of the past: read from whatever their folders hold, compared, and removed without touching anything else. */
#include "agent/launch/runs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/support/tempdir.h"

/* A run, i seconds old. */
static void make_run(const char *name, int old, const char *report)
{
    const char *path = tempdir_at(textf("%s/launch.json", name));
    assert_int_equal(mkdir(tempdir_at(name), 0777), 0);
    file_put(path, "{\"legs\": 1}");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct timespec times[2] = {{now.tv_sec - old, 0}, {now.tv_sec - old, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    if (report)
        file_put(tempdir_at(textf("%s/report.json", name)), report);
}

TEST(reads, tempdir_enter, tempdir_leave)
{
    struct run_summary run;
    make_run("whole", -10, /* somebody was refused to resume it after its report */
             "{\"phase\": \"done\", \"final_value\": 481.5, \"final_weights\": \"best.weights\", \"best\": 490, "
             "\"steps\": 61234, "
             "\"learner_steps\": 300, \"elapsed_s\": 41.5, \"actors_wanted\": 4, \"learners_wanted\": 2, "
             "\"stretches\": [{\"achieved\": {\"inserts\": 5000, \"samples\": null}}]}");
    file_put(tempdir_at("whole/config.yaml"), "# of the run\nname: x\n# of everything\nseed: 17\nagent:\n  seed: 3\n");
    assert_true(runs_read(tempdir_at("whole"), &run));
    assert_string_equal(run.name, "whole");
    assert_string_equal(run.result, "done");
    assert_string_equal(run.weights, "best.weights");
    assert_string_equal(run.seed, "17");
    assert_true(run.final_value == 481.5 && run.best == 490 && run.seconds == 41.5 && run.inserts == 5000);
    assert_true(isnan(run.samples) && run.bytes > 0 && !run.active);
    assert_int_equal(run.steps, 61234);
    assert_int_equal(run.actors + 10 * run.learners, 24);
    /* Nobody wrote a report, or one of a leg before. */
    make_run("lost", 5, NULL);
    file_put(tempdir_at("lost/status.json"),
             "{\"phase\": \"running\", \"steps\": 77, \"value\": 12.5, \"actors_wanted\": 3}");
    assert_true(runs_read(tempdir_at("lost"), &run));
    assert_string_equal(run.result, "lost");
    assert_true(run.steps == 77 && run.final_value == 12.5 && run.actors == 3);
    /* A run that was stopped while it was measured has a status and no report. */
    make_run("early", 5, NULL);
    file_put(tempdir_at("early/status.json"), "{\"phase\": \"stopped\"}");
    assert_true(runs_read(tempdir_at("early"), &run));
    assert_string_equal(run.result, "stopped");
    /* Nonsense. */
    make_run("odd", 5, "[1, {");
    assert_true(runs_read(tempdir_at("odd"), &run));
    assert_true(isnan(run.final_value) && run.steps == 0 && !run.seed[0]);
    assert_int_equal(mkdir(tempdir_at("other"), 0777), 0);
    assert_false(runs_read(tempdir_at("other"), &run));
    assert_false(runs_read(tempdir_at("nothing"), &run));
}

TEST(lists_and_removes, tempdir_enter, tempdir_leave)
{
    uint32_t n = 0;
    assert_null(runs_list(tempdir_at("runs"), &n));
    assert_int_equal(n, 0);
    assert_int_equal(mkdir(tempdir_at("runs"), 0777), 0);
    for (int i = 1; i <= 5; i++)
        make_run(textf("runs/r%d", i), 100 * i, "{\"phase\": \"stopped\"}");
    assert_int_equal(mkdir(tempdir_at("runs/mine"), 0777), 0); /* no run */
    file_put(tempdir_at("precious"), "x");
    assert_int_equal(symlink(tempdir_at("precious"), tempdir_at("runs/r4/link")), 0);
    assert_int_equal(symlink("r1", tempdir_at("runs/latest")), 0);
    assert_int_equal(mkdir(tempdir_at("runs/r4/logs"), 0777), 0);
    file_put(tempdir_at("runs/r4/logs/a.log"), "x");
    struct run_summary *runs = runs_list(tempdir_at("runs"), &n);
    assert_int_equal(n, 5);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(runs[i].name[1], '1' + (int)i); /* the newest first */
    int lock = -1;
    assert_int_equal(run_folder_lock(runs[4].folder, &lock, &err), RP_OK);
    struct run_summary busy;
    assert_true(runs_read(runs[4].folder, &busy) && busy.active);
    assert_string_equal(busy.result, "running");
    assert_int_equal(runs_remove(runs[4].folder, false, &err), RP_FAILED_PRECONDITION);
    close(lock);
    assert_int_equal(mkdir(tempdir_at("runs/r4/broker"), 0777), 0);
    file_put(tempdir_at("runs/r4/broker/segment-00000001.replay"), "x");
    file_put(tempdir_at("runs/r4/broker/checkpoint-00000002.replay.part"), "x");
    file_put(tempdir_at("runs/r4/broker/segments.txt"), "x");
    assert_int_equal(runs_remove(runs[4].folder, true, &err), RP_OK);
    assert_true(runs_read(runs[3].folder, &busy) && busy.tables > 0 && busy.tables < busy.bytes);
    assert_int_equal(runs_remove(runs[3].folder, true, &err), RP_OK);
    assert_true(runs_read(runs[3].folder, &busy) && busy.tables == 0);
    assert_int_equal(access(tempdir_at("runs/r4/broker/segments.txt"), F_OK), 0);
    assert_int_equal(access(tempdir_at("runs/r4/logs/a.log"), F_OK), 0);
    assert_int_equal(runs_remove(runs[3].folder, false, &err), RP_OK);
    assert_int_not_equal(access(runs[3].folder, F_OK), 0);
    assert_int_equal(access(tempdir_at("precious"), F_OK), 0);
    assert_int_equal(access(runs[4].folder, F_OK), 0);
    free(runs);
    free(runs_list(tempdir_at("runs"), &n));
    assert_int_equal(n, 4);
}

/* A removal that cannot go on leaves a run, and the lock that keeps others from it. */
TEST(removal_cut_short, tempdir_enter, tempdir_leave)
{
    char name[251] = "";
    make_run("deep", 10, NULL);
    const char *folder = owned(strdup(tempdir_at("deep")));
    assert_false(run_folder_locked(folder));
    struct stat before, after;
    assert_int_equal(stat(tempdir_at("deep/launch.lock"), &before), 0);
    memset(name, 'd', sizeof name - 1);
    int at = open(folder, O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < 20; i++) { /* a path that is too long for the system */
        assert_int_equal(mkdirat(at, name, 0777), 0);
        int deeper = openat(at, name, O_RDONLY | O_DIRECTORY);
        close(at);
        at = deeper;
    }
    close(at);
    file_put(tempdir_at("deep/metrics.jsonl"), "");
    assert_int_equal(runs_remove(folder, false, &err), RP_IO);
    assert_int_not_equal(access(tempdir_at("deep/metrics.jsonl"), F_OK), 0);
    assert_int_equal(access(tempdir_at("deep/launch.json"), F_OK), 0);
    assert_int_equal(stat(tempdir_at("deep/launch.lock"), &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
}

TEST(flattens, tempdir_enter, tempdir_leave)
{
    char *flat =
        runs_flatten_config("# a comment\nname: x y\nagent:\n  # more\n  hidden: [16, 16]\n  deep:\n    a: 1\n  b: 2\n"
                            "tables:\n  - name: one\n    limiter:\n      kind: none\n  - name: two\nlast: \"\"\n");
    assert_string_equal(flat, "name: x y\nagent.hidden: [16, 16]\nagent.deep.a: 1\nagent.b: 2\ntables[0].name: one\n"
                              "tables[0].limiter.kind: none\ntables[1].name: two\nlast: \"\"\n");
    free(flat);
    flat = runs_flatten_config(NULL);
    assert_string_equal(flat, "");
    free(flat);
}

TEST(compares, tempdir_enter, tempdir_leave)
{
    struct run_summary runs[2];
    make_run("one", 10, "{\"phase\": \"done\", \"final_value\": 100, \"steps\": 5}");
    make_run("two", 10, "{\"phase\": \"failed\", \"final_value\": 200, \"steps\": 6}");
    file_put(tempdir_at("one/config.yaml"), "name: x\nseed: 1\nagent:\n  batch: 16\n");
    file_put(tempdir_at("two/config.yaml"), "name: x\nseed: 2\nagent:\n  batch: 16\n  tau: 0.5\n");
    file_put(tempdir_at("one/evaluator-0.jsonl"), "{\"time\": 100, \"environment_steps\": 10, \"return\": 7.25}\n");
    file_put(tempdir_at("two/metrics.jsonl"),
             "{\"unix_s\": 50, \"elapsed_s\": 1, \"steps\": 10, \"actor_value\": 5.25}\n");
    assert_true(runs_read(tempdir_at("one"), &runs[0]));
    assert_true(runs_read(tempdir_at("two"), &runs[1]));
    const char *text = PRINTED(runs_print_compared(runs, 2, printing));
    HAS(text, "  return", "  seed", "  agent.tau");
    HAS_NOT(text, "agent.batch", "  name");
    assert_int_equal(runs_write_page(runs, 2, tempdir_at("chart.html"), &err), RP_OK);
    HAS(file_text(tempdir_at("chart.html")), "\"name\": \"one\"", "\"return\": [7.25]", "\"name\": \"two\"",
        "\"return\": [5.25]");
    assert_int_equal(runs_write_page(runs, 2, "/nowhere/chart.html", &err), RP_IO);
}
