/* Launches a run, a new one or a resumed one: in this process, or as jobs of Slurm. */
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/prepare.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/status.h"
#include "agent/launch/report.h"
#include "agent/launch/run.h"
#include "agent/launch/slurm/slurm.h"
#include "agent/launch/slurm/slurm_source.h"
#include "agent/launch/watch.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

#define FORCED 130
#define MARGIN_NS (15 * NS_PER_S)

static enum screen_mode screen_mode(const struct launch *launch)
{
    return launch->json_lines ? SCREEN_JSON : launch->quiet ? SCREEN_QUIET : SCREEN_AUTO;
}

/* ---- what all have in common ---- */

/* With fixed counts nothing is measured, but cached curves are compared with the counts. */
static rp_status size_up(struct prepared *self, const struct launch *launch, rp_error *err)
{
    bool verbose = !launch->quiet && !launch->json_lines;
    bool weighs =
        run_config_ratio(&self->config) > 0.0 && self->config.actors.count != 0 && self->config.learners.count != 0;
    if (weighs)
        RP_TRY(prepare_plan(self, launch->again, !prepare_is_auto(self), verbose, err));
    if (!self->planned && self->config.broker.shards.count == 0) {
        prepare_shards(self);
        return prepare_write_config(self, err);
    }
    if (!self->planned)
        return RP_OK;
    RP_TRY(prepare_save_plan(self, err));
    if (verbose) {
        plan_print(&self->plan, &self->input, stdout);
        puts(self->from_cache ? "(from cached measurements; --again measures again)\n" : "");
        fflush(stdout);
    }
    return prepare_write_config(self, err);
}

/* Something is missing, or the user asked to stop meanwhile, which is no failure. Leaves a status that says how the run
 * ended before it began: 'runs' and 'status' would take it for lost. */
static rp_status not_sized_up(const struct prepared *self, struct launch *launch, const rp_error *err)
{
    struct status status;
    char who[STOP_ASKER];
    bool stopped = err->status == RP_CANCELLED;
    if (!watch_status(self->folder, &status))
        status_from_json("{\"phase\": \"stopped\"}", &status);
    status.phase = stopped ? PHASE_STOPPED : PHASE_FAILED;
    snprintf(status.name, sizeof status.name, "%s", self->config.name);
    snprintf(status.folder, sizeof status.folder, "%s", self->folder);
    if (stopped)
        snprintf(status.reason, sizeof status.reason, "%s, before the run began",
                 stop_asker(self->folder, &self->interrupts, who, sizeof who));
    else
        snprintf(status.reason, sizeof status.reason, "%s", err->text);
    char *text = status_to_json(&status, true);
    run_folder_write(self->folder, FOLDER_STATUS, text, NULL);
    free(text);
    status_fini(&status);
    int failed = launch_fail(err);
    launch->exit = !stopped ? failed : self->interrupts.asked > 1 ? FORCED : EXIT_FINE;
    return RP_OK;
}

/* ---- resume ---- */

/* Writes ": " and the reason for which the run ended, from its status; "" if there is none. */
static void reason_of(const char *folder, char *out, size_t size)
{
    struct status copy;
    out[0] = '\0';
    if (watch_status(folder, &copy)) {
        snprintf(out, size, "%s%s", copy.reason[0] ? ": " : "", copy.reason);
        status_fini(&copy);
    }
}

/* Returns the option that moves the stop condition which the reason names. */
static const char *way_on(const char *reason)
{
    return strstr(reason, "stop.time")       ? "--set stop.time=..., of all legs together, or 0s for none"
           : strstr(reason, "stop.value")    ? "--set stop.value=.inf"
           : strstr(reason, "learner steps") ? "--set stop.learner_steps=..."
                                             : "--set stop.steps=...";
}

static rp_status make_absolute(struct prepared *self, rp_error *err)
{
    char real[PATH_MAX];
    if (!realpath(self->folder, real) || strlen(real) > FOLDER_SIZE - 64)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of '%s' is too long", self->folder);
    snprintf(self->folder, sizeof self->folder, "%s", real);
    return RP_OK;
}

