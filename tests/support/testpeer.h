/* A client that speaks the protocol and does only what the test says: no thread, no retry, no flow control of its own. With an
 * embedded broker it runs the broker's loop while it waits; with a real process it polls. */
#pragma once

#include <zmq.h>

#include "proto/wire/wire.h"
#include "replay.pb-c.h"
#include "tests/support/embed.h"

#define TESTPEER_CHUNKS 8192u
#define TESTPEER_ITEMS 8192u
#define TESTPEER_LAYOUTS 64u
#define TESTPEER_COLUMNS 8u
#define NO_TIMEOUT (-1)

/* PACKED: small chunks, too, are read from shared memory; HEAD: and what the reply says about its items. */
enum testpeer_flags { DISTINCT = 1, FLEXIBLE = 2, WHOLE = 4, PAID = 8, SHARED = 16, PACKED = 32, HEAD = 64 };

struct testpeer_column {
    const char *name, *dtype;
    uint32_t rank, shape[2];
    uint32_t row_bytes;
};

/* A reply that has arrived. Owned by the peer until testpeer_forget or testpeer_close. */
struct testpeer_answer {
    struct testpeer_answer *next;
    uint64_t id;
    uint32_t status;
    const char *text;
    Replay__Reply *reply;
    zmq_msg_t *payload;
    uint32_t n_payload;
    bool delimited;
};

/* A message that was pushed, or held back, in the form for a resend. */
struct testpeer_sent {
    struct testpeer_sent *next;
    uint64_t number;
    size_t bytes;
    zmq_msg_t *frames;
    uint32_t n;
};

/* The parts of the next message. */
struct testpeer_draft {
    uint32_t n_chunks, packed, n_items, n_runs;
    uint64_t chunk_number[TESTPEER_CHUNKS], chunk_step[TESTPEER_CHUNKS];
    uint32_t chunk_length[TESTPEER_CHUNKS], chunk_episode[TESTPEER_CHUNKS];
    uint32_t block_size[TESTPEER_CHUNKS * TESTPEER_COLUMNS];
    uint8_t block_codec[TESTPEER_CHUNKS * TESTPEER_COLUMNS];
    uint32_t run_layout[TESTPEER_ITEMS], run_items[TESTPEER_ITEMS];
    uint64_t run_first[TESTPEER_ITEMS], run_policy[TESTPEER_ITEMS];
    uint64_t item_key[TESTPEER_ITEMS], item_chunk[TESTPEER_ITEMS];
    double item_priority[TESTPEER_ITEMS];
    uint32_t item_offset[TESTPEER_ITEMS], item_length[TESTPEER_ITEMS];
    uint64_t item_group[TESTPEER_ITEMS];
    bool grouped; /* some item has a group */
    struct text pack, layouts;
    zmq_msg_t own[256];
    uint32_t n_own;
    uint64_t place[256]; /* of the chunks that are not packed */
    bool placed;         /* the header has it */
};

struct testpeer {
    struct testpeer *next;
    struct embed *embed; /* NULL: a broker in another process */
    void *context, *service, *ingest;
    int type;              /* ZMQ_DEALER or ZMQ_REQ */
    bool delimiter;        /* a DEALER that sends a delimiter */
    bool keep;             /* keep pushed messages for a resend */
    bool lose;             /* keep messages and do not send them */
    bool frames;           /* send frames also of chunks that have a place */
    Replay__Arena *memory; /* for HELLO, or NULL */
    /* If set, testpeer_call tells it of a request that was not answered (answer NULL) or refused, and asks again, once, with
     * the same id. */
    void (*refused)(struct testpeer *self, const struct testpeer_answer *answer);
    uint64_t client, next_id;
    uint32_t lease_ms; /* of its samples; 0: none */
    struct testpeer_answer *answers;
    uint64_t notices;
    /* session */
    struct testpeer_column columns[TESTPEER_COLUMNS];
    uint32_t n_columns;
    uint8_t session[WIRE_SESSION_BYTES];
    uint32_t ordinal, epoch;
    uint64_t key_base, lost_messages;
    bool resumed;
    char ingest_endpoint[256];
    Replay__Credit *credit; /* the newest */
    uint64_t number, chunk, step, oldest_chunk, policy, sent_bytes;
    uint64_t group;    /* of further items; 0: none */
    uint64_t released; /* credit released in this epoch, for the next heartbeat */
    uint32_t episode;
    struct {
        char table[64];
        uint64_t *items;
    } layouts[TESTPEER_LAYOUTS];
    uint32_t n_layouts;
    struct {
        char name[64];
        uint64_t items; /* number of the last item */
    } tables[16];
    uint32_t n_tables;
    struct testpeer_sent *sent, **sent_end;
    struct testpeer_draft *draft;
};

