#include "agent/client/conn/hello.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/wait.h"
#include "proto/wire/pb.h"
#include "replay/types.h"

/* ---- one broker's answer */

/* Replaces "*" by the host in a tcp endpoint. False: out of memory. */
static bool complete_endpoint(char **endpoint, const char *host)
{
    char *whole;
    if (strncmp(*endpoint, "tcp://*:", 8) != 0 || !host)
        return true;
    if (asprintf(&whole, "tcp://%s%s", host, strrchr(*endpoint, ':')) < 0)
        return false;
    free(*endpoint);
    *endpoint = whole;
    return true;
}

struct conn_hello *hello_read(const struct conn_reply *reply, const char *host, rp_error *err)
{
    Replay__HelloReply *says;
    if (conn_reply_read(reply, REPLAY__REPLY__BODY_HELLO, &says, err) != RP_OK)
        return NULL;
    struct conn_hello *self = calloc(1, sizeof *self);
    bool ok = self && complete_endpoint(&says->ingest, host);
    for (size_t i = 0; ok && i < says->n_shards; i++)
        ok = complete_endpoint(&says->shards[i], host);
    if (!ok) {
        err_set(err, RP_NO_MEMORY, "no memory for the broker's answer to HELLO");
        unpack_free(&says->base);
        free(self);
        return NULL;
    }
    says->max_batch = says->max_batch ? says->max_batch : 1024;
    says->max_keys = says->max_keys ? says->max_keys : 1024;
    says->max_message_bytes = says->max_message_bytes ? says->max_message_bytes : UINT64_C(64) << 20;
    *self = (struct conn_hello){.refs = 1, .says = says};
    return self;
}

struct conn_hello *hello_ref(struct conn_hello *self)
{
    if (self)
        __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    return self;
}

void conn_hello_unref(struct conn_hello **self_p)
{
    struct conn_hello *self = *self_p;
    *self_p = NULL;
    if (!self || __atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    unpack_free(&self->says->base);
    conn_arena_unref(&self->arena);
    free(self);
}

uint32_t conn_hello_count(const struct conn_hello *self)
{
    return self->says->n_shards ? (uint32_t)self->says->n_shards : 1;
}

rp_status conn_hello_table(const struct conn_hello *self, const char *name, uint32_t *index, rp_error *err)
{
    char list[300] = "";
    if (!name || strlen(name) > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a table's name has 1 to %u bytes", RP_MAX_NAME);
    for (uint32_t i = 0; i < self->says->n_tables; i++) {
        const char *other = self->says->tables[i]->name;
        if (strcmp(other, name) == 0) {
            if (index)
                *index = i;
            return RP_OK;
        }
        text_append(list, sizeof list, "%s'%.64s'", i ? ", " : "", other);
    }
    return err_set(err, RP_NOT_FOUND, "no table '%.64s': the broker has %s", name,
                   self->says->n_tables ? list : "no tables");
}

/* ---- the shards of one broker */

/* The newest move stands first. All of them stay, because callers borrow the endpoints of connections. */
struct shard_move {
    struct shard_move *next;
    uint32_t shard;
    char endpoint[];
};

void conn_shards_init(struct conn_shards *self)
{
    *self = (struct conn_shards){.n = 0};
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, NULL);
}

void conn_shards_fini(struct conn_shards *self)
{
    for (struct shard_move *move = self->moves, *next; move; move = next) {
        next = move->next;
        free(move);
    }
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
}

bool conn_shards_several(const struct conn_shards *self)
{
    return __atomic_load_n(&self->n, __ATOMIC_RELAXED) > 1;
}

static rp_status other_count(const struct conn_shards *self, const char *endpoint, uint32_t n, rp_error *err)
{
    if (self->n == 1)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "%.200s is one of %u shards, but the broker at %s was alone: make a new client", endpoint, n,
                       self->where);
    if (n == 1)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the broker at %.200s has no shards, but shard %u at %s is one of %u: give all shards the same "
                       "'shards' in their configuration",
                       endpoint, self->witness, self->where, self->n);
    return err_set(err, RP_FAILED_PRECONDITION,
                   "%.200s is one of %u shards, but shard %u at %s is one of %u: give all shards the same 'shards' in "
                   "their configuration, and make a new client",
                   endpoint, n, self->witness, self->where, self->n);
}

