#include "agent/launch/slurm/slurm_jobs.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/process/command.h"
#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define LIMIT_NS (30 * NS_PER_S)
#define MOST_WORDS 64u

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
    size_t most = 2, n = 0;
    for (char **entry = environ; entry && *entry; entry++)
        most += 2;
    for (const char *const *word = argv; *word; word++)
        most++;
    char **list = need_alloc(most * sizeof *list);
    list[n++] = need_text("env");
    for (char **entry = environ; entry && *entry; entry++) {
        size_t length = job_variable(*entry);
        if (length == 0)
            continue;
        list[n++] = need_text("-u");
        list[n++] = need_print("%.*s", (int)length, *entry);
    }
    for (const char *const *word = argv; *word; word++)
        list[n++] = need_text(*word);
    return list;
}

rp_status slurm_call_start(struct call *self, const char *const *argv, int64_t limit_ns, rp_error *err)
{
    if (!spawn_can_start(argv[0]))
        return err_set(err, RP_NOT_FOUND, "there is no program '%s' here: is this a machine of a Slurm cluster?",
                       argv[0]);
    char **words = slurm_without_job(argv);
    rp_status status = call_start(self, (const char *const *)words, NULL, limit_ns, err);
    command_free(&words);
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
    const char *line = call_text(&self->err);
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
        *out = need_text(call_text(&call.out));
    call_fini(&call);
    return status;
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

bool slurm_parse_id(const char *text, uint64_t *id)
{
    char word[32];
    size_t length = strcspn(text, ";\n ");
    if (length >= sizeof word)
        return false;
    memcpy(word, text, length);
    word[length] = '\0';
    return read_number(word, id);
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

static bool read_job(char *line, void *job)
{
    struct slurm_job *out = job;
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

uint32_t slurm_parse_lines(const char *text, slurm_line_reader read, void *list, size_t size, uint32_t most)
{
    uint32_t n = 0;
    while (text && *text && n < most) {
        char line[512];
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(length < sizeof line ? length : sizeof line - 1), text);
        text += length + (text[length] == '\n');
        n += read(line, (char *)list + n * size);
    }
    return n;
}

uint32_t slurm_parse_jobs(const char *text, struct slurm_job *out, uint32_t most)
{
    return slurm_parse_lines(text, read_job, out, sizeof *out, most);
}

/* ---- questions and orders ---- */

rp_status slurm_submit(const char *const *words, uint64_t *id, rp_error *err)
{
    const char *argv[MOST_WORDS] = {"sbatch", "--parsable"};
    char *text = NULL;
    uint32_t n = 2;
    for (; *words; words++) {
        if (n + 1 >= MOST_WORDS)
            return err_set(err, RP_INVALID_ARGUMENT, "sbatch cannot take so many words");
        argv[n++] = *words;
    }
    RP_TRY(slurm_run(argv, 0, &text, err));
    bool ok = slurm_parse_id(text, id);
    rp_status status = ok ? RP_OK : err_set(err, RP_INTERNAL, "sbatch answered '%.80s', which is no job number", text);
    free(text);
    return status;
}

static const char *name_of(uint64_t id, char out[24])
{
    snprintf(out, 24, "%" PRIu64, id);
    return out;
}

/* Slurm forgets jobs some time after their end. */
static bool is_unknown(const rp_error *err)
{
    return strstr(err->text, "Invalid job id") != NULL || strstr(err->text, "already completing") != NULL ||
           strstr(err->text, "completed") != NULL;
}

rp_status slurm_look(uint64_t id, struct slurm_job *out, rp_error *err)
{
    char name[24], *text = NULL;
    rp_error own = {0};
    err = err ? err : &own; /* its text tells whether the job is unknown */
    *out = (struct slurm_job){.id = id};
    rp_status status =
        slurm_run(SLURM_WORDS("squeue", "-h", "-j", name_of(id, name), "-o", SLURM_FORMAT), 0, &text, err);
    if (status == RP_OK)
        slurm_parse_jobs(text, out, 1);
    free(text);
    return status != RP_OK && is_unknown(err) ? RP_OK : status;
}

rp_status slurm_ask(uint64_t id, rp_error *err)
{
    char name[24];
    return slurm_run(SLURM_WORDS("scancel", "--batch", "--signal=TERM", name_of(id, name)), 0, NULL, err);
}

rp_status slurm_cancel(uint64_t id, rp_error *err)
{
    char name[24];
    rp_error own = {0};
    err = err ? err : &own;
    if (id == 0)
        return RP_OK;
    rp_status status = slurm_run(SLURM_WORDS("scancel", name_of(id, name)), 0, NULL, err);
    return status != RP_OK && is_unknown(err) ? RP_OK : status;
}

rp_status slurm_requeue(uint64_t id, rp_error *err)
{
    char name[24];
    return slurm_run(SLURM_WORDS("scontrol", "requeue", name_of(id, name)), 0, NULL, err);
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
    json_object *root = json_map_object(rows, self);
    rp_status status =
        run_folder_write(folder, SLURM_RECORD, json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY), err);
    json_object_put(root);
    return status;
}
