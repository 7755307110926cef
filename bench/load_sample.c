/* The thin sampler and updater: DEALER sockets with a fixed number of requests in flight. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "proto/base/clock.h"
#include "proto/base/rng.h"
#include "proto/wire/wire.h"

/* Different update requests, sent in turn. */
#define POOL 4096u

/* An encoded request, but for its id and perhaps its keys. */
struct request {
    uint8_t *frame;
    size_t size, id_at, keys_at;
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
    self->sample.frame = load_encode(&request, &self->sample.size, &self->sample.id_at);
    load->lane->request[0] = (struct raw_message){1, {(uint32_t)self->sample.size}};
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
        at->frame = load_encode(&request, &at->size, &at->id_at);
        struct wire_request head;
        struct wire_keys ask;
        rp_error err;
        if (wire_read_request(at->frame, at->size, &head, &err) != RP_OK ||
            wire_read_keys(head.data, head.size, true, &ask, &err) != RP_OK)
            load_fail(load, "an update request could not be made");
        at->keys_at = (size_t)(ask.key.data - at->frame);
    }
    load->lane->request[which] = (struct raw_message){1, {(uint32_t)self->updates[0].size}};
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
    memcpy(at + request->id_at, &id, 8);
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

static void open_asker(struct load *load, struct asker *self)
{
    *self = (struct asker){0};
    self->socket = load_dealer(load, zmq_ctx_new(), load->connections);
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
    load->lane->reply[which] = *sizes;
}

/* Returns the time, and records the interval since the previous reply. */
static int64_t note_gap(struct lane *lane, int64_t last_ns)
{
    struct clock clock = clock_system();
    int64_t now_ns = clock_now(&clock);
    uint64_t gap = (uint64_t)(now_ns - last_ns);
    if (gap > atomic_load_explicit(&lane->longest_ns, memory_order_relaxed))
        atomic_store_explicit(&lane->longest_ns, gap, memory_order_relaxed);
    return now_ns;
}

static void ask_for_ever(struct load *load, struct asker *self, bool samples)
{
    uint32_t batch = load->options->batch;
    struct raw_message sizes;
    struct clock clock = clock_system();
    int64_t last_ns = clock_now(&clock);
    for (uint32_t i = 0; i < load->options->in_flight * load->connections; i++)
        send_request(self, samples ? &self->sample : next_update(self), NULL, 0);
    for (bool first = true;; first = false) {
        zmq_msg_t head;
        struct wire_reply reply;
        receive(load, self, &head, &reply, &sizes);
        if (first) {
            show_reply(load, 0, &reply, &sizes);
            lane_set_state(load->lane, LANE_READY);
        }
        zmq_msg_close(&head);
        lane_add(load->lane, batch);
        last_ns = note_gap(load->lane, last_ns);
        send_request(self, samples ? &self->sample : next_update(self), NULL, 0);
    }
}

void load_sample(void *ctx)
{
    struct load *load = ctx;
    struct asker self;
    open_asker(load, &self);
    make_sample(load, &self);
    ask_for_ever(load, &self, true);
}

void load_update(void *ctx)
{
    struct load *load = ctx;
    struct asker self;
    open_asker(load, &self);
    make_updates(load, &self, 0);
    ask_for_ever(load, &self, false);
}

void load_sample_update(void *ctx)
{
    struct load *load = ctx;
    struct asker self;
    open_asker(load, &self);
    make_sample(load, &self);
    make_updates(load, &self, 1);
    struct raw_message sizes;
    for (uint32_t i = 0; i < load->options->in_flight * load->connections; i++)
        send_request(&self, &self.sample, NULL, 0);
    for (bool seen[2] = {false, false};;) {
        zmq_msg_t head;
        struct wire_reply reply;
        receive(load, &self, &head, &reply, &sizes);
        uint32_t which = reply.body == 19 ? 0 : 1;
        if (!seen[which]) {
            show_reply(load, which, &reply, &sizes);
            seen[which] = true;
            if (seen[0] && seen[1])
                lane_set_state(load->lane, LANE_READY);
        }
        if (which == 0) {
            struct wire_sampled sampled;
            rp_error err;
            if (wire_read_sampled(reply.data, reply.size, &sampled, &err) != RP_OK)
                load_fail(load, "a sample reply could not be decoded: %s", err.text);
            send_request(&self, next_update(&self), sampled.key.data, (size_t)sampled.n_items * 8);
            send_request(&self, &self.sample, NULL, 0);
            lane_add(load->lane, load->options->batch);
        } else {
            atomic_fetch_add_explicit(&load->lane->updates, load->options->batch, memory_order_relaxed);
        }
        zmq_msg_close(&head);
    }
}
