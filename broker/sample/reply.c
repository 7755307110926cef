/* From picks to frames: small chunks are packed into one frame, large ones are frames of their own without a copy. */
#include "broker/sample/reply.h"

#include <stdlib.h>
#include <string.h>

#include "broker/loop/histogram.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/reply_build.h"
#include "broker/sample/samples.h"
#include "broker/store/params.h"
#include "proto/wire/wire.h"

/* How many chunks ahead of the copy data is prefetched, and headers, which say how much data there is. */
#define PREFETCH_AHEAD 6u
#define HEADERS_AHEAD 16u
/* The parameter slot whose version says how stale an item is. */
#define POLICY_SLOT "policy"

/* Copies the needed blocks of a chunk. Returns the end of the copy. */
static uint8_t *copy_needed(const struct reply_build *self, struct chunk *chunk, uint8_t *out)
{
    const uint32_t *sizes = chunk_block_sizes(chunk);
    const uint8_t *data = chunk_data(chunk);
    if (chunk->columns <= self->full) {
        memcpy(out, data, chunk->bytes);
        return out + chunk->bytes;
    }
    uint32_t run = 0; /* neighbouring blocks that are both needed are copied at once */
    for (uint32_t c = 0; c < chunk->columns; c++) {
        if (reply_build_needs(self, c)) {
            run += sizes[c];
            continue;
        }
        memcpy(out, data, run);
        out += run;
        data += run + sizes[c];
        run = 0;
    }
    memcpy(out, data, run);
    return out + run;
}

