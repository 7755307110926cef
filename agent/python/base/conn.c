/* A client that several objects share: destroyed after the last of them, in whatever order they close. */
#include "agent/python/base/base.h"

#include <stdlib.h>

struct conn *conn_take(rp_client *client)
{
    struct conn *conn = calloc(1, sizeof *conn);
    if (!conn)
        return NULL;
    conn->client = client;
    atomic_init(&conn->refs, 1);
    return conn;
}

struct conn *conn_ref(struct conn *conn)
{
    atomic_fetch_add(&conn->refs, 1);
    return conn;
}

void conn_unref(struct conn *conn)
{
    if (atomic_fetch_sub(&conn->refs, 1) != 1)
        return;
    rp_client_destroy(&conn->client);
    free(conn);
}

void conn_drop(struct conn **conn)
{
    struct conn *old = *conn;
    *conn = NULL;
    if (!old)
        return;
    Py_BEGIN_ALLOW_THREADS;
    conn_unref(old);
    Py_END_ALLOW_THREADS;
}
