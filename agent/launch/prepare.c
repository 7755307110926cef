#include "agent/launch/prepare.h"

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/home.h"
#include "agent/launch/plan/profile.h"
#include "agent/launch/process/command.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/spawn.h"
#include "agent/launch/slurm/slurm.h"
#include "agent/view/page.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

#define COLUMNS 100u /* without a terminal */
/* How long a run waits for its hosts at its start. */
#define HOSTS_NS (60 * NS_PER_S)

int launch_fail(const rp_error *err)
{
    fprintf(stderr, LAUNCH_PROGRAM ": %s\n", err->text[0] ? err->text : rp_status_name(err->status));
    return err->status == RP_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
}

void prepare_init(struct prepared *self)
{
    *self = (struct prepared){.context = {.config = &self->config,
                                          .programs = self->programs,
                                          .config_path = self->config_path,
                                          .here = self->here,
                                          .folder = self->folder,
                                          .keys = &self->keys,
                                          .guard = &self->guard},
                              .lock = -1,
                              .interrupts = {.fd = -1},
                              .guard = {.pipe = -1}};
    if (!getcwd(self->cwd, sizeof self->cwd))
        self->cwd[0] = '\0';
}

void prepare_fini(struct prepared *self)
{
    host_pool_destroy(&self->hosts);
    if (self->page) /* otherwise the address may be that of another launcher */
        run_folder_remove(self->folder, FOLDER_PAGE);
    run_page_stop(&self->page);
    guard_stop(&self->guard);
    interrupts_fini(&self->interrupts);
    run_keys_close(&self->keys);
    if (self->lock >= 0)
        close(self->lock);
    log_close();
    plan_input_free(&self->input);
    run_config_free(&self->config);
}

/* ---- the configuration ---- */

/* Refuses a user's command whose program, or its script beside the configuration, does not exist: it would only fail again and
 * again. Further words may name files that the program makes. */
static void check_program(const struct schema_list *command, const char *here, const char *path,
                          struct schema_report *report)
{
    char *const *words = command->data;
    const char *program = command->count > 0 ? words[0] : NULL;
    for (uint32_t i = 0; i < command->count && i < 2; i++) {
        char file[PATH_MAX];
        if (strncmp(words[i], "{here}/", 7) != 0 || strchr(words[i] + 1, '{'))
            continue;
        snprintf(file, sizeof file, "%s%s", here, words[i] + 6);
        if (access(file, F_OK) != 0)
            schema_problem(report, path, "there is no file '%s'", file);
    }
    if (program && !strchr(program, '{') && !spawn_can_start(program))
        schema_problem(report, path,
                       "there is no program '%s', or it is not executable: a path is relative to the folder that "
                       "replay-launch is started in, a name is looked up in PATH",
                       program);
}

/* The last line that the child printed is the sentence; the traceback stands before it, unless a module is missing. */
static void tell_failure(const struct env_config *env, const struct call *call, rp_error *err)
{
    char how[96], *text = call->err;
    size_t length = strlen(text);
    while (length > 0 && strchr("\n ", text[length - 1]))
        text[--length] = '\0';
    char *last = strrchr(text, '\n');
    const char *reason = last ? last + 1 : text;
    if (strstr(reason, "No module named 'replaybus'")) {
        err_set(
            err, RP_FAILED_PRECONDITION,
            "'%s' has no package replaybus, which actors in Python need: install it (pip install ./agent/python, or "
            "the wheel that ./dev python makes), or name another Python in environment.interpreter",
            env->interpreter);
    } else if (strstr(reason, "ModuleNotFoundError")) {
        err_set(err, RP_FAILED_PRECONDITION,
                "%s. Install it for '%s', or name another Python in environment.interpreter", reason, env->interpreter);
    } else {
        if (last)
            fprintf(stderr, "%.*s\n", (int)(last - text), text);
        if (*reason)
            err_set(err, RP_FAILED_PRECONDITION, "%s", reason);
        else
            err_set(err, RP_FAILED_PRECONDITION, "'%s' ended Python while it was described: %s", env_name(env),
                    process_describe(call->status, how, sizeof how));
    }
}

