/* Opens and closes a connection, and answers questions about its state. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/forks.h"
#include "proto/base/open_files.h"

/* ---- state */

bool conn_is_foreign(const struct conn *self)
{
    return self->forks != forks_count();
}

rp_status conn_check_process(const struct conn *self, rp_error *err)
{
    if (!conn_is_foreign(self))
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "this client belongs to process %ld, and this is process %ld: make a new client after fork",
                   (long)self->pid, (long)getpid());
}

const char *conn_endpoint(const struct conn *self)
{
    return __atomic_load_n(&self->endpoint, __ATOMIC_ACQUIRE);
}

void *conn_zmq_context(struct conn *self)
{
    return self->context;
}

bool conn_is_hosted(const struct conn *self)
{
    return self->broker.turn != NULL;
}

bool conn_is_inside(const struct conn *self)
{
    return conn_is_hosted(self) || strncmp(conn_endpoint(self), "inproc://", 9) == 0;
}

struct duct *conn_data_duct(struct conn *self)
{
    return conn_is_hosted(self) ? &self->broker.ducts->data : NULL;
}

uint64_t conn_client_id(const struct conn *self)
{
    return self->client_id;
}

bool conn_has_key(const struct conn *self)
{
    return self->has_key;
}

int32_t conn_state(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    enum link_state state = self->state;
    pthread_mutex_unlock(&self->mutex);
    return state == LINK_UP ? RP_CLIENT_CONNECTED : RP_CLIENT_CONNECTING;
}

uint64_t conn_reconnects(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    uint64_t n = self->reconnects;
    pthread_mutex_unlock(&self->mutex);
    return n;
}

int64_t conn_away_ns(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    int64_t away = self->state == LINK_UP ? 0 : conn_now() - self->lost_ns + 1;
    pthread_mutex_unlock(&self->mutex);
    return away;
}

uint32_t conn_shard(const struct conn *self)
{
    return self->shard;
}

/* True if messages name the shard. */
static bool has_number(const struct conn *self)
{
    return self->set->n > 1 && self->shard != CONN_SHARD_UNKNOWN;
}

const char *conn_title(const struct conn *self, char *out, size_t size)
{
    if (has_number(self))
        snprintf(out, size, "shard %u at %s", self->shard, conn_endpoint(self));
    else
        snprintf(out, size, "the broker at %s", conn_endpoint(self));
    return out;
}

void conn_describe(struct conn *self, char *out, size_t size)
{
    out[0] = '\0';
    pthread_mutex_lock(&self->mutex);
    double lost_s = (double)(conn_now() - self->lost_ns) / 1e9;
    const char *reason = self->refusal.text, *colon = reason[0] ? ": " : "";
    if (self->state == LINK_UP)
        out[0] = '\0';
    else if (strstr(reason, self->endpoint)) /* it answers, and the sentence says who, and why it is refused */
        snprintf(out, size, "%s", reason);
    else if (has_number(self) && (!self->hello || self->hello->basis)) /* who knows since when */
        snprintf(out, size, "shard %u at %s does not answer (tried for %.1f s)%s%s", self->shard, self->endpoint,
                 lost_s, colon, reason);
    else if (has_number(self))
        snprintf(out, size, "shard %u at %s has not answered for %.1f s%s%s", self->shard, self->endpoint, lost_s,
                 colon, reason);
    else
        snprintf(out, size, "no broker answers at %s for %.1f s%s%s", self->endpoint, lost_s, colon, reason);
    pthread_mutex_unlock(&self->mutex);
}

/* ---- life */

static char *host_of(const char *endpoint)
{
    static const char tcp[] = "tcp://";
    if (strncmp(endpoint, tcp, sizeof tcp - 1) != 0)
        return NULL;
    const char *start = endpoint + sizeof tcp - 1, *local = strchr(start, ';'), *colon = strrchr(start, ':');
    if (local && local < colon)
        start = local + 1;
    return colon ? strndup(start, (size_t)(colon - start)) : NULL;
}

