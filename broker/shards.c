#include "broker/shards.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/base/text.h"

#define LINE_BYTES 4096u

/* ---- the shard's side */

rp_status shards_join(const struct shard_link *link, const char *const own[SHARD_ENDPOINTS],
                      char *service[CONFIG_MAX_SHARDS], rp_error *err)
{
    sigset_t checkpoint, before;
    char byte = 0;
    for (uint32_t i = 0; i < SHARD_ENDPOINTS; i++) {
        char *at = link->all[link->number].text[i];
        if ((size_t)snprintf(at, SHARD_ENDPOINT_BYTES, "%s", own[i]) >= SHARD_ENDPOINT_BYTES)
            return err_set(err, RP_INVALID_ARGUMENT, "the endpoint %s of this shard is too long", own[i]);
    }
    sigemptyset(&checkpoint);
    sigaddset(&checkpoint, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &checkpoint, &before); /* it ends nothing: it is for later */
    bool joined = send(link->socket, &byte, 1, MSG_NOSIGNAL) == 1 && recv(link->socket, &byte, 1, 0) == 1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!joined)
        return err_set(err, RP_CANCELLED, "the parent of this shard has ended, or a signal has come");
    for (uint32_t i = 0; i < link->n; i++)
        service[i] = link->all[i].text[SHARD_TOLD_SERVICE];
    return RP_OK;
}

/* ---- the ports of the run before */

/* True if the folder of an ipc name that libzmq has chosen is there, and ours. libzmq removes it when a broker ends in order. */
static bool has_folder(const char *name)
{
    char *path = need_text(name + strlen("ipc://")), *end = strrchr(path, '/');
    struct stat status;
    if (end)
        *end = '\0';
    bool has = end && (mkdir(path, 0700) == 0 || errno == EEXIST) && lstat(path, &status) == 0 &&
               S_ISDIR(status.st_mode) && status.st_uid == geteuid() && (status.st_mode & 022) == 0;
    free(path);
    return has;
}

/* Gives an address that stands for any free port the port of another one, and one that stands for any ipc name that name. */
static void take_port(char **address, const char *from)
{
    if (strncmp(*address, "ipc://*", 7) == 0 && strncmp(from, "ipc://", 6) == 0 && has_folder(from)) {
        free(*address);
        *address = need_text(from);
        return;
    }
    const char *own = strrchr(*address, ':'), *port = strrchr(from, ':');
    if (!own || (own[1 + strspn(own + 1, "0")] != '\0' && strcmp(own, ":*") != 0) || !port)
        return;
    int digits = (int)strspn(port + 1, "0123456789");
    if (digits == 0)
        return;
    char *moved = need_print("%.*s%.*s", (int)(own - *address), *address, digits + 1, port);
    free(*address);
    *address = moved;
}

/* What a shard binds, in the order of enum shard_endpoint. */
#define BOUND 4u
static const char *const bound_names[BOUND] = {"service", "ingest", "events", "http"};

static char **bound_address(struct broker_config *config, uint32_t i)
{
    char **const addresses[BOUND] = {&config->service, &config->ingest, &config->events, &config->http};
    return addresses[i];
}

/* Lines of shard 0 have plain names, those of the others begin with "shard.N.". */
void shards_bind_again(struct broker_config *config, uint32_t shard, const char *endpoints_file)
{
    for (uint32_t i = 0; i < BOUND; i++) {
        char *name = shard ? need_print("shard.%u.%s", shard, bound_names[i]) : need_text(bound_names[i]), *before;
        if (endpoint_from_file(endpoints_file, name, &before, NULL) == RP_OK)
            take_port(bound_address(config, i), before);
        free(before);
        free(name);
    }
}

/* ---- the parent */

bool shards_lost_parent(int64_t parent)
{
    return parent && getppid() != parent;
}

struct shard {
    pid_t pid;  /* 0: it does not run */
    int link;   /* -1: none */
    bool known; /* its endpoints are in the list, from its first start on */
    bool waits; /* until those of all are */
    int64_t start_ns, again_ns, pause_ns;
};

