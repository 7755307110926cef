/* See shards.h: the parent. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/shards/shards_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

#define PAUSE_NS (100 * NS_PER_MS)
#define MOST_PAUSE_NS (5 * NS_PER_S)
/* A shard that ran for this long has started well: the next pause is short again. */
#define WELL_NS (10 * NS_PER_S)

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- starting ---- */

/* At a restart a shard binds what it had. */
static rp_status use_endpoints(struct broker_config *config, char *const *endpoints, rp_error *err)
{
    char **const keys[] = {&config->service, &config->ingest, &config->events, &config->http};
    for (uint32_t i = 0; i < 4 && endpoints[0]; i++) {
        if (strcmp(endpoints[i], "-") == 0)
            continue;
        /* http is kept as an address: http://HOST:PORT/... */
        const char *text =
            i == SHARD_HTTP && strncmp(endpoints[i], "http://", 7) == 0 ? endpoints[i] + 7 : endpoints[i];
        char *copy = strndup(text, i == SHARD_HTTP ? strcspn(text, "/") : strlen(text));
        if (!copy)
            return err_set(err, RP_NO_MEMORY, "no memory for the endpoints of a shard");
        free(*keys[i]);
        *keys[i] = copy;
    }
    return RP_OK;
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
    if (status == RP_OK && self->again && !self->shards[number].endpoints[0])
        status = shards_bind_again(config, number, self->endpoints_file, &err);
    if (status == RP_OK)
        status = use_endpoints(config, self->shards[number].endpoints, &err);
    if (status != RP_OK) {
        fprintf(stderr, "replay-broker: shard %u: %s\n", number, err.text);
        self->status = status == RP_INVALID_ARGUMENT ? 2 : 1;
        return;
    }
    self->status = self->serve(self->ctx, config, link);
}

/* True in the parent. */
static bool start(struct parent *self, uint32_t number)
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
        shard->again_ns = now() + MOST_PAUSE_NS;
        if (pair[0] >= 0)
            close(pair[0]);
    } else {
        shard->pid = pid;
        shard->link = pair[0];
        shard->start_ns = now();
    }
    if (pair[1] >= 0)
        close(pair[1]);
    return true;
}

void parent_stop(struct parent *self, int signal_number)
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

/* ---- the end of a shard ---- */

static void describe(int status, char *out, size_t size)
{
    if (WIFSIGNALED(status))
        snprintf(out, size, "signal %d", WTERMSIG(status));
    else
        snprintf(out, size, "status %d", WEXITSTATUS(status));
}

static void ended(struct parent *self, uint32_t number, int status)
{
    struct shard *shard = &self->shards[number];
    char why[32];
    int64_t time = now();
    describe(status, why, sizeof why);
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

/* ---- the loop ---- */

static void take_signal(struct parent *self)
{
    struct signalfd_siginfo info;
    if (read(self->signals, &info, sizeof info) != sizeof info)
        return;
    if (info.ssi_signo == SIGCHLD) {
        reap(self);
        return;
    }
    if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
        parent_stop(self, (int)info.ssi_signo);
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
    int64_t time = now(), next = INT64_MAX;
    for (uint32_t i = 0; i < self->n && !self->stopping; i++) {
        struct shard *shard = &self->shards[i];
        if (shard->pid)
            continue;
        if (shard->again_ns <= time && !(*parent = start(self, i)))
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

int shards_run(struct broker_config *config, const char *endpoints_file, bool again, shards_serve_fn *serve, void *ctx)
{
    struct parent self = {.config = config, .endpoints_file = endpoints_file, .serve = serve, .ctx = ctx};
    self.again = again && endpoints_file && endpoints_file[0];
    self.n = config_shards(config);
    self.shards = calloc(self.n, sizeof *self.shards);
    struct pollfd *items = calloc(self.n + 1, sizeof *items);
    for (uint32_t i = 0; self.shards && i < self.n; i++)
        self.shards[i].link = -1;
    if (!self.shards || !items || !take_signals(&self)) {
        fputs("replay-broker: no memory for shards\n", stderr);
        self.status = 1;
    } else {
        supervise(&self, items);
        if (!self.is_shard)
            self.status = self.status ? self.status : self.failed;
    }
    for (uint32_t i = 0; self.shards && i < self.n; i++) {
        shard_close_link(&self.shards[i]);
        for (uint32_t k = 0; k < SHARD_ENDPOINTS; k++)
            free(self.shards[i].endpoints[k]);
    }
    free(self.shards);
    free(items);
    if (self.signals > 0 && !self.is_shard)
        close(self.signals);
    return self.status;
}
