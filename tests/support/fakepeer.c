#include "tests/support/fakepeer.h"

#include <time.h>
#include <zmq.h>

#include "proto/base/dtype.h"
#include "proto/base/rng.h"
#include "proto/wire/wire.h"
#include "replay.pb-c.h"

static const char *const names[FAKEPEER_TABLES] = {"a", "b"};

static void session_bytes(const struct fakepeer *self, uint8_t out[WIRE_SESSION_BYTES])
{
    memset(out, 0x5a, WIRE_SESSION_BYTES);
    memcpy(out, &self->ordinal, sizeof self->ordinal);
}

/* ---- answers */

struct credit {
    Replay__Credit body;
    uint32_t table[FAKEPEER_TABLES];
    uint64_t resolved[FAKEPEER_TABLES], allowed[FAKEPEER_TABLES], rejected[FAKEPEER_TABLES];
    Replay__Rejection rejections[64], *list[64];
    char *why;
};

static void credit_fill(const struct fakepeer *self, struct credit *c)
{
    static char text[] = "odd items are not liked";
    replay__credit__init(&c->body);
    c->body.received = self->received;
    c->body.gap = self->gap;
    c->body.epoch = self->epoch;
    c->body.session = self->ordinal;
    c->body.allowed_bytes = self->received_bytes - self->held_bytes + self->window_bytes + self->released_bytes;
    c->body.returned_bytes = self->received_bytes - self->held_bytes;
    c->body.keep_bytes = self->keep_bytes;
    for (uint32_t t = 0; t < FAKEPEER_TABLES; t++) {
        c->table[t] = t + 10;
        c->resolved[t] = self->resolved[t];
        c->allowed[t] = self->resolved[t] + self->window_items[t];
        c->rejected[t] = t == 0 ? self->rejected : 0;
    }
    c->body.n_table = c->body.n_resolved = c->body.n_allowed = c->body.n_rejected = FAKEPEER_TABLES;
    c->body.table = c->table;
    c->body.resolved = c->resolved;
    c->body.allowed = c->allowed;
    c->body.rejected = c->rejected;
    c->body.first_rejection = self->confirmed;
    c->body.rejections = c->list;
    for (uint64_t r = self->confirmed; r < self->rejected && r < 64; r++) {
        uint64_t i = c->body.n_rejections++;
        replay__rejection__init(&c->rejections[i]);
        c->rejections[i].table = 10;
        c->rejections[i].item = self->rejected_item[r];
        c->rejections[i].key = self->rejected_key[r];
        c->rejections[i].status = RP_INVALID_ARGUMENT;
        c->rejections[i].text = text;
        c->list[i] = &c->rejections[i];
    }
}

static void answer_with(struct fakepeer *self, Replay__Reply *reply, const void *payload, size_t bytes)
{
    if (self->deaf || self->route_size == 0)
        return;
    reply->version = 1;
    uint8_t *packed = malloc(replay__reply__get_packed_size(reply) + 1);
    size_t size = replay__reply__pack(reply, packed);
    zmq_send(self->router, self->route, self->route_size, ZMQ_SNDMORE);
    zmq_send(self->router, packed, size, bytes ? ZMQ_SNDMORE : 0);
    if (bytes)
        zmq_send(self->router, payload, bytes, 0);
    free(packed);
}

static void answer(struct fakepeer *self, Replay__Reply *reply)
{
    answer_with(self, reply, NULL, 0);
}

static void answer_credit(struct fakepeer *self, uint64_t id, bool explain)
{
    struct credit credit = {.why = NULL};
    char *why = (char *)(uintptr_t) "table 'a' holds back items: the test says so";
    credit_fill(self, &credit);
    if (explain && self->hold) {
        credit.body.waiting = &why;
        credit.body.n_waiting = 1;
    }
    Replay__Reply reply = REPLAY__REPLY__INIT;
    reply.id = id;
    reply.body_case = REPLAY__REPLY__BODY_CREDIT;
    reply.credit = &credit.body;
    answer(self, &reply);
}

static void answer_error(struct fakepeer *self, uint64_t id, rp_status status)
{
    Replay__Reply reply = REPLAY__REPLY__INIT;
    reply.id = id;
    reply.status = status;
    answer(self, &reply);
}

static void session_start(struct fakepeer *self)
{
    self->ordinal++;
    self->epoch = 1;
    self->received = self->received_bytes = self->rejected = self->confirmed = 0;
    self->held_bytes = self->released_bytes = 0;
    memset(self->arrived, 0, sizeof self->arrived);
    memset(self->resolved, 0, sizeof self->resolved);
    self->layouts = 0;
    self->gap = false;
    self->open = true;
}

