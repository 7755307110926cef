/* Reads the broker's answer to HELLO. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/conn_impl.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"

char *hello_endpoint(const char *endpoint, const char *host)
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

struct conn_hello *conn_hello_ref(struct conn *self)
{
    pthread_mutex_lock(&self->mutex);
    struct conn_hello *hello = self->hello;
    if (hello)
        __atomic_add_fetch(&hello->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&self->mutex);
    return hello;
}

void conn_hello_unref(struct conn_hello **self)
{
    if (*self && __atomic_sub_fetch(&(*self)->refs, 1, __ATOMIC_ACQ_REL) == 0)
        hello_free(*self);
    *self = NULL;
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
