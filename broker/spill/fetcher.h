/* The fetcher: a czmq actor that reads chunks back from segments, checks them, and hands their data over. It does one
 * batch after another. Within a batch it reads chunks in the order of their places, and neighbours with one read. */
#pragma once

#include <stdbool.h>

#include "broker/journal/folder.h"

/* Most chunks and bytes of a batch: what the core thread can put back without a pause. */
#define FETCH_CHUNKS 512u
#define FETCH_BYTES (1u << 20)

struct fetch_job {
    void *owner; /* the caller's; the fetcher does not use it */
    uint64_t at;
    uint32_t bytes, columns; /* of the chunk that must be there */
    uint8_t *data;           /* the result: malloc'ed, the caller's. NULL: the batch's err says why */
    rp_status status;
};

struct fetch_batch {
    uint32_t n;
    rp_error err; /* error of the last job that failed */
    struct fetch_job jobs[FETCH_CHUNKS];
};

struct fetcher;

/* The folder is copied; its descriptor must outlive the fetcher. */
struct fetcher *fetcher_new(const struct folder *folder, rp_error *err);
/* All batches were taken back. */
void fetcher_destroy(struct fetcher **self);
/* Takes a batch (malloc'ed). fetcher_take returns it, with its jobs in any order. */
void fetcher_give(struct fetcher *self, struct fetch_batch *batch);
/* Returns a batch that is done. NULL: none is. */
struct fetch_batch *fetcher_take(struct fetcher *self);
void fetch_batch_destroy(struct fetch_batch **self);
/* Returns the number of batches in flight. */
uint32_t fetcher_under_way(const struct fetcher *self);
/* The socket to poll. */
void *fetcher_socket(const struct fetcher *self);
