/* Any bytes from a client with a valid key of each role, over tcp with CURVE, to a broker in this process. The first byte chooses
 * the role and the socket, the rest is a header frame; 0xA5 eight times stands for half of the id of a session that belongs to
 * another key, 0x5A eight times for the number of that session's next message. No input may crash the broker, and what a role may not change is the same after it. */
#include <stdio.h>
#include <string.h>

#include "broker/broker.h"
#include "proto/keys/allow.h"
#include "replay.pb-c.h"
#include "tests/fuzz/target.h"

/* libzmq's threads allocate and free at times of their own: libFuzzer would look for leaks after each input, which takes longer
 * than a thousand inputs. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

#define TO_INGEST 0x80u
#define LEAST_ITEMS 4u

enum who { ACTOR, LEARNER, OBSERVER, ADMIN, REVOKED, VICTIM, N_WHO };
static const uint32_t roles[] = {KEY_ACTOR, KEY_LEARNER, KEY_OBSERVER, KEY_ADMIN, KEY_ADMIN, KEY_ACTOR};
static const char *const names[] = {"actor", "learner", "observer", "admin", "revoked", "victim"};

static struct {
    char folder[64];
    struct broker_config config;
    struct broker *broker;
    void *context;
    struct {
        void *service, *ingest;
    } clients[N_WHO];
    uint8_t session[WIRE_SESSION_BYTES]; /* of the victim */
    uint64_t key_base, messages;
} world;

/* True if the role may write: others do not get into ingest. */
static bool writes(enum who who)
{
    return roles[who] & (KEY_ACTOR | KEY_ADMIN);
}

/* ---- the broker and its clients ---- */

static void read_config(void)
{
    char yaml[1024];
    snprintf(yaml, sizeof yaml,
             "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\nseed: 7\n"
             "security: {mode: curve, keys: %s}\nsession: {expiry: 3600s}\ntables:\n"
             "  - {name: t, max_size: 100, sampler: {kind: prioritized, exponent: 1.0}}\n",
             world.folder);
    struct schema_report *report = schema_report_new();
    CHECK(schema_read_text(&broker_schema, "fuzz.yaml", yaml, &world.config, report));
    schema_report_destroy(&report);
}

static void connect_client(enum who who, const struct key *key)
{
    const struct peers *peers = &world.broker->peers;
    void **const sockets[] = {&world.clients[who].service, &world.clients[who].ingest};
    const char *const endpoints[] = {peers->service_endpoint, peers->ingest_endpoint};
    for (uint32_t i = 0; i < 2; i++) {
        void *socket = *sockets[i] = zmq_socket(world.context, i ? ZMQ_PUSH : ZMQ_DEALER);
        zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, peers->identities.key.public_key, KEY_BYTES);
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, key->public_key, KEY_BYTES);
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, key->secret_key, KEY_BYTES);
        CHECK(zmq_connect(socket, endpoints[i]) == 0);
    }
}

/* Sends a frame and runs the broker until it has handled it. */
static void deliver(enum who who, bool to_ingest, const void *data, size_t size)
{
    uint64_t before = world.broker->peers.counters.messages_in;
    CHECK(zmq_send(to_ingest ? world.clients[who].ingest : world.clients[who].service, data, size, 0) >= 0);
    for (uint32_t ms = 0; world.broker->peers.counters.messages_in == before; ms++) {
        CHECK(ms < 20000); /* a message of a client that is in always arrives */
        broker_turn(world.broker, 1);
    }
    for (uint32_t i = 0; i < 3; i++)
        broker_turn(world.broker, 0);
}

/* Reads a reply of the victim. */
static Replay__Reply *read_reply(void)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    while (zmq_msg_recv(&frame, world.clients[VICTIM].service, ZMQ_DONTWAIT) < 0)
        broker_turn(world.broker, 1);
    Replay__Reply *reply = replay__reply__unpack(NULL, zmq_msg_size(&frame), zmq_msg_data(&frame));
    CHECK(reply && reply->status == RP_OK);
    zmq_msg_close(&frame);
    return reply;
}

static void open_session(void)
{
    uint8_t packed[512];
    uint32_t shape = 4;
    Replay__Column column = REPLAY__COLUMN__INIT, *columns = &column;
    column.name = (char[]){"x"};
    column.dtype = (char[]){"uint8"};
    column.n_shape = 1;
    column.shape = &shape;
    Replay__Hello hello = REPLAY__HELLO__INIT;
    hello.name = (char[]){"victim"};
    hello.n_columns = 1;
    hello.columns = &columns;
    Replay__Request request = REPLAY__REQUEST__INIT;
    request.version = WIRE_VERSION;
    request.id = request.client = 1;
    request.body_case = REPLAY__REQUEST__BODY_HELLO;
    request.hello = &hello;
    deliver(VICTIM, false, packed, replay__request__pack(&request, packed));
    Replay__Reply *reply = read_reply();
    CHECK(reply->hello->session.len == WIRE_SESSION_BYTES);
    memcpy(world.session, reply->hello->session.data, WIRE_SESSION_BYTES);
    world.key_base = reply->hello->key_base;
    replay__reply__free_unpacked(reply, NULL);
}