struct parent {
    struct broker_config *config; /* a shard changes its own copy */
    const char *endpoints_file;
    bool again;    /* binds the ports that the file has from before */
    int64_t owner; /* see shards_lost_parent; 0: none */
    shards_serve_fn *serve;
    void *ctx;
    uint32_t n;
    struct shard *shards;
    struct shard_endpoints *endpoints; /* shared with all shards */
    int signals;
    sigset_t mask; /* signals that the parent takes */
    sigset_t before;
    bool ready; /* all shards have bound their endpoints, and everybody was told */
    bool stopping, failed;
    bool is_shard; /* this is the process of a shard, which has ended with `status` */
    int status;
};

#define PAUSE_NS (100 * NS_PER_MS)
#define MOST_PAUSE_NS (5 * NS_PER_S)
/* A shard that ran for this long has started well: the next pause is short again. */
#define WELL_NS (10 * NS_PER_S)

/* ---- links to the shards */

static void shard_close_link(struct shard *self)
{
    if (self->link >= 0)
        close(self->link);
    self->link = -1;
    self->waits = false;
}

/* Passes a signal on that ends everything. A shard that still waits for the list learns of it by the end of its link: the signal
 * may have reached it just before it began to wait. */
static void parent_stop(struct parent *self, int signal_number)
{
    self->stopping = true;
    for (uint32_t i = 0; i < self->n; i++) {
        if (self->shards[i].pid) {
            kill(self->shards[i].pid, signal_number);
            kill(self->shards[i].pid, SIGCONT); /* a process that is stopped would never take the other signal */
        }
        shard_close_link(&self->shards[i]);
    }
}

static void print_shard(const struct parent *self, uint32_t number, struct text *out)
{
    static const uint32_t which[BOUND] = {SHARD_TOLD_SERVICE, SHARD_TOLD_INGEST, SHARD_TOLD_EVENTS, SHARD_HTTP};
    for (uint32_t i = 0; i < BOUND; i++) {
        const char *value = self->endpoints[number].text[which[i]];
        if (!value[0])
            continue;
        if (number)
            text_add(out, "shard.%u.", number);
        text_add(out, "%s %s\n", bound_names[i], value);
    }
}

/* Prints the endpoints of all shards, and writes them into the file for clients. */
static rp_status show_endpoints(const struct parent *self, rp_error *err)
{
    struct text text = {0};
    const char *file = self->endpoints_file;
    for (uint32_t i = 0; i < self->n; i++)
        print_shard(self, i, &text);
    bool ok = !file || !file[0] || io_replace(file, text.data, text.size, 0666, false);
    int error = errno;
    if (ok)
        fputs(text_get(&text), stdout);
    fflush(stdout);
    text_fini(&text);
    return ok ? RP_OK : err_set(err, RP_IO, "cannot write the endpoints to %s: %s", file, strerror(error));
}

static void tell_all(struct parent *self)
{
    rp_error err = {0};
    for (uint32_t i = 0; i < self->n && !self->ready; i++)
        if (!self->shards[i].known)
            return;
    if (!self->ready && show_endpoints(self, &err) != RP_OK) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        self->failed = true;
        parent_stop(self, SIGTERM);
        return;
    }
    for (uint32_t i = 0; i < self->n; i++)
        if (self->shards[i].waits) {
            self->shards[i].waits = false;
            send(self->shards[i].link, "", 1, MSG_NOSIGNAL); /* one that has died is started again */
        }
    if (!self->ready)
        log_line(LEVEL_INFO, "B0700", "shards started", "shards=%u service=%s", self->n,
                 self->endpoints[0].text[SHARD_TOLD_SERVICE]);
    self->ready = true;
}

static void parent_read_link(struct parent *self, struct shard *shard)
{
    char byte;
    if (recv(shard->link, &byte, 1, 0) <= 0) { /* its end is told by SIGCHLD */
        shard_close_link(shard);
        return;
    }
    shard->known = shard->waits = true;
    tell_all(self);
}

