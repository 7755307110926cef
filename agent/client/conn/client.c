#include "agent/client/conn/client.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/forks.h"
#include "proto/base/log.h"
#include "proto/base/rng.h"
#include "proto/base/trace.h"
#include "replay/trace.h"
#include "replay/types.h"

/* How to connect. */
struct client_plan {
    const char *endpoints; /* one, or several separated by commas */
    rp_client_options options;
    const struct conn_host *host; /* NULL: every connection has a thread */
    bool any;                     /* any shard is enough, even without shard 0 */
};

struct rp_client {
    /* By the number of the shard; until the first answer: the connections to the endpoints that were named. */
    struct conn **conns;
    uint32_t n;
    uint32_t forks; /* forks_count and process id of the process that made it */
    pid_t pid;
    void *zmq;   /* context of the connections that do not have their own; NULL: none */
    uint64_t id; /* that all connections state */
    struct conn_shards shards;
    char name[RP_MAX_NAME + 1];
    struct client_plan plan;  /* with its own texts; the host is borrowed until the client is connected */
    pthread_mutex_t opening;  /* of several threads that wait for the connection, one goes on with it */
    rp_error failure;         /* of what followed the first answer: it stays */
    struct conn_hello *hello; /* the first answer: rp_client_table borrows names from it */
    uint32_t nearest;         /* atomic: number of the shard to read from */
};

/* ---- connecting to all shards */

/* Shards that have not answered this long after the first are left to themselves; so are, earlier, endpoints that were named:
 * the answer says where all shards are. */
#define GRACE_NS NS_PER_S
#define NAMED_GRACE_NS (250 * NS_PER_MS)
#define ZMQ_THREADS_MOST 8
#define SOCKETS_MOST 65535u /* of a context */

/* True if the broker runs on the caller's thread. */
static bool is_hosted(const struct client_plan *plan)
{
    return plan->host && plan->host->channels;
}

/* A context for connections that share one: with a thread for each shard, as far as there are processors, and as many sockets for each
 * as a broker that is alone has. */
