/* A pool without a run: the hosts connect, are asked whether they reach this machine, and get no file. */
#include "agent/launch/host/host_check.h"

#include <errno.h>
#include <string.h>
#include <zmq.h>

#include "agent/launch/host/host_pool.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/format.h"

#define CONNECT_NS (13 * NS_PER_S) /* ssh itself gives up after 10 s, and says why; some hosts are tried twice */
#define SEND_NS (300 * NS_PER_S)   /* for programs to be packed and to arrive there */
#define ANSWER_NS (30 * NS_PER_S)  /* for the answer of a host, which may have to find out who this machine is */
#define TURN_MS 10

/* Lets a socket listen on all addresses, and accept who connects. port "0": any. False: errno says why. */
static bool listen_at(void *socket, const char *port, char bound[HOST_PATH])
{
    size_t size = HOST_PATH;
    const int ipv6 = 1;
    zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6); /* and IPv4 */
    snprintf(bound, HOST_PATH, "tcp://*:%s", port);
    return zmq_bind(socket, bound) == 0 && zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) == 0;
}

/* Gives the endpoint that the host's processes will use for the broker, or one like it. False: it has no address. */
static bool find_endpoint(const struct host_info *info, const struct broker_config *broker, const char *bound,
                          char out[HOST_PATH])
{
    return host_pool_endpoint(&info->facts, broker, broker->service,
                              endpoint_is_any(broker->service) ? bound : broker->service, out, HOST_PATH);
}

static bool check_stopped(void *interrupts)
{
    interrupts_wait(interrupts, 0);
    return ((struct interrupts *)interrupts)->asked > 0;
}

/* Waits for the hosts, and then for their answers to the question whether they reach this machine. */
static void try_all(struct host_pool *pool, const struct broker_config *broker, const char *bound,
                    struct interrupts *interrupts)
{
    uint32_t n = host_pool_count(pool), sends = 0, asked = 1;
    char endpoint[HOST_PATH];
    host_pool_await(pool, CONNECT_NS, check_stopped, interrupts);
    for (uint32_t i = 1; i < n; i++)
        sends += host_pool_at(pool, i)->info->sent;
    if (sends > 0)
        host_pool_await(pool, SEND_NS, check_stopped, interrupts);
    for (uint32_t i = 1; i < n; i++) {
        const struct pool_host *one = host_pool_at(pool, i);
        if (one->ready && find_endpoint(one->info, broker, bound, endpoint))
            host_probe(one->host, endpoint, NULL);
    }
    for (int64_t end_ns = clock_ns() + ANSWER_NS; asked > 0 && clock_ns() < end_ns && !check_stopped(interrupts);) {
        interrupts_wait(interrupts, TURN_MS);
        host_pool_tend(pool, clock_ns());
        asked = 0;
        for (uint32_t i = 1; i < n; i++)
            asked += host_pool_at(pool, i)->ready && !host_pool_at(pool, i)->info->probe.done;
    }
}

/* Prints what was found out about a host. Returns true if it can work. */
static bool print_host(const struct pool_host *host, const struct broker_config *broker, const char *bound, FILE *out)
{
    const struct host_info *info = host->info;
    char endpoint[HOST_PATH];
    format_buffer memory;
    if (!host->ready)
        fprintf(out, "cannot work: %s\n", info->reason[0] ? info->reason : "no connection within 10 s");
    else if (!find_endpoint(info, broker, bound, endpoint))
        fprintf(out, "cannot work: this machine has no address that others could use\n");
    else if (!info->probe.done)
        fprintf(out, "cannot work: it gives no answer\n");
    else if (!info->probe.ok)
        fprintf(out, "cannot work: it does not reach this machine at %.200s: %.120s; write broker.advertise\n",
                endpoint, info->probe.text[0] ? info->probe.text : "no connection");
    else
        fprintf(out, "%s, %g cores, %s; programs in %s%s; reaches this machine at %s\n", info->facts.model,
                info->facts.cores, format_bytes(memory, (uint64_t)info->facts.memory), info->facts.programs,
                info->sent ? " (sent)" : "", endpoint);
    return host->ready && info->probe.ok;
}

static void print_all(const struct host_pool *pool, const struct broker_config *broker, const char *bound, FILE *out,
                      rp_error *err)
{
    uint32_t broken = 0, n = host_pool_count(pool);
    int width = 0;
    for (uint32_t i = 1; i < n; i++) {
        int length = (int)strlen(host_pool_at(pool, i)->info->name);
        width = length > width ? length : width;
    }
    for (uint32_t i = 1; i < n; i++) {
        fprintf(out, "  %-*s  ", width, host_pool_at(pool, i)->info->name);
        broken += !print_host(host_pool_at(pool, i), broker, bound, out);
    }
    if (broken > 0)
        err_set(err, RP_UNAVAILABLE, "%u of %u hosts cannot work", broken, n - 1);
}

rp_status host_check(const struct command_context *home, struct interrupts *interrupts, FILE *out, rp_error *err)
{
    const struct broker_config *broker = &home->config->broker;
    struct host_pool_options options = {.home = *home};
    options.home.folder = "/dev/null"; /* nothing is written at home */
    options.home.config_path = NULL;
    options.home.keys = NULL;
    void *context = zmq_ctx_new(), *listener = zmq_socket(context, ZMQ_STREAM);
    const char *colon = strncmp(broker->service, "tcp://", 6) == 0 ? strrchr(broker->service, ':') : NULL;
    char bound[HOST_PATH]; /* at the broker's port, if the file says one and it is free */
    bool listens = (colon && listen_at(listener, colon + 1, bound)) || listen_at(listener, "0", bound);
    struct host_pool *pool = listens ? host_pool_new(&options, err) : NULL;
    if (!listens)
        err_fill(err, RP_IO, "cannot listen for connections of hosts: %s", zmq_strerror(errno));
    if (pool) {
        try_all(pool, broker, bound, interrupts);
        if (interrupts->asked > 0)
            err_set(err, RP_CANCELLED, "interrupted");
        else
            print_all(pool, broker, bound, out, err);
    }
    host_pool_destroy(&pool);
    zmq_close(listener);
    zmq_ctx_term(context);
    return (rp_status)err->status;
}