static void session_resume(struct fakepeer *self, const Replay__Hello *hello)
{
    self->resumes++;
    self->epoch++;
    self->gap = false;
    self->released_bytes = 0;
    self->oldest_number = hello->oldest_number;
    if (self->expire) {
        self->expire = false;
        memcpy(self->arrived, self->resolved, sizeof self->arrived);
        if (hello->oldest_number - 1 < self->received)
            self->received = hello->oldest_number - 1;
    }
}

static void on_hello(struct fakepeer *self, const Replay__Request *request)
{
    const Replay__Hello *hello = request->hello;
    Replay__HelloReply body = REPLAY__HELLO_REPLY__INIT;
    Replay__TableSpec specs[FAKEPEER_TABLES], *list[FAKEPEER_TABLES];
    Replay__Column columns[16], *column_list[16];
    struct credit credit = {.why = NULL};
    uint8_t id[WIRE_SESSION_BYTES];
    self->hellos++;
    if (hello->n_columns > 0) {
        if (self->ends) {
            self->ends = false;
            answer_error(self, request->id, RP_CANCELLED);
            return;
        }
        session_bytes(self, id);
        bool known = self->open && !self->forget && hello->session.len == sizeof id &&
                     memcmp(hello->session.data, id, sizeof id) == 0;
        if (hello->session.len > 0 && !known) {
            self->forget = self->open = false;
            answer_error(self, request->id, RP_SESSION_UNKNOWN);
            return;
        }
        if (known)
            session_resume(self, hello);
        else
            session_start(self);
        session_bytes(self, id);
        body.session = (ProtobufCBinaryData){sizeof id, id};
        body.ordinal = self->ordinal;
        body.key_base = (uint64_t)self->ordinal << 36;
        body.key_count = self->key_count;
        body.epoch = self->epoch;
        body.resumed = known;
        if (self->age) {
            self->age = false;
            self->received_bytes = self->held_bytes = 0;
            body.lost_messages = 5;
        }
        credit_fill(self, &credit);
        body.credit = &credit.body;
    }
    body.heartbeat_ms = self->heartbeat_ms;
    body.expiry_ms = self->expiry_ms;
    body.ingest = self->ingest;
    body.max_message_bytes = 1 << 20;
    body.shard = self->shard;
    body.shards = self->shards;
    body.n_shards = self->n_shards;
    body.settings = self->settings;
    body.instance = self->instance;
    body.n_tables = FAKEPEER_TABLES;
    body.tables = list;
    for (uint32_t t = 0; t < FAKEPEER_TABLES; t++) {
        replay__table_spec__init(&specs[t]);
        specs[t].name = (char *)(uintptr_t)names[t];
        specs[t].id = t + 10;
        list[t] = &specs[t];
    }
    for (uint32_t i = 0; i < self->n_signature; i++) {
        replay__column__init(&columns[i]);
        columns[i].name = (char *)(uintptr_t)self->signature[i].name;
        columns[i].dtype = (char *)(uintptr_t)dtype_name(self->signature[i].dtype);
        columns[i].n_shape = self->signature[i].rank;
        columns[i].shape = (uint32_t *)(uintptr_t)self->signature[i].shape;
        column_list[i] = &columns[i];
    }
    specs[0].n_signature = self->n_signature;
    specs[0].signature = column_list;
    Replay__Reply reply = REPLAY__REPLY__INIT;
    reply.id = request->id;
    reply.body_case = REPLAY__REPLY__BODY_HELLO;
    reply.hello = &body;
    answer(self, &reply);
}

static void answer_permit(struct fakepeer *self, uint64_t id)
{
    Replay__PermitReply body = *(const Replay__PermitReply *)self->permit;
    Replay__Reply reply = REPLAY__REPLY__INIT;
    reply.id = id;
    reply.body_case = REPLAY__REPLY__BODY_PERMIT;
    reply.permit = &body;
    answer(self, &reply);
}

#define MOST_GIVEN 8192u

struct given {
    Replay__Field field, *fields;
    Replay__Column column, *columns;
    Replay__Layout layout, *layouts;
};

