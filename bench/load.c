/* The load generators: thin writers, samplers and updaters, and the same through libreplay. */
#include "bench/bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/arena.h"
#include "proto/base/clock.h"
#include "proto/base/rng.h"
#include "proto/wire/pb.h"
#include "proto/wire/wire.h"
#include "replay/replay.h"

void load_fail(struct load *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(self->tally->text, sizeof self->tally->text, format, args);
    va_end(args);
    tally_set_state(self->tally, TALLY_FAILED);
    _exit(1);
}

void load_ok(struct load *self, rp_status status)
{
    if (status != RP_OK)
        load_fail(self, "libreplay: %s", self->err.text);
}

void *load_got(struct load *self, void *object)
{
    load_ok(self, object ? RP_OK : RP_INTERNAL);
    return object;
}

rp_client *load_client(struct load *self)
{
    return load_got(self, rp_client_connect(self->service, NULL, 30000, &self->err));
}

static Replay__Request load_request(uint64_t id)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    request.version = WIRE_VERSION;
    request.id = id;
    rng_system(&request.client, sizeof request.client);
    return request;
}

/* Where an encoded request has its id: behind the version. */
#define ID_AT 3u

static uint8_t *load_encode(const Replay__Request *request, size_t *size)
{
    *size = replay__request__get_packed_size(request);
    uint8_t *frame = malloc(*size);
    if (!frame)
        abort();
    replay__request__pack(request, frame);
    return frame;
}

static Replay__Reply *load_ask(struct load *self, void *socket, const Replay__Request *request)
{
    size_t size;
    uint8_t *frame = load_encode(request, &size);
    zmq_send(socket, frame, size, 0);
    free(frame);
    for (;;) {
        zmq_msg_t head;
        zmq_msg_init(&head);
        if (zmq_msg_recv(&head, socket, 0) < 0)
            load_fail(self, "the broker does not answer");
        Replay__Reply *reply = replay__reply__unpack(NULL, zmq_msg_size(&head), zmq_msg_data(&head));
        zmq_msg_close(&head);
        if (!reply)
            load_fail(self, "a reply could not be decoded");
        if (reply->id == request->id) {
            if (reply->status != 0)
                load_fail(self, "the broker says: %s", reply->text);
            return reply;
        }
        replay__reply__free_unpacked(reply, NULL);
    }
}

static void *load_dealer(struct load *self, void *context, uint32_t connections)
{
    void *socket = zmq_socket(context, ZMQ_DEALER);
    int timeout_ms = 30000;
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    curve_connect(socket);
    for (uint32_t i = 0; socket && i < connections; i++)
        if (zmq_connect(socket, self->service) != 0)
            load_fail(self, "cannot connect to %s", self->service);
    if (!socket)
        load_fail(self, "no socket");
    return socket;
}

/* ---- thin writers: one session and one PUSH socket each. They keep nothing to be sent again: a lost message ends the run. Their
 * notices come through one DEALER with as many connections, which HELLOs go out on in turn. ---- */

/* Chunks from this size on travel as frames of their own, which the broker keeps as they came. */
#define OWN_FRAME_BYTES 32768u
/* Items between two checks for a notice. */
#define LOOK_EVERY 400u

struct writer {
    void *push;
    uint32_t ordinal; /* of its session */
    uint8_t *head;    /* a whole ingest header, to be patched */
    size_t head_size, message_bytes;
    size_t number_at, oldest_at, run_at, chunk_at, step_at, key_at, item_chunk_at;
    uint32_t n, packed, epoch;
    uint8_t session[WIRE_SESSION_BYTES];
    uint64_t number, key_base;
    uint64_t sent, allowed, resolved;
    uint64_t sent_bytes, allowed_bytes;
};

struct writers {
    void *service;
    struct writer *list;
    uint32_t n;
};

static void take_credit(struct load *load, struct writer *self, const Replay__Credit *credit)
{
    if (credit->gap)
        load_fail(load, "messages were lost on the way to the broker");
    for (size_t i = 0; i < credit->n_table; i++) {
        if (credit->table[i] != 0)
            continue;
        if (credit->rejected[i])
            load_fail(load, "the broker rejects items: %s",
                      credit->n_rejections ? credit->rejections[0]->text : "no reason given");
        tally_add(load->tally, credit->resolved[i] - self->resolved);
        self->resolved = credit->resolved[i];
        self->allowed = credit->allowed[i];
    }
    self->allowed_bytes = credit->allowed_bytes;
}