/* Returns a DEALER without delimiter, connected to the embedded broker. */
struct testpeer *testpeer_new(struct embed *embed);
struct testpeer *testpeer_new_type(struct embed *embed, int type, bool delimiter);
/* Returns a DEALER connected to a broker in another process, with a context of its own. */
struct testpeer *testpeer_connect(const char *service);
void testpeer_close(struct testpeer *self);
/* Opens new sockets, as after a lost connection; messages that were not read are lost. */
void testpeer_reconnect(struct testpeer *self);
/* The same to another embedded broker. */
void testpeer_move(struct testpeer *self, struct embed *embed);
/* Frees all answers. */
void testpeer_forget(struct testpeer *self);
/* Drops the messages kept for a resend. */
void testpeer_forget_sent(struct testpeer *self);

/* protobuf-c's structs are not const. */
static inline char *testpeer_text(const char *text)
{
    return (char *)(uintptr_t)text;
}
static inline uint64_t *testpeer_keys(const uint64_t *keys)
{
    return (uint64_t *)(uintptr_t)keys;
}

/* Tells the broker that the client has read all replies to samples up to this request (0: up to the last). */
void testpeer_settled(struct testpeer *self, uint64_t id);

/* ---- requests. testpeer_ask sets version, id and client. */
/* Declares a request with this body: TESTPEER_REQUEST(request, WHY, why, &why). */
#define TESTPEER_REQUEST(name, body, member, message)                                                                  \
    Replay__Request name = REPLAY__REQUEST__INIT;                                                                      \
    (name).body_case = REPLAY__REQUEST__BODY_##body;                                                                   \
    (name).member = (message)
