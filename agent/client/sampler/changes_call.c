/* Updates and deletes that wait for the answer. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/sampler/changes.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* ---- keys by shard ---- */

struct deal {
    struct keys all;  /* sorted by shard */
    uint64_t *starts; /* [shards + 1] index of the first key of each shard */
    uint64_t *keys;   /* NULL: one shard, and the keys are the caller's */
    double *priorities;
};

static void deal_fini(struct deal *self)
{
    free(self->starts);
    free(self->keys);
    free(self->priorities);
}

/* Copies the keys in the order of their shards, and those of one shard in the order in which they were given. */
static void deal_sort(struct deal *self, const rp_client *client, const struct keys *given)
{
    uint32_t n = client_shards(client);
    for (uint64_t i = 0; i < given->n; i++)
        self->starts[client_shard_of(client, given->keys[i]) + 1]++;
    for (uint32_t s = 0; s < n; s++)
        self->starts[s + 1] += self->starts[s];
    uint64_t at[WIRE_MAX_SHARDS];
    memcpy(at, self->starts, n * sizeof at[0]);
    for (uint64_t i = 0; i < given->n; i++) {
        uint64_t to = at[client_shard_of(client, given->keys[i])]++;
        self->keys[to] = given->keys[i];
        if (given->priorities)
            self->priorities[to] = given->priorities[i];
    }
    self->all.keys = self->keys;
    self->all.priorities = self->priorities;
}

/* False: out of memory. Call deal_fini also then. */
static bool deal_init(struct deal *self, const rp_client *client, const struct keys *given)
{
    uint32_t n = client_shards(client);
    *self = (struct deal){.all = *given, .starts = calloc(n + 1, sizeof *self->starts)};
    if (!self->starts)
        return false;
    self->starts[1] = given->n;
    if (n == 1 || given->n == 0)
        return true;
    self->starts[1] = 0;
    self->keys = malloc((size_t)given->n * sizeof *self->keys);
    self->priorities = given->priorities ? malloc((size_t)given->n * sizeof *self->priorities) : NULL;
    if (!self->keys || (given->priorities && !self->priorities))
        return false;
    deal_sort(self, client, given);
    return true;
}

/* Returns the keys of request number `part` to a shard; n is 0 after the last. */
static struct keys deal_part(const struct deal *self, uint32_t shard, uint64_t part, uint32_t max)
{
    uint64_t at = self->starts[shard] + part * max, end = self->starts[shard + 1];
    uint64_t left = at < end ? end - at : 0;
    at = at < end ? at : end;
    return (struct keys){self->all.table, self->all.keys + at, self->all.priorities ? self->all.priorities + at : NULL,
                         left < max ? left : max};
}

/* ---- calls ---- */

/* Sends all keys, a request to each shard in turn. *sent false: the deadline has passed before. */
static rp_status send_all(struct changes *changes, const struct deal *deal, int64_t deadline, bool *sent, rp_error *err)
{
    uint32_t max = changes_max(changes->lanes[0].conn);
    bool any = true;
    for (uint64_t part = 0; any; part++) {
        any = false;
        for (uint32_t s = 0; s < changes->n_lanes; s++) {
            struct keys keys = deal_part(deal, s, part, max);
            if (keys.n == 0)
                continue;
            any = true;
            *sent = changes_wait_for_room(changes, CHANGES_IN_FLIGHT, deadline);
            if (!*sent)
                return RP_OK;
            RP_TRY(changes_send(changes, s, &keys, conn_left_ms(deadline), err));
        }
    }
    return RP_OK;
}

static rp_status change_keys(rp_client *client, const struct keys *keys, int64_t timeout_ms, rp_change *change,
                             rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    if (change)
        *change = (rp_change){0};
    RP_TRY(conn_check_process(client_conn(client), err));
    RP_TRY(changes_check_table(client_conn(client), keys->table, err));
    struct deal deal;
    struct changes *changes = changes_new(client);
    if (!deal_init(&deal, client, keys) || !changes) {
        deal_fini(&deal);
        if (changes)
            changes_unref(changes);
        return err_set(err, RP_NO_MEMORY, "no memory for a request");
    }
    bool sent = true;
    rp_status status = send_all(changes, &deal, deadline, &sent, err);
    /* The connection ends each request at its deadline with a better explanation: leave it a moment. */
    bool stopped = !sent && conn_is_stopped();
    bool done =
        !stopped && changes_wait_for_all(changes, deadline > INT64_MAX - NS_PER_S ? INT64_MAX : deadline + NS_PER_S);
    stopped = stopped || (!done && conn_is_stopped());
    pthread_mutex_lock(&changes->lock);
    if (change)
        *change = changes->change;
    if (status == RP_OK && changes->status != RP_OK)
        status = err_set(err, changes->status, "%s", changes->error.text);
    pthread_mutex_unlock(&changes->lock);
    if (status == RP_OK && stopped)
        status = conn_stopped(err);
    else if (status == RP_OK && !(done && sent))
        status = err_set(err, RP_DEADLINE_EXCEEDED, "not all of %llu keys were answered within %lld ms",
                         (unsigned long long)keys->n, (long long)timeout_ms);
    changes_unref(changes);
    deal_fini(&deal);
    return status;
}

rp_status rp_priorities_update(rp_client *client, const char *table, const uint64_t *keys, const double *priorities,
                               uint64_t n, int64_t timeout_ms, rp_change *change, rp_error *err)
{
    if (n && (!keys || !priorities))
        return err_set(err, RP_INVALID_ARGUMENT, "keys or priorities are missing");
    struct keys changed = {table, keys, priorities, n};
    return change_keys(client, &changed, timeout_ms, change, err);
}

rp_status rp_items_delete(rp_client *client, const char *table, const uint64_t *keys, uint64_t n, int64_t timeout_ms,
                          rp_change *change, rp_error *err)
{
    if (n && !keys)
        return err_set(err, RP_INVALID_ARGUMENT, "keys are missing");
    struct keys deleted = {table, keys, NULL, n};
    return change_keys(client, &deleted, timeout_ms, change, err);
}