static struct writer *find_writer(const struct writers *self, uint32_t ordinal)
{
    uint32_t i = 0;
    while (i < self->n && self->list[i].ordinal != ordinal)
        i++;
    return i < self->n ? &self->list[i] : NULL;
}

/* Reads notices that have arrived; with wait, at least one. */
static void read_notices(struct load *load, const struct writers *self, bool wait)
{
    for (;;) {
        zmq_msg_t head;
        zmq_msg_init(&head);
        if (zmq_msg_recv(&head, self->service, wait ? 0 : ZMQ_DONTWAIT) < 0) {
            if (wait)
                load_fail(load, "no credit came for 30 s: %llu items sent, %llu resolved, %llu allowed",
                          (unsigned long long)self->list[0].sent, (unsigned long long)self->list[0].resolved,
                          (unsigned long long)self->list[0].allowed);
            return;
        }
        wait = false;
        struct wire_reply reply;
        rp_error err;
        Replay__Credit *credit = NULL;
        if (wire_read_reply(zmq_msg_data(&head), zmq_msg_size(&head), &reply, &err) == RP_OK && reply.body == 17)
            credit = replay__credit__unpack(NULL, reply.size, reply.data);
        struct writer *writer = credit ? find_writer(self, credit->session) : NULL;
        if (!writer)
            load_fail(load, "a notice could not be decoded, or is for a session that is not ours");
        take_credit(load, writer, credit);
        replay__credit__free_unpacked(credit, NULL);
        zmq_msg_close(&head);
    }
}

static void hello(struct load *load, struct writers *all, struct writer *self, void *context)
{
    uint32_t shape = (uint32_t)load->options->size;
    Replay__Column column = REPLAY__COLUMN__INIT, *columns = &column;
    column.name = (char[]){"x"};
    column.dtype = (char[]){"uint8"};
    column.n_shape = 1;
    column.shape = &shape;
    Replay__Hello body = REPLAY__HELLO__INIT;
    body.name = (char[]){"bench"};
    body.notices = true;
    body.n_columns = 1;
    body.columns = &columns;
    Replay__Request request = load_request((uint64_t)(self - all->list) + 1);
    request.body_case = REPLAY__REQUEST__BODY_HELLO;
    request.hello = &body;
    Replay__Reply *reply = load_ask(load, all->service, &request);
    if (reply->body_case != REPLAY__REPLY__BODY_HELLO || reply->hello->session.len != WIRE_SESSION_BYTES)
        load_fail(load, "the reply to HELLO is not one");
    if (reply->hello->credit)
        take_credit(load, self, reply->hello->credit);
    self->key_base = reply->hello->key_base;
    self->ordinal = reply->hello->ordinal;
    self->push = zmq_socket(context, ZMQ_PUSH);
    curve_connect(self->push);
    if (!self->push || zmq_connect(self->push, reply->hello->ingest) != 0)
        load_fail(load, "cannot connect to %s", reply->hello->ingest);
    memcpy(self->session, reply->hello->session.data, WIRE_SESSION_BYTES);
    self->epoch = reply->hello->epoch;
    replay__reply__free_unpacked(reply, NULL);
}

/* The first message has the layout and nothing else. */
static void send_layout(struct writer *self)
{
    Replay__Field field = REPLAY__FIELD__INIT, *fields = &field;
    field.name = (char[]){"x"};
    Replay__Layout layout = REPLAY__LAYOUT__INIT;
    layout.table = (char[]){LOAD_TABLE};
    layout.n_fields = 1;
    layout.fields = &fields;
    uint8_t packed[256];
    size_t size = replay__layout__pack(&layout, packed);
    struct text layouts = {0}, frame = {0};
    pb_put_bytes(&layouts, 7, packed, size);
    struct wire_ingest_out out = {.session = self->session,
                                  .epoch = self->epoch,
                                  .number = ++self->number,
                                  .oldest_chunk = 1,
                                  .layouts = layouts.data,
                                  .layouts_size = layouts.size,
                                  .n_columns = 1};
    wire_write_ingest(&frame, &out);
    zmq_send(self->push, frame.data, frame.size, 0);
    self->sent_bytes += frame.size;
    text_fini(&layouts);
    text_fini(&frame);
}

