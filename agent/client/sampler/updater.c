/* The updater: collects updates of priorities, and sends them without waiting for the answers. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/sampler/changes.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define DEFAULT_BATCH 256u
/* Time after which updates for a shard that is away are ignored. */
#define PATIENCE_NS NS_PER_S

/* Updates of one shard that were not sent yet. */
struct collected {
    uint64_t *keys;
    double *priorities;
    uint32_t n;
};

struct rp_updater {
    rp_client *client;
    char *table;
    uint32_t batch, in_flight;
    struct changes *changes;
    struct collected *collected; /* [shards] */
};

static bool collected_init(rp_updater *self)
{
    uint32_t n = client_shards(self->client);
    self->collected = calloc(n, sizeof *self->collected);
    bool ok = self->collected != NULL;
    for (uint32_t i = 0; ok && i < n; i++) {
        struct collected *one = &self->collected[i];
        one->keys = malloc(self->batch * sizeof *one->keys);
        one->priorities = malloc(self->batch * sizeof *one->priorities);
        ok = one->keys && one->priorities;
    }
    return ok;
}

static void updater_free(rp_updater *self)
{
    for (uint32_t i = 0; self->collected && i < client_shards(self->client); i++) {
        free(self->collected[i].keys);
        free(self->collected[i].priorities);
    }
    if (self->changes)
        changes_unref(self->changes);
    free(self->collected);
    free(self->table);
    free(self);
}

rp_updater *rp_updater_new(rp_client *client, const char *table, const rp_updater_options *options, rp_error *err)
{
    struct conn *conn = client_conn(client);
    rp_updater_options checked = {0};
    if (options)
        memcpy(&checked, options, options->struct_size < sizeof checked ? options->struct_size : sizeof checked);
    if (conn_check_process(conn, err) != RP_OK)
        return NULL;
    uint32_t max = changes_max(conn);
    if (checked.batch > max) {
        err_set(err, RP_INVALID_ARGUMENT, "batch is %u; it may be 1 to %u here", checked.batch, max);
        return NULL;
    }
    if (changes_check_table(conn, table, err) != RP_OK)
        return NULL;
    rp_updater *self = calloc(1, sizeof *self);
    if (!self)
        goto fail;
    self->client = client;
    self->batch = checked.batch ? checked.batch : max < DEFAULT_BATCH ? max : DEFAULT_BATCH;
    self->in_flight = checked.in_flight ? checked.in_flight : CHANGES_IN_FLIGHT;
    self->table = strdup(table);
    self->changes = changes_new(client);
    if (self->table && self->changes && collected_init(self))
        return self;
    updater_free(self);
fail:
    err_set(err, RP_NO_MEMORY, "no memory for an updater");
    return NULL;
}

/* Returns the error of an earlier request, once. */
static rp_status take_error(rp_updater *self, rp_error *err)
{
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->changes->lock);
    if (self->changes->status != RP_OK)
        status = err_set(err, self->changes->status, "%s", self->changes->error.text);
    self->changes->status = RP_OK;
    pthread_mutex_unlock(&self->changes->lock);
    return status;
}

/* Sets err to what is without an answer, and why. */
static rp_status explain(rp_updater *self, rp_error *err)
{
    if (conn_is_stopped())
        return conn_stopped(err);
    char link[256];
    client_describe(self->client, link, sizeof link);
    return err_set(err, RP_DEADLINE_EXCEEDED, "updates of table '%s' are without an answer%s%s", self->table,
                   link[0] ? ": " : "", link);
}

/* Ignores updates for a shard that has been away for long. True: it has. */
static bool is_lost(rp_updater *self, uint32_t shard)
{
    struct collected *collected = &self->collected[shard];
    if (self->changes->n_lanes == 1 || conn_away_ns(self->changes->lanes[shard].conn) < PATIENCE_NS)
        return false;
    pthread_mutex_lock(&self->changes->lock);
    self->changes->change.missing += collected->n;
    pthread_mutex_unlock(&self->changes->lock);
    collected->n = 0;
    return true;
}

static rp_status send_collected(rp_updater *self, uint32_t shard, int64_t deadline_ns, rp_error *err)
{
    struct collected *collected = &self->collected[shard];
    if (collected->n == 0 || is_lost(self, shard))
        return RP_OK;
    if (!changes_wait_for_room(self->changes, self->in_flight, deadline_ns))
        return explain(self, err);
    struct keys keys = {self->table, collected->keys, collected->priorities, collected->n};
    RP_TRY(changes_send(self->changes, shard, &keys, -1, err));
    collected->n = 0;
    return RP_OK;
}

/* Returns how many keys from the first on belong to the same shard. */
static uint32_t run_length(const rp_updater *self, const uint64_t *keys, uint32_t n, uint32_t *shard)
{
    uint32_t run = 1;
    *shard = client_shard_of(self->client, keys[0]);
    if (self->changes->n_lanes == 1)
        return n;
    while (run < n && client_shard_of(self->client, keys[run]) == *shard)
        run++;
    return run;
}

rp_status rp_updater_add(rp_updater *updater, const uint64_t *keys, const double *priorities, uint32_t n,
                         int64_t timeout_ms, uint32_t *taken, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    uint32_t done = 0;
    RP_TRY(conn_check_process(client_conn(updater->client), err));
    rp_status status = take_error(updater, err);
    while (done < n && status == RP_OK) {
        uint32_t shard, run = run_length(updater, keys + done, n - done, &shard);
        struct collected *to = &updater->collected[shard];
        uint32_t room = updater->batch - to->n, part = run < room ? run : room;
        memcpy(to->keys + to->n, keys + done, part * sizeof *keys);
        memcpy(to->priorities + to->n, priorities + done, part * sizeof *priorities);
        to->n += part;
        done += part;
        if (to->n == updater->batch)
            status = send_collected(updater, shard, deadline, err);
    }
    if (taken)
        *taken = done;
    return status;
}

rp_status rp_updater_flush(rp_updater *updater, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    RP_TRY(conn_check_process(client_conn(updater->client), err));
    rp_status status = RP_OK;
    for (uint32_t s = 0; s < updater->changes->n_lanes && status == RP_OK; s++)
        status = send_collected(updater, s, deadline, err);
    if (status == RP_OK && !changes_wait_for_all(updater->changes, deadline))
        status = explain(updater, err);
    if (status == RP_CANCELLED)
        return status;
    pthread_mutex_lock(&updater->changes->lock);
    if (change)
        *change = updater->changes->change;
    pthread_mutex_unlock(&updater->changes->lock);
    return status == RP_OK ? take_error(updater, err) : status;
}

rp_status rp_updater_destroy(rp_updater **updater, int64_t timeout_ms, rp_error *err)
{
    if (!updater || !*updater)
        return RP_OK;
    rp_updater *self = *updater;
    *updater = NULL;
    if (conn_is_foreign(client_conn(self->client))) {
        free(self);
        return RP_OK;
    }
    rp_status status = rp_updater_flush(self, timeout_ms, NULL, err);
    updater_free(self);
    return status;
}
