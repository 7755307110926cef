/* The verbs beside a run itself: what another terminal sees of it, runs of the past, and what comes before a run. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/home.h"
#include "agent/launch/host/host_check.h"
#include "agent/launch/launch.h"
#include "agent/launch/prepare.h"
#include "agent/launch/process/command.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/spawn.h"
#include "agent/launch/process/status.h"
#include "agent/launch/run_page.h"
#include "agent/launch/runs.h"
#include "agent/launch/screen.h"
#include "agent/launch/slurm/slurm.h"
#include "agent/launch/view.h"
#include "agent/launch/watch.h"
#include "agent/run/best.h"
#include "agent/run/worker.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"
#include "replay/client.h"

#define PAUSE_MS 200
/* A run that stops in order ends within ten seconds. */
#define STOP_MS 20000
#define FORCE_MS 3000

/* Finds the run that the argument or --run names: the latest, or one that lives. */
static rp_status verbs_find(const struct launch *launch, const char *given, char folder[FOLDER_SIZE], rp_error *err)
{
    return run_folder_find_living(FOLDER_RUNS, given ? given : launch->run, folder, err);
}

/* ---- status ---- */

/* A launcher that was killed leaves a status that is no longer true. */
static bool read_status(const char *folder, struct watch_alive *life, struct status *out, bool *alive)
{
    *alive = watch_alive(life, folder);
    if (!watch_status(folder, out))
        return false;
    if (*alive || out->phase >= PHASE_DONE)
        return true;
    out->phase = PHASE_FAILED;
    snprintf(out->reason, sizeof out->reason, "the launcher is gone; 'replay-launch resume %.300s' goes on",
             out->folder);
    return true;
}

static rp_status no_status(const char *folder, rp_error *err)
{
    struct watch_alive life = {0};
    bool alive = watch_alive(&life, folder);
    return err_set(err, RP_NOT_FOUND, "the run in '%s' has no status%s%s%s", folder,
                   !alive                            ? ": it has not begun"
                   : life.job.state == SLURM_PENDING ? " yet: its job waits:"
                                                     : " yet: it is being measured",
                   life.job.reason[0] ? " " : "", life.job.reason);
}

static rp_status follow(const char *folder, bool json, rp_error *err)
{
    struct screen *screen = screen_new(json ? SCREEN_JSON : SCREEN_AUTO);
    struct watch_alive life = {0};
    bool seen = false;
    screen_follow(screen);
    for (bool alive = true; alive && !screen_quit(screen); poll(NULL, 0, PAUSE_MS)) {
        struct status copy;
        if (!read_status(folder, &life, &copy, &alive))
            continue; /* the run is still being measured */
        seen = true;
        screen_show(screen, &copy);
        status_fini(&copy);
    }
    screen_destroy(&screen);
    return seen ? RP_OK : no_status(folder, err);
}

rp_status launch_status(struct launch *launch, rp_error *err)
{
    char folder[FOLDER_SIZE];
    struct status copy;
    struct watch_alive life = {0};
    bool alive;
    RP_TRY(verbs_find(launch, launch->argument, folder, err));
    if (launch->openmetrics && (launch->follow || launch->json))
        return launch_refuse(launch, "--openmetrics goes without --json and --follow");
    if (launch->follow)
        return follow(folder, launch->json, err);
    if (!read_status(folder, &life, &copy, &alive))
        return no_status(folder, err);
    struct text out = {0};
    if (launch->json) {
        char *text = status_to_json(&copy, true);
        puts(text);
        free(text);
    } else if (launch->openmetrics) {
        status_metrics(&out, &copy);
    } else {
        view_render(&out, &copy, launch_columns(), 0, isatty(STDOUT_FILENO));
    }
    fputs(text_get(&out), stdout);
    text_fini(&out);
    status_fini(&copy);
    return RP_OK;
}

/* ---- logs ---- */

static int is_log(const struct dirent *entry)
{
    return fnmatch("*.log", entry->d_name, 0) == 0;
}