/* Turns each line "key: value" into an override. */
static char **make_overrides(char *text)
{
    struct words words = {0};
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *colon = strstr(line, ": ");
        if (colon)
            words_addf(&words, "environment.spec.%.*s=%s", (int)(colon - line), line, colon + 2);
    }
    return words.list;
}

/* Runs python3 -m replaybus.describe and waits launch.hang for it. Gives overrides "environment.spec.KEY=VALUE"
 * (NULL-terminated, words_free), or NULL with the reason. What the environment printed to standard error is passed on. */
static char **describe_environment(const struct run_config *config, const char *programs, const char *here,
                                   rp_error *err)
{
    const struct env_config *env = &config->environment;
    char **argv = command_describe(env), *path = command_python_path(programs, here), **list = NULL;
    const char *const environment[] = {path, "OPENBLAS_NUM_THREADS=1", NULL};
    struct call call = {0};
    int64_t limit_ns = config->launch.hang_ns > 0 ? config->launch.hang_ns : INT64_MAX;
    bool started = call_start(&call, (const char *const *)argv, environment, limit_ns, err) == RP_OK;
    if (started && call_await(&call)) {
        fputs(call.err, stderr);
        list = make_overrides(call.out);
    } else if (started && call.late && config->launch.hang_ns > 0) {
        fputs(call.err, stderr);
        err_set(err, RP_DEADLINE_EXCEEDED,
                "'%s' did not describe itself within %g s: its constructor, reset() or step() hangs, or needs a "
                "longer launch.hang",
                env_name(env), (double)limit_ns * 1e-9);
    } else if (started) {
        tell_failure(env, &call, err);
    }
    call_fini(&call);
    words_free(&argv);
    free(path);
    return list;
}

/* Asks an environment in Python for its spec, unless the file has it: a run's own file does. The file is read again
 * with the spec: the checks that need it follow, and the run keeps it in its own file. */
static bool describe(struct prepared *self, const struct launch *launch, const char *file, struct schema_report *report)
{
    const struct env_config *env = &self->config.environment;
    rp_error err = {0};
    if (!env_is_python(env) || env->spec.count > 0 || !run_config_needs_ours(&self->config))
        return true;
    if (!spawn_can_start(env->interpreter)) {
        schema_problem(report, "environment.interpreter", "there is no program '%s'", env->interpreter);
        return false;
    }
    char **spec = prepare_programs(self, &err) == RP_OK
                      ? describe_environment(&self->config, self->programs, self->here, &err)
                      : NULL;
    if (!spec) {
        schema_problem(report, "environment.name", "%s", err.text);
        return false;
    }
    struct words all = {0};
    words_add_list(&all, (const char *const *)launch->overrides.list);
    words_add_list(&all, (const char *const *)spec);
    run_config_free(&self->config);
    self->config = (struct run_config){0};
    bool ok = run_config_read(file, (const char *const *)all.list, &self->config, report);
    words_clear(&all);
    words_free(&spec);
    return ok;
}

/* Refuses shards that somebody else starts: the launcher starts the shards of a run as one broker on this machine. */
static void check_shards(const struct run_config *config, struct schema_report *report)
{
    if (config_shard_endpoint(&config->broker, 0))
        schema_problem(report, "broker.shards",
                       "is a list of brokers, which somebody starts; replay-launch starts the shards of a run itself, "
                       "all on this machine: write their number, or start brokers, actors and learners by hand "
                       "(docs/OPERATE.md)");
    else if (config->broker.shard >= 0)
        schema_problem(report, "broker.shard",
                       "is for a broker that somebody starts; replay-launch numbers the shards of a run: leave it out");
}

