#include "broker/shards.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/base/text.h"

#define LINE_BYTES 4096u
/* Between the endpoints of a line: the path of an ipc endpoint may have spaces. */
#define SHARD_SEPARATOR "\t"

/* ---- the shard's side: where it binds, and what it tells the parent */

static rp_status no_parent(rp_error *err)
{
    return err_set(err, RP_CANCELLED, "the parent of this shard has ended, or a signal has come");
}

static rp_status tell(int link, const char *const own[SHARD_ENDPOINTS], rp_error *err)
{
    char line[LINE_BYTES];
    size_t used = 0;
    for (uint32_t i = 0; i < SHARD_ENDPOINTS && used < sizeof line; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%c", own[i][0] ? own[i] : "-",
                                 i + 1 < SHARD_ENDPOINTS ? SHARD_SEPARATOR[0] : '\n');
    if (used >= sizeof line)
        return err_set(err, RP_INVALID_ARGUMENT, "the endpoints of this shard are too long");
    return send(link, line, used, MSG_NOSIGNAL) == (ssize_t)used ? RP_OK : no_parent(err);
}

/* Reads a line of any length. NULL: the parent is gone, or a signal has come that ends this process. */
static char *read_line(int link)
{
    char *line = NULL;
    size_t filled = 0, capacity = 0;
    for (;;) {
        if (capacity - filled < 2)
            line = need_resize(line, capacity += LINE_BYTES, 1);
        ssize_t got = recv(link, line + filled, capacity - filled - 1, 0);
        if (got <= 0)
            break;
        filled += (size_t)got;
        line[filled] = '\0';
        if (line[filled - 1] == '\n')
            return line;
    }
    free(line);
    return NULL;
}

rp_status shards_join(int link, const char *const own[SHARD_ENDPOINTS], uint32_t n, char ***service, rp_error *err)
{
    sigset_t checkpoint, before;
    RP_TRY(tell(link, own, err));
    sigemptyset(&checkpoint);
    sigaddset(&checkpoint, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &checkpoint, &before); /* it ends nothing: it is for later */
    char *line = read_line(link), *rest = NULL;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!line)
        return no_parent(err);
    char **list = *service = need_alloc(n * sizeof *list);
    char *word = strtok_r(line, SHARD_SEPARATOR "\n", &rest);
    for (uint32_t i = 0; i < n; i++, word = word ? strtok_r(NULL, SHARD_SEPARATOR "\n", &rest) : NULL)
        list[i] = need_text(word ? word : "");
    free(line);
    return RP_OK;
}

/* ---- the ports of the run before */

/* Gives an address that stands for any free port the port of another one. */
static void take_port(char **address, const char *from)
{
    const char *own = strrchr(*address, ':'), *port = strrchr(from, ':');
    if (!own || (strcmp(own, ":0") != 0 && strcmp(own, ":*") != 0) || !port)
        return;
    int digits = (int)strspn(port + 1, "0123456789");
    if (digits == 0)
        return;
    char *moved = need_print("%.*s%.*s", (int)(own - *address), *address, digits + 1, port);
    free(*address);
    *address = moved;
}

/* Lines of shard 0 have plain names, those of the others begin with "shard.N.". */
static const char *own_name(const char *name, uint32_t shard)
{
    char prefix[24];
    int length = snprintf(prefix, sizeof prefix, "shard.%u.", shard);
    if (shard == 0)
        return name;
    return strncmp(name, prefix, (size_t)length) == 0 ? name + length : "";
}

void shards_bind_again(struct broker_config *config, uint32_t shard, const char *endpoints_file)
{
    struct {
        const char *name;
        char **address;
    } rows[] = {{"service", &config->service},
                {"ingest", &config->ingest},
                {"events", &config->events},
                {"http", &config->http}};
    char line[LINE_BYTES], name[64], value[LINE_BYTES];
    FILE *file = fopen(endpoints_file, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %1023s", name, value) != 2)
            continue;
        for (uint32_t i = 0; i < 4; i++)
            if (strcmp(own_name(name, shard), rows[i].name) == 0)
                take_port(rows[i].address, value);
    }
    if (file)
        fclose(file);
}

/* ---- the parent */

struct shard {
    pid_t pid; /* 0: it does not run */
    int link;  /* -1: none */
    char line[LINE_BYTES];
    size_t filled;
    bool told;                        /* it has sent its endpoints, and waits for the list */
    char *endpoints[SHARD_ENDPOINTS]; /* of its first start; NULL: not known yet */
    int64_t start_ns, again_ns, pause_ns;
};