static void list_logs(const char *folder)
{
    char path[FOLDER_SIZE + 16];
    struct dirent **names = NULL;
    int n = scandir(run_folder_path(path, sizeof path, folder, "logs"), &names, is_log, alphasort);
    for (int i = 0; i < n; i++) {
        printf("%.*s\n", (int)strlen(names[i]->d_name) - 4, names[i]->d_name);
        free(names[i]);
    }
    free(names);
}

/* Moves to where the last `lines` lines begin. */
static void seek_lines(FILE *in, int64_t lines)
{
    char block[4096];
    if (lines == 0 || fseek(in, 0, SEEK_END) != 0)
        return;
    long at = ftell(in), start = 0;
    for (bool first = true; at > 0 && start == 0;) {
        long size = at < (long)sizeof block ? at : (long)sizeof block;
        at -= size;
        if (fseek(in, at, SEEK_SET) != 0 || fread(block, 1, (size_t)size, in) != (size_t)size)
            break;
        for (long i = size - 1; i >= 0 && start == 0; i--, first = false)
            if (block[i] == '\n' && !first && --lines == 0)
                start = at + i + 1;
    }
    fseek(in, start, SEEK_SET);
}

static void copy_out(FILE *in)
{
    char block[4096];
    struct stat info;
    if (fstat(fileno(in), &info) == 0 && info.st_size < ftell(in)) /* a log that became too large was emptied */
        rewind(in);
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;)
        fwrite(block, 1, n, stdout);
    fflush(stdout);
    clearerr(in); /* more output may come */
}

rp_status launch_logs(struct launch *launch, rp_error *err)
{
    char folder[FOLDER_SIZE], path[FOLDER_SIZE + 320];
    struct watch_alive life = {0};
    RP_TRY(verbs_find(launch, NULL, folder, err));
    if (!launch->argument) {
        list_logs(folder);
        return RP_OK;
    }
    snprintf(path, sizeof path, "%s/logs/%.255s.log", folder, launch->argument);
    FILE *in = strchr(launch->argument, '/') ? NULL : fopen(path, "re");
    if (!in) {
        fprintf(stderr, "replay-launch: there is no log of '%s' in %s/logs; there are:\n", launch->argument, folder);
        list_logs(folder);
        launch->exit = EXIT_FAILED;
        return RP_OK;
    }
    seek_lines(in, launch->lines);
    copy_out(in);
    while (launch->follow && watch_alive(&life, folder) && !ferror(stdout)) {
        poll(NULL, 0, PAUSE_MS);
        copy_out(in);
    }
    copy_out(in);
    if (ftell(in) == 0)
        fprintf(stderr, "replay-launch: %s is empty: it has printed nothing\n", path);
    fclose(in);
    return RP_OK;
}

/* ---- stop ---- */

rp_status launch_stop(struct launch *launch, rp_error *err)
{
    char folder[FOLDER_SIZE];
    int32_t pid = 0;
    rp_status status;
    RP_TRY(verbs_find(launch, launch->argument, folder, err));
    if (watch_stop(folder, launch->force, &status, err))
        return status;
    if (!run_folder_locked(folder)) {
        printf("%s: it has ended already; there is nothing to stop\n", folder);
        return RP_OK;
    }
    RP_TRY(run_folder_stop(folder, "replay-launch stop", &pid, err));
    for (int waited = 0; run_folder_locked(folder); waited += PAUSE_MS) {
        /* The signal is repeated, because two signals at once count as one. The processes of the run die with the
         * launcher. */
        if (launch->force && waited > 0)
            kill(pid, waited < FORCE_MS ? SIGTERM : SIGKILL);
        if (waited > STOP_MS)
            return err_set(err, RP_DEADLINE_EXCEEDED, "process %d still works on it after %d s: try --force", pid,
                           STOP_MS / 1000);
        poll(NULL, 0, PAUSE_MS);
    }
    printf("%s: stopped\n", folder);
    return RP_OK;
}

/* ---- ask ---- */

#define ASK_S 30

