/* The command line of replay-launch. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/launch.h"
#include "proto/base/flags.h"

#define PROGRAM "replay-launch"

enum {
    OPT_SET = 256,
    OPT_SEED,
    OPT_FOLDER,
    OPT_QUIET,
    OPT_JSON_LINES,
    OPT_JSON,
    OPT_AGAIN,
    OPT_NO_RESIZE,
    OPT_RUN,
    OPT_LINES,
    OPT_FORCE,
    OPT_WEIGHTS,
    OPT_EPISODES,
    OPT_SHOW,
    OPT_SVG,
    OPT_PRUNE,
    OPT_VERSION
};

static const struct flag flags[] = {
    {OPT_SET, LAUNCH_SET, "set", "KEY=VALUE", "instead of what the file says: actors.count=4; may be repeated"},
    {OPT_SEED, LAUNCH_SET, "seed", "N", "the same as --set seed=N"},
    {OPT_FOLDER, LAUNCH_FOLDER, "folder", "DIR", "the run's folder (else runs/NAME-TIME)"},
    {OPT_QUIET, LAUNCH_VIEW, "quiet", NULL, "print problems and the result only"},
    {OPT_JSON_LINES, LAUNCH_VIEW, "json-lines", NULL, "print the status as JSON, one object on a line"},
    {OPT_JSON, LAUNCH_JSON, "json", NULL, "print JSON"},
    {OPT_AGAIN, LAUNCH_PLAN, "again", NULL, "measure again, whatever is cached"},
    {OPT_NO_RESIZE, LAUNCH_RESIZE, "no-resize", NULL, "do not add or retire actors while it runs"},
    {OPT_RUN, LAUNCH_RUN, "run", "RUN", "the run's folder, or its name below runs/ (else the latest)"},
    {'f', LAUNCH_FOLLOW, "follow", NULL, "go on until the run ends"},
    {OPT_LINES, LAUNCH_LINES, "lines", "N", "the last N lines (40); 0: all"},
    {OPT_FORCE, LAUNCH_FORCE, "force", NULL, "kill its processes at once"},
    {OPT_WEIGHTS, LAUNCH_EVAL, "weights", "FILE", "best (else, if there is one), last, or a file of weights"},
    {OPT_EPISODES, LAUNCH_EVAL, "episodes", "N", "how many (else evaluator.episodes of the run)"},
    {OPT_SHOW, LAUNCH_EVAL, "show", NULL, "print the first episode step by step"},
    {OPT_SVG, LAUNCH_RUNS, "svg", "FILE", "chart of the runs that are compared (compare.svg)"},
    {OPT_PRUNE, LAUNCH_RUNS, "prune", "N", "remove all runs but the newest N and those that run"},
    {'h', ~0u, "help", NULL, "this text"},
    {OPT_VERSION, ~0u, "version", NULL, "the version"},
};
#define N_FLAGS (sizeof flags / sizeof flags[0])

int launch_usage(const char *format, ...)
{
    va_list args;
    fputs(PROGRAM ": ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs("\nTry '" PROGRAM " --help'.\n", stderr);
    return EXIT_USAGE;
}

int launch_fail(const rp_error *err)
{
    fprintf(stderr, PROGRAM ": %s\n", err->text[0] ? err->text : rp_status_name(err->status));
    return err->status == RP_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
}

/* ---- help ---- */

static void print_help(const struct launch_verb *verbs, uint32_t n)
{
    puts("Usage: " PROGRAM " CONFIG.yaml [options]\n       " PROGRAM " VERB ... [options]\n\n"
         "Runs an experiment from one file: a broker, actors, learners and an evaluator, as many of each as the "
         "machine\n"
         "and the samples-per-insert ratio ask for.\n");
    for (uint32_t i = 0; i < n; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", verbs[i].name, verbs[i].name[0] ? " " : "",
                 verbs[i].argument ? verbs[i].argument : "");
        printf("  %-22s %s\n", left, verbs[i].summary);
    }
    puts("\nOptions (VERB --help says which ones a verb has):");
    flags_print(flags, N_FLAGS, ~0u, 22);
    puts("\nCtrl-C ends a run in order within ten seconds; a second one kills it. docs/LAUNCH.md tells the rest.\n"
         "Exit status: 0 done or stopped as asked, 1 failed, 2 the command line or the configuration is wrong,\n"
         "130 killed by a second Ctrl-C.");
}

static void print_verb_help(const struct launch_verb *verb)
{
    printf("Usage: " PROGRAM " %s%s%s [options]\n\n%s.\n\n", verb->name, verb->name[0] ? " " : "",
           verb->argument ? verb->argument : "", verb->summary);
    flags_print(flags, N_FLAGS, verb->options, 22);
}

/* ---- reading ---- */

static int add_override(struct launch *self, const char *key, const char *value)
{
    char *text = NULL;
    if (self->n_overrides == LAUNCH_MAX_OVERRIDES)
        return launch_usage("more than %u values are set", LAUNCH_MAX_OVERRIDES);
    if (asprintf(&text, "%s%s", key, value) < 0)
        return EXIT_FAILED;
    self->overrides[self->n_overrides++] = text;
    return -1;
}

