#include "agent/launch/profile/profile_hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/host/host_measure.h"
#include "agent/launch/process/machine.h"
#include "agent/launch/profile/profile_config.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define NETWORK_NS (1000 * NS_PER_MS)
/* A host answers this much later at most: connecting, and waiting for the sink. */
#define NETWORK_LATE_NS (15 * NS_PER_S)

bool profile_is_spread(const struct profile_options *options)
{
    return options->hosts && host_pool_count(options->hosts) > 1;
}

/* ---- which hosts ---- */

static void fill_host(const struct host_pool *pool, uint32_t index, struct plan_host *out)
{
    bool ready = host_pool_ready(pool, index);
    *out = (struct plan_host){.kind = host_pool_kind(pool, index),
                              .cores = host_pool_cores(pool, index),
                              .memory = host_pool_memory(pool, index),
                              .actors = ready && host_pool_takes(pool, index, ROLE_ACTOR),
                              .learners = ready && host_pool_takes(pool, index, ROLE_LEARNER)};
    snprintf(out->name, sizeof out->name, "%s", host_pool_name(pool, index));
}

static struct plan_host *make_hosts(const struct host_pool *pool, uint32_t *n)
{
    *n = host_pool_count(pool);
    struct plan_host *hosts = calloc(*n, sizeof *hosts);
    for (uint32_t i = 0; hosts && i < *n; i++)
        fill_host(pool, i, &hosts[i]);
    return hosts;
}

rp_status profile_hosts_fill(const struct host_pool *pool, struct plan_input *out, rp_error *err)
{
    uint32_t n;
    struct plan_host *hosts = make_hosts(pool, &n);
    if (!hosts)
        return err_set(err, RP_NO_MEMORY, "no memory for %u hosts", n);
    plan_input_free(out);
    out->hosts = hosts;
    out->n_hosts = n;
    return RP_OK;
}

uint32_t profile_hosts_first(const struct plan_input *input, uint32_t kind)
{
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (input->hosts[i].kind == kind && input->hosts[i].actors)
            return i;
    return PROFILE_NO_HOST;
}

uint32_t profile_hosts_fixed(const struct plan_input *out, uint32_t kind)
{
    uint32_t n = out->n_hosts, *at = n > 0 ? calloc((size_t)n * 2, sizeof *at) : NULL, most = 1;
    if (out->fixed_actors == 0 || !at) {
        free(at);
        return out->fixed_actors;
    }
    struct plan_input empty = {.hosts = calloc(n, sizeof *empty.hosts), .n_hosts = n}; /* by free cores */
    for (uint32_t i = 0; empty.hosts && i < n; i++) {
        empty.hosts[i] = out->hosts[i];
        empty.hosts[i].curve.n = 0;
    }
    if (empty.hosts)
        plan_place(&empty, out->fixed_actors, out->fixed_learners, at, at + n);
    for (uint32_t i = 0; i < n; i++)
        most = out->hosts[i].kind == kind && at[i] > most ? at[i] : most;
    plan_input_free(&empty);
    free(at);
    return most;
}

static bool any_takes(const struct plan_input *input, bool actors)
{
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (actors ? input->hosts[i].actors : input->hosts[i].learners)
            return true;
    return false;
}

bool profile_hosts_leave_out(struct profile *self, uint32_t host)
{
    struct plan_input *out = self->out;
    out->hosts[host].actors = out->hosts[host].learners = false;
    out->n_joints = out->n_loads = 0; /* they were made with the host */
    plan_add_up(out);
    profile_fill(self->config, out);
    self->session.lost = PROFILE_NO_HOST;
    bool left = any_takes(out, true) && any_takes(out, false);
    if (left)
        profile_say(self, "%s was lost: measuring goes on without it: %s", out->hosts[host].name,
                    host_reason(host_pool_at(self->options->hosts, host)));
    return left;
}

/* ---- the cache ---- */

static const char *model_of(const struct host_pool *pool, uint32_t index, char *out, size_t size)
{
    if (index == HOST_POOL_HOME)
        return machine_model(out, size);
    snprintf(out, size, "%s", host_facts(host_pool_at(pool, index))->model);
    return out;
}

/* True if a host before this one gives the same line. */
static bool is_told(const struct plan_host *hosts, uint32_t index)
{
    for (uint32_t i = 1; i < index; i++)
        if (hosts[i].kind == hosts[index].kind && hosts[i].actors == hosts[index].actors &&
            hosts[i].learners == hosts[index].learners)
            return true;
    return false;
}

void profile_hosts_key(const struct profile_options *options, FILE *out)
{
    char model[160];
    uint32_t n;
    if (!profile_is_spread(options)) {
        double cores = options->config->plan.cores > 0 ? options->config->plan.cores : machine_cores();
        fprintf(out, "machine %s\ncores %g\n", machine_model(model, sizeof model), cores);
        return;
    }
    struct plan_host *hosts = make_hosts(options->hosts, &n);
    for (uint32_t i = 0; hosts && i < n; i++)
        if (i == HOST_POOL_HOME || ((hosts[i].actors || hosts[i].learners) && !is_told(hosts, i)))
            fprintf(out, "%s %s, %g cores%s%s\n", i == HOST_POOL_HOME ? "home" : "host",
                    model_of(options->hosts, i, model, sizeof model), hosts[i].cores, hosts[i].actors ? ", actors" : "",
                    hosts[i].learners ? ", learners" : "");
    free(hosts);
}

/* The kinds of which hosts take processes, in the order of their first such host. */
struct kinds {
    uint32_t *kind, *actors, *learners; /* index of the kind; number of its hosts that take each role */
    uint32_t n;
};

static void kinds_free(struct kinds *self)
{
    free(self->kind);
    *self = (struct kinds){0};
}