/* In the new process. */
static void become(struct parent *self, uint32_t number, int link, pid_t parent)
{
    struct broker_config *config = self->config;
    rp_error err = {0};
    char name[16];
    self->is_shard = true;
    for (uint32_t i = 0; i < self->n; i++)
        shard_close_link(&self->shards[i]);
    close(self->signals);
    signal(SIGUSR1, SIG_IGN); /* until there is a broker that makes checkpoints */
    sigprocmask(SIG_SETMASK, &self->before, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    snprintf(name, sizeof name, "replay-shard-%u", number);
    prctl(PR_SET_NAME, name);
    config->shard = number;
    rp_status status = getppid() == parent ? config_become_shard(config, &err)
                                           : err_set(&err, RP_CANCELLED, "the parent of this shard has ended");
    if (status != RP_OK) {
        fprintf(stderr, "replay-broker: shard %u: %s\n", number, err.text);
        self->status = status == RP_INVALID_ARGUMENT ? 2 : 1;
        return;
    }
    for (uint32_t i = 0; i < BOUND && self->shards[number].known; i++) /* at a restart it binds what it had */
        take_port(bound_address(config, i), self->endpoints[number].text[i]);
    if (!self->shards[number].known && self->again)
        shards_bind_again(config, number, self->endpoints_file);
    self->status = self->serve(self->ctx, config, &(struct shard_link){link, self->endpoints, number, self->n});
}

/* True in the parent. */
static bool shards_start(struct parent *self, uint32_t number)
{
    struct shard *shard = &self->shards[number];
    int pair[2] = {-1, -1};
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0 ? fork() : -1;
    if (pid == 0) {
        close(pair[0]);
        become(self, number, pair[1], parent);
        return false;
    }
    if (pid < 0) {
        log_line(LEVEL_ERROR, "B0702", "a shard cannot be started: it is tried again", "shard=%u why=\"%s\"", number,
                 strerror(errno));
        shard->again_ns = clock_ns() + MOST_PAUSE_NS;
        if (pair[0] >= 0)
            close(pair[0]);
    } else {
        shard->pid = pid;
        shard->link = pair[0];
        shard->start_ns = clock_ns();
    }
    if (pair[1] >= 0)
        close(pair[1]);
    return true;
}

static void ended(struct parent *self, uint32_t number, int status)
{
    struct shard *shard = &self->shards[number];
    char why[32];
    int64_t time = clock_ns();
    snprintf(why, sizeof why, WIFSIGNALED(status) ? "signal %d" : "status %d",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    shard->pid = 0;
    shard_close_link(shard);
    if (self->stopping) { /* a signal ends a shard that has not begun to serve */
        bool by_us = WIFSIGNALED(status) && (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGINT);
        self->failed = self->failed || (status != 0 && !by_us);
        return;
    }
    if (!self->ready) { /* the shard has said why on standard error */
        fprintf(stderr, "replay-broker: shard %u has ended (%s) before all were ready: the others are stopped\n",
                number, why);
        self->failed = true;
        self->status = WIFEXITED(status) && WEXITSTATUS(status) == 2 ? 2 : 1;
        parent_stop(self, SIGTERM);
        return;
    }
    if (time - shard->start_ns > WELL_NS || !shard->pause_ns)
        shard->pause_ns = PAUSE_NS;
    shard->again_ns = time + shard->pause_ns;
    log_line(LEVEL_WARN, "B0701", "a shard has ended, and is started again", "shard=%u why=\"%s\" pause_s=%.1f", number,
             why, (double)shard->pause_ns * 1e-9);
    shard->pause_ns = 2 * shard->pause_ns < MOST_PAUSE_NS ? 2 * shard->pause_ns : MOST_PAUSE_NS;
}

static void reap(struct parent *self)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (uint32_t i = 0; i < self->n; i++)
            if (self->shards[i].pid == pid)
                ended(self, i, status);
}

static void take_signal(struct parent *self)
{
    struct signalfd_siginfo info;
    if (read(self->signals, &info, sizeof info) != sizeof info)
        return;
    if (info.ssi_signo == SIGCHLD) {
        reap(self);
        return;
    }
    bool lost = info.ssi_signo == SIGHUP && shards_lost_parent(self->owner);
    if (lost || info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
        parent_stop(self, lost ? SIGTERM : (int)info.ssi_signo);
        return;
    }
    if (info.ssi_signo == SIGHUP)
        log_reopen();
    for (uint32_t i = 0; i < self->n; i++)
        if (self->shards[i].pid)
            kill(self->shards[i].pid, (int)info.ssi_signo);
}

/* Starts shards whose pause is over. Returns the time until the next in milliseconds; -1: none waits. False in *parent: this is the
 * process of a shard. */
static int start_due(struct parent *self, bool *parent)
{
    int64_t time = clock_ns(), next = INT64_MAX;
    for (uint32_t i = 0; i < self->n && !self->stopping; i++) {
        struct shard *shard = &self->shards[i];
        if (shard->pid)
            continue;
        if (shard->again_ns <= time && !(*parent = shards_start(self, i)))
            return 0;
        if (!shard->pid && shard->again_ns < next)
            next = shard->again_ns;
    }
    return next == INT64_MAX ? -1 : next <= time ? 0 : (int)((next - time) / NS_PER_MS + 1);
}

static uint32_t running(const struct parent *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n; i++)
        n += self->shards[i].pid != 0;
    return n;
}

