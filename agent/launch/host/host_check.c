#include "agent/launch/host/host_check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/host/carrier.h"
#include "agent/launch/host/host.h"
#include "agent/launch/host/host_listen.h"
#include "agent/launch/process/command.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/format.h"

#define CONNECT_NS (11 * NS_PER_S) /* ssh itself gives up after 10 s, and says why */
#define SEND_NS (300 * NS_PER_S)   /* for programs to be packed and to arrive there */
#define TURN_MS 10
#define SPACE_NS (25 * NS_PER_MS)  /* between two connections: an ssh server refuses many at once */
#define RETRY_NS (500 * NS_PER_MS) /* before the second attempt */
#define ATTEMPTS 2u

struct trial {
    struct host *host; /* NULL: there is none, see reason */
    char name[HOST_NAME];
    uint32_t attempts;
    int64_t open_ns; /* when the connection was opened, or may be opened again */
    bool lost;       /* the first attempt has failed */
    bool asked, done, works;
    char endpoint[HOST_PATH]; /* of this machine, as the host is asked to reach it */
    char reason[512];         /* why the host cannot work */
};

struct check {
    const struct host_check_options *options;
    struct bundle bundle;
    bool bundled;
    int listener;
    uint16_t port;
    int64_t open_ns; /* when the next connection may be opened */
    struct trial *trials;
    uint32_t n;
};

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- before the first connection ---- */

static rp_status check_sent_files(const struct host_check_options *options, rp_error *err)
{
    const struct schema_list *send = &options->config->launch.send;
    char *const *names = send->data;
    for (uint32_t i = 0; i < send->count; i++) {
        char path[2 * HOST_PATH];
        struct stat info;
        snprintf(path, sizeof path, "%s%s%s", names[i][0] == '/' ? "" : options->here, names[i][0] == '/' ? "" : "/",
                 names[i]);
        if (stat(path, &info) != 0)
            return err_set(err, RP_NOT_FOUND, "launch.send: %s: %s", path, strerror(errno));
    }
    return RP_OK;
}

/* The port that the broker will use, if the file says one; otherwise any. */
static uint16_t wanted_port(const struct run_config *config)
{
    const char *colon = strncmp(config->broker.service, "tcp://", 6) == 0 ? strrchr(config->broker.service, ':') : NULL;
    long port = colon ? strtol(colon + 1, NULL, 10) : 0;
    return port > 0 && port < 65536 ? (uint16_t)port : 0;
}

/* Hosts that connect need no answer: the kernel accepts for us. */
static rp_status listen_here(struct check *self, rp_error *err)
{
    self->listener = host_listen(NULL, wanted_port(self->options->config), &self->port);
    if (self->listener < 0)
        self->listener = host_listen(NULL, 0, &self->port);
    return self->listener >= 0 ? RP_OK
                               : err_set(err, RP_IO, "cannot listen for connections of hosts: %s", strerror(errno));
}

static rp_status add_trial(struct check *self, const struct host_config *config, const char *name, rp_error *err)
{
    const struct host_check_options *options = self->options;
    if (!config->programs[0] && !self->bundled) {
        RP_TRY(bundle_describe(options->programs, &self->bundle, err));
        self->bundled = true;
    }
    struct bundle *bundle = self->bundled ? &self->bundle : NULL;
    const struct carrier_options how = {.programs = options->programs, .bundle = bundle};
    char **carrier = carrier_build(&how, config, name, err);
    if (!carrier)
        return (rp_status)err->status;
    struct trial *trial = &self->trials[self->n];
    *trial = (struct trial){0};
    snprintf(trial->name, sizeof trial->name, "%s", name);
    trial->host = host_new(&(struct host_options){.name = name,
                                                  .carrier = (const char *const *)carrier,
                                                  .folder = "/dev/null", /* nothing is written at home */
                                                  .here = options->here,
                                                  .guard = options->guard,
                                                  .bundle = bundle},
                           err);
    command_free(&carrier);
    if (!trial->host)
        return (rp_status)err->status;
    self->n++;
    return RP_OK;
}

static rp_status add_trials(struct check *self, rp_error *err)
{
    const struct schema_list *list = &self->options->config->hosts;
    const struct host_config *hosts = list->data;
    self->trials = calloc(RUN_HOSTS_MOST, sizeof *self->trials);
    if (!self->trials)
        return err_set(err, RP_NO_MEMORY, "no memory for a list of hosts");
    for (uint32_t i = 0; i < list->count; i++) {
        char pattern[512], why[160];
        if (hosts[i].local)
            continue;
        host_config_pattern(&hosts[i], i, pattern, sizeof pattern);
        char **names = run_config_host_names(pattern, RUN_HOSTS_MOST - self->n, why, sizeof why);
        if (!names)
            return err_set(err, RP_INVALID_ARGUMENT, "hosts[%u]: %s", i, why);
        rp_status status = RP_OK;
        for (char **name = names; *name && status == RP_OK; name++)
            status = add_trial(self, &hosts[i], *name, err);
        run_config_free_names(&names);
        RP_TRY(status);
    }
    return RP_OK;
}

/* ---- one host ---- */

static void end_trial(struct trial *self, const char *reason)
{
    self->done = true;
    self->works = !reason;
    snprintf(self->reason, sizeof self->reason, "%s", reason ? reason : "");
}

