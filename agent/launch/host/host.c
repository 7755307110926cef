/* The life of one connection. The carrier is started, the agent behind it answers "ready", both sides speak at least once a second,
 * and the end of the carrier or silence makes the host lost. A carrier whose connection is closed gets a moment to end in order;
 * then it is killed. Nothing that a node agent says is believed: a damaged line is left out, and files stay in the run's folder. */
#include "agent/launch/host/host.h"

#include <assert.h>
#include <czmq.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/host/carrier.h"
#include "agent/launch/host/host_file.h"
#include "agent/launch/host/host_line.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

#define LEASE_NS (15 * NS_PER_S)
/* From the carrier's start to the agent's answer; the second if programs are packed and sent first. */
#define CONNECT_NS (120 * NS_PER_S)
#define SEND_NS (900 * NS_PER_S)
/* Bytes that wait between two calls of host_tend, if the kernel allows it: this bounds the rate of files and output. */
#define PIPE_BYTES (512 * 1024)
#define PING_NS NS_PER_S
#define LEAVE_NS (2 * NS_PER_S)       /* for a carrier to end after its connection was closed */
#define STATUS_NS (500 * NS_PER_MS)   /* for its exit status and last words to arrive after its output ended */
#define KILL_NS (5 * NS_PER_S)        /* for a killed carrier to be gone: otherwise it stays a zombie */
#define DESTROY_NS (1500 * NS_PER_MS) /* for the carrier to end when the host is destroyed */
/* Bytes that are read from one host in one call: the launcher has more to do. */
#define READ_MOST (2u * 1024 * 1024)
/* More than this in one call: files or output are on their way, and the next look should come soon. */
#define READ_BUSY (64u * 1024)
/* Fillings of the writer's queue in one call. */
#define ROUNDS_MOST 8
/* What processes of one host may write at home. A learner saves its whole state, and snapshots of it. */
#define FILES_MOST 65536u
#define BYTES_MOST (INT64_C(64) << 30)
/* After the end of a process its files may still come: a copy at home that does not fit is sent again. */
#define LINGER_NS (15 * NS_PER_S)

/* A process there. Its struct process may be anywhere, so it is known by its number. */
struct host_process {
    uint32_t number; /* 0: the launcher has heard of its end */
    int64_t left_ns; /* ... at this time */
    char name[64];   /* "": its connection is lost, and so are its files */
    char log[512];
    pid_t pid;   /* 0: not known yet */
    bool exited; /* there; its last output and files are on their way */
    bool ended;
    int status;
    struct process_usage usage; /* if pid is known */
};

/* A line, or a file that is read piece by piece as the queue has room. They leave in order. */
struct host_parcel {
    struct text line;
    struct host_file file; /* fd is -1: a line */
};

struct host {
    struct process_place place; /* must be first */
    struct host_info info;
    struct words command; /* of the carrier */
    char here[HOST_PATH];
    struct guard *guard;
    int64_t lease_ns;
    int64_t since_ns; /* of the state */

    struct process carrier;
    int64_t leave_by_ns;       /* a carrier whose connection is closed is killed then; 0: the connection is in use */
    int carrier_status;        /* valid if the carrier has ended while the connection was in use */
    int64_t eof_ns;            /* when the node agent's output ended; 0: not yet */
    struct host_writer writer; /* into the carrier's standard input; closed: there is no connection */
    struct host_reader reader, errors; /* its standard output and standard error */
    struct host_noise noise;
    int64_t heard_ns, tended_ns, pinged_ns;

    zlistx_t *parcels;
    struct host_folder folder;
    bool refused; /* this connection has sent a file that is not taken, and the log says so */
    struct host_process *processes;
    uint32_t n_processes, numbers;
    bool probing;
};

const char *const host_state_names[HOST_STATES] = {
    [HOST_ABSENT] = "absent", [HOST_CONNECTING] = "connecting", [HOST_READY] = "ready", [HOST_LOST] = "lost"};

/* The node agent tells from SSH_CONNECTION how it sees the launcher's machine. That of the launcher's own login is about another
 * connection, and must not get there by a carrier that is not ssh. */
