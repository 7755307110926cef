/* Launches a run, a new one or a resumed one. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/observe/status.h"
#include "agent/launch/observe/stop_note.h"
#include "agent/launch/plan/profile.h"
#include "agent/launch/prepare.h"
#include "agent/launch/run/run.h"
#include "agent/launch/submit.h"
#include "agent/launch/verb_run.h"
#include "agent/launch/view/profile_view.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

#define FORCED 130

static int finish(struct prepared *self, const rp_error *err)
{
    int status = launch_fail(err);
    prepare_fini(self);
    return status;
}

enum screen_mode launch_screen_mode(const struct launch *launch)
{
    return launch->json_lines ? SCREEN_JSON : launch->quiet ? SCREEN_QUIET : SCREEN_AUTO;
}

/* From here on child processes may run. */
static int go(struct prepared *self, const struct launch *launch, const char *command,
              const struct folder_state *before, bool auto_actors)
{
    rp_error err = {0};
    struct screen *screen = screen_new(launch_screen_mode(launch));
    if (!screen) {
        err_set(&err, RP_NO_MEMORY, "no memory for the view");
        return finish(self, &err);
    }
    const struct run_options options = {.config = &self->config,
                                        .programs = self->programs,
                                        .folder = self->folder,
                                        .here = self->here,
                                        .cwd = self->cwd,
                                        .command = command,
                                        .plan = self->planned ? &self->plan : NULL,
                                        .plan_input = self->planned ? &self->input : NULL,
                                        .keys = &self->keys,
                                        .before = before,
                                        .hosts = self->hosts,
                                        .guard = &self->guard,
                                        .interrupts = &self->interrupts,
                                        .limit = self->limit,
                                        .screen = &screen,
                                        .print_report = !launch->json_lines,
                                        .auto_actors = auto_actors && !launch->no_resize};
    enum run_outcome outcome = run_do(&options, &err);
    screen_destroy(&screen);
    int status = outcome == RUN_FAILED ? EXIT_FAILED : self->interrupts.asked > 1 ? FORCED : EXIT_FINE;
    prepare_fini(self);
    return status;
}

/* With fixed counts nothing is measured, but cached curves are compared with the counts. */
static rp_status size_up(struct prepared *self, const struct launch *launch, rp_error *err)
{
    bool verbose = !launch->quiet && !launch->json_lines;
    bool weighs = profile_target(&self->config) > 0.0 && self->config.actors.on && self->config.learners.on;
    if (weighs)
        RP_TRY(prepare_plan(self, launch->again, !prepare_is_auto(self), verbose, err));
    if (!self->planned && self->config.broker.shards.count == 0) {
        RP_TRY(prepare_shards(self, err));
        return prepare_write_config(self, err);
    }
    if (!self->planned)
        return RP_OK;
    char *text = plan_to_json(&self->plan, &self->input);
    rp_status status = text ? run_folder_write(self->folder, "plan.json", text, err) : RP_OK;
    free(text);
    RP_TRY(status);
    RP_TRY(profile_write(&self->input, self->folder, err));
    if (verbose) {
        launch_print_plan(&self->plan, &self->input);
        puts(self->from_cache ? "(from cached measurements; --again measures again)\n" : "");
        fflush(stdout);
    }
    return prepare_write_config(self, err);
}

/* Leaves a status that says how the run ended before it began: 'runs' and 'status' would take it for lost. */
static void leave_status(const struct prepared *self, const rp_error *err)
{
    struct status_copy copy;
    char who[STOP_ASKER];
    bool stopped = err->status == RP_CANCELLED;
    char *before = run_folder_read(self->folder, FOLDER_STATUS);
    bool known = (before && status_from_json(before, &copy)) || status_from_json("{\"phase\": \"stopped\"}", &copy);
    free(before);
    if (!known)
        return;
    struct status *status = &copy.status;
    status->phase = stopped ? PHASE_STOPPED : PHASE_FAILED;
    snprintf(status->name, sizeof status->name, "%s", self->config.name);
    snprintf(status->folder, sizeof status->folder, "%s", self->folder);
    if (stopped)
        snprintf(status->reason, sizeof status->reason, "%s, before the run began",
                 stop_asker(self->folder, &self->interrupts, who, sizeof who));
    else
        snprintf(status->reason, sizeof status->reason, "%s", err->text);
    char *text = status_to_json(status, true);
    if (text)
        run_folder_write(self->folder, FOLDER_STATUS, text, NULL);
    free(text);
    status_copy_fini(&copy);
}

/* Something is missing, or the user asked to stop meanwhile. */
static int not_sized_up(struct prepared *self, const rp_error *err)
{
    leave_status(self, err);
    int stopped = self->interrupts.asked > 1 ? FORCED : EXIT_FINE;
    int status = finish(self, err);
    return err->status == RP_CANCELLED ? stopped : status;
}

