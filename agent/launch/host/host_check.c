/* A pool without a run: the hosts connect, are asked whether they reach this machine, and get no file. */
#include "agent/launch/host/host_check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "agent/launch/host/host_pool.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/need.h"

#define HOST_CHECK_CONNECT_NS                                                                                          \
    (13 * NS_PER_S) /* ssh itself gives up after 10 s, and says why; some hosts are tried twice */
#define HOST_CHECK_SEND_NS (300 * NS_PER_S) /* for programs to be packed and to arrive there */
#define TURN_MS 10

/* Lets a socket listen on all addresses, and accept who connects. port 0: any. Returns the port; 0: errno says why. */
static uint16_t listen_at(void *socket, uint16_t port)
{
    char endpoint[64];
    size_t size = sizeof endpoint;
    const int ipv6 = 1;
    zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6); /* and IPv4 */
    snprintf(endpoint, sizeof endpoint, "tcp://*:%u", port);
    if (zmq_bind(socket, endpoint) != 0 || zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0)
        return 0;
    return (uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10);
}

struct trial {
    bool sent, asked, done;
    char endpoint[HOST_PATH]; /* of this machine, as the host is asked to reach it */
    char reason[512];         /* why the host cannot work; "": it can */
};

struct check {
    const struct run_config *config;
    struct interrupts *interrupts;
    struct host_pool *pool;
    uint16_t port;        /* at which this machine listens */
    struct trial *trials; /* one for each host of the pool */
    int64_t begin_ns;
};

/* The port that the broker will use, if the file says one; otherwise any. */
static uint16_t wanted_port(const struct run_config *config)
{
    const char *colon = strncmp(config->broker.service, "tcp://", 6) == 0 ? strrchr(config->broker.service, ':') : NULL;
    long port = colon ? strtol(colon + 1, NULL, 10) : 0;
    return port > 0 && port < 65536 ? (uint16_t)port : 0;
}

/* The endpoint that the host's processes will use for the broker, or one like it. False: it has no address. */
static bool find_endpoint(const struct check *self, const struct host *host, struct trial *trial)
{
    const struct broker_config *broker = &self->config->broker;
    char bound[64], address[HOST_NAME + 3];
    if (!endpoint_is_any(broker->service))
        return endpoint_with_host(broker->service, broker->advertise, trial->endpoint, sizeof trial->endpoint);
    snprintf(bound, sizeof bound, "tcp://*:%u", self->port);
    host_pool_home_address(&host_info(host)->facts, broker, address, sizeof address);
    return endpoint_with_host(bound, address, trial->endpoint, sizeof trial->endpoint);
}

/* Goes on with one host: connected, asked, answered. True: it can work, or its reason says why not. */
static bool look(const struct check *self, uint32_t index)
{
    struct host *host = host_pool_at(self->pool, index);
    const struct host_info *info = host_info(host);
    struct trial *trial = &self->trials[index];
    char *reason = trial->reason;
    rp_error err = {0};
    trial->sent |= info->sent;
    if (info->state == HOST_LOST)
        snprintf(reason, sizeof trial->reason, "%s", info->reason);
    if (host_pool_failed(self->pool, index))
        return true;
    if (clock_ns() - self->begin_ns > (trial->sent ? HOST_CHECK_SEND_NS : HOST_CHECK_CONNECT_NS)) {
        if (trial->asked || !reason[0])
            strcpy(reason, trial->asked ? "it gives no answer" : "no connection within 10 s");
        return true;
    }
    if (info->state != HOST_READY) {
        trial->asked = false;
        return false;
    }
    if (!trial->asked) {
        trial->asked = find_endpoint(self, host, trial) && host_probe(host, trial->endpoint, &err) == RP_OK;
        if (!trial->asked)
            snprintf(reason, sizeof trial->reason, "%s",
                     err.text[0] ? err.text : "this machine has no address that others could use");
        return !trial->asked;
    }
    if (info->probe.ok)
        reason[0] = '\0';
    else if (info->probe.done)
        snprintf(reason, sizeof trial->reason,
                 "it does not reach this machine at %.200s: %.120s; write broker.advertise", trial->endpoint,
                 info->probe.text[0] ? info->probe.text : "no connection");
    return info->probe.done;
}

static void try_all(struct check *self)
{
    self->begin_ns = clock_ns();
    for (uint32_t left = 1; left > 0 && self->interrupts->asked == 0;) {
        left = 0;
        host_pool_tend(self->pool, clock_ns());
        for (uint32_t i = 1; i < host_pool_count(self->pool); i++) {
            self->trials[i].done = self->trials[i].done || look(self, i);
            left += !self->trials[i].done;
        }
        if (left > 0)
            interrupts_wait(self->interrupts, TURN_MS);
    }
}

static void print_trial(const struct check *self, uint32_t index, int width, FILE *out)
{
    const struct trial *trial = &self->trials[index];
    const struct host *host = host_pool_at(self->pool, index);
    const struct host_facts *facts = &host_info(host)->facts;
    format_buffer memory;
    fprintf(out, "  %-*s  ", width, host_pool_name(self->pool, index));
    if (trial->reason[0]) {
        fprintf(out, "cannot work: %s\n", trial->reason);
        return;
    }
    fprintf(out, "%s, %g cores, %s; programs in %s", facts->model, facts->cores,
            format_bytes(memory, (uint64_t)facts->memory), facts->programs);
    fprintf(out, "%s; reaches this machine at %s\n", trial->sent ? " (sent)" : "", trial->endpoint);
}

static rp_status print_all(const struct check *self, FILE *out, rp_error *err)
{
    uint32_t broken = 0, n = host_pool_count(self->pool);
    int width = 0;
    for (uint32_t i = 1; i < n; i++) {
        int length = (int)strlen(host_pool_name(self->pool, i));
        width = length > width ? length : width;
        broken += self->trials[i].reason[0] != '\0';
    }
    for (uint32_t i = 1; i < n; i++)
        print_trial(self, i, width, out);
    if (broken == 0)
        return RP_OK;
    return err_set(err, RP_UNAVAILABLE, "%u of %u hosts cannot work", broken, n - 1);
}

rp_status host_check(const struct command_context *home, struct interrupts *interrupts, FILE *out, rp_error *err)
{
    struct check self = {.config = home->config, .interrupts = interrupts};
    struct host_pool_options pool = {.home = *home};
    pool.home.folder = "/dev/null"; /* nothing is written at home */
    pool.home.config_path = NULL;
    pool.home.keys = NULL;
    void *context = zmq_ctx_new(), *listener = zmq_socket(context, ZMQ_STREAM);
    self.port = listen_at(listener, wanted_port(home->config));
    if (self.port == 0)
        self.port = listen_at(listener, 0);
    if (self.port == 0)
        err_fill(err, RP_IO, "cannot listen for connections of hosts: %s", zmq_strerror(errno));
    else
        self.pool = host_pool_new(&pool, err);
    if (self.pool) {
        self.trials = need_alloc(host_pool_count(self.pool) * sizeof *self.trials);
        try_all(&self);
        if (interrupts->asked > 0)
            err_set(err, RP_CANCELLED, "interrupted");
        else
            print_all(&self, out, err);
    }
    host_pool_destroy(&self.pool);
    zmq_close(listener);
    zmq_ctx_term(context);
    free(self.trials);
    return (rp_status)err->status;
}
