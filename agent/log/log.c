/* See log.h. */
#include "agent/log/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/log/event.h"
#include "agent/log/log_csv.h"
#include "agent/log/log_file.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/log.h"

struct run_log {
    bool on, with_csv, with_events;
    char *process;
    char *json_path;
    struct log_file json;
    struct log_csv csv;
    struct event_writer events;
    uint64_t lost;
};

static bool process_allowed(const char *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return name && name[0] != '\0' && name[0] != '.' && name[strspn(name, allowed)] == '\0';
}

/* A path in the run's folder; NULL: no memory. */
static char *path_of(const struct run_log_options *options, const char *before, const char *after)
{
    char *path;
    return asprintf(&path, "%s/%s%s%s", options->folder, before, options->process, after) < 0 ? NULL : path;
}

struct run_log *run_log_new(const struct run_log_options *options, rp_error *err)
{
    if (!process_allowed(options->process)) {
        err_fill(err, RP_INVALID_ARGUMENT,
                 "the name '%s' of a process cannot be the name of its logs: use letters, digits, '.', '-' and '_'",
                 options->process ? options->process : "");
        return NULL;
    }
    struct run_log *self = calloc(1, sizeof *self);
    if (!self) {
        err_fill(err, RP_NO_MEMORY, "no memory for the logs of %s", options->process);
        return NULL;
    }
    log_file_init(&self->json);
    log_csv_init(&self->csv, NULL);
    event_writer_init(&self->events, NULL, NULL);
    if (!options->folder || options->folder[0] == '\0')
        return self;
    self->on = true;
    self->with_csv = options->csv;
    self->with_events = options->tensorboard;
    self->process = strdup(options->process);
    self->json_path = path_of(options, "", ".jsonl");
    log_csv_init(&self->csv, path_of(options, "", ".csv"));
    event_writer_init(&self->events, path_of(options, "tb/", ""), strdup(options->process));
    if (!self->process || !self->json_path || !self->csv.path || !self->events.folder || !self->events.process) {
        err_fill(err, RP_NO_MEMORY, "no memory for the logs of %s", options->process);
        run_log_destroy(&self);
    }
    return self;
}

void run_log_destroy(struct run_log **self)
{
    struct run_log *log = *self;
    *self = NULL;
    if (!log)
        return;
    if (log->lost > 0)
        log_line(LEVEL_WARN, "A0302", "parts of reports were lost", "process=%s count=%llu", log->process,
                 (unsigned long long)log->lost);
    log_file_fini(&log->json);
    log_csv_fini(&log->csv);
    event_writer_fini(&log->events);
    free(log->json_path);
    free(log->process);
    free(log);
}

/* One bad name would spoil a line or a table for good. */
static bool names_allowed(const struct agent_scalar *scalars, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const char *c = scalars[i].name;
        while (*c > ' ' && *c <= '~' && !strchr(",\"\\", *c))
            c++;
        if (c == scalars[i].name || *c != '\0') {
            errno = EINVAL;
            return false;
        }
    }
    return true;
}

static void format_line(struct json *json, const struct run_log *self, const struct run_log_at *at,
                        const struct agent_scalar *scalars, uint32_t n)
{
    json_open(json, '{');
    json_real(json, "time", at->time_s);
    json_text(json, "process", self->process);
    json_count(json, "environment_steps", at->environment_steps);
    json_count(json, "learner_steps", at->learner_steps);
    for (uint32_t i = 0; i < n; i++)
        json_real(json, scalars[i].name, scalars[i].value);
    json_close(json, '}');
}

static bool write_line(struct run_log *self, const struct run_log_at *at, const struct agent_scalar *scalars,
                       uint32_t n)
{
    if (self->json.fd < 0 && !log_file_open(&self->json, self->json_path, false))
        return false;
    struct json json = {0};
    format_line(&json, self, at, scalars, n);
    size_t size = json.size;
    char *line = json_take(&json);
    if (!line) {
        errno = ENOMEM;
        return false;
    }
    /* The line end replaces the end of the text. */
    line[size] = '\n';
    bool ok = log_file_append_line(&self->json, self->json_path, "\"time\": ", line, size + 1);
    int error = errno;
    free(line);
    errno = error;
    return ok;
}

/* Counts failures; errno says why something was not written. */
static void settle(struct run_log *self, bool written, const char *what)
{
    if (written)
        return;
    char quoted[160];
    if (self->lost++ == 0)
        log_line(LEVEL_WARN, "A0301", "a report cannot be written", "process=%s what=%s error=%s", self->process, what,
                 log_quote(quoted, sizeof quoted, strerror(errno)));
}

void run_log_report(struct run_log *self, const struct run_log_at *at, const struct agent_scalar *scalars, uint32_t n)
{
    if (!self->on)
        return;
    if (!names_allowed(scalars, n)) {
        settle(self, false, "names");
        return;
    }
    settle(self, write_line(self, at, scalars, n), "json");
    if (self->with_csv)
        settle(self, log_csv_append(&self->csv, at, scalars, n), "csv");
    if (self->with_events)
        settle(self, event_write(&self->events, at, scalars, n), "tensorboard");
}

uint64_t run_log_lost(const struct run_log *self)
{
    return self->lost;
}