/* Items of one step with one number: all chunks are alike, so that one number stands for all. */
static void fill_items(Replay__SampleReply *body, struct given *given, uint32_t n)
{
    static uint64_t keys[MOST_GIVEN];
    static double priorities[MOST_GIVEN], probability = 0.5;
    static uint32_t one = 1, zero = 0, four = 4;
    static uint8_t column;
    static char name[] = "number", dtype[] = "int32", table[] = "a";
    replay__field__init(&given->field);
    replay__column__init(&given->column);
    replay__layout__init(&given->layout);
    given->fields = &given->field;
    given->columns = &given->column;
    given->layouts = &given->layout;
    given->field.name = given->column.name = name;
    given->field.count = 1;
    given->field.squeeze = true;
    given->column.dtype = dtype;
    given->layout.table = table;
    given->layout.n_fields = given->layout.n_columns = 1;
    given->layout.fields = &given->fields;
    given->layout.columns = &given->columns;
    body->n_key = body->n_priority = body->n_age_ns = body->n_step = n;
    body->key = body->age_ns = body->step = keys;
    body->priority = priorities;
    body->n_probability = body->n_times_sampled = body->n_policy = body->n_session = body->n_layout = 1;
    body->probability = &probability;
    body->times_sampled = body->length = body->chunks = body->chunk_length = body->chunk_blocks = &one;
    body->policy = keys;
    body->session = body->layout = body->offset = &zero;
    body->n_offset = body->n_length = body->n_chunks = body->n_chunk_length = body->n_chunk_blocks = 1;
    body->block_column = body->block_codec = (ProtobufCBinaryData){1, &column};
    body->n_block_size = 1;
    body->block_size = &four;
    body->packed = n;
    body->n_layouts = 1;
    body->layouts = &given->layouts;
}

/* The state that permits tell, and items only if there are to be some. */
static void answer_sample(struct fakepeer *self, const Replay__Request *request)
{
    static const int32_t numbers[MOST_GIVEN];
    const Replay__PermitReply *permit = self->permit;
    Replay__SampleReply body = REPLAY__SAMPLE_REPLY__INIT;
    Replay__Reply reply = REPLAY__REPLY__INIT;
    struct given given;
    uint64_t n = self->give ? request->sample->count + self->surplus : 0;
    n = n < MOST_GIVEN ? n : MOST_GIVEN;
    body.partial = !self->give;
    body.table_size = permit->size;
    body.mass = permit->mass;
    body.room = permit->room;
    if (n)
        fill_items(&body, &given, (uint32_t)n);
    reply.id = request->id;
    reply.body_case = REPLAY__REPLY__BODY_SAMPLE;
    reply.sample = &body;
    answer_with(self, &reply, numbers, n * sizeof *numbers);
}

/* The first cancel crosses a reply whose item is in shared memory; what is asked for again is cancelled. */
static void on_cancel(struct fakepeer *self, const Replay__Cancel *cancel)
{
    static uint64_t place = 64, stamp = 1;
    for (size_t i = 0; i < cancel->n_id; i++) {
        Replay__SampleReply body = REPLAY__SAMPLE_REPLY__INIT;
        Replay__Reply reply = REPLAY__REPLY__INIT;
        struct given given;
        fill_items(&body, &given, 1);
        body.packed = 0;
        body.n_place = body.n_stamp = 1;
        body.place = &place;
        body.stamp = &stamp;
        reply.id = cancel->id[i];
        reply.body_case = REPLAY__REPLY__BODY_SAMPLE;
        reply.sample = &body;
        if (self->cancels++ == 0)
            answer(self, &reply);
        else
            answer_error(self, cancel->id[i], RP_CANCELLED);
    }
}

static void on_request(struct fakepeer *self)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    int n = zmq_recv(self->router, self->route, sizeof self->route, ZMQ_DONTWAIT);
    self->route_size = n > 0 ? (uint32_t)n : 0;
    zmq_msg_recv(&frame, self->router, 0);
    Replay__Request *request = replay__request__unpack(NULL, zmq_msg_size(&frame), zmq_msg_data(&frame));
    while (zmq_msg_more(&frame))
        zmq_msg_recv(&frame, self->router, 0);
    zmq_msg_close(&frame);
    if (!request)
        return;
    if (request->body_case == REPLAY__REQUEST__BODY_HELLO) {
        on_hello(self, request);
    } else if (request->body_case == REPLAY__REQUEST__BODY_HEARTBEAT) {
        self->heartbeats++;
        self->explains += request->heartbeat->explain;
        if (request->heartbeat->released_bytes > self->released_bytes) {
            self->window_bytes -= request->heartbeat->released_bytes - self->released_bytes;
            self->released_bytes = request->heartbeat->released_bytes;
        }
        if (request->heartbeat->confirmed_rejections > self->confirmed)
            self->confirmed = request->heartbeat->confirmed_rejections;
        if (self->forget || !self->open)
            answer_error(self, request->id, RP_SESSION_UNKNOWN);
        else
            answer_credit(self, request->id, request->heartbeat->explain);
    } else if (self->permit && request->body_case == REPLAY__REQUEST__BODY_PERMIT) {
        self->permits++;
        answer_permit(self, request->id);
    } else if (self->overtake && request->body_case == REPLAY__REQUEST__BODY_SAMPLE) {
        self->samples++;
    } else if (self->overtake && request->body_case == REPLAY__REQUEST__BODY_CANCEL) {
        on_cancel(self, request->cancel);
    } else if (self->permit && request->body_case == REPLAY__REQUEST__BODY_SAMPLE) {
        self->samples++;
        answer_sample(self, request);
    } else {
        self->byes += request->body_case == REPLAY__REQUEST__BODY_BYE;
        answer_credit(self, request->id, false);
    }
    replay__request__free_unpacked(request, NULL);
}

