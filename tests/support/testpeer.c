#include "tests/support/testpeer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/rng.h"

#define REAL_WAIT_MS 10000

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
    self->service = open_socket(self, type, embed->broker->service_endpoint);
    self->ingest = open_socket(self, ZMQ_PUSH, embed->broker->ingest_endpoint);
    self->next = embed->peers;
    embed->peers = self;
    return self;
}

struct testpeer *testpeer_new(struct embed *embed)
{
    return testpeer_new_type(embed, ZMQ_DEALER, false);
}

struct testpeer *testpeer_connect(void *context, const char *service)
{
    struct testpeer *self = make(context, ZMQ_DEALER, false);
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
    self->service = open_socket(self, self->type, self->embed ? self->embed->broker->service_endpoint : service);
    if (self->embed)
        self->ingest = open_socket(self, ZMQ_PUSH, self->embed->broker->ingest_endpoint);
    else if (self->ingest_endpoint[0])
        self->ingest = open_socket(self, ZMQ_PUSH, self->ingest_endpoint);
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

static void drop_sent(struct testpeer *self)
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
    if (self->embed) {
        struct testpeer **at = &self->embed->peers;
        while (*at != self)
            at = &(*at)->next;
        *at = self->next;
    }
    testpeer_forget(self);
    drop_sent(self);
    if (self->credit)
        replay__credit__free_unpacked(self->credit, NULL);
    pb_writer_fini(&self->draft->pack);
    pb_writer_fini(&self->draft->layouts);
    free(self->draft);
    zmq_close(self->service);
    if (self->ingest)
        zmq_close(self->ingest);
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
    return request->id;
}

uint64_t testpeer_ask(struct testpeer *self, Replay__Request *request)
{
    return testpeer_ask_with(self, request, 0, NULL, 0);
}

/* A Credit of its own, out of another message. */
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

struct testpeer_answer *testpeer_poll(struct testpeer *self, uint64_t id)
{
    if (self->embed)
        embed_settle(self->embed);
    testpeer_read(self);
    if (self->embed && !self->embed->remote)
        return find(self, id);
    int64_t end = clock_system().now(NULL) + REAL_WAIT_MS * NS_PER_MS;
    while (!find(self, id) && clock_system().now(NULL) < end) {
        zmq_pollitem_t item = {self->service, 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, self->embed ? 1 : 100);
        if (self->embed)
            embed_settle(self->embed);
        testpeer_read(self);
    }
    return find(self, id);
}

struct testpeer_answer *testpeer_await(struct testpeer *self, uint64_t id)
{
    struct testpeer_answer *answer = testpeer_poll(self, id);
    if (!answer)
        fail_msg("request %llu was not answered", (unsigned long long)id);
    return answer;
}

struct testpeer_answer *testpeer_call(struct testpeer *self, Replay__Request *request)
{
    return testpeer_await(self, testpeer_ask(self, request));
}

static char *text(const char *s)
{
    return (char *)(uintptr_t)s; /* protobuf-c's structs are not const */
}

uint64_t testpeer_sample(struct testpeer *self, const char *table, uint32_t count, int64_t timeout_ms, int flags)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Sample sample = REPLAY__SAMPLE__INIT;
    sample.table = text(table);
    sample.count = count;
    sample.distinct = flags & DISTINCT;
    sample.flexible = (flags & FLEXIBLE) != 0;
    if (timeout_ms >= 0) {
        sample.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        sample.timeout_ms = (uint64_t)timeout_ms;
    }
    request.body_case = REPLAY__REQUEST__BODY_SAMPLE;
    request.sample = &sample;
    return testpeer_ask(self, &request);
}

struct testpeer_answer *testpeer_sampled(struct testpeer *self, const char *table, uint32_t count)
{
    struct testpeer_answer *answer = testpeer_await(self, testpeer_sample(self, table, count, 0, 0));
    if (answer->status != RP_OK)
        fail_msg("sample of %u from '%s': %s", count, table, answer->text);
    return answer;
}

struct testpeer_answer *testpeer_update(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys,
                                        const double *priorities)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Update update = REPLAY__UPDATE__INIT;
    update.table = text(table);
    update.n_key = update.n_priority = n;
    update.key = (uint64_t *)(uintptr_t)keys;
    update.priority = (double *)(uintptr_t)priorities;
    request.body_case = REPLAY__REQUEST__BODY_UPDATE;
    request.update = &update;
    return testpeer_call(self, &request);
}

