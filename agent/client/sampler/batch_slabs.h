/* Memory for decoded blocks, which all end together: a list of slabs. NULL: there is none. Owned by one thread. */
#ifndef AGENT_CLIENT_BATCH_SLABS_H
#define AGENT_CLIENT_BATCH_SLABS_H

#include <stddef.h>

struct batch_slab;

#define BATCH_SLAB_KEEP ((size_t)64 << 20)

/* Returns memory aligned to 16 bytes. NULL: no memory. */
void *batch_slabs_take(struct batch_slab **self, size_t bytes);
/* Ends all that was taken, and keeps the largest slab of at most `keep` bytes for what comes next. */
void batch_slabs_reset(struct batch_slab **self, size_t keep);

#endif
