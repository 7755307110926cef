/* Parameter slots: put, get, publishers and subscribers. All of it is public in replay/params.h.
 *
 * A publisher and a subscriber have in common: a name, errors that the caller learns of at the next call, and shards: one part for
 * each connection (one for each shard), which has at most one request in flight. A single put is a publisher with one block.
 *
 * A value of more than PARTS_FROM bytes, or with a second form, goes in parts of PART_BYTES, of which WINDOW are in flight at a
 * time: they are views of the publisher's block, and a subscriber copies them into one piece of memory. Replies come in the order of
 * the requests. So both sides know the first part that is not there yet, and after a lost connection, a restart of the broker or a
 * refusal they go on from it. A random number names the value: whatever version it gets, and at whichever shard, parts of two values
 * are never mixed. A broker on this host offers the memory of the value instead, which is mapped and not copied. */
#include "replay/params.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/arena.h"
#include "agent/client/conn/client.h"
#include "agent/client/conn/pool.h"
#include "proto/base/clock.h"
#include "proto/base/copy_past.h"
#include "proto/base/error.h"
#include "proto/base/rng.h"
#include "proto/base/trace.h"
#include "replay/types.h"

/* Grace beyond the broker's own time-out. */
#define GRACE_MS 2000
/* With shards: how long one of them is asked at a time, and how long it may be silent beyond that. */
#define TURN_MS 500
#define SILENCE_MS 500
/* Delay before the next request after the broker has ended one because it shuts down. */
#define RETRY_NS (100 * NS_PER_MS)
/* A part is so small that the broker's one thread handles it well below a millisecond, and so large that its requests cost nothing
 * beside it. Smaller values go in one message: one round trip less. */
#define PARTS_FROM (4u << 20)
#define PART_BYTES (512u << 10)
#define WINDOW 32u
/* How long a value in parts may stand still before a call that waits for it gives up. */
#define STALL_MS 10000
/* Where the broker puts a value in its memory: PROTOCOL.md, 14. */
#define MEMORY_AT 4096u

/* ---- slots */

/* How a value is cut: SlotParts. put 0: it is not. */
struct parts {
    uint64_t put, bytes, bf16_bytes, part_bytes;
    uint32_t part;
    Replay__Arena memory; /* size 0: none */
};

/* Returns the number of parts of so many bytes. */
static uint64_t parts_of(uint64_t bytes, uint64_t part_bytes)
{
    return bytes ? (bytes - 1) / part_bytes + 1 : 0;
}

struct rp_params {
    struct conn_reply *reply;  /* holds the payload frame; or NULL: the value came in parts */
    struct conn_arena *memory; /* that holds it; or NULL */
    uint8_t *copy;             /* of its parts, a block of the subscriber's pool; or NULL */
    struct parts parts;
    rp_param slot;
    char name[RP_MAX_NAME + 1];
};

void rp_params_release(rp_params **params)
{
    if (!params || !*params)
        return;
    if ((*params)->reply)
        conn_reply_destroy(&(*params)->reply);
    conn_arena_unref(&(*params)->memory);
    if ((*params)->copy)
        pool_put((*params)->copy);
    free(*params);
    *params = NULL;
}

const rp_param *rp_params_slot(const rp_params *params)
{
    return &params->slot;
}

static bool read_parts(const struct pb_field *from, struct parts *out)
{
    uint64_t numbers[6], memory[5] = {0};
    struct pb_field field;
    bool ok = from->wire == PB_BYTES && read_numbers(from->data, from->size, numbers, 6);
    struct pb_reader reader = pb_reader(from->data, ok ? from->size : 0);
    while (ok && pb_next(&reader, &field) == 1)
        if (field.number == 6)
            ok = field.wire == PB_BYTES && read_numbers(field.data, field.size, memory, 5);
    if (!ok)
        return false;
    *out = (struct parts){numbers[1], numbers[2], numbers[3], numbers[4], (uint32_t)numbers[5], REPLAY__ARENA__INIT};
    out->memory.pid = (uint32_t)memory[1];
    out->memory.fd = (uint32_t)memory[2];
    out->memory.size = memory[3];
    out->memory.nonce = memory[4];
    uint64_t most = UINT64_C(1) << 48;
    return out->put && out->part_bytes && out->bytes <= most && out->bf16_bytes <= most &&
           parts_of(out->bytes, out->part_bytes) + parts_of(out->bf16_bytes, out->part_bytes) <= UINT32_MAX;
}

/* Reads the slot of a reply to ParamsGet or ParamsPut; its data is the first frame. Without memory: the broker may have carried the
 * request out. *found: the reply has a slot. */
static rp_status read_slot(struct conn_reply *reply, rp_param *out, struct parts *parts, bool *found, rp_error *err)
{
    *parts = (struct parts){0};
    struct pb_reader reader = pb_reader(reply->view.data, reply->view.size);
    struct pb_field slot, field;
    *found = reply->view.body == REPLAY__REPLY__BODY_PARAMS && pb_next(&reader, &slot) == 1;
    if (!*found)
        return reply->view.body == 0 || reply->view.body == REPLAY__REPLY__BODY_PARAMS ? RP_OK
                                                                                       : conn_reply_unexpected(err);
    uint64_t numbers[5];
    bool ok = slot.wire == PB_BYTES && read_numbers(slot.data, slot.size, numbers, 5);
    reader = pb_reader(slot.data, ok ? slot.size : 0);
    while (ok && pb_next(&reader, &field) == 1)
        if (field.number == 5)
            ok = read_parts(&field, parts);
    if (!ok)
        return conn_reply_unexpected(err);
    out->version = numbers[2];
    out->age_ns = numbers[4];
    if (reply->n_payload > 0) {
        out->data = zmq_msg_data(&reply->payload[0]);
        out->bytes = zmq_msg_size(&reply->payload[0]);
    }
    return RP_OK;
}

/* Makes a copy of a slot of a reply to ParamsGet; takes the reply. A value in parts has no data yet. RP_DEADLINE_EXCEEDED: it has no
 * other version than `have`. */
static rp_status params_new(const char *name, uint64_t have, struct conn_reply *reply, rp_params **out, rp_error *err)
{
    rp_params *self = calloc(1, sizeof *self);
    bool found;
    if (!self) {
        conn_reply_destroy(&reply);
        return err_set(err, RP_NO_MEMORY, "no memory for slot '%s'", name);
    }
    self->reply = reply;
    strcpy(self->name, name);
    self->slot.name = self->name;
    rp_status status = read_slot(reply, &self->slot, &self->parts, &found, err);
    if (status == RP_OK && found && !self->slot.data && !self->parts.put)
        status = conn_reply_unexpected(err);
    if (status == RP_OK && !found)
        status = err_set(err, RP_DEADLINE_EXCEEDED, "slot '%s' has no version newer than %llu", name,
                         (unsigned long long)have);
    if (status != RP_OK)
        rp_params_release(&self);
    *out = self;
    return status;
}

