/* The chunks that a session keeps: later items may refer to them, by number. */
#ifndef BROKER_SESSION_CHUNKS_H
#define BROKER_SESSION_CHUNKS_H

#include "broker/session/session.h"

/* Returns the chunk of a number. NULL: it is not kept. */
static inline struct chunk *session_chunk(const struct session *self, uint64_t number)
{
    if (number < self->oldest_chunk || number > self->newest_chunk)
        return NULL;
    return self->ring[number & self->ring_mask];
}
/* Keeps a chunk for later items; takes the reference on RP_OK. */
rp_status session_keep_chunk(struct session *self, uint64_t number, struct chunk *chunk, rp_error *err);
/* Releases chunks before `oldest`: no later item refers to them. At most `most` numbers now, the rest later. */
void session_drop_chunks(struct session *self, uint64_t oldest, uint32_t most);
/* Releases all chunks, in slices. The range of numbers stays. */
void session_drop_all_chunks(struct session *self);

#endif