/* Returns the connection's own copy of an endpoint. NULL: no memory. */
static const char *place_of(struct conn *self, const char *endpoint)
{
    for (const struct conn_place *place = self->places; place; place = place->next)
        if (strcmp(place->endpoint, endpoint) == 0)
            return place->endpoint;
    size_t size = strlen(endpoint) + 1;
    struct conn_place *place = malloc(sizeof *place + size);
    if (!place)
        return NULL;
    memcpy(place->endpoint, endpoint, size);
    place->next = self->places;
    self->places = place;
    return place->endpoint;
}

void conn_moved(struct conn *self, const char *endpoint)
{
    pthread_mutex_lock(&self->mutex);
    self->other = strcmp(endpoint, self->endpoint) == 0 ? NULL : place_of(self, endpoint);
    pthread_mutex_unlock(&self->mutex);
}

void conn_change_place(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    const char *before = self->endpoint;
    bool change = self->other != NULL;
    if (change) {
        __atomic_store_n(&self->endpoint, self->other, __ATOMIC_RELEASE);
        self->other = before;
    }
    pthread_mutex_unlock(&self->mutex);
    if (change) {
        free(self->host);
        self->host = host_of(self->endpoint);
    }
}

static rp_status conn_start(struct conn *self, rp_error *err)
{
    int fds[2];
    self->started = self->broker.turn != NULL;
    if (self->started)
        return RP_OK;
    if (pipe(fds) != 0)
        return err_set(err, RP_IO, "no pipe for the client's thread: %s", strerror(errno));
    self->wake_read = fds[0];
    self->wake_write = fds[1];
    for (int i = 0; i < 2; i++) {
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
        fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&self->thread, NULL, conn_main, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->started = rc == 0;
    return rc == 0 ? RP_OK : err_set(err, RP_IO, "no thread for the client: %s", strerror(rc));
}

/* Longest back-off in milliseconds: a day. More is no help, and must not overflow in nanoseconds. */
#define BACKOFF_MOST_MS INT64_C(86400000)

/* Lets libzmq check the endpoint once, before the thread starts to retry. */
static rp_status conn_check(struct conn *self, rp_error *err)
{
    void *probe = zmq_socket(self->context, ZMQ_DEALER);
    if (!probe)
        return err_set(err, RP_IO, "no socket: %s", zmq_strerror(zmq_errno()));
    int linger = 0, rc = zmq_setsockopt(probe, ZMQ_LINGER, &linger, sizeof linger);
    bool inproc = strncmp(self->endpoint, "inproc://", 9) == 0;
    if (rc == 0 && !(inproc ? conn_secure(self, probe) : conn_connect(self, probe, self->endpoint)))
        rc = -1;
    int reason = zmq_errno();
    zmq_close(probe);
    if (rc != 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "'%.200s' is not an endpoint to connect to (%s): write tcp://HOST:PORT, such as "
                       "tcp://127.0.0.1:7600",
                       self->endpoint, zmq_strerror(reason));
    return RP_OK;
}

static void set_back_off(struct conn *self, const rp_client_options *options)
{
    int64_t min_ms = options && options->backoff_min_ms > 0 ? options->backoff_min_ms : 50;
    int64_t max_ms = options && options->backoff_max_ms > 0 ? options->backoff_max_ms : 5000;
    min_ms = min_ms < BACKOFF_MOST_MS ? min_ms : BACKOFF_MOST_MS;
    max_ms = max_ms < BACKOFF_MOST_MS ? max_ms : BACKOFF_MOST_MS;
    self->backoff_min_ns = min_ms * NS_PER_MS;
    self->backoff_max_ns = (max_ms < min_ms ? min_ms : max_ms) * NS_PER_MS;
}

static bool is_hosted(const struct conn_plan *plan)
{
    return plan->host && plan->host->ducts;
}

static void conn_init(struct conn *self, const struct conn_plan *plan)
{
    const rp_client_options *options = plan->options;
    uint64_t seed = 0;
    self->forks = forks_count();
    self->pid = getpid();
    self->wake_read = self->wake_write = -1;
    if (is_hosted(plan))
        self->broker = *plan->host;
    self->set = plan->set;
    self->shard = plan->shard;
    self->is_shard = plan->shard != CONN_SHARD_UNKNOWN;
    self->io_thread = plan->shard;
    self->client_id = plan->client_id;
    pthread_mutex_init(&self->mutex, NULL);
    trace_init(&self->trace);
    conn_cond_init(&self->changed);
    set_back_off(self, options);
    rng_system(&seed, sizeof seed);
    rng_seed(&self->rng, seed);
    atomic_store(&self->next_id, 1);
    self->lost_ns = conn_now();
    link_expect(self, self->lost_ns);
    self->endpoint = place_of(self, plan->endpoint);
    self->name = strdup(options->name ? options->name : "client");
    self->host = host_of(plan->endpoint);
    self->own_context = !options->zmq_context && !is_hosted(plan);
    self->context = self->own_context ? zmq_ctx_new() : options->zmq_context;
}

/* Descriptors that a connection takes, and as many again for its writers and samplers; each I/O thread of its context takes two
 * more. */
#define CONN_DESCRIPTORS 32
#define CONN_PER_IO_THREAD 2

rp_status conn_open(const struct conn_plan *plan, struct conn **out, rp_error *err)
{
    void *context = plan->options->zmq_context;
    int threads = context ? zmq_ctx_get(context, ZMQ_IO_THREADS) : 1;
    if (!is_hosted(plan))
        RP_TRY(open_files_check((uint32_t)(CONN_DESCRIPTORS + CONN_PER_IO_THREAD * (threads > 0 ? threads : 0)),
                                "a client", "two more for each writer or sampler", err));
    struct conn *self = calloc(1, sizeof *self);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for a client");
    bool watched = forks_watch();
    conn_init(self, plan);
    rp_status status = RP_OK;
    if (!watched || !self->endpoint || !self->name || !(self->context || is_hosted(plan)))
        status = err_set(err, RP_NO_MEMORY, "no memory for a client");
    if (status == RP_OK)
        status = conn_key_load(self, plan->options, plan->host ? plan->host->key : NULL, err);
    if (status == RP_OK && !is_hosted(plan))
        status = conn_check(self, err);
    if (status == RP_OK)
        status = conn_start(self, err);
    if (status == RP_OK)
        *out = self;
    else
        conn_destroy(&self);
    return status;
}

rp_status conn_stand_in(struct conn *self, const struct conn_hello *from, rp_error *err)
{
    pthread_mutex_lock(&self->mutex);
    if (!self->hello)
        self->hello = hello_stand_in(from);
    bool ok = self->hello != NULL;
    pthread_mutex_unlock(&self->mutex);
    return ok ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for a client");
}

void conn_stop(struct conn *self)
{
    atomic_store(&self->stopping, true);
    conn_wake(self);
}

static void conn_free(struct conn *self)
{
    if (self->wake_read >= 0) {
        close(self->wake_read);
        close(self->wake_write);
    }
    for (struct conn_place *place = self->places, *next; place; place = next) {
        next = place->next;
        free(place);
    }
    free(self->name);
    free(self->host);
    key_wipe(&self->key);
    free(self);
}

void conn_destroy(struct conn **self_p)
{
    struct conn *self = *self_p;
    *self_p = NULL;
    if (!self)
        return;
    if (conn_is_foreign(self)) {
        /* The parent's threads may have been changing the rest, and libzmq would wait for its own. */
        conn_free(self);
        return;
    }
    if (self->started) {
        conn_stop(self);
        if (self->broker.turn)
            conn_finish(self);
        else
            pthread_join(self->thread, NULL);
    }
    if (self->own_context && self->context)
        zmq_ctx_term(self->context);
    conn_hello_unref(&self->hello);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    conn_trace_fini(self);
    conn_free(self);
}