int launch_run(struct launch *launch)
{
    struct prepared self;
    rp_error err = {0};
    prepare_init(&self);
    launch->submits = true;
    int status = prepare_config(&self, launch, launch->argument);
    if (status >= 0) {
        prepare_fini(&self);
        return status;
    }
    if (self.config.launch.engine == ENGINE_SLURM)
        return launch_submit(&self, launch);
    bool auto_actors = self.config.actors.on && self.config.actors.count == 0;
    if (prepare_weights(&self, &err) != RP_OK || prepare_process(&self, &err) != RP_OK ||
        prepare_folder(&self, launch, "", &err) != RP_OK)
        return finish(&self, &err);
    /* Lets status and stop find the run while it is still being measured. */
    struct folder_state state = {.pid = (int32_t)getpid(), .auto_actors = auto_actors};
    run_folder_this_node(state.node);
    snprintf(state.here, sizeof state.here, "%s", self.here);
    snprintf(state.cwd, sizeof state.cwd, "%s", self.cwd);
    snprintf(state.command, sizeof state.command, "%s", launch->command);
    if (run_folder_write_state(self.folder, &state, &err) != RP_OK)
        return finish(&self, &err);
    run_folder_point_latest(self.config.launch.runs, self.folder);
    log_line(LEVEL_INFO, "A0401", "a run begins", "folder=%s", self.folder);
    prepare_page(&self, launch->quiet || launch->json_lines);
    bool verbose = !launch->quiet && !launch->json_lines;
    if (verbose)
        prepare_hints(&self, stderr);
    if (prepare_hosts(&self, verbose, &err) != RP_OK || size_up(&self, launch, &err) != RP_OK)
        return not_sized_up(&self, &err);
    return go(&self, launch, launch->command, NULL, auto_actors);
}

/* ---- resume ---- */

/* Writes ": " and the reason for which the run ended, from its status; "" if there is none. */
static void reason_of(const char *folder, char *out, size_t size)
{
    struct status_copy copy;
    char *text = run_folder_read(folder, FOLDER_STATUS);
    out[0] = '\0';
    if (text && status_from_json(text, &copy)) {
        snprintf(out, size, "%s%s", copy.status.reason[0] ? ": " : "", copy.status.reason);
        status_copy_fini(&copy);
    }
    free(text);
}

/* Returns the option that moves the stop condition which the reason names. */
static const char *way_on(const char *reason)
{
    return strstr(reason, "stop.time")       ? "--set stop.time=..., of all legs together, or 0s for none"
           : strstr(reason, "stop.value")    ? "--set stop.value=.inf"
           : strstr(reason, "learner steps") ? "--set stop.learner_steps=..."
                                             : "--set stop.steps=...";
}

/* Reads the plan of the earlier legs; without a plan the report compares nothing. */
static void take_plan(struct prepared *self)
{
    char *text = run_folder_read(self->folder, "plan.json");
    self->planned = text && plan_from_json(text, &self->plan, &self->input);
    free(text);
}

/* Relative paths in the file (a plug-in, a command) are relative to where the run was begun. */
static rp_status go_back(struct prepared *self, const char *cwd, rp_error *err)
{
    char real[PATH_MAX];
    if (!cwd[0] || strcmp(cwd, self->cwd) == 0)
        return RP_OK;
    if (!realpath(self->folder, real) || strlen(real) > FOLDER_SIZE - 64)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of '%s' is too long", self->folder);
    if (chdir(cwd) != 0) {
        fprintf(stderr, "replay-launch: the run was begun in '%s', which is gone; relative paths start here now\n",
                cwd);
        return RP_OK;
    }
    snprintf(self->folder, sizeof self->folder, "%s", real);
    snprintf(self->cwd, sizeof self->cwd, "%s", cwd);
    return RP_OK;
}

static rp_status open_again(struct prepared *self, const struct launch *launch, struct folder_state *state,
                            rp_error *err)
{
    char log[FOLDER_SIZE + 32], reason[256];
    RP_TRY(run_folder_find("runs", launch->argument, self->folder, err));
    RP_TRY(run_folder_lock(self->folder, &self->lock, err));
    RP_TRY(run_folder_read_state(self->folder, state, err));
    RP_TRY(go_back(self, state->cwd, err));
    run_folder_path(self->config_path, sizeof self->config_path, self->folder, FOLDER_CONFIG);
    reason_of(self->folder, reason, sizeof reason);
    if (state->done && launch->overrides.n == 0)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the run in '%s' has met its stop condition%s; to go on, move it: %s", self->folder, reason,
                       way_on(reason));
    RP_TRY(log_open(run_folder_path(log, sizeof log, self->folder, "logs/launch.log"), err));
    state->pid = (int32_t)getpid(); /* 'stop' must not mistake another process for this launcher */
    return run_folder_write_state(self->folder, state, err);
}

/* True if the command line sets the key, which ends with "=". */
static bool sets_key(const struct launch *launch, const char *key)
{
    for (uint32_t i = 0; i < launch->overrides.n; i++)
        if (strncmp(launch->overrides.texts[i], key, strlen(key)) == 0)
            return true;
    return false;
}

