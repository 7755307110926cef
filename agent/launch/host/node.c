/* The loop of the node agent, and what the launcher may ask for. */
#include "agent/launch/host/node.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/host/node_impl.h"
#include "agent/launch/process/machine.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define LEASE_NS (15 * NS_PER_S) /* until the launcher says otherwise */
#define USAGE_NS NS_PER_S
#define TURN_MS 100
#define STANDARD_POLLS 4u
#define ALIVE_SHARE 15 /* signs of life for the guard in a lease */

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- what the launcher asks for ---- */

static bool is_folder(const char *path)
{
    struct stat info;
    return path && path[0] == '/' && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static void on_hello(void *context, struct json_object *line)
{
    struct node *self = context;
    const char *here = host_line_text(line, "here"), *cwd = host_line_text(line, "cwd");
    int64_t lease_ms = host_line_number(line, "lease_ms", 0, INT32_MAX);
    if (self->greeted)
        return;
    self->greeted = true;
    self->lease_ns = lease_ms > 0 ? lease_ms * NS_PER_MS : LEASE_NS;
    guard_lease(&self->guard, self->lease_ns);
    if (is_folder(here) && strlen(here) < sizeof self->here)
        snprintf(self->here, sizeof self->here, "%s", here);
    else
        snprintf(self->here, sizeof self->here, "%.500s/here", self->work);
    mkdir(self->here, 0700); /* there already, if it is a folder of the user's */
    /* Relative paths of the run's file mean the same as at home, where there is such a folder. */
    if ((!is_folder(cwd) || chdir(cwd) != 0) && chdir(self->here) != 0)
        self->over = true;
    struct json_object *ready = host_line_new("ready");
    host_line_add_number(ready, "protocol", HOST_PROTOCOL);
    host_line_add_text(ready, "version", rp_version());
    node_facts_add(self, ready);
    host_writer_put(&self->writer, ready);
}

static void on_file(void *context, struct json_object *line)
{
    struct node *self = context;
    struct stat info;
    const char *name = host_line_text(line, "name");
    size_t size;
    uint8_t *bytes = name ? host_line_data(line, &size) : NULL;
    rp_status status = bytes ? RP_OK : RP_BAD_MESSAGE;
    if (status == RP_OK && host_line_flag(line, "first"))
        status = host_folder_begin(&self->folder, name, (mode_t)host_line_number(line, "mode", 0, 0777), NULL);
    if (status == RP_OK)
        status = host_folder_write(&self->folder, name, bytes, size, NULL);
    if (status == RP_OK && host_line_flag(line, "last") && host_folder_finish(&self->folder, &info, NULL) == RP_OK)
        node_mirror_received(&self->mirror, name, &info);
    free(bytes);
}

static void on_start(void *context, struct json_object *line)
{
    node_children_start(context, line);
}

static struct process *process_of(struct node *self, struct json_object *line)
{
    struct node_child *child = node_children_find(self, (uint32_t)host_line_number(line, "id", 0, UINT32_MAX));
    return child ? &child->process : NULL;
}

static void on_ask(void *context, struct json_object *line)
{
    struct process *process = process_of(context, line);
    if (process)
        process_ask(process, now());
}

static void on_kill(void *context, struct json_object *line)
{
    struct process *process = process_of(context, line);
    if (process)
        process_kill(process);
}

static void on_ping(void *context, struct json_object *line)
{
    struct node *self = context;
    (void)line;
    host_writer_put(&self->writer, host_line_new("pong"));
}

static void on_again(void *context, struct json_object *line)
{
    struct node *self = context;
    const char *name = host_line_text(line, "name");
    if (name)
        node_mirror_again(&self->mirror, name, now());
}

static void on_reach(void *context, struct json_object *line)
{
    node_network_reach(context, line);
}

static void on_measure(void *context, struct json_object *line)
{
    node_network_measure(context, line);
}

static void on_bye(void *context, struct json_object *line)
{
    (void)line;
    ((struct node *)context)->over = true;
}

static const struct host_line_handler handlers[] = {
    {"hello", on_hello}, {"file", on_file},   {"start", on_start}, {"ask", on_ask},         {"kill", on_kill},
    {"ping", on_ping},   {"again", on_again}, {"reach", on_reach}, {"measure", on_measure}, {"bye", on_bye},
};

/* The guard kills everything, this process included, if it hears nothing for a lease: this process is stopped or stuck. */
static void show_life(struct node *self, int64_t now_ns)
{
    if (now_ns - self->alive_ns < self->lease_ns / ALIVE_SHARE)
        return;
    self->alive_ns = now_ns;
    guard_alive(&self->guard);
}

static void listen_to_launcher(struct node *self)
{
    while (!self->over && host_reader_fill(&self->reader) > 0) {
        for (struct json_object *line; !self->over && (line = host_reader_next(&self->reader));) {
            self->heard_ns = now();
            show_life(self, self->heard_ns);
            host_line_dispatch(handlers, sizeof handlers / sizeof handlers[0], self, line);
            json_object_put(line);
        }
    }
    self->over |= self->reader.ended || self->writer.broken;
}

/* ---- the loop ---- */

/* Cores in use by all programs since the last call; 0: not known. */
static double busy_cores(struct node *self)
{
    struct machine_load load;
    double busy = 0.0;
    if (!machine_load_read(&load))
        return 0.0;
    int64_t ns = load.at_ns - self->load.at_ns;
    if (self->load.at_ns > 0 && ns > 0 && load.busy_ns >= self->load.busy_ns)
        busy = (double)(load.busy_ns - self->load.busy_ns) / (double)ns;
    self->load = load;
    return busy;
}

static void report_usage(struct node *self, int64_t now_ns)
{
    if (now_ns - self->usage_ns < USAGE_NS)
        return;
    self->usage_ns = now_ns;
    double busy = busy_cores(self), memory = machine_memory_used();
    uint32_t at = 0;
    do {
        struct json_object *line = host_line_new("usage");
        at = node_children_usage(self, at, line);
        host_line_add_real(line, "cpu", busy);
        host_line_add_number(line, "memory", (int64_t)memory);
        host_writer_put(&self->writer, line);
    } while (at < self->n);
}

static void poll_all(struct node *self)
{
    uint32_t n = STANDARD_POLLS;
    bool room = host_writer_room(&self->writer), empty = host_writer_empty(&self->writer);
    if (self->polls_capacity < n + self->n) {
        struct pollfd *more = realloc(self->polls, (n + 2 * self->n) * sizeof *more);
        if (!more)
            return;
        self->polls = more;
        self->polls_capacity = n + 2 * self->n;
    }
    self->polls[0] = (struct pollfd){.fd = self->in, .events = POLLIN};
    self->polls[1] = (struct pollfd){.fd = empty ? -1 : self->out, .events = POLLOUT};
    self->polls[2] = (struct pollfd){.fd = self->interrupts.fd, .events = POLLIN};
    self->polls[3] = (struct pollfd){.fd = self->answers[0], .events = POLLIN};
    for (uint32_t i = 0; room && i < self->n; i++)
        self->polls[n++] = (struct pollfd){.fd = self->children[i]->output, .events = POLLIN};
    poll(self->polls, n, room && node_mirror_busy(&self->mirror) ? 0 : TURN_MS);
}

/* True if a process waits for a pass of the mirror. */
static bool ends_wait(const struct node *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->children[i]->ended && self->children[i]->output < 0)
            return true;
    return false;
}

