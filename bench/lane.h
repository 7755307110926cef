/* What the processes of a run report, in shared memory: each process writes its own lane. */
#ifndef BENCH_LANE_H
#define BENCH_LANE_H

#include <stdatomic.h>
#include <stdint.h>

#define RAW_MOST_FRAMES 300u
#define LANE_ENDPOINT_BYTES 160u

/* The sizes of the frames of a message. */
struct raw_message {
    uint32_t n;
    uint32_t size[RAW_MOST_FRAMES];
};

enum lane_state { LANE_STARTING, LANE_READY, LANE_DONE, LANE_FAILED };

struct lane {
    _Atomic uint64_t items;                          /* accepted by the broker, or in replies; the raw side: received */
    _Atomic uint64_t updates;                        /* priorities that were changed, where that goes with sampling */
    _Atomic int state;                               /* an enum lane_state; the fields below are written before it */
    char text[256];                                  /* why it failed */
    char endpoint[2][LANE_ENDPOINT_BYTES];           /* a raw server's: PULL, ROUTER */
    struct raw_message ingest, request[2], reply[2]; /* frames that the broker's client has sent and received */
    uint64_t first_key, n_keys;
    _Atomic uint64_t longest_ns; /* between two replies to a sampler, since it was last set to 0 */
    uint64_t value[4];           /* what a request to the broker gave */
};

static inline void lane_add(struct lane *self, uint64_t items)
{
    atomic_fetch_add_explicit(&self->items, items, memory_order_relaxed);
}
static inline void lane_set_state(struct lane *self, enum lane_state state)
{
    atomic_store_explicit(&self->state, state, memory_order_release);
}
static inline int lane_get_state(struct lane *self)
{
    return atomic_load_explicit(&self->state, memory_order_acquire);
}

#endif
