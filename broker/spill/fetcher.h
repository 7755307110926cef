/* The fetcher: a czmq actor that reads chunks back from segments, checks them, and hands their data over. Batches are done
 * one after another; within one, chunks are read in the order of their places, and neighbours by one read. */
#ifndef BROKER_FETCHER_H
#define BROKER_FETCHER_H

#include <stdbool.h>

#include "broker/disk/folder.h"

/* Taken together in one batch at most: what the core thread can put back at a stretch. */
#define FETCH_CHUNKS 512u
#define FETCH_BYTES (1u << 20)

struct fetch_job {
    void *owner; /* the caller's, not looked at */
    uint64_t at;
    uint32_t bytes, columns; /* what must stand there */
    uint8_t *data;           /* the answer: malloc'ed, given. NULL: see err of the batch */
    rp_status status;
};

struct fetch_batch {
    uint32_t n;
    rp_error err; /* of the last job that failed */
    struct fetch_job jobs[FETCH_CHUNKS];
};

struct fetcher;

/* The folder is copied; its descriptor must outlive the fetcher. */
struct fetcher *fetcher_new(const struct folder *folder, rp_error *err);
/* Waits for what is under way. */
void fetcher_destroy(struct fetcher **self);
/* Takes a batch (malloc'ed), to come back by fetcher_take with its jobs in any order. */
void fetcher_give(struct fetcher *self, struct fetch_batch *batch);
/* NULL: nothing has come back. */
struct fetch_batch *fetcher_take(struct fetcher *self);
void fetch_batch_destroy(struct fetch_batch **self);
/* Batches that have not come back. */
uint32_t fetcher_under_way(const struct fetcher *self);
/* The socket to poll. */
void *fetcher_socket(const struct fetcher *self);

#endif
