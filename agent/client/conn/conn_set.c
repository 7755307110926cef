/* Connects to all shards of a broker. */
#include "agent/client/conn/conn_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* Shards that have not answered this long after the first are left to themselves; so are, earlier, endpoints that were named:
 * the answer says where all shards are. */
#define GRACE_NS NS_PER_S
#define NAMED_GRACE_NS (250 * NS_PER_MS)
#define ZMQ_THREADS_MOST 8
#define SOCKETS_MOST 65535u /* of a context */

/* True if the broker runs on the caller's thread. */
static bool is_hosted(const struct conn_set_plan *plan)
{
    return plan->host && plan->host->ducts;
}

/* A context for connections that share one: with a thread for each shard, as far as there are processors, and as many sockets for each
 * as a broker that is alone has. */
static void *shared_context(struct conn_set *self, const struct conn_set_plan *plan, uint32_t shards)
{
    if (self->zmq || plan->options->zmq_context || is_hosted(plan))
        return self->zmq ? self->zmq : plan->options->zmq_context;
    long threads = sysconf(_SC_NPROCESSORS_ONLN);
    threads = threads < (long)shards ? threads : (long)shards;
    threads = threads < ZMQ_THREADS_MOST ? threads : ZMQ_THREADS_MOST;
    self->zmq = zmq_ctx_new();
    if (self->zmq) {
        zmq_ctx_set(self->zmq, ZMQ_IO_THREADS, threads > 0 ? (int)threads : 1);
        uint32_t sockets = shards * ZMQ_MAX_SOCKETS_DFLT;
        zmq_ctx_set(self->zmq, ZMQ_MAX_SOCKETS, (int)(sockets < SOCKETS_MOST ? sockets : SOCKETS_MOST));
    }
    return self->zmq;
}

static uint32_t count_names(const char *endpoints)
{
    uint32_t n = 1;
    for (const char *at = endpoints; *at; at++)
        n += *at == ',';
    return n;
}

/* Opens a connection to one shard, without waiting. context NULL: it has its own. */
static rp_status open_one(struct conn_set *self, const struct conn_set_plan *plan, struct conn_plan one, void *context,
                          struct conn **out, rp_error *err)
{
    rp_client_options options = *plan->options;
    if (context)
        options.zmq_context = context;
    one.options = &options;
    one.host = plan->host;
    one.set = self;
    one.client_id = self->client_id;
    return conn_open(&one, out, err);
}

/* Opens a connection to every endpoint that was named. */
static rp_status open_named(struct conn_set *self, const struct conn_set_plan *plan, rp_error *err)
{
    uint32_t n = is_hosted(plan) ? 1 : count_names(plan->endpoints);
    if (n > WIRE_MAX_SHARDS)
        return err_set(err, RP_INVALID_ARGUMENT, "%u endpoints: there are at most %u shards", n, WIRE_MAX_SHARDS);
    char *names = strdup(plan->endpoints), *rest = names;
    self->conns = calloc(n, sizeof(struct conn *));
    void *context = n > 1 ? shared_context(self, plan, n) : NULL;
    rp_status status = RP_OK;
    if (!names || !self->conns || (n > 1 && !context))
        status = err_set(err, RP_NO_MEMORY, "no memory for a client");
    while (status == RP_OK && self->n < n) {
        const char *name = n > 1 ? strsep(&rest, ",") : names;
        struct conn_plan one = {.endpoint = name + strspn(name, " "), .shard = CONN_SHARD_UNKNOWN};
        status = open_one(self, plan, one, context, &self->conns[self->n], err);
        self->n += status == RP_OK;
    }
    free(names);
    return status;
}

/* What the connections of a set do, counted with the set's mutex held. */
struct census {
    uint32_t up, refused;
    bool first_is_up;
    rp_error refusal; /* one of them */
};

static struct census count_states(struct conn_set *self)
{
    struct census out = {0};
    for (uint32_t i = 0; i < self->n; i++) {
        struct conn *conn = self->conns[i];
        pthread_mutex_lock(&conn->mutex);
        if (conn->state == LINK_UP) {
            out.up++;
            out.first_is_up |= i == 0;
        } else if (conn->refusal.status != RP_OK) {
            out.refused++;
            bool named = strstr(conn->refusal.text, conn->endpoint) != NULL;
            err_set(&out.refusal, (rp_status)conn->refusal.status, "%s%s%s", named ? "" : conn->endpoint,
                    named ? "" : ": ", conn->refusal.text);
        }
        pthread_mutex_unlock(&conn->mutex);
    }
    return out;
}