static void *shared_context(rp_client *self, uint32_t shards)
{
    const struct client_plan *plan = &self->plan;
    if (self->zmq || plan->options.zmq_context || is_hosted(plan))
        return self->zmq ? self->zmq : plan->options.zmq_context;
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

/* Opens a connection to one shard, without waiting. context NULL: it has its own. */
static rp_status open_one(rp_client *self, struct conn_plan one, void *context, struct conn **out, rp_error *err)
{
    rp_client_options options = self->plan.options;
    if (context)
        options.zmq_context = context;
    one.options = &options;
    one.host = self->plan.host;
    one.shards = &self->shards;
    one.client_id = self->id;
    return conn_open(&one, out, err);
}

/* Opens a connection to every endpoint that was named. */
static rp_status open_named(rp_client *self, rp_error *err)
{
    const struct client_plan *plan = &self->plan;
    uint32_t n = 1;
    for (const char *at = plan->endpoints; *at && !is_hosted(plan); at++)
        n += *at == ',';
    if (n > WIRE_MAX_SHARDS)
        return err_set(err, RP_INVALID_ARGUMENT, "%u endpoints: there are at most %u shards", n, WIRE_MAX_SHARDS);
    char *names = strdup(plan->endpoints), *rest = names;
    self->conns = calloc(n, sizeof(struct conn *));
    void *context = n > 1 ? shared_context(self, n) : NULL;
    rp_status status = RP_OK;
    if (!names || !self->conns || (n > 1 && !context))
        status = err_set(err, RP_NO_MEMORY, "no memory for a client");
    while (status == RP_OK && self->n < n) {
        const char *name = n > 1 ? strsep(&rest, ",") : names;
        struct conn_plan one = {.endpoint = name + strspn(name, " "), .shard = CONN_SHARD_UNKNOWN};
        status = open_one(self, one, context, &self->conns[self->n], err);
        self->n += status == RP_OK;
    }
    free(names);
    return status;
}

/* Waits until all connections are up, or one is refused. When enough of them are up it waits for a while only. Of the endpoints
 * that were named (`named`) any is enough, of all shards the first must be up. */
static rp_status await(rp_client *self, bool named, int64_t timeout_ms, int64_t deadline, rp_error *err)
{
    uint32_t up;
    bool enough, in_time = true;
    rp_error refusal = {0};
    pthread_mutex_lock(&self->shards.mutex);
    for (;;) {
        struct conn *any = NULL; /* while another thread opens the connections, some are not there yet */
        bool first_is_up = false;
        up = 0;
        for (uint32_t i = 0; i < self->n; i++) {
            bool is_up = self->conns[i] && conn_outcome(self->conns[i], &refusal);
            first_is_up |= is_up && i == 0;
            up += is_up;
            any = self->conns[i] ? self->conns[i] : any;
        }
        enough = named || self->plan.any ? up > 0 : first_is_up;
        if (refusal.status != RP_OK || up == self->n || !in_time)
            break;
        int64_t grace = self->shards.first_ns + (named ? NAMED_GRACE_NS : GRACE_NS);
        int64_t until = enough && grace < deadline ? grace : deadline;
        in_time = conn_wait(any, &self->shards.changed, &self->shards.mutex, until);
    }
    pthread_mutex_unlock(&self->shards.mutex);
    if (refusal.status != RP_OK)
        return err_set(err, (rp_status)refusal.status, "%s", refusal.text);
    if (conn_is_stopped())
        return conn_stopped(err);
    if (enough)
        return RP_OK;
    double seconds = (double)timeout_ms / 1e3;
    if (named)
        return err_set(err, RP_UNAVAILABLE, "no broker answers at %.300s within %g s: %s", self->plan.endpoints,
                       seconds, conn_hint(self->conns[0]));
    return err_set(err, RP_UNAVAILABLE,
                   "shard 0 at %s does not answer within %g s (%u of %u shards do): it has the counters, so no client "
                   "starts without it",
                   conn_endpoint(self->conns[0]), seconds, up, self->n);
}

/* Returns RP_OK if two connections lead to one broker, as far as they have heard. */
static rp_status check_same(struct conn *a, struct conn *b, rp_error *err)
{
    struct conn_hello *one = conn_hello_ref(a), *other = conn_hello_ref(b);
    rp_status status = RP_OK;
    if (one && other && one->says->instance != other->says->instance)
        status = err_set(err, RP_FAILED_PRECONDITION,
                         "%.200s and %.200s are different brokers, and both answer as shard %u: name the shards of one "
                         "broker",
                         conn_endpoint(a), conn_endpoint(b), one->says->shard);
    conn_hello_unref(&one);
    conn_hello_unref(&other);
    return status;
}

/* Makes self->conns an array over all shards, with the named connections in their places. A connection that leads nowhere, or
 * where another one leads, is closed. */
static rp_status sort_named(rp_client *self, const struct conn_hello *hello, rp_error *err)
{
    uint32_t n = conn_hello_count(hello), n_named = self->n;
    struct conn **sorted = calloc(n, sizeof(struct conn *)), **named = self->conns;
    if (!sorted)
        return err_set(err, RP_NO_MEMORY, "no memory for %u shards", n);
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->shards.mutex);
    for (uint32_t i = 0; i < n_named; i++) {
        uint32_t shard = conn_shard(named[i]);
        for (uint32_t k = 0; shard == CONN_SHARD_UNKNOWN && k < hello->says->n_shards; k++)
            if (strcmp(hello->says->shards[k], conn_endpoint(named[i])) == 0)
                shard = k;
        if (shard != CONN_SHARD_UNKNOWN && sorted[shard] && status == RP_OK)
            status = check_same(sorted[shard], named[i], err);
        if (shard == CONN_SHARD_UNKNOWN || sorted[shard])
            continue;
        conn_number(named[i], shard);
        sorted[shard] = named[i];
        named[i] = NULL;
    }
    self->conns = sorted;
    self->n = n;
    pthread_mutex_unlock(&self->shards.mutex);
    for (uint32_t i = 0; i < n_named; i++)
        conn_destroy(&named[i]);
    free(named);
    return status;
}

