#include "agent/launch/submit.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/slurm/slurm_call.h"
#include "agent/launch/slurm/slurm_check.h"
#include "agent/launch/slurm/slurm_script.h"
#include "agent/launch/view/report.h"
#include "proto/base/error.h"

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

int submit_check_folder(const struct prepared *self)
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

rp_status submit_is_free(const char *given, rp_error *err)
{
    char folder[FOLDER_SIZE];
    struct slurm_record record;
    struct slurm_job job;
    if (run_folder_find("runs", given, folder, err) != RP_OK || !slurm_record_read(folder, &record)) {
        *err = (rp_error){0};
        return RP_OK;
    }
    RP_TRY(slurm_look(record.core, &job, err));
    if (job.state == SLURM_GONE)
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "job %" PRIu64 " works on '%s' or waits to do so: 'replay-launch stop --run %s' ends it",
                   record.core, folder, folder);
}

rp_status submit_settle(struct prepared *self, rp_error *err)
{
    char real[PATH_MAX];
    if (!realpath(self->folder, real) || strlen(real) > FOLDER_SIZE - 64)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of '%s' is too long", self->folder);
    snprintf(self->folder, sizeof self->folder, "%s", real);
    run_folder_path(self->config_path, sizeof self->config_path, self->folder, FOLDER_CONFIG);
    return slurm_check_path(self->folder, err);
}

/* Takes the text and writes it. */
static rp_status write_script(const struct prepared *self, const char *name, char *text, rp_error *err)
{
    rp_status status = text ? run_folder_write(self->folder, name, text, err)
                            : err_set(err, RP_NO_MEMORY, "no memory for the script of a job");
    free(text);
    return status;
}

static rp_status write_scripts(const struct prepared *self, rp_error *err)
{
    char program[FOLDER_SIZE + 32], output[FOLDER_SIZE + 32];
    const char *const words[] = {self->folder, NULL};
    struct slurm_script script = {.config = &self->config,
                                  .program = run_folder_path(program, sizeof program, self->programs, LAUNCH_PROGRAM),
                                  .output = run_folder_path(output, sizeof output, self->folder, SLURM_CORE_LOG),
                                  .core = words};
    RP_TRY(write_script(self, SLURM_CORE_SCRIPT, slurm_script_core(&script), err));
    return write_script(self, SLURM_ACTORS_SCRIPT, slurm_script_actors(&script), err);
}

/* The job is held until the folder knows its number: from then on the job's own launcher writes there. */
rp_status submit_core(struct prepared *self, struct slurm_record *record, rp_error *err)
{
    char path[FOLDER_SIZE + 32], name[24];
    RP_TRY(write_scripts(self, err));
    unlink(run_folder_path(path, sizeof path, self->folder, REPORT_TEXT));
    run_folder_path(path, sizeof path, self->folder, SLURM_CORE_SCRIPT);
    uint64_t array = record->array;
    *record = (struct slurm_record){.array = array, .tasks = record->tasks};
    RP_TRY(slurm_submit(SLURM_WORDS("--hold", path), &record->core, err));
    rp_status status = slurm_record_write(self->folder, record, err);
    if (self->lock >= 0)
        close(self->lock);
    self->lock = -1;
    snprintf(name, sizeof name, "%" PRIu64, record->core);
    if (status == RP_OK)
        status = slurm_run(SLURM_WORDS("scontrol", "release", name), 0, NULL, err);
    if (status != RP_OK)
        slurm_cancel(record->core, NULL);
    return status;
}