/* Relative paths in the file (a plug-in, a command) are relative to where the run was begun. */
static rp_status go_back(struct prepared *self, const char *cwd, rp_error *err)
{
    if (!cwd[0] || strcmp(cwd, self->cwd) == 0)
        return RP_OK;
    RP_TRY(make_absolute(self, err));
    if (!prepare_go_back(cwd))
        return RP_OK;
    snprintf(self->cwd, sizeof self->cwd, "%s", cwd);
    return RP_OK;
}

static rp_status open_again(struct prepared *self, const struct launch *launch, struct folder_state *state,
                            rp_error *err)
{
    char log[FOLDER_SIZE + 32], reason[256];
    RP_TRY(run_folder_find(FOLDER_RUNS, launch->argument, self->folder, err));
    RP_TRY(run_folder_lock(self->folder, &self->lock, err));
    RP_TRY(run_folder_read_state(self->folder, state, err));
    RP_TRY(go_back(self, state->cwd, err));
    run_folder_path(self->config_path, sizeof self->config_path, self->folder, FOLDER_CONFIG);
    reason_of(self->folder, reason, sizeof reason);
    if (state->done && launch->overrides.count == 0)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the run in '%s' has met its stop condition%s; to go on, move it: %s", self->folder, reason,
                       way_on(reason));
    io_make_parents(run_folder_path(log, sizeof log, self->folder, "logs/launch.log"), 0777);
    RP_TRY(log_open(log, err));
    state->pid = (int32_t)getpid(); /* 'stop' must not mistake another process for this launcher */
    return run_folder_write_state(self->folder, state, err);
}

/* True if the command line sets the key, which ends with "=". */
static bool sets_key(const struct launch *launch, const char *key)
{
    for (uint32_t i = 0; i < launch->overrides.count; i++)
        if (strncmp(launch->overrides.list[i], key, strlen(key)) == 0)
            return true;
    return false;
}

/* With which tables the broker of the next leg starts. */
static const char *tables_of(const struct run_config *config)
{
    bool none = config->broker.checkpoint_load && strcmp(config->broker.checkpoint_load, "none") == 0;
    if (!config_makes_checkpoints(&config->broker) || none)
        return "the tables start empty";
    return config_has_journal(&config->broker) ? "the tables are those of the journal"
                                               : "the tables are those of the last checkpoint";
}

/* Refuses a stop condition of the command line that is already met: the run would stop at once. */
static rp_status verb_run_check_ends(const struct launch *launch, const struct run_config *config,
                                     const struct folder_state *state, rp_error *err)
{
    const struct stop_section *stop = &config->stop;
    const struct {
        const char *key, *what;
        double limit, now;
    } ends[] = {
        {"stop.steps=", "environment steps were taken", (double)stop->steps, (double)state->steps},
        {"stop.learner_steps=", "learner steps were made", (double)stop->learner_steps, (double)state->learner_steps},
        {"stop.time=", "s have passed in all its legs", (double)stop->time_ns * 1e-9, state->elapsed_s},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends[i].limit > 0 && ends[i].limit < ends[i].now && sets_key(launch, ends[i].key))
            return err_set(err, RP_INVALID_ARGUMENT, "%.*s is %.12g, but %.0f %s already: name more, or 0 for none",
                           (int)strlen(ends[i].key) - 1, ends[i].key, ends[i].limit, ends[i].now, ends[i].what);
    return RP_OK;
}

/* Locks and reads the run that the argument names, with the overrides of the command line. */
static rp_status reopen(struct prepared *self, struct launch *launch, struct folder_state *state, rp_error *err)
{
    RP_TRY(open_again(self, launch, state, err));
    snprintf(self->here, sizeof self->here, "%s", state->here);
    RP_TRY(prepare_config(self, launch, self->config_path, err));
    RP_TRY(verb_run_check_ends(launch, &self->config, state, err));
    /* Tables of another number of shards are refused before the run's own file names the new number. */
    const struct broker_config *broker = &self->config.broker;
    const char *folder = config_folder(broker);
    char path[1024];
    if (!folder || broker->shards.count == 0)
        return RP_OK;
    return config_check_folder(broker, command_keep(&self->context, folder, path, sizeof path), err);
}