/* ---- ingest */

static void take_layouts(struct fakepeer *self, const struct wire_ingest *in)
{
    struct pb_reader reader = pb_reader(in->layouts, in->layouts_size);
    struct pb_field field;
    while (in->layouts && pb_next(&reader, &field) == 1) {
        Replay__Layout *layout = field.number == 7 ? replay__layout__unpack(NULL, field.size, field.data) : NULL;
        if (!layout)
            continue;
        if (layout->id != self->layouts && layout->id >= self->layouts)
            self->out_of_order++;
        if (layout->id == self->layouts)
            self->layouts++;
        self->layout_table[layout->id % 1024] = layout->table[0] == 'b';
        replay__layout__free_unpacked(layout, NULL);
    }
}

static void take_item(struct fakepeer *self, const struct wire_ingest *in, uint32_t i, uint32_t run, uint64_t number)
{
    uint32_t t = self->layout_table[pb_u32(&in->run_layout, run) % 1024];
    if (number <= self->arrived[t])
        return;
    if (number != self->arrived[t] + 1)
        self->out_of_order++;
    self->arrived[t] = number;
    if (self->n_keys < FAKEPEER_KEYS) {
        self->keys[self->n_keys] = pb_u64(&in->item_key, i);
        self->lengths[self->n_keys] = pb_u32(&in->item_length, i);
        self->policies[self->n_keys++] = in->run_policy.n ? pb_u64(&in->run_policy, run) : 0;
    }
    self->items++;
    if (self->reject_odd && t == 0 && number % 2 == 1 && self->rejected < 64) {
        self->rejected_item[self->rejected] = number;
        self->rejected_key[self->rejected++] = pb_u64(&in->item_key, i);
    }
    if (!self->hold)
        self->resolved[t] = number;
}

static void take_ingest(struct fakepeer *self, const struct wire_ingest *in, size_t bytes)
{
    uint8_t id[WIRE_SESSION_BYTES];
    session_bytes(self, id);
    if (!self->open || memcmp(in->session, id, sizeof id) != 0 || in->epoch != self->epoch) {
        self->stale++;
    } else if (in->number <= self->received) {
        self->duplicates++;
    } else if (in->number > self->received + 1) {
        self->gaps += !self->gap;
        self->gap = true;
    } else {
        self->received = in->number;
        self->received_bytes += bytes;
        self->held_bytes += self->hold ? bytes : 0;
        self->messages++;
        self->blanks += in->n_items == 0;
        self->largest = in->n_items > self->largest ? in->n_items : self->largest;
        take_layouts(self, in);
        for (uint32_t i = 0; i < in->n_chunks; i++, self->chunks++)
            if (self->chunks < FAKEPEER_KEYS)
                self->chunk_lengths[self->chunks] = pb_u32(&in->chunk_length, i);
        for (uint32_t run = 0, i = 0; run < in->n_runs; run++)
            for (uint32_t k = 0; k < pb_u32(&in->run_items, run); k++, i++)
                take_item(self, in, i, run, pb_u64(&in->run_first, run) + k);
    }
}

static bool on_ingest(struct fakepeer *self)
{
    zmq_msg_t header, rest;
    zmq_msg_init(&header);
    if (zmq_msg_recv(&header, self->pull, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&header);
        return false;
    }
    size_t bytes = zmq_msg_size(&header);
    bool more = zmq_msg_more(&header);
    while (more) {
        zmq_msg_init(&rest);
        zmq_msg_recv(&rest, self->pull, 0);
        bytes += zmq_msg_size(&rest);
        more = zmq_msg_more(&rest);
        zmq_msg_close(&rest);
    }
    struct wire_ingest in;
    if (!self->lose && wire_read_ingest(zmq_msg_data(&header), zmq_msg_size(&header), &in, NULL) == RP_OK) {
        if (self->discard) {
            self->messages++;
            self->items += in.n_items;
            self->received = in.number;
            self->received_bytes += bytes;
            self->resolved[0] += in.n_items;
        } else {
            take_ingest(self, &in, bytes);
        }
    }
    zmq_msg_close(&header);
    return true;
}