static const char *const carrier_environment[] = {"SSH_CONNECTION=", NULL};

/* False also while the next connection waits for the end of the last carrier. */
static bool is_open(const struct host *self)
{
    return self->writer.fd >= 0;
}

static void set_state(struct host *self, enum host_state state, int64_t now_ns)
{
    self->info.state = state;
    self->since_ns = now_ns;
    if (state == HOST_READY || state == HOST_ABSENT)
        self->info.reason[0] = '\0';
}

/* ---- processes there ---- */

/* True if the name begins with the word, which ends there or goes on with a dot or below. */
static bool begins(const char *name, const char *word)
{
    size_t length = strlen(word);
    return strncmp(name, word, length) == 0 && strchr("./", name[length]) != NULL; /* also if it ends there */
}

/* True if no file of a process is taken any more. */
static bool is_over(const struct host *self, const struct host_process *process)
{
    return process->number == 0 && self->heard_ns - process->left_ns > LINGER_NS;
}

/* Returns true if the file belongs to a process that runs there: NAME.*, NAME/, tb/NAME, each also below profile/X/; of learners, also what
 * they save (learner.*, snapshots/). */
static bool owns(const struct host *self, const char *file)
{
    const char *below = strncmp(file, "profile/", 8) == 0 ? strchr(file + 8, '/') : NULL;
    file = below ? below + 1 : file;
    const char *shown = strncmp(file, "tb/", 3) == 0 ? file + 3 : file;
    for (uint32_t i = 0; i < self->n_processes; i++) {
        const struct host_process *process = &self->processes[i];
        if (process->name[0] && !is_over(self, process) &&
            (begins(shown, process->name) ||
             (strncmp(process->name, "learner", 7) == 0 && (begins(file, "learner") || begins(file, "snapshots")))))
            return true;
    }
    return false;
}

static struct host_process *find_process(struct host *self, int64_t number)
{
    for (uint32_t i = 0; i < self->n_processes; i++)
        if (number != 0 && self->processes[i].number == number)
            return &self->processes[i];
    return NULL;
}

static struct host_process *add_process(struct host *self)
{
    struct host_process *process = NULL;
    for (uint32_t i = 0; i < self->n_processes && !process; i++)
        if (is_over(self, &self->processes[i]))
            process = &self->processes[i];
    if (!process) {
        self->processes = need_resize(self->processes, self->n_processes + 1, sizeof *self->processes);
        process = &self->processes[self->n_processes++];
    }
    *process = (struct host_process){.number = ++self->numbers};
    return process;
}

/* ---- the end of a connection ---- */

static void parcel_destroy(void **item)
{
    struct host_parcel *parcel = *item;
    host_file_close(&parcel->file);
    text_fini(&parcel->line);
    free(parcel);
    *item = NULL;
}

/* Closes the connection: all processes there are lost. The carrier sees the end of its input and ends by itself, or is
 * killed a little later. */
static void disconnect(struct host *self, int64_t now_ns)
{
    host_writer_fini(&self->writer);
    host_reader_fini(&self->reader);
    host_reader_fini(&self->errors);
    zlistx_purge(self->parcels);
    host_folder_drop(&self->folder);
    for (uint32_t i = 0; i < self->n_processes; i++) {
        if (!self->processes[i].ended)
            self->processes[i].status = PROCESS_LOST;
        self->processes[i].ended = true;
        self->processes[i].name[0] = '\0';
    }
    if (self->probing)
        self->info.probe = (struct host_probe){.done = true, .text = "the host is lost"};
    self->probing = false;
    self->info.cpu = 0;
    self->info.round_trip_ns = 0;
    self->info.busy = false;
    self->leave_by_ns = now_ns + LEAVE_NS;
}

static void lose(struct host *self, int64_t now_ns, const char *reason)
{
    size_t size = strlen(reason);
    size -= size > 0 && reason[size - 1] == '.'; /* ssh ends some of its sentences with a full stop; ours go on */
    snprintf(self->info.reason, sizeof self->info.reason, "%.*s", (int)size, reason);
    disconnect(self, now_ns);
    set_state(self, HOST_LOST, now_ns);
}