/* Runs it until its end, in this process, which has its weights, its programs, its keys and its config.yaml by now.
 * begins: this is its first leg. */
static rp_status go_on(struct prepared *self, struct launch *launch, struct folder_state *state, bool begins,
                       rp_error *err)
{
    bool verbose = !launch->quiet && !launch->json_lines;
    run_folder_point_latest(FOLDER_RUNS, self->folder);
    log_line(LEVEL_INFO, "A0401", begins ? "a run begins" : "a run is resumed", "folder=%s steps=%llu", self->folder,
             (unsigned long long)state->steps);
    prepare_page(self, !verbose);
    if (prepare_hosts(self, verbose, err) != RP_OK)
        return not_sized_up(self, launch, err);
    /* A resumed run was stopped while it was measured, or is to be measured again. */
    bool sized = !begins && !prepare_is_auto(self) && self->config.broker.shards.count > 0;
    if (!sized && size_up(self, launch, err) != RP_OK)
        return not_sized_up(self, launch, err);
    if (verbose && !begins)
        printf("resumes after %llu environment steps and %llu learner steps; %s\n", (unsigned long long)state->steps,
               (unsigned long long)state->learner_steps, tables_of(&self->config));
    fflush(stdout);
    struct screen *screen = screen_new(screen_mode(launch));
    const struct run_options options = {.home = self->context,
                                        .cwd = self->cwd,
                                        .command = state->command[0] ? state->command : launch->command,
                                        .plan = self->planned ? &self->plan : NULL,
                                        .plan_input = self->planned ? &self->input : NULL,
                                        .before = begins ? NULL : state,
                                        .hosts = self->hosts,
                                        .interrupts = &self->interrupts,
                                        .limit = self->limit,
                                        .screen = &screen,
                                        .print_report = !launch->json_lines,
                                        .auto_actors = state->auto_actors && !launch->no_resize};
    enum phase outcome = run_do(&options, err);
    screen_destroy(&screen);
    if (self->interrupts.asked <= 1)
        run_page_end(self->page);
    launch->exit = outcome == PHASE_FAILED ? EXIT_FAILED : self->interrupts.asked > 1 ? FORCED : EXIT_FINE;
    return RP_OK;
}

/* Goes on with a run whose file and state were read. */
static rp_status resume(struct prepared *self, struct launch *launch, struct folder_state *state, rp_error *err)
{
    bool counted = sets_key(launch, "actors.count=");
    if (counted) {
        state->auto_actors = self->config.actors.count < 0;
        state->by_hand = false;
    } else if ((state->auto_actors || state->by_hand) && state->actors > 0)
        self->config.actors.count = state->actors;
    /* The plan of the earlier legs; without one the report compares nothing. */
    char *plan = run_folder_read(self->folder, "plan.json");
    self->planned = plan && plan_from_json(plan, &self->plan, &self->input);
    free(plan);
    if (prepare_weights(self, err) != RP_OK || prepare_process(self, err) != RP_OK ||
        prepare_keys(self, err) != RP_OK || prepare_write_config(self, err) != RP_OK)
        return not_sized_up(self, launch, err);
    return go_on(self, launch, state, state->legs == 0 && self->config.launch.engine == ENGINE_SLURM, err);
}

/* Makes the folder of a new run with its state: status and stop find the run while it is still being measured. */
static rp_status make_folder(struct prepared *self, const struct launch *launch, bool auto_actors, pid_t pid,
                             struct folder_state *state, rp_error *err)
{
    RP_TRY(prepare_folder(self, launch, "", err));
    *state = (struct folder_state){.pid = (int32_t)pid, .auto_actors = auto_actors};
    if (pid > 0)
        run_folder_this_node(state->node);
    snprintf(state->here, sizeof state->here, "%s", self->here);
    snprintf(state->cwd, sizeof state->cwd, "%s", self->cwd);
    snprintf(state->command, sizeof state->command, "%s", launch->command);
    return run_folder_write_state(self->folder, state, err);
}

/* ---- Slurm: the login node ---- */

/* Makes the paths of the run's folder absolute, as jobs on other machines need them. */
static rp_status settle(struct prepared *self, rp_error *err)
{
    RP_TRY(make_absolute(self, err));
    run_folder_path(self->config_path, sizeof self->config_path, self->folder, FOLDER_CONFIG);
    return slurm_check_path(self->folder, err);
}

