/* Sampling: batches of items, laid out contiguously per field; priority updates and deletes by key.
 *
 *   rp_sampler_next(s, &batch, -1, &err);
 *   const rp_field_view *reward = rp_batch_find(batch, "reward");    one array for all items of the batch
 *   rp_priorities_update(client, "replay", arrays.key, errors, n, -1, NULL, &err);
 *   rp_batch_release(&batch);
 *
 * A sampler gets batches ahead, so that the next one is ready when the caller asks for it. A sampler may be used by one thread at a
 * time; a batch may be read and released by any one thread, even after its sampler was destroyed. */
#ifndef REPLAY_SAMPLER_H
#define REPLAY_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "replay/client.h"
#include "replay/error.h"
#include "replay/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_batch rp_batch;
typedef struct rp_sampler rp_sampler;
typedef struct rp_updater rp_updater;

/* ---- batches ---- */

/* Set struct_size before rp_batch_get_info. */
typedef struct rp_batch_info {
    uint32_t struct_size;
    uint32_t n; /* items */
    uint32_t n_fields;
    uint32_t partial;    /* 1: fewer items than requested, or only some of a reply's items; rp_batch_text says why */
    uint64_t table_size; /* before removals by max_times_sampled */
    uint64_t waited_ns;  /* wait inside the broker, for the limiter or for items */
    void *memory;        /* one block that holds all arrays and fields; aligned to 64 bytes */
    uint64_t bytes;      /* of the block, a multiple of 64 */
    uint32_t packed;     /* 1: fields are packed, see rp_field_view */
    uint32_t reserved;
} rp_batch_info;

/* One value per item in each array; all are valid until the batch is released. */
typedef struct rp_batch_arrays {
    uint32_t struct_size;
    uint32_t n;
    const uint64_t *key;
    const double *priority;
    const double *probability; /* of the pick, at the time of the pick */
    const float *weight;       /* importance: (1 / (table size * probability))^beta, divided by the batch's largest */
    const uint32_t *times_sampled; /* including this sample */
    const uint64_t *age_ns;        /* since the insert */
    const uint64_t *policy;        /* version of the parameters that produced it */
    const uint64_t *step;          /* its first step in its stream */
    const uint32_t *session;       /* ordinal of the session that inserted it, at its shard */
    const uint32_t *source;        /* of a sampler over sources: index of the source; NULL: there is one */
    const uint32_t *shard;         /* number of the shard that has it; NULL: there are no shards */
    const uint64_t *group;         /* key of its group, whose members are adjacent; NULL: the table has no groups */
} rp_batch_arrays;

/* A field: an array in C order of shape[0] == n items. Unless the field is squeezed, shape[1] counts steps; the rest is
 * the shape of one step. In a packed batch (rp_sampler_options.tokens), a field that is not squeezed has no dimension of items: the
 * steps of all items lie one behind the other, shape[0] counts them, and `lengths` says how many each item has. */
typedef struct rp_field_view {
    const char *name;
    int32_t dtype; /* an rp_dtype */
    uint32_t rank;
    uint64_t shape[RP_MAX_RANK + 2];
    void *data; /* aligned to 64 bytes */
    uint64_t bytes;
    /* [n] number of steps of each item, the rest is padded with 0. NULL: all items have shape[1] steps, or the field has no
     * steps. Not NULL if the items leave the number open (rp_slice.count 0), even if all have the same. */
    const uint32_t *lengths;
    uint32_t squeezed; /* 1: each item has one row, and the field no dimension of steps */
    uint32_t reserved;
} rp_field_view;

/* Fills *out; set out->struct_size first. */
RP_API rp_status rp_batch_get_info(const rp_batch *batch, rp_batch_info *out);
RP_API rp_status rp_batch_get_arrays(const rp_batch *batch, rp_batch_arrays *out);
/* Returns field i as a view that lives as long as the batch; NULL past the end. */
RP_API const rp_field_view *rp_batch_field(const rp_batch *batch, uint32_t i);
/* Returns the field of that name, or NULL. */
RP_API const rp_field_view *rp_batch_find(const rp_batch *batch, const char *name);
/* Returns why the batch is partial; "" otherwise. */
RP_API const char *rp_batch_text(const rp_batch *batch);
/* Releases the batch and nulls *batch. */
RP_API void rp_batch_release(rp_batch **batch);