/* Waits until all connections are up, or one is refused. When enough are up (any, or the first), it waits until the end of the
 * grace only. */
static struct census await(struct conn_set *self, bool first, int64_t grace_ns, int64_t deadline)
{
    struct census census;
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        census = count_states(self);
        if (census.refused || census.up == self->n)
            break;
        bool enough = first ? census.first_is_up : census.up > 0;
        int64_t grace = self->first_ns + grace_ns;
        int64_t until = enough && grace < deadline ? grace : deadline;
        if (!conn_wait(self->conns[0], &self->changed, &self->mutex, until))
            break;
    }
    census = count_states(self);
    pthread_mutex_unlock(&self->mutex);
    return census;
}

/* Waits until one of the named endpoints has answered, and for a while for the others. */
static rp_status await_named(struct conn_set *self, const char *endpoints, int64_t deadline, int64_t timeout_ms,
                             rp_error *err)
{
    struct census census = await(self, false, NAMED_GRACE_NS, deadline);
    if (census.refused)
        return err_set(err, (rp_status)census.refusal.status, "%s", census.refusal.text);
    if (conn_is_stopped())
        return conn_stopped(err);
    if (census.up)
        return RP_OK;
    return err_set(
        err, RP_UNAVAILABLE,
        "no broker answers at %.300s within %g s: is replay-broker running, and is this its service endpoint?",
        endpoints, (double)timeout_ms / 1e3);
}

/* Waits for all shards, and for those that are not the first only for a while. */
static rp_status await_all(struct conn_set *self, bool any, int64_t deadline, int64_t timeout_ms, rp_error *err)
{
    struct census census = await(self, !any, GRACE_NS, deadline);
    if (census.refused)
        return err_set(err, (rp_status)census.refusal.status, "%s", census.refusal.text);
    if (conn_is_stopped())
        return conn_stopped(err);
    if (census.first_is_up || (any && census.up))
        return RP_OK;
    return err_set(err, RP_UNAVAILABLE,
                   "shard 0 at %s does not answer within %g s (%u of %u shards do): it has the counters, so no client "
                   "starts without it",
                   conn_endpoint(self->conns[0]), (double)timeout_ms / 1e3, census.up, self->n);
}

/* Returns the number of the shard that a connection is for; CONN_SHARD_UNKNOWN: of none. */
static uint32_t number_of(const struct conn *conn, const struct conn_hello *hello)
{
    for (uint32_t i = 0; conn->shard == CONN_SHARD_UNKNOWN && i < hello->n_shards; i++)
        if (strcmp(hello->shards[i], conn->endpoint) == 0)
            return i;
    return conn->shard;
}

/* Returns RP_OK if two connections lead to one broker, as far as they have heard. */
static rp_status check_same(struct conn *a, struct conn *b, rp_error *err)
{
    struct conn_hello *one = conn_hello_ref(a), *other = conn_hello_ref(b);
    rp_status status = RP_OK;
    if (one && other && one->instance != other->instance)
        status = err_set(err, RP_FAILED_PRECONDITION,
                         "%.200s and %.200s are different brokers, and both answer as shard %u: name the shards of one "
                         "broker",
                         conn_endpoint(a), conn_endpoint(b), one->shard);
    conn_hello_unref(&one);
    conn_hello_unref(&other);
    return status;
}

/* Makes self->conns an array over all shards, with the named connections in their places. A connection that leads nowhere, or
 * where another one leads, is closed. */