struct testpeer_answer *testpeer_delete(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Delete del = REPLAY__DELETE__INIT;
    del.table = text(table);
    del.n_key = n;
    del.key = (uint64_t *)(uintptr_t)keys;
    request.body_case = REPLAY__REQUEST__BODY_DELETE;
    request.delete_ = &del;
    return testpeer_call(self, &request);
}

struct testpeer_answer *testpeer_fetch(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Fetch fetch = REPLAY__FETCH__INIT;
    fetch.table = text(table);
    fetch.n_key = n;
    fetch.key = (uint64_t *)(uintptr_t)keys;
    request.body_case = REPLAY__REQUEST__BODY_FETCH;
    request.fetch = &fetch;
    return testpeer_call(self, &request);
}

struct testpeer_answer *testpeer_reset(struct testpeer *self, const char *table)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Reset reset = REPLAY__RESET__INIT;
    reset.table = text(table);
    request.body_case = REPLAY__REQUEST__BODY_RESET;
    request.reset = &reset;
    return testpeer_call(self, &request);
}

int64_t testpeer_counter(struct testpeer *self, const char *name, int64_t add)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Counter counter = REPLAY__COUNTER__INIT;
    counter.name = text(name);
    counter.add = add;
    request.body_case = REPLAY__REQUEST__BODY_COUNTER;
    request.counter = &counter;
    struct testpeer_answer *answer = testpeer_call(self, &request);
    assert_int_equal(answer->status, RP_OK);
    return answer->reply->counter->value;
}

Replay__InfoReply *testpeer_info(struct testpeer *self)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Info info = REPLAY__INFO__INIT;
    info.sessions = true;
    request.body_case = REPLAY__REQUEST__BODY_INFO;
    request.info = &info;
    struct testpeer_answer *answer = testpeer_call(self, &request);
    assert_int_equal(answer->status, RP_OK);
    return answer->reply->info;
}

Replay__TableInfo *testpeer_table_info(struct testpeer *self, const char *table)
{
    Replay__InfoReply *info = testpeer_info(self);
    for (size_t i = 0; i < info->n_tables; i++)
        if (strcmp(info->tables[i]->name, table) == 0)
            return info->tables[i];
    fail_msg("no table '%s'", table);
    return NULL;
}

/* ---- session ---- */

static struct testpeer_answer *hello(struct testpeer *self, bool resume, uint64_t oldest_number, bool notices)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Hello ask = REPLAY__HELLO__INIT;
    Replay__Column columns[TESTPEER_COLUMNS], *list[TESTPEER_COLUMNS];
    for (uint32_t i = 0; i < self->n_columns; i++) {
        replay__column__init(&columns[i]);
        columns[i].name = text(self->columns[i].name);
        columns[i].dtype = text(self->columns[i].dtype);
        columns[i].n_shape = self->columns[i].rank;
        columns[i].shape = self->columns[i].shape;
        list[i] = &columns[i];
    }
    ask.name = text("tester");
    ask.columns = list;
    ask.n_columns = self->n_columns;
    ask.notices = notices;
    ask.oldest_number = oldest_number;
    if (resume)
        ask.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, self->session};
    request.body_case = REPLAY__REQUEST__BODY_HELLO;
    request.hello = &ask;
    struct testpeer_answer *answer = testpeer_call(self, &request);
    if (answer->status != RP_OK)
        return answer;
    const Replay__HelloReply *reply = answer->reply->hello;
    assert_int_equal(reply->session.len, WIRE_SESSION_BYTES);
    memcpy(self->session, reply->session.data, WIRE_SESSION_BYTES);
    self->ordinal = reply->ordinal;
    self->epoch = reply->epoch;
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

struct testpeer_answer *testpeer_resume(struct testpeer *self, uint64_t oldest_number, bool notices)
{
    return hello(self, true, oldest_number, notices);
}

struct testpeer_answer *testpeer_heartbeat(struct testpeer *self, uint64_t confirmed, bool explain)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Heartbeat ask = REPLAY__HEARTBEAT__INIT;
    ask.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, self->session};
    ask.epoch = self->epoch;
    ask.sent = self->number;
    ask.confirmed_rejections = confirmed;
    ask.explain = explain;
    request.body_case = REPLAY__REQUEST__BODY_HEARTBEAT;
    request.heartbeat = &ask;
    return testpeer_call(self, &request);
}

uint64_t testpeer_bye(struct testpeer *self, int64_t timeout_ms)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Bye ask = REPLAY__BYE__INIT;
    ask.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, self->session};
    ask.last_number = self->number;
    if (timeout_ms >= 0) {
        ask.has_timeout_ms_case = REPLAY__BYE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        ask.timeout_ms = (uint64_t)timeout_ms;
    }
    request.body_case = REPLAY__REQUEST__BODY_BYE;
    request.bye = &ask;
    return testpeer_ask(self, &request);
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

