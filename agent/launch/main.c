/* replay-launch: profiles, sizes, starts and supervises a run. Its command line. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/host/node.h"
#include "agent/launch/launch.h"
#include "agent/launch/prepare.h"
#include "agent/launch/process/run_folder.h"

/* The agent that replay-launch starts on other machines. */
static rp_status run_node(struct launch *launch, rp_error *err)
{
    if (isatty(STDIN_FILENO)) {
        fprintf(stderr,
                LAUNCH_PROGRAM " node: replay-launch starts this on other machines by itself; nobody can type its "
                               "orders. See hosts in docs/CONFIG.md.\n");
        launch->exit = EXIT_USAGE;
        return RP_OK;
    }
    return node_run(STDIN_FILENO, STDOUT_FILENO, err);
}

static const struct launch_verb verbs[] = {
    {"", "CONFIG.yaml", "check, measure if a count is auto, start everything, keep it running, report",
     LAUNCH_SET | LAUNCH_FOLDER | LAUNCH_VIEW | LAUNCH_PLAN | LAUNCH_RESIZE, launch_run},
    {"check", "CONFIG.yaml", "report every mistake with line and column, and try every host; start no run", LAUNCH_SET,
     launch_check},
    {"profile", "CONFIG.yaml", "measure what actors and learners can do at several counts",
     LAUNCH_SET | LAUNCH_FOLDER | LAUNCH_JSON | LAUNCH_PLAN, launch_plan},
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
    {"open", "[RUN]", "show runs in a browser, live and finished ones; tcp://... shows a broker that runs by itself",
     LAUNCH_RUN | LAUNCH_OPEN, launch_open},
    {"stop", "[RUN]", "stop a run cleanly, from any terminal", LAUNCH_RUN | LAUNCH_FORCE, launch_stop},
    {"ask", "[RUN] ORDER ...",
     "change a run that goes on: pause, go, evaluate, checkpoint, ratio=N, actors=N, actors=auto, hosts=+NAME, "
     "hosts=-NAME",
     LAUNCH_RUN, launch_ask},
    {"resize", "ORDER", "the same as ask: actors=N, actors=auto, hosts=+NAME, hosts=-NAME", LAUNCH_RUN, launch_ask},
    {"node", NULL, "the agent that replay-launch starts on other machines; not to be started by hand", 0, run_node},
};
#define N_VERBS (sizeof verbs / sizeof verbs[0])

/* ---- options ---- */

/* --prune N: N may be 0, so a flag records that the option was given. */
static int take_prune(const struct cli *cli, const struct cli_option *option, const char *number, void *target)
{
    struct launch *self = target;
    (void)option;
    self->prune = true;
    if (schema_parse_int(number, &self->keep) && self->keep >= 0)
        return CLI_GO_ON;
    return cli_usage(cli->program, "--prune is '%s'; it needs a whole number: how many runs to keep", number);
}