const char *launch_tables_of(const struct run_config *config)
{
    bool none = config->broker.checkpoint_load && strcmp(config->broker.checkpoint_load, "none") == 0;
    if (!config_makes_checkpoints(&config->broker) || none)
        return "the tables start empty";
    return config->broker.journal_dir && config->broker.journal_dir[0] ? "the tables are those of the journal"
                                                                       : "the tables are those of the last checkpoint";
}

/* Refuses a stop condition of the command line that is already met: the run would stop at once. */
static rp_status check_ends(const struct launch *launch, const struct run_config *config,
                            const struct folder_state *state, rp_error *err)
{
    const struct stop_section *stop = &config->stop;
    double limit_s = (double)stop->time_ns * 1e-9;
    if (stop->steps > 0 && (uint64_t)stop->steps < state->steps && sets_key(launch, "stop.steps="))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "stop.steps is %lld, but %llu environment steps were taken already: name a larger number, or 0 "
                       "for none",
                       (long long)stop->steps, (unsigned long long)state->steps);
    if (stop->learner_steps > 0 && (uint64_t)stop->learner_steps < state->learner_steps &&
        sets_key(launch, "stop.learner_steps="))
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "stop.learner_steps is %lld, but %llu learner steps were made already: name a larger number, or 0 "
            "for none",
            (long long)stop->learner_steps, (unsigned long long)state->learner_steps);
    if (stop->time_ns > 0 && limit_s <= state->elapsed_s && sets_key(launch, "stop.time="))
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "stop.time is %.6g s, but the run has taken %.0f s already, in all its legs: name a longer time, "
            "or 0s for none",
            limit_s, state->elapsed_s);
    return RP_OK;
}

/* Refuses tables of another number of shards, before the run's own file names the new number. */
static rp_status check_tables(const struct prepared *self, rp_error *err)
{
    const struct broker_config *broker = &self->config.broker;
    const struct command_context context = {.folder = self->folder};
    const char *folder = config_folder(broker);
    char path[1024];
    if (!folder || broker->shards.count == 0)
        return RP_OK;
    return config_check_folder(broker, command_keep(&context, folder, path, sizeof path), err);
}

int launch_reopen(struct prepared *self, struct launch *launch, struct folder_state *state)
{
    rp_error err = {0};
    if (open_again(self, launch, state, &err) != RP_OK)
        return finish(self, &err);
    snprintf(self->here, sizeof self->here, "%s", state->here);
    int status = prepare_config(self, launch, self->config_path);
    if (status >= 0) {
        prepare_fini(self);
        return status;
    }
    if (check_ends(launch, &self->config, state, &err) != RP_OK || check_tables(self, &err) != RP_OK)
        return finish(self, &err);
    return -1;
}

int launch_continue(struct prepared *self, struct launch *launch, struct folder_state *state)
{
    rp_error err = {0};
    bool counted = sets_key(launch, "actors.count=");
    bool auto_actors = counted ? self->config.actors.count == 0 : state->auto_actors;
    if (auto_actors && state->actors > 0 && !counted)
        self->config.actors.count = state->actors;
    take_plan(self);
    if (prepare_weights(self, &err) != RP_OK || prepare_process(self, &err) != RP_OK ||
        prepare_keys(self, &err) != RP_OK || prepare_write_config(self, &err) != RP_OK)
        return not_sized_up(self, &err);
    prepare_page(self, launch->quiet || launch->json_lines);
    if (prepare_hosts(self, !launch->quiet && !launch->json_lines, &err) != RP_OK)
        return not_sized_up(self, &err);
    /* The run was stopped while it was measured, or is to be measured again. */
    bool sized = !prepare_is_auto(self) && self->config.broker.shards.count > 0;
    if (!sized && size_up(self, launch, &err) != RP_OK)
        return not_sized_up(self, &err);
    run_folder_point_latest(self->config.launch.runs, self->folder);
    bool begins = state->legs == 0 && self->config.launch.engine == ENGINE_SLURM;
    log_line(LEVEL_INFO, "A0401", begins ? "a run begins" : "a run is resumed", "folder=%s steps=%llu", self->folder,
             (unsigned long long)state->steps);
    if (!launch->quiet && !launch->json_lines && !begins)
        printf("resumes after %llu environment steps and %llu learner steps; %s\n", (unsigned long long)state->steps,
               (unsigned long long)state->learner_steps, launch_tables_of(&self->config));
    fflush(stdout);
    return go(self, launch, state->command[0] ? state->command : launch->command, begins ? NULL : state, auto_actors);
}

int launch_resume(struct launch *launch)
{
    struct prepared self;
    struct folder_state state = {0};
    rp_error err = {0};
    if (submit_is_free(launch->argument, &err) != RP_OK)
        return launch_fail(&err);
    prepare_init(&self);
    int status = launch_reopen(&self, launch, &state);
    if (status >= 0)
        return status;
    if (self.config.launch.engine == ENGINE_SLURM)
        return launch_submit_again(&self, launch, &state);
    return launch_continue(&self, launch, &state);
}
