#include "agent/launch/slurm/slurm.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/process/command.h"
#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json_map.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

#define LIMIT_NS (30 * NS_PER_S)
#define SHARED_NS (15 * NS_PER_S)

extern char **environ;

/* ---- programs of Slurm ---- */

/* Length of the name if the variable is one of the job that this process is in; 0: it is not. Those begin with SLURM; SLURM_CONF
 * says where the cluster is. Outside of jobs, such variables are the user's own. */
static size_t job_variable(const char *entry)
{
    size_t length = strcspn(entry, "=");
    bool names_cluster = length == 10 && strncmp(entry, "SLURM_CONF", 10) == 0;
    return getenv("SLURM_JOB_ID") && strncmp(entry, "SLURM", 5) == 0 && !names_cluster ? length : 0;
}

char **slurm_without_job(const char *const *argv)
{
    struct words words = {0};
    words_add(&words, "env");
    for (char **entry = environ; entry && *entry; entry++) {
        size_t length = job_variable(*entry);
        if (length == 0)
            continue;
        words_add(&words, "-u");
        words_addf(&words, "%.*s", (int)length, *entry);
    }
    words_add_list(&words, argv);
    return words.list;
}

rp_status slurm_call_start(struct call *self, const char *const *argv, int64_t limit_ns, rp_error *err)
{
    if (!spawn_can_start(argv[0]))
        return err_set(err, RP_NOT_FOUND, "there is no program '%s' here: is this a machine of a Slurm cluster?",
                       argv[0]);
    char **words = slurm_without_job(argv);
    rp_status status = call_start(self, (const char *const *)words, NULL, limit_ns, err);
    words_free(&words);
    return status;
}

/* Gives the first line that the program printed as its problem, without "sbatch: error: ". */
rp_status slurm_call_judge(const struct call *self, rp_error *err)
{
    if (self->late)
        return err_set(err, RP_DEADLINE_EXCEEDED, "Slurm does not answer: a command was ended after %.3g s",
                       1e-9 * (double)self->limit_ns);
    if (call_succeeded(self))
        return RP_OK;
    const char *line = self->err;
    int length = (int)strcspn(line, "\n");
    const char *mark = memmem(line, (size_t)length, "error: ", 7);
    if (mark) {
        length -= (int)(mark + 7 - line);
        line = mark + 7;
    }
    return length > 0 ? err_set(err, RP_FAILED_PRECONDITION, "Slurm: %.*s", length < 500 ? length : 500, line)
                      : err_set(err, RP_FAILED_PRECONDITION, "Slurm: a command failed without a word");
}

rp_status slurm_run(const char *const *argv, int64_t limit_ns, char **out, rp_error *err)
{
    struct call call = {0};
    RP_TRY(slurm_call_start(&call, argv, limit_ns > 0 ? limit_ns : LIMIT_NS, err));
    call_await(&call);
    rp_status status = slurm_call_judge(&call, err);
    if (status == RP_OK && out)
        *out = need_text(call.out);
    call_fini(&call);
    return status;
}

void slurm_say(bool loud, const char *format, ...)
{
    char text[1024], quoted[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log_line(loud ? LEVEL_WARN : LEVEL_INFO, "A0441", "slurm", "text=%s", log_quote(quoted, sizeof quoted, text));
    puts(text);
    fflush(stdout);
}

/* ---- parsing ---- */

static bool read_number(const char *text, uint64_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    *out = strtoull(text, &end, 10);
    return *end == '\0' && *out > 0 && *out < UINT64_C(1) << 53;
}

rp_status slurm_take_id(const char *text, uint64_t *id, rp_error *err)
{
    char word[32];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, ";\n "), text);
    return read_number(word, id) ? RP_OK
                                 : err_set(err, RP_INTERNAL, "sbatch answered '%.80s', which is no job number", text);
}

static enum slurm_state state_of(const char *word)
{
    static const struct {
        const char *word;
        enum slurm_state state;
    } states[] = {
        {"RUNNING", SLURM_RUNNING},       {"PENDING", SLURM_PENDING},      {"CONFIGURING", SLURM_PENDING},
        {"REQUEUED", SLURM_PENDING},      {"REQUEUE_HOLD", SLURM_PENDING}, {"REQUEUE_FED", SLURM_PENDING},
        {"SPECIAL_EXIT", SLURM_PENDING},  {"SUSPENDED", SLURM_PENDING},    {"STOPPED", SLURM_PENDING},
        {"RESV_DEL_HOLD", SLURM_PENDING}, {"COMPLETING", SLURM_ENDING},    {"SIGNALING", SLURM_RUNNING},
        {"STAGE_OUT", SLURM_ENDING},      {"RESIZING", SLURM_RUNNING},
    };
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strcmp(states[i].word, word) == 0)
            return states[i].state;
    return SLURM_GONE;
}