static size_t place(const struct writer *self, const struct pb_array *array)
{
    return (size_t)(array->data - self->head);
}

/* Encodes the header of a message of n items, each with a chunk of one step. */
static void encode_head(struct writer *self, uint32_t size, double heavier)
{
    uint32_t n = self->n, zero = 0;
    struct arena memory = {0};
    uint64_t *numbers = arena_take(&memory, n, 8), first = 1;
    uint32_t *ones = arena_take(&memory, n, 4), *sizes = arena_take(&memory, n, 4);
    uint8_t *codecs = arena_take(&memory, n, 1);
    double *priorities = arena_take(&memory, n, 8);
    struct rng rng;
    rng_seed(&rng, 1);
    for (uint32_t i = 0; i < n; i++) {
        numbers[i] = i;
        ones[i] = 1;
        sizes[i] = size;
        priorities[i] = (0.01 + rng_unit(&rng)) * heavier;
    }
    struct wire_ingest_out out = {.session = self->session,
                                  .epoch = self->epoch,
                                  .number = 1,
                                  .oldest_chunk = 1,
                                  .n_chunks = n,
                                  .n_columns = 1,
                                  .packed = self->packed,
                                  .chunk_number = numbers,
                                  .chunk_step = numbers,
                                  .chunk_length = ones,
                                  .block_size = sizes,
                                  .block_codec = codecs,
                                  .n_runs = 1,
                                  .run_layout = &zero,
                                  .run_items = &n,
                                  .run_first = &first,
                                  .n_items = n,
                                  .item_key = numbers,
                                  .item_chunk = numbers,
                                  .item_priority = priorities,
                                  .item_length = ones};
    struct text frame = {0};
    wire_write_ingest(&frame, &out);
    self->head = frame.failed ? NULL : frame.bytes;
    self->head_size = frame.size;
    arena_fini(&memory);
}

/* Encodes one message, and remembers where its numbers are. */
static void make_head(struct load *load, struct writer *self)
{
    uint32_t size = (uint32_t)load->options->size;
    self->packed = size >= OWN_FRAME_BYTES ? 0 : self->n;
    encode_head(self, size, load->options->heavier > 0 ? load->options->heavier : 1);
    struct wire_ingest in;
    rp_error err;
    if (!self->head || wire_read_ingest(self->head, self->head_size, &in, &err) != RP_OK)
        load_fail(load, "the ingest header could not be made");
    self->run_at = place(self, &in.run_first);
    self->chunk_at = place(self, &in.chunk_number);
    self->step_at = place(self, &in.chunk_step);
    self->key_at = place(self, &in.item_key);
    self->item_chunk_at = place(self, &in.item_chunk);
    struct pb_reader reader = pb_reader(self->head, self->head_size);
    struct pb_field field;
    while (pb_next(&reader, &field) == 1) {
        if (field.number == 5)
            self->number_at = (size_t)(reader.at - self->head) - 8;
        if (field.number == 6)
            self->oldest_at = (size_t)(reader.at - self->head) - 8;
    }
    self->message_bytes = self->head_size + (size_t)self->n * size;
}

static void writer_open(struct load *load, struct writers *all, struct writer *self, void *context)
{
    *self = (struct writer){.n = load->options->per_message};
    hello(load, all, self, context);
    send_layout(self);
    make_head(load, self);
}

static void count_up(uint8_t *at, uint64_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t value = first + i;
        memcpy(at + (size_t)i * 8, &value, 8);
    }
}

static void writer_send(struct load *load, struct writer *self)
{
    uint64_t first = self->sent + 1, number = ++self->number, next = first + self->n;
    zmq_msg_t frame;
    zmq_msg_init_size(&frame, self->head_size);
    uint8_t *head = zmq_msg_data(&frame);
    memcpy(head, self->head, self->head_size);
    memcpy(head + self->number_at, &number, 8);
    memcpy(head + self->oldest_at, &next, 8);
    memcpy(head + self->run_at, &first, 8);
    count_up(head + self->chunk_at, first, self->n);
    count_up(head + self->step_at, first, self->n);
    count_up(head + self->key_at, self->key_base + first, self->n);
    count_up(head + self->item_chunk_at, first, self->n);
    zmq_msg_send(&frame, self->push, ZMQ_SNDMORE);
    uint32_t frames = self->packed ? 1 : self->n;
    for (uint32_t i = 0; i < frames; i++) {
        raw_frame(&frame, &load->store, load->options->size * (self->packed ? self->n : 1));
        zmq_msg_send(&frame, self->push, i + 1 < frames ? ZMQ_SNDMORE : 0);
    }
    self->sent += self->n;
    self->sent_bytes += self->message_bytes;
}