/* The last argument is the order; another one before it names the run. */
rp_status launch_ask(struct launch *launch, rp_error *err)
{
    char folder[FOLDER_SIZE];
    const char *run = NULL, *order = launch->argument;
    if (launch->n_arguments > 2 || !order)
        return launch_refuse(launch, "%s takes an order, and before it the name of a run: ask RUN pause",
                             launch->verb->name);
    if (launch->n_arguments == 2) {
        run = launch->arguments[0];
        order = launch->arguments[1];
    }
    RP_TRY(verbs_find(launch, run, folder, err));
    if (!run_folder_locked(folder))
        return err_set(err, RP_FAILED_PRECONDITION, "%s does not run now: 'replay-launch resume %s' goes on with it",
                       folder, folder);
    char *answer = run_request_ask(folder, order, ASK_S, err);
    if (!answer)
        return (rp_status)err->status;
    bool done = strncmp(answer, RUN_REQUEST_OK, strlen(RUN_REQUEST_OK)) == 0;
    if (done)
        printf("%s: %s\n", folder, answer + strlen(RUN_REQUEST_OK));
    else
        err_set(err, RP_INVALID_ARGUMENT, "%s", answer);
    free(answer);
    return (rp_status)err->status;
}

/* ---- runs: lists runs, compares some of them, or removes old ones ---- */

#define COMPARED "compare.html"

static void print_json(const struct run_summary *runs, uint32_t n)
{
    struct json out = {0};
    runs_json(&out, runs, n);
    char *text = json_need(&out);
    puts(text);
    free(text);
}

static rp_status list(const struct launch *launch)
{
    uint32_t n = 0;
    struct run_summary *runs = runs_list(FOLDER_RUNS, &n);
    if (launch->json)
        print_json(runs, n);
    else if (n > 0)
        runs_print(runs, n, stdout);
    else
        puts("there are no runs in '" FOLDER_RUNS "'");
    free(runs);
    return RP_OK;
}

static rp_status compare(const struct launch *launch, rp_error *err)
{
    struct run_summary *runs = need_alloc(launch->n_arguments * sizeof *runs);
    rp_status status = RP_OK;
    for (uint32_t i = 0; status == RP_OK && i < launch->n_arguments; i++) {
        char folder[FOLDER_SIZE];
        status = run_folder_find(FOLDER_RUNS, launch->arguments[i], folder, err);
        if (status == RP_OK && !runs_read(folder, &runs[i]))
            status = err_set(err, RP_NOT_FOUND, "there is no run in '%s'", folder);
    }
    const char *page = launch->html ? launch->html : COMPARED;
    if (status == RP_OK && launch->json)
        print_json(runs, launch->n_arguments);
    else if (status == RP_OK)
        runs_print_compared(runs, launch->n_arguments, stdout);
    if (status == RP_OK && (launch->html || !launch->json))
        status = runs_write_page(runs, launch->n_arguments, page, err);
    if (status == RP_OK && !launch->json)
        printf("\nreturns in one chart: %s\n", page);
    free(runs);
    return status;
}

/* Removes all but the newest N runs, or the tables of those that are done: the others are resumed with them. A run that a launcher
 * works on stays, and counts as one of the N. */
static rp_status prune(struct launch *launch)
{
    uint32_t n = 0, removed = 0;
    uint64_t bytes = 0;
    format_buffer size;
    bool tables = launch->tables;
    const char *would = launch->dry_run ? "would be " : "", *of = tables ? "the tables of " : "";
    struct run_summary *runs = runs_list(FOLDER_RUNS, &n);
    for (uint64_t i = (uint64_t)launch->keep; i < n; i++) {
        rp_error err = {0};
        const struct run_summary *run = &runs[i];
        uint64_t part = tables ? run->tables : run->bytes;
        if (run->active || watch_is_free(run->folder, &err) != RP_OK ||
            (tables && (part == 0 || strcmp(run->result, "done") != 0)))
            continue;
        if (!launch->dry_run && runs_remove(run->folder, tables, &err) != RP_OK) {
            launch->exit = launch_fail(&err);
            continue;
        }
        removed++;
        bytes += part;
        printf("%s%s %sremoved (%s)\n", of, run->folder, would, format_bytes(size, part));
    }
    printf("%s%u run%s %sremoved, %s; %u run%s left\n", of, removed, removed == 1 ? "" : "s", would,
           format_bytes(size, bytes), n - (tables ? 0 : removed), n - (tables ? 0 : removed) == 1 ? "" : "s");
    free(runs);
    return RP_OK;
}

