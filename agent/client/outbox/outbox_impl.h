/* Shared by outbox.c and outbox_build.c. */
#ifndef AGENT_CLIENT_OUTBOX_IMPL_H
#define AGENT_CLIENT_OUTBOX_IMPL_H

#include "agent/client/outbox/outbox.h"

static inline struct queued_item *outbox_item(const struct outbox_table *table, uint64_t index)
{
    return &table->ring[index & (table->capacity - 1)];
}

/* Returns the unused credit in bytes. */
uint64_t outbox_free_bytes(const struct outbox *self);
/* Appends a new message to the kept messages. */
void outbox_keep(struct outbox *self, struct message *message);
/* Removes one item's or chunk's need of the message; frees it after the last. */
void outbox_unlive(struct outbox *self, struct message *message);

/* outbox_build.c */
struct outbox_scratch *outbox_scratch_new(uint32_t batch_items, uint32_t n_columns);
void outbox_scratch_destroy(struct outbox_scratch **self);
/* Makes the next message of a table, as far as credit allows, and numbers it. Returns its number of items; 0: credit is used
 * up, or there is no memory. */
uint32_t outbox_build(struct outbox *self, struct outbox_table *table);

#endif