static rp_status write_scripts(const struct prepared *self, rp_error *err)
{
    char program[FOLDER_SIZE + 32], output[FOLDER_SIZE + 32];
    const char *const words[] = {self->folder, NULL};
    struct slurm_script script = {.config = &self->config,
                                  .program = run_folder_path(program, sizeof program, self->programs, LAUNCH_PROGRAM),
                                  .output = run_folder_path(output, sizeof output, self->folder, SLURM_CORE_LOG),
                                  .core = words};
    char *core = slurm_script_core(&script), *actors = slurm_script_actors(&script);
    rp_status status = run_folder_write(self->folder, SLURM_CORE_SCRIPT, core, err);
    if (status == RP_OK)
        status = run_folder_write(self->folder, SLURM_ACTORS_SCRIPT, actors, err);
    free(core);
    free(actors);
    return status;
}

/* Writes both scripts into the folder, gives up the lock, and submits the core job. The job is held until the folder knows its number: from
 * then on the job's own launcher writes there. */
static rp_status submit(struct prepared *self, struct slurm_record *record, rp_error *err)
{
    char path[FOLDER_SIZE + 32], name[24];
    RP_TRY(write_scripts(self, err));
    unlink(run_folder_path(path, sizeof path, self->folder, REPORT_TEXT));
    run_folder_path(path, sizeof path, self->folder, SLURM_CORE_SCRIPT);
    uint64_t array = record->array;
    *record = (struct slurm_record){.array = array, .tasks = record->tasks};
    RP_TRY(slurm_submit(WORDS("sbatch", "--parsable", "--hold", path), &record->core, err));
    rp_status status = slurm_record_write(self->folder, record, err);
    if (self->lock >= 0)
        close(self->lock);
    self->lock = -1;
    snprintf(name, sizeof name, "%" PRIu64, record->core);
    if (status == RP_OK)
        status = slurm_run(WORDS("scontrol", "release", name), 0, NULL, err);
    if (status != RP_OK)
        slurm_cancel(record->core, NULL);
    return status;
}

static rp_status submit_and_watch(struct prepared *self, struct launch *launch, rp_error *err)
{
    struct slurm_record record;
    slurm_record_read(self->folder, &record);
    RP_TRY(interrupts_init(&self->interrupts, err));
    RP_TRY(submit(self, &record, err));
    log_line(LEVEL_INFO, "A0440", "a run is submitted", "folder=%s job=%llu", self->folder,
             (unsigned long long)record.core);
    const struct watch_options options = {
        .folder = self->folder, .mode = screen_mode(launch), .interrupts = &self->interrupts};
    return watch_run(&options, &launch->exit, err);
}

/* Makes the folder of a run that is submitted. The broker's keys and tables will be in it, too. */
static rp_status make_submitted(struct prepared *self, const struct launch *launch, rp_error *err)
{
    struct folder_state state;
    bool auto_actors = self->config.actors.count < 0;
    run_config_complete_slurm(&self->config);
    RP_TRY(prepare_weights(self, err));
    RP_TRY(prepare_programs(self, err));
    RP_TRY(make_folder(self, launch, auto_actors, 0, &state, err));
    self->keys.on = false; /* the launcher in the job takes them away at the end */
    run_folder_point_latest(FOLDER_RUNS, self->folder);
    return settle(self, err);
}

/* ---- a run, and one that goes on ---- */

rp_status launch_run(struct launch *launch, rp_error *err)
{
    struct prepared *self = launch->prepared;
    struct folder_state state;
    launch->submits = true;
    RP_TRY(prepare_config(self, launch, launch->argument, err));
    if (self->config.launch.engine == ENGINE_SLURM) {
        RP_TRY(make_submitted(self, launch, err));
        return submit_and_watch(self, launch, err);
    }
    bool auto_actors = self->config.actors.count < 0;
    RP_TRY(prepare_weights(self, err));
    RP_TRY(prepare_process(self, err));
    RP_TRY(make_folder(self, launch, auto_actors, getpid(), &state, err));
    return go_on(self, launch, &state, true, err);
}