/* One item may always be sent when none is unresolved. */
static bool may_send(const struct writer *self)
{
    return (self->sent + self->n <= self->allowed && self->sent_bytes + self->message_bytes <= self->allowed_bytes) ||
           (self->n == 1 && self->sent == self->resolved);
}

static void bye(struct load *load, const struct writers *all, struct writer *self)
{
    Replay__Bye body = REPLAY__BYE__INIT;
    body.session.data = self->session;
    body.session.len = sizeof self->session;
    body.last_number = self->number;
    Replay__Request request = load_request(UINT64_MAX);
    request.body_case = REPLAY__REQUEST__BODY_BYE;
    request.bye = &body;
    replay__reply__free_unpacked(load_ask(load, all->service, &request), NULL);
}

static void fill(struct load *load, const struct writers *all)
{
    struct writer *self = &all->list[0];
    while (self->sent < load->fill) {
        if (may_send(self))
            writer_send(load, self);
        else
            read_notices(load, all, true);
    }
    while (self->resolved < self->sent)
        read_notices(load, all, true);
    bye(load, all, self);
    load->tally->first_key = self->key_base + self->sent + 1 - load->fill;
    load->tally->n_keys = load->fill;
    tally_set_state(load->tally, TALLY_DONE);
}

/* How fast items are offered. Time that the process slept (it was paused) is not made up for. */
struct pace {
    double rate; /* items/s; 0: no limit */
    double owed; /* items that may be sent now */
    int64_t last_ns;
    bool held; /* the pace, and not the credit, has stopped the writer */
};

static bool pace_allows(struct pace *self, uint32_t n)
{
    if (self->rate <= 0)
        return true;
    int64_t now_ns = clock_ns();
    double most = fmax(self->rate * 0.02, n); /* a burst of 20 ms, and at least a message */
    self->owed += self->rate * (double)(now_ns - self->last_ns) * 1e-9;
    self->owed = fmin(self->owed, most);
    self->last_ns = now_ns;
    self->held = self->owed < n;
    if (!self->held)
        self->owed -= n;
    return !self->held;
}

/* Sends what the credit and the pace allow, up to LOOK_EVERY items. False: nothing. */
static bool writer_go(struct load *load, struct writer *self, struct pace *pace)
{
    uint32_t n = 0;
    pace->held = false;
    for (; n < LOOK_EVERY && may_send(self) && pace_allows(pace, self->n); n += self->n)
        writer_send(load, self);
    return n > 0;
}

static void show_frames(const struct load *load, const struct writer *self)
{
    struct raw_message *frames = &load->tally->ingest;
    uint64_t size = load->options->size;
    frames->size[0] = (uint32_t)self->head_size;
    frames->n = 1;
    for (uint32_t i = 0; i < (self->packed ? 1 : self->n) && frames->n < RAW_MOST_FRAMES; i++)
        frames->size[frames->n++] = (uint32_t)(size * (self->packed ? self->n : 1));
}

void load_insert(void *ctx)
{
    struct load *load = ctx;
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 65536);
    struct writers all;
    all.n = load->connections;
    all.list = calloc(all.n, sizeof *all.list);
    if (!all.list)
        load_fail(load, "no memory");
    all.service = load_dealer(load, context, all.n);
    for (uint32_t i = 0; i < all.n; i++)
        writer_open(load, &all, &all.list[i], context);
    show_frames(load, &all.list[0]);
    if (load->fill) {
        fill(load, &all);
        return;
    }
    tally_set_state(load->tally, TALLY_READY);
    struct pace pace = {.rate = load->options->rate};
    for (;;) {
        bool busy = false;
        for (uint32_t i = 0; i < all.n; i++)
            busy |= writer_go(load, &all.list[i], &pace);
        read_notices(load, &all, !busy && !pace.held);
        if (pace.held && !busy)
            usleep(200);
    }
}

/* ---- thin samplers and updaters: DEALER sockets with a fixed number of requests in flight ---- */

/* Different update requests, sent in turn. */
#define POOL 4096u

