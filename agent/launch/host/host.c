/* The life of one connection. The carrier is started, the agent behind it answers "ready", both sides speak at least once a second,
 * and the end of the carrier or silence makes the host lost. A carrier whose connection is closed gets a moment to end in order;
 * then it is killed. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/config/config.h"
#include "agent/launch/host/carrier.h"
#include "agent/launch/host/host_impl.h"
#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"

#define LEASE_NS (15 * NS_PER_S)
#define CONNECT_NS (120 * NS_PER_S) /* from the carrier's start to the agent's answer: programs may be sent first */
/* Bytes that wait between two calls of host_tend, if the kernel allows it: this bounds the rate of files and output. */
#define PIPE_BYTES (512 * 1024)
#define PING_NS NS_PER_S
#define LEAVE_NS (2 * NS_PER_S)       /* for a carrier to end after its connection was closed */
#define STATUS_NS (500 * NS_PER_MS)   /* for its exit status and last words to arrive after its output ended */
#define KILL_NS (500 * NS_PER_MS)     /* for a killed carrier to be gone */
#define DESTROY_NS (1500 * NS_PER_MS) /* for the carrier to end when the host is destroyed */

const char *const host_state_names[HOST_STATES] = {
    [HOST_ABSENT] = "absent", [HOST_CONNECTING] = "connecting", [HOST_READY] = "ready", [HOST_LOST] = "lost"};

/* The node agent tells from SSH_CONNECTION how it sees the launcher's machine. That of the launcher's own login is about another
 * connection, and must not get there by a carrier that is not ssh. */
static const char *const carrier_environment[] = {"SSH_CONNECTION=", NULL};

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- new and destroy ---- */