static void *fakepeer_main(void *arg)
{
    struct fakepeer *self = arg;
    for (;;) {
        zmq_pollitem_t items[2] = {{self->router, 0, ZMQ_POLLIN, 0}, {self->pull, 0, ZMQ_POLLIN, 0}};
        zmq_poll(items, 2, 5);
        pthread_mutex_lock(&self->mutex);
        if (self->stop) {
            pthread_mutex_unlock(&self->mutex);
            return NULL;
        }
        while (zmq_poll(items, 1, 0) > 0 && (items[0].revents & ZMQ_POLLIN))
            on_request(self);
        bool any = false;
        for (int i = 0; i < 64 && on_ingest(self); i++)
            any = true;
        if (any)
            answer_credit(self, 0, false);
        pthread_mutex_unlock(&self->mutex);
    }
}

/* ---- the test's side */

static void bind_any(void *socket, char *endpoint, size_t size)
{
    if (zmq_bind(socket, "tcp://127.0.0.1:*") != 0)
        abort();
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size);
}

void fakepeer_start(struct fakepeer *self)
{
    memset(self, 0, sizeof *self);
    pthread_mutex_init(&self->mutex, NULL);
    self->window_items[0] = self->window_items[1] = self->window_bytes = UINT64_C(1) << 40;
    self->heartbeat_ms = 50;
    self->key_count = UINT64_C(1) << 36;
    rng_system(&self->instance, sizeof self->instance);
    self->expiry_ms = 2000;
    self->context = zmq_ctx_new();
    self->router = zmq_socket(self->context, ZMQ_ROUTER);
    self->pull = zmq_socket(self->context, ZMQ_PULL);
    bind_any(self->router, self->endpoint, sizeof self->endpoint);
    bind_any(self->pull, self->ingest, sizeof self->ingest);
    pthread_create(&self->thread, NULL, fakepeer_main, self);
}

void fakepeer_stop(struct fakepeer *self)
{
    fakepeer_set(self, &self->stop, true);
    pthread_join(self->thread, NULL);
    int linger = 0;
    zmq_setsockopt(self->router, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(self->router);
    zmq_close(self->pull);
    zmq_ctx_term(self->context);
    pthread_mutex_destroy(&self->mutex);
}

void fakepeer_join(struct fakepeer *self, uint32_t shard, char **shards, uint32_t n, uint64_t settings)
{
    pthread_mutex_lock(&self->mutex);
    self->shard = shard;
    self->shards = shards;
    self->n_shards = n;
    self->settings = settings;
    pthread_mutex_unlock(&self->mutex);
}

/* The answers to heartbeats carry the change, because the sockets belong to the thread. */
void fakepeer_release(struct fakepeer *self)
{
    pthread_mutex_lock(&self->mutex);
    self->hold = false;
    self->held_bytes = 0;
    memcpy(self->resolved, self->arrived, sizeof self->resolved);
    pthread_mutex_unlock(&self->mutex);
}

uint64_t fakepeer_read(struct fakepeer *self, const uint64_t *count)
{
    pthread_mutex_lock(&self->mutex);
    uint64_t value = *count;
    pthread_mutex_unlock(&self->mutex);
    return value;
}

bool fakepeer_await(struct fakepeer *self, const uint64_t *count, uint64_t n)
{
    struct timespec pause = {.tv_nsec = 1000000};
    for (int i = 0; i < WAIT; i++) {
        if (fakepeer_read(self, count) >= n)
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

void fakeshards_start(struct fakeshards *self, uint64_t settings)
{
    for (uint32_t i = 0; i < FAKESHARDS; i++) {
        fakepeer_start(&self->peers[i]);
        self->list[i] = strdup(self->peers[i].endpoint);
    }
    for (uint32_t i = 0; i < FAKESHARDS; i++)
        fakepeer_join(&self->peers[i], i, self->list, FAKESHARDS, settings);
}

void fakeshards_stop(struct fakeshards *self)
{
    for (uint32_t i = 0; i < FAKESHARDS; i++)
        fakepeer_stop(&self->peers[i]);
    for (uint32_t i = 0; i < FAKESHARDS; i++)
        free(self->list[i]);
}