/* An encoded request, but for its id and perhaps its keys. */
struct request {
    uint8_t *frame;
    size_t size, keys_at;
};

struct asker {
    void *socket;
    uint64_t id;
    struct request sample;
    struct request *updates; /* POOL */
    uint32_t next_update;
};

static void make_sample(struct load *load, struct asker *self)
{
    Replay__Sample body = REPLAY__SAMPLE__INIT;
    body.table = (char[]){LOAD_TABLE};
    body.count = load->options->batch;
    Replay__Request request = load_request(1);
    request.body_case = REPLAY__REQUEST__BODY_SAMPLE;
    request.sample = &body;
    self->sample.frame = load_encode(&request, &self->sample.size);
    load->tally->request[0] = (struct raw_message){1, {(uint32_t)self->sample.size}};
}

/* Random keys of the table, and random priorities. */
static void make_updates(struct load *load, struct asker *self, uint32_t which)
{
    uint32_t n = load->options->batch;
    uint64_t *keys = calloc(n, 8);
    double *priorities = calloc(n, 8);
    struct rng rng;
    rng_seed(&rng, 7);
    self->updates = calloc(POOL, sizeof *self->updates);
    for (uint32_t p = 0; p < POOL; p++) {
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = load->first_key + rng_below(&rng, load->n_keys);
            priorities[i] = 0.01 + rng_unit(&rng);
        }
        Replay__Update body = REPLAY__UPDATE__INIT;
        body.table = (char[]){LOAD_TABLE};
        body.n_key = body.n_priority = n;
        body.key = keys;
        body.priority = priorities;
        Replay__Request request = load_request(1);
        request.body_case = REPLAY__REQUEST__BODY_UPDATE;
        request.update = &body;
        struct request *at = &self->updates[p];
        at->frame = load_encode(&request, &at->size);
        struct wire_request head;
        struct wire_keys ask;
        rp_error err;
        if (wire_read_request(at->frame, at->size, &head, &err) != RP_OK ||
            wire_read_keys(head.data, head.size, true, &ask, &err) != RP_OK)
            load_fail(load, "an update request could not be made");
        at->keys_at = (size_t)(ask.key.data - at->frame);
    }
    load->tally->request[which] = (struct raw_message){1, {(uint32_t)self->updates[0].size}};
    free(keys);
    free(priorities);
}

/* keys: put into the request; may be NULL. */
static void send_request(struct asker *self, const struct request *request, const void *keys, size_t keys_size)
{
    zmq_msg_t frame;
    zmq_msg_init_size(&frame, request->size);
    uint8_t *at = zmq_msg_data(&frame);
    memcpy(at, request->frame, request->size);
    uint64_t id = ++self->id;
    memcpy(at + ID_AT, &id, 8);
    if (keys)
        memcpy(at + request->keys_at, keys, keys_size);
    zmq_msg_send(&frame, self->socket, 0);
}

static const struct request *next_update(struct asker *self)
{
    return &self->updates[self->next_update++ % POOL];
}

/* Receives one reply with all its frames, whose sizes go to *sizes. The header stays in *head until it is closed. */
static void receive(struct load *load, struct asker *self, zmq_msg_t *head, struct wire_reply *reply,
                    struct raw_message *sizes)
{
    rp_error err;
    zmq_msg_init(head);
    if (zmq_msg_recv(head, self->socket, 0) < 0)
        load_fail(load, "no reply for 30 s");
    sizes->n = 1;
    sizes->size[0] = (uint32_t)zmq_msg_size(head);
    if (wire_read_reply(zmq_msg_data(head), zmq_msg_size(head), reply, &err) != RP_OK)
        load_fail(load, "a reply could not be decoded");
    if (reply->status)
        load_fail(load, "the broker says: %.*s", (int)reply->text.size, reply->text.data);
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    for (bool more = zmq_msg_more(head); more; more = zmq_msg_more(&frame)) {
        if (zmq_msg_recv(&frame, self->socket, 0) < 0)
            load_fail(load, "a reply is not whole");
        if (sizes->n < RAW_MOST_FRAMES)
            sizes->size[sizes->n++] = (uint32_t)zmq_msg_size(&frame);
    }
    zmq_msg_close(&frame);
}