/* ---- ingest ---- */

static uint64_t *table_items(struct testpeer *self, const char *table)
{
    for (uint32_t i = 0; i < self->n_tables; i++)
        if (strcmp(self->tables[i].name, table) == 0)
            return &self->tables[i].items;
    assert_true(self->n_tables < 16);
    snprintf(self->tables[self->n_tables].name, sizeof self->tables[0].name, "%s", table);
    return &self->tables[self->n_tables++].items;
}

uint32_t testpeer_layout(struct testpeer *self, const char *table, uint32_t n, const Replay__Field *fields)
{
    Replay__Field *list[64];
    assert_true(n <= 64 && self->n_layouts < TESTPEER_LAYOUTS);
    for (uint32_t i = 0; i < n; i++)
        list[i] = (Replay__Field *)(uintptr_t)&fields[i];
    Replay__Layout layout = REPLAY__LAYOUT__INIT;
    layout.id = self->n_layouts;
    layout.table = text(table);
    layout.n_fields = n;
    layout.fields = list;
    size_t size = replay__layout__get_packed_size(&layout);
    pb_tag(&self->draft->layouts, 7, PB_BYTES);
    pb_varint(&self->draft->layouts, size);
    replay__layout__pack(&layout, pb_reserve(&self->draft->layouts, size));
    snprintf(self->layouts[self->n_layouts].table, sizeof self->layouts[0].table, "%s", table);
    self->layouts[self->n_layouts].items = table_items(self, table);
    return self->n_layouts++;
}

uint32_t testpeer_plain(struct testpeer *self, const char *table)
{
    for (uint32_t i = 0; i < self->n_layouts; i++)
        if (strcmp(self->layouts[i].table, table) == 0)
            return i;
    Replay__Field field = REPLAY__FIELD__INIT;
    field.name = text("x");
    field.count = 1;
    field.squeeze = true;
    return testpeer_layout(self, table, 1, &field);
}

uint64_t testpeer_chunk(struct testpeer *self, uint32_t rows, const void *const *blocks, bool own)
{
    struct testpeer_draft *draft = self->draft;
    uint32_t i = draft->n_chunks++;
    assert_true(i < TESTPEER_CHUNKS);
    uint32_t bytes = 0;
    for (uint32_t c = 0; c < self->n_columns; c++) {
        uint32_t at = i * self->n_columns + c;
        draft->block_size[at] = blocks[c] ? rows * self->columns[c].row_bytes : 0;
        draft->block_codec[at] = blocks[c] ? RP_CODEC_RAW : RP_CODEC_ABSENT;
        bytes += draft->block_size[at];
    }
    uint8_t *to;
    if (own) {
        assert_true(draft->n_own < 256);
        zmq_msg_init_size(&draft->own[draft->n_own], bytes);
        to = zmq_msg_data(&draft->own[draft->n_own++]);
    } else {
        assert_int_equal(draft->n_own, 0);
        draft->packed++;
        to = pb_reserve(&draft->pack, bytes);
    }
    for (uint32_t c = 0; c < self->n_columns; c++) {
        uint32_t size = draft->block_size[i * self->n_columns + c];
        if (size)
            memcpy(to, blocks[c], size);
        to += size;
    }
    draft->chunk_number[i] = ++self->chunk;
    draft->chunk_step[i] = self->step;
    draft->chunk_length[i] = rows;
    draft->chunk_episode[i] = self->episode;
    self->step += rows;
    return self->chunk;
}

void testpeer_item(struct testpeer *self, uint32_t layout, uint64_t key, double priority, uint64_t chunk,
                   uint32_t offset, uint32_t length)
{
    struct testpeer_draft *draft = self->draft;
    uint32_t i = draft->n_items++, run = draft->n_runs;
    assert_true(i < TESTPEER_ITEMS);
    draft->item_key[i] = key;
    draft->item_priority[i] = priority;
    draft->item_chunk[i] = chunk;
    draft->item_offset[i] = offset;
    draft->item_length[i] = length;
    uint64_t number = ++*self->layouts[layout].items;
    if (run && draft->run_layout[run - 1] == layout && draft->run_policy[run - 1] == self->policy) {
        draft->run_items[run - 1]++;
        return;
    }
    draft->run_layout[run] = layout;
    draft->run_items[run] = 1;
    draft->run_first[run] = number;
    draft->run_policy[run] = self->policy;
    draft->n_runs++;
}