#define AT(field) CLI_AT(struct launch, field)
static const struct cli_option options[] = {
    {"set", 0, "KEY=VALUE", "override a key of the file: actors.count=4; may be repeated", LAUNCH_SET, CLI_OVERRIDE,
     AT(overrides)},
    {"seed", 0, "N", "the same as --set seed=N", LAUNCH_SET, CLI_OVERRIDE, AT(overrides), .prefix = "seed="},
    {"folder", 0, "DIR", "the run's folder (default: runs/NAME-TIME)", LAUNCH_FOLDER, CLI_TEXT, AT(folder)},
    {"quiet", 0, NULL, "print problems and the result only", LAUNCH_VIEW, CLI_SWITCH, AT(quiet)},
    {"json-lines", 0, NULL, "print the status as JSON, one object per line", LAUNCH_VIEW, CLI_SWITCH, AT(json_lines)},
    {"json", 0, NULL, "print the answer as JSON", LAUNCH_JSON, CLI_SWITCH, AT(json)},
    {"again", 0, NULL, "measure again, ignoring the cache", LAUNCH_PLAN, CLI_SWITCH, AT(again)},
    {"no-resize", 0, NULL, "do not add or retire actors while it runs", LAUNCH_RESIZE, CLI_SWITCH, AT(no_resize)},
    {"run", 0, "RUN", "the run's folder, or its name below runs/ (default: the latest)", LAUNCH_RUN, CLI_TEXT, AT(run)},
    {"follow", 'f', NULL, "keep following until the run ends", LAUNCH_FOLLOW, CLI_SWITCH, AT(follow)},
    {"lines", 0, "N", "the last N lines (40); 0: all", LAUNCH_LINES, CLI_WHOLE, AT(lines)},
    {"force", 0, NULL, "kill its processes at once", LAUNCH_FORCE, CLI_SWITCH, AT(force)},
    {"weights", 0, "FILE", "best (the default, if there is one), last, or a file of weights", LAUNCH_EVAL, CLI_TEXT,
     AT(weights)},
    {"episodes", 0, "N", "number of episodes (default: evaluator.episodes of the run)", LAUNCH_EVAL, CLI_TEXT,
     AT(episodes)},
    {"show", 0, NULL, "draw the environment in the terminal", LAUNCH_EVAL, CLI_SWITCH, AT(show)},
    {"html", 0, "FILE", "page with the runs that are compared (compare.html)", LAUNCH_RUNS, CLI_TEXT, AT(html)},
    {"http", 0, "ADDRESS", "where the page listens (" LAUNCH_HTTP ", or as REPLAY_PAGE says)", LAUNCH_OPEN, CLI_TEXT,
     AT(http)},
    {"key-file", 0, "FILE", "key for a broker that uses keys", LAUNCH_OPEN, CLI_TEXT, AT(key_file)},
    {"prune", 0, "N", "remove all runs except the newest N and running ones", LAUNCH_RUNS, CLI_TAKE,
     .take = take_prune},
    {"tables", 0, NULL,
     "with --prune: only the journal and checkpoints of runs that are done; weights and reports stay", LAUNCH_RUNS,
     CLI_SWITCH, AT(tables)},
    {"dry-run", 0, NULL, "with --prune: only list what would be removed", LAUNCH_RUNS, CLI_SWITCH, AT(dry_run)},
    {"openmetrics", 0, NULL, "print the figures as OpenMetrics text", LAUNCH_METRICS, CLI_SWITCH, AT(openmetrics)},
    CLI_LOG_JSON(LAUNCH_VIEW),
    CLI_HELP_AND_VERSION(~0u),
};

static int admit(const struct cli_option *option, void *target)
{
    const struct launch *self = target;
    if (option->who & self->verb->options)
        return CLI_GO_ON;
    return launch_usage("%s has no --%s", self->verb->name[0] ? self->verb->name : "a run", option->name);
}

static void print_help(const void *target);

static const struct cli cli = {.program = LAUNCH_PROGRAM,
                               .options = options,
                               .n = sizeof options / sizeof options[0],
                               .who = ~0u,
                               .width = 22,
                               .help = print_help,
                               .admit = admit};

/* ---- help ---- */

static void print_program_help(void)
{
    puts("Usage: " LAUNCH_PROGRAM " CONFIG.yaml [options]\n  or:  " LAUNCH_PROGRAM " VERB ... [options]\n\n"
         "Runs an experiment from one file: a broker, actors, learners and an evaluator, as many of each as the "
         "machine\n"
         "and the samples-per-insert ratio ask for.\n");
    for (uint32_t i = 0; i < N_VERBS; i++) {
        const struct launch_verb *verb = &verbs[i];
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", verb->name, verb->name[0] ? " " : "",
                 verb->argument ? verb->argument : "");
        printf("  %-22s %s\n", left, verb->summary);
    }
    puts("\nOptions (VERB --help says which ones a verb has):");
    cli_print_options(&cli, ~0u);
    puts(
        "\nCtrl-C stops a run cleanly within ten seconds; a second one kills it. See docs/LAUNCH.md.\n"
        "Exit status: 0 finished or stopped as requested, 1 failed, 2 the command line or the configuration is wrong,\n"
        "130 killed by a second Ctrl-C.");
}