static bool kinds_find(struct kinds *self, const struct plan_host *hosts, uint32_t n)
{
    *self = (struct kinds){.kind = calloc((size_t)n * 3, sizeof *self->kind)};
    if (!self->kind)
        return false;
    self->actors = self->kind + n;
    self->learners = self->actors + n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        if (!hosts[i].actors && !hosts[i].learners)
            continue;
        while (k < self->n && self->kind[k] != hosts[i].kind)
            k++;
        if (k == self->n)
            self->kind[self->n++] = hosts[i].kind;
        self->actors[k] += hosts[i].actors;
        self->learners[k] += hosts[i].learners;
    }
    return true;
}

/* Gives each kind the curve that it had; the key of the cache says that the kinds are the same ones in the same order. */
static bool carry_over(const struct kinds *from, const struct plan_input *input, const struct kinds *to,
                       struct plan_host *hosts, bool *same)
{
    *same = true;
    for (uint32_t k = 0; k < to->n; k++) {
        const struct plan_curve *curve = &input->hosts[from->kind[k]].curve;
        if (to->actors[k] > 0 && curve->n == 0)
            return false;
        hosts[to->kind[k]].curve = *curve;
        *same = *same && from->actors[k] == to->actors[k] && from->learners[k] == to->learners[k];
    }
    return true;
}

bool profile_hosts_adopt(const struct host_pool *pool, struct plan_input *out, bool *same)
{
    uint32_t n;
    struct plan_host *hosts = make_hosts(pool, &n);
    struct kinds from = {0}, to = {0};
    bool ok = hosts && out->n_hosts > 0 && kinds_find(&from, out->hosts, out->n_hosts) && kinds_find(&to, hosts, n) &&
              from.n == to.n && carry_over(&from, out, &to, hosts, same);
    kinds_free(&from);
    kinds_free(&to);
    if (!ok) {
        free(hosts);
        return false;
    }
    plan_input_free(out);
    out->hosts = hosts;
    out->n_hosts = n;
    if (!*same) {
        out->n_joints = out->n_loads = 0;
        out->network = 0;
        out->settled = false;
    }
    plan_add_up(out);
    return true;
}

/* ---- the network ---- */

/* The address of the sink as a host sees it: that of the broker, with another port. */
static void address_for(struct profile *self, uint32_t host, uint16_t port, char *out, size_t size)
{
    static const char scheme[] = "tcp://";
    struct endpoints endpoints = self->session.endpoints;
    struct command_context base = self->session.context, there;
    char *colon = strrchr(endpoints.service, ':');
    if (colon)
        snprintf(colon, sizeof endpoints.service - (size_t)(colon - endpoints.service), ":%u", port);
    base.endpoints = &endpoints;
    host_pool_context(self->options->hosts, host, &base, &there);
    const char *service = there.endpoints->service;
    snprintf(out, size, "%s", service + (strncmp(service, scheme, sizeof scheme - 1) == 0 ? sizeof scheme - 1 : 0));
}

/* Returns how many hosts have begun to send. */
static uint32_t begin_all(struct profile *self, uint16_t port)
{
    const struct plan_input *out = self->out;
    uint32_t begun = 0;
    for (uint32_t i = 1; i < out->n_hosts; i++) {
        char address[300];
        if (!out->hosts[i].actors || !host_pool_ready(self->options->hosts, i))
            continue;
        address_for(self, i, port, address, sizeof address);
        begun += host_measure_begin(host_pool_at(self->options->hosts, i), address, NETWORK_NS, NULL) == RP_OK;
    }
    return begun;
}

struct answers {
    const struct profile *profile;
    uint32_t begun, answered;
    double rate; /* bytes/s of all */
    char why[200];
};

static bool all_answered(struct profile_session *session, void *context)
{
    struct answers *answers = context;
    const struct plan_input *out = answers->profile->out;
    answers->answered = 0;
    answers->rate = 0;
    for (uint32_t i = 1; i < out->n_hosts; i++) {
        const char *why = "";
        if (!out->hosts[i].actors)
            continue;
        double rate = host_measure_result(host_pool_at(session->hosts, i), &why);
        answers->answered += rate != 0 || !host_pool_ready(session->hosts, i);
        answers->rate += rate > 0 ? rate : 0;
        if (rate < 0)
            snprintf(answers->why, sizeof answers->why, "%s: %s", out->hosts[i].name, why);
    }
    return answers->answered >= answers->begun;
}

static rp_status measure_network(struct profile *self, rp_error *err)
{
    uint16_t port = 0;
    struct host_measure_sink *sink = host_measure_sink_open(NULL, &port, err);
    if (!sink)
        return RP_UNAVAILABLE;
    profile_session_tell(&self->session, PROFILE_ALONE_END, PROFILE_ALONE_END, "the network to this machine");
    struct answers answers = {.profile = self, .begun = begin_all(self, port)};
    rp_status status = answers.begun > 0 ? profile_session_await(&self->session, all_answered, &answers,
                                                                 NETWORK_NS + NETWORK_LATE_NS, err)
                                         : RP_OK;
    host_measure_sink_close(&sink);
    self->out->network = answers.rate;
    if (answers.why[0])
        profile_say(self, "the network was not measured in full: %s", answers.why);
    return status == RP_DEADLINE_EXCEEDED ? RP_OK : status;
}

rp_status profile_measure_network(struct profile *self, rp_error *err)
{
    struct profile_session_options options = {.profile = self->options, .name = "network", .share = PROFILE_ALONE_END};
    rp_status status = profile_session_open(&self->session, &options, err);
    if (status == RP_OK)
        status = measure_network(self, err);
    profile_session_close(&self->session);
    return status;
}