/* ---- what the node agent is told: lines and files, in order ---- */

/* Queues a line, and the bytes that follow it, behind the files and lines before it. */
static void send_line(struct host *self, const struct host_line *line, const struct text *bytes)
{
    struct host_parcel *parcel = need_alloc(sizeof *parcel);
    parcel->file.fd = -1;
    host_line_write(&parcel->line, line, bytes ? bytes->data : NULL, bytes ? bytes->size : 0);
    parcel->line.failed |= bytes && bytes->failed;
    zlistx_add_end(self->parcels, parcel);
}

/* Writes parcels, files piece by piece, as long as the carrier takes them. */
static void feed(struct host *self)
{
    struct host_parcel *parcel;
    for (int round = 0; round < ROUNDS_MOST; round++) {
        while (host_writer_room(&self->writer) && (parcel = zlistx_first(self->parcels))) {
            if (parcel->file.fd < 0)
                host_writer_add(&self->writer, &parcel->line);
            if (parcel->file.fd < 0 || !host_file_send(&parcel->file, &self->writer))
                zlistx_delete(self->parcels, zlistx_cursor(self->parcels));
        }
        host_writer_flush(&self->writer);
        if (zlistx_size(self->parcels) == 0 || !host_writer_empty(&self->writer))
            return;
    }
}

/* ---- what the node agent says ---- */

static void copy_text(char *out, size_t size, const char *text)
{
    host_line_clean(out, size, text ? text : "", text ? strlen(text) : 0);
}

/* Copies a path; one that is too long is left out. */
static void copy_path(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%s", text && text[0] == '/' && strlen(text) < size ? text : "");
}

/* A number that is missing or out of its bounds becomes the nearest bound. */
static double within(double value, double least, double most)
{
    return fmin(fmax(value, least), most);
}

/* The node agent is there, and wants to know whom it serves. */
static void on_here(void *context, const struct host_message *message)
{
    struct host *self = context;
    char cwd[HOST_PATH];
    (void)message;
    const struct host_line line = {.type = "hello",
                                   .version = rp_version(),
                                   .here = self->here,
                                   .cwd = getcwd(cwd, sizeof cwd),
                                   .lease_ms = self->lease_ns / NS_PER_MS};
    host_writer_put(&self->writer, &line, NULL, 0);
}

static void on_sending(void *context, const struct host_message *message)
{
    struct host *self = context;
    (void)message;
    self->info.sent = self->info.state == HOST_CONNECTING;
}

static void on_ready(void *context, const struct host_message *message)
{
    const struct host_line *line = message->line;
    struct host *self = context;
    struct host_facts *facts = &self->info.facts;
    char version[64];
    if (self->info.state != HOST_CONNECTING)
        return;
    copy_text(version, sizeof version, line->version);
    if (strcmp(version, rp_version()) != 0) {
        char reason[256];
        snprintf(reason, sizeof reason,
                 "replay-launch there has version %s, here %s: both machines need the same version", version,
                 rp_version());
        lose(self, clock_ns(), reason);
        return;
    }
    *facts = (struct host_facts){
        .cores = within(line->cores, 0.01, 1e6), .memory = within(line->memory, 0, 1e18), .python = line->python};
    copy_text(facts->hostname, sizeof facts->hostname, line->hostname);
    copy_text(facts->model, sizeof facts->model, line->model);
    copy_text(facts->address, sizeof facts->address, line->address);
    copy_path(facts->work, sizeof facts->work, line->work);
    copy_path(facts->programs, sizeof facts->programs, line->programs);
    copy_path(facts->here, sizeof facts->here, line->here);
    self->noise = (struct host_noise){0}; /* what a login prints is no reason for a later loss */
    self->info.times++;
    set_state(self, HOST_READY, clock_ns());
}