/* "123_4": task 4; "123": no array. False: another form, such as the bracket of tasks that wait. */
static bool read_index(const char *text, uint32_t *out)
{
    char *end;
    const char *mark = strchr(text, '_');
    *out = 0;
    if (!mark)
        return true;
    if (mark[1] < '0' || mark[1] > '9')
        return false;
    unsigned long value = strtoul(mark + 1, &end, 10);
    *out = (uint32_t)value;
    return *end == '\0' && value < UINT32_MAX;
}

static bool read_job(char *line, struct slurm_job *out)
{
    char *fields[5];
    *out = (struct slurm_job){0};
    for (int i = 0; i < 5; i++) {
        fields[i] = i < 4 ? strsep(&line, "|") : line; /* a reason may have any character */
        if (!fields[i])
            return false;
    }
    if (!read_index(fields[0], &out->index) || !read_number(fields[1], &out->id))
        return false;
    out->state = state_of(fields[2]);
    snprintf(out->node, sizeof out->node, "%s", fields[3]);
    snprintf(out->reason, sizeof out->reason, "%s", strcmp(fields[4], "None") == 0 ? "" : fields[4]);
    return true;
}

uint32_t slurm_parse_jobs(const char *text, struct slurm_job *out, uint32_t most)
{
    uint32_t n = 0;
    while (text && *text && n < most) {
        char line[512];
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(length < sizeof line ? length : sizeof line - 1), text);
        text += length + (text[length] == '\n');
        n += read_job(line, &out[n]);
    }
    return n;
}

/* ---- questions and orders ---- */

rp_status slurm_submit(const char *const *argv, uint64_t *id, rp_error *err)
{
    char *text = NULL;
    RP_TRY(slurm_run(argv, 0, &text, err));
    rp_status status = slurm_take_id(text, id, err);
    free(text);
    return status;
}

static const char *name_of(uint64_t id, char out[24])
{
    snprintf(out, 24, "%" PRIu64, id);
    return out;
}

/* Runs a program about a job. One that Slurm does not know is no error: it forgets jobs some time after their end. */
static rp_status run_known(const char *const *argv, char **out, rp_error *err)
{
    rp_error own = {0};
    err = err ? err : &own;
    rp_status status = slurm_run(argv, 0, out, err);
    bool unknown = strstr(err->text, "Invalid job id") || strstr(err->text, "already completing") ||
                   strstr(err->text, "completed");
    return unknown ? RP_OK : status;
}

rp_status slurm_poll(uint64_t id, struct slurm_job *out, rp_error *err)
{
    char name[24], *text = NULL;
    *out = (struct slurm_job){.id = id};
    rp_status status = run_known(WORDS("squeue", "-h", "-j", name_of(id, name), "-o", SLURM_FORMAT), &text, err);
    slurm_parse_jobs(text, out, 1);
    free(text);
    return status;
}

rp_status slurm_ask(uint64_t id, rp_error *err)
{
    char name[24];
    return slurm_run(WORDS("scancel", "--batch", "--signal=TERM", name_of(id, name)), 0, NULL, err);
}

rp_status slurm_cancel(uint64_t id, rp_error *err)
{
    char name[24];
    return id == 0 ? RP_OK : run_known(WORDS("scancel", name_of(id, name)), NULL, err);
}

rp_status slurm_requeue(uint64_t id, rp_error *err)
{
    char name[24];
    return slurm_run(WORDS("scontrol", "requeue", name_of(id, name)), 0, NULL, err);
}

/* ---- slurm.json ---- */

#define ROW(member) JSON_ROW(struct slurm_record, member)

static const struct json_row rows[] = {ROW(core), ROW(array), ROW(tasks), ROW(script), {0}};

bool slurm_record_read(const char *folder, struct slurm_record *out)
{
    *out = (struct slurm_record){0};
    char *text = run_folder_read(folder, SLURM_RECORD);
    json_object *root = text ? json_tokener_parse(text) : NULL;
    bool ok = json_object_is_type(root, json_type_object) && json_map_read(root, rows, out);
    json_object_put(root);
    free(text);
    return ok;
}

rp_status slurm_record_write(const char *folder, const struct slurm_record *self, rp_error *err)
{
    return run_folder_write_rows(folder, SLURM_RECORD, rows, self, err);
}

/* ---- options of the two jobs: lines of a script, and words of sbatch ---- */

/* Adds all options but one. An empty value: the option has none. */
static void add_options(struct words *self, const struct schema_list *list, const char *but)
{
    const rp_option *options = list->data;
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(options[i].name, but) != 0)
            words_addf(self, "--%s%s%s", options[i].name, options[i].value[0] ? "=" : "", options[i].value);
}

/* The signal comes to the script alone, so that it can end its processes in order. */
static void add_job(struct words *self, const struct run_config *config, bool actors)
{
    const struct slurm_section *slurm = &config->launch.slurm;
    uint32_t least = 1, most = 1;
    words_put(self, "--nodes=1", "--ntasks=1");
    words_addf(self, "--" RUN_SLURM_SIGNAL "=B:USR1@%" PRId64, run_config_slurm_warning(config) / NS_PER_S);
    words_put(self, "--requeue", "--open-mode=append");
    add_options(self, actors ? &slurm->actors : &slurm->core, actors ? RUN_SLURM_CORES : RUN_SLURM_SIGNAL);
    if (!actors)
        return;
    run_config_slurm_actors(config, &least, &most);
    words_addf(self, "--" RUN_SLURM_CORES "=%u", run_config_slurm_each(config));
    words_addf(self, "--array=0-%u", run_config_slurm_tasks(config, most) - 1);
}