/* Asks one shard, which answers within timeout_ms; silence_ms later the call ends, or at once if the connection is lost. */
static rp_status get_from(struct conn *conn, const char *name, uint64_t have, int64_t timeout_ms, int64_t silence_ms,
                          rp_params **out, rp_error *err)
{
    Replay__ParamsGet body = REPLAY__PARAMS_GET__INIT;
    body.n_name = body.n_have = 1;
    body.name = (char **)(uintptr_t)&name;
    body.have = &have;
    body.parts = true;
    if (timeout_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = (uint64_t)timeout_ms;
    }
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_GET,
                                   .body = &body.base,
                                   .timeout_ms = timeout_ms,
                                   .grace_ms = silence_ms};
    struct conn_reply *reply = NULL;
    RP_TRY(conn_call(conn, &message, &reply, err));
    return params_new(name, have, reply, out, err);
}

/* Asks the nearest shard, again and again until the time is over, and another one if that is silent. A client that has nothing
 * asks all in turn, because a shard that was restarted may have nothing either. A shard that has an older version than the client
 * may be slow: then shard 0, which gives the versions, knows whether they count anew. */
static rp_status get_from_shards(rp_client *client, const char *name, uint64_t have, int64_t timeout_ms,
                                 rp_params **out, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    bool older = false;
    for (uint32_t tries = 1;; tries++) {
        uint32_t shard = older ? 0 : client_nearest(client);
        int64_t left = conn_left_ms(deadline);
        rp_status status = get_from(client_shard(client, shard), name, have,
                                    left < 0 || left > TURN_MS ? TURN_MS : left, SILENCE_MS, out, err);
        older = status == RP_OK && shard != 0 && (*out)->slot.version < have;
        if (older) {
            rp_params_release(out);
            continue;
        }
        if (status != RP_DEADLINE_EXCEEDED && status != RP_UNAVAILABLE)
            return status;
        if (conn_left_ms(deadline) == 0 && (have || tries >= client_shards(client)))
            return status;
        if (have == 0 || status == RP_UNAVAILABLE)
            client_move_nearest(client, shard);
    }
}

/* Fetches a value in parts: as a subscriber, for as long as parts arrive. */
static rp_status get_parts(rp_client *client, const char *name, uint64_t have, rp_params **out, rp_error *err)
{
    rp_subscriber *subscriber = rp_subscriber_new(client, name, have, err);
    if (!subscriber)
        return RP_NO_MEMORY;
    rp_subscriber_stats stats = {.struct_size = sizeof stats};
    uint64_t before;
    rp_status status;
    do {
        before = stats.parts;
        status = rp_subscriber_take(subscriber, STALL_MS, out, err);
        rp_subscriber_get_stats(subscriber, &stats);
    } while (status == RP_DEADLINE_EXCEEDED && stats.parts != before);
    rp_subscriber_destroy(&subscriber);
    return status;
}

rp_status rp_params_get(rp_client *client, const char *name, uint64_t have, int64_t timeout_ms, rp_params **out,
                        rp_error *err)
{
    *out = NULL;
    RP_TRY(client_check_name("name", name, err));
    if (client_shards(client) > 1)
        RP_TRY(get_from_shards(client, name, have, timeout_ms, out, err));
    else
        RP_TRY(get_from(client_conn(client), name, have, timeout_ms, GRACE_MS, out, err));
    if ((*out)->slot.data)
        return RP_OK;
    rp_params_release(out);
    return get_parts(client, name, have, out, err);
}

/* ---- what publishers and subscribers share */

struct link {
    rp_client *client;
    char name[RP_MAX_NAME + 1]; /* of the slot */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when a request has ended, or a connection was lost */
    rp_error error;         /* lock: of a refused request that the caller has not seen yet; status RP_OK: none */
};

/* The I/O thread of the connection owns it. */
struct shard {
    struct conn_part part; /* first: reply functions get it */
    struct link *link;
    struct conn *conn;
    bool up;            /* lock: the connection is up */
    uint32_t in_flight; /* requests */
    int64_t next_ns;    /* time before which no request is sent */
    uint64_t instance;  /* of the broker that answered last; 0: none */
};

/* Makes a publisher or a subscriber, which begins with its link. NULL with err set: the name is wrong, or no memory. */
static void *link_new(size_t bytes, rp_client *client, const char *name, rp_error *err)
{
    if (client_check_name("name", name, err) != RP_OK || conn_check_process(client_conn(client), err) != RP_OK)
        return NULL;
    struct link *self = calloc(1, bytes);
    if (!self)
        return err_null(err, RP_NO_MEMORY, "no memory for the slot '%s'", name);
    self->client = client;
    strcpy(self->name, name);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    return self;
}

static void link_free(struct link *self)
{
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->changed);
    free(self);
}