static rp_status check(const struct conn_shards *self, const char *endpoint, const struct conn_hello *hello,
                       uint32_t expected, rp_error *err)
{
    uint32_t n = conn_hello_count(hello);
    if (hello->says->shard >= n || n > WIRE_MAX_SHARDS)
        return err_set(err, RP_BAD_MESSAGE, "%.200s says that it is shard %u of %u", endpoint, hello->says->shard, n);
    if (self->n == 0)
        return RP_OK;
    if (n != self->n)
        return other_count(self, endpoint, n, err);
    if (expected != CONN_SHARD_UNKNOWN && hello->says->shard != expected)
        return err_set(
            err, RP_FAILED_PRECONDITION,
            "%.200s answers as shard %u, but shard %u at %s says that shard %u is there: check 'shard' in its "
            "configuration",
            endpoint, hello->says->shard, self->witness, self->where, expected);
    if (hello->says->settings != self->settings && self->up > 0)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "shard %u at %.200s has other settings than shard %u at %s: start all shards with the same "
                       "tables, limiters and sizes",
                       hello->says->shard, endpoint, self->witness, self->where);
    return RP_OK;
}

rp_status conn_shards_join(struct conn_shards *self, const char *endpoint, const struct conn_hello *hello,
                           uint32_t *shard, rp_error *err)
{
    pthread_mutex_lock(&self->mutex);
    rp_status status = check(self, endpoint, hello, *shard, err);
    if (status == RP_OK) {
        if (self->n == 0)
            self->first_ns = clock_ns();
        __atomic_store_n(&self->n, conn_hello_count(hello), __ATOMIC_RELAXED);
        self->settings = hello->says->settings;
        self->up++;
        self->witness = hello->says->shard;
        if (*shard == CONN_SHARD_UNKNOWN) /* once it is known, other threads read it without a lock */
            *shard = hello->says->shard;
        snprintf(self->where, sizeof self->where, "%s", endpoint);
    }
    pthread_mutex_unlock(&self->mutex);
    return status;
}

void conn_shards_leave(struct conn_shards *self)
{
    pthread_mutex_lock(&self->mutex);
    self->up--;
    pthread_mutex_unlock(&self->mutex);
}

/* Makes this the newest move of the shard. Without memory nothing is noted. */
static void note_move(struct conn_shards *self, uint32_t shard, const char *endpoint)
{
    struct shard_move **at = &self->moves;
    while (*at && ((*at)->shard != shard || strcmp((*at)->endpoint, endpoint) != 0))
        at = &(*at)->next;
    struct shard_move *move = *at;
    if (move) {
        *at = move->next;
    } else {
        size_t size = strlen(endpoint) + 1;
        move = malloc(sizeof *move + size);
        if (!move)
            return;
        move->shard = shard;
        memcpy(move->endpoint, endpoint, size);
    }
    move->next = self->moves;
    self->moves = move;
}

void conn_shards_compare(struct conn_shards *self, const struct conn_hello *before, const struct conn_hello *now)
{
    pthread_mutex_lock(&self->mutex);
    for (uint32_t i = 0; i < before->says->n_shards && i < now->says->n_shards; i++)
        if (strcmp(before->says->shards[i], now->says->shards[i]) != 0)
            note_move(self, i, now->says->shards[i]);
    pthread_mutex_unlock(&self->mutex);
}

const char *conn_shards_moved(struct conn_shards *self, uint32_t shard)
{
    pthread_mutex_lock(&self->mutex);
    const struct shard_move *move = self->moves;
    while (move && move->shard != shard)
        move = move->next;
    pthread_mutex_unlock(&self->mutex);
    return move ? move->endpoint : NULL;
}

void conn_shards_signal(struct conn_shards *self)
{
    pthread_mutex_lock(&self->mutex);
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
}
