/* What a node agent says. Nothing of it is believed: a damaged line is left out, and files stay in the run's folder. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/host/host_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/utf8.h"

/* Bytes that are read from one host in one call: the launcher has more to do. */
#define READ_MOST (2u * 1024 * 1024)
/* More than this in one call: files or output are on their way, and the next look should come soon. */
#define READ_BUSY (64u * 1024)

/* ---- facts ---- */

/* Copies a text that people read: without control characters, valid UTF-8. */
static void copy_text(char *out, size_t size, struct json_object *line, const char *name)
{
    const char *text = host_line_text(line, name);
    size_t used = 0;
    for (; text && *text && used + 1 < size; text++)
        if ((unsigned char)*text >= ' ' && *text != 0x7f)
            out[used++] = *text;
    utf8_clean(out, used);
    out[used] = '\0';
}

/* Copies a path; one that is too long is left out. */
static void copy_path(char *out, size_t size, struct json_object *line, const char *name)
{
    const char *text = host_line_text(line, name);
    snprintf(out, size, "%s", text && text[0] == '/' && strlen(text) < size ? text : "");
}

static void on_ready(void *context, struct json_object *line)
{
    struct host *self = context;
    char version[64];
    struct clock clock = clock_system();
    if (self->state != HOST_CONNECTING)
        return;
    copy_text(version, sizeof version, line, "version");
    if (host_line_number(line, "protocol", 0, INT32_MAX) != HOST_PROTOCOL || strcmp(version, rp_version()) != 0) {
        char reason[256];
        snprintf(reason, sizeof reason,
                 "replay-launch there has version %s, here %s: both machines need the same version", version,
                 rp_version());
        host_lose(self, clock_now(&clock), reason);
        return;
    }
    self->facts = (struct host_facts){.cores = host_line_real(line, "cores", 0.01, 1e6),
                                      .memory = host_line_real(line, "memory", 0, 1e18),
                                      .python = host_line_flag(line, "python")};
    copy_text(self->facts.hostname, sizeof self->facts.hostname, line, "hostname");
    copy_text(self->facts.model, sizeof self->facts.model, line, "model");
    copy_text(self->facts.address, sizeof self->facts.address, line, "address");
    copy_path(self->facts.work, sizeof self->facts.work, line, "work");
    copy_path(self->facts.programs, sizeof self->facts.programs, line, "programs");
    copy_path(self->facts.here, sizeof self->facts.here, line, "here");
    self->noise = (struct host_noise){0}; /* what a login prints is no reason for a later loss */
    self->times++;
    host_set_state(self, HOST_READY, clock_now(&clock));
}

/* ---- processes ---- */

static struct host_process *process_of(struct host *self, struct json_object *line)
{
    return host_place_find(self, (uint32_t)host_line_number(line, "id", 0, UINT32_MAX));
}

static void append_log(const struct host_process *process, const void *bytes, size_t size)
{
    int fd = open(process->log, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
    const char *at = bytes;
    while (fd >= 0 && size > 0) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break; /* a full disk: the output is lost, as it would be at home */
        at += n;
        size -= (size_t)n;
    }
    if (fd >= 0)
        close(fd);
}

static void on_started(void *context, struct json_object *line)
{
    struct host_process *process = process_of(context, line);
    if (process)
        process->pid = (pid_t)host_line_number(line, "pid", 0, INT32_MAX);
}

static void on_output(void *context, struct json_object *line)
{
    struct host *self = context;
    const struct host_process *process = process_of(self, line);
    size_t size;
    self->moved_ns = self->heard_ns;
    uint8_t *bytes = process && !process->ended ? host_line_data(line, &size) : NULL;
    if (bytes)
        append_log(process, bytes, size);
    free(bytes);
}

static void on_exited(void *context, struct json_object *line)
{
    struct host_process *process = process_of(context, line);
    if (process)
        process->exited = true;
}

static void on_ended(void *context, struct json_object *line)
{
    struct host_process *process = process_of(context, line);
    if (!process || process->ended)
        return;
    const char *text = host_line_text(line, "text");
    if (text && text[0]) {
        append_log(process, text, strlen(text));
        append_log(process, "\n", 1);
    }
    process->status = (int)host_line_number(line, "status", 0, UINT16_MAX);
    process->ended = true;
}

/* ---- usage ---- */

static void take_usage(struct host *self, struct json_object *row)
{
    int64_t values[3] = {0};
    if (!json_object_is_type(row, json_type_array) || json_object_array_length(row) != 4)
        return;
    for (size_t i = 0; i < 3; i++)
        values[i] = json_object_get_int64(json_object_array_get_idx(row, i));
    struct host_process *process = values[0] > 0 ? host_place_find(self, (uint32_t)values[0]) : NULL;
    if (!process)
        return;
    process->has_usage = true;
    process->usage.cpu_ns = values[1] > 0 ? values[1] : 0;
    process->usage.memory = values[2] > 0 ? (uint64_t)values[2] : 0;
    process->usage.stopped = json_object_get_boolean(json_object_array_get_idx(row, 3));
}