static rp_status link_copy_stats(struct link *self, const void *stats, size_t size, void *out)
{
    RP_TRY(conn_check_process(client_conn(self->client), NULL));
    pthread_mutex_lock(&self->lock);
    rp_status status = client_copy_out(out, stats, size, NULL);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* Returns the error of a refused request, once: "WHAT 'NAME': error". Lock held. */
static rp_status link_take_error(struct link *self, const char *what, rp_error *err)
{
    rp_status status = (rp_status)self->error.status;
    if (status != RP_OK)
        err_set(err, status, "%s '%s': %s", what, self->name, self->error.text);
    self->error.status = RP_OK;
    return status;
}

/* Keeps the error of a refused request for the caller, unless it has not seen an earlier one. Lock held. */
static void shard_keep_error(const struct shard *shard, const rp_error *error)
{
    struct link *self = shard->link;
    if (self->error.status != RP_OK)
        return;
    self->error = *error;
    if (client_shards(self->client) > 1)
        err_prefix(&self->error, "%s", conn_title(shard->conn));
}

/* Attaches to the connection of a shard. */
static void shard_open(struct shard *self, struct link *link, uint32_t shard, const struct conn_part_ops *ops)
{
    *self = (struct shard){.part.ops = ops, .link = link, .conn = client_shard(link->client, shard)};
    conn_attach(self->conn, &self->part);
}

static void shard_set_up(struct shard *self, bool up)
{
    pthread_mutex_lock(&self->link->lock);
    self->up = up;
    pthread_cond_broadcast(&self->link->changed);
    pthread_mutex_unlock(&self->link->lock);
}

/* Returns true if another broker answers than before; false at the first time. */
static bool shard_up(struct shard *self, const struct conn_hello *hello)
{
    bool other = self->instance != 0 && self->instance != hello->says->instance;
    self->instance = hello->says->instance;
    self->next_ns = 0;
    shard_set_up(self, true);
    return other;
}

static void shard_down(struct conn_part *part)
{
    shard_set_up((struct shard *)part, false);
}

/* True if a request may be sent now, where so many may be in flight; otherwise *wake_ns is the time to look again. */
static bool shard_is_free(const struct shard *self, uint32_t most, int64_t now_ns, int64_t *wake_ns)
{
    *wake_ns = !self->up || self->in_flight >= most ? INT64_MAX : self->next_ns;
    return now_ns >= *wake_ns;
}

/* ---- publishers
 *
 * A publisher: the newest block of one slot, handed to the client's I/O threads.
 *
 * A block goes through these places: `newest` (given, not sent; a newer block replaces it), that of shard 0 (its put is in flight),
 * and then it is settled: refused, or stored and `current`. A put that the connection or the broker has broken off goes back to
 * `newest`, unless a newer block is there. The caller's thread fills `newest`; all other moves are the I/O thread's. A put in parts is
 * not taken back: it goes on, and the newer block follows.
 *
 * With shards, that is the way to shard 0, which gives the block its version. Then the other shards are sent `current` with that
 * version. A shard that is away, or comes back as another broker, gets `current` when it is back. If another shard names a newer
 * version than that of `current`, a later put of somebody else was faster there, or shard 0 has lost its count in a restart. Shard 0
 * knows: it gives `current` a version above the newer one if `current` is still what it has, and refuses it otherwise. */
/* Least time between the starts of two puts. Parameters that are two milliseconds younger make no actor better, but each
 * put wakes a dozen threads between the learner and the actors. */
#define GAP_NS (2 * NS_PER_MS)

/* What a shard puts. */
enum put_kind {
    PUT_NOTHING,
    PUT_NEWEST,  /* shard 0: a new block */
    PUT_AGAIN,   /* shard 0: `current`, if it is still there, with a version above that of another shard */
    PUT_CURRENT, /* `current` with its version */
};

/* What is put: a value, and its second form. */
struct block {
    zmq_msg_t data, bf16;
    uint64_t put; /* number that names it; 0: it goes in one message */
};

static void block_init(struct block *self)
{
    zmq_msg_init(&self->data);
    zmq_msg_init(&self->bf16);
    self->put = 0;
}

static void block_close(struct block *self)
{
    zmq_msg_close(&self->data);
    zmq_msg_close(&self->bf16);
}

static void block_move(struct block *to, struct block *from)
{
    zmq_msg_move(&to->data, &from->data);
    zmq_msg_move(&to->bf16, &from->bf16);
    to->put = from->put;
}

static void block_copy(struct block *to, struct block *from)
{
    zmq_msg_copy(&to->data, &from->data);
    zmq_msg_copy(&to->bf16, &from->bf16);
    to->put = from->put;
}

static uint32_t block_parts(struct block *self)
{
    return self->put ? (uint32_t)(parts_of(zmq_msg_size(&self->data), PART_BYTES) +
                                  parts_of(zmq_msg_size(&self->bf16), PART_BYTES))
                     : 1;
}

static void view_free(void *data, void *hint)
{
    (void)data;
    zmq_msg_close(hint);
    free(hint);
}

/* Makes a message of a part: a view of the block, which stays as long as the view. False: no memory. */
static bool block_part(struct block *self, uint32_t part, zmq_msg_t *out)
{
    uint32_t first = (uint32_t)parts_of(zmq_msg_size(&self->data), PART_BYTES);
    zmq_msg_t *of = self->put && part >= first ? &self->bf16 : &self->data;
    size_t at = (size_t)(of == &self->bf16 ? part - first : part) * PART_BYTES, left = zmq_msg_size(of) - at;
    if (!self->put) {
        zmq_msg_init(out);
        return zmq_msg_copy(out, of) == 0;
    }
    zmq_msg_t *hold = malloc(sizeof *hold);
    if (!hold)
        return false;
    zmq_msg_init(hold);
    zmq_msg_copy(hold, of);
    if (zmq_msg_init_data(out, (uint8_t *)zmq_msg_data(hold) + at, left < PART_BYTES ? left : PART_BYTES, view_free,
                          hold) == 0)
        return true;
    view_free(NULL, hold);
    return false;
}

struct publish_shard {
    struct shard shard; /* first */
    bool asleep;        /* lock: the I/O thread has nothing to do here until it is woken */
    uint64_t done;      /* lock: version of `current` that this shard has stored or refused */
    /* I/O thread: of the put in flight */
    enum put_kind kind;
    uint64_t version, above, id;
    struct block block;
    uint32_t n;                       /* its parts; 0: no put is in flight */
    uint32_t next, answered, missing; /* part to send; part of the next reply; first part that the broker lacks */
    bool rewind; /* a part was lost: wait for the replies that are on their way, and go on with `missing` */
};

struct rp_publisher {
    struct link link; /* first; its lock guards what follows, up to the I/O thread's part */
    struct block newest;
    bool waiting;         /* newest holds a block */
    uint64_t settled;     /* number of the newest block that shard 0 has stored or refused; blocks count from 1 */
    struct block current; /* with shards */
    uint64_t above;       /* version that another shard has, where that of `current` should be newer */
    bool unsure;          /* shard 0 may have lost its count, and no put has shown that it has not */
    uint64_t retry;       /* id of a put at shard 0 that was broken off, and may have been done; 0: none */
    char waits[300];      /* why the broker does not take the put yet; empty: no reason is known */
    rp_publisher_stats stats;
    uint64_t sent_number; /* of the block that shard 0 puts: its I/O thread alone uses it */

    uint32_t n_shards;
    struct publish_shard shards[];
};

static struct rp_publisher *publisher_of(const struct publish_shard *shard)
{
    return (struct rp_publisher *)shard->shard.link;
}

static bool is_first(const struct publish_shard *shard)
{
    return shard == &publisher_of(shard)->shards[0];
}

/* Wakes shards that sleep. Lock held. */
static void wake_shards(struct rp_publisher *self, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        if (self->shards[i].asleep)
            conn_wake(self->shards[i].shard.conn);
        self->shards[i].asleep = false;
    }
}

/* The connection is lost, or the broker shuts down: repeats the put, unless there is a newer block. Lock held. */
static void put_broken_off(struct rp_publisher *self, struct publish_shard *shard)
{
    if (self->waiting || shard->kind == PUT_CURRENT)
        return;
    if (shard->kind == PUT_NEWEST) {
        block_move(&self->newest, &shard->block);
        self->waiting = true;
    }
    self->retry = shard->id;
}