static void copy_frame(zmq_msg_t *to, const void *data, size_t size)
{
    assert_int_equal(zmq_msg_init_size(to, size), 0);
    if (size)
        memcpy(zmq_msg_data(to), data, size);
}

static void send_frames(struct testpeer *self, const struct testpeer_sent *sent)
{
    for (uint32_t i = 0; i < sent->n; i++) {
        zmq_msg_t frame;
        copy_frame(&frame, zmq_msg_data(&sent->frames[i]), zmq_msg_size(&sent->frames[i]));
        if (i == 0)
            wire_patch_ingest(zmq_msg_data(&frame), self->session, self->epoch);
        assert_true(zmq_msg_send(&frame, self->ingest, i + 1 < sent->n ? ZMQ_SNDMORE : 0) >= 0);
    }
}

static void write_header(struct testpeer *self, struct pb_writer *header)
{
    struct testpeer_draft *draft = self->draft;
    struct wire_ingest_out out = {
        .session = self->session,
        .epoch = self->epoch,
        .number = self->number,
        .oldest_chunk = self->oldest_chunk,
        .layouts = draft->layouts.size ? draft->layouts.data : NULL,
        .layouts_size = draft->layouts.size,
        .n_chunks = draft->n_chunks,
        .n_columns = self->n_columns,
        .packed = draft->packed,
        .chunk_number = draft->chunk_number,
        .chunk_step = draft->chunk_step,
        .chunk_length = draft->chunk_length,
        .chunk_episode = draft->chunk_episode,
        .block_size = draft->block_size,
        .block_codec = draft->block_codec,
        .n_runs = draft->n_runs,
        .run_layout = draft->run_layout,
        .run_items = draft->run_items,
        .run_first = draft->run_first,
        .run_policy = draft->run_policy,
        .n_items = draft->n_items,
        .item_key = draft->item_key,
        .item_chunk = draft->item_chunk,
        .item_priority = draft->item_priority,
        .item_offset = draft->item_offset,
        .item_length = draft->item_length,
    };
    wire_write_ingest(header, &out);
    assert_false(header->failed);
}

uint64_t testpeer_push(struct testpeer *self)
{
    struct testpeer_draft *draft = self->draft;
    struct testpeer_sent *sent = calloc(1, sizeof *sent);
    struct pb_writer header = {0};
    sent->number = ++self->number;
    write_header(self, &header);
    sent->frames = calloc(2 + draft->n_own, sizeof *sent->frames);
    copy_frame(&sent->frames[sent->n++], header.data, header.size);
    pb_writer_fini(&header);
    if (draft->packed)
        copy_frame(&sent->frames[sent->n++], draft->pack.data, draft->pack.size);
    for (uint32_t i = 0; i < draft->n_own; i++) {
        zmq_msg_init(&sent->frames[sent->n]);
        zmq_msg_move(&sent->frames[sent->n++], &draft->own[i]);
    }
    for (uint32_t i = 0; i < sent->n; i++)
        sent->bytes += zmq_msg_size(&sent->frames[i]);
    self->sent_bytes += sent->bytes;
    draft->pack.size = draft->layouts.size = 0;
    draft->n_chunks = draft->packed = draft->n_items = draft->n_runs = draft->n_own = 0;
    if (!self->lose)
        send_frames(self, sent);
    *self->sent_end = sent;
    self->sent_end = &sent->next;
    if (!self->keep && !self->lose)
        drop_sent(self);
    return self->number;
}

void testpeer_resend(struct testpeer *self, uint64_t received)
{
    for (struct testpeer_sent *sent = self->sent; sent; sent = sent->next)
        if (sent->number > received)
            send_frames(self, sent);
}

void testpeer_insert(struct testpeer *self, const char *table, uint64_t first_key, uint32_t n, double priority)
{
    uint32_t layout = testpeer_plain(self, table);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = first_key + i;
        const void *blocks[] = {&key};
        testpeer_item(self, layout, key, priority, testpeer_chunk(self, 1, blocks, false), 0, 1);
    }
    self->oldest_chunk = self->chunk + 1;
    testpeer_push(self);
}

void testpeer_insert_large(struct testpeer *self, const char *table, uint64_t key, uint32_t bytes, bool own)
{
    uint32_t layout = testpeer_plain(self, table);
    uint8_t *data = malloc(bytes);
    assert_int_equal(self->columns[0].row_bytes, bytes);
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(key + i * 7);
    const void *blocks[] = {data};
    testpeer_item(self, layout, key, 1.0, testpeer_chunk(self, 1, blocks, own), 0, 1);
    free(data);
    self->oldest_chunk = self->chunk + 1;
    testpeer_push(self);
}