static void supervise(struct parent *self, struct pollfd *items)
{
    bool parent = true;
    while (!self->stopping || running(self)) {
        int wait_ms = start_due(self, &parent);
        if (!parent)
            return;
        uint32_t n = 1;
        items[0] = (struct pollfd){self->signals, POLLIN, 0};
        for (uint32_t i = 0; i < self->n; i++)
            items[n++] = (struct pollfd){self->shards[i].link, POLLIN, 0};
        if (poll(items, n, wait_ms) < 0 && errno != EINTR)
            break;
        for (uint32_t i = 0; i < self->n; i++)
            if (items[i + 1].revents && self->shards[i].link == items[i + 1].fd && items[i + 1].fd >= 0)
                parent_read_link(self, &self->shards[i]);
        if (items[0].revents)
            take_signal(self);
    }
}

static bool take_signals(struct parent *self)
{
    static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGHUP};
    signal(SIGPIPE, SIG_IGN); /* nobody may read the log any more */
    sigemptyset(&self->mask);
    for (uint32_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&self->mask, numbers[i]);
    sigprocmask(SIG_BLOCK, &self->mask, &self->before);
    self->signals = signalfd(-1, &self->mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return self->signals >= 0;
}

int shards_run(struct broker_config *config, const char *endpoints_file, bool again, int64_t parent,
               shards_serve_fn *serve, void *ctx)
{
    struct parent self = {
        .config = config, .endpoints_file = endpoints_file, .owner = parent, .serve = serve, .ctx = ctx};
    self.again = again && endpoints_file && endpoints_file[0];
    self.n = config_shards(config);
    self.shards = need_alloc(self.n * sizeof *self.shards);
    struct pollfd *items = need_alloc((self.n + 1) * sizeof *items);
    size_t bytes = self.n * sizeof *self.endpoints;
    self.endpoints = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uint32_t i = 0; i < self.n; i++)
        self.shards[i].link = -1;
    if (self.endpoints == MAP_FAILED || !take_signals(&self)) {
        fputs("replay-broker: no memory or descriptors to start shards\n", stderr);
        self.status = 1;
    } else {
        supervise(&self, items);
        if (!self.is_shard)
            self.status = self.status ? self.status : self.failed;
    }
    for (uint32_t i = 0; i < self.n; i++)
        shard_close_link(&self.shards[i]);
    if (self.endpoints != MAP_FAILED)
        munmap(self.endpoints, bytes);
    free(self.shards);
    free(items);
    if (self.signals > 0 && !self.is_shard)
        close(self.signals);
    return self.status;
}
