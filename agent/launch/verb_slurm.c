/* Runs under Slurm: from the login node (run, resume), inside the core job (core), and as scripts for people who submit jobs
 * themselves (script). */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/run/run.h"
#include "agent/launch/slurm/slurm_script.h"
#include "agent/launch/slurm/slurm_source.h"
#include "agent/launch/submit.h"
#include "agent/launch/verb_run.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

#define MARGIN_NS (15 * NS_PER_S)

static int give_up(struct prepared *self, const rp_error *err)
{
    int status = launch_fail(err);
    prepare_fini(self);
    return status;
}

/* ---- the login node ---- */

static int submit_and_watch(struct prepared *self, const struct launch *launch, rp_error *err)
{
    struct slurm_record record;
    slurm_record_read(self->folder, &record);
    if (interrupts_init(&self->interrupts, err) != RP_OK || submit_core(self, &record, err) != RP_OK)
        return give_up(self, err);
    log_line(LEVEL_INFO, "A0440", "a run is submitted", "folder=%s job=%llu", self->folder,
             (unsigned long long)record.core);
    int status = watch_run(&(struct watch_options){
        .folder = self->folder, .mode = launch_screen_mode(launch), .interrupts = &self->interrupts});
    prepare_fini(self);
    return status;
}

/* Makes the folder of a new run. The broker's keys and tables will be in it, too. */
static rp_status make_folder(struct prepared *self, const struct launch *launch, rp_error *err)
{
    struct folder_state state = {.auto_actors = self->config.actors.on && self->config.actors.count == 0};
    if (!run_config_complete_slurm(&self->config))
        return err_set(err, RP_NO_MEMORY, "no memory for the configuration");
    RP_TRY(prepare_weights(self, err));
    RP_TRY(prepare_programs(self, err));
    RP_TRY(prepare_folder(self, launch, "", err));
    self->keys.on = false; /* the launcher in the job takes them away at the end */
    run_folder_point_latest(self->config.launch.runs, self->folder);
    snprintf(state.here, sizeof state.here, "%s", self->here);
    snprintf(state.cwd, sizeof state.cwd, "%s", self->cwd);
    snprintf(state.command, sizeof state.command, "%s", launch->command);
    RP_TRY(run_folder_write_state(self->folder, &state, err));
    return submit_settle(self, err);
}

int launch_submit(struct prepared *self, const struct launch *launch)
{
    rp_error err = {0};
    if (make_folder(self, launch, &err) != RP_OK)
        return give_up(self, &err);
    return submit_and_watch(self, launch, &err);
}

int launch_submit_again(struct prepared *self, const struct launch *launch, struct folder_state *state)
{
    rp_error err = {0};
    state->done = false; /* the stop condition was moved */
    state->pid = 0;
    if (prepare_programs(self, &err) != RP_OK || submit_settle(self, &err) != RP_OK ||
        prepare_write_config(self, &err) != RP_OK || run_folder_write_state(self->folder, state, &err) != RP_OK)
        return give_up(self, &err);
    return submit_and_watch(self, launch, &err);
}

/* ---- the core job ---- */

static void say(void *context, bool loud, const char *text)
{
    char quoted[1200];
    (void)context;
    log_line(loud ? LEVEL_WARN : LEVEL_INFO, "A0441", "slurm", "text=%s", log_quote(quoted, sizeof quoted, text));
    printf("%s\n", text);
    fflush(stdout);
}

/* The number of the job that this process is the script of. */
static rp_status own_job(uint64_t *id, rp_error *err)
{
    const char *text = getenv("SLURM_JOB_ID");
    if (text && slurm_parse_id(text, id))
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT,
                   "core is for the script of a job: SLURM_JOB_ID is not set. 'replay-launch CONFIG.yaml' submits one");
}

/* The first leg of a run that was submitted with a script of the user's. */
static int make_run(struct launch *launch, const char *folder, const char *config, const char *script)
{
    struct prepared self;
    struct slurm_record record = {0};
    rp_error err = {0};
    launch->folder = folder;
    prepare_init(&self);
    int status = prepare_config(&self, launch, config);
    snprintf(record.script, sizeof record.script, "%s", script);
    if (status < 0 &&
        (make_folder(&self, launch, &err) != RP_OK || slurm_record_write(self.folder, &record, &err) != RP_OK))
        status = launch_fail(&err);
    prepare_fini(&self);
    return status;
}

static bool holds_run(const char *folder)
{
    char path[FOLDER_SIZE + 32];
    return strlen(folder) < FOLDER_SIZE && access(run_folder_path(path, sizeof path, folder, FOLDER_STATE), R_OK) == 0;
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
    char text[1024];
    if (self->queued)
        snprintf(
            text, sizeof text,
            "saving takes longer than launch.slurm.warning (%.0f s): the job is queued again as it is, and goes on "
            "from what was saved last; %s",
            (double)self->config->launch.slurm.warning_ns * 1e-9, launch_tables_of(self->config));
    else
        snprintf(text, sizeof text, "the job could not be queued again: %s", err.text);
    say(NULL, true, text);
    return self->queued;
}

/* Queues the job again if its time limit ended the leg, and not the run itself. */
static int queue_again(const struct core *self, const struct interrupts *interrupts, int status)
{
    struct folder_state state = {0};
    rp_error err = {0};
    if (self->queued || interrupts->asked != 1 || interrupts->last != SIGUSR1 || status != EXIT_FINE)
        return status;
    if (run_folder_read_state(self->folder, &state, &err) == RP_OK && state.done)
        return status;
    if (slurm_requeue(self->job, &err) != RP_OK) {
        fprintf(stderr,
                LAUNCH_PROGRAM ": %s: the run is saved, but the job could not be queued again: 'replay-launch "
                               "resume %s' goes on\n",
                err.text, self->folder);
        return EXIT_FAILED;
    }
    return status;
}