/* The endpoint that the host's processes will use for the broker, or one like it. False: it has no address. */
static bool find_endpoint(const struct check *self, struct trial *trial)
{
    const struct broker_config *broker = &self->options->config->broker;
    char bound[64], address[HOST_NAME + 3];
    if (!endpoint_is_any(broker->service))
        return endpoint_with_host(broker->service, broker->advertise, trial->endpoint, sizeof trial->endpoint);
    snprintf(bound, sizeof bound, "tcp://*:%u", self->port);
    host_home_address(trial->host, broker, address, sizeof address);
    return endpoint_with_host(bound, address, trial->endpoint, sizeof trial->endpoint);
}

static void ask_reach(struct check *self, struct trial *trial)
{
    rp_error err = {0};
    if (!find_endpoint(self, trial) || host_reach_begin(trial->host, trial->endpoint, &err) != RP_OK)
        end_trial(trial, err.text[0] ? err.text : "this machine has no address that others could use");
    trial->asked = true;
}

static void await_reach(struct trial *self)
{
    bool done = false;
    const char *why = NULL;
    char reason[400];
    bool reached = host_reach_result(self->host, &done, &why);
    if (!done)
        return;
    snprintf(reason, sizeof reason, "it does not reach this machine at %.200s: %.120s; write broker.advertise",
             self->endpoint, why ? why : "no connection");
    end_trial(self, reached ? NULL : reason);
}

static void open_next(struct check *self, struct trial *trial, int64_t now_ns)
{
    if (now_ns < self->open_ns || now_ns < trial->open_ns)
        return;
    self->open_ns = now_ns + SPACE_NS;
    trial->open_ns = now_ns;
    trial->attempts++;
    trial->asked = trial->lost = false;
    host_open(trial->host, now_ns);
}

/* One refusal is no answer yet: a server may have had too many connections at that moment. */
static void note_loss(struct trial *self, int64_t now_ns)
{
    if (self->attempts == ATTEMPTS) {
        end_trial(self, host_reason(self->host));
        return;
    }
    self->lost = true;
    self->open_ns = now_ns + RETRY_NS;
}

static void tend(struct check *self, struct trial *trial, int64_t now_ns)
{
    host_tend(trial->host, now_ns);
    int64_t most = host_needs_bundle(trial->host) ? SEND_NS : CONNECT_NS;
    if (trial->attempts == 0 || trial->lost)
        open_next(self, trial, now_ns);
    else if (host_state(trial->host) == HOST_LOST)
        note_loss(trial, now_ns);
    else if (now_ns - trial->open_ns > most)
        end_trial(trial, trial->asked ? "it gives no answer" : "no connection within 10 s");
    else if (host_state(trial->host) == HOST_READY && !trial->asked)
        ask_reach(self, trial);
    else if (trial->asked)
        await_reach(trial);
}

static void try_all(struct check *self)
{
    struct interrupts *interrupts = self->options->interrupts;
    for (uint32_t left = self->n; left > 0 && interrupts->asked == 0;) {
        left = 0;
        for (uint32_t i = 0; i < self->n; i++) {
            if (!self->trials[i].done)
                tend(self, &self->trials[i], now());
            left += !self->trials[i].done;
        }
        if (left > 0)
            interrupts_wait(interrupts, TURN_MS);
    }
}

/* ---- what was found ---- */

static void print_trial(const struct trial *self, int width, FILE *out)
{
    if (!self->works) {
        fprintf(out, "  %-*s  cannot work: %s\n", width, self->name, self->reason);
        return;
    }
    const struct host_facts *facts = host_facts(self->host);
    format_buffer memory, sent;
    fprintf(out, "  %-*s  %s, %g cores, %s; programs in %s", width, self->name, facts->model, facts->cores,
            format_bytes(memory, (uint64_t)facts->memory), facts->programs);
    if (host_sent(self->host) > 0)
        fprintf(out, " (%s sent)", format_bytes(sent, (uint64_t)host_sent(self->host)));
    fprintf(out, "; reaches this machine at %s\n", self->endpoint);
}

static rp_status print_all(const struct check *self, FILE *out, rp_error *err)
{
    uint32_t broken = 0;
    int width = 0;
    for (uint32_t i = 0; i < self->n; i++) {
        int length = (int)strlen(self->trials[i].name);
        width = length > width ? length : width;
        broken += !self->trials[i].works;
    }
    for (uint32_t i = 0; i < self->n; i++)
        print_trial(&self->trials[i], width, out);
    if (broken == 0)
        return RP_OK;
    return err_set(err, RP_UNAVAILABLE, "%u of %u hosts cannot work", broken, self->n);
}

rp_status host_check(const struct host_check_options *options, FILE *out, rp_error *err)
{
    struct check self = {.options = options, .listener = -1};
    rp_status status = check_sent_files(options, err);
    if (status == RP_OK)
        status = listen_here(&self, err);
    if (status == RP_OK)
        status = add_trials(&self, err);
    if (status == RP_OK) {
        try_all(&self);
        status =
            options->interrupts->asked > 0 ? err_set(err, RP_CANCELLED, "interrupted") : print_all(&self, out, err);
    }
    for (uint32_t i = 0; i < self.n; i++)
        host_close(self.trials[i].host); /* all carriers end at once */
    for (uint32_t i = 0; i < self.n; i++)
        host_destroy(&self.trials[i].host);
    bundle_fini(&self.bundle);
    if (self.listener >= 0)
        close(self.listener);
    free(self.trials);
    return status;
}
