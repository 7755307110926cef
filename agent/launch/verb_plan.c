/* check, profile and plan: everything up to the start of a run. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent/launch/host/host_check.h"
#include "agent/launch/plan/profile.h"
#include "agent/launch/prepare.h"
#include "agent/launch/slurm/slurm.h"
#include "agent/launch/view/profile_view.h"
#include "agent/launch/view/screen.h"
#include "proto/base/format.h"
#include "proto/base/terminal.h"

#define COLUMNS 100

/* Tries the machines of the file. Returns the exit status. */
static int check_hosts(struct prepared *self)
{
    rp_error err = {0};
    if (self->config.launch.engine != ENGINE_LOCAL || !run_config_is_spread(&self->config))
        return EXIT_FINE;
    rp_status status = prepare_process(self, &err);
    const struct host_check_options options = {.config = &self->config,
                                               .programs = self->programs,
                                               .here = self->here,
                                               .guard = &self->guard,
                                               .interrupts = &self->interrupts};
    if (status == RP_OK)
        status = host_check(&options, stdout, &err);
    return status == RP_OK ? EXIT_FINE : launch_fail(&err);
}

/* The nearest folder that exists already, on the way to where runs will be. */
static void existing_folder(const char *runs, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s", runs[0] ? runs : ".");
    while (access(out, F_OK) != 0) {
        char *slash = strrchr(out, '/');
        if (slash == out || !slash) {
            snprintf(out, PATH_MAX, "%s", slash ? "/" : ".");
            return;
        }
        *slash = '\0';
    }
}

/* Asks a node whether it sees the folder of the runs; says so if that could not be found out. -1: nothing is wrong; otherwise the
 * exit status. */
static int check_folder(const struct prepared *self)
{
    char near[PATH_MAX], real[PATH_MAX];
    rp_error err = {0};
    existing_folder(self->config.launch.runs, near);
    const char *folder = realpath(near, real) ? real : near;
    rp_status status = slurm_check_shared(&self->config, folder, &err);
    if (status == RP_FAILED_PRECONDITION)
        return launch_fail(&err);
    if (status != RP_OK)
        printf("not checked: whether the nodes see the folder '%s' (%s)\n", folder, err.text);
    return -1;
}

int launch_check(struct launch *launch)
{
    struct prepared self;
    prepare_init(&self);
    launch->submits = true;
    int status = prepare_config(&self, launch, launch->argument);
    if (status < 0 && self.config.launch.engine == ENGINE_SLURM)
        status = check_folder(&self);
    if (status < 0) {
        const struct run_config *config = &self.config;
        char actors[32] = "auto", learners[32] = "auto";
        if (!config->actors.on)
            snprintf(actors, sizeof actors, "none");
        else if (config->actors.count > 0)
            snprintf(actors, sizeof actors, "%lld", (long long)config->actors.count);
        if (!config->learners.on)
            snprintf(learners, sizeof learners, "none");
        else if (config->learners.count > 0)
            snprintf(learners, sizeof learners, "%lld", (long long)config->learners.count);
        printf("%s: no mistakes; %s with %s, actors: %s, learners: %s\n", launch->argument,
               env_name(&config->environment), config->agent.algorithm, actors, learners);
        prepare_hints(&self, stdout);
        fflush(stdout);
        status = check_hosts(&self);
    }
    prepare_fini(&self);
    return status;
}

static uint32_t terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS;
}

void launch_print_plan(const struct plan *plan, const struct plan_input *input)
{
    struct text wrapped = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return;
    plan_print(plan, input, out);
    if (fclose(out) == 0)
        format_wrap(&wrapped, text, terminal_columns());
    fputs(text_get(&wrapped), stdout);
    text_fini(&wrapped);
    free(text);
}

/* Measures, unless the cache has the curves, and writes them into a folder. */
static rp_status obtain(struct prepared *self, const struct launch *launch, bool folder, rp_error *err)
{
    if (!folder && !launch->again && !run_config_is_spread(&self->config)) {
        rp_status status = prepare_plan(self, false, true, false, err);
        if (status != RP_OK || self->planned)
            return status;
    }
    rp_status status = prepare_folder(self, launch, "-profile", err);
    if (status == RP_OK)
        status = prepare_hosts(self, true, err);
    if (status == RP_OK)
        status = prepare_plan(self, launch->again, false, true, err);
    if (status == RP_OK)
        status = profile_write(&self->input, self->folder, err);
    char *text = status == RP_OK ? plan_to_json(&self->plan, &self->input) : NULL;
    if (text)
        status = run_folder_write(self->folder, "plan.json", text, err);
    free(text);
    return status;
}

static int plan_or_profile(struct launch *launch, bool profile)
{
    struct prepared self;
    rp_error err = {0};
    prepare_init(&self);
    int status = prepare_config(&self, launch, launch->argument);
    if (status >= 0) {
        prepare_fini(&self);
        return status;
    }
    if (self.config.launch.engine == ENGINE_SLURM) {
        prepare_fini(&self);
        return launch_usage("a run under Slurm is measured inside its jobs; --set launch.engine=local measures this "
                            "machine");
    }
    if (!self.config.actors.on || !self.config.learners.on) {
        prepare_fini(&self);
        return launch_usage("there is nothing to weigh: %s is false, and a plan is about actors and learners together",
                            self.config.actors.on ? "learners.on" : "actors.on");
    }
    if (profile_target(&self.config) <= 0.0) {
        prepare_fini(&self);
        return launch_usage(
            "there is no ratio of samples to inserts to plan for: the limiter has none; write plan.spi");
    }
    if (prepare_process(&self, &err) != RP_OK || obtain(&self, launch, profile || launch->folder, &err) != RP_OK)
        return prepare_fail(&self, &err);
    if (launch->json) {
        char *text = plan_to_json(&self.plan, &self.input);
        puts(text ? text : "");
        free(text);
    } else {
        if (profile)
            profile_print(&self.input, &(struct profile_style){terminal_columns(), terminal_has_utf8()}, stdout);
        launch_print_plan(&self.plan, &self.input);
        if (self.folder[0])
            printf("\nMeasurements and plan are in %s.\n", self.folder);
        if (self.from_cache)
            puts("\nFrom cached measurements; --again measures again.");
    }
    prepare_fini(&self);
    return EXIT_FINE;
}

int launch_profile(struct launch *launch)
{
    return plan_or_profile(launch, true);
}

int launch_plan(struct launch *launch)
{
    return plan_or_profile(launch, false);
}