/* The victim inserts a few items: a chunk of one step, and items that share it. */
static void insert_items(void)
{
    uint8_t packed[1024], codec = 0;
    uint64_t number = ++world.messages, keys[LEAST_ITEMS], first = (number - 1) * LEAST_ITEMS + 1, step = number - 1;
    uint32_t one = 1, zero = 0, items = LEAST_ITEMS, block = 4;
    double priority = 1;
    for (uint32_t i = 0; i < LEAST_ITEMS; i++)
        keys[i] = world.key_base + first + i;
    Replay__Field field = REPLAY__FIELD__INIT, *fields = &field;
    field.name = (char[]){"x"};
    Replay__Layout layout = REPLAY__LAYOUT__INIT, *layouts = &layout;
    layout.table = (char[]){"t"};
    layout.n_fields = 1;
    layout.fields = &fields;
    Replay__Ingest in = REPLAY__INGEST__INIT;
    in.version = WIRE_VERSION;
    memcpy(&in.session_hi, world.session, 8);
    memcpy(&in.session_lo, world.session + 8, 8);
    in.epoch = 1;
    in.number = in.oldest_chunk = number;
    in.n_layouts = number == 1;
    in.layouts = &layouts;
    in.n_chunk_number = in.n_chunk_step = in.n_chunk_length = in.n_chunk_episode = in.n_block_size = 1;
    in.chunk_number = &number;
    in.chunk_step = &step;
    in.chunk_length = &one;
    in.chunk_episode = &zero;
    in.block_size = &block;
    in.block_codec = (ProtobufCBinaryData){1, &codec};
    in.n_run_layout = in.n_run_items = in.n_run_first = 1;
    in.run_layout = &zero;
    in.run_items = &items;
    in.run_first = &first;
    in.n_item_key = LEAST_ITEMS;
    in.item_key = keys;
    in.n_item_priority = in.n_item_chunk = in.n_item_offset = in.n_item_length = 1;
    in.item_priority = &priority;
    uint64_t chunks[LEAST_ITEMS];
    for (uint32_t i = 0; i < LEAST_ITEMS; i++)
        chunks[i] = number;
    in.n_item_chunk = LEAST_ITEMS;
    in.item_chunk = chunks;
    in.item_offset = &zero;
    in.item_length = &one;
    size_t size = replay__ingest__pack(&in, packed);
    zmq_send(world.clients[VICTIM].ingest, packed, size, ZMQ_SNDMORE);
    deliver(VICTIM, true, "data", 4);
}

static void remove_folder(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", world.folder);
    if (system(command) != 0)
        perror(command);
}

static void start(void)
{
    struct key keys[N_WHO];
    rp_error err = {0};
    log_set_level(LEVEL_OFF);
    snprintf(world.folder, sizeof world.folder, "/tmp/replay-fuzz-XXXXXX");
    CHECK(mkdtemp(world.folder));
    static bool registered;
    if (!registered)
        atexit(remove_folder);
    registered = true;
    for (uint32_t i = 0; i < N_WHO; i++) {
        struct allowed_key allowed = {.roles = roles[i], .quota = {-1, -1, -1, -1, -1}};
        CHECK(key_make(&keys[i], names[i], &err) == RP_OK);
        memcpy(allowed.public_key, keys[i].public_key, KEY_BYTES);
        snprintf(allowed.name, sizeof allowed.name, "%s", names[i]);
        CHECK(allow_add(world.folder, &allowed, &err) == RP_OK);
    }
    read_config();
    world.context = zmq_ctx_new();
    world.broker = broker_new(&world.config, clock_system(), world.context, &err);
    CHECK(world.broker);
    for (uint32_t i = 0; i < N_WHO; i++) {
        connect_client((enum who)i, &keys[i]);
        deliver((enum who)i, false, "", 0); /* it is in */
        if (writes((enum who)i))
            deliver((enum who)i, true, "", 0);
    }
    CHECK(allow_remove(world.folder, names[REVOKED], &err) == RP_OK);
    while (identity_find(&world.broker->peers.identities, keys[REVOKED].public_key)->roles)
        broker_turn(world.broker, 1);
    while (zmq_recv(world.clients[VICTIM].service, NULL, 0, ZMQ_DONTWAIT) >= 0) {
    }
    open_session();
    insert_items();
    CHECK(world.broker->tables.list[0].in.size == LEAST_ITEMS);
}

