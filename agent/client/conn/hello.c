#include "agent/client/conn/hello.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/wait.h"
#include "proto/base/dtype.h"
#include "proto/keys/keys.h"

/* ---- one broker's answer */

/* Replaces "*" by the host in a tcp endpoint. NULL: out of memory. */
static char *hello_endpoint(const char *endpoint, const char *host)
{
    static const char any[] = "tcp://*:";
    if (strncmp(endpoint, any, sizeof any - 1) != 0 || !host)
        return strdup(endpoint);
    size_t size = strlen(endpoint) + strlen(host);
    char *out = malloc(size);
    if (out)
        snprintf(out, size, "tcp://%s:%s", host, endpoint + sizeof any - 1);
    return out;
}

static bool table_read(struct conn_table *table, const Replay__TableSpec *spec)
{
    table->id = spec->id;
    table->max_size = spec->max_size;
    table->max_bytes = spec->max_bytes;
    table->name = strdup(spec->name);
    table->fields = calloc(spec->n_signature ? spec->n_signature : 1, sizeof *table->fields);
    if (!table->name || !table->fields)
        return false;
    for (size_t i = 0; i < spec->n_signature; i++) {
        const Replay__Column *column = spec->signature[i];
        struct conn_field *field = &table->fields[table->n_fields];
        if (column->n_shape > RP_MAX_RANK + 1)
            return false;
        field->dtype = dtype_by_name(column->dtype);
        field->rank = (uint32_t)column->n_shape;
        for (uint32_t d = 0; d < field->rank; d++)
            field->shape[d] = column->shape[d];
        field->name = strdup(column->name);
        if (!field->name)
            return false;
        table->n_fields++;
    }
    return true;
}

static void hello_free(struct conn_hello *self)
{
    if (self->basis) {
        conn_hello_unref(&self->basis);
        free(self);
        return;
    }
    for (uint32_t i = 0; i < self->n_shards; i++)
        free(self->shards[i]);
    free(self->shards);
    for (uint32_t i = 0; i < self->n_tables; i++) {
        for (uint32_t f = 0; f < self->tables[i].n_fields; f++)
            free(self->tables[i].fields[f].name);
        free(self->tables[i].fields);
        free(self->tables[i].name);
    }
    free(self->tables);
    free(self->ingest);
    free(self->events);
    free(self->release);
    free(self);
}

static bool shards_read(struct conn_hello *self, const Replay__HelloReply *wire, const char *host)
{
    self->shard = wire->shard;
    self->settings = wire->settings;
    self->shards = calloc(wire->n_shards ? wire->n_shards : 1, sizeof(char *));
    for (size_t i = 0; self->shards && i < wire->n_shards; i++) {
        self->shards[i] = hello_endpoint(wire->shards[i], host);
        if (!self->shards[i])
            return false;
        self->n_shards++;
    }
    return self->shards != NULL;
}

static struct conn_hello *hello_copy(const Replay__HelloReply *wire, const char *host)
{
    struct conn_hello *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->refs = 1;
    self->instance = wire->instance;
    self->heartbeat_ms = wire->heartbeat_ms ? wire->heartbeat_ms : 1000;
    self->expiry_ms = wire->expiry_ms ? wire->expiry_ms : 10 * self->heartbeat_ms;
    self->has_next_key = wire->next_key.len == KEY_BYTES;
    if (self->has_next_key)
        memcpy(self->next_key, wire->next_key.data, KEY_BYTES);
    self->max_batch = wire->max_batch ? wire->max_batch : 1024;
    self->max_keys = wire->max_keys ? wire->max_keys : 1024;
    self->max_message_bytes = wire->max_message_bytes ? wire->max_message_bytes : UINT64_C(64) << 20;
    self->ingest = hello_endpoint(wire->ingest, host);
    self->events = hello_endpoint(wire->events, host);
    self->release = strdup(wire->release);
    self->tables = calloc(wire->n_tables ? wire->n_tables : 1, sizeof *self->tables);
    bool ok = self->ingest && self->events && self->release && self->tables && shards_read(self, wire, host);
    for (size_t i = 0; ok && i < wire->n_tables; i++) {
        self->n_tables = (uint32_t)i + 1;
        ok = table_read(&self->tables[i], wire->tables[i]);
    }
    if (ok)
        return self;
    hello_free(self);
    return NULL;
}

struct conn_hello *hello_read(const struct conn_reply *reply, const char *host, rp_error *err)
{
    Replay__Reply *wire = conn_reply_unpack(reply, err);
    if (!wire)
        return NULL;
    struct conn_hello *self = NULL;
    if (wire->body_case != REPLAY__REPLY__BODY_HELLO)
        err_set(err, RP_BAD_MESSAGE, "the broker's reply is not an answer to HELLO");
    else if (!(self = hello_copy(wire->hello, host)))
        err_set(err, RP_NO_MEMORY, "no memory for the broker's answer to HELLO");
    conn_reply_unpacked_free(wire);
    return self;
}

struct conn_hello *hello_stand_in(const struct conn_hello *from)
{
    struct conn_hello *basis = (struct conn_hello *)(uintptr_t)from, *self = malloc(sizeof *self);
    if (!self)
        return NULL;
    /* Not refs, which other threads change. */
    const size_t after = offsetof(struct conn_hello, instance);
    memcpy((char *)self + after, (const char *)from + after, sizeof *self - after);
    self->refs = 1;
    self->instance = 0;
    self->has_next_key = false;
    self->basis = basis;
    __atomic_add_fetch(&basis->refs, 1, __ATOMIC_RELAXED);
    return self;
}

void conn_hello_unref(struct conn_hello **self)
{
    if (*self && __atomic_sub_fetch(&(*self)->refs, 1, __ATOMIC_ACQ_REL) == 0)
        hello_free(*self);
    *self = NULL;
}

uint32_t conn_hello_count(const struct conn_hello *self)
{
    return self->n_shards ? self->n_shards : 1;
}

const struct conn_table *conn_hello_table(const struct conn_hello *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_tables; i++)
        if (strcmp(self->tables[i].name, name) == 0)
            return &self->tables[i];
    return NULL;
}

rp_status conn_hello_no_table(const struct conn_hello *self, const char *name, rp_error *err)
{
    char list[300] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < self->n_tables && at < sizeof list - 1; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s'%.64s'", i ? ", " : "", self->tables[i].name);
    if (self->n_tables == 0)
        return err_set(err, RP_NOT_FOUND, "no table '%.64s': the broker has no tables", name);
    return err_set(err, RP_NOT_FOUND, "no table '%.64s': the broker has %s", name, list);
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
    conn_cond_init(&self->changed);
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
    if (hello->shard >= n || n > WIRE_MAX_SHARDS)
        return err_set(err, RP_BAD_MESSAGE, "%.200s says that it is shard %u of %u", endpoint, hello->shard, n);
    if (self->n == 0)
        return RP_OK;
    if (n != self->n)
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

rp_status conn_shards_join(struct conn_shards *self, const char *endpoint, const struct conn_hello *hello,
                           uint32_t *shard, rp_error *err)
{
    pthread_mutex_lock(&self->mutex);
    rp_status status = check(self, endpoint, hello, *shard, err);
    if (status == RP_OK) {
        if (self->n == 0)
            self->first_ns = conn_now();
        __atomic_store_n(&self->n, conn_hello_count(hello), __ATOMIC_RELAXED);
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
    for (uint32_t i = 0; i < before->n_shards && i < now->n_shards; i++)
        if (strcmp(before->shards[i], now->shards[i]) != 0)
            note_move(self, i, now->shards[i]);
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