rp_status launch_resume(struct launch *launch, rp_error *err)
{
    struct prepared *self = launch->prepared;
    struct folder_state state = {0};
    RP_TRY(watch_is_free(launch->argument, err));
    RP_TRY(reopen(self, launch, &state, err));
    if (self->config.launch.engine != ENGINE_SLURM)
        return resume(self, launch, &state, err);
    state.done = false; /* the stop condition was moved */
    state.pid = 0;
    RP_TRY(prepare_programs(self, err));
    RP_TRY(settle(self, err));
    RP_TRY(prepare_write_config(self, err));
    RP_TRY(run_folder_write_state(self->folder, &state, err));
    return submit_and_watch(self, launch, err);
}

/* ---- Slurm: the core job ---- */

/* The first leg of a run that was submitted with a script of the user's. */
static rp_status make_run(struct launch *launch, const char *folder, const char *config, const char *script,
                          rp_error *err)
{
    struct prepared self;
    struct slurm_record record = {0};
    launch->folder = folder;
    prepare_init(&self);
    rp_status status = prepare_config(&self, launch, config, err);
    snprintf(record.script, sizeof record.script, "%s", script);
    if (status == RP_OK)
        status = make_submitted(&self, launch, err);
    if (status == RP_OK)
        status = slurm_record_write(self.folder, &record, err);
    prepare_fini(&self);
    return status;
}

/* The job of this launcher, and whether Slurm has queued it again. */
struct core {
    const char *folder; /* of the run */
    const struct run_config *config;
    uint64_t job;
    bool queued;
};

/* Saving takes longer than Slurm waits, and Slurm queues no job again that its time limit ended. It ends this one now. */
static bool queue_early(void *context)
{
    struct core *self = context;
    rp_error err = {0};
    self->queued = slurm_requeue(self->job, &err) == RP_OK;
    if (self->queued)
        slurm_say(true,
                  "saving takes longer than signal of launch.slurm.core allows (%.0f s): the job is queued again as it "
                  "is, and goes on "
                  "from what was saved last; %s",
                  (double)run_config_slurm_warning(self->config) * 1e-9, tables_of(self->config));
    else
        slurm_say(true, "the job could not be queued again: %s", err.text);
    return self->queued;
}

/* Queues the job again if its time limit ended the leg, and not the run itself. */
static rp_status queue_again(const struct core *self, const struct interrupts *interrupts, rp_error *err)
{
    struct folder_state state = {0};
    rp_error why = {0};
    if (self->queued || interrupts->asked != 1 || interrupts->last != SIGUSR1 ||
        (run_folder_read_state(self->folder, &state, NULL) == RP_OK && state.done) ||
        slurm_requeue(self->job, &why) == RP_OK)
        return RP_OK;
    return err_set(err, RP_UNAVAILABLE,
                   "%s: the run is saved, but the job could not be queued again: 'replay-launch resume %s' goes on",
                   why.text, self->folder);
}

static rp_status open_source(struct prepared *self, uint64_t job, struct slurm_source **out, rp_error *err)
{
    struct slurm_record record;
    slurm_record_read(self->folder, &record);
    record.core = job;
    RP_TRY(slurm_record_write(self->folder, &record, err));
    RP_TRY(prepare_programs(self, err));
    if (self->config.actors.count == 0)
        return RP_OK;
    const struct slurm_source_options options = {
        .config = &self->config, .folder = self->folder, .programs = self->programs};
    *out = slurm_source_new(&options, err);
    return *out ? RP_OK : err->status;
}

/* What a launcher prints on a terminal is for its user: the address of the page has a password in it. */
static void keep_output_private(void)
{
    struct stat st;
    if (fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode))
        fchmod(STDOUT_FILENO, st.st_mode & 0700);
}