static int read_option(struct launch *self, int key, const char *argument)
{
    switch (key) {
    case OPT_SET:
        return add_override(self, "", argument);
    case OPT_SEED:
        return add_override(self, "seed=", argument);
    case OPT_FOLDER:
        self->folder = argument;
        return -1;
    case OPT_RUN:
        self->run = argument;
        return -1;
    case OPT_WEIGHTS:
        self->weights = argument;
        return -1;
    case OPT_EPISODES:
        self->episodes = argument;
        return -1;
    case OPT_SVG:
        self->svg = argument;
        return -1;
    case OPT_PRUNE:
        self->prune = true;
        return schema_parse_int(argument, &self->keep) && self->keep >= 0
                   ? -1
                   : launch_usage("--prune is '%s'; it needs a whole number: how many runs to keep", argument);
    case OPT_LINES:
        return schema_parse_int(argument, &self->lines) && self->lines >= 0
                   ? -1
                   : launch_usage("--lines is '%s'; it needs a whole number", argument);
    case OPT_VERSION:
        printf(PROGRAM " %s\n", rp_version());
        return EXIT_FINE;
    default:
        return launch_usage("that is no option");
    }
}

/* Those that only say yes; NULL: another one. */
static bool *find_switch(struct launch *self, int key)
{
    switch (key) {
    case OPT_QUIET:
        return &self->quiet;
    case OPT_JSON_LINES:
        return &self->json_lines;
    case OPT_JSON:
        return &self->json;
    case OPT_AGAIN:
        return &self->again;
    case OPT_NO_RESIZE:
        return &self->no_resize;
    case 'f':
        return &self->follow;
    case OPT_FORCE:
        return &self->force;
    case OPT_SHOW:
        return &self->show;
    default:
        return NULL;
    }
}

static int read_flags(struct launch *self, const struct launch_verb *verbs, uint32_t n_verbs, int argc, char **argv)
{
    struct option names[N_FLAGS + 1];
    flags_names(flags, N_FLAGS, ~0u, names);
    for (int key; (key = getopt_long(argc, argv, "fh", names, NULL)) != -1;) {
        const struct flag *flag = flags;
        while (flag < flags + N_FLAGS && flag->key != key)
            flag++;
        if (key == 'h') {
            if (self->verb->name[0])
                print_verb_help(self->verb);
            else
                print_help(verbs, n_verbs);
            return EXIT_FINE;
        }
        if (flag == flags + N_FLAGS) {
            fputs("Try '" PROGRAM " --help'.\n", stderr);
            return EXIT_USAGE;
        }
        if (flag->key != OPT_VERSION && !(flag->who & self->verb->options))
            return launch_usage("%s has no --%s", self->verb->name[0] ? self->verb->name : "a run", flag->name);
        bool *on = find_switch(self, key);
        int status = -1;
        if (on)
            *on = true;
        else
            status = read_option(self, key, optarg);
        if (status >= 0)
            return status;
    }
    return -1;
}

/* A word that is meant as a verb, and no file. `more`: others follow it, as they follow a verb. */
static int check_verb(const struct launch *self, const struct launch_verb *verbs, uint32_t n_verbs, bool more)
{
    const char *names[16];
    const char *word = self->argument;
    uint32_t n = 0;
    if (self->verb->name[0] || !word || strchr(word, '.') || strchr(word, '/') || access(word, F_OK) == 0)
        return -1;
    for (uint32_t i = 0; i < n_verbs && n < 16; i++)
        if (verbs[i].name[0])
            names[n++] = verbs[i].name;
    const char *near = schema_nearest(word, names, n);
    if (near)
        return launch_usage("there is no verb '%s' (did you mean '%s'?)", word, near);
    return more ? launch_usage("there is no verb '%s'", word) : -1;
}

static int read_argument(struct launch *self, const struct launch_verb *verbs, uint32_t n_verbs, int argc, char **argv)
{
    const char *wanted = self->verb->argument;
    if (optind < argc && wanted)
        self->argument = argv[optind++];
    if (wanted && self->argument && strstr(wanted, "...")) {
        self->arguments = argv + optind - 1;
        self->n_arguments = (uint32_t)(argc - optind + 1);
        optind = argc;
    }
    int status = check_verb(self, verbs, n_verbs, optind < argc);
    if (status >= 0)
        return status;
    if (optind < argc)
        return launch_usage("unexpected argument '%s'", argv[optind]);
    if (!wanted || wanted[0] == '[' || self->argument)
        return -1;
    if (self->verb->name[0])
        return launch_usage("%s needs %s", self->verb->name, wanted);
    print_help(verbs, n_verbs);
    return EXIT_USAGE;
}

static void keep_command(struct launch *self, int argc, char **argv)
{
    size_t used = (size_t)snprintf(self->command, sizeof self->command, PROGRAM);
    for (int i = 1; i < argc && used < sizeof self->command; i++) {
        bool plain = argv[i][0] && strspn(argv[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                                   "._-/=:,+@%") == strlen(argv[i]);
        used += (size_t)snprintf(self->command + used, sizeof self->command - used, plain ? " %s" : " '%s'", argv[i]);
    }
}

int launch_read_options(struct launch *self, const struct launch_verb *verbs, uint32_t n_verbs, int argc, char **argv)
{
    keep_command(self, argc, argv);
    self->lines = 40;
    self->verb = &verbs[0];
    for (uint32_t i = 1; i < n_verbs && argc > 1; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            self->verb = &verbs[i];
    bool verb = self->verb != &verbs[0];
    if (verb)
        argv[1] = argv[0]; /* getopt's messages begin with it */
    int status = read_flags(self, verbs, n_verbs, argc - verb, argv + verb);
    if (status < 0)
        status = read_argument(self, verbs, n_verbs, argc - verb, argv + verb);
    return status;
}

void launch_fini(struct launch *self)
{
    for (uint32_t i = 0; i < self->n_overrides; i++)
        free(self->overrides[i]);
}
