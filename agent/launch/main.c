/* replay-launch: profiles, sizes, starts and supervises a run. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/launch/host/node.h"
#include "agent/launch/launch.h"

/* The agent that replay-launch starts on other machines. */
static int run_node(struct launch *launch)
{
    rp_error err = {0};
    (void)launch;
    if (isatty(STDIN_FILENO)) {
        fprintf(stderr,
                LAUNCH_PROGRAM " node: replay-launch starts this on other machines by itself; nobody can type its "
                               "orders. See hosts in docs/CONFIG.md.\n");
        return EXIT_USAGE;
    }
    return node_run(STDIN_FILENO, STDOUT_FILENO, &err) == RP_OK ? 0 : launch_fail(&err);
}

static const struct launch_verb verbs[] = {
    {"", "CONFIG.yaml", "check, measure if a count is auto, start everything, keep it running, report",
     LAUNCH_SET | LAUNCH_FOLDER | LAUNCH_VIEW | LAUNCH_PLAN | LAUNCH_RESIZE, launch_run},
    {"check", "CONFIG.yaml", "report every mistake with line and column, and try every host; start no run", LAUNCH_SET,
     launch_check},
    {"profile", "CONFIG.yaml", "measure what actors and learners can do at several counts",
     LAUNCH_SET | LAUNCH_FOLDER | LAUNCH_JSON | LAUNCH_PLAN, launch_profile},
    {"plan", "CONFIG.yaml", "say how many of each to run, and why; measures if nothing is cached",
     LAUNCH_SET | LAUNCH_FOLDER | LAUNCH_JSON | LAUNCH_PLAN, launch_plan},
    {"resume", "RUN", "continue a run where it stopped", LAUNCH_SET | LAUNCH_VIEW | LAUNCH_RESIZE, launch_resume},
    {"eval", "[RUN]", "measure the weights that a run has saved: the best, the last, or a snapshot",
     LAUNCH_SET | LAUNCH_RUN | LAUNCH_JSON | LAUNCH_EVAL, launch_eval},
    {"runs", "[RUN ...]", "list all runs; with RUNs compare them, as a table and a chart; --prune removes old ones",
     LAUNCH_JSON | LAUNCH_RUNS, launch_runs},
    {"status", "[RUN]", "show the view of a run, from any terminal",
     LAUNCH_RUN | LAUNCH_JSON | LAUNCH_FOLLOW | LAUNCH_METRICS, launch_status},
    {"logs", "[NAME]", "what a process of a run printed: logs learner-0; without NAME: which there are",
     LAUNCH_RUN | LAUNCH_FOLLOW | LAUNCH_LINES, launch_logs},
    {"script", "CONFIG.yaml ...", "print the jobs of a run under Slurm: CONFIG.yaml core, CONFIG.yaml actors, or both",
     LAUNCH_SET, launch_script},
    {"core", "RUN ...", "the run itself, inside the job that a script of Slurm describes", LAUNCH_SET | LAUNCH_VIEW,
     launch_core},
    {"open", "[RUN]", "show a run in a browser: live, or a finished one; tcp://... shows a broker that runs by itself",
     LAUNCH_RUN | LAUNCH_OPEN, launch_open},
    {"stop", "[RUN]", "stop a run cleanly, from any terminal", LAUNCH_RUN | LAUNCH_FORCE, launch_stop},
    {"node", NULL, "the agent that replay-launch starts on other machines; not to be started by hand", 0, run_node},
};

/* The parent process may have closed some of the standard three descriptors. Then a file that is opened later would
 * receive the output. */
static void open_standard(void)
{
    for (int fd = 0; fd >= 0 && fd < 3;)
        fd = fcntl(fd, F_GETFD) >= 0 ? fd + 1 : open("/dev/null", O_RDWR);
}

int main(int argc, char **argv)
{
    open_standard();
    struct launch launch = {0};
    int status = launch_read_options(&launch, verbs, sizeof verbs / sizeof verbs[0], argc, argv);
    if (status < 0)
        status = launch.verb->run(&launch);
    launch_fini(&launch);
    return status;
}