static void print_help(const void *target)
{
    const struct launch *self = target;
    const struct launch_verb *verb = self->verb;
    if (!verb->name[0]) {
        print_program_help();
        return;
    }
    printf("Usage: " LAUNCH_PROGRAM " %s%s%s [options]\n\n%c%s.\n\n", verb->name, verb->name[0] ? " " : "",
           verb->argument ? verb->argument : "", verb->summary[0] - ('a' - 'A'), verb->summary + 1);
    cli_print_options(&cli, verb->options);
}

/* ---- reading ---- */

/* Refuses the folder of a run where a file is needed. */
static int check_file(const struct launch *self)
{
    const char *word = self->argument;
    bool file = word && self->verb->argument && strncmp(self->verb->argument, "CONFIG.yaml", 11) == 0;
    if (!file || !run_folder_holds(word))
        return -1;
    return launch_usage("'%s' is the folder of a run: '" LAUNCH_PROGRAM
                        " resume %s' goes on with it, status and open show "
                        "it, and %s/config.yaml is its file",
                        word, word, word);
}

/* Refuses a word that looks like a misspelled verb and names no file. `more`: further arguments follow, as they do
 * after a verb. */
static int check_verb(const struct launch *self, bool more)
{
    const char *names[N_VERBS];
    const char *word = self->argument;
    uint32_t n = 0;
    if (self->verb->name[0] || !word || strchr(word, '.') || strchr(word, '/') || access(word, F_OK) == 0)
        return -1;
    for (uint32_t i = 0; i < N_VERBS; i++)
        if (verbs[i].name[0] && verbs[i].argument) /* not those that nobody starts by hand */
            names[n++] = verbs[i].name;
    const char *near = schema_nearest(word, names, n);
    if (near)
        return launch_usage("there is no verb '%s' (did you mean '%s'?)", word, near);
    return more ? launch_usage("there is no verb '%s'", word)
                : launch_usage("'%s' is neither a verb nor a file: " LAUNCH_PROGRAM " CONFIG.yaml starts a run", word);
}

static int read_argument(struct launch *self, int argc, char **argv)
{
    const char *wanted = self->verb->argument;
    if (optind < argc && wanted)
        self->argument = argv[optind++];
    if (wanted && self->argument && strstr(wanted, "...")) {
        self->arguments = argv + optind - 1;
        self->n_arguments = (uint32_t)(argc - optind + 1);
        optind = argc;
    }
    int status = check_verb(self, optind < argc);
    if (status < 0)
        status = check_file(self);
    if (status >= 0)
        return status;
    if (optind < argc)
        return launch_usage("unexpected argument '%s'", argv[optind]);
    if (!wanted || wanted[0] == '[' || self->argument)
        return -1;
    if (self->verb->name[0])
        return launch_usage("%s needs %s", self->verb->name, wanted);
    print_help(self);
    return EXIT_USAGE;
}

static void keep_command(struct launch *self, int argc, char **argv)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/=:,+@%";
    struct text text = {0};
    text_add(&text, LAUNCH_PROGRAM);
    for (int i = 1; i < argc; i++)
        if (argv[i][0] && !argv[i][strspn(argv[i], plain)])
            text_add(&text, " %s", argv[i]);
        else
            shell_add(&text, argv[i]);
    snprintf(self->command, sizeof self->command, "%s", text_get(&text));
    text_fini(&text);
}

/* Returns CLI_GO_ON, or the exit status. */
static int read_options(struct launch *self, int argc, char **argv)
{
    keep_command(self, argc, argv);
    self->lines = 40;
    self->verb = &verbs[0];
    for (uint32_t i = 1; i < N_VERBS && argc > 1; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            self->verb = &verbs[i];
    bool verb = self->verb != &verbs[0];
    if (verb)
        argv[1] = argv[0]; /* getopt begins its messages with argv[0] */
    int status = cli_read(&cli, self, argc - verb, argv + verb);
    return status == CLI_GO_ON ? read_argument(self, argc - verb, argv + verb) : status;
}

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
    struct prepared prepared;
    struct launch launch = {.prepared = &prepared};
    prepare_init(&prepared);
    rp_error err = {0};
    int status = read_options(&launch, argc, argv);
    if (status < 0)
        status = launch.verb->run(&launch, &err) == RP_OK || launch.exit ? launch.exit : launch_fail(&err);
    prepare_fini(&prepared);
    words_clear(&launch.overrides);
    return status;
}