/* ---- samplers ---- */

/* What a batch does while the table cannot give all of its items at once. */
typedef enum rp_fill {
    RP_FILL_WAIT = 0,    /* pick what there is, and wait for the rest */
    RP_FILL_AT_ONCE = 1, /* return what was picked at once */
    RP_FILL_WHOLE = 2,   /* pick nothing before the limiter allows the whole batch */
} rp_fill;

/* Where the memory of batches comes from, such as pages that a GPU reads. Each batch is one block, which is kept and given to later
 * batches. Both functions are called by any thread of the library and by who releases a batch; by the last of them after the sampler is
 * gone. They make no calls of the library. */
typedef struct rp_memory {
    void *(*alloc)(void *ctx, size_t bytes); /* aligned to 64 bytes; NULL: there is no memory */
    void (*free)(void *ctx, void *memory, size_t bytes);
    void *ctx;
} rp_memory;

/* Set struct_size to sizeof(rp_sampler_options) and the rest to 0 for the defaults. */
typedef struct rp_sampler_options {
    uint32_t struct_size;
    uint32_t batch_size; /* items in a batch; 0: 256 */
    /* Largest number of batches that are requested, or decoded and not yet taken; 0: 4, at most 1024. There are fewer, but at least
     * one, where they would take more than 256 MiB. Over shards there may be more: up to 32 for each shard, while all together
     * take less than 64 MiB. */
    uint32_t in_flight;
    uint32_t on_demand; /* 1: request nothing ahead, see rp_sampler_next; in_flight is not used */
    int32_t fill;       /* an rp_fill */
    uint32_t distinct;  /* 1: no item appears twice in a batch */
    /* The stream ends when no sample came for this long. Items that were picked before are given first, and an item that sampling has
     * removed from its table is waited for. 0: it does not end; negative: it ends as soon as nothing can be sampled. Not with
     * on_demand. */
    int64_t end_after_ms;
    uint64_t max_samples; /* the stream ends after exactly this many items; 0: no end */
    double beta;          /* exponent of the importance weights; 0: all weights are 1 */
    uint64_t max_bytes;   /* largest memory of one batch; 0: 4 GiB */
    /* Threads that fill a batch of 1 MiB or more, at most 64; 0: one for each processor, at most 4. Over shards they are divided. */
    uint32_t gather_threads;
    /* Not 0: the items of a batch stay in their table, hidden from all samplers, until rp_items_lease acknowledges them, or for this many
     * milliseconds from the reply on. Then, or when this process ends, they return first in line. For tables with max_times_sampled: 1.
     * Nothing is requested ahead, as with on_demand: the time of a batch that nobody has taken would pass. */
    uint32_t lease_ms;
    rp_memory memory; /* of the batches; all zeros: the library's */
    /* Not 0: the picks of each request follow from this seed, the number of the request, and what the table holds then. With on_demand
     * and nobody else who samples the table, the same calls give the same batches. */
    uint64_t seed;
    /* Not 0: a batch takes items, in the order in which they come, while their steps together are at most this many, but always one;
     * the next item begins the next batch. The steps of an item are those of its longest field. Batches are packed, and the last one
     * of a stream is partial. batch_size is then the number of items that one request asks for: it is answered with those that can be
     * sampled at once. Not with distinct, and not with a fill other than RP_FILL_WAIT. */
    uint64_t tokens;
} rp_sampler_options;

/* Starts sampling at once. options may be NULL. NULL with err set: there is no such table, or an option is wrong. The client
 * must outlive the sampler. */
RP_API rp_sampler *rp_sampler_new(rp_client *client, const char *table, const rp_sampler_options *options,
                                  rp_error *err);