/* A broker has answered: opens connections to the shards that were not named, as far as there are none yet. */
static rp_status open_rest(rp_client *self, rp_error *err)
{
    if (!self->hello) {
        for (uint32_t i = 0; i < self->n && !self->hello; i++)
            self->hello = conn_hello_ref(self->conns[i]);
        assert(self->hello);
        RP_TRY(sort_named(self, self->hello, err));
        self->nearest = (uint32_t)(self->id / 2 % self->n); /* ids are odd */
    }
    if (self->n == 1)
        return RP_OK;
    if (is_hosted(&self->plan))
        return err_set(err, RP_UNSUPPORTED, "a broker on this thread cannot be one of %u shards", self->n);
    void *context = shared_context(self, self->n);
    if (!context)
        return err_set(err, RP_NO_MEMORY, "no memory for %u shards", self->n);
    for (uint32_t i = 0; i < self->n; i++) {
        struct conn_plan one = {.endpoint = self->hello->says->shards[i], .shard = i};
        struct conn *conn;
        if (self->conns[i])
            continue;
        RP_TRY(open_one(self, one, context, &conn, err));
        pthread_mutex_lock(&self->shards.mutex);
        self->conns[i] = conn;
        pthread_mutex_unlock(&self->shards.mutex);
    }
    return RP_OK;
}

rp_status rp_client_wait(rp_client *client, int64_t timeout_ms, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    RP_TRY(conn_check_forks(client->forks, client->pid, err));
    RP_TRY(await(client, true, timeout_ms, deadline, err));
    pthread_mutex_lock(&client->opening);
    if (client->failure.status == RP_OK)
        open_rest(client, &client->failure);
    rp_status status = (rp_status)client->failure.status;
    if (status != RP_OK)
        err_set(err, status, "%s", client->failure.text);
    pthread_mutex_unlock(&client->opening);
    if (status == RP_OK)
        status = await(client, false, timeout_ms, deadline, err);
    for (uint32_t i = 0; status == RP_OK && i < client->n; i++)
        conn_stand_in(client->conns[i], client->hello);
    return status;
}

/* ---- life */