/* ---- replies ---- */

uint32_t sampled_u32(const uint32_t *values, size_t n, uint32_t i)
{
    return n == 0 ? 0 : n == 1 ? values[0] : values[i];
}

/* Where the block of a column in a chunk of the reply lies. */
static const uint8_t *find_block(const struct testpeer_answer *answer, uint32_t chunk, uint32_t column, uint32_t *size)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    uint32_t n_chunks = 0, block = 0, n_blocks = 0;
    for (size_t i = 0; i < reply->n_chunk; i++)
        n_chunks = reply->chunk[i] + 1 > n_chunks ? reply->chunk[i] + 1 : n_chunks;
    for (uint32_t i = 0; !reply->n_chunk && i < reply->n_key; i++)
        n_chunks += sampled_u32(reply->chunks, reply->n_chunks, i);
    for (uint32_t i = 0; i < n_chunks; i++)
        n_blocks += sampled_u32(reply->chunk_blocks, reply->n_chunk_blocks, i);
    size_t at = 0;
    for (uint32_t i = 0; i <= chunk; i++) {
        if (i >= reply->packed)
            at = 0;
        uint32_t n = sampled_u32(reply->chunk_blocks, reply->n_chunk_blocks, i);
        for (uint32_t b = 0; b < n; b++, block++) {
            uint32_t bytes = sampled_u32(reply->block_size, reply->n_block_size, block);
            uint32_t of = reply->block_column.data[reply->block_column.len == n_blocks ? block : b];
            if (i == chunk && of == column) {
                uint32_t frame = i < reply->packed ? 0 : i - reply->packed + (reply->packed ? 1 : 0);
                assert_true(frame < answer->n_payload);
                zmq_msg_t *message = &answer->payload[frame];
                assert_true(at + bytes <= zmq_msg_size(message));
                uint8_t codec = reply->block_codec.data[reply->block_codec.len == 1 ? 0 : block];
                assert_int_equal(codec, RP_CODEC_RAW);
                *size = bytes;
                return (const uint8_t *)zmq_msg_data(message) + at;
            }
            at += bytes;
        }
    }
    fail_msg("column %u is not in chunk %u of the reply", column, chunk);
    return NULL;
}

uint8_t *sampled_rows(const struct testpeer_answer *answer, uint32_t item, uint32_t field_index, uint32_t *rows,
                      uint32_t *row_bytes)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    uint32_t first = 0, n = sampled_u32(reply->chunks, reply->n_chunks, item);
    for (uint32_t i = 0; i < item; i++)
        first += sampled_u32(reply->chunks, reply->n_chunks, i);
    const Replay__Layout *layout = reply->layouts[sampled_u32(reply->layout, reply->n_layout, item)];
    assert_true(field_index < layout->n_fields);
    const Replay__Field *field = layout->fields[field_index];
    uint32_t total = 0, width = 0;
    uint8_t *all = NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t chunk = reply->n_chunk ? reply->chunk[first + i] : first + i, size = 0;
        uint32_t length = sampled_u32(reply->chunk_length, reply->n_chunk_length, chunk);
        const uint8_t *block = find_block(answer, chunk, field->column, &size);
        width = size / length;
        all = realloc(all, (size_t)(total + length) * width);
        memcpy(all + (size_t)total * width, block, size);
        total += length;
    }
    uint32_t offset = sampled_u32(reply->offset, reply->n_offset, item);
    uint32_t length = sampled_u32(reply->length, reply->n_length, item);
    uint32_t start = field->start >= 0 ? (uint32_t)field->start : length - (uint32_t)-field->start;
    uint32_t stride = field->stride ? field->stride : 1;
    uint32_t count = field->count ? field->count : (length - start + stride - 1) / stride;
    uint8_t *out = malloc((size_t)count * width);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = offset + start + i * stride;
        assert_true(at < offset + length && at < total);
        memcpy(out + (size_t)i * width, all + (size_t)at * width, width);
    }
    free(all);
    *rows = count;
    *row_bytes = width;
    return out;
}

void sampled_check(const struct testpeer_answer *answer, uint32_t item)
{
    uint32_t rows, width;
    uint64_t value;
    uint8_t *data = sampled_rows(answer, item, 0, &rows, &width);
    assert_int_equal(rows, 1);
    assert_int_equal(width, 8);
    memcpy(&value, data, 8);
    free(data);
    assert_int_equal(value, answer->reply->sample->key[item]);
}