rp_status launch_runs(struct launch *launch, rp_error *err)
{
    if (launch->prune && launch->n_arguments > 0)
        return launch_refuse(launch, "--prune removes old runs; it compares none");
    if ((launch->tables || launch->dry_run) && !launch->prune)
        return launch_refuse(launch, "--tables and --dry-run belong to --prune N");
    if (launch->prune)
        return prune(launch);
    if (launch->n_arguments > RUNS_MOST_COMPARED)
        return launch_refuse(launch, "%u runs are too many to compare: %u at most", launch->n_arguments,
                             RUNS_MOST_COMPARED);
    return launch->n_arguments > 0 ? compare(launch, err) : list(launch);
}

/* ---- eval: measures what a run has saved; this process becomes replay-actor ---- */

/* A file in the run's folder. */
static bool find_below(const char *folder, const char *name, char out[PATH_MAX])
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, R_OK) == 0 && realpath(path, out) != NULL;
}

/* Without --weights: the best ones, or the last ones if nothing was evaluated. */
static rp_status find_weights(const char *folder, const char *given, char out[PATH_MAX], rp_error *err)
{
    bool best = given && strcmp(given, "best") == 0, last = given && strcmp(given, "last") == 0;
    if (((!given || best) && find_below(folder, BEST_WEIGHTS_FILE, out)) ||
        ((!given || last) && find_below(folder, LEARNER_STATE_FILE, out)) ||
        (given && !best && !last &&
         ((access(given, R_OK) == 0 && realpath(given, out)) || find_below(folder, given, out))))
        return RP_OK;
    if (given && !best && !last)
        return err_set(err, RP_NOT_FOUND, "there are no weights '%s', nor '%s/%s': name best, last or a file", given,
                       folder, given);
    return err_set(err, RP_NOT_FOUND, "the run in '%s' has no %s", folder,
                   best ? BEST_WEIGHTS_FILE ": its evaluator has not finished an evaluation"
                        : LEARNER_STATE_FILE ": a learner saves it every learners.save_every, and at its end");
}

rp_status launch_eval(struct launch *launch, rp_error *err)
{
    char found[FOLDER_SIZE], folder[PATH_MAX], config[PATH_MAX + 32], weights[PATH_MAX];
    struct prepared *self = launch->prepared;
    RP_TRY(run_folder_find(FOLDER_RUNS, launch->argument ? launch->argument : launch->run, found, err));
    RP_TRY(prepare_programs(self, err));
    if (!realpath(found, folder))
        return err_set(err, RP_IO, "the folder '%s' cannot be read: %s", found, strerror(errno));
    RP_TRY(find_weights(folder, launch->weights, weights, err));
    struct folder_state state;
    if (run_folder_read_state(folder, &state, NULL) ==
        RP_OK) { /* relative paths in the file start where the run was begun */
        snprintf(self->here, sizeof self->here, "%s", state.here);
        prepare_go_back(state.cwd);
    }
    snprintf(config, sizeof config, "%s/" FOLDER_CONFIG, folder);
    struct schema_report *report = schema_report_new();
    const char *const *overrides = (const char *const *)launch->overrides.list;
    static const struct run_config unknown; /* mistakes in the file are left to the program */
    bool read = run_config_read(config, overrides, &self->config, report);
    schema_report_destroy(&report);
    struct command_context context = self->context;
    context.config = read ? &self->config : &unknown;
    context.config_path = config;
    context.folder = folder;
    context.overrides = overrides;
    const struct command_evaluation evaluation = {weights, launch->episodes, launch->show, launch->json};
    char **words = command_evaluate(&context, &evaluation, err);
    if (!words)
        return (rp_status)err->status;
    for (char **word = read ? command_environment(&context, ROLE_EVALUATOR, 0) : NULL; word && *word; word++)
        putenv(*word); /* kept for the program */
    fflush(stdout);
    execvp(words[0], words);
    return err_set(err, RP_IO, "'%s' cannot be started: %s", words[0], strerror(errno));
}