/* Where a sampler takes items from: a table of a broker, or of all its shards. */
typedef struct rp_source {
    rp_client *client;
    const char *table;
    double share; /* of the items, above 0 and at most 1; negative: sources without a share divide the rest by mass */
} rp_source;

/* Starts sampling from several sources, such as demonstrations beside replay: each item of a batch comes from a source that is
 * drawn by the shares. probability is the share used, times the probability in the source; importance weights follow from it. The
 * sources must have the same fields, or their items come in separate batches. Sources without a share must be alike: all with a ratio
 * of samples to inserts, all without, or all queues; ratios of several are kept in sum. With end_after_ms, a source that gives nothing for
 * that long ends the stream. The array is copied; the clients must outlive the sampler.
 *
 * A new sampler over several brokers asks them about their tables: for at most 2 s, or 0.2 s after one has answered for each share. */
RP_API rp_sampler *rp_sampler_new_mixed(const rp_source *sources, uint32_t n, const rp_sampler_options *options,
                                        rp_error *err);
/* Sends no further requests, and cancels those that wait; a request may still be granted before that. rp_sampler_next then gives what was picked, and RP_END_OF_STREAM after it,
 * so that a sampler of a table that removes what is sampled (max_times_sampled, queues) can end at any time without losing an item.
 * Waits for a shard that is away; gives up a single broker that does not answer within a second. */
RP_API rp_status rp_sampler_stop(rp_sampler *sampler, rp_error *err);
/* Cancels requests in flight, waits for the broker to confirm it (for a second at most: then no item is picked any more), and drops
 * batches that were prefetched and not taken. If the table removes what is sampled, the items in them are lost: call rp_sampler_stop and
 * take batches until RP_END_OF_STREAM first, or use on_demand, which prefetches nothing. Batches that were taken stay valid. Nulls
 * *sampler. */
RP_API void rp_sampler_destroy(rp_sampler **sampler);

/* Gives the next batch; the caller releases it. RP_DEADLINE_EXCEEDED: no batch came in time; the text says what the table
 * waits for, if the broker has said so; call again. RP_END_OF_STREAM: max_samples items were given, or end_after_ms has passed
 * without a sample (with the broker's sentence). Other errors concern one request; call again for the next. *batch is NULL
 * unless RP_OK is returned.
 *
 * All items of a batch have the same fields. If the items of one reply differ in names, dtypes or shapes of fields, they come
 * as several batches, one per call: each holds the items whose fields agree, in the order of the picks, and is partial.
 * max_bytes bounds all of them together.
 *
 * With on_demand, each call makes one request, unless batches of the last reply are left. The broker answers within
 * timeout_ms: with a batch, with a partial batch (rp_batch_info.partial) if it could sample only some of it by then, or with
 * the reason why the table waits (RP_DEADLINE_EXCEEDED). timeout_ms 0 asks for what can be sampled at once; negative waits
 * inside the broker. When the call returns, no request is in flight, so the samples depend only on the order of the calls.
 * If the broker cannot be reached, the call returns after timeout_ms; if it is connected but silent, the request is cancelled 10 s
 * later. Over shards and sources, a call makes a request to each broker that it needs, and gives up a silent one 2 s later; items
 * that sampling has removed from their table are kept for the next call. The shares of brokers follow the masses that they reported last. */
RP_API rp_status rp_sampler_next(rp_sampler *sampler, rp_batch **batch, int64_t timeout_ms, rp_error *err);

/* Set struct_size before. */
typedef struct rp_sampler_stats {
    uint32_t struct_size;
    uint32_t requested; /* requests in flight */
    uint32_t ready;     /* batches decoded and not yet taken */
    uint32_t
        shared; /* brokers whose memory is read directly: they run on this host. REPLAY_SHM=0 in the environment: none */
    uint64_t batches;      /* taken */
    uint64_t items;        /* in them */
    uint64_t decode_ns;    /* time spent decoding */
    uint64_t shared_bytes; /* of batches that were read from the memory of brokers, at least in part */
    uint64_t overtaken; /* replies that were asked for again, because the broker had used their memory for other data */
} rp_sampler_stats;
RP_API rp_status rp_sampler_get_stats(rp_sampler *sampler, rp_sampler_stats *out);

