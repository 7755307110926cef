/* Processes of the node agent: each writes into a pipe, which is read only while the connection has room. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/host/node_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define USAGE_ROWS 512u /* that fit on a line */
#define END_TURNS 2000  /* of a millisecond: how long killed processes may take to be gone */

struct node_child *node_children_find(struct node *self, uint32_t id)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->children[i]->id == id)
            return self->children[i];
    return NULL;
}

static struct node_child *add(struct node *self, uint32_t id)
{
    if (self->n == self->capacity) {
        uint32_t capacity = self->capacity ? 2 * self->capacity : 16;
        struct node_child **more = realloc(self->children, capacity * sizeof(struct node_child *));
        if (!more)
            return NULL;
        self->children = more;
        self->capacity = capacity;
    }
    struct node_child *child = calloc(1, sizeof *child);
    if (!child)
        return NULL;
    *child = (struct node_child){.id = id, .output = -1};
    self->children[self->n++] = child;
    return child;
}

static void report_end(struct node *self, uint32_t id, int status, const char *text)
{
    struct json_object *line = host_line_new("ended");
    host_line_add_number(line, "id", id);
    host_line_add_number(line, "status", status);
    host_line_add_text(line, "text", text);
    host_writer_put(&self->writer, line);
}

/* The end itself is told at once: what the process has written may take long to follow. */
static void report_exit(struct node *self, uint32_t id)
{
    struct json_object *line = host_line_new("exited");
    host_line_add_number(line, "id", id);
    host_writer_put(&self->writer, line);
}

/* ---- start ---- */

static bool is_listed(const char *name, const char *const *list)
{
    for (size_t i = 0; list && list[i]; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

/* Removes NAME.* of an earlier start that the launcher does not have any more. */
static void remove_old_files(struct node *self, const char *name, const char *const *keep)
{
    size_t length = strlen(name);
    DIR *folder = opendir(self->work);
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        if (strncmp(entry->d_name, name, length) == 0 && entry->d_name[length] == '.' &&
            !is_listed(entry->d_name, keep))
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
}

static rp_status start(struct node *self, struct node_child *child, const char *name, const char *const *argv,
                       const char *const *environment, rp_error *err)
{
    int ends[2];
    struct clock clock = clock_system();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return err_set(err, RP_IO, "could not make a pipe for the output of %s: %s", name, strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const struct process_options options = {
        .name = name, .argv = argv, .environment = environment, .output = ends[1], .guard = &self->guard};
    rp_status status = process_start(&child->process, &options, clock_now(&clock), err);
    close(ends[1]);
    if (status == RP_OK)
        child->output = ends[0];
    else
        close(ends[0]);
    return status;
}

void node_children_start(struct node *self, struct json_object *line)
{
    uint32_t id = (uint32_t)host_line_number(line, "id", 0, UINT32_MAX);
    const char *name = host_line_text(line, "name");
    const char **argv = host_line_list(line, "argv"), **environment = host_line_list(line, "env");
    const char **files = host_line_list(line, "files");
    rp_error err = {0};
    bool valid = name && name[0] && argv && argv[0] && !node_children_find(self, id);
    struct node_child *child = valid && self->n < NODE_CHILDREN_MOST ? add(self, id) : NULL;
    if (child) {
        remove_old_files(self, name, files);
        if (start(self, child, name, argv, environment, &err) == RP_OK) {
            struct json_object *started = host_line_new("started");
            host_line_add_number(started, "id", id);
            host_line_add_number(started, "pid", child->process.pid);
            host_writer_put(&self->writer, started);
        } else {
            child->ended = true;
            child->status = 127 << 8;
            snprintf(child->text, sizeof child->text, "%s", err.text);
        }
    } else {
        report_end(self, id, 126 << 8,
                   valid ? "the node agent has no room for one more process" : "the order to start is damaged");
    }
    free(argv);
    free(environment);
    free(files);
}

/* ---- output and end ---- */

/* Forwards what one child has printed, at most one line's worth. True: there may be more. */
static bool forward(struct node *self, struct node_child *child)
{
    uint8_t bytes[HOST_DATA_MOST];
    ssize_t n;
    do
        n = read(child->output, bytes, sizeof bytes);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        struct json_object *line = host_line_new("output");
        host_line_add_number(line, "id", child->id);
        host_line_add_data(line, bytes, (size_t)n);
        host_writer_put(&self->writer, line);
        return true;
    }
    /* A program that left the group may hold the pipe of a process that has ended: it is not waited for. */
    if (n == 0 || child->ended || (errno != EAGAIN && errno != EWOULDBLOCK)) {
        close(child->output);
        child->output = -1;
    }
    return false;
}

static void forward_all(struct node *self)
{
    bool more = self->n > 0;
    while (more && host_writer_room(&self->writer)) {
        more = false;
        for (uint32_t i = 0; i < self->n && host_writer_room(&self->writer); i++) {
            struct node_child *child = self->children[(self->turn + i) % self->n];
            if (child->output >= 0)
                more |= forward(self, child);
        }
        self->turn++;
    }
}

/* An end is reported after the last output and after a whole pass of the mirror. */
static bool is_done(struct node *self, struct node_child *child)
{
    if (!child->ended || child->output >= 0)
        return false;
    if (child->pass == 0)
        child->pass = self->mirror.begun + 1;
    return self->mirror.finished >= child->pass;
}

void node_children_tend(struct node *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        struct node_child *child = self->children[i];
        if (!child->ended && process_ended(&child->process, &child->status)) {
            child->ended = true;
            report_exit(self, child->id);
        }
    }
    forward_all(self);
    for (uint32_t i = 0; i < self->n;) {
        struct node_child *child = self->children[i];
        if (!is_done(self, child)) {
            i++;
            continue;
        }
        report_end(self, child->id, child->status, child->text);
        free(child);
        self->children[i] = self->children[--self->n];
    }
}

static struct json_object *usage_row(const struct node_child *child)
{
    struct process_usage usage;
    if (child->ended || !process_usage(&child->process, &usage))
        return NULL;
    struct json_object *row = json_object_new_array();
    if (!row)
        return NULL;
    json_object_array_add(row, json_object_new_int64(child->id));
    json_object_array_add(row, json_object_new_int64(usage.cpu_ns));
    json_object_array_add(row, json_object_new_int64((int64_t)usage.memory));
    json_object_array_add(row, json_object_new_boolean(usage.stopped));
    return row;
}

uint32_t node_children_usage(struct node *self, uint32_t from, struct json_object *line)
{
    struct json_object *list = json_object_new_array();
    uint32_t at = from;
    for (; list && at < self->n && at - from < USAGE_ROWS; at++) {
        struct json_object *row = usage_row(self->children[at]);
        if (row)
            json_object_array_add(list, row);
    }
    if (line && list)
        json_object_object_add(line, "list", list);
    else
        json_object_put(list);
    return list ? at : self->n;
}

void node_children_end(struct node *self)
{
    bool left = true;
    for (uint32_t i = 0; i < self->n; i++)
        process_kill(&self->children[i]->process);
    for (int turn = 0; left && turn < END_TURNS; turn++) {
        left = false;
        for (uint32_t i = 0; i < self->n; i++) {
            struct node_child *child = self->children[i];
            if (!child->ended && !process_ended(&child->process, &child->status))
                left = true;
            else
                child->ended = true;
        }
        if (left)
            nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
    }
    for (uint32_t i = 0; i < self->n; i++) {
        if (self->children[i]->output >= 0)
            close(self->children[i]->output);
        free(self->children[i]);
    }
    free(self->children);
    self->children = NULL;
    self->n = 0;
}