static void append_log(const struct host_process *process, const void *bytes, size_t size)
{
    int fd = open(process->log, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    io_write(fd, bytes, size, IO_HERE); /* a full disk: the output is lost, as it would be at home */
    close(fd);
}

static void on_process(void *context, const struct host_message *message)
{
    const struct host_line *line = message->line;
    struct host_process *process = find_process(context, line->id);
    if (!process || line->pid <= 0 || line->pid > INT32_MAX)
        return;
    process->pid = (pid_t)line->pid;
    process->exited = line->exited;
    process->usage = (struct process_usage){.cpu_ns = line->cpu_ns > 0 ? line->cpu_ns : 0,
                                            .memory = (uint64_t)within(line->memory, 0, 1e18),
                                            .stopped = line->stopped};
}

static void on_output(void *context, const struct host_message *message)
{
    struct host *self = context;
    const struct host_process *process = find_process(self, message->line->id);
    self->info.moved_ns = self->heard_ns;
    if (process && !process->ended)
        append_log(process, message->bytes, message->size);
}

static void on_ended(void *context, const struct host_message *message)
{
    const char *text = message->line->text;
    struct host_process *process = find_process(context, message->line->id);
    if (!process || process->ended)
        return;
    if (text && text[0]) {
        append_log(process, text, strlen(text));
        append_log(process, "\n", 1);
    }
    process->status = (int)(message->line->status & UINT16_MAX);
    process->ended = true;
}

static void on_load(void *context, const struct host_message *message)
{
    struct host *self = context;
    self->info.cpu = within(message->line->cpu, 0, 1e6);
}

/* Logs the first file of a connection that is not taken. */
static void say_refused(struct host *self, const char *name, const char *why)
{
    char quoted[2 * HOST_FILE_NAME];
    if (self->refused)
        return;
    self->refused = true;
    log_line(LEVEL_WARN, "A0438", "a file of a host is not taken", "host=%s file=%s why=\"%s\"", self->info.name,
             log_quote(quoted, sizeof quoted, name), why);
}

static void on_file(void *context, const struct host_message *message)
{
    struct host *self = context;
    rp_error err = {0};
    const char *name = message->line->name;
    if (name && !owns(self, name)) {
        say_refused(self, name, "it belongs to no process there: names begin with that of their process");
        return;
    }
    self->info.moved_ns = self->heard_ns;
    rp_status status = host_folder_take(&self->folder, message, 0666, NULL, &err);
    if (status ==
        RP_FAILED_PRECONDITION) /* it does not fit the copy here: the agent sends the file from its beginning */
        send_line(self, &(struct host_line){.type = "again", .name = name}, NULL);
    if (status == RP_RESOURCE_EXHAUSTED)
        say_refused(self, name, err.text);
}

static void on_probed(void *context, const struct host_message *message)
{
    struct host *self = context;
    const struct host_line *line = message->line;
    if (!self->probing)
        return;
    self->probing = false;
    self->info.probe = (struct host_probe){.done = true, .ok = line->ok, .ns = line->ns > 0 ? line->ns : 0};
    copy_text(self->info.probe.text, sizeof self->info.probe.text, line->text);
    if (self->info.probe.ok)
        self->info.round_trip_ns = self->info.probe.ns;
}

static const struct host_line_handler handlers[] = {
    {"here", on_here}, {"sending", on_sending}, {"ready", on_ready}, {"process", on_process}, {"output", on_output},
    {"file", on_file}, {"ended", on_ended},     {"load", on_load},   {"probed", on_probed},   {0},
};

/* Reads what the carrier has written to its standard error. */
static void read_errors(struct host *self)
{
    struct host_message message;
    for (size_t total = 0, n = 1; total < READ_MOST && n > 0; total += n) {
        n = host_reader_fill(&self->errors); /* 0 at the end, too, where a last line may have no end */
        while (host_reader_next(&self->errors, &message))
            ;
    }
}

/* Reads and handles lines. False: the output of the agent has ended. */
static bool read_lines(struct host *self)
{
    struct host_message message;
    size_t total = 0;
    read_errors(self);
    for (size_t n = 1; total < READ_MOST && n > 0; total += n) {
        n = host_reader_fill(&self->reader);
        while (host_reader_next(&self->reader, &message)) {
            self->heard_ns = clock_ns();
            host_line_dispatch(handlers, self, &message);
        }
    }
    self->info.busy = total > READ_BUSY;
    return !self->reader.ended;
}

/* ---- open ---- */

/* Makes the pipe of a standard stream; our end does not block. */
static bool make_pipe(int stream, int *ours, int *theirs)
{
    int ends[2], our = stream == STDIN_FILENO;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    *ours = ends[our];
    *theirs = ends[!our];
    if (stream != STDERR_FILENO)
        fcntl(*ours, F_SETPIPE_SZ, PIPE_BYTES);
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

static void connect_now(struct host *self, int64_t now_ns)
{
    rp_error err = {0};
    bool piped = true;
    int ours[3] = {-1, -1, -1}, theirs[3] = {-1, -1, -1};
    const struct process_options options = {.name = self->info.name,
                                            .argv = (const char *const *)self->command.list,
                                            .environment = carrier_environment,
                                            .streams = theirs,
                                            .guard = self->guard};
    for (int i = 0; i < 3; i++)
        piped = piped && make_pipe(i, &ours[i], &theirs[i]);
    rp_status status =
        piped ? process_start(&self->carrier, &options, now_ns, &err)
              : err_set(&err, RP_IO, "could not make a pipe for %.100s: %s", self->command.list[0], strerror(errno));
    for (int i = 0; i < 3; i++)
        if (theirs[i] >= 0)
            close(theirs[i]);
    self->noise = (struct host_noise){0};
    self->eof_ns = self->leave_by_ns = self->pinged_ns = self->info.moved_ns = 0;
    self->heard_ns = self->tended_ns = now_ns;
    self->info.busy = self->info.sent = self->refused = false;
    host_writer_init(&self->writer, ours[0]);
    host_reader_init(&self->reader, ours[1], &self->noise);
    host_reader_init(&self->errors, ours[2], &self->noise);
    if (status != RP_OK)
        lose(self, now_ns, err.text);
}

void host_open(struct host *self, int64_t now_ns)
{
    if (self->info.state == HOST_CONNECTING || self->info.state == HOST_READY)
        return;
    set_state(self, HOST_CONNECTING, now_ns);
    if (!self->carrier.running)
        connect_now(self, now_ns);
}

/* ---- tend ---- */

/* True if the carrier has ended; what it has left behind is killed then. */
static bool is_gone(struct host *self)
{
    return !self->carrier.running || process_ended(&self->carrier, &self->carrier_status);
}

/* The output of the agent has ended: the carrier's last words and its exit status say why. */
static void on_eof(struct host *self, int64_t now_ns)
{
    char noise[300], status[100], advice[200], reason[sizeof self->info.reason];
    bool gone = is_gone(self);
    if (self->eof_ns == 0)
        self->eof_ns = now_ns;
    if (!gone && now_ns - self->eof_ns < STATUS_NS)
        return;
    read_errors(self); /* the carrier's last words may have come between the last look and its end */
    host_noise_text(&self->noise, noise, sizeof noise);
    carrier_advice(noise, self->info.name, advice, sizeof advice);
    snprintf(reason, sizeof reason, "%s%s%s", noise[0] ? noise : "the connection has ended", advice[0] ? ": " : "",
             advice);
    if (!noise[0] && gone)
        snprintf(reason, sizeof reason, "the connection has ended: %.100s: %s", self->command.list[0],
                 process_describe(self->carrier_status, status, sizeof status));
    lose(self, now_ns, reason);
}

static void check_silence(struct host *self, int64_t now_ns)
{
    char noise[300], reason[sizeof self->info.reason];
    bool ready = self->info.state == HOST_READY;
    int64_t most = ready ? self->lease_ns : self->info.sent ? SEND_NS : CONNECT_NS;
    int64_t silent = now_ns - (ready ? self->heard_ns : self->since_ns);
    /* A launcher that was stopped itself has not listened. */
    if (now_ns - self->tended_ns > self->lease_ns / 2)
        self->heard_ns = now_ns;
    else if (silent > most) {
        host_noise_text(&self->noise, noise, sizeof noise);
        snprintf(reason, sizeof reason, "no answer for %.0f s%s%s%s", (double)silent * 1e-9,
                 ready ? "; its processes are killed there" : "", noise[0] ? ": " : "", noise);
        lose(self, now_ns, reason);
    }
}

void host_tend(struct host *self, int64_t now_ns)
{
    if (!is_open(self)) {
        if (!is_gone(self) && now_ns >= self->leave_by_ns)
            process_kill(&self->carrier);
        if (self->info.state == HOST_CONNECTING && !self->carrier.running)
            connect_now(self, now_ns);
        return;
    }
    bool more = read_lines(self);
    if (!is_open(self))
        return;
    if (!more || is_gone(self)) { /* gone: something that the carrier has started holds its output */
        on_eof(self, now_ns);
        return;
    }
    check_silence(self, now_ns);
    if (!is_open(self))
        return;
    self->tended_ns = now_ns;
    int64_t every = self->lease_ns / 4 < PING_NS ? self->lease_ns / 4 : PING_NS;
    if (self->info.state == HOST_READY && now_ns - self->pinged_ns >= every) {
        self->pinged_ns = now_ns;
        host_writer_put(&self->writer, &(struct host_line){.type = "ping"}, NULL, 0);
    }
    feed(self);
    if (self->writer.broken)
        on_eof(self, now_ns);
}

/* ---- close ---- */

void host_close(struct host *self)
{
    if (is_open(self)) {
        host_writer_put(&self->writer, &(struct host_line){.type = "bye"}, NULL, 0);
        host_writer_flush(&self->writer);
        disconnect(self, clock_ns());
    }
    set_state(self, HOST_ABSENT, clock_ns());
}

bool host_set_carrier(struct host *self, const char *const *carrier)
{
    size_t n = 0;
    char **command = self->command.list;
    while (command[n] && carrier[n] && strcmp(command[n], carrier[n]) == 0)
        n++;
    if (!command[n] && !carrier[n])
        return false;
    host_close(self);
    words_clear(&self->command);
    words_add_list(&self->command, carrier);
    return true;
}

void host_destroy(struct host **self)
{
    struct host *host = *self;
    *self = NULL;
    if (!host)
        return;
    host_close(host);
    /* A carrier that does not end is killed after a while, which counts from the end of the connection: many hosts that
     * were closed together end together. */
    int64_t start = clock_ns(), by = host->leave_by_ns - LEAVE_NS + DESTROY_NS,
            give_up = (by > start ? by : start) + KILL_NS;
    while (!is_gone(host) && clock_ns() < give_up) {
        if (clock_ns() >= by)
            process_kill(&host->carrier);
        nanosleep(&(struct timespec){.tv_nsec = 2 * NS_PER_MS}, NULL);
    }
    host_folder_drop(&host->folder);
    words_clear(&host->command);
    zlistx_destroy(&host->parcels);
    free(host->processes);
    free(host);
}

/* ---- the place of processes there ---- */

static rp_status start_there(struct process_place *place, struct process *process,
                             const struct process_options *options, rp_error *err)
{
    struct host *self = (struct host *)place;
    if (self->info.state != HOST_READY)
        return err_set(err, RP_UNAVAILABLE, "%s cannot be started: host %s is %s", process->name, self->info.name,
                       host_state_names[self->info.state]);
    struct text words = {0};
    int64_t n = 0;
    for (const char *const *word = options->argv; *word; word++, n++)
        text_put(&words, *word, strlen(*word) + 1);
    for (const char *const *word = options->environment; word && *word; word++)
        text_put(&words, *word, strlen(*word) + 1);
    if (words.size > HOST_DATA_MOST) {
        text_fini(&words);
        return err_set(err, RP_INVALID_ARGUMENT,
                       "%s cannot be started on host %s: its arguments and environment are longer than %u bytes",
                       process->name, self->info.name, HOST_DATA_MOST);
    }
    struct host_process *entry = add_process(self);
    snprintf(entry->log, sizeof entry->log, "%s", process->log);
    snprintf(entry->name, sizeof entry->name, "%s", process->name);
    host_send_files(self, process->name, NULL, NULL); /* it goes on with them, wherever it ran before */
    send_line(self, &(struct host_line){.type = "start", .id = entry->number, .name = process->name, .words = n},
              &words);
    text_fini(&words);
    process->number = entry->number;
    return RP_OK;
}

static bool ended(struct process_place *place, struct process *process, int *status)
{
    struct host *self = (struct host *)place;
    struct host_process *entry = find_process(self, process->number);
    *status = PROCESS_LOST;
    if (!entry)
        return true;
    process->pid = entry->pid;
    process->exited = entry->exited;
    if (!entry->ended)
        return false;
    *status = entry->status;
    entry->number = 0;
    entry->left_ns = self->heard_ns;
    return true;
}

static void end_there(struct process_place *place, const struct process *process, bool kill)
{
    struct host *self = (struct host *)place;
    if (self->info.state != HOST_READY)
        return;
    send_line(self, &(struct host_line){.type = "end", .id = process->number, .kill = kill}, NULL);
}

static bool usage(struct process_place *place, const struct process *process, struct process_usage *out)
{
    const struct host_process *entry = find_process((struct host *)place, process->number);
    if (!entry || entry->pid == 0 || entry->exited)
        return false;
    *out = entry->usage;
    return true;
}

struct process_place *host_place(struct host *self)
{
    return &self->place;
}

struct host *host_new(const struct host_options *options)
{
    struct host *self = need_alloc(sizeof *self);
    assert(options->carrier[0]);
    self->place = (struct process_place){.start = start_there, .ended = ended, .end = end_there, .usage = usage};
    words_add_list(&self->command, options->carrier);
    self->guard = options->guard;
    self->lease_ns = options->lease_ns > 0 ? options->lease_ns : LEASE_NS;
    self->writer.fd = self->reader.fd = self->errors.fd = -1;
    self->parcels = zlistx_new();
    zlistx_set_destructor(self->parcels, parcel_destroy);
    self->since_ns = clock_ns();
    snprintf(self->info.name, sizeof self->info.name, "%s", options->name);
    snprintf(self->here, sizeof self->here, "%s", options->here ? options->here : "");
    host_folder_init(&self->folder, options->folder, self->info.name);
    self->folder.files_most = FILES_MOST;
    self->folder.bytes_most = BYTES_MOST;
    return self;
}

/* ---- questions ---- */

static rp_status need_ready(const struct host *self, rp_error *err)
{
    return self->info.state == HOST_READY
               ? RP_OK
               : err_set(err, RP_UNAVAILABLE, "host %s is %s", self->info.name, host_state_names[self->info.state]);
}

rp_status host_send_file(struct host *self, const char *path, const char *name, rp_error *err)
{
    RP_TRY(need_ready(self, err));
    struct host_parcel *parcel = need_alloc(sizeof *parcel);
    rp_status status = host_file_open(&parcel->file, path, name, 0, err);
    if (status == RP_OK)
        zlistx_add_end(self->parcels, parcel);
    else
        free(parcel);
    return status;
}

void host_send_files(struct host *self, const char *name, host_unsent *failed, void *context)
{
    size_t length = strlen(name);
    DIR *folder = opendir(self->folder.path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[1024];
        rp_error err = {0};
        if (strncmp(entry->d_name, name, length) != 0 || entry->d_name[length] != '.' ||
            text_ends(entry->d_name, ".tmp"))
            continue;
        snprintf(path, sizeof path, "%s/%s", self->folder.path, entry->d_name);
        rp_status status = host_send_file(self, path, entry->d_name, &err);
        if (status != RP_OK && status != RP_NOT_FOUND && failed)
            failed(context, self->info.name, entry->d_name, &err);
    }
    if (folder)
        closedir(folder);
}

rp_status host_probe(struct host *self, const char *endpoint, rp_error *err)
{
    RP_TRY(need_ready(self, err));
    self->info.probe = (struct host_probe){0};
    self->probing = true;
    send_line(self, &(struct host_line){.type = "probe", .endpoint = endpoint}, NULL);
    return RP_OK;
}

const struct host_info *host_info(const struct host *self)
{
    return &self->info;
}
