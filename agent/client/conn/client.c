/* rp_client: the public face of a connection. */
#include "agent/client/conn/client.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/client/conn/conn_set.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

struct rp_client {
    struct conn_set set;
    char name[RP_MAX_NAME + 1];
    struct conn_hello *hello; /* the first answer: rp_client_table borrows names from it */
    uint32_t nearest;         /* atomic: number of the shard to read from */
};

/* An older caller has a smaller struct: members that it does not know stay 0. */
static bool read_options(const rp_client_options *in, rp_client_options *out, rp_error *err)
{
    *out = (rp_client_options){.struct_size = sizeof *out};
    if (!in)
        return true;
    if (in->struct_size < offsetof(rp_client_options, name)) {
        err_set(err, RP_INVALID_ARGUMENT, "set struct_size of rp_client_options to its size");
        return false;
    }
    memcpy(out, in, in->struct_size < sizeof *out ? in->struct_size : sizeof *out);
    if (out->name && strlen(out->name) > RP_MAX_NAME) {
        err_set(err, RP_INVALID_ARGUMENT, "a client's name has at most %u bytes", RP_MAX_NAME);
        return false;
    }
    return true;
}

/* The plan's options are those of the caller, and may be NULL. */
static rp_client *connect_by(struct conn_set_plan plan, int64_t timeout_ms, rp_error *err)
{
    rp_client_options own;
    if (!read_options(plan.options, &own, err))
        return NULL;
    if (!plan.endpoints || !*plan.endpoints) {
        err_set(err, RP_INVALID_ARGUMENT, "an endpoint is needed, such as tcp://127.0.0.1:7600");
        return NULL;
    }
    rp_client *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for a client");
        return NULL;
    }
    if (own.name)
        snprintf(self->name, sizeof self->name, "%s", own.name);
    else
        snprintf(self->name, sizeof self->name, "client-%ld", (long)getpid());
    own.name = self->name;
    plan.options = &own;
    if (conn_set_open(&self->set, &plan, timeout_ms, err) != RP_OK) {
        rp_client_destroy(&self);
        return NULL;
    }
    self->hello = conn_hello_ref(client_conn(self));
    self->nearest = (uint32_t)(conn_client_id(client_conn(self)) / 2 % self->set.n); /* ids are odd */
    return self;
}

rp_client *rp_client_connect(const char *endpoints, const rp_client_options *options, int64_t timeout_ms, rp_error *err)
{
    return connect_by((struct conn_set_plan){.endpoints = endpoints, .options = options}, timeout_ms, err);
}

rp_client *client_connect(const char *endpoints, const rp_client_options *options, const struct conn_host *host,
                          int64_t timeout_ms, rp_error *err)
{
    return connect_by((struct conn_set_plan){.endpoints = endpoints, .options = options, .host = host}, timeout_ms,
                      err);
}

rp_client *client_connect_any(const char *endpoints, const rp_client_options *options, int64_t timeout_ms,
                              rp_error *err)
{
    return connect_by((struct conn_set_plan){.endpoints = endpoints, .options = options, .any = true}, timeout_ms, err);
}

void rp_client_destroy(rp_client **client)
{
    if (!client || !*client)
        return;
    conn_hello_unref(&(*client)->hello);
    conn_set_close(&(*client)->set);
    free(*client);
    *client = NULL;
}

struct conn *client_conn(rp_client *self)
{
    return self->set.conns[0];
}

uint32_t client_shards(const rp_client *self)
{
    return self->set.n;
}

struct conn *client_shard(rp_client *self, uint32_t shard)
{
    return self->set.conns[shard];
}

uint32_t client_shard_of(const rp_client *self, uint64_t key)
{
    uint32_t shard = wire_key_shard(key);
    return shard < self->set.n ? shard : 0;
}

struct conn *client_owner(rp_client *self, uint64_t key)
{
    return self->set.conns[client_shard_of(self, key)];
}

uint32_t client_nearest(rp_client *self)
{
    uint32_t at = __atomic_load_n(&self->nearest, __ATOMIC_RELAXED);
    if (self->set.n == 1 || conn_away_ns(self->set.conns[at]) < NS_PER_S)
        return at;
    return client_move_nearest(self, at);
}

uint32_t client_move_nearest(rp_client *self, uint32_t from)
{
    for (uint32_t i = 1; i < self->set.n; i++) {
        uint32_t next = (from + i) % self->set.n;
        if (conn_away_ns(self->set.conns[next]) != 0)
            continue;
        __atomic_compare_exchange_n(&self->nearest, &from, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        break;
    }
    return __atomic_load_n(&self->nearest, __ATOMIC_RELAXED);
}

void client_describe(rp_client *self, char *out, size_t size)
{
    conn_set_describe(&self->set, out, size);
}

const char *client_name(const rp_client *self)
{
    return self->name;
}

int32_t rp_client_get_state(rp_client *client)
{
    struct conn *conn = client_conn(client);
    return conn_is_foreign(conn) ? RP_CLIENT_CONNECTING : conn_state(conn);
}

rp_status rp_client_get_info(rp_client *client, rp_client_info *out, rp_error *err)
{
    if (out->struct_size < offsetof(rp_client_info, id))
        return err_set(err, RP_INVALID_ARGUMENT, "set struct_size of rp_client_info to its size");
    struct conn *conn = client_conn(client);
    RP_TRY(conn_check_process(conn, err));
    struct conn_hello *hello = conn_hello_ref(conn);
    rp_client_info info = {
        .struct_size = out->struct_size,
        .state = conn_state(conn),
        .id = conn_client_id(conn),
        .broker = hello->instance,
        .tables = hello->n_tables,
        .max_batch = hello->max_batch,
        .shards = client->set.n,
    };
    for (uint32_t i = 0; i < client->set.n; i++) {
        info.reconnects += conn_reconnects(client->set.conns[i]);
        info.connected_shards += conn_state(client->set.conns[i]) == RP_CLIENT_CONNECTED;
    }
    snprintf(info.endpoint, sizeof info.endpoint, "%s", conn_endpoint(conn));
    snprintf(info.release, sizeof info.release, "%s", hello->release);
    conn_hello_unref(&hello);
    memcpy(out, &info, out->struct_size < sizeof info ? out->struct_size : sizeof info);
    return RP_OK;
}

const char *rp_client_table(rp_client *client, uint32_t i)
{
    return i < client->hello->n_tables ? client->hello->tables[i].name : NULL;
}