rp_status client_check_name(const char *what, const char *name, rp_error *err)
{
    size_t size = name ? strlen(name) : 0;
    if (size == 0 || size > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a %s has 1 to %u bytes", what, RP_MAX_NAME);
    return RP_OK;
}

rp_status client_copy_out(void *out, const void *from, size_t size, rp_error *err)
{
    uint32_t known;
    memcpy(&known, out, sizeof known);
    if (known < 2 * sizeof known)
        return err_set(err, RP_INVALID_ARGUMENT, "set struct_size to the size of the struct");
    memcpy(out, from, known < size ? known : size);
    memcpy(out, &known, sizeof known);
    return RP_OK;
}

rp_status client_copy_options(void *out, size_t size, const void *given, const char *what, rp_error *err)
{
    uint32_t known = 2 * sizeof known;
    memset(out, 0, size);
    if (given)
        memcpy(&known, given, sizeof known);
    if (known < 2 * sizeof known)
        return err_set(err, RP_INVALID_ARGUMENT, "set struct_size of %s to its size", what);
    if (given)
        memcpy(out, given, known < size ? known : size);
    return RP_OK;
}

/* Starts to connect. options: of the caller; NULL: none. */
static rp_client *open_by(struct client_plan plan, const rp_client_options *options, rp_error *err)
{
    if (client_copy_options(&plan.options, sizeof plan.options, options, "rp_client_options", err) != RP_OK)
        return NULL;
    if (plan.options.name && strlen(plan.options.name) > RP_MAX_NAME)
        return err_null(err, RP_INVALID_ARGUMENT, "a client's name has at most %u bytes", RP_MAX_NAME);
    if (!plan.endpoints || !*plan.endpoints)
        return err_null(err, RP_INVALID_ARGUMENT, "an endpoint is needed, such as tcp://127.0.0.1:7600");
    rp_client *self = calloc(1, sizeof *self);
    if (!self)
        return err_null(err, RP_NO_MEMORY, "no memory for a client");
    if (plan.options.name)
        snprintf(self->name, sizeof self->name, "%s", plan.options.name);
    else
        snprintf(self->name, sizeof self->name, "client-%ld", (long)getpid());
    conn_shards_init(&self->shards);
    pthread_mutex_init(&self->opening, NULL);
    rng_system(&self->id, sizeof self->id);
    self->id |= 1; /* 0 stands for no client */
    const char *key_file = plan.options.key_file;
    plan.options.name = self->name;
    plan.options.key_file = key_file ? strdup(key_file) : NULL;
    plan.endpoints = strdup(plan.endpoints);
    self->plan = plan;
    self->pid = getpid();
    bool watched = forks_watch();
    self->forks = forks_count();
    bool copied = watched && plan.endpoints && (plan.options.key_file || !key_file);
    if (!copied)
        err_set(err, RP_NO_MEMORY, "no memory for a client");
    if (!copied || open_named(self, err) != RP_OK)
        rp_client_destroy(&self);
    return self;
}

static rp_client *connect_by(struct client_plan plan, const rp_client_options *options, int64_t timeout_ms,
                             rp_error *err)
{
    rp_client *self = open_by(plan, options, err);
    if (self && rp_client_wait(self, timeout_ms, err) != RP_OK)
        rp_client_destroy(&self);
    return self;
}

rp_client *rp_client_open(const char *endpoints, const rp_client_options *options, rp_error *err)
{
    return open_by((struct client_plan){.endpoints = endpoints}, options, err);
}

rp_client *rp_client_connect(const char *endpoints, const rp_client_options *options, int64_t timeout_ms, rp_error *err)
{
    return connect_by((struct client_plan){.endpoints = endpoints}, options, timeout_ms, err);
}

rp_client *client_connect(const char *endpoints, const rp_client_options *options, const struct conn_host *host,
                          int64_t timeout_ms, rp_error *err)
{
    return connect_by((struct client_plan){.endpoints = endpoints, .host = host}, options, timeout_ms, err);
}

rp_client *client_connect_any(const char *endpoints, const rp_client_options *options, int64_t timeout_ms,
                              rp_error *err)
{
    return connect_by((struct client_plan){.endpoints = endpoints, .any = true}, options, timeout_ms, err);
}

/* The program has left objects of the client alive: what they need stays in memory for ever. */
static void abandon(rp_client *self, uint32_t users)
{
    log_line(LEVEL_ERROR, "C0107", "a client was destroyed before its writers, samplers or other objects",
             "alive=%u client=%s", users, log_text(self->plan.options.name ? self->plan.options.name : ""));
    for (uint32_t i = 0; i < self->n; i++)
        if (self->conns[i])
            conn_abandon(self->conns[i]);
    if (self->zmq)
        zmq_ctx_term(self->zmq);
}

void rp_client_destroy(rp_client **client)
{
    rp_client *self = client ? *client : NULL;
    if (!self)
        return;
    *client = NULL;
    bool foreign = self->forks != forks_count();
    uint32_t users = 0;
    for (uint32_t i = 0; i < self->n && !foreign; i++) {
        if (!self->conns[i])
            continue;
        conn_stop(self->conns[i]);
        users += conn_users(self->conns[i]);
    }
    if (users) {
        abandon(self, users);
        return;
    }
    conn_hello_unref(&self->hello);
    for (uint32_t i = 0; i < self->n; i++)
        conn_destroy(&self->conns[i]);
    free(self->conns);
    if (!foreign) { /* the parent's threads may hold the mutex, and libzmq would wait for its own */
        if (self->zmq)
            zmq_ctx_term(self->zmq);
        conn_shards_fini(&self->shards);
        pthread_mutex_destroy(&self->opening);
    }
    free((char *)(uintptr_t)self->plan.endpoints);
    free((char *)(uintptr_t)self->plan.options.key_file);
    free(self);
}

/* ---- the connections */

struct conn *client_conn(rp_client *self)
{
    return self->conns[0];
}

uint32_t client_shards(const rp_client *self)
{
    return self->n;
}

struct conn *client_shard(rp_client *self, uint32_t shard)
{
    return self->conns[shard];
}

uint32_t client_shard_of(const rp_client *self, uint64_t key)
{
    uint32_t shard = wire_key_shard(key);
    return shard < self->n ? shard : 0;
}

uint32_t client_nearest(rp_client *self)
{
    uint32_t at = __atomic_load_n(&self->nearest, __ATOMIC_RELAXED);
    if (self->n == 1 || conn_away_ns(self->conns[at]) < NS_PER_S)
        return at;
    return client_move_nearest(self, at);
}

uint32_t client_move_nearest(rp_client *self, uint32_t from)
{
    for (uint32_t i = 1; i < self->n; i++) {
        uint32_t next = (from + i) % self->n;
        if (conn_away_ns(self->conns[next]) != 0)
            continue;
        __atomic_compare_exchange_n(&self->nearest, &from, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        break;
    }
    return __atomic_load_n(&self->nearest, __ATOMIC_RELAXED);
}

void client_describe(rp_client *self, char *out, size_t size)
{
    out[0] = '\0';
    for (uint32_t i = 0; i < self->n; i++) {
        char one[400];
        conn_describe(self->conns[i], one, sizeof one);
        if (one[0])
            text_append(out, size, "%s%s", out[0] ? "; " : "", one);
    }
}

const char *client_name(const rp_client *self)
{
    return self->name;
}

int32_t rp_client_get_state(rp_client *client)
{
    struct conn *conn = client_conn(client);
    return conn_is_foreign(conn) || !conn_is_up(conn) ? RP_CLIENT_CONNECTING : RP_CLIENT_CONNECTED;
}

rp_status rp_client_get_info(rp_client *client, rp_client_info *out, rp_error *err)
{
    struct conn *conn = client_conn(client);
    RP_TRY(conn_check_process(conn, err));
    struct conn_hello *hello = conn_hello_ref(conn);
    rp_client_info info = {
        .state = rp_client_get_state(client),
        .id = conn_client_id(conn),
        .broker = conn_instance(conn),
        .tables = (uint32_t)hello->says->n_tables,
        .max_batch = hello->says->max_batch,
        .shards = client->n,
    };
    for (uint32_t i = 0; i < client->n; i++) {
        info.reconnects += conn_reconnects(client->conns[i]);
        info.connected_shards += conn_is_up(client->conns[i]);
    }
    snprintf(info.endpoint, sizeof info.endpoint, "%s", conn_endpoint(conn));
    snprintf(info.release, sizeof info.release, "%s", hello->says->release);
    conn_hello_unref(&hello);
    return client_copy_out(out, &info, sizeof info, err);
}

const char *rp_client_table(rp_client *client, uint32_t i)
{
    return i < client->hello->says->n_tables ? client->hello->says->tables[i]->name : NULL;
}

/* ---- spans of programs */

int64_t rp_trace_begin(rp_client *client)
{
    return client ? trace_now(conn_trace(client_conn(client))) : 0;
}

void rp_trace_end(rp_client *client, const char *name, int64_t start_ns)
{
    if (client && name && start_ns > 0 && !conn_is_foreign(client_conn(client)))
        trace_add_since(conn_trace(client_conn(client)), name, NULL, start_ns, 0);
}