/* Prefetches the data of a chunk. Inlined always: see prefetch_picks. */
static inline __attribute__((always_inline)) void prefetch_chunk(struct chunk *chunk)
{
    const char *at = (const char *)chunk + 128;
    uint32_t bytes = chunk->kind == CHUNK_SLAB && chunk->bytes < 1024 ? chunk->bytes : 0;
    for (uint32_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(at + i);
}

static void copy_small(const struct reply_build *self, uint8_t *out)
{
    for (uint32_t i = 0; i < self->n_small; i++) {
        reply_build_prefetch(self, i + HEADERS_AHEAD);
        if (i + PREFETCH_AHEAD < self->n_small)
            prefetch_chunk(self->chunk[i + PREFETCH_AHEAD]);
        out = copy_needed(self, self->chunk[i], out);
    }
}

static bool needs_all(const struct reply_build *self, const struct chunk *chunk)
{
    for (uint32_t c = 0; c < chunk->columns; c++)
        if (!reply_build_needs(self, c))
            return false;
    return true;
}

static bool frame_large(const struct reply_build *self, struct peer *peer, struct chunk *chunk, zmq_msg_t *message)
{
    zmq_msg_t *kept = chunk_message(chunk);
    if (kept && needs_all(self, chunk))
        return peer_frame_view(peer, message, kept, zmq_msg_data(kept), chunk->bytes);
    uint32_t bytes = reply_build_needed_bytes(self, chunk);
    uint8_t *data = malloc(bytes ? bytes : 1);
    if (!data)
        return false;
    copy_needed(self, chunk, data);
    return peer_frame(peer, message, data, bytes);
}

/* Makes the payload frames. *n: frames made, which the caller closes if this fails. False: no memory. */
static bool make_payload(const struct reply_build *self, struct peer *peer, zmq_msg_t *payload, uint32_t *n)
{
    *n = 0;
    if (self->n_small) {
        uint8_t *data = malloc(self->small_bytes ? self->small_bytes : 1);
        if (!data)
            return false;
        copy_small(self, data);
        if (!peer_frame(peer, &payload[0], data, self->small_bytes))
            return false;
        *n = 1;
    }
    for (uint32_t i = self->n_small; i < self->n_chunks; i++, (*n)++)
        if (!frame_large(self, peer, self->chunk[i], &payload[*n]))
            return false;
    return true;
}

/* In a batch of this many items every fourth counts for four: to count each would make samples a percent slower. */
#define COUNT_ALL_BELOW 16u

static void count_ages(const struct reply_build *self, struct table *table, const struct picks *picks, uint64_t newest)
{
    uint64_t *ages = table->sampled_age.counts, *behind = table->sampled_staleness.counts;
    uint32_t stride = picks->n < COUNT_ALL_BELOW ? 1 : 4;
    for (uint32_t i = 0; i < picks->n; i += stride) {
        uint32_t n = picks->n - i < stride ? picks->n - i : stride;
        ages[histogram_bucket(self->age_ns[i])] += n;
        behind[histogram_bucket(newest > picks->policy[i] ? newest - picks->policy[i] : 0)] += n;
    }
}

/* Computes ages, and updates the running means of how old and how stale the samples of the table are. */
static void collect_ages(struct reply_build *self, const struct samples *samples, const struct sample_reply *reply)
{
    struct table *table = reply->table;
    const struct picks *picks = reply->picks;
    uint64_t newest = params_version(samples->params, POLICY_SLOT);
    double age = 0, stale = 0;
    for (uint32_t i = 0; i < picks->n; i++) {
        uint64_t now = (uint64_t)samples->loop->now_ns, ns = now > picks->age_ns[i] ? now - picks->age_ns[i] : 0;
        self->age_ns[i] = ns;
        age += (double)ns;
        stale += newest > picks->policy[i] ? (double)(newest - picks->policy[i]) : 0;
    }
    if (reply->waited_ns < 0 || !picks->n)
        return;
    count_ages(self, table, picks, newest);
    Replay__TableInfo *stats = &table->stats;
    table->sampled_age.sum += age;
    table->sampled_staleness.sum += stale;
    double n = (double)picks->n, part = n / (n + (table->mean_weight < 1000 ? table->mean_weight : 1000));
    stats->mean_age_s += part * (age / n / (double)NS_PER_S - stats->mean_age_s);
    stats->mean_staleness += part * (stale / n - stats->mean_staleness);
    table->mean_weight += n;
    if (table->mean_weight > 1000)
        table->mean_weight = 1000;
}

/* What a sampler over shards has to know of the table for its next draw. */
static void put_state(const struct table *table, struct wire_sampled_out *out)
{
    out->paid = true;
    out->mass = table_mass(table);
    out->room = table_sampleable(table, UINT32_MAX);
}

/* Writes the Sampled header. */
static void write_header(const struct reply_build *self, const struct sample_reply *reply, struct pb_writer *header)
{
    const struct picks *picks = reply->picks;
    bool same = reply_build_same_columns(self);
    bool in_order = self->n_chunks == picks->n_refs && self->n_small == self->n_chunks;
    struct wire_sampled_out out = {
        .id = reply->id,
        .text = reply->text,
        .n_items = picks->n,
        .n_chunks = self->n_chunks,
        .n_blocks = self->n_blocks,
        .n_chunk_refs = picks->n_refs,
        .key = picks->key,
        .age_ns = self->age_ns,
        .policy = picks->policy,
        .step = picks->step,
        .priority = picks->priority,
        .probability = picks->probability,
        .times_sampled = picks->times_sampled,
        .session = picks->session,
        .layout = self->layout_index,
        .offset = picks->offset,
        .length = picks->length,
        .chunks = picks->chunks,
        .chunk = in_order ? NULL : self->chunk_index,
        .chunk_length = self->chunk_length,
        .chunk_blocks = self->chunk_blocks,
        .block_size = self->block_size,
        .block_column = self->block_column,
        .block_codec = self->block_codec,
        .n_block_columns = same && self->n_chunks ? self->chunk_blocks[0] : self->n_blocks,
        .packed = self->n_small,
        .layouts = self->layouts.data,
        .layouts_size = self->layouts.size,
        .table_size = picks->table_size,
        .waited_ns = reply->waited_ns > 0 ? (uint64_t)reply->waited_ns : 0,
        .partial = reply->partial,
    };
    if (reply->paid)
        put_state(reply->table, &out);
    wire_write_sampled(header, &out);
}

/* Sends payload and header. False: no memory. */
static bool send_built(const struct reply_build *self, struct peers *peers, struct peer *peer,
                       const struct sample_reply *reply, bool *sent)
{
    uint32_t most = 1 + self->n_chunks - self->n_small, n = 0;
    zmq_msg_t *payload = malloc(most * sizeof *payload);
    struct pb_writer header = {0};
    zmq_msg_t head;
    zmq_msg_init(&head);
    bool ok = payload && make_payload(self, peer, payload, &n);
    if (ok) {
        write_header(self, reply, &header);
        if (trace_on(&peers->loop->trace))
            request_put_tracing(peers, &header);
        ok = !header.failed;
        if (!ok)
            pb_writer_fini(&header);
        ok = ok && peer_frame(peer, &head, header.data, header.size);
    }
    if (ok) {
        *sent = peer_send(peers, reply->to, &head, payload, n);
    } else {
        for (uint32_t i = 0; i < n; i++)
            zmq_msg_close(&payload[i]);
        zmq_msg_close(&head);
    }
    free(payload);
    return ok;
}

/* Refuses to send more to a client that leaves its replies unread. */
static void refuse_full(struct samples *samples, const struct sample_reply *reply)
{
    uint32_t held;
    if (log_allow(&samples->peers->service_log, 5, samples->loop->now_ns, &held))
        log_line(LEVEL_WARN, "B0302", "peer does not read its replies", "table=%s picks=%u held_back=%u",
                 reply->table->name, reply->picks->n, held);
    request_fail(samples->peers, reply->to, reply->id, RP_RESOURCE_EXHAUSTED,
                 "this client has left too many replies unread: read them before asking for more");
}

bool reply_picks(struct samples *samples, const struct sample_reply *reply)
{
    struct peer *peer = peer_find(samples->peers, reply->to);
    if (peer && peer_is_full(samples->peers, peer)) {
        refuse_full(samples, reply);
        return false;
    }
    if (!samples->build)
        samples->build = calloc(1, sizeof *samples->build);
    struct reply_build *build = samples->build;
    bool sent = false;
    bool ok = peer && build && reply_build_collect(build, samples->layouts, reply->picks);
    if (ok) {
        collect_ages(build, samples, reply);
        ok = send_built(build, samples->peers, peer, reply, &sent);
    }
    if (!ok)
        request_fail(samples->peers, reply->to, reply->id, RP_NO_MEMORY, "the broker has no memory for the reply");
    return sent;
}