/* ---- open: the page of all runs, at a run. If no process of this user serves it, this one does; so it does for a broker alone ---- */

#define WAIT_MS 1000
#define PROBE_MS 2000

/* Writes a page that leads on to the address: on a command line everybody would see the token. */
static bool write_redirect(const char *url, char *path, size_t size)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    snprintf(path, size, "%s/replay-page-XXXXXX.html", base && base[0] == '/' ? base : "/tmp");
    int fd = mkstemps(path, 5); /* mode 0600 */
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = out && fprintf(out, "<!doctype html><meta http-equiv=refresh content=\"0; url=%s\">\n", url) > 0;
    if (out)
        ok = fclose(out) == 0 && ok;
    return ok;
}

/* Opens the browser where there is a screen; the address is printed in any case. */
static void show(const char *url)
{
    char path[256];
    const char *const argv[] = {"xdg-open", path, NULL};
    const struct spawn spawn = {.argv = argv, .in = SPAWN_NULL, .out = SPAWN_NULL, .err = SPAWN_NULL};
    int error;
    puts(url);
    fflush(stdout);
    if ((getenv("DISPLAY") || getenv("WAYLAND_DISPLAY")) && spawn_can_start(argv[0]) &&
        write_redirect(url, path, sizeof path))
        spawn_start(&spawn, &error);
}

/* Says so if the broker that was named does not answer: the page waits for it in silence. */
static void probe(const struct run_page_options *options)
{
    rp_error err = {0};
    const rp_client_options client = {
        .struct_size = sizeof client, .name = "page", .key_file = options->key_file ? options->key_file : ""};
    rp_client *probe = options->service[0] ? rp_client_connect(options->service, &client, PROBE_MS, &err) : NULL;
    if (probe)
        rp_client_destroy(&probe);
    else if (options->service[0])
        fprintf(stderr, LAUNCH_PROGRAM ": %s The page goes on trying.\n", err.text);
}

static rp_status serve_until_stopped(const struct run_page_options *options, struct interrupts *interrupts,
                                     rp_error *err)
{
    RP_TRY(interrupts_init(interrupts, err));
    struct run_page *page = run_page_start(options, err);
    if (!page)
        return (rp_status)err->status;
    show(page->url);
    bool here = !run_page_is_elsewhere(page);
    if (here) {
        fputs("Ctrl-C ends the page\n", stderr);
        probe(options);
    }
    while (here && interrupts->asked == 0)
        interrupts_wait(interrupts, WAIT_MS);
    run_page_stop(&page);
    return RP_OK;
}

rp_status launch_open(struct launch *launch, rp_error *err)
{
    char folder[FOLDER_SIZE] = "";
    const char *given = launch->argument ? launch->argument : launch->run;
    bool broker = given && strstr(given, "://");
    const char *address = broker && !launch->http ? "127.0.0.1:0" : home_address(launch->http);
    if (!broker && run_folder_find_living(FOLDER_RUNS, given, folder, err) != RP_OK) {
        if (given || !home_is_shared(address))
            return (rp_status)err->status;
        folder[0] = '\0'; /* there may be runs in other folders */
    }
    struct folder_state state;
    bool served = !broker && !launch->http && folder[0] && run_folder_works_here(folder, &state);
    char *url = served ? run_folder_read(folder, FOLDER_PAGE) : NULL;
    if (url) {
        show(url);
        free(url);
        return RP_OK;
    }
    const struct run_page_options options = {
        .address = address, .folder = folder, .service = broker ? given : "", .key_file = launch->key_file};
    return serve_until_stopped(&options, &launch->prepared->interrupts, err);
}