/* A put has ended; version 0: it was refused. Lock held. */
static void put_ended(struct rp_publisher *self, struct publish_shard *shard, uint64_t version)
{
    if (shard->kind == PUT_NEWEST) {
        self->settled = self->sent_number;
        if (version && self->n_shards > 1)
            block_move(&self->current, &shard->block);
    }
    if (shard->kind == PUT_CURRENT) {
        bool behind =
            version > shard->version && !is_first(shard) && self->unsure && shard->version == self->stats.version;
        shard->done = shard->version;
        self->above = behind && version > self->above ? version : self->above;
        if (behind)
            wake_shards(self, 0, 1);
        return;
    }
    self->unsure = self->unsure && shard->kind != PUT_AGAIN;
    self->above = shard->kind == PUT_AGAIN || version > self->above ? 0 : self->above;
    if (version) {
        self->stats.version = shard->done = version;
        wake_shards(self, 1, self->n_shards - 1);
    }
}

/* Reads the version in a reply to ParamsPut; or 0, and the first part that is missing. */
static rp_status read_version(struct conn_reply *reply, uint64_t *version, uint32_t *missing, rp_error *err)
{
    rp_param slot = {0};
    struct parts parts;
    bool found;
    RP_TRY(read_slot(reply, &slot, &parts, &found, err));
    *version = slot.version;
    *missing = parts.part;
    return found && (slot.version || parts.put) ? RP_OK : conn_reply_unexpected(err);
}

/* The put in flight was answered for good, or is taken back. */
static void shard_put_over(struct publish_shard *shard)
{
    shard->n = 0;
    block_close(&shard->block);
    block_init(&shard->block);
}

/* A part was answered; status RP_OK with version 0: others are missing. Lock held. */
static void part_answered(struct rp_publisher *self, struct publish_shard *shard, rp_status status, uint64_t version,
                          const rp_error *error)
{
    uint32_t part = shard->answered++;
    bool broken_off = status == RP_UNAVAILABLE || status == RP_CANCELLED;
    snprintf(self->waits, sizeof self->waits, "%s", broken_off ? error->text : "");
    if (broken_off && shard->n == 1) {
        put_broken_off(self, shard);
        shard_put_over(shard);
    } else if (!broken_off && (status != RP_OK || version)) {
        put_ended(self, shard, version);
        shard_put_over(shard);
        bool replaced = shard->kind == PUT_AGAIN && status == RP_FAILED_PRECONDITION;
        if (status != RP_OK && !replaced)
            shard_keep_error(&shard->shard, error);
    } else {
        shard->rewind = shard->rewind || broken_off || shard->missing <= part;
        if (shard->shard.in_flight == 0) {
            shard->next = shard->answered = shard->missing;
            shard->rewind = false;
        }
    }
}

static void on_put(void *ctx, struct conn_reply *reply)
{
    struct publish_shard *shard = ctx;
    struct rp_publisher *self = publisher_of(shard);
    rp_error error = {0};
    uint64_t version = 0;
    uint32_t missing = 0;
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = read_version(reply, &version, &missing, &error);
    conn_reply_destroy(&reply);
    shard->shard.in_flight--;
    if (status == RP_OK && !version && shard->n && missing >= shard->n)
        status = conn_reply_unexpected(&error);
    if (status == RP_OK)
        shard->missing = missing;
    if (status == RP_UNAVAILABLE || status == RP_CANCELLED)
        shard->shard.next_ns = clock_ns() + RETRY_NS;
    pthread_mutex_lock(&self->link.lock);
    if (shard->n) /* otherwise an earlier reply has ended the put */
        part_answered(self, shard, status, version, &error);
    pthread_cond_broadcast(&self->link.changed);
    pthread_mutex_unlock(&self->link.lock);
}

/* Decides what to put next, and copies the block. PUT_NOTHING: whoever has something wakes this thread. */
static enum put_kind take_block(struct rp_publisher *self, struct publish_shard *shard)
{
    pthread_mutex_lock(&self->link.lock);
    uint64_t version = self->stats.version;
    if (is_first(shard) && self->waiting)
        shard->kind = PUT_NEWEST;
    else if (self->n_shards > 1 && version && shard->done != version)
        shard->kind = PUT_CURRENT;
    else
        shard->kind = is_first(shard) && self->above ? PUT_AGAIN : PUT_NOTHING;
    shard->asleep = shard->kind == PUT_NOTHING;
    if (shard->kind == PUT_NEWEST) {
        block_move(&shard->block, &self->newest);
        self->waiting = false;
        self->sent_number = self->stats.given;
    } else if (shard->kind != PUT_NOTHING) {
        block_copy(&shard->block, &self->current);
    }
    if (shard->kind != PUT_NOTHING) {
        shard->n = block_parts(&shard->block);
        self->stats.puts++;
    }
    shard->next = shard->answered = shard->missing = 0;
    shard->rewind = false;
    shard->version = version;
    shard->above = 0;
    if (shard->kind != PUT_CURRENT && self->n_shards > 1)
        shard->above = self->above > version ? self->above : version;
    shard->id = shard->kind == PUT_NEWEST || shard->kind == PUT_AGAIN ? self->retry : 0;
    self->retry = shard->id ? 0 : self->retry;
    pthread_mutex_unlock(&self->link.lock);
    return shard->kind;
}

/* Sends a part of the put. False: it was not sent. */
static bool send_part(struct rp_publisher *self, struct publish_shard *shard)
{
    Replay__ParamsPut body = REPLAY__PARAMS_PUT__INIT;
    zmq_msg_t part;
    body.name = self->link.name;
    body.version = shard->kind == PUT_NEWEST ? 0 : shard->version;
    body.above = shard->above;
    if (shard->block.put) {
        body.put = shard->block.put;
        body.bytes = zmq_msg_size(&shard->block.data);
        body.bf16_bytes = zmq_msg_size(&shard->block.bf16);
        body.part_bytes = PART_BYTES;
        body.part = shard->next;
    }
    if (!block_part(&shard->block, shard->next, &part))
        return false;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_PUT,
                                   .body = &body.base,
                                   .payload = &part,
                                   .n_payload = 1,
                                   .timeout_ms = -1,
                                   .again = shard->n == 1 ? shard->id : 0};
    uint64_t id = conn_send_once(shard->shard.conn, &shard->shard.part, &message, on_put);
    zmq_msg_close(&part);
    shard->id = id ? id : shard->id;
    shard->shard.in_flight += id != 0;
    shard->next += id != 0;
    pthread_mutex_lock(&self->link.lock);
    self->stats.parts += id && shard->block.put;
    pthread_mutex_unlock(&self->link.lock);
    return id != 0;
}