rp_status prepare_config(struct prepared *self, const struct launch *launch, const char *file, rp_error *err)
{
    struct schema_report *report = schema_report_new();
    char real[PATH_MAX];
    if (!self->here[0] && realpath(file, real))
        snprintf(self->here, sizeof self->here, "%.*s", (int)sizeof self->here - 1, dirname(real));
    if (run_config_read(file, (const char *const *)launch->overrides.list, &self->config, report) &&
        describe(self, launch, file, report)) {
        run_config_open_broker(&self->config, report);
        run_config_prescribe(&self->config, file == self->config_path, report);
        check_shards(&self->config, report);
        if (run_config_home_takes(&self->config, "actor")) /* elsewhere there may be other programs */
            check_program(&self->config.actors.command, self->here, "actors.command", report);
        if (run_config_home_takes(&self->config, "learner"))
            check_program(&self->config.learners.command, self->here, "learners.command", report);
        if (launch->submits && self->config.launch.engine == ENGINE_SLURM)
            slurm_check(&self->config, report);
    }
    uint32_t n = schema_report_count(report);
    const char *hint = schema_is_written(report, "tables")
                           ? ". This is the file of a broker by itself, for replay-broker -c FILE --check; in the file "
                             "of a run its keys are in the section broker"
                       : schema_is_written(report, "") && !schema_is_written(report, "broker")
                           ? ". A run needs at least a table in its section broker: begin with a copy of "
                             "configs/cartpole-dqn.yaml"
                           : "";
    fputs(schema_report_text(report), stderr);
    schema_report_destroy(&report);
    return n == 0 ? RP_OK
                  : err_set(err, RP_INVALID_ARGUMENT, "%u mistake%s in the configuration; nothing was started%s", n,
                            n == 1 ? "" : "s", hint);
}

bool prepare_is_auto(const struct prepared *self)
{
    const struct run_config *config = &self->config;
    return config->actors.count != 0 && config->learners.count != 0 &&
           (config->actors.count < 0 || config->learners.count < 0 || config->broker.shards.count == 0);
}

rp_status prepare_weights(struct prepared *self, rp_error *err)
{
    char **weights = &self->config.actors.weights;
    if (self->config.actors.count == 0 || !(*weights)[0])
        return RP_OK;
    char *real = access(*weights, R_OK) == 0 ? realpath(*weights, NULL) : NULL;
    if (!real)
        return err_set(err, RP_NOT_FOUND,
                       "actors.weights: '%s' cannot be read: it is the saved state of a learner, such as "
                       "runs/latest/best.weights; say which one with --set actors.weights=FILE",
                       *weights);
    free(*weights);
    *weights = real;
    return RP_OK;
}

bool prepare_go_back(const char *cwd)
{
    bool there = cwd[0] && chdir(cwd) == 0;
    if (cwd[0] && !there)
        fprintf(stderr, "replay-launch: the run was begun in '%s', which is gone; relative paths start here now\n",
                cwd);
    return there;
}

/* ---- the process ---- */

rp_status prepare_programs(struct prepared *self, rp_error *err)
{
    static const char *const names[] = {"replay-broker", "replay-actor", "replay-learner"};
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    snprintf(self->programs, sizeof self->programs, "%.*s", (int)sizeof self->programs - 1, dirname(path));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char program[FOLDER_SIZE + 32];
        if (access(run_folder_path(program, sizeof program, self->programs, names[i]), X_OK) != 0)
            return err_set(err, RP_NOT_FOUND, "there is no %s beside replay-launch in '%s': build or install it there",
                           names[i], self->programs);
    }
    return RP_OK;
}

rp_status prepare_process(struct prepared *self, rp_error *err)
{
    process_raise_files();
    RP_TRY(prepare_programs(self, err));
    RP_TRY(interrupts_init(&self->interrupts, err));
    return guard_start(&self->guard, NULL, err);
}

/* ---- the folder ---- */

rp_status prepare_write_config(struct prepared *self, rp_error *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    schema_print(run_schema(), &self->config, out);
    fclose(out);
    rp_status status = run_folder_write(self->folder, FOLDER_CONFIG, text, err);
    free(text);
    run_folder_path(self->config_path, sizeof self->config_path, self->folder, FOLDER_CONFIG);
    if (self->hosts && status == RP_OK)
        host_pool_config_changed(self->hosts);
    return status;
}

rp_status prepare_keys(struct prepared *self, rp_error *err)
{
    char list[1024] = "";
    const char *dir = self->config.broker.keys_dir;
    if (dir && dir[0])
        command_keep(&self->context, dir, list, sizeof list);
    return run_keys_open(&self->keys, &self->config, self->folder, list, err);
}

