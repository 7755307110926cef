#include "tests/support/testpeer.h"

#include "proto/base/rng.h"

#define PATIENCE_MS 1000 /* with a request that may be lost */

/* ---- sockets ---- */

static void *open_socket(struct testpeer *self, int type, const char *endpoint)
{
    void *socket = zmq_socket(self->context, type);
    assert_non_null(socket);
    int linger = 0, one = 1, hwm = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    if (type == ZMQ_REQ) {
        zmq_setsockopt(socket, ZMQ_REQ_RELAXED, &one, sizeof one);
        zmq_setsockopt(socket, ZMQ_REQ_CORRELATE, &one, sizeof one);
    }
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

static struct testpeer *make(void *context, int type, bool delimiter)
{
    struct testpeer *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->draft = calloc(1, sizeof *self->draft);
    assert_non_null(self->draft);
    self->context = context;
    self->type = type;
    self->delimiter = delimiter;
    self->sent_end = &self->sent;
    self->oldest_chunk = 1;
    rng_system(&self->client, sizeof self->client);
    return self;
}

struct testpeer *testpeer_new_type(struct embed *embed, int type, bool delimiter)
{
    struct testpeer *self = make(embed->context, type, delimiter);
    self->embed = embed;
    self->service = open_socket(self, type, embed->broker->peers.service_endpoint);
    self->ingest = open_socket(self, ZMQ_PUSH, embed->broker->peers.ingest_endpoint);
    self->next = embed->peers;
    embed->peers = self;
    return self;
}

/* Takes the peer off the list of its embedded broker. */
static void leave(struct testpeer *self)
{
    struct testpeer **at = &self->embed->peers;
    while (*at != self)
        at = &(*at)->next;
    *at = self->next;
}

void testpeer_move(struct testpeer *self, struct embed *embed)
{
    leave(self);
    self->embed = embed;
    self->context = embed->context;
    self->next = embed->peers;
    embed->peers = self;
    testpeer_reconnect(self);
}

struct testpeer *testpeer_new(struct embed *embed)
{
    return testpeer_new_type(embed, ZMQ_DEALER, false);
}

struct testpeer *testpeer_connect(const char *service)
{
    struct testpeer *self = make(zmq_ctx_new(), ZMQ_DEALER, false);
    self->service = open_socket(self, ZMQ_DEALER, service);
    return self;
}

void testpeer_reconnect(struct testpeer *self)
{
    char service[256];
    size_t size = sizeof service;
    zmq_getsockopt(self->service, ZMQ_LAST_ENDPOINT, service, &size);
    zmq_close(self->service);
    if (self->ingest)
        zmq_close(self->ingest);
    self->ingest = NULL;
    self->service = open_socket(self, self->type, self->embed ? self->embed->broker->peers.service_endpoint : service);
    if (self->embed) {
        self->embed->due = 0; /* messages in flight may be lost */
        self->ingest = open_socket(self, ZMQ_PUSH, self->embed->broker->peers.ingest_endpoint);
    } else if (self->ingest_endpoint[0]) {
        self->ingest = open_socket(self, ZMQ_PUSH, self->ingest_endpoint);
    }
}

void testpeer_forget(struct testpeer *self)
{
    while (self->answers) {
        struct testpeer_answer *answer = self->answers;
        self->answers = answer->next;
        for (uint32_t i = 0; i < answer->n_payload; i++)
            zmq_msg_close(&answer->payload[i]);
        free(answer->payload);
        replay__reply__free_unpacked(answer->reply, NULL);
        free(answer);
    }
}

void testpeer_forget_sent(struct testpeer *self)
{
    while (self->sent) {
        struct testpeer_sent *sent = self->sent;
        self->sent = sent->next;
        for (uint32_t i = 0; i < sent->n; i++)
            zmq_msg_close(&sent->frames[i]);
        free(sent->frames);
        free(sent);
    }
    self->sent_end = &self->sent;
}

void testpeer_close(struct testpeer *self)
{
    if (self->embed)
        leave(self);
    testpeer_forget(self);
    testpeer_forget_sent(self);
    if (self->credit)
        replay__credit__free_unpacked(self->credit, NULL);
    text_fini(&self->draft->pack);
    text_fini(&self->draft->layouts);
    free(self->draft);
    zmq_close(self->service);
    if (self->ingest)
        zmq_close(self->ingest);
    if (!self->embed)
        zmq_ctx_term(self->context);
    free(self);
}

/* ---- requests and answers ---- */

uint64_t testpeer_ask_with(struct testpeer *self, Replay__Request *request, uint64_t id, const void *payload,
                           size_t size)
{
    request->version = WIRE_VERSION;
    request->id = id ? id : ++self->next_id;
    request->client = self->client;
    size_t n = replay__request__get_packed_size(request);
    uint8_t *header = malloc(n);
    assert_non_null(header);
    replay__request__pack(request, header);
    if (self->delimiter)
        assert_true(zmq_send(self->service, "", 0, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(self->service, header, n, payload ? ZMQ_SNDMORE : 0) >= 0);
    if (payload)
        assert_true(zmq_send(self->service, payload, size, 0) >= 0);
    free(header);
    if (self->embed)
        self->embed->due++;
    return request->id;
}

uint64_t testpeer_ask(struct testpeer *self, Replay__Request *request)
{
    return testpeer_ask_with(self, request, 0, NULL, 0);
}

/* Copies a Credit out of another message. */
static void keep_credit(struct testpeer *self, const Replay__Credit *credit)
{
    size_t n = replay__credit__get_packed_size(credit);
    uint8_t *bytes = malloc(n + 1);
    assert_non_null(bytes);
    replay__credit__pack(credit, bytes);
    if (self->credit)
        replay__credit__free_unpacked(self->credit, NULL);
    self->credit = replay__credit__unpack(NULL, n, bytes);
    assert_non_null(self->credit);
    free(bytes);
}

static void take_reply(struct testpeer *self, zmq_msg_t *frames, uint32_t n)
{
    uint32_t header = 0;
    if (self->type == ZMQ_DEALER && zmq_msg_size(&frames[0]) == 0)
        header = 1;
    struct testpeer_answer *answer = calloc(1, sizeof *answer);
    assert_non_null(answer);
    answer->delimited = header == 1;
    answer->reply = replay__reply__unpack(NULL, zmq_msg_size(&frames[header]), zmq_msg_data(&frames[header]));
    assert_non_null(answer->reply);
    testpeer_read_head(answer->reply);
    answer->id = answer->reply->id;
    answer->status = answer->reply->status;
    answer->text = answer->reply->text;
    answer->n_payload = n - header - 1;
    answer->payload = calloc(answer->n_payload + 1, sizeof *answer->payload);
    for (uint32_t i = 0; i < answer->n_payload; i++) {
        zmq_msg_init(&answer->payload[i]);
        zmq_msg_move(&answer->payload[i], &frames[header + 1 + i]);
    }
    if (answer->reply->body_case == REPLAY__REPLY__BODY_CREDIT)
        keep_credit(self, answer->reply->credit);
    if (answer->id == 0 && answer->status == 0)
        self->notices++;
    struct testpeer_answer **end = &self->answers;
    while (*end)
        end = &(*end)->next;
    *end = answer;
}

static bool read_one(struct testpeer *self)
{
    static zmq_msg_t frames[16384];
    uint32_t n = 0;
    bool more = true;
    while (more) {
        zmq_msg_init(&frames[n]);
        if (zmq_msg_recv(&frames[n], self->service, ZMQ_DONTWAIT) < 0) {
            assert_int_equal(n, 0);
            return false;
        }
        more = zmq_msg_more(&frames[n++]);
        assert_true(n < 16384);
    }
    take_reply(self, frames, n);
    for (uint32_t i = 0; i < n; i++)
        zmq_msg_close(&frames[i]);
    return true;
}

void testpeer_read(struct testpeer *self)
{
    while (read_one(self)) {
    }
}

static struct testpeer_answer *find(const struct testpeer *self, uint64_t id)
{
    struct testpeer_answer *answer = self->answers;
    while (answer && answer->id != id)
        answer = answer->next;
    return answer;
}

static struct testpeer_answer *poll_for(struct testpeer *self, uint64_t id, int64_t ms)
{
    if (self->embed)
        embed_settle(self->embed);
    testpeer_read(self);
    if (self->embed && !self->embed->remote)
        return find(self, id);
    int64_t end = clock_system().now(NULL) + ms * NS_PER_MS;
    while (!find(self, id) && clock_system().now(NULL) < end) {
        zmq_pollitem_t item = {self->service, 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, self->embed ? 1 : 100);
        if (self->embed)
            embed_settle(self->embed);
        testpeer_read(self);
    }
    return find(self, id);
}

struct testpeer_answer *testpeer_poll(struct testpeer *self, uint64_t id)
{
    return poll_for(self, id, WAIT);
}

uint64_t testpeer_waits(struct testpeer *self, uint64_t id)
{
    assert_null(testpeer_poll(self, id));
    return id;
}

struct testpeer_answer *testpeer_await(struct testpeer *self, uint64_t id)
{
    struct testpeer_answer *answer = testpeer_poll(self, id);
    if (!answer)
        fail_msg("request %llu was not answered", (unsigned long long)id);
    return answer;
}

struct testpeer_answer *testpeer_good(struct testpeer *self, uint64_t id)
{
    struct testpeer_answer *answer = testpeer_await(self, id);
    if (answer->status != RP_OK)
        fail_msg("request %llu: %s: %s", (unsigned long long)id, rp_status_name((int32_t)answer->status), answer->text);
    return answer;
}

void testpeer_refused(const struct testpeer_answer *answer, rp_status status, const char *words)
{
    assert_int_equal(answer->status, status);
    assert_has(answer->text, words);
}

struct testpeer_answer *testpeer_call(struct testpeer *self, Replay__Request *request)
{
    uint64_t id = testpeer_ask(self, request);
    if (self->embed && self->embed->lossy && !poll_for(self, id, PATIENCE_MS))
        testpeer_ask_with(self, request, id, NULL, 0); /* the first one was lost with its connection */
    struct testpeer_answer *answer = self->refused ? testpeer_poll(self, id) : NULL;
    if (!self->refused || (answer && answer->status == RP_OK))
        return testpeer_await(self, id);
    self->refused(self, answer);
    if (answer)
        answer->id = 0; /* only the next answer counts */
    return testpeer_await(self, testpeer_ask_with(self, request, id, NULL, 0));
}

/* ---- session ---- */

static struct testpeer_answer *hello(struct testpeer *self, bool resume, uint64_t oldest_number, bool notices)
{
    Replay__Hello ask = REPLAY__HELLO__INIT;
    Replay__Column columns[TESTPEER_COLUMNS], *list[TESTPEER_COLUMNS];
    for (uint32_t i = 0; i < self->n_columns; i++) {
        replay__column__init(&columns[i]);
        columns[i].name = testpeer_text(self->columns[i].name);
        columns[i].dtype = testpeer_text(self->columns[i].dtype);
        columns[i].n_shape = self->columns[i].rank;
        columns[i].shape = self->columns[i].shape;
        list[i] = &columns[i];
    }
    ask.name = testpeer_text("tester");
    ask.columns = list;
    ask.n_columns = self->n_columns;
    ask.notices = notices;
    ask.oldest_number = oldest_number;
    ask.memory = self->memory;
    if (resume)
        ask.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, self->session};
    TESTPEER_REQUEST(request, HELLO, hello, &ask);
    struct testpeer_answer *answer = testpeer_call(self, &request);
    if (answer->status != RP_OK)
        return answer;
    const Replay__HelloReply *reply = answer->reply->hello;
    assert_int_equal(reply->session.len, WIRE_SESSION_BYTES);
    memcpy(self->session, reply->session.data, WIRE_SESSION_BYTES);
    self->ordinal = reply->ordinal;
    self->epoch = reply->epoch;
    self->released = 0;
    self->key_base = reply->key_base;
    self->resumed = reply->resumed;
    self->lost_messages = reply->lost_messages;
    snprintf(self->ingest_endpoint, sizeof self->ingest_endpoint, "%s", reply->ingest);
    keep_credit(self, reply->credit);
    if (!self->ingest)
        self->ingest = open_socket(self, ZMQ_PUSH, self->ingest_endpoint);
    return answer;
}

void testpeer_open_with(struct testpeer *self, bool notices, const struct testpeer_column *columns, uint32_t n)
{
    assert_true(n <= TESTPEER_COLUMNS);
    memcpy(self->columns, columns, n * sizeof *columns);
    self->n_columns = n;
    struct testpeer_answer *answer = hello(self, false, 1, notices);
    if (answer->status != RP_OK)
        fail_msg("HELLO: %s", answer->text);
}

void testpeer_open(struct testpeer *self, bool notices)
{
    static const struct testpeer_column x = {"x", "uint64", 0, {0}, 8};
    testpeer_open_with(self, notices, &x, 1);
}

struct testpeer *testpeer_opened(struct embed *embed, bool notices)
{
    struct testpeer *self = testpeer_new(embed);
    testpeer_open(self, notices);
    return self;
}

struct testpeer_answer *testpeer_resume(struct testpeer *self, uint64_t oldest_number, bool notices)
{
    return hello(self, true, oldest_number, notices);
}

struct testpeer_answer *testpeer_heartbeat(struct testpeer *self, uint64_t confirmed, bool explain)
{
    return testpeer_call(self,
                         REQUEST_OF(HEARTBEAT, heartbeat, Heartbeat, .session = {WIRE_SESSION_BYTES, self->session},
                                    .epoch = self->epoch, .sent = self->number, .confirmed_rejections = confirmed,
                                    .explain = explain, .released_bytes = self->released));
}

uint64_t testpeer_bye(struct testpeer *self, int64_t timeout_ms)
{
    return testpeer_ask(self, REQUEST_OF(BYE, bye, Bye, .session = {WIRE_SESSION_BYTES, self->session},
                                         .last_number = self->number, TIMEOUT_OF(BYE, timeout_ms)));
}

static uint64_t of_table(const struct testpeer *self, const uint64_t *values, uint32_t table)
{
    assert_non_null(self->credit);
    for (size_t i = 0; i < self->credit->n_table; i++)
        if (self->credit->table[i] == table)
            return values[i];
    fail_msg("the credit does not name table %u", table);
    return 0;
}

uint64_t testpeer_resolved(const struct testpeer *self, uint32_t table)
{
    return of_table(self, self->credit->resolved, table);
}

uint64_t testpeer_allowed(const struct testpeer *self, uint32_t table)
{
    return of_table(self, self->credit->allowed, table);
}

void testpeer_await_resolved(struct testpeer *self, uint32_t table, uint64_t n)
{
    wait_until(testpeer_resolved(self, table) >= n || (testpeer_heartbeat(self, 0, false), false));
}
