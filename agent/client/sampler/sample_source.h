/* What all kinds of sampler share: the table and options, the form of a request, and how a reply becomes batches.
 *
 * The room agent/client/sampler takes batches of items out of a table and sends priorities and deletions back. sampler.c is
 * the public face of three kinds: prefetch (requests ahead of the caller), demand (one request inside each call), and mixer (over
 * several sources or shards).
 * updater.c changes items by key. The room uses conn (requests) and batch (decoding). */
#ifndef AGENT_CLIENT_SAMPLE_SOURCE_H
#define AGENT_CLIENT_SAMPLE_SOURCE_H

#include "agent/client/batch/batch.h"
#include "agent/client/conn/conn.h"
#include "replay/sampler.h"

/* Why a stream has ended that its caller has stopped. */
#define SAMPLE_STOPPED "the sampler was stopped"

struct sample_source {
    struct conn *conn; /* borrowed */
    char *table;
    bool paid;    /* permits were got for the samples */
    bool stopped; /* no more requests */
    rp_sampler_options options;
    struct batch_pool *pool;
    struct batch_decoder *decoder;
    rp_sampler_stats stats;
};

/* The pool keeps up to `batches` unused batches. False: out of memory; call sample_source_fini all the same. */
bool sample_source_init(struct sample_source *self, struct conn *conn, const char *table,
                        const rp_sampler_options *options, uint32_t batches);
void sample_source_fini(struct sample_source *self);

/* Returns how many items to ask for next, when `asked` items were asked for so far; 0: max_samples is reached, or it was stopped. */
uint32_t sample_source_count(const struct sample_source *self, uint64_t asked);
/* Sends a request for `count` items and returns its id. timeout_ms bounds the wait inside the broker; negative: no bound. */
uint64_t sample_source_request(const struct sample_source *self, uint32_t count, int64_t timeout_ms, conn_reply_fn *fn,
                               void *ctx);
/* Decodes a reply with RP_OK into a list of batches. More than `count` items are RP_BAD_MESSAGE. */
rp_status sample_source_decode(const struct sample_source *self, struct conn_reply *reply, uint32_t count,
                               rp_batch **batches, rp_error *err);
/* Takes the first batch of the list for the caller, and counts it. */
rp_batch *sample_source_take(struct sample_source *self, rp_batch **batches);

/* RP_DEADLINE_EXCEEDED: no batch within timeout_ms, because of the connection, or else because of `why`. */
rp_status sample_source_timed_out(const struct sample_source *self, int64_t timeout_ms, const char *why, rp_error *err);
/* RP_END_OF_STREAM: max_samples is reached, or it was stopped. */
rp_status sample_source_ended(const struct sample_source *self, rp_error *err);

#endif