static int64_t publisher_tick(struct conn_part *part, int64_t now_ns)
{
    struct publish_shard *shard = (struct publish_shard *)part;
    struct rp_publisher *self = publisher_of(shard);
    int64_t wake_ns;
    if (!shard_is_free(&shard->shard, shard->n > 1 ? WINDOW : 1, now_ns, &wake_ns))
        return wake_ns;
    if (!shard->n && take_block(self, shard) == PUT_NOTHING)
        return INT64_MAX;
    if (shard->n == 1)
        shard->shard.next_ns = now_ns + GAP_NS;
    while (shard->next < shard->n && !shard->rewind && shard->shard.in_flight < WINDOW)
        if (!send_part(self, shard)) {
            pthread_mutex_lock(&self->link.lock);
            if (shard->n == 1) {
                put_broken_off(self, shard);
                shard_put_over(shard);
            }
            pthread_mutex_unlock(&self->link.lock);
            shard->shard.next_ns = now_ns + RETRY_NS;
            return shard->shard.next_ns;
        }
    return INT64_MAX;
}

static void publisher_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct publish_shard *shard = (struct publish_shard *)part;
    struct rp_publisher *self = publisher_of(shard);
    bool first_time = shard->shard.instance == 0, other = shard_up(&shard->shard, hello);
    pthread_mutex_lock(&self->link.lock);
    if (other)
        shard->done = 0; /* it may have lost the block */
    self->unsure = self->unsure || (is_first(shard) && (other || first_time));
    pthread_mutex_unlock(&self->link.lock);
}

static const struct conn_part_ops publisher_ops = {.up = publisher_up, .down = shard_down, .tick = publisher_tick};

/* Copies bytes into a message. */
static rp_status copy_bytes(zmq_msg_t *out, const void *data, uint64_t bytes, rp_error *err)
{
    if (bytes && !data)
        return err_set(err, RP_INVALID_ARGUMENT, "the data is missing");
    return bytes <= SIZE_MAX && message_copy(out, data, (size_t)bytes)
               ? RP_OK
               : err_set(err, RP_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
}

rp_status rp_publisher_put_bf16(rp_publisher *publisher, const void *data, uint64_t bytes, const void *bf16,
                                uint64_t bf16_bytes, rp_error *err)
{
    struct block block;
    RP_TRY(conn_check_process(client_conn(publisher->link.client), err));
    if (bf16_bytes && !bytes)
        return err_set(err, RP_INVALID_ARGUMENT, "a second form of an empty value");
    block_init(&block);
    rp_status status = copy_bytes(&block.data, data, bytes, err);
    if (status == RP_OK)
        status = copy_bytes(&block.bf16, bf16, bf16_bytes, err);
    if (status != RP_OK) {
        block_close(&block);
        return status;
    }
    while (!block.put && (bytes > PARTS_FROM || bf16_bytes))
        rng_system(&block.put, sizeof block.put);
    pthread_mutex_lock(&publisher->link.lock);
    status = link_take_error(&publisher->link, "an earlier put of", err);
    publisher->stats.replaced += publisher->waiting;
    block_move(&publisher->newest, &block);
    publisher->waiting = true;
    publisher->retry = 0;
    publisher->stats.given++;
    wake_shards(publisher, 0, 1);
    pthread_mutex_unlock(&publisher->link.lock);
    block_close(&block);
    return status;
}

rp_status rp_publisher_put(rp_publisher *publisher, const void *data, uint64_t bytes, rp_error *err)
{
    return rp_publisher_put_bf16(publisher, data, bytes, NULL, 0, err);
}

/* Returns a shard that has yet to get the newest block; shards that are away need not, but for shard 0. NULL: all have it. Lock held. */
static const struct publish_shard *open_shard(const struct rp_publisher *self)
{
    if (self->settled < self->stats.given || self->above)
        return &self->shards[0];
    for (uint32_t i = 1; i < self->n_shards; i++)
        if (self->shards[i].shard.up && self->shards[i].done != self->stats.version)
            return &self->shards[i];
    return NULL;
}

rp_status rp_publisher_flush(rp_publisher *publisher, int64_t timeout_ms, uint64_t *version, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    struct conn *conn = client_conn(publisher->link.client);
    RP_TRY(conn_check_process(conn, err));
    pthread_mutex_lock(&publisher->link.lock);
    while (open_shard(publisher) && conn_wait(conn, &publisher->link.changed, &publisher->link.lock, deadline))
        ;
    const struct publish_shard *open = open_shard(publisher);
    if (open && conn_is_stopped()) {
        pthread_mutex_unlock(&publisher->link.lock);
        return conn_stopped(err);
    }
    rp_status status = link_take_error(&publisher->link, "a put of", err);
    char why[300], waits[sizeof publisher->waits];
    memcpy(waits, publisher->waits, sizeof waits);
    if (version)
        *version = publisher->stats.version;
    pthread_mutex_unlock(&publisher->link.lock);
    if (!open || status != RP_OK)
        return status;
    conn_describe(open->shard.conn, why, sizeof why);
    bool silent = why[0] == '\0' && waits[0] == '\0';
    if (!why[0])
        memcpy(why, waits, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED, "slot '%s' was not stored within %lld ms: %s%s", publisher->link.name,
                   (long long)timeout_ms, silent ? conn_title(open->shard.conn) : why,
                   silent ? " has not answered" : "");
}

rp_status rp_publisher_get_stats(rp_publisher *publisher, rp_publisher_stats *out)
{
    return link_copy_stats(&publisher->link, &publisher->stats, sizeof *out, out);
}

rp_publisher *rp_publisher_new(rp_client *client, const char *name, rp_error *err)
{
    uint32_t n = client_shards(client);
    rp_publisher *self = link_new(sizeof *self + n * sizeof self->shards[0], client, name, err);
    if (!self)
        return NULL;
    block_init(&self->newest);
    block_init(&self->current);
    self->n_shards = n;
    for (uint32_t i = 0; i < n; i++)
        block_init(&self->shards[i].block);
    for (uint32_t i = 0; i < n; i++)
        shard_open(&self->shards[i].shard, &self->link, i, &publisher_ops);
    return self;
}

rp_status rp_publisher_destroy(rp_publisher **publisher, int64_t timeout_ms, rp_error *err)
{
    if (!publisher || !*publisher)
        return RP_OK;
    rp_publisher *self = *publisher;
    *publisher = NULL;
    if (conn_is_foreign(client_conn(self->link.client))) {
        free(self);
        return RP_OK;
    }
    rp_status status = rp_publisher_flush(self, timeout_ms, NULL, err);
    for (uint32_t i = 0; i < self->n_shards; i++)
        conn_detach(self->shards[i].shard.conn, &self->shards[i].shard.part);
    for (uint32_t i = 0; i < self->n_shards; i++)
        block_close(&self->shards[i].block);
    block_close(&self->newest);
    block_close(&self->current);
    link_free(&self->link);
    return status;
}

rp_status rp_params_put(rp_client *client, const char *name, const void *data, uint64_t bytes, int64_t timeout_ms,
                        uint64_t *version, rp_error *err)
{
    RP_TRY(client_check_name("name", name, err));
    RP_TRY(conn_check_process(client_conn(client), err));
    if (client_shards(client) > 1 || bytes > PARTS_FROM) { /* as a publisher that has one block */
        rp_publisher *publisher = rp_publisher_new(client, name, err);
        if (!publisher)
            return RP_NO_MEMORY;
        rp_status status = rp_publisher_put(publisher, data, bytes, err);
        status = status == RP_OK ? rp_publisher_flush(publisher, timeout_ms, version, err) : status;
        rp_publisher_destroy(&publisher, 0, NULL);
        return status;
    }
    zmq_msg_t payload;
    RP_TRY(copy_bytes(&payload, data, bytes, err));
    Replay__ParamsPut body = REPLAY__PARAMS_PUT__INIT;
    body.name = (char *)(uintptr_t)name;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_PUT,
                                   .body = &body.base,
                                   .payload = &payload,
                                   .n_payload = 1,
                                   .timeout_ms = timeout_ms};
    struct conn_reply *reply = NULL;
    rp_status status = conn_call(client_conn(client), &message, &reply, err);
    zmq_msg_close(&payload);
    if (status != RP_OK)
        return status;
    uint64_t stored;
    uint32_t missing;
    status = read_version(reply, version ? version : &stored, &missing, err);
    conn_reply_destroy(&reply);
    return status;
}