rp_status launch_core(struct launch *launch, rp_error *err)
{
    struct prepared *self = launch->prepared;
    struct folder_state state = {0};
    struct slurm_source *source = NULL;
    char folder[FOLDER_SIZE];
    const char *number = getenv("SLURM_JOB_ID"); /* of the job that this process is the script of */
    uint64_t job = 0;
    if (!number || slurm_take_id(number, &job, NULL) != RP_OK)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "core is for the script of a job: SLURM_JOB_ID is not set. 'replay-launch CONFIG.yaml' submits one");
    keep_output_private();
    if (!run_folder_holds(launch->argument) && launch->n_arguments == 3)
        RP_TRY(make_run(launch, launch->arguments[0], launch->arguments[1], launch->arguments[2], err));
    words_clear(&launch->overrides); /* they are in the run's own file now */
    RP_TRY(reopen(self, launch, &state, err));
    snprintf(folder, sizeof folder, "%s", self->folder);
    RP_TRY(open_source(self, job, &source, err));
    self->source = source ? slurm_source_hosts(source) : NULL;
    struct core core = {.folder = folder, .config = &self->config, .job = job};
    int64_t warning_ns = run_config_slurm_warning(&self->config), margin_ns = warning_ns / 4; /* for Slurm to answer */
    const struct run_limit limit = {
        .after_ns = warning_ns - (margin_ns < MARGIN_NS ? margin_ns : MARGIN_NS), .act = queue_early, .context = &core};
    self->limit = &limit;
    rp_status status = resume(self, launch, &state, err);
    const struct interrupts interrupts = self->interrupts;
    prepare_fini(self); /* the hosts are the source's */
    prepare_init(self);
    slurm_source_destroy(&source);
    return status == RP_OK && launch->exit == EXIT_FINE ? queue_again(&core, &interrupts, err) : status;
}

/* ---- Slurm: scripts, for people who submit jobs themselves ---- */

static rp_status print_scripts(struct prepared *self, const struct launch *launch, const char *which, rp_error *err)
{
    char real[PATH_MAX], folder[FOLDER_SIZE + 256], program[FOLDER_SIZE + 32];
    if (!realpath(launch->argument, real))
        return err_set(err, RP_NOT_FOUND, "'%s' cannot be read", launch->argument);
    snprintf(folder, sizeof folder, "%s/" FOLDER_RUNS "/%s-$SLURM_JOB_ID", self->cwd, self->config.name);
    RP_TRY(slurm_check_path(real, err));
    RP_TRY(prepare_programs(self, err));
    struct words words = {0}; /* after `replay-launch core`: folder, file, the script of the array, overrides */
    words_put(&words, folder, real, "$SLURM_SUBMIT_DIR/" SLURM_ACTORS_SCRIPT);
    for (uint32_t i = 0; i < launch->overrides.count; i++)
        words_put(&words, "--set", launch->overrides.list[i]);
    struct slurm_script script = {.config = &self->config,
                                  .program = run_folder_path(program, sizeof program, self->programs, LAUNCH_PROGRAM),
                                  .output = "replay-%j.log",
                                  .core = (const char *const *)words.list};
    char *core = slurm_script_core(&script), *actors = slurm_script_actors(&script);
    bool both = !which;
    if (both)
        puts("### Save this part as " SLURM_CORE_SCRIPT " and the second as " SLURM_ACTORS_SCRIPT
             ", in one folder; there: sbatch " SLURM_CORE_SCRIPT);
    if (both || strcmp(which, "core") == 0)
        fputs(core, stdout);
    if (both)
        puts("\n### " SLURM_ACTORS_SCRIPT ": the core job submits it");
    if (both || strcmp(which, "actors") == 0)
        fputs(actors, stdout);
    free(core);
    free(actors);
    words_clear(&words);
    return RP_OK;
}

rp_status launch_script(struct launch *launch, rp_error *err)
{
    struct prepared *self = launch->prepared;
    const char *which = launch->n_arguments > 1 ? launch->arguments[1] : NULL;
    if (launch->n_arguments > 2 || (which && strcmp(which, "core") != 0 && strcmp(which, "actors") != 0))
        return launch_refuse(launch, "script takes a file, and core or actors to print only one of the two scripts");
    RP_TRY(prepare_config(self, launch, launch->argument, err));
    if (self->config.launch.engine != ENGINE_SLURM)
        return launch_refuse(launch, "launch.engine of '%s' is not slurm: write launch: {engine: slurm}",
                             launch->argument);
    return print_scripts(self, launch, which, err);
}