/* The first reply shows the frames, and is checked. */
static void show_reply(struct load *load, uint32_t which, const struct wire_reply *reply,
                       const struct raw_message *sizes)
{
    struct wire_sampled sampled;
    rp_error err;
    if (reply->body == 19 && (wire_read_sampled(reply->data, reply->size, &sampled, &err) != RP_OK ||
                              sampled.n_items != load->options->batch))
        load_fail(load, "a sample reply is not what was asked for");
    load->tally->reply[which] = *sizes;
}

/* Returns the time, and records the interval since the previous reply. */
static int64_t note_gap(struct tally *tally, int64_t last_ns)
{
    int64_t now_ns = clock_ns();
    uint64_t gap = (uint64_t)(now_ns - last_ns);
    if (gap > atomic_load_explicit(&tally->longest_ns, memory_order_relaxed))
        atomic_store_explicit(&tally->longest_ns, gap, memory_order_relaxed);
    return now_ns;
}

/* Samples, updates, or both: then new priorities follow each batch. */
static void load_requests(void *ctx)
{
    struct load *load = ctx;
    bool both = load->work == WORK_BOTH, seen[2] = {false, !both};
    struct asker self = {.socket = load_dealer(load, zmq_ctx_new(), load->connections)};
    struct raw_message sizes;
    if (load->work != WORK_UPDATE)
        make_sample(load, &self);
    if (load->work != WORK_SAMPLE)
        make_updates(load, &self, both);
    int64_t last_ns = clock_ns();
    for (uint32_t i = 0; i < options_in_flight(load->options, load->work) * load->connections; i++)
        send_request(&self, load->work == WORK_UPDATE ? next_update(&self) : &self.sample, NULL, 0);
    for (;;) {
        zmq_msg_t head;
        struct wire_reply reply;
        struct wire_sampled sampled;
        rp_error err;
        receive(load, &self, &head, &reply, &sizes);
        uint32_t which = both && reply.body != 19;
        if (!seen[which]) {
            show_reply(load, which, &reply, &sizes);
            seen[which] = true;
            if (seen[0] && seen[1])
                tally_set_state(load->tally, TALLY_READY);
        }
        if (both && which == 0) {
            if (wire_read_sampled(reply.data, reply.size, &sampled, &err) != RP_OK)
                load_fail(load, "a sample reply could not be decoded: %s", err.text);
            send_request(&self, next_update(&self), sampled.key.data, (size_t)sampled.n_items * 8);
        }
        zmq_msg_close(&head);
        if (which == 0) {
            tally_add(load->tally, load->options->batch);
            last_ns = note_gap(load->tally, last_ns);
            send_request(&self, load->work == WORK_UPDATE ? next_update(&self) : &self.sample, NULL, 0);
        } else {
            atomic_fetch_add_explicit(&load->tally->updates, load->options->batch, memory_order_relaxed);
        }
    }
}

/* ---- the same loads through libreplay: what a program that uses the library gets ---- */

/* Items between two reads of the writer's totals. */
#define TOTALS_EVERY 1000u
/* Steps of an episode, with shards: an episode goes to one of them. */
#define EPISODE_STEPS 200u

rp_writer *load_writer(struct load *load, rp_client *client)
{
    rp_column column = {"x", RP_DTYPE_UINT8, RP_CODEC_RAW, 1, {(uint32_t)load->options->size}};
    rp_writer_options options = {.struct_size = sizeof options, .batch_items = load->options->per_message};
    return load_got(load, rp_writer_new(client, &column, 1, &options, 30000, &load->err));
}

void load_items(struct load *load, rp_writer *writer, uint32_t n, struct rng *rng)
{
    struct raw_store *store = &load->store;
    for (uint64_t size = load->options->size; n > 0; n--, store->at += size) {
        if (store->at + size > store->size)
            store->at = 0;
        const void *row = store->data + store->at;
        load_ok(load, rp_writer_append(writer, &row, -1, &load->err));
        load_ok(load, rp_writer_item_last(writer, LOAD_TABLE, 0.01 + rng_unit(rng), 1, -1, NULL, &load->err));
    }
}