/* ---- subscribers
 *
 * A subscriber: a ParamsGet that waits at the broker, and the newest copy that it has brought.
 *
 * There is at most one request, unless a value comes in parts. It is sent when the caller has taken the last copy; the next copy lies
 * ready until the caller takes it, which makes the I/O thread ask again. A copy that lies ready for REFRESH_NS is replaced by a newer one, so that slow
 * callers get fresh parameters and fast callers do not pay for copies they skip.
 *
 * With shards, the nearest one is asked. Another takes over when that shard is lost, or has
 * nothing while this client has nothing either. A shard may be slower than others to get a version: one that is older than what
 * the caller has got is dropped, and that shard is asked for another than it. Only when all shards that are there have become
 * other brokers may versions count from 1 again. */
/* Age at which a copy that was not taken is replaced. */
#define REFRESH_NS (20 * NS_PER_MS)
/* Wait for the first version at one of several shards. */
#define FIRST_MS 500
/* How often another shard is looked for while the nearest is lost. */
#define LOOK_NS (100 * NS_PER_MS)

struct subscribe_shard {
    struct shard shard; /* first */
    bool other;         /* lock: another broker than before, and versions have not begun anew */
    uint64_t behind;    /* lock: version that the shard had when others had a newer one; 0: none */
    uint32_t next;      /* lock: part of `fetch` that this shard is asked for next */
};

struct rp_subscriber {
    struct link link;   /* first; its lock guards what follows */
    rp_params *ready;   /* NULL: nothing new */
    int64_t arrived_ns; /* time at which it arrived */
    uint64_t have;      /* version of the newest copy; 0: none from this broker */
    uint64_t newest;    /* version that has arrived; 0: none since versions began */
    bool bf16;          /* take the second form, where there is one */
    rp_params *fetch;   /* value whose parts are on their way; NULL: none */
    uint32_t first, n;  /* of its parts: the first one of its form, and their number */
    uint32_t got;       /* of them: in its memory */
    /* Memory of values of `bytes` bytes: what the caller has released is used for the next value, because fresh pages would cost more
     * than the way of the bytes. NULL: no value came in parts. */
    struct pool *values;
    uint64_t bytes;
    rp_subscriber_stats stats;
    uint32_t active; /* number of the shard that asks */
    uint32_t n_shards;
    struct subscribe_shard shards[];
};

static struct rp_subscriber *subscriber_of(const struct subscribe_shard *shard)
{
    return (struct rp_subscriber *)shard->shard.link;
}

/* Makes the nearest shard the one that is asked, if this one was. True: another one is asked now. */
static bool pass_on(struct rp_subscriber *self, const struct subscribe_shard *shard, uint32_t nearest)
{
    pthread_mutex_lock(&self->link.lock);
    bool passed = shard == &self->shards[self->active] && nearest != self->active;
    if (passed)
        self->active = nearest;
    pthread_mutex_unlock(&self->link.lock);
    if (passed)
        conn_wake(self->shards[nearest].shard.conn);
    return passed;
}

/* True if a shard's version is news. Otherwise two shards were asked, and this is the same version, or an older one. Lock held. */
static bool is_new(struct rp_subscriber *self, struct subscribe_shard *shard, uint64_t version)
{
    bool older = self->n_shards > 1 && version < self->newest;
    shard->behind = older ? version : 0;
    shard->other = shard->other && older;
    if (self->n_shards > 1 && version == self->newest)
        self->have = version;
    return !older && version != self->have;
}

/* The copy is there. Lock held. */
static void keep(struct rp_subscriber *self, rp_params *params)
{
    self->stats.replaced += self->ready != NULL;
    rp_params_release(&self->ready);
    self->ready = params;
    self->arrived_ns = clock_ns();
    self->have = self->newest = params->slot.version;
    self->stats.arrived++;
}

/* Maps the value, if the broker on this host offers its memory. */
static bool map_value(const struct conn *conn, rp_params *params, uint64_t at)
{
    bool inside = conn_is_inside(conn);
    if (params->parts.memory.size)
        params->memory = conn_arena_map(NULL, &params->parts.memory, inside);
    if (params->memory && (at > params->memory->size || params->slot.bytes > params->memory->size - at))
        conn_arena_unref(&params->memory);
    if (params->memory)
        params->slot.data = params->memory->data + at;
    return params->memory != NULL;
}

/* A version has come: keeps it, or begins to fetch its parts; takes params. Lock held. */
static rp_status take_version(struct rp_subscriber *self, struct subscribe_shard *shard, rp_params *params,
                              rp_error *err)
{
    const struct parts *parts = &params->parts;
    if (!is_new(self, shard, params->slot.version) || (parts->put && self->fetch)) {
        rp_params_release(&params);
        return RP_OK;
    }
    if (!parts->put) {
        keep(self, params);
        return RP_OK;
    }
    bool second = self->bf16 && parts->bf16_bytes;
    uint64_t pages = (parts->bytes + MEMORY_AT - 1) / MEMORY_AT * MEMORY_AT;
    params->slot.bytes = second ? parts->bf16_bytes : parts->bytes;
    params->slot.bf16 = second;
    if (map_value(shard->shard.conn, params, MEMORY_AT + (second ? pages : 0))) {
        keep(self, params);
        return RP_OK;
    }
    if (!self->values || self->bytes != params->slot.bytes) {
        pool_destroy(&self->values);
        self->bytes = params->slot.bytes;
        self->values = pool_new((size_t)self->bytes, 0);
    }
    params->copy = self->values ? pool_get(self->values) : NULL;
    if (!params->copy) {
        rp_status status =
            err_set(err, RP_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)params->slot.bytes);
        rp_params_release(&params);
        return status;
    }
    params->slot.data = params->copy;
    self->fetch = params;
    self->first = second ? (uint32_t)parts_of(parts->bytes, parts->part_bytes) : 0;
    self->n = (uint32_t)parts_of(params->slot.bytes, parts->part_bytes);
    self->got = 0;
    return RP_OK;
}