rp_status prepare_folder(struct prepared *self, const struct launch *launch, const char *suffix, rp_error *err)
{
    char name[256], log[FOLDER_SIZE + 32];
    const char *given = launch->folder ? launch->folder : self->config.folder;
    snprintf(name, sizeof name, "%s%s", self->config.name, suffix);
    RP_TRY(run_folder_create(FOLDER_RUNS, name, given, self->folder, err));
    RP_TRY(run_folder_lock(self->folder, &self->lock, err));
    RP_TRY(log_open(run_folder_path(log, sizeof log, self->folder, "logs/launch.log"), err));
    RP_TRY(prepare_keys(self, err));
    return prepare_write_config(self, err);
}

/* ---- the hosts ---- */

/* A wait for hosts; what is wrong with a host is said as soon as it is known, once. */
struct host_wait {
    struct prepared *prepared;
    bool verbose;
    bool said[HOST_POOL_MOST];
};

static bool is_stopped(void *context)
{
    struct host_wait *self = context;
    const struct host_pool *hosts = self->prepared->hosts;
    for (uint32_t i = 1; self->verbose && i < host_pool_count(hosts); i++) {
        const struct host_info *info = host_pool_at(hosts, i)->info;
        if (self->said[i] || info->state != HOST_LOST)
            continue;
        self->said[i] = true;
        fprintf(stderr, "%s: %s\n", info->name, info->reason);
    }
    interrupts_wait(&self->prepared->interrupts, 0);
    return self->prepared->interrupts.asked > 0;
}

/* Why there is no host for a role: all reasons, one after the other. */
static rp_status explain_hosts(const struct prepared *self, enum role role, rp_error *err)
{
    char reasons[sizeof err->text];
    size_t used = 0;
    reasons[0] = '\0';
    for (uint32_t i = 1; i < host_pool_count(self->hosts) && used < sizeof reasons; i++) {
        const struct pool_host *one = host_pool_at(self->hosts, i);
        const struct host_info *info = one->info;
        if (!one->takes[role])
            continue;
        used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used > 0 ? "; " : "", info->name,
                                 info->reason[0] ? info->reason : host_state_names[info->state]);
    }
    return err_set(err, RP_UNAVAILABLE, "no host for %ss was ready within %d s: %s", role_names[role],
                   (int)(HOSTS_NS / NS_PER_S), reasons);
}

/* A scheduler's machines may come after hours: a run with given counts begins without them. */
static rp_status await_hosts(struct prepared *self, bool verbose, rp_error *err)
{
    const struct run_config *config = &self->config;
    bool forever = self->source != NULL;
    if (forever && !prepare_is_auto(self))
        return RP_OK;
    if (verbose)
        fprintf(stderr, "waiting for %s\n", forever ? "the first machine for actors" : "the hosts of the run");
    struct host_wait wait = {.prepared = self, .verbose = verbose};
    do
        host_pool_await(self->hosts, HOSTS_NS, is_stopped, &wait);
    while (forever && self->interrupts.asked == 0 && !host_pool_has(self->hosts, ROLE_ACTOR));
    if (self->interrupts.asked > 0)
        return err_set(err, RP_CANCELLED, "stopped while it was waiting for hosts");
    if (config->actors.count != 0 && !host_pool_has(self->hosts, ROLE_ACTOR))
        return explain_hosts(self, ROLE_ACTOR, err);
    if (config->learners.count != 0 && !host_pool_has(self->hosts, ROLE_LEARNER))
        return explain_hosts(self, ROLE_LEARNER, err);
    return RP_OK;
}

rp_status prepare_hosts(struct prepared *self, bool verbose, rp_error *err)
{
    const struct host_pool_options options = {.home = self->context, .source = self->source};
    if (self->hosts)
        return RP_OK;
    self->hosts = host_pool_new(&options, err);
    if (!self->hosts)
        return (rp_status)err->status;
    return run_config_is_spread(&self->config) ? await_hosts(self, verbose, err) : RP_OK;
}

/* ---- the page ---- */

/* If all runs cannot be shown at their address, this one gets a page of its own. */
static struct run_page *start_page(const struct prepared *self, const char *address, rp_error *err)
{
    struct run_page_options options = {.address = address, .folder = self->folder};
    struct run_page *page = run_page_start(&options, err);
    if (page || !home_is_shared(address))
        return page;
    fprintf(stderr, LAUNCH_PROGRAM ": %s. This run has a page of its own\n", err->text);
    options.address = "127.0.0.1:0";
    return run_page_start(&options, err);
}