/* Begins a script. The job's name has no spaces and the like, which a list of squeue could not show. */
static void write_head(const struct run_config *config, bool actors, struct text *out)
{
    struct words words = {0};
    add_job(&words, config, actors);
    text_add(out, "#!/bin/sh\n#SBATCH --job-name=");
    for (const char *at = config->name; *at; at++)
        text_add(out, "%c",
                 strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *at) ? *at : '-');
    text_add(out, "%s\n", actors ? "-actors" : "");
    for (uint32_t i = 0; i < words.count; i++)
        text_add(out, "#SBATCH %s\n", words.list[i]);
    words_free(&words.list);
}

rp_status slurm_check_path(const char *path, rp_error *err)
{
    const char *bad = strpbrk(path, "%\"'\\`$\n\r");
    if (!bad)
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT,
                   "the path '%s' has the character '%c', which means something else to sbatch: use another folder",
                   path, *bad == '\n' || *bad == '\r' ? ' ' : *bad);
}

/* In quotes for the shell, except for two variables of the job. */
static void write_word(const char *word, struct text *out)
{
    static const char *const variables[] = {"$SLURM_JOB_ID", "$SLURM_SUBMIT_DIR"};
    struct text quoted = {0};
    shell_add(&quoted, word);
    for (const char *at = text_get(&quoted); *at;) {
        const char *variable = NULL;
        for (size_t i = 0; i < 2 && !variable; i++)
            variable = strncmp(at, variables[i], strlen(variables[i])) == 0 ? variables[i] : NULL;
        if (variable)
            text_add(out, "'\"%s\"'", variable);
        else
            text_add(out, "%c", *at);
        at += variable ? strlen(variable) : 1;
    }
    text_fini(&quoted);
}

char *slurm_script_core(const struct slurm_script *self)
{
    struct text text = {0}, *out = &text;
    write_head(self->config, false, out);
    text_add(out, "#SBATCH --output=\"%s\"\n", self->output);
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
    struct text text = {0};
    write_head(self->config, true, &text);
    text_add(&text, "%s", hold);
    return text.data; /* the caller's now */
}

/* ---- what cannot work ---- */

/* What sbatch says to a job that it only tests. */
static void check_job(const struct run_config *config, bool actors, struct schema_report *report)
{
    struct words words = {0};
    rp_error err = {0};
    words_put(&words, "sbatch", "--test-only");
    add_job(&words, config, actors);
    words_add(&words, "--wrap=true");
    rp_status status = slurm_run((const char *const *)words.list, 0, NULL, &err);
    if (status != RP_OK)
        schema_problem(report, "launch.slurm", "Slurm would not take the %s: %s", actors ? "actor array" : "core job",
                       err.text);
    words_free(&words.list);
}

void slurm_check(const struct run_config *config, struct schema_report *report)
{
    check_job(config, false, report);
    if (config->actors.count != 0)
        check_job(config, true, report);
}

/* Asks a free node whether it sees a file. The options of the core job name an account, for example, without which Slurm
 * refuses. */
static rp_status ask_node(const struct slurm_section *slurm, const char *path, char **answer, rp_error *err)
{
    struct words words = {0};
    words_put(&words, "srun", "--nodes=1", "--ntasks=1", "--immediate=8", "--quiet");
    add_options(&words, &slurm->core, RUN_SLURM_SIGNAL); /* srun has another */
    words_add(&words, "--cpus-per-task=1"); /* not as many as the job will need: nobody waits for them now */
    words_add(&words, "--mem=64M");
    words_put(&words, "--", "sh", "-c", "test -e \"$1\" && echo seen || echo missing", "sh", path);
    rp_status status = slurm_run((const char *const *)words.list, SHARED_NS, answer, err);
    words_free(&words.list);
    return status;
}

rp_status slurm_check_shared(const struct run_config *config, const char *folder, rp_error *err)
{
    char path[1024], *text = NULL;
    snprintf(path, sizeof path, "%s/.replay-shared-XXXXXX", folder);
    int file = mkstemp(path);
    if (file < 0)
        return err_set(err, RP_IO, "the folder '%s' cannot be written", folder);
    close(file);
    rp_status status = ask_node(&config->launch.slurm, path, &text, err);
    bool missing = status == RP_OK && strstr(text, "missing");
    free(text);
    unlink(path);
    if (status != RP_OK)
        return status == RP_FAILED_PRECONDITION ? err->status = RP_UNAVAILABLE : status;
    return missing
               ? err_set(err, RP_FAILED_PRECONDITION,
                         "nodes of the cluster do not see the folder '%s': the run's folder must be on a file system "
                         "that all nodes share: start there, or name it with --folder",
                         folder)
               : RP_OK;
}