static void stop(void)
{
    int linger = 0;
    for (uint32_t i = 0; i < N_WHO; i++) {
        zmq_setsockopt(world.clients[i].service, ZMQ_LINGER, &linger, sizeof linger);
        zmq_setsockopt(world.clients[i].ingest, ZMQ_LINGER, &linger, sizeof linger);
        zmq_close(world.clients[i].service);
        zmq_close(world.clients[i].ingest);
    }
    broker_destroy(&world.broker);
    zmq_ctx_term(world.context);
    schema_free(&broker_schema, &world.config);
    remove_folder();
    memset(&world, 0, sizeof world);
}

/* ---- what a role may not change ---- */

struct state {
    uint64_t size, inserts, samples, deletes, updates, resets; /* of the table */
    double limits[4];
    uint64_t slots, versions, counters, sessions, received;
    uint32_t epoch;
    int64_t sum;
};

static struct state look(void)
{
    const struct broker *broker = world.broker;
    const struct table *table = &broker->tables.list[0];
    const struct limiter *limiter = &table->limiter;
    const struct session *session = session_find(&world.broker->sessions, world.session);
    struct state out;
    CHECK(session);
    memset(&out, 0, sizeof out); /* states are compared as bytes */
    out.size = table->in.size;
    out.inserts = limiter->inserts;
    out.samples = limiter->samples;
    out.deletes = limiter->deletes;
    out.updates = table->stats.updates;
    out.resets = table->resets;
    out.limits[0] = limiter->samples_per_insert;
    out.limits[1] = limiter->min_size;
    out.limits[2] = limiter->min_diff;
    out.limits[3] = limiter->max_diff;
    out.slots = broker->params.n_slots;
    for (uint32_t i = 0; i < broker->params.n_slots; i++)
        out.versions += broker->params.slots[i].version;
    out.counters = broker->params.n_counters;
    for (uint32_t i = 0; i < broker->params.n_counters; i++)
        out.sum += broker->params.counters[i].value;
    out.sessions = broker->sessions.n_open;
    out.received = session->received;
    out.epoch = session->epoch;
    return out;
}

/* Takes over what the role may change. */
static void forgive(enum who who, struct state *before, const struct state *after)
{
    if (who == ACTOR || who == LEARNER) {
        before->counters = after->counters;
        before->sum = after->sum;
    }
    if (who == ACTOR)
        before->sessions = after->sessions;
    if (who == LEARNER) {
        before->size = after->size;
        before->samples = after->samples;
        before->deletes = after->deletes;
        before->updates = after->updates;
        before->slots = after->slots;
        before->versions = after->versions;
    }
    if (who == ADMIN)
        *before = *after;
}

/* ---- one input ---- */

static void name_session(uint8_t *data, size_t size)
{
    static const uint8_t id[8] = {0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5};
    static const uint8_t number[8] = {0x5A, 0x5A, 0x5A, 0x5A, 0x5A, 0x5A, 0x5A, 0x5A};
    uint64_t next = session_find(&world.broker->sessions, world.session)->received + 1;
    uint32_t half = 0;
    for (size_t i = 0; i + 8 <= size; i++) {
        if (memcmp(data + i, id, 8) == 0)
            memcpy(data + i, world.session + 8 * (half++ % 2), 8);
        else if (memcmp(data + i, number, 8) == 0)
            memcpy(data + i, &next, sizeof next);
    }
}

/* Waiting requests and sessions of earlier inputs do not pile up. */
static void clean_up(void)
{
    waits_cancel_all(&world.broker->peers.waits, RP_CANCELLED, "the input ends");
    for (struct session *next, *session = LIST_FIRST(&world.broker->sessions.list); session; session = next) {
        next = LIST_NEXT(session, link);
        if (memcmp(session->id, world.session, WIRE_SESSION_BYTES) != 0)
            session_close(session);
    }
    for (uint32_t i = 0; i < N_WHO; i++) {
        char reply[64];
        while (zmq_recv(world.clients[i].service, reply, sizeof reply, ZMQ_DONTWAIT) >= 0) {
        }
    }
    const struct table *table = &world.broker->tables.list[0];
    if (table->in.size < LEAST_ITEMS)
        insert_items();
    if (table->in.size < LEAST_ITEMS) { /* an admin has changed the limiter, or the victim is out of credit */
        stop();
        start();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!world.broker)
        start();
    if (size < 2)
        return 0;
    enum who who = (enum who)(data[0] % VICTIM);
    uint8_t *frame = malloc(size - 1);
    CHECK(frame);
    memcpy(frame, data + 1, size - 1);
    name_session(frame, size - 1);
    struct state before = look();
    deliver(who, (data[0] & TO_INGEST) && writes(who), frame, size - 1);
    struct state after = look();
    forgive(who, &before, &after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    free(frame);
    clean_up();
    return 0;
}