/* A quarter of the warning, at most 15 s, is left for Slurm to answer. */
static int64_t most_saving(const struct run_config *config)
{
    int64_t warning_ns = config->launch.slurm.warning_ns, margin_ns = warning_ns / 4;
    return warning_ns - (margin_ns < MARGIN_NS ? margin_ns : MARGIN_NS);
}

static rp_status open_source(struct prepared *self, uint64_t job, struct slurm_source **out, rp_error *err)
{
    struct slurm_record record;
    slurm_record_read(self->folder, &record);
    record.core = job;
    RP_TRY(slurm_record_write(self->folder, &record, err));
    RP_TRY(prepare_programs(self, err));
    if (!self->config.actors.on)
        return RP_OK;
    const struct slurm_source_options options = {
        .config = &self->config, .folder = self->folder, .programs = self->programs, .say = say};
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

int launch_core(struct launch *launch)
{
    struct prepared self;
    struct folder_state state = {0};
    struct slurm_source *source = NULL;
    char folder[FOLDER_SIZE];
    uint64_t job = 0;
    rp_error err = {0};
    if (own_job(&job, &err) != RP_OK)
        return launch_fail(&err);
    keep_output_private();
    if (!holds_run(launch->argument) && launch->n_arguments == 3) {
        int status = make_run(launch, launch->arguments[0], launch->arguments[1], launch->arguments[2]);
        if (status >= 0)
            return status;
    }
    cli_overrides_free(&launch->overrides); /* they are in the run's own file now */
    launch->overrides = (struct cli_overrides){0};
    prepare_init(&self);
    int status = launch_reopen(&self, launch, &state);
    if (status >= 0)
        return status;
    snprintf(folder, sizeof folder, "%s", self.folder);
    if (open_source(&self, job, &source, &err) != RP_OK)
        return give_up(&self, &err);
    self.source = source ? slurm_source_hosts(source) : NULL;
    struct core core = {.folder = folder, .config = &self.config, .job = job};
    const struct run_limit limit = {.after_ns = most_saving(&self.config), .act = queue_early, .context = &core};
    self.limit = &limit;
    status = launch_continue(&self, launch, &state);
    slurm_source_destroy(&source);
    return queue_again(&core, &self.interrupts, status);
}

/* ---- scripts ---- */

/* The words after `replay-launch core`: folder, file, the script of the array, overrides. */
static const char **core_words(const struct launch *launch, const char *folder, const char *config)
{
    uint32_t n = 0;
    const char **words = calloc(4 + 2 * (size_t)launch->overrides.n, sizeof *words);
    if (!words)
        return NULL;
    words[n++] = folder;
    words[n++] = config;
    words[n++] = "$SLURM_SUBMIT_DIR/" SLURM_ACTORS_SCRIPT;
    for (uint32_t i = 0; i < launch->overrides.n; i++) {
        words[n++] = "--set";
        words[n++] = launch->overrides.texts[i];
    }
    return words;
}

static rp_status print_scripts(struct prepared *self, const struct launch *launch, const char *which, rp_error *err)
{
    char real[PATH_MAX], runs[PATH_MAX], folder[2 * PATH_MAX], program[FOLDER_SIZE + 32];
    if (!realpath(launch->argument, real))
        return err_set(err, RP_NOT_FOUND, "'%s' cannot be read", launch->argument);
    snprintf(runs, sizeof runs, "%s", self->config.launch.runs);
    snprintf(folder, sizeof folder, "%s%s%s/%s-$SLURM_JOB_ID", runs[0] == '/' ? "" : self->cwd,
             runs[0] == '/' ? "" : "/", runs, self->config.name);
    RP_TRY(slurm_check_path(real, err));
    RP_TRY(prepare_programs(self, err));
    const char **words = core_words(launch, folder, real);
    struct slurm_script script = {.config = &self->config,
                                  .program = run_folder_path(program, sizeof program, self->programs, LAUNCH_PROGRAM),
                                  .output = "replay-%j.log",
                                  .core = words};
    char *core = words ? slurm_script_core(&script) : NULL, *actors = slurm_script_actors(&script);
    bool both = !which;
    if (both)
        puts("### Save this part as " SLURM_CORE_SCRIPT " and the second as " SLURM_ACTORS_SCRIPT
             ", in one folder; there: sbatch " SLURM_CORE_SCRIPT);
    if (core && (both || strcmp(which, "core") == 0))
        fputs(core, stdout);
    if (both)
        puts("\n### " SLURM_ACTORS_SCRIPT ": the core job submits it");
    if (actors && (both || strcmp(which, "actors") == 0))
        fputs(actors, stdout);
    rp_status status = core && actors ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the scripts");
    free(core);
    free(actors);
    free(words);
    return status;
}

int launch_script(struct launch *launch)
{
    struct prepared self;
    rp_error err = {0};
    const char *which = launch->n_arguments > 1 ? launch->arguments[1] : NULL;
    if (launch->n_arguments > 2 || (which && strcmp(which, "core") != 0 && strcmp(which, "actors") != 0))
        return launch_usage("script takes a file, and core or actors to print only one of the two scripts");
    prepare_init(&self);
    int status = prepare_config(&self, launch, launch->argument);
    if (status < 0 && self.config.launch.engine != ENGINE_SLURM)
        status = launch_usage("launch.engine of '%s' is not slurm: write launch: {engine: slurm}", launch->argument);
    if (status < 0)
        status = print_scripts(&self, launch, which, &err) == RP_OK ? EXIT_FINE : launch_fail(&err);
    prepare_fini(&self);
    return status;
}