static void on_params(void *ctx, struct conn_reply *reply)
{
    struct subscribe_shard *shard = ctx;
    struct rp_subscriber *self = subscriber_of(shard);
    rp_params *params = NULL;
    rp_error error = {0};
    pthread_mutex_lock(&self->link.lock);
    uint64_t have = self->have;
    pthread_mutex_unlock(&self->link.lock);
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = params_new(self->link.name, have, reply, &params, &error);
    else
        conn_reply_destroy(&reply);
    shard->shard.in_flight--;
    pthread_mutex_lock(&self->link.lock);
    if (status == RP_OK)
        status = take_version(self, shard, params, &error);
    if (status != RP_OK)
        shard->shard.next_ns = clock_ns() + RETRY_NS;
    if (status != RP_OK && status != RP_UNAVAILABLE && status != RP_CANCELLED && status != RP_DEADLINE_EXCEEDED &&
        status != RP_RESOURCE_EXHAUSTED) /* what others have left unread goes away: asks again */
        shard_keep_error(&shard->shard, &error);
    pthread_cond_broadcast(&self->link.changed);
    pthread_mutex_unlock(&self->link.lock);
    if (status == RP_DEADLINE_EXCEEDED && have == 0)
        pass_on(self, shard, client_move_nearest(self->link.client, conn_shard(shard->shard.conn)));
}

/* Puts a part in its place. Parts that come again, or of another value, are dropped. Lock held. */
static rp_status take_part(struct rp_subscriber *self, const rp_param *part, const struct parts *parts, rp_error *err)
{
    rp_params *fetch = self->fetch;
    if (!fetch || parts->put != fetch->parts.put || parts->part != self->first + self->got)
        return RP_OK;
    uint64_t at = (uint64_t)self->got * fetch->parts.part_bytes, left = fetch->slot.bytes - at;
    if (!part->data || part->bytes != (left < fetch->parts.part_bytes ? left : fetch->parts.part_bytes))
        return conn_reply_unexpected(err);
    copy_past(fetch->copy + at, part->data, part->bytes);
    self->stats.parts++;
    if (++self->got == self->n) {
        self->fetch = NULL;
        if (self->n_shards > 1 && fetch->slot.version < self->newest) /* another shard was faster */
            rp_params_release(&fetch);
        else
            keep(self, fetch);
    }
    return RP_OK;
}

static void on_part(void *ctx, struct conn_reply *reply)
{
    struct subscribe_shard *shard = ctx;
    struct rp_subscriber *self = subscriber_of(shard);
    rp_error error = {0};
    rp_param part = {0};
    struct parts parts;
    bool found;
    rp_status status = conn_reply_status(reply, &error);
    if (status == RP_OK)
        status = read_slot(reply, &part, &parts, &found, &error);
    shard->shard.in_flight--;
    pthread_mutex_lock(&self->link.lock);
    if (status == RP_OK)
        status = take_part(self, &part, &parts, &error);
    bool again = status == RP_UNAVAILABLE || status == RP_CANCELLED || status == RP_RESOURCE_EXHAUSTED;
    if (again)
        shard->shard.next_ns = clock_ns() + RETRY_NS;
    else if (status != RP_OK)
        rp_params_release(&self->fetch); /* RP_NOT_FOUND: too late, begins with the newest version */
    if (status != RP_OK && !again && status != RP_NOT_FOUND)
        shard_keep_error(&shard->shard, &error);
    if (self->ready || self->link.error.status != RP_OK) /* not with every part */
        pthread_cond_broadcast(&self->link.changed);
    pthread_mutex_unlock(&self->link.lock);
    conn_reply_destroy(&reply);
}

/* Asks for the next parts. True: the value has parts that are on their way, and *wake_ns is the time to look again. */
static bool ask_for_parts(struct rp_subscriber *self, struct subscribe_shard *shard, int64_t now_ns, int64_t *wake_ns)
{
    char *name = self->link.name;
    Replay__ParamsGet body = REPLAY__PARAMS_GET__INIT;
    body.n_name = 1;
    body.name = &name;
    pthread_mutex_lock(&self->link.lock);
    body.put = self->fetch ? self->fetch->parts.put : 0;
    uint32_t first = self->first, n = self->n;
    if (!shard->shard.in_flight)
        shard->next = self->got;
    pthread_mutex_unlock(&self->link.lock);
    *wake_ns = INT64_MAX;
    if (!body.put || !shard_is_free(&shard->shard, WINDOW, now_ns, wake_ns))
        return body.put;
    while (shard->next < n && shard->shard.in_flight < WINDOW) {
        body.part = first + shard->next;
        struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_GET, .body = &body.base, .timeout_ms = -1};
        if (!conn_send_once(shard->shard.conn, &shard->shard.part, &message, on_part)) {
            *wake_ns = shard->shard.next_ns = now_ns + RETRY_NS;
            return true;
        }
        shard->shard.in_flight++;
        shard->next++;
    }
    return true;
}

/* True if this shard is to ask; otherwise *wake_ns is the time to look again. */
static bool is_its_turn(struct rp_subscriber *self, const struct subscribe_shard *shard, int64_t now_ns,
                        int64_t *wake_ns)
{
    if (self->n_shards == 1)
        return true;
    pthread_mutex_lock(&self->link.lock);
    bool active = shard == &self->shards[self->active];
    pthread_mutex_unlock(&self->link.lock);
    *wake_ns = INT64_MAX;
    if (!active || pass_on(self, shard, client_nearest(self->link.client)))
        return false;
    *wake_ns = shard->shard.up ? INT64_MAX : now_ns + LOOK_NS;
    return shard->shard.up;
}