/* The same as a value, whose body has these members: REQUEST_OF(COUNTER, counter, Counter, .add = 3). */
#define REQUEST_OF(NAME, member, Type, ...)                                                                            \
    (&(Replay__Request){                                                                                               \
        PROTOBUF_C_MESSAGE_INIT(&replay__request__descriptor), .body_case = REPLAY__REQUEST__BODY_##NAME,              \
        .member = &(Replay__##Type){PROTOBUF_C_MESSAGE_INIT(&replay__##member##__descriptor), __VA_ARGS__}})
/* Members of such a body: a time-out in milliseconds; below 0: none. */
#define TIMEOUT_OF(NAME, ms)                                                                                           \
    .has_timeout_ms_case = (ms) < 0 ? 0 : REPLAY__##NAME##__HAS_TIMEOUT_MS_TIMEOUT_MS,                                 \
    .timeout_ms = (ms) < 0 ? 0 : (uint64_t)(ms)
uint64_t testpeer_ask(struct testpeer *self, Replay__Request *request);
/* The same with one payload frame, and with this id (0: the next). */
uint64_t testpeer_ask_with(struct testpeer *self, Replay__Request *request, uint64_t id, const void *payload,
                           size_t size);
/* Returns the answer, or NULL if there is none when the broker is idle (a real broker: within 5 s). */
struct testpeer_answer *testpeer_poll(struct testpeer *self, uint64_t id);
/* The test fails if there is an answer when the broker is idle. Returns the id. */
uint64_t testpeer_waits(struct testpeer *self, uint64_t id);
/* Returns the answer; the test fails if there is none. */
struct testpeer_answer *testpeer_await(struct testpeer *self, uint64_t id);
/* The same; the test fails, too, if its status is not RP_OK. */
struct testpeer_answer *testpeer_good(struct testpeer *self, uint64_t id);
/* The test fails unless the answer has this status, and its text these words. */
void testpeer_refused(const struct testpeer_answer *answer, rp_status status, const char *words);
struct testpeer_answer *testpeer_call(struct testpeer *self, Replay__Request *request);
/* Reads all messages that have arrived, without waiting. */
void testpeer_read(struct testpeer *self);

uint64_t testpeer_sample(struct testpeer *self, const char *table, uint32_t count, int64_t timeout_ms, int flags);
/* The same with this id (0: the next), which a retry has in common with its first request. */
uint64_t testpeer_sample_as(struct testpeer *self, uint64_t id, const char *table, uint32_t count, int64_t timeout_ms,
                            int flags);
struct testpeer_answer *testpeer_sampled(struct testpeer *self, const char *table, uint32_t count);
/* Asks for a permit, with this id (0: the next). flags: FLEXIBLE or 0. */
uint64_t testpeer_permit(struct testpeer *self, uint64_t id, const char *table, uint32_t count, int64_t timeout_ms,
                         int flags);
struct testpeer_answer *testpeer_update(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys,
                                        const double *priorities);
/* op: of enum in proto/wire/wire.h. */
struct testpeer_answer *testpeer_lease(struct testpeer *self, const char *table, uint32_t op, uint32_t ms, uint32_t n,
                                       const uint64_t *keys);
struct testpeer_answer *testpeer_delete(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys);
struct testpeer_answer *testpeer_fetch(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys);
struct testpeer_answer *testpeer_reset(struct testpeer *self, const char *table);
/* Asks that these requests end, and returns the id of the question. */
uint64_t testpeer_ask_cancel(struct testpeer *self, uint32_t n, uint64_t *ids);
/* The same; returns how many requests there were. */
uint64_t testpeer_cancel(struct testpeer *self, uint32_t n, uint64_t *ids);
const Replay__WhyReply *testpeer_why(struct testpeer *self);
/* Changes a value of a limiter: TESTPEER_LIMIT(peer, "t", MIN_SIZE, min_size, 4). */
rp_status testpeer_limit(struct testpeer *self, const char *table, Replay__SetLimiter change);
#define TESTPEER_LIMIT(peer, table, NAME, member, to)                                                                  \
    testpeer_limit(peer, table,                                                                                        \
                   (Replay__SetLimiter){PROTOBUF_C_MESSAGE_INIT(&replay__set_limiter__descriptor),                     \
                                        .has_##member##_case = REPLAY__SET_LIMITER__HAS_##NAME##_##NAME,               \
                                        .member = (to)})
/* Puts parameters, with the next version if it is 0. */
uint64_t testpeer_put(struct testpeer *self, const char *name, uint64_t version, const void *value, size_t size);
int64_t testpeer_counter(struct testpeer *self, const char *name, int64_t add);
/* Returns the table's part of the answer to INFO. */
Replay__TableInfo *testpeer_table_info(struct testpeer *self, const char *table);
Replay__InfoReply *testpeer_info(struct testpeer *self);

/* ---- session */
/* Opens a session with a single column "x" of one uint64; tests put an item's key there. */
void testpeer_open(struct testpeer *self, bool notices);
/* Returns a new DEALER with such a session. */
struct testpeer *testpeer_opened(struct embed *embed, bool notices);
void testpeer_open_with(struct testpeer *self, bool notices, const struct testpeer_column *columns, uint32_t n);
struct testpeer_answer *testpeer_resume(struct testpeer *self, uint64_t oldest_number, bool notices);
struct testpeer_answer *testpeer_heartbeat(struct testpeer *self, uint64_t confirmed, bool explain);
uint64_t testpeer_bye(struct testpeer *self, int64_t timeout_ms);
uint64_t testpeer_resolved(const struct testpeer *self, uint32_t table);
uint64_t testpeer_allowed(const struct testpeer *self, uint32_t table);
/* Sends heartbeats until so many items of a table are resolved. */
void testpeer_await_resolved(struct testpeer *self, uint32_t table, uint64_t n);

/* ---- ingest */
uint32_t testpeer_layout(struct testpeer *self, const char *table, uint32_t n, const Replay__Field *fields);
/* Returns the layout of one field, the first step of column 0; made at the first use. */
uint32_t testpeer_plain(struct testpeer *self, const char *table);
/* Adds a chunk of raw blocks; NULL for a column without data. own: as a frame of its own (all further chunks too). */
uint64_t testpeer_chunk(struct testpeer *self, uint32_t rows, const void *const *blocks, bool own);
/* Adds a chunk whose bytes follow from their column and step, for sampled_known. */
uint64_t testpeer_known(struct testpeer *self, uint32_t rows, bool own);
uint8_t testpeer_known_byte(uint32_t column, uint64_t step, uint32_t i);
/* The chunk that was added last lies here in `memory`; all chunks of a message that have a frame of their own must have a place. */
void testpeer_place(struct testpeer *self, uint64_t place);
void testpeer_item(struct testpeer *self, uint32_t layout, uint64_t key, double priority, uint64_t chunk,
                   uint32_t offset, uint32_t length);
/* Sends the draft and returns its number. */
uint64_t testpeer_push(struct testpeer *self);
/* The same, and the broker does what it can with it. */
void testpeer_pushed(struct testpeer *self);
/* Sends one message with n items of one step, keys first_key, first_key + 1 ... */
void testpeer_insert(struct testpeer *self, const char *table, uint64_t first_key, uint32_t n, double priority);
/* The same, and the broker does what it can with them. */
void testpeer_inserted(struct testpeer *self, const char *table, uint64_t first_key, uint32_t n, double priority);
/* Sends one item over a chunk of its own with `bytes` bytes (column 0 must be uint8[bytes]). */
void testpeer_insert_large(struct testpeer *self, const char *table, uint64_t key, uint32_t bytes, bool own);
/* Sends kept messages with a number above `received` again, in the current epoch. */
void testpeer_resend(struct testpeer *self, uint64_t received);

/* ---- reading a sample reply */
/* Maps the shared memory of the broker, from which the rows of samples with SHARED are read; of one broker at a time. */
const uint8_t *testpeer_map(struct testpeer *self);
void testpeer_unmap(void);
/* Gives a reply its SampleReply, if that is in the shared memory. */
void testpeer_read_head(Replay__Reply *reply);
uint32_t sampled_u32(const uint32_t *values, size_t n, uint32_t i);
/* Returns the rows of a field of item i, in malloc'ed memory. Raw blocks only. */
uint8_t *sampled_rows(const struct testpeer_answer *answer, uint32_t item, uint32_t field, uint32_t *rows,
                      uint32_t *row_bytes);
/* Checks the rows of all fields of item i, whose chunks are of testpeer_known. */
void sampled_known(const struct testpeer_answer *answer, uint32_t item);
/* Checks that item i has its key as data (plain layout). */
void sampled_check(const struct testpeer_answer *answer, uint32_t item);
