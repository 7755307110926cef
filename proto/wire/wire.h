/* Hot headers, decoded by hand into views: ingest, sample, update, sample reply.
 *
 * The room proto/wire owns how messages are encoded (replay.proto and PROTOCOL.md say what they mean): hot headers (wire*), the
 * protobuf wire format for them (pb), other messages through protobuf-c (unpack), column blocks (codec*), and messages inside
 * one process (channel). It uses proto/base only; the broker and the client use it.
 *
 * A view borrows the frame. Decoding checks what can be checked from the header alone: wire types, array lengths against each
 * other, no field twice, counts that add up. The owner of the state checks versions, sessions, columns, layouts, tables,
 * references, and the sizes of blocks against the payload frames.
 *
 * Readers are stricter than protobuf: a packed array appears once and is packed, a oneof has one member, a uint32 fits 32 bits.
 * Unknown fields are skipped, so that later versions can add fields; in Request and Reply every field from 16 on is a body. All
 * failures are RP_BAD_MESSAGE with a sentence that names the field. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire/pb.h"
#include "replay/error.h"

#define WIRE_VERSION 1u
/* The first bits of a key are the number of the shard that owns it; 0 if the broker is alone. */
#define WIRE_KEY_SHARD_SHIFT 56
#define WIRE_MAX_SHARDS 255u
static inline uint32_t wire_key_shard(uint64_t key)
{
    return (uint32_t)(key >> WIRE_KEY_SHARD_SHIFT);
}

/* Returns the shard of a group, of n: all writers agree, so its members meet. */
static inline uint32_t wire_group_shard(uint64_t group, uint32_t n)
{
    return (uint32_t)((group * UINT64_C(0x9E3779B97F4A7C15) >> 32) * n >> 32);
}

#define WIRE_SESSION_BYTES 16u
/* Largest number of chunks in one sample reply: a header can claim any number of chunks in a few bytes. */
#define WIRE_MAX_CHUNKS (1u << 24)

/* Outer header of a service request: body is the number of the field that is set (16 and up); data are its bytes, not parsed. */
struct wire_request {
    uint32_t version;
    uint64_t id;
    uint64_t client;
    uint64_t settled;
    uint32_t body; /* 0: none */
    const uint8_t *data;
    size_t size;
};
/* RP_BAD_MESSAGE if the frame is not a Request; id and client are set if they could be read, so that the error can be answered.
 * An unknown body is not an error here. */
rp_status wire_read_request(const void *frame, size_t size, struct wire_request *out, rp_error *err);

struct wire_string {
    const char *data; /* not terminated */
    uint32_t size;
};

/* wire_sample.shared: from this on, packed chunks may be in the arena, too; and all of the reply but its outer header. */
#define WIRE_SHARED_PACKED 2u
#define WIRE_SHARED_HEAD 3u

struct wire_sample {
    struct wire_string table;
    uint32_t count;
    bool has_timeout;
    uint64_t timeout_ms;
    bool distinct, flexible, whole, paid;
    uint32_t shared;
    uint64_t seed;
    uint32_t lease_ms;
};
rp_status wire_read_sample(const void *body, size_t size, struct wire_sample *out, rp_error *err);

/* Update, Delete and Fetch. priority is empty for Delete and Fetch, and has n or 1 elements for Update. */
struct wire_keys {
    struct wire_string table;
    struct pb_array key;
    struct pb_array priority;
};
rp_status wire_read_keys(const void *body, size_t size, bool with_priority, struct wire_keys *out, rp_error *err);

/* wire_lease.op */
enum { WIRE_LEASE_ACK, WIRE_LEASE_RELEASE, WIRE_LEASE_TOUCH };
/* Longest lease: a day. */
#define WIRE_LEASE_MOST_MS 86400000u
struct wire_lease {
    struct wire_string table;
    struct pb_array key;
    uint32_t op, ms;
};
rp_status wire_read_lease(const void *body, size_t size, struct wire_lease *out, rp_error *err);

struct wire_ingest {
    uint32_t version;
    uint8_t session[WIRE_SESSION_BYTES];
    uint32_t epoch;
    uint64_t number;
    uint64_t oldest_chunk;
    const uint8_t *layouts; /* the frame from the first Layout field on, for another pass with pb_next; NULL: none */
    size_t layouts_size;
    uint32_t n_layouts;
    uint32_t n_chunks;
    uint32_t packed;
    /* chunk_episode, run_policy and item_offset may be absent from the frame: then they are one 0, which every index reads. */
    struct pb_array chunk_number, chunk_step, chunk_length, chunk_episode;
    struct pb_array block_size, block_codec; /* n is 1 or a multiple of n_chunks: the session knows the columns */
    struct pb_array place;                   /* of the chunks that are not packed; n is 0: in frames */
    uint32_t n_runs;
    struct pb_array run_layout, run_items, run_first, run_policy;
    uint32_t n_items;
    struct pb_array item_key, item_priority, item_chunk, item_offset, item_length;
    struct pb_array item_group; /* n is 0: absent */
};
/* On RP_OK: n_chunks, n_items and n_runs agree with all arrays, the runs' items sum to n_items, packed <= n_chunks. On
 * RP_BAD_MESSAGE, session and number are set if they could be read. */
