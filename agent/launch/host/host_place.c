/* Processes on a host, as struct process_place sees them. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/host/host_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* What processes there may write at home. A learner saves its whole state, and snapshots of it. */
#define FILES_MOST 1024u
#define BYTES_MOST (INT64_C(1) << 30)
#define LEARNER_TIMES 64
/* After the end of a process its files may still come: a copy at home that does not fit is sent again. */
#define LINGER_NS (15 * NS_PER_S)

static bool is_learner(const char *process)
{
    return strncmp(process, "learner", 7) == 0;
}

/* True if the name begins with the word, which ends there or goes on with a dot or below. */
static bool begins(const char *name, const char *word)
{
    size_t length = strlen(word);
    return strncmp(name, word, length) == 0 && strchr("./", name[length]) != NULL; /* also if it ends there */
}

static bool is_over(const struct host *self, const struct host_process *process)
{
    return process->number == 0 && self->heard_ns - process->left_ns > LINGER_NS;
}

bool host_place_owns(const struct host *self, const char *file)
{
    const char *below = strncmp(file, "profile/", 8) == 0 ? strchr(file + 8, '/') : NULL;
    file = below ? below + 1 : file;
    const char *shown = strncmp(file, "tb/", 3) == 0 ? file + 3 : file;
    for (uint32_t i = 0; i < self->n_processes; i++) {
        const struct host_process *process = &self->processes[i];
        if (process->name[0] && !is_over(self, process) &&
            (begins(shown, process->name) ||
             (is_learner(process->name) && (begins(file, "learner") || begins(file, "snapshots")))))
            return true;
    }
    return false;
}

/* Lets the host write as much as the most processes that were there at once may. */
static void allot(struct host *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_processes; i++)
        n += self->processes[i].number == 0 ? 0 : is_learner(self->processes[i].name) ? LEARNER_TIMES : 1;
    bool first = self->folder.files_most == UINT32_MAX;
    if (first || n * FILES_MOST > self->folder.files_most) {
        self->folder.files_most = n * FILES_MOST;
        self->folder.bytes_most = n * BYTES_MOST;
    }
}

struct host_process *host_place_find(struct host *self, uint32_t number)
{
    for (uint32_t i = 0; i < self->n_processes; i++)
        if (number != 0 && self->processes[i].number == number)
            return &self->processes[i];
    return NULL;
}

static struct host_process *add(struct host *self)
{
    for (uint32_t i = 0; i < self->n_processes; i++)
        if (is_over(self, &self->processes[i])) {
            self->processes[i] = (struct host_process){.number = ++self->numbers};
            return &self->processes[i];
        }
    if (self->n_processes == self->process_capacity) {
        uint32_t capacity = self->process_capacity ? 2 * self->process_capacity : 16;
        struct host_process *more = realloc(self->processes, capacity * sizeof *more);
        if (!more)
            return NULL;
        self->processes = more;
        self->process_capacity = capacity;
    }
    struct host_process *process = &self->processes[self->n_processes++];
    *process = (struct host_process){.number = ++self->numbers};
    return process;
}

static void forget(const struct host *self, struct host_process *process)
{
    process->number = 0;
    process->left_ns = self->heard_ns;
}

void host_place_lose(struct host *self)
{
    for (uint32_t i = 0; i < self->n_processes; i++) {
        if (!self->processes[i].ended)
            self->processes[i].status = PROCESS_LOST;
        self->processes[i].ended = true;
        self->processes[i].name[0] = '\0';
    }
}

/* A process goes on with its own files (NAME.jsonl, NAME.csv), wherever it ran before: they are sent ahead of it. The agent
 * removes others of that name, so the list goes along. */
static struct json_object *send_own_files(struct host *self, const char *name)
{
    struct json_object *list = json_object_new_array();
    size_t length = strlen(name);
    DIR *folder = opendir(self->folder.path);
    for (const struct dirent *entry; list && folder && (entry = readdir(folder));) {
        char path[1024];
        size_t whole = strlen(entry->d_name);
        bool temporary = whole > 4 && strcmp(entry->d_name + whole - 4, ".tmp") == 0;
        if (strncmp(entry->d_name, name, length) != 0 || entry->d_name[length] != '.' || temporary)
            continue;
        snprintf(path, sizeof path, "%s/%s", self->folder.path, entry->d_name);
        if (host_out_file(self, path, entry->d_name, NULL) == RP_OK)
            json_object_array_add(list, json_object_new_string(entry->d_name));
    }
    if (folder)
        closedir(folder);
    return list;
}

static rp_status start(struct process_place *place, struct process *process, const struct process_options *options,
                       rp_error *err)
{
    struct host *self = (struct host *)place;
    if (self->state != HOST_READY)
        return err_set(err, RP_UNAVAILABLE, "%s cannot be started: host %s is %s", process->name, self->name,
                       host_state_names[self->state]);
    struct host_process *entry = add(self);
    if (!entry)
        return err_set(err, RP_NO_MEMORY, "no memory for the process %s", process->name);
    snprintf(entry->log, sizeof entry->log, "%s", process->log);
    snprintf(entry->name, sizeof entry->name, "%s", process->name);
    allot(self);
    struct json_object *line = host_line_new("start");
    host_line_add_number(line, "id", entry->number);
    host_line_add_text(line, "name", process->name);
    host_line_add_list(line, "argv", options->argv);
    host_line_add_list(line, "env", options->environment);
    if (line)
        json_object_object_add(line, "files", send_own_files(self, process->name));
    if (!host_out_line(self, line)) {
        forget(self, entry);
        return err_set(err, RP_INVALID_ARGUMENT,
                       "%s cannot be started on host %s: its arguments and environment are longer than %u bytes",
                       process->name, self->name, HOST_LINE_MOST);
    }
    process->number = entry->number;
    return RP_OK;
}

static bool ended(struct process_place *place, struct process *process, int *status)
{
    struct host *self = (struct host *)place;
    struct host_process *entry = host_place_find(self, process->number);
    *status = PROCESS_LOST;
    if (!entry)
        return true;
    process->pid = entry->pid;
    process->exited = entry->exited;
    if (!entry->ended)
        return false;
    *status = entry->status;
    forget(self, entry);
    return true;
}

static void tell(struct process_place *place, const struct process *process, const char *what)
{
    struct host *self = (struct host *)place;
    if (self->state != HOST_READY)
        return;
    struct json_object *line = host_line_new(what);
    host_line_add_number(line, "id", process->number);
    host_out_line(self, line);
}

static void ask(struct process_place *place, const struct process *process)
{
    tell(place, process, "ask");
}

static void kill_process(struct process_place *place, const struct process *process)
{
    tell(place, process, "kill");
}

static bool usage(struct process_place *place, const struct process *process, struct process_usage *out)
{
    const struct host_process *entry = host_place_find((struct host *)place, process->number);
    if (!entry || !entry->has_usage || entry->exited)
        return false;
    *out = entry->usage;
    return true;
}

void host_place_init(struct host *self)
{
    self->place =
        (struct process_place){.start = start, .ended = ended, .ask = ask, .kill = kill_process, .usage = usage};
}

struct process_place *host_place(struct host *self)
{
    return &self->place;
}