static rp_status sort_named(struct conn_set *self, const struct conn_hello *hello, rp_error *err)
{
    uint32_t n = conn_hello_count(hello), n_named = self->n;
    struct conn **sorted = calloc(n, sizeof(struct conn *)), **named = self->conns;
    if (!sorted)
        return err_set(err, RP_NO_MEMORY, "no memory for %u shards", n);
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->mutex);
    for (uint32_t i = 0; i < n_named; i++) {
        uint32_t shard = number_of(named[i], hello);
        if (shard != CONN_SHARD_UNKNOWN && sorted[shard] && status == RP_OK)
            status = check_same(sorted[shard], named[i], err);
        if (shard == CONN_SHARD_UNKNOWN || sorted[shard])
            continue;
        named[i]->shard = shard;
        sorted[shard] = named[i];
        named[i] = NULL;
    }
    self->conns = sorted;
    self->n = n;
    pthread_mutex_unlock(&self->mutex);
    for (uint32_t i = 0; i < n_named; i++)
        conn_destroy(&named[i]);
    free(named);
    return status;
}

/* Opens connections to the shards that were not named. */
static rp_status open_rest(struct conn_set *self, const struct conn_set_plan *plan, const struct conn_hello *hello,
                           rp_error *err)
{
    RP_TRY(sort_named(self, hello, err));
    if (self->n == 1)
        return RP_OK;
    if (is_hosted(plan))
        return err_set(err, RP_UNSUPPORTED, "a broker on this thread cannot be one of %u shards", self->n);
    void *context = shared_context(self, plan, self->n);
    if (!context)
        return err_set(err, RP_NO_MEMORY, "no memory for %u shards", self->n);
    for (uint32_t i = 0; i < self->n; i++) {
        struct conn_plan one = {.endpoint = hello->shards[i], .shard = i};
        if (!self->conns[i])
            RP_TRY(open_one(self, plan, one, context, &self->conns[i], err));
    }
    pthread_mutex_lock(&self->mutex);
    self->complete = true;
    pthread_mutex_unlock(&self->mutex);
    return RP_OK;
}

/* Gives those that have not answered what another one said. */
static rp_status stand_in(struct conn_set *self, const struct conn_hello *hello, rp_error *err)
{
    for (uint32_t i = 0; i < self->n; i++)
        RP_TRY(conn_stand_in(self->conns[i], hello, err));
    return RP_OK;
}

/* Returns what one of the connections heard. */
static struct conn_hello *any_hello(struct conn_set *self)
{
    struct conn_hello *hello = NULL;
    for (uint32_t i = 0; i < self->n && !hello; i++)
        hello = conn_hello_ref(self->conns[i]);
    return hello;
}

rp_status conn_set_open(struct conn_set *self, const struct conn_set_plan *plan, int64_t timeout_ms, rp_error *err)
{
    *self = (struct conn_set){.shards = 0};
    pthread_mutex_init(&self->mutex, NULL);
    conn_cond_init(&self->changed);
    rng_system(&self->client_id, sizeof self->client_id);
    self->client_id |= 1; /* 0 stands for no client */
    int64_t deadline = conn_deadline(timeout_ms);
    RP_TRY(open_named(self, plan, err));
    RP_TRY(await_named(self, plan->endpoints, deadline, timeout_ms, err));
    struct conn_hello *hello = any_hello(self);
    rp_status status = open_rest(self, plan, hello, err);
    if (status == RP_OK)
        status = await_all(self, plan->any, deadline, timeout_ms, err);
    if (status == RP_OK)
        status = stand_in(self, hello, err);
    conn_hello_unref(&hello);
    return status;
}

void conn_set_close(struct conn_set *self)
{
    bool foreign = self->n && self->conns[0] && conn_is_foreign(self->conns[0]);
    if (!foreign) {
        pthread_mutex_lock(&self->mutex);
        self->complete = false; /* a shard that comes back now tells nobody: others may be gone already */
        pthread_mutex_unlock(&self->mutex);
    }
    for (uint32_t i = 0; i < self->n && !foreign; i++)
        if (self->conns[i])
            conn_stop(self->conns[i]);
    for (uint32_t i = 0; i < self->n; i++)
        conn_destroy(&self->conns[i]);
    free(self->conns);
    if (foreign) /* the parent's threads may hold the mutex, and libzmq would wait for its own */
        return;
    if (self->zmq)
        zmq_ctx_term(self->zmq);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
}

void conn_set_describe(struct conn_set *self, char *out, size_t size)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < self->n && at + 1 < size; i++) {
        char one[400];
        conn_describe(self->conns[i], one, sizeof one);
        if (one[0])
            at += (size_t)snprintf(out + at, size - at, "%s%s", at ? "; " : "", one);
    }
}