struct parent {
    struct broker_config *config; /* a shard changes its own copy */
    const char *endpoints_file;
    bool again; /* binds the ports that the file has from before */
    shards_serve_fn *serve;
    void *ctx;
    uint32_t n;
    struct shard *shards;
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
    self->filled = 0;
    self->told = false;
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
    static const char *const names[] = {"service", "ingest", "events", "http"};
    static const uint32_t which[] = {SHARD_TOLD_SERVICE, SHARD_TOLD_INGEST, SHARD_TOLD_EVENTS, SHARD_HTTP};
    for (uint32_t i = 0; i < 4; i++) {
        const char *value = self->shards[number].endpoints[which[i]];
        if (strcmp(value, "-") == 0)
            continue;
        if (number)
            text_add(out, "shard.%u.", number);
        text_add(out, "%s %s\n", names[i], value);
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

static void send_list(const struct parent *self, struct shard *shard)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (uint32_t i = 0; out && i < self->n; i++)
        fprintf(out, "%s%c", self->shards[i].endpoints[SHARD_TOLD_SERVICE],
                i + 1 < self->n ? SHARD_SEPARATOR[0] : '\n');
    if (out && fclose(out) == 0)
        for (size_t at = 0; at < size;) {
            ssize_t sent = send(shard->link, text + at, size - at, MSG_NOSIGNAL);
            if (sent <= 0)
                break; /* it has died, and is started again */
            at += (size_t)sent;
        }
    free(text);
    shard->told = false;
}

static void tell_all(struct parent *self)
{
    rp_error err = {0};
    for (uint32_t i = 0; i < self->n && !self->ready; i++)
        if (!self->shards[i].endpoints[0])
            return;
    if (!self->ready && show_endpoints(self, &err) != RP_OK) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        self->failed = true;
        parent_stop(self, SIGTERM);
        return;
    }
    for (uint32_t i = 0; i < self->n; i++)
        if (self->shards[i].told)
            send_list(self, &self->shards[i]);
    if (!self->ready)
        log_line(LEVEL_INFO, "B0700", "shards started", "shards=%u service=%s", self->n,
                 self->shards[0].endpoints[SHARD_TOLD_SERVICE]);
    self->ready = true;
}

/* Takes the line that a shard has sent. */
static bool take_line(struct shard *self)
{
    char *words[SHARD_ENDPOINTS], *rest = NULL;
    uint32_t n = 0;
    for (char *word = strtok_r(self->line, SHARD_SEPARATOR "\n", &rest); word && n < SHARD_ENDPOINTS;
         word = strtok_r(NULL, SHARD_SEPARATOR "\n", &rest))
        words[n++] = word;
    if (n < SHARD_ENDPOINTS)
        return false;
    for (uint32_t i = 0; i < SHARD_ENDPOINTS; i++) {
        free(self->endpoints[i]);
        self->endpoints[i] = need_text(words[i]);
    }
    return true;
}

static void parent_read_link(struct parent *self, struct shard *shard)
{
    ssize_t got = recv(shard->link, shard->line + shard->filled, LINE_BYTES - 1 - shard->filled, 0);
    if (got <= 0) { /* its end is told by SIGCHLD */
        shard_close_link(shard);
        return;
    }
    shard->filled += (size_t)got;
    shard->line[shard->filled] = '\0';
    if (!strchr(shard->line, '\n'))
        return;
    shard->filled = 0;
    shard->told = take_line(shard);
    if (shard->told)
        tell_all(self);
    else if (shard->pid) /* it would wait for the list for ever */
        kill(shard->pid, SIGKILL);
}

/* At a restart a shard binds what it had. */
static void use_endpoints(struct broker_config *config, char *const *endpoints)
{
    char **const keys[] = {&config->service, &config->ingest, &config->events, &config->http};
    for (uint32_t i = 0; i < 4 && endpoints[0]; i++) {
        if (strcmp(endpoints[i], "-") == 0)
            continue;
        /* http is kept as an address: http://HOST:PORT/... */
        const char *text =
            i == SHARD_HTTP && strncmp(endpoints[i], "http://", 7) == 0 ? endpoints[i] + 7 : endpoints[i];
        free(*keys[i]);
        *keys[i] = need_print("%.*s", (int)(i == SHARD_HTTP ? strcspn(text, "/") : strlen(text)), text);
    }
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
    if (self->again && !self->shards[number].endpoints[0])
        shards_bind_again(config, number, self->endpoints_file);
    use_endpoints(config, self->shards[number].endpoints);
    self->status = self->serve(self->ctx, config, link);
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

int shards_run(struct broker_config *config, const char *endpoints_file, bool again, shards_serve_fn *serve, void *ctx)
{
    struct parent self = {.config = config, .endpoints_file = endpoints_file, .serve = serve, .ctx = ctx};
    self.again = again && endpoints_file && endpoints_file[0];
    self.n = config_shards(config);
    self.shards = need_alloc(self.n * sizeof *self.shards);
    struct pollfd *items = need_alloc((self.n + 1) * sizeof *items);
    for (uint32_t i = 0; i < self.n; i++)
        self.shards[i].link = -1;
    if (!take_signals(&self)) {
        fputs("replay-broker: no descriptor for signals\n", stderr);
        self.status = 1;
    } else {
        supervise(&self, items);
        if (!self.is_shard)
            self.status = self.status ? self.status : self.failed;
    }
    for (uint32_t i = 0; i < self.n; i++) {
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