/* ---- check, profile and plan: everything up to the start of a run ---- */

/* Asks a node whether it sees the folder of the runs; says so if that could not be found out. */
static rp_status check_folder(const struct prepared *self, rp_error *err)
{
    char real[PATH_MAX];
    const char *folder = realpath(FOLDER_RUNS, real) || realpath(".", real) ? real : ".";
    rp_status status = slurm_check_shared(&self->config, folder, err);
    if (status == RP_FAILED_PRECONDITION)
        return status;
    if (status != RP_OK)
        printf("not checked: whether the nodes see the folder '%s' (%s)\n", folder, err->text);
    *err = (rp_error){0};
    return RP_OK;
}

static void say_count(char *out, int64_t count)
{
    snprintf(out, FORMAT_SIZE, count == 0 ? "none" : count > 0 ? "%lld" : "auto", (long long)count);
}

rp_status launch_check(struct launch *launch, rp_error *err)
{
    struct prepared *self = launch->prepared;
    const struct run_config *config = &self->config;
    format_buffer actors, learners;
    launch->submits = true;
    RP_TRY(prepare_config(self, launch, launch->argument, err));
    if (config->launch.engine == ENGINE_SLURM)
        RP_TRY(check_folder(self, err));
    say_count(actors, config->actors.count);
    say_count(learners, config->learners.count);
    printf("%s: no mistakes; %s with %s, actors: %s, learners: %s\n", launch->argument, env_name(&config->environment),
           config->agent.algorithm, actors, learners);
    fflush(stdout);
    if (config->launch.engine != ENGINE_LOCAL || !run_config_is_spread(config))
        return RP_OK;
    RP_TRY(prepare_process(self, err));
    return host_check(&self->context, &self->interrupts, stdout, err);
}

/* Measures, unless the cache has the curves, and writes them into a folder. */
static rp_status obtain(struct prepared *self, const struct launch *launch, bool folder, rp_error *err)
{
    if (!folder && !launch->again && !run_config_is_spread(&self->config)) {
        rp_status status = prepare_plan(self, false, true, false, err);
        if (status != RP_OK || self->planned)
            return status;
    }
    RP_TRY(prepare_folder(self, launch, "-profile", err));
    RP_TRY(prepare_plan(self, launch->again, false, true, err));
    return prepare_save_plan(self, err);
}

/* Says why there is nothing to weigh; NULL: there is. */
static const char *no_plan(const struct run_config *config)
{
    return config->launch.engine == ENGINE_SLURM
               ? "a run under Slurm is measured inside its jobs; --set launch.engine=local measures this machine"
           : config->actors.count == 0
               ? "there is nothing to weigh: actors.count is 0, and a plan is about actors and learners together"
           : config->learners.count == 0
               ? "there is nothing to weigh: learners.count is 0, and a plan is about actors and learners together"
           : run_config_ratio(config) <= 0.0
               ? "there is no ratio of samples to inserts to plan for: write limiter: {kind: sample_to_insert_ratio}"
               : NULL;
}

/* plan and profile */
rp_status launch_plan(struct launch *launch, rp_error *err)
{
    struct prepared *self = launch->prepared;
    bool profile = strcmp(launch->verb->name, "profile") == 0;
    RP_TRY(prepare_config(self, launch, launch->argument, err));
    const char *none = no_plan(&self->config);
    if (none)
        return launch_refuse(launch, "%s", none);
    RP_TRY(prepare_process(self, err));
    RP_TRY(obtain(self, launch, profile || launch->folder, err));
    if (launch->json) {
        char *text = plan_to_json(&self->plan, &self->input);
        puts(text);
        free(text);
    } else {
        plan_print(&self->plan, &self->input, stdout);
        if (self->folder[0])
            printf("\nMeasurements and plan are in %s.\n", self->folder);
        if (self->from_cache)
            puts("\nFrom cached measurements; --again measures again.");
    }
    return RP_OK;
}
