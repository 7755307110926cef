/* The logs of a process: two formats on top of files that grow by whole records. */
#include "agent/run/run_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/run/thin.h"
#include "event.pb-c.h"
#include "proto/base/crc32c.h"
#include "proto/base/io.h"
#include "proto/base/json.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

/* ---- TensorBoard's event files ----
 *
 * A file is a row of records: u64 length, masked crc32c of the length, that many bytes of a tensorboard.Event
 * (proto/event.proto), masked crc32c of the bytes; all little-endian. The first record tells the version. Every start
 * of a process begins a file of its own, named by time, host and process; TensorBoard reads the files of a folder one
 * after the other. TensorBoard follows a file while it grows, so events are not removed from it later: instead, the longer a
 * process runs, the further apart they are (thin_width). */

struct event_writer {
    char *folder;
    const char *process;
    struct record_file file; /* opened with the first event */
    double first_s, last_s;  /* times of the first and of the last event */
};

#define HEAD_BYTES (sizeof(uint64_t) + sizeof(uint32_t))
#define NAMES_TRIED 1000 /* starts within one second */

/* The masked form of a checksum, which may itself be part of data that is checksummed. */
static uint32_t masked(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

static void put_crc(uint8_t *at, const uint8_t *data, size_t size)
{
    uint32_t crc = masked(crc32c(0, data, size));
    memcpy(at, &crc, sizeof crc);
}

static bool append_event(struct event_writer *self, const Tensorboard__Event *event)
{
    size_t size = tensorboard__event__get_packed_size(event), total = HEAD_BYTES + size + sizeof(uint32_t);
    uint8_t *record = need_alloc(total);
    uint64_t length = size;
    memcpy(record, &length, sizeof length);
    put_crc(record + sizeof length, record, sizeof length);
    tensorboard__event__pack(event, record + HEAD_BYTES);
    put_crc(record + HEAD_BYTES + size, record + HEAD_BYTES, size);
    bool ok = record_file_append(&self->file, record, total);
    free(record);
    return ok;
}

/* Opens a file under an unused name: the time in the name is increased until it is unused. */
static bool open_new(struct event_writer *self, double time_s)
{
    char host[256];
    if (gethostname(host, sizeof host) != 0)
        snprintf(host, sizeof host, "localhost");
    host[sizeof host - 1] = '\0';
    long long seconds = time_s > 0 && time_s < 1e15 ? (long long)time_s : 0;
    bool ok = false;
    errno = EEXIST;
    for (int i = 0; i < NAMES_TRIED && !ok && errno == EEXIST; i++) {
        char *path = need_print("%s/events.out.tfevents.%010lld.%s.%s", self->folder, seconds + i, host, self->process);
        io_make_parents(path, 0755);
        ok = record_file_open(&self->file, path, true);
        free(path);
    }
    return ok;
}

static bool begin_events(struct event_writer *self, double time_s)
{
    if (self->file.fd < 0 && !open_new(self, time_s))
        return false;
    if (self->file.size > 0)
        return true;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    char version[] = RUN_LOG_EVENT_VERSION;
    event.wall_time = time_s;
    event.what_case = TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    event.file_version = version;
    return append_event(self, &event);
}

/* Writes one event with all scalars, at step at->environment_steps, unless the last one is too near. */
static bool write_event(struct event_writer *self, const struct run_log_at *at, const struct agent_scalar *scalars,
                        uint32_t n)
{
    double width_s = self->file.size > 0 ? thin_width(at->time_s - self->first_s) : 0;
    if (width_s > 0 && at->time_s >= self->last_s && at->time_s - self->last_s < width_s)
        return true;
    if (!begin_events(self, at->time_s))
        return false;
    Tensorboard__Summary__Value *values = need_alloc(n * sizeof *values);
    Tensorboard__Summary__Value **pointers = need_alloc(n * sizeof *pointers);
    for (uint32_t i = 0; i < n; i++) {
        tensorboard__summary__value__init(&values[i]);
        values[i].tag = (char *)(uintptr_t)scalars[i].name;
        values[i].value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
        values[i].simple_value = (float)scalars[i].value;
        pointers[i] = &values[i];
    }
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    summary.n_value = n;
    summary.value = pointers;
    event.wall_time = at->time_s;
    event.step = (int64_t)at->environment_steps;
    event.what_case = TENSORBOARD__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    bool ok = append_event(self, &event);
    self->first_s = self->first_s > 0 ? self->first_s : at->time_s;
    self->last_s = at->time_s;
    free(values);
    free(pointers);
    return ok;
}

/* ---- the log of a process ---- */

struct run_log {
    bool on; /* there is a folder */
    char *process;
    struct line_file lines;
    struct event_writer events;
    uint64_t lost;
};

struct run_log *run_log_new(const char *folder, const char *process)
{
    struct run_log *self = need_alloc(sizeof *self);
    self->events.file.fd = -1;
    line_file_init(&self->lines, NULL, NULL);
    if (!folder || folder[0] == '\0')
        return self;
    self->on = true;
    self->process = need_text(process);
    line_file_init(&self->lines, need_print("%s/%s.jsonl", folder, process), "\"time\": ");
    self->events.folder = need_print("%s/tb/%s", folder, process);
    self->events.process = self->process;
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
    line_file_fini(&log->lines);
    record_file_close(&log->events.file);
    free(log->events.folder);
    free(log->process);
    free(log);
}

/* One bad name would spoil a line for good. */
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

bool run_log_open(struct run_log *self)
{
    if (!self->on || self->lines.file.fd >= 0)
        return true;
    io_make_parents(self->lines.path, 0755);
    return line_file_open(&self->lines);
}

static bool write_line(struct run_log *self, const struct run_log_at *at, const struct agent_scalar *scalars,
                       uint32_t n)
{
    if (!run_log_open(self))
        return false;
    struct json json = {0};
    format_line(&json, self, at, scalars, n);
    char *line = json_take(&json);
    bool ok = line && line_file_add(&self->lines, line);
    free(line);
    return ok;
}

/* Counts failures; errno says why something was not written. */
static void run_log_settle(struct run_log *self, bool written, const char *what)
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
        run_log_settle(self, false, "names");
        return;
    }
    run_log_settle(self, write_line(self, at, scalars, n), "json");
    run_log_settle(self, write_event(&self->events, at, scalars, n), "tensorboard");
}

uint64_t run_log_lost(const struct run_log *self)
{
    return self->lost;
}
