/* What outbox.c and outbox_build.c share. */
#ifndef AGENT_CLIENT_OUTBOX_IMPL_H
#define AGENT_CLIENT_OUTBOX_IMPL_H

#include "agent/client/outbox/outbox.h"

static inline struct queued_item *outbox_item(const struct outbox_table *table, uint64_t index)
{
    return &table->ring[index & (table->capacity - 1)];
}

/* Credit that is left, in bytes. */
uint64_t outbox_free_bytes(const struct outbox *self);
/* Puts a new message at the end of those kept. */
void outbox_keep(struct outbox *self, struct message *message);
/* One item or chunk less that needs the message; frees it after the last. */
void outbox_unlive(struct outbox *self, struct message *message);

/* outbox_build.c */
struct outbox_scratch *outbox_scratch_new(uint32_t batch_items);
void outbox_scratch_destroy(struct outbox_scratch **self);
/* Makes the next message of a table, as far as credit goes, and numbers it. Gives how many items it holds; 0: credit is
 * used up, or there is no memory. */
uint32_t outbox_build(struct outbox *self, struct outbox_table *table);

#endif