static void tend_guard(struct node *self, int64_t now_ns)
{
    if (guard_lost(&self->guard)) {
        for (uint32_t i = 0; i < self->n; i++)
            process_guard(&self->children[i]->process);
        if (self->greeted)
            guard_lease(&self->guard, self->lease_ns);
    }
    show_life(self, now_ns);
}

static void turn(struct node *self)
{
    poll_all(self);
    int64_t at = now();
    /* Before anything is read: a node agent that was stopped for longer has lost its launcher, whatever is in the pipe. */
    if (at - self->heard_ns > self->lease_ns) {
        self->over = true;
        return;
    }
    interrupts_wait(&self->interrupts, 0);
    self->over |= self->interrupts.asked > 0;
    tend_guard(self, at);
    listen_to_launcher(self);
    if (self->over || !self->greeted)
        return;
    node_network_tend(self);
    node_mirror_tend(self, at, ends_wait(self));
    node_children_tend(self);
    report_usage(self, at);
    host_writer_flush(&self->writer);
}

/* ---- begin and end ---- */

static rp_status begin(struct node *self, int in, int out, rp_error *err)
{
    *self =
        (struct node){.in = in, .out = out, .lease_ns = LEASE_NS, .heard_ns = now(), .answers = {-1, -1}, .lock = -1};
    self->guard.pipe = -1;
    self->interrupts.fd = -1;
    node_mirror_init(&self->mirror);
    host_writer_init(&self->writer, out);
    host_folder_init(&self->folder, "", "node");
    process_raise_files();
    RP_TRY(interrupts_init(&self->interrupts, err));
    RP_TRY(guard_start(&self->guard, err));
    RP_TRY(node_work_make(self, err));
    host_folder_init(&self->folder, self->work, "node");
    if (fcntl(in, F_SETFL, O_NONBLOCK) != 0 || fcntl(out, F_SETFL, O_NONBLOCK) != 0 ||
        pipe2(self->answers, O_CLOEXEC | O_NONBLOCK) != 0)
        return err_set(err, RP_IO, "the connection with replay-launch cannot be used: %s", strerror(errno));
    self->polls = calloc(STANDARD_POLLS, sizeof *self->polls);
    self->polls_capacity = STANDARD_POLLS;
    return self->polls && host_reader_init(&self->reader, in, &self->noise)
               ? RP_OK
               : err_set(err, RP_NO_MEMORY, "no memory for the connection");
}

static void end(struct node *self)
{
    node_children_end(self);
    guard_stop(&self->guard); /* the rest may take longer than a lease */
    host_folder_fini(&self->folder);
    node_mirror_fini(&self->mirror);
    node_work_remove(self);
    host_reader_fini(&self->reader);
    host_writer_fini(&self->writer);
    interrupts_fini(&self->interrupts);
    free(self->polls);
}

rp_status node_run(int in, int out, rp_error *err)
{
    struct node self;
    rp_status status = begin(&self, in, out, err);
    while (status == RP_OK && !self.over)
        turn(&self);
    end(&self);
    return status;
}