static void free_list(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

/* NULL: no memory. */
static char **copy_list(const char *const *list)
{
    size_t n = 0;
    while (list[n])
        n++;
    char **copy = calloc(n + 1, sizeof *copy);
    for (size_t i = 0; copy && i < n; i++) {
        copy[i] = strdup(list[i]);
        if (!copy[i]) {
            free_list(copy);
            return NULL;
        }
    }
    return copy;
}

struct host *host_new(const struct host_options *options, rp_error *err)
{
    struct host *self = calloc(1, sizeof *self);
    char **carrier = self ? copy_list(options->carrier) : NULL;
    if (!carrier || !carrier[0]) {
        err_fill(err, carrier ? RP_INVALID_ARGUMENT : RP_NO_MEMORY,
                 carrier ? "host %s has no command that leads to it" : "no memory for host %s", options->name);
        free_list(carrier);
        free(self);
        return NULL;
    }
    self->carrier = carrier;
    self->guard = options->guard;
    self->lease_ns = options->lease_ns > 0 ? options->lease_ns : LEASE_NS;
    self->in = self->out = self->err = self->sending.fd = -1;
    self->sending.bundle = options->bundle;
    self->last = &self->first;
    self->since_ns = now();
    snprintf(self->name, sizeof self->name, "%s", options->name);
    snprintf(self->here, sizeof self->here, "%s", options->here ? options->here : "");
    host_folder_init(&self->folder, options->folder, self->name);
    host_place_init(self);
    return self;
}

static bool reap(struct host *self, int *status)
{
    siginfo_t info = {0};
    int rc = waitid(P_PID, (id_t)self->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (rc == 0 && info.si_pid == 0)
        return false;
    if (rc == 0)
        kill(-self->pid, SIGKILL); /* what the carrier has left behind */
    guard_tell(self->guard, -(int32_t)self->pid);
    *status = rc == 0 ? spawn_reap(self->pid) : 255 << 8;
    self->pid = 0;
    return true;
}

/* Waits for the carrier's end, and kills the carrier after a while. The time counts from the end of the connection, so many hosts
 * that were closed together end together. */
static void await_carrier(struct host *self)
{
    int status;
    int64_t start = now(), by = self->leave_by_ns - LEAVE_NS + DESTROY_NS,
            give_up = (by > start ? by : start) + KILL_NS;
    while (self->pid != 0 && !reap(self, &status) && now() < give_up) {
        if (now() >= by)
            kill(-self->pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 2 * NS_PER_MS}, NULL);
    }
}

void host_destroy(struct host **self)
{
    struct host *host = *self;
    *self = NULL;
    if (!host)
        return;
    host_close(host);
    await_carrier(host);
    host_folder_fini(&host->folder);
    free_list(host->carrier);
    free(host->processes);
    free(host);
}

/* ---- state ---- */

void host_set_state(struct host *self, enum host_state state, int64_t now_ns)
{
    self->state = state;
    self->since_ns = now_ns;
    if (state != HOST_LOST)
        self->reason[0] = '\0';
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Closes the connection. The carrier sees the end of its input and ends by itself, or is killed a little later. */
static void disconnect(struct host *self, int64_t now_ns)
{
    close_fd(&self->in);
    close_fd(&self->out);
    close_fd(&self->err);
    host_writer_fini(&self->writer);
    host_reader_fini(&self->reader);
    host_reader_fini(&self->errors);
    host_out_fini(self);
    host_send_end(self);
    host_folder_drop(&self->folder);
    host_place_lose(self);
    struct host_answer *answers[] = {&self->measure, &self->reach};
    for (size_t i = 0; i < 2; i++)
        if (answers[i]->waiting)
            *answers[i] = (struct host_answer){.done = true, .text = "the host is lost"};
    self->load = (struct host_load){0};
    self->leave_by_ns = now_ns + LEAVE_NS;
}

void host_lose(struct host *self, int64_t now_ns, const char *reason)
{
    snprintf(self->reason, sizeof self->reason, "%s", reason);
    disconnect(self, now_ns);
    host_set_state(self, HOST_LOST, now_ns);
}

void host_close(struct host *self)
{
    self->reopen = false;
    if (self->in >= 0) {
        host_writer_put(&self->writer, host_line_new("bye"));
        host_writer_flush(&self->writer);
        disconnect(self, now());
    }
    host_set_state(self, HOST_ABSENT, now());
}

/* ---- open ---- */

static bool make_pipe(int *read_end, int *write_end, bool ours_is_read)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    *read_end = ends[0];
    *write_end = ends[1];
    int ours = ours_is_read ? ends[0] : ends[1];
    return fcntl(ours, F_SETFL, O_NONBLOCK) == 0;
}

static void tell_guard(const void *guard, bool begins)
{
    guard_tell(guard, begins ? (int32_t)getpid() : -(int32_t)getpid());
}

static bool start_carrier(struct host *self, int *error)
{
    int in = -1, out = -1, err = -1;
    bool ok =
        make_pipe(&in, &self->in, false) && make_pipe(&self->out, &out, true) && make_pipe(&self->err, &err, true);
    *error = errno;
    fcntl(self->in, F_SETPIPE_SZ, PIPE_BYTES);
    fcntl(self->out, F_SETPIPE_SZ, PIPE_BYTES);
    const struct spawn spawn = {.argv = (const char *const *)self->carrier,
                                .environment = carrier_environment,
                                .in = in,
                                .out = out,
                                .err = err,
                                .dies_with_us = true,
                                .in_child = tell_guard,
                                .ctx = self->guard};
    self->pid = ok ? spawn_start(&spawn, error) : -1;
    close_fd(&in);
    close_fd(&out);
    close_fd(&err);
    if (self->pid > 0)
        return true;
    self->pid = 0;
    return false;
}

void host_say_hello(struct host *self)
{
    char cwd[HOST_PATH];
    struct json_object *line = host_line_new("hello");
    host_line_add_number(line, "protocol", HOST_PROTOCOL);
    host_line_add_text(line, "version", rp_version());
    host_line_add_text(line, "here", self->here);
    host_line_add_text(line, "cwd", getcwd(cwd, sizeof cwd) ? cwd : "");
    host_line_add_number(line, "lease_ms", self->lease_ns / NS_PER_MS);
    host_writer_put(&self->writer, line);
    host_writer_flush(&self->writer);
}

static void connect_now(struct host *self, int64_t now_ns)
{
    int error = 0;
    char reason[256];
    self->reopen = false;
    if (!start_carrier(self, &error)) {
        snprintf(reason, sizeof reason, "could not start %.100s: %s", self->carrier[0], strerror(error));
        host_lose(self, now_ns, reason);
        return;
    }
    self->noise = (struct host_noise){0};
    self->eof_ns = self->leave_by_ns = 0;
    self->heard_ns = self->tended_ns = now_ns;
    self->busy = self->refused = false;
    self->pinged_ns = self->moved_ns = self->sending.sent = self->sending.moved_ns = 0;
    host_writer_init(&self->writer, self->in);
    if (!host_reader_init(&self->reader, self->out, &self->noise) ||
        !host_reader_init(&self->errors, self->err, &self->noise)) {
        host_lose(self, now_ns, "no memory for the connection");
        return;
    }
    host_say_hello(self);
}

void host_open(struct host *self, int64_t now_ns)
{
    if (self->in >= 0 || self->reopen)
        return;
    host_set_state(self, HOST_CONNECTING, now_ns);
    if (self->pid != 0)
        self->reopen = true; /* the carrier of the last connection still ends */
    else
        connect_now(self, now_ns);
}

/* ---- tend ---- */

/* The output of the agent has ended: the carrier's last words and its exit status say why. */
static void on_eof(struct host *self, int64_t now_ns)
{
    char noise[300], status[100], advice[200], reason[sizeof self->reason];
    bool gone = self->pid == 0 || reap(self, &self->carrier_status);
    if (self->eof_ns == 0)
        self->eof_ns = now_ns;
    if (!gone && now_ns - self->eof_ns < STATUS_NS)
        return;
    host_in_errors(self); /* the carrier's last words may have come between the last look and its end */
    host_noise_text(&self->noise, noise, sizeof noise);
    carrier_advice(noise, self->name, advice, sizeof advice);
    snprintf(reason, sizeof reason, "%s%s%s", noise[0] ? noise : "the connection has ended", advice[0] ? ": " : "",
             advice);
    if (!noise[0] && gone)
        snprintf(reason, sizeof reason, "the connection has ended: %.100s: %s", self->carrier[0],
                 process_describe(self->carrier_status, status, sizeof status));
    host_lose(self, now_ns, reason);
}

static void check_silence(struct host *self, int64_t now_ns)
{
    char noise[300], reason[sizeof self->reason];
    bool ready = self->state == HOST_READY;
    int64_t begin = self->sending.moved_ns > self->since_ns ? self->sending.moved_ns : self->since_ns;
    int64_t most = ready ? self->lease_ns : CONNECT_NS, silent = now_ns - (ready ? self->heard_ns : begin);
    /* A launcher that was stopped itself has not listened. */
    if (now_ns - self->tended_ns > self->lease_ns / 2)
        self->heard_ns = now_ns;
    else if (silent > most) {
        host_noise_text(&self->noise, noise, sizeof noise);
        snprintf(reason, sizeof reason, "no answer for %.0f s%s%s%s", (double)silent * 1e-9,
                 ready ? "; its processes are killed there" : "", noise[0] ? ": " : "", noise);
        host_lose(self, now_ns, reason);
    }
}

static void leave(struct host *self, int64_t now_ns)
{
    int status;
    if (self->pid != 0 && !reap(self, &status) && now_ns >= self->leave_by_ns)
        kill(-self->pid, SIGKILL);
}

void host_tend(struct host *self, int64_t now_ns)
{
    if (self->in < 0) {
        leave(self, now_ns);
        if (self->reopen && self->pid == 0)
            connect_now(self, now_ns);
        return;
    }
    bool more = host_in_read(self);
    if (self->in < 0)
        return;
    if (!more) {
        on_eof(self, now_ns);
        return;
    }
    if (self->pid == 0 || reap(self, &self->carrier_status)) {
        on_eof(self, now_ns); /* something that the carrier has started holds its output */
        return;
    }
    check_silence(self, now_ns);
    self->tended_ns = now_ns;
    int64_t every = self->lease_ns / 4 < PING_NS ? self->lease_ns / 4 : PING_NS;
    if (self->state == HOST_READY && now_ns - self->pinged_ns >= every) {
        self->pinged_ns = now_ns;
        host_writer_put(&self->writer, host_line_new("ping"));
    }
    if (self->in >= 0)
        host_send_feed(self, now_ns);
    if (self->in >= 0)
        host_out_feed(self);
    if (self->in >= 0 && self->writer.broken && self->eof_ns == 0)
        self->eof_ns = now_ns;
    if (self->in >= 0 && self->eof_ns != 0)
        on_eof(self, now_ns);
}

/* ---- questions ---- */

const char *host_name(const struct host *self)
{
    return self->name;
}

enum host_state host_state(const struct host *self)
{
    return self->state;
}

const char *host_reason(const struct host *self)
{
    return self->reason;
}

int64_t host_since(const struct host *self)
{
    return self->since_ns;
}

uint32_t host_times(const struct host *self)
{
    return self->times;
}

const struct host_facts *host_facts(const struct host *self)
{
    return &self->facts;
}

const char *host_home_address(const struct host *self, const struct broker_config *broker, char *out, size_t size)
{
    static const char mapped[] = "::ffff:";
    char hostname[HOST_NAME] = "", seen[HOST_NAME + 3];
    const char *address = self->facts.address;
    gethostname(hostname, sizeof hostname - 1);
    if (strncmp(address, mapped, sizeof mapped - 1) == 0 && strchr(address, '.'))
        address += sizeof mapped - 1;
    bool same = strcmp(address, "::1") == 0 || strcmp(hostname, self->facts.hostname) == 0;
    bool ipv6 = strchr(address, ':') != NULL;
    snprintf(seen, sizeof seen, ipv6 ? "[%s]" : "%s", address);
    bool heard = !ipv6 || endpoint_is_ipv6(broker->service); /* the broker listens there */
    if (broker->advertise[0])
        snprintf(out, size, "%s", broker->advertise);
    else if (strcmp(address, "::1") != 0 && heard && endpoint_is_host(seen))
        snprintf(out, size, "%s", seen);
    else
        snprintf(out, size, "%s", same ? "127.0.0.1" : hostname);
    return out;
}

struct host_load host_load(const struct host *self)
{
    return self->load;
}

int64_t host_moved(const struct host *self)
{
    return self->moved_ns;
}

bool host_busy(const struct host *self)
{
    return self->in >= 0 && self->busy;
}

void host_guard(const struct host *self)
{
    if (self->pid > 0)
        guard_tell(self->guard, (int32_t)self->pid);
}
