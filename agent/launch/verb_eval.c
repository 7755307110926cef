/* eval: measures what a run has saved. replay-actor does the work: this process becomes replay-actor. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/prepare.h"
#include "agent/launch/process/command.h"
#include "agent/run/best.h"
#include "agent/run/worker.h"
#include "proto/base/error.h"

#define RUNS "runs"

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
    if ((!given || best) && find_below(folder, BEST_WEIGHTS_FILE, out))
        return RP_OK;
    if ((!given || last) && find_below(folder, LEARNER_STATE_FILE, out))
        return RP_OK;
    if (best)
        return err_set(err, RP_NOT_FOUND,
                       "the run in '%s' has no " BEST_WEIGHTS_FILE ": its evaluator has not finished an evaluation",
                       folder);
    if (!given || last)
        return err_set(err, RP_NOT_FOUND,
                       "the run in '%s' has no " LEARNER_STATE_FILE
                       ": a learner saves it every learners.save_every, and at its end",
                       folder);
    if ((access(given, R_OK) == 0 && realpath(given, out)) || find_below(folder, given, out))
        return RP_OK;
    return err_set(err, RP_NOT_FOUND, "there are no weights '%s', nor '%s/%s': name best, last or a file", given,
                   folder, given);
}

/* Relative paths in the run's file (a plug-in) are relative to where the run was begun; if that folder is gone, this
 * fails. */
static void go_to_start(struct prepared *self, const char *folder)
{
    struct folder_state state;
    rp_error err = {0};
    if (run_folder_read_state(folder, &state, &err) != RP_OK)
        return;
    snprintf(self->here, sizeof self->here, "%s", state.here);
    if (state.cwd[0] && chdir(state.cwd) != 0)
        fprintf(stderr, "replay-launch: the run was begun in '%s', which is gone; relative paths start here now\n",
                state.cwd);
}

int launch_eval(struct launch *launch)
{
    char found[FOLDER_SIZE], folder[PATH_MAX], config[PATH_MAX + 32], weights[PATH_MAX];
    struct prepared self;
    rp_error err = {0};
    prepare_init(&self);
    const char *given = launch->argument ? launch->argument : launch->run;
    if (run_folder_find(RUNS, given, found, &err) != RP_OK || prepare_programs(&self, &err) != RP_OK)
        return launch_fail(&err);
    if (!realpath(found, folder)) {
        err_set(&err, RP_IO, "the folder '%s' cannot be read: %s", found, strerror(errno));
        return launch_fail(&err);
    }
    if (find_weights(folder, launch->weights, weights, &err) != RP_OK)
        return launch_fail(&err);
    go_to_start(&self, folder);
    snprintf(config, sizeof config, "%s/" FOLDER_CONFIG, folder);
    struct schema_report *report = schema_report_new();
    const char *const *overrides = (const char *const *)launch->overrides.texts;
    static const struct run_config unknown; /* mistakes in the file are left to the program */
    bool read = run_config_read(config, overrides, &self.config, report);
    schema_report_destroy(&report);
    const struct command_context context = {.config = read ? &self.config : &unknown,
                                            .programs = self.programs,
                                            .config_path = config,
                                            .overrides = overrides};
    const struct command_evaluation evaluation = {weights, launch->episodes, launch->show, launch->json};
    char **words = command_evaluate(&context, &evaluation);
    if (command_in_python(context.config, ROLE_EVALUATOR))
        putenv(command_python_path(self.programs, self.here)); /* kept for the program */
    fflush(stdout);
    execvp(words[0], words);
    err_set(&err, RP_IO, "'%s' cannot be started: %s", words[0], strerror(errno));
    return launch_fail(&err);
}
