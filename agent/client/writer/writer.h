/* The inside of an rp_writer: the writing thread's half.
 *
 * The room agent/client/writer puts the pieces of outbox together: writer.c (public calls: steps, items), writer_wait.c (what
 * a writer waits for), structured.c and condition.c (patterns) on the writing thread, and writer_session.c (HELLO, heartbeats,
 * credit) on the I/O thread. It uses conn and outbox. */
#ifndef AGENT_CLIENT_WRITER_H
#define AGENT_CLIENT_WRITER_H

#include "agent/client/conn/client.h"
#include "agent/client/outbox/handoff.h"
#include "agent/client/outbox/item_layout.h"
#include "agent/client/writer/structured.h"
#include "agent/client/writer/writer_session.h"
#include "proto/base/forks.h"
#include "replay/writer.h"

struct rp_writer {
    struct handoff handoff; /* first: aligned to a cache line */
    struct writer_session session;
    struct conn *conn;
    struct trace *trace; /* of the connection */
    struct conn_hello *hello;
    struct step_stream stream;
    struct item_layouts layouts;
    struct structured structured;
    rp_slice *all; /* [columns] for rp_writer_item_last */
    uint64_t *table_created;
    uint32_t last_table;
    uint64_t created, seen_resolved;
    uint64_t key_base, key_count, keys_used; /* of the current session */
    uint64_t handed_bytes, seen_done_bytes;  /* of chunks that items need */
    uint64_t max_items, max_bytes, max_message_bytes;
    uint64_t policy;
    struct queued_item *waiting; /* items that wait until waiting_chunk is complete */
    uint32_t n_waiting, waiting_capacity;
    struct step_chunk *waiting_chunk;
    bool attached;
    uint32_t forks; /* of this process when the writer was made */
};

/* conn_check_process, without a call where the writer is in its process. */
static inline rp_status writer_check_process(const rp_writer *self, rp_error *err)
{
    return self->forks == forks_count() ? RP_OK : conn_check_process(self->conn, err);
}

/* Gives the index of the table; RP_NOT_FOUND: there is none. */
rp_status writer_table(rp_writer *self, const char *name, uint32_t *out, rp_error *err);
rp_status writer_check_priority(double priority, rp_error *err);
/* Returns the slices as an item of this writer; table is an index. */
struct item_slices writer_slices(const rp_writer *self, uint32_t table, const rp_slice *slices, uint32_t n);
/* Makes an item without waiting for room. key may be NULL. */
rp_status writer_make_item(rp_writer *self, const struct item_slices *slices, double priority, uint64_t *key,
                           rp_error *err);

#endif