void prepare_page(struct prepared *self, bool quiet)
{
    const char *address = home_address(self->config.launch.http);
    rp_error err = {0};
    if (!address[0])
        return;
    self->page = start_page(self, address, &err);
    if (!self->page || run_folder_write_secret(self->folder, FOLDER_PAGE, self->page->url, &err) != RP_OK)
        fprintf(stderr, "replay-launch: there is no page: %s\n", err.text);
    else if (!quiet && isatty(STDOUT_FILENO))
        printf("page: %s\n", self->page->url);
    else if (!quiet) /* whoever reads a file of the output need not have the token */
        printf("page: %s ('replay-launch open' has the token for changes)\n", self->page->address);
    fflush(stdout);
}

/* ---- shards of the broker ---- */

void prepare_shards(struct prepared *self)
{
    uint32_t shards = self->planned && self->plan.broker.shards ? self->plan.broker.shards : 1;
    if (self->config.broker.shards.count == 0)
        run_config_set_shards(&self->config, shards);
}

/* ---- the plan ---- */

struct progress {
    struct prepared *prepared;
    bool tty, verbose;
    char last[160];
};

static bool show_progress(void *context, const char *line)
{
    struct progress *self = context;
    interrupts_wait(&self->prepared->interrupts, 0);
    if (self->tty)
        fprintf(stderr, "\r\033[Kmeasuring: %.100s", line);
    else if (self->verbose && strcmp(self->last, line) != 0)
        fprintf(stderr, "measuring: %s\n", line);
    snprintf(self->last, sizeof self->last, "%s", line);
    return self->prepared->interrupts.asked == 0;
}

rp_status prepare_plan(struct prepared *self, bool again, bool cached, bool verbose, rp_error *err)
{
    RP_TRY(prepare_hosts(self, verbose, err));
    struct progress progress = {.prepared = self, .tty = verbose && isatty(STDERR_FILENO), .verbose = verbose};
    const struct profile_options options = {.home = self->context,
                                            .hosts = self->hosts,
                                            .fresh = again,
                                            .cached = cached,
                                            .progress = show_progress,
                                            .context = &progress};
    plan_input_free(&self->input);
    rp_status status = profile_measure(&options, &self->input, &self->from_cache, err);
    if (progress.tty && progress.last[0])
        fputs("\r\033[K", stderr);
    if (cached && status == RP_NOT_FOUND)
        return RP_OK;
    RP_TRY(status);
    struct run_config *config = &self->config;
    status = plan_solve(&self->input, &self->plan, err);
    if (status != RP_OK && !prepare_is_auto(self))
        return RP_OK; /* the numbers of the file count, with or without a plan */
    RP_TRY(status);
    self->planned = true;
    if (config->actors.count < 0)
        config->actors.count = self->plan.chosen.actors;
    if (config->learners.count < 0)
        config->learners.count = self->plan.chosen.learners;
    prepare_shards(self);
    return RP_OK;
}

uint32_t launch_columns(void)
{
    uint32_t columns, rows;
    terminal_size(&columns, &rows);
    return isatty(STDOUT_FILENO) ? columns : COLUMNS;
}

/* ---- what was measured, as files ---- */

rp_status profile_write(const struct plan_input *input, const char *folder, rp_error *err)
{
    struct text page = {0}, answers = {0};
    char *json = plan_to_json(NULL, input);
    text_add(&answers, "{\"api/state\": {}, \"api/report\": {\"plan\": %s}}", json);
    page_put_alone(&page, text_get(&answers));
    rp_status status = run_folder_write(folder, "profile.json", json, err);
    if (status == RP_OK)
        status = run_folder_write(folder, "profile.html", text_get(&page), err);
    text_fini(&page);
    text_fini(&answers);
    free(json);
    return status;
}

rp_status prepare_save_plan(const struct prepared *self, rp_error *err)
{
    char *text = plan_to_json(&self->plan, &self->input);
    rp_status status = run_folder_write(self->folder, "plan.json", text, err);
    free(text);
    return status == RP_OK ? profile_write(&self->input, self->folder, err) : status;
}
