/* The thin writers of a process: one session and one PUSH socket each. They keep nothing to be sent again: a lost
 * message ends the run. Their notices come through one DEALER with as many connections, which HELLOs go out on in
 * turn. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "proto/base/clock.h"
#include "proto/base/rng.h"
#include "proto/wire/pb.h"
#include "proto/wire/wire.h"

/* Chunks from this size on travel as frames of their own, which the broker keeps as they came. */
#define OWN_FRAME_BYTES 32768u
/* Items between two checks for a notice. */
#define LOOK_EVERY 400u
#define ORDINALS 8192u

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
    struct writer *by_ordinal[ORDINALS]; /* at ordinal % ORDINALS; a collision is searched for in the list */
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
        lane_add(load->lane, credit->resolved[i] - self->resolved);
        self->resolved = credit->resolved[i];
        self->allowed = credit->allowed[i];
    }
    self->allowed_bytes = credit->allowed_bytes;
}

static struct writer *find_writer(const struct writers *self, uint32_t ordinal)
{
    struct writer *writer = self->by_ordinal[ordinal % ORDINALS];
    for (uint32_t i = 0; i < self->n && (!writer || writer->ordinal != ordinal); i++)
        writer = &self->list[i];
    return writer && writer->ordinal == ordinal ? writer : NULL;
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
    all->by_ordinal[self->ordinal % ORDINALS] = self;
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
    struct pb_writer layouts = {0}, frame = {0};
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
    pb_writer_fini(&layouts);
    pb_writer_fini(&frame);
}

static size_t place(const struct writer *self, const struct pb_array *array)
{
    return (size_t)(array->data - self->head);
}

/* Encodes the header of a message of n items, each with a chunk of one step. */
static void encode_head(struct writer *self, uint32_t size, double heavier)
{
    uint32_t n = self->n, zero = 0;
    uint64_t *numbers = calloc(n, 8), first = 1;
    uint32_t *ones = calloc(n, 4), *sizes = calloc(n, 4);
    uint8_t *codecs = calloc(n, 1);
    double *priorities = calloc(n, 8);
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
    struct pb_writer frame = {0};
    wire_write_ingest(&frame, &out);
    self->head = frame.failed ? NULL : frame.data;
    self->head_size = frame.size;
    free(numbers);
    free(ones);
    free(sizes);
    free(codecs);
    free(priorities);
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
    load->lane->first_key = self->key_base + self->sent + 1 - load->fill;
    load->lane->n_keys = load->fill;
    lane_set_state(load->lane, LANE_DONE);
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
    struct clock clock = clock_system();
    int64_t now_ns = clock_now(&clock);
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
    struct raw_message *frames = &load->lane->ingest;
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
    static struct writers all;
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
    lane_set_state(load->lane, LANE_READY);
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