/* ---- updates and deletes ---- */

/* Running sums over all parts of a call, or over the life of an updater. */
typedef struct rp_change {
    uint64_t applied;
    uint64_t
        missing; /* keys that are not in the table, or not under lease; they are ignored, as are an updater's for a lost shard */
    uint64_t refused; /* priorities that are not allowed, also of missing keys; the error names the first */
} rp_change;

/* Sets the priorities of n items and waits for the answer. Splits them into requests of the size that the broker accepts.
 * change may be NULL. If priorities are refused: RP_INVALID_ARGUMENT, and the others are applied. */
RP_API rp_status rp_priorities_update(rp_client *client, const char *table, const uint64_t *keys,
                                      const double *priorities, uint64_t n, int64_t timeout_ms, rp_change *change,
                                      rp_error *err);
RP_API rp_status rp_items_delete(rp_client *client, const char *table, const uint64_t *keys, uint64_t n,
                                 int64_t timeout_ms, rp_change *change, rp_error *err);

/* What becomes of items that this client has under lease. */
typedef enum rp_lease_op {
    RP_LEASE_ACK = 0,     /* they are done with, and leave the table for good */
    RP_LEASE_RELEASE = 1, /* they return, first in line */
    RP_LEASE_TOUCH = 2,   /* their leases, with all items of the same replies, go on for lease_ms from now */
} rp_lease_op;

/* Says so of n items and waits for the answer; an rp_updater acknowledges without waiting. change->applied counts those that were under lease of this client; missing are items whose
 * lease had ended, which others may have by now. A request that is repeated after a lost connection is carried out once. */
RP_API rp_status rp_items_lease(rp_client *client, const char *table, rp_lease_op op, const uint64_t *keys, uint64_t n,
                                uint32_t lease_ms, int64_t timeout_ms, rp_change *change, rp_error *err);

/* Collects updates of one table and sends them in batches without waiting for the answers; while more than half of the batches
 * that may be without an answer are, several go in one request. With shards: a batch for each shard,
 * and in_flight counts the batches at shards that answer. Updates for a shard that has not answered for a second are ignored, and
 * counted as missing; acknowledgements wait for it. */
typedef struct rp_updater_options {
    uint32_t struct_size;
    uint32_t batch;     /* updates that are collected, for about 20 ms, before any are sent; 0: 256 */
    uint32_t in_flight; /* largest number of batches without an answer; 0: 64 */
    /* 1: acknowledges items under lease (RP_LEASE_ACK) instead; priorities are not used. Every rp_updater_add is sent at once, unless half
     * of in_flight are without an answer. Items whose acknowledgement was not sent when the process ends return. */
    uint32_t acknowledge;
} rp_updater_options;

/* options may be NULL. The client must outlive the updater. */
RP_API rp_updater *rp_updater_new(rp_client *client, const char *table, const rp_updater_options *options,
                                  rp_error *err);
/* Flushes for at most timeout_ms, then drops updates that were not sent. Nulls *updater. */
RP_API rp_status rp_updater_destroy(rp_updater **updater, int64_t timeout_ms, rp_error *err);
/* Takes n updates. Waits only while in_flight batches are without an answer. After RP_DEADLINE_EXCEEDED, *taken (may be
 * NULL) is the number of updates taken. The next add or flush returns the error of an earlier request, once. */
RP_API rp_status rp_updater_add(rp_updater *updater, const uint64_t *keys, const double *priorities, uint32_t n,
                                int64_t timeout_ms, uint32_t *taken, rp_error *err);
/* Sends the rest and waits until everything is answered. *change (may be NULL) gets the totals so far. */
RP_API rp_status rp_updater_flush(rp_updater *updater, int64_t timeout_ms, rp_change *change, rp_error *err);

#ifdef __cplusplus
}
#endif

#endif
