#include "agent/launch/slurm/slurm_script.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/format.h"

#define MINUTE_NS (60 * NS_PER_S)

rp_status slurm_check_path(const char *path, rp_error *err)
{
    const char *bad = strpbrk(path, "%\"'\\`$\n\r");
    if (!bad)
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT,
                   "the path '%s' has the character '%c', which means something else to sbatch: use another folder",
                   path, *bad == '\n' || *bad == '\r' ? ' ' : *bad);
}

/* A job name without spaces and the like, which a list of squeue could not show. */
static void write_name(const struct run_config *config, const char *suffix, struct text *out)
{
    text_add(out, "#SBATCH --job-name=");
    for (const char *at = config->name; *at; at++)
        text_add(out, "%c",
                 strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *at) ? *at : '-');
    text_add(out, "%s\n", suffix);
}

static void write_options(const struct schema_list *options, struct text *out)
{
    char *const *words = options->data;
    for (uint32_t i = 0; i < options->count; i++)
        text_add(out, "#SBATCH %s\n", words[i]);
}

/* What both jobs have. The signal comes to the script alone, so that it can end its processes in order. */
static void write_common(const struct run_config *config, const char *partition, int64_t cores, struct text *out)
{
    const struct slurm_section *slurm = &config->launch.slurm;
    if (partition && partition[0])
        text_add(out, "#SBATCH --partition=%s\n", partition);
    text_add(out, "#SBATCH --nodes=1\n#SBATCH --ntasks=1\n");
    if (cores > 0)
        text_add(out, "#SBATCH --cpus-per-task=%" PRId64 "\n", cores);
    if (slurm->time_ns > 0)
        text_add(out, "#SBATCH --time=%" PRId64 "\n", (slurm->time_ns + MINUTE_NS - 1) / MINUTE_NS);
    text_add(out, "#SBATCH --signal=B:USR1@%" PRId64 "\n", (slurm->warning_ns + NS_PER_S - 1) / NS_PER_S);
    text_add(out, "#SBATCH --requeue\n#SBATCH --open-mode=append\n");
    write_options(&slurm->options, out);
}

/* Variables of a job that a word may have. */
static const char *const variables[] = {"$SLURM_JOB_ID", "$SLURM_SUBMIT_DIR"};

static const char *variable_at(const char *text)
{
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        if (strncmp(text, variables[i], strlen(variables[i])) == 0)
            return variables[i];
    return NULL;
}

/* In single quotes, for the shell, except for the variables. */
static void write_word(const char *word, struct text *out)
{
    text_add(out, " '");
    for (const char *at = word; *at; at++) {
        const char *variable = variable_at(at);
        if (variable) {
            text_add(out, "'\"%s\"'", variable);
            at += strlen(variable) - 1;
        } else if (*at == '\'') {
            text_add(out, "'\\''");
        } else {
            text_add(out, "%c", *at);
        }
    }
    text_add(out, "%c", '\'');
}

char *slurm_script_core(const struct slurm_script *self)
{
    const struct slurm_section *slurm = &self->config->launch.slurm;
    struct text text = {0}, *out = &text;
    text_add(out, "#!/bin/sh\n");
    write_name(self->config, "", out);
    text_add(out, "#SBATCH --output=\"%s\"\n", self->output);
    write_common(self->config, slurm->partition, slurm->cores, out);
    if (slurm->memory > 0)
        text_add(out, "#SBATCH --mem=%" PRId64 "K\n", (slurm->memory + 1023) / 1024);
    text_add(
        out,
        "\n# Broker, learners, evaluator and the launcher. The launcher submits the array of actors. Before the time\n"
        "# limit it saves the run and queues this job again, which then goes on with the run.\nexec");
    write_word(self->program, out);
    text_add(out, " core");
    for (const char *const *word = self->core; *word; word++)
        write_word(*word, out);
    text_add(out, "%c", '\n');
    return text.data; /* the caller's now */
}

/* The launcher starts the actors by srun; the script itself only stays. It looks at the run's status first, because a question
 * to the controller from each of a thousand tasks costs more than a look at a file. An array whose number the launcher never heard,
 * because sbatch took too long, gives its nodes back: slurm.json names another one. It may do so for a moment after the array was
 * submitted, and a node's view of a network file system may be a minute old: four looks in a row count. */
static const char hold[] =
    "\n"
    "# Holds these processors for the run. The launcher in the core job starts the actors here by srun.\n"
    "folder=$1\n"
    "core=$2\n"
    "missed=0\n"
    "other=0\n"
    "nap=\n"
    "trap 'kill $nap 2>/dev/null; sleep 1; exit 0' TERM INT # the node agent tidies up meanwhile\n"
    "trap 'scontrol requeue \"$SLURM_JOB_ID\"; kill $nap 2>/dev/null; exit 0' USR1 # the time limit is near\n"
    "while [ \"$missed\" -lt 4 ] && [ \"$other\" -lt 4 ]; do\n"
    "    sleep 20 &\n"
    "    nap=$!\n"
    "    wait \"$nap\"\n"
    "    array=$(sed -n 's/.*\"array\": *\\([0-9][0-9]*\\).*/\\1/p' \"$folder/slurm.json\" 2>/dev/null)\n"
    "    case $array in\n"
    "    '' | 0 | \"$SLURM_ARRAY_JOB_ID\") other=0 ;;\n"
    "    *) other=$((other + 1)) ;;\n"
    "    esac\n"
    "    if [ -n \"$(find \"$folder/status.json\" -mmin -1 2>/dev/null)\" ]; then\n"
    "        missed=0\n"
    "        continue\n"
    "    fi\n"
    "    state=$(squeue -h -j \"$core\" -o %T 2>&1)\n"
    "    case $state in\n"
    "    RUNNING | COMPLETING | CONFIGURING | *connect* | *respon* | *imeout*) missed=0 ;;\n"
    "    *) missed=$((missed + 1)) ;;\n"
    "    esac\n"
    "done\n"
    "echo \"job $core does not run, or has array $array: task $SLURM_ARRAY_TASK_ID gives its array up\"\n"
    "scancel \"$SLURM_ARRAY_JOB_ID\"\n";

char *slurm_script_actors(const struct slurm_script *self)
{
    const struct slurm_section *slurm = &self->config->launch.slurm;
    uint32_t least = 1, most = 1;
    struct text text = {0}, *out = &text;
    run_config_slurm_actors(self->config, &least, &most);
    text_add(out, "#!/bin/sh\n");
    write_name(self->config, "-actors", out);
    text_add(out, "#SBATCH --array=0-%u\n", run_config_slurm_tasks(self->config, most) - 1);
    write_common(self->config, slurm->actors_partition[0] ? slurm->actors_partition : slurm->partition,
                 slurm->actors_per_task, out);
    write_options(&slurm->actors_options, out);
    text_add(out, "%s", hold);
    return text.data; /* the caller's now */
}