static void on_usage(void *context, struct json_object *line)
{
    struct host *self = context;
    struct json_object *list = NULL;
    if (json_object_object_get_ex(line, "list", &list) && json_object_is_type(list, json_type_array))
        for (size_t i = 0; i < json_object_array_length(list); i++)
            take_usage(self, json_object_array_get_idx(list, i));
    self->load.cpu = host_line_real(line, "cpu", 0, 1e6);
    self->load.memory = (uint64_t)host_line_number(line, "memory", 0, INT64_MAX);
}

/* ---- files ---- */

/* A piece that does not fit the copy here is left out, and the agent sends the file again from its beginning. */
static void send_again(struct host *self, const char *name)
{
    struct json_object *again = host_line_new("again");
    host_line_add_text(again, "name", name);
    host_out_line(self, again);
}

/* Logs the first file of a connection that is not taken. */
static void say_refused(struct host *self, const char *name, const char *why)
{
    char quoted[2 * HOST_FILE_NAME];
    if (self->refused)
        return;
    self->refused = true;
    log_line(LEVEL_WARN, "A0438", "a file of a host is not taken", "host=%s file=%s why=\"%s\"", self->name,
             log_quote(quoted, sizeof quoted, name), why);
}

static void on_file(void *context, struct json_object *line)
{
    struct host *self = context;
    rp_error err = {0};
    const char *name = host_line_text(line, "name");
    int64_t offset = host_line_number(line, "offset", 0, INT64_MAX);
    size_t size;
    if (name && !host_place_owns(self, name)) {
        say_refused(self, name, "it belongs to no process there: names begin with that of their process");
        return;
    }
    self->moved_ns = self->heard_ns;
    uint8_t *bytes = name ? host_line_data(line, &size) : NULL;
    if (!bytes)
        return;
    rp_status status;
    if (host_line_flag(line, "replace")) {
        status = offset == 0 ? host_folder_begin(&self->folder, name, 0666, &err) : RP_OK;
        if (status == RP_OK)
            status = host_folder_write(&self->folder, name, bytes, size, &err);
        if (status == RP_OK && host_line_flag(line, "last"))
            host_folder_finish(&self->folder, NULL, NULL);
    } else {
        status = host_folder_append(&self->folder, name, bytes, size, offset, &err);
        if (status == RP_FAILED_PRECONDITION)
            send_again(self, name);
    }
    if (status == RP_RESOURCE_EXHAUSTED)
        say_refused(self, name, err.text);
    free(bytes);
}

/* ---- answers ---- */

static void answer(struct host_answer *self, struct json_object *line)
{
    if (!self->waiting)
        return;
    self->waiting = false;
    self->done = true;
    self->ok = host_line_flag(line, "ok");
    self->rate = host_line_real(line, "rate", 0, 1e15);
    copy_text(self->text, sizeof self->text, line, "text");
}

static void on_measured(void *context, struct json_object *line)
{
    answer(&((struct host *)context)->measure, line);
}

static void on_reached(void *context, struct json_object *line)
{
    struct host *self = context;
    answer(&self->reach, line);
    if (self->reach.done && self->reach.ok)
        self->load.round_trip_ns = host_line_number(line, "ns", 0, 3600 * NS_PER_S);
}

static void on_pong(void *context, struct json_object *line)
{
    (void)context;
    (void)line;
}

static void on_need(void *context, struct json_object *line)
{
    (void)line;
    host_send_begin(context);
}

/* Our programs have arrived, and the agent comes next. */
static void on_got(void *context, struct json_object *line)
{
    const struct host *self = context;
    (void)line;
    if (self->state == HOST_CONNECTING && self->sending.fd < 0 && self->sending.sent > 0)
        host_say_hello(context);
}

static const struct host_line_handler handlers[] = {
    {"ready", on_ready},       {"started", on_started}, {"output", on_output}, {"file", on_file},
    {"ended", on_ended},       {"usage", on_usage},     {"pong", on_pong},     {"reached", on_reached},
    {"measured", on_measured}, {"need", on_need},       {"got", on_got},       {"exited", on_exited},
};

void host_in_errors(struct host *self)
{
    for (size_t total = 0, n = 1; total < READ_MOST && n > 0; total += n) {
        n = host_reader_fill(&self->errors); /* 0 at the end, too, where a last line may have no end */
        for (struct json_object *line; (line = host_reader_next(&self->errors));)
            json_object_put(line);
    }
}

bool host_in_read(struct host *self)
{
    struct clock clock = clock_system();
    size_t total = 0;
    host_in_errors(self);
    for (size_t n = 1; total < READ_MOST && n > 0; total += n) {
        n = host_reader_fill(&self->reader);
        for (struct json_object *line; self->in >= 0 && (line = host_reader_next(&self->reader));) {
            self->heard_ns = clock_now(&clock);
            host_line_dispatch(handlers, sizeof handlers / sizeof handlers[0], self, line);
            json_object_put(line);
        }
    }
    self->busy = total > READ_BUSY;
    return !self->reader.ended;
}
