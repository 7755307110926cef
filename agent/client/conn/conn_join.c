/* Agreement among the shards of a broker: which connections belong together, and what a connection hears of the others. */
#include <stdio.h>
#include <string.h>

#include "agent/client/conn/conn_impl.h"
#include "agent/client/conn/conn_set.h"
#include "proto/base/error.h"

uint32_t conn_hello_count(const struct conn_hello *hello)
{
    return hello->n_shards ? hello->n_shards : 1;
}

static rp_status other_count(const struct conn_set *self, const char *endpoint, uint32_t n, rp_error *err)
{
    if (self->shards == 1)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "%.200s is one of %u shards, but the broker at %s was alone: make a new client", endpoint, n,
                       self->where);
    if (n == 1)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the broker at %.200s has no shards, but shard %u at %s is one of %u: give all shards the same "
                       "'shards' in their configuration",
                       endpoint, self->witness, self->where, self->shards);
    return err_set(err, RP_FAILED_PRECONDITION,
                   "%.200s is one of %u shards, but shard %u at %s is one of %u: give all shards the same 'shards' in "
                   "their configuration, and make a new client",
                   endpoint, n, self->witness, self->where, self->shards);
}

static rp_status check(const struct conn_set *self, const char *endpoint, const struct conn_hello *hello,
                       uint32_t expected, rp_error *err)
{
    uint32_t n = conn_hello_count(hello);
    if (hello->shard >= n || n > WIRE_MAX_SHARDS)
        return err_set(err, RP_BAD_MESSAGE, "%.200s says that it is shard %u of %u", endpoint, hello->shard, n);
    if (self->shards == 0)
        return RP_OK;
    if (n != self->shards)
        return other_count(self, endpoint, n, err);
    if (expected != CONN_SHARD_UNKNOWN && hello->shard != expected)
        return err_set(
            err, RP_FAILED_PRECONDITION,
            "%.200s answers as shard %u, but shard %u at %s says that shard %u is there: check 'shard' in its "
            "configuration",
            endpoint, hello->shard, self->witness, self->where, expected);
    if (hello->settings != self->settings && self->up > 0)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "shard %u at %.200s has other settings than shard %u at %s: start all shards with the same "
                       "tables, limiters and sizes",
                       hello->shard, endpoint, self->witness, self->where);
    return RP_OK;
}

rp_status conn_set_join(struct conn_set *self, const char *endpoint, const struct conn_hello *hello, uint32_t *shard,
                        rp_error *err)
{
    pthread_mutex_lock(&self->mutex);
    rp_status status = check(self, endpoint, hello, *shard, err);
    if (status == RP_OK) {
        if (self->shards == 0)
            self->first_ns = conn_now();
        self->shards = conn_hello_count(hello);
        self->settings = hello->settings;
        self->up++;
        self->witness = hello->shard;
        if (*shard == CONN_SHARD_UNKNOWN) /* once it is known, other threads read it without a lock */
            *shard = hello->shard;
        snprintf(self->where, sizeof self->where, "%s", endpoint);
    }
    pthread_mutex_unlock(&self->mutex);
    return status;
}

void conn_set_leave(struct conn_set *self)
{
    pthread_mutex_lock(&self->mutex);
    self->up--;
    pthread_mutex_unlock(&self->mutex);
}

void conn_set_compare(struct conn_set *self, const struct conn_hello *before, const struct conn_hello *now)
{
    pthread_mutex_lock(&self->mutex);
    for (uint32_t i = 0; self->complete && i < self->n && i < before->n_shards && i < now->n_shards; i++)
        if (strcmp(before->shards[i], now->shards[i]) != 0)
            conn_moved(self->conns[i], now->shards[i]);
    pthread_mutex_unlock(&self->mutex);
}

void conn_set_signal(struct conn_set *self)
{
    pthread_mutex_lock(&self->mutex);
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
}