/* Writes episodes, or groups of which each is an episode, in turn with each connection. */
static void load_library_insert(void *ctx)
{
    struct load *load = ctx;
    uint32_t k = load->connections, group = load->options->group_items;
    bool episodes = group > 0 || load->options->shards > 1;
    uint32_t n = group > 0 ? group : episodes ? EPISODE_STEPS : TOTALS_EVERY / k + 1;
    rp_writer **writers = calloc(k, sizeof(*writers));
    uint64_t *seen = calloc(k, sizeof *seen);
    for (uint32_t i = 0; i < k; i++)
        writers[i] = load_writer(load, load_client(load));
    struct rng rng;
    rng_seed(&rng, 1);
    tally_set_state(load->tally, TALLY_READY);
    uint64_t number = (uint64_t)getpid() << 32;
    for (uint32_t i = 0;; i = (i + 1) % k) {
        if (load->options->groups)
            rp_writer_set_group(writers[i], number++);
        load_items(load, writers[i], n, &rng);
        if (episodes)
            load_ok(load, rp_writer_end_episode(writers[i], RP_END_GO, -1, &load->err));
        rp_writer_info info = {.struct_size = sizeof info};
        load_ok(load, rp_writer_get_info(writers[i], &info, &load->err));
        if (info.rejected)
            load_fail(load, "libreplay: items were rejected");
        tally_add(load->tally, info.accepted - seen[i]);
        seen[i] = info.accepted;
    }
}

rp_sampler *load_sampler(struct load *load, rp_client *client)
{
    const struct options *given = load->options;
    rp_sampler_options options = {.struct_size = sizeof options, .batch_size = given->batch, .beta = 0.4};
    options.in_flight = options_in_flight(given, load->work);
    options.on_demand = given->on_demand;
    options.lease_ms = given->lease_ms;
    return load_got(load, rp_sampler_new(client, LOAD_TABLE, &options, &load->err));
}

static rp_updater *open_updater(struct load *load, rp_client *client)
{
    rp_updater_options options = {.struct_size = sizeof options,
                                  .batch = load->options->batch,
                                  .in_flight =
                                      load->work == WORK_UPDATE ? options_in_flight(load->options, load->work) : 0,
                                  .acknowledge = load->options->lease_ms > 0};
    return load_got(load, rp_updater_new(client, LOAD_TABLE, &options, &load->err));
}

/* Samples, updates random keys, or both: then the keys of each batch get new priorities, or with leases are acknowledged. Updates count
 * when they are handed to the updater: at most in_flight requests are not answered yet. */
static void load_library_requests(void *ctx)
{
    struct load *load = ctx;
    bool samples = load->work != WORK_UPDATE, leases = load->options->lease_ms > 0;
    bool updates = load->work != WORK_SAMPLE || leases;
    uint32_t k = load->connections, n = load->options->batch;
    rp_sampler **samplers = calloc(k, sizeof(*samplers));
    rp_updater **updaters = calloc(k, sizeof(*updaters));
    uint64_t *keys = calloc(n, sizeof *keys);
    double *priorities = calloc(n, sizeof *priorities);
    struct rng rng;
    rng_seed(&rng, 7);
    for (uint32_t i = 0; i < k; i++) {
        rp_client *client = load_client(load);
        samplers[i] = samples ? load_sampler(load, client) : NULL;
        updaters[i] = updates ? open_updater(load, client) : NULL;
    }
    tally_set_state(load->tally, TALLY_READY);
    for (uint32_t i = 0;; i = (i + 1) % k) {
        rp_batch *batch = NULL;
        rp_batch_arrays arrays = {.struct_size = sizeof arrays, .n = n, .key = keys};
        if (samples) {
            load_ok(load, rp_sampler_next(samplers[i], &batch, -1, &load->err));
            rp_batch_get_arrays(batch, &arrays);
        }
        for (uint32_t j = 0; !samples && j < n; j++)
            keys[j] = load->first_key + rng_below(&rng, load->n_keys);
        for (uint32_t j = 0; updates && !leases && j < arrays.n; j++)
            priorities[j] = 0.01 + rng_unit(&rng);
        if (updates)
            load_ok(load, rp_updater_add(updaters[i], arrays.key, leases ? NULL : priorities, arrays.n, -1, NULL,
                                         &load->err));
        tally_add(load->tally, arrays.n);
        if (load->work == WORK_BOTH)
            atomic_fetch_add_explicit(&load->tally->updates, arrays.n, memory_order_relaxed);
        rp_batch_release(&batch);
    }
}

child_job *load_job_of(enum work work, bool library)
{
    if (work == WORK_INSERT)
        return library ? load_library_insert : load_insert;
    return library ? load_library_requests : load_requests;
}