static int64_t subscriber_tick(struct conn_part *part, int64_t now_ns)
{
    struct subscribe_shard *shard = (struct subscribe_shard *)part;
    struct rp_subscriber *self = subscriber_of(shard);
    uint64_t have;
    int64_t wake_ns;
    if (!is_its_turn(self, shard, now_ns, &wake_ns) || ask_for_parts(self, shard, now_ns, &wake_ns) ||
        !shard_is_free(&shard->shard, 1, now_ns, &wake_ns))
        return wake_ns;
    pthread_mutex_lock(&self->link.lock);
    wake_ns = self->ready ? self->arrived_ns + REFRESH_NS : 0;
    have = shard->behind ? shard->behind : self->have;
    pthread_mutex_unlock(&self->link.lock);
    if (now_ns < wake_ns)
        return wake_ns;
    Replay__ParamsGet body = REPLAY__PARAMS_GET__INIT;
    if (self->n_shards > 1 && have == 0) {
        body.has_timeout_ms_case = REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = FIRST_MS;
    }
    char *name = self->link.name;
    body.n_name = body.n_have = 1;
    body.name = &name;
    body.have = &have;
    body.parts = true;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_GET, .body = &body.base, .timeout_ms = -1};
    if (!conn_send_once(shard->shard.conn, part, &message, on_params)) {
        shard->shard.next_ns = now_ns + RETRY_NS;
        return shard->shard.next_ns;
    }
    shard->shard.in_flight++;
    pthread_mutex_lock(&self->link.lock);
    self->stats.polls++;
    pthread_mutex_unlock(&self->link.lock);
    return INT64_MAX;
}

/* Other brokers may count from 1 again; if a shard that is there knows the old versions, they go on. Lock held. */
static void look_for_restart(struct rp_subscriber *self)
{
    uint32_t others = 0;
    for (uint32_t i = 0; i < self->n_shards; i++) {
        if (self->shards[i].shard.up && !self->shards[i].other)
            return;
        others += self->shards[i].shard.up;
    }
    if (others == 0)
        return; /* those that come back tell */
    for (uint32_t i = 0; i < self->n_shards; i++) {
        self->shards[i].other = false;
        self->shards[i].behind = 0;
    }
    self->newest = self->have = 0;
}

static void subscriber_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct subscribe_shard *shard = (struct subscribe_shard *)part;
    struct rp_subscriber *self = subscriber_of(shard);
    if (!shard_up(&shard->shard, hello))
        return;
    pthread_mutex_lock(&self->link.lock);
    shard->behind = 0;
    shard->other = true;
    look_for_restart(self);
    if (shard == &self->shards[self->active])
        self->have = 0; /* any version it has may be new */
    pthread_mutex_unlock(&self->link.lock);
}

/* The shard that is lost may have been the last that knew the old versions. */
static void subscriber_down(struct conn_part *part)
{
    struct rp_subscriber *self = subscriber_of((const struct subscribe_shard *)part);
    shard_down(part);
    pthread_mutex_lock(&self->link.lock);
    look_for_restart(self);
    pthread_mutex_unlock(&self->link.lock);
}

static const struct conn_part_ops subscriber_ops = {
    .up = subscriber_up, .down = subscriber_down, .tick = subscriber_tick};

rp_status rp_subscriber_take(rp_subscriber *subscriber, int64_t timeout_ms, rp_params **out, rp_error *err)
{
    int64_t deadline = timeout_ms == 0 ? 0 : conn_deadline(timeout_ms);
    struct conn *conn = client_conn(subscriber->link.client);
    *out = NULL;
    RP_TRY(conn_check_process(conn, err));
    if (timeout_ms == 0)
        conn_look(conn);
    int64_t start = timeout_ms != 0 ? trace_now(conn_trace(conn)) : 0;
    pthread_mutex_lock(&subscriber->link.lock);
    while (timeout_ms != 0 && !subscriber->ready && subscriber->link.error.status == RP_OK &&
           conn_wait(conn, &subscriber->link.changed, &subscriber->link.lock, deadline))
        ;
    trace_add_since(conn_trace(conn), "wait for parameters", NULL, start, 0);
    if (timeout_ms != 0 && conn_is_stopped()) {
        pthread_mutex_unlock(&subscriber->link.lock);
        return conn_stopped(err);
    }
    rp_status status = link_take_error(&subscriber->link, "slot", err);
    uint64_t have = subscriber->have;
    uint32_t active = subscriber->active;
    char progress[100] = "";
    if (subscriber->fetch)
        snprintf(progress, sizeof progress, "; of version %llu there are %u of %u parts",
                 (unsigned long long)subscriber->fetch->slot.version, subscriber->got, subscriber->n);
    if (status == RP_OK && subscriber->ready) {
        *out = subscriber->ready;
        subscriber->ready = NULL;
        subscriber->stats.taken++;
    }
    pthread_mutex_unlock(&subscriber->link.lock);
    if (*out)
        conn_wake(subscriber->shards[active].shard.conn);
    if (*out || status != RP_OK)
        return status;
    char why[256] = "";
    if (timeout_ms != 0)
        client_describe(subscriber->link.client, why, sizeof why);
    return err_set(err, RP_DEADLINE_EXCEEDED, "no other version of '%s' than %llu has arrived%s%s%s",
                   subscriber->link.name, (unsigned long long)have, progress, why[0] ? ": " : "", why);
}

rp_status rp_subscriber_get_stats(rp_subscriber *subscriber, rp_subscriber_stats *out)
{
    return link_copy_stats(&subscriber->link, &subscriber->stats, sizeof *out, out);
}

static rp_subscriber *subscriber_new(rp_client *client, const char *name, uint64_t have, bool bf16, rp_error *err)
{
    uint32_t n = client_shards(client);
    rp_subscriber *self = link_new(sizeof *self + n * sizeof self->shards[0], client, name, err);
    if (!self)
        return NULL;
    self->have = have;
    self->bf16 = bf16;
    self->active = client_nearest(client);
    self->n_shards = n;
    for (uint32_t i = 0; i < n; i++)
        shard_open(&self->shards[i].shard, &self->link, i, &subscriber_ops);
    return self;
}

rp_subscriber *rp_subscriber_new(rp_client *client, const char *name, uint64_t have, rp_error *err)
{
    return subscriber_new(client, name, have, false, err);
}

rp_subscriber *rp_subscriber_new_bf16(rp_client *client, const char *name, uint64_t have, rp_error *err)
{
    return subscriber_new(client, name, have, true, err);
}

void rp_subscriber_destroy(rp_subscriber **subscriber)
{
    if (!subscriber || !*subscriber)
        return;
    rp_subscriber *self = *subscriber;
    *subscriber = NULL;
    if (conn_is_foreign(client_conn(self->link.client))) {
        free(self);
        return;
    }
    for (uint32_t i = 0; i < self->n_shards; i++)
        conn_detach(self->shards[i].shard.conn, &self->shards[i].shard.part);
    rp_params_release(&self->ready);
    rp_params_release(&self->fetch);
    pool_destroy(&self->values);
    link_free(&self->link);
}