rp_status wire_read_ingest(const void *frame, size_t size, struct wire_ingest *out, rp_error *err);

/* The writer's side: arrays in host order. Optional arrays (chunk_episode, run_policy, item_offset) may be NULL for all zeros.
 * Appends the frame to out; without memory, out->failed is set. session, epoch and number have fixed offsets in the header, so
 * that wire_patch_ingest can change the first two in place. */
struct wire_ingest_out {
    const uint8_t *session;
    uint32_t epoch;
    uint64_t number;
    uint64_t oldest_chunk;
    const void *layouts; /* encoded Layout fields with their tags (number 7), or NULL */
    size_t layouts_size;
    uint32_t n_chunks, n_columns, packed;
    uint64_t *chunk_number, *chunk_step;
    uint32_t *chunk_length, *chunk_episode;
    uint32_t *block_size;
    uint8_t *block_codec;
    uint64_t *place; /* [n_chunks - packed], or NULL */
    uint32_t n_runs;
    uint32_t *run_layout, *run_items;
    uint64_t *run_first, *run_policy;
    uint32_t n_items;
    uint64_t *item_key, *item_chunk;
    double *item_priority;
    uint32_t *item_offset, *item_length;
    uint64_t *item_group; /* or NULL */
};
void wire_write_ingest(struct text *out, const struct wire_ingest_out *in);
/* Sets session and epoch in a frame written by wire_write_ingest. */
void wire_patch_ingest(void *frame, const uint8_t *session, uint32_t epoch);

/* A reply to sample or fetch, as the client sees it. */
struct wire_reply {
    uint32_t version;
    uint64_t id;
    uint32_t status;
    struct wire_string text;
    struct wire_string tracing; /* a Tracing message, not parsed; empty: no trace is recorded */
    uint32_t body;              /* 0: none */
    const uint8_t *data;
    size_t size;
};
rp_status wire_read_reply(const void *frame, size_t size, struct wire_reply *out, rp_error *err);

struct wire_sampled {
    uint32_t n_items, n_chunks, n_blocks;
    struct pb_array key, priority, probability, times_sampled, age_ns, policy, step, session;
    struct pb_array layout, offset, length, chunks, chunk; /* chunk empty: 0, 1, 2 ... */
    struct pb_array chunk_length, chunk_blocks;
    struct pb_array block_column, block_codec, block_size;
    struct pb_array place, stamp; /* of the last chunks */
    struct pb_array packed_at;    /* place, stamp and bytes; empty: packed chunks come in a frame */
    struct pb_array group;        /* n is 0: the table has no groups */
    struct pb_array head_at; /* place, stamp, offset and bytes; not empty: the reply is there, and nothing of it here */
    uint32_t packed;
    const uint8_t *layouts;
    size_t layouts_size;
    uint32_t n_layouts;
    uint64_t table_size, waited_ns;
    bool partial;
    double mass; /* this and room: of a paid sample */
    uint64_t room;
};
/* Checks lengths, that chunk indices are below n_chunks and layout indices below n_layouts, packed <= n_chunks, at most
 * RP_MAX_COLUMNS blocks in a chunk. n_chunks is not on the wire: it is the highest index in `chunk` plus 1, or without
 * that array the sum of `chunks`. Absent probability, times_sampled, policy, session, layout and offset are one 0. */
rp_status wire_read_sampled(const void *body, size_t size, struct wire_sampled *out, rp_error *err);

/* The broker's side: arrays in host order. chunk may be NULL (0, 1, 2 ...), and so may arrays that read as 0 when absent.
 * block_column has n_block_columns entries: n_blocks, or only those of the first chunk if all chunks have the same columns.
 * Writes a whole Reply frame, including the outer header; without memory, out->failed is set. */
struct wire_sampled_out {
    uint64_t id;
    uint32_t status;
    const char *text;
    uint32_t n_items, n_chunks, n_blocks, n_chunk_refs;
    const uint64_t *key, *age_ns, *policy, *step;
    const double *priority, *probability;
    const uint32_t *times_sampled, *session, *layout, *offset, *length, *chunks, *chunk;
    const uint32_t *chunk_length, *chunk_blocks, *block_size;
    const uint8_t *block_column, *block_codec;
    uint32_t n_block_columns;
    const uint64_t *place, *stamp; /* of the last n_places chunks */
    const uint64_t *packed_at;     /* [3], or NULL */
    const uint64_t *group;         /* or NULL */
    const uint64_t *head_at;       /* [4], or NULL */
    uint32_t n_places;
    uint32_t packed;
    const void *layouts; /* encoded Layout fields with their tags (number 20) */
    size_t layouts_size;
    uint64_t table_size, waited_ns;
    bool partial;
    bool paid; /* mass and room are written */
    double mass;
    uint64_t room;
};
void wire_write_sampled(struct text *out, const struct wire_sampled_out *in);
/* Writes only what is inside the outer header, to the memory that `room` gives for its bytes; it may still set values of packed_at.
 * False: it gave none. */
bool wire_write_sampled_at(const struct wire_sampled_out *in, void *(*room)(void *ctx, size_t bytes), void *ctx);
