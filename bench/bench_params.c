/* Large parameters: subscribers that fetch a value again and again, part by part, against libzmq that moves parts of the same size with
 * as many in flight; and the same value mapped on this host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "proto/wire/wire.h"
#include "replay.pb-c.h"
#include "replay/replay.h"

#define SUBSCRIBERS 8u
#define PART_BYTES (512u << 10) /* of libreplay, which has 32 of them in flight */
#define IN_FLIGHT 32u
#define PARTS 1908u /* 1 GB */
#define QUICK_PARTS 64u
#define WAIT_MS 60000
#define LOOK_MS 20
#define VERSION_US 20000
#define MAPPINGS 100u
#define GOAL 0.7

static rp_client *connect_to(struct load *self, bool shared)
{
    setenv("REPLAY_SHM", shared ? "1" : "0", 1);
    return load_client(self);
}

/* Puts a value of random bytes. */
static void put_job(void *ctx)
{
    struct load *self = ctx;
    rp_client *client = connect_to(self, false);
    double start = children_now();
    load_ok(self, rp_params_put(client, "policy", self->store.data, self->fill, WAIT_MS, NULL, &self->err));
    self->tally->value[0] = (uint64_t)((children_now() - start) * 1e9);
    tally_set_state(self->tally, TALLY_DONE);
}

/* Asks the broker, without libreplay, for the number that names the value, and for further versions of the value, without end: so
 * subscribers have always something new to fetch. */
static void version_job(void *ctx)
{
    struct load *self = ctx;
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    curve_connect(socket);
    zmq_connect(socket, self->service);
    Replay__ParamsPut put = REPLAY__PARAMS_PUT__INIT;
    Replay__ParamsGet get = REPLAY__PARAMS_GET__INIT;
    Replay__Request request = REPLAY__REQUEST__INIT;
    put.name = (char *)"policy";
    get.name = &put.name;
    get.n_name = 1;
    get.parts = true;
    request.version = WIRE_VERSION;
    request.client = 1;
    request.body_case = REPLAY__REQUEST__BODY_PARAMS_GET;
    request.params_get = &get;
    for (request.id = 1;; request.id++) {
        uint8_t head[256];
        zmq_msg_t frame;
        bool puts = request.body_case == REPLAY__REQUEST__BODY_PARAMS_PUT;
        zmq_send(socket, head, replay__request__pack(&request, head), puts ? ZMQ_SNDMORE : 0);
        if (puts)
            zmq_send(socket, self->store.data, PART_BYTES, 0);
        zmq_msg_init(&frame);
        zmq_msg_recv(&frame, socket, 0);
        Replay__Reply *reply = replay__reply__unpack(NULL, zmq_msg_size(&frame), zmq_msg_data(&frame));
        zmq_msg_close(&frame);
        if (!reply || reply->status || !reply->params || !reply->params->n_slots)
            load_fail(self, "no further version: %s", reply ? reply->text : "damaged reply");
        const Replay__SlotInfo *slot = reply->params->slots[0];
        if (slot->parts) {
            put.put = slot->parts->put;
            put.bytes = slot->parts->bytes;
            put.part_bytes = slot->parts->part_bytes;
        }
        put.version = put.above = slot->version;
        replay__reply__free_unpacked(reply, NULL);
        request.body_case = REPLAY__REQUEST__BODY_PARAMS_PUT;
        request.params_put = &put;
        tally_set_state(self->tally, TALLY_READY);
        usleep(VERSION_US);
    }
}

/* Fetches every version, and counts the parts. */
static void fetch_job(void *ctx)
{
    struct load *self = ctx;
    uint64_t counted = 0, values = 0;
    rp_client *client = connect_to(self, false);
    rp_subscriber *subscriber = load_got(self, rp_subscriber_new(client, "policy", 0, &self->err));
    for (;;) {
        rp_params *params = NULL;
        rp_subscriber_stats stats = {.struct_size = sizeof stats};
        rp_status status = rp_subscriber_take(subscriber, LOOK_MS, &params, &self->err);
        rp_subscriber_get_stats(subscriber, &stats);
        tally_add(self->tally, stats.parts - counted);
        counted = stats.parts;
        load_ok(self, status == RP_DEADLINE_EXCEEDED ? RP_OK : status);
        if (!params)
            continue;
        uint64_t last = self->fill - PART_BYTES;
        if (memcmp((const uint8_t *)rp_params_slot(params)->data + last, self->store.data + last, PART_BYTES) != 0)
            load_fail(self, "a value came with other bytes");
        rp_params_release(&params);
        if (++values == 2) /* one with the caller, one on its way: from here on, no page is new */
            tally_set_state(self->tally, TALLY_READY);
    }
}

/* Maps the value some times, and measures one. */
static void map_job(void *ctx)
{
    struct load *self = ctx;
    rp_client *client = connect_to(self, true);
    double start = children_now();
    for (uint32_t i = 0; i < MAPPINGS; i++) {
        rp_subscriber_stats stats = {.struct_size = sizeof stats};
        rp_params *params = NULL;
        rp_subscriber *subscriber = load_got(self, rp_subscriber_new(client, "policy", 0, &self->err));
        load_ok(self, rp_subscriber_take(subscriber, WAIT_MS, &params, &self->err));
        rp_subscriber_get_stats(subscriber, &stats);
        if (stats.parts)
            load_fail(self, "the value was not mapped: %llu parts came", (unsigned long long)stats.parts);
        rp_params_release(&params);
        rp_subscriber_destroy(&subscriber);
    }
    self->tally->value[0] = (uint64_t)((children_now() - start) * 1e9 / MAPPINGS);
    tally_set_state(self->tally, TALLY_DONE);
}

/* Runs a job to its end. Returns the seconds that it says; 0: an error was printed. */
static double seconds_of(child_job *job, struct load *load)
{
    const struct tally *tally = child_run(job, load, 300);
    return tally ? (double)tally->value[0] * 1e-9 : 0;
}

static bool add_subscribers(struct load *load, struct party *party)
{
    bool ok = true;
    for (uint32_t i = 0; i < SUBSCRIBERS + 1 && ok; i++)
        ok = run_add(party, GROUP_ASK, i < SUBSCRIBERS ? fetch_job : version_job, load, 0);
    for (uint32_t i = 0; i < party->n_members && ok; i++)
        ok = children_await(party->members[i].tally, TALLY_READY, 120);
    return ok;
}

bool command_params(struct options *given)
{
    static struct party ours, like, raw;
    struct options options = *given;
    options.size = PART_BYTES;
    options.items = given->quick ? QUICK_PARTS : given->items ? given->items : PARTS;
    options.clients = options.processes = SUBSCRIBERS;
    options.in_flight = IN_FLIGHT;
    options.batch = options.per_message = 1;
    options.lend = options.lend_set = true;
    bool ok = run_broker(&options, options.items, 0, &ours);
    struct load load;
    ok = load_init(&load, &options, &ours) && ok;
    load.fill = options.items * options.size;
    if (load.fill > load.store.size)
        load.fill = load.store.size;
    double put = ok ? seconds_of(put_job, &load) : 0;
    double map = put > 0 ? seconds_of(map_job, &load) : 0;
    ok = map > 0 && add_subscribers(&load, &ours);
    ours.frames.request[0] = (struct raw_message){1, {40}};
    ours.frames.reply[0] = (struct raw_message){2, {100, PART_BYTES}};
    like = ours;
    like.n_members = SUBSCRIBERS;
    ok = ok && run_raw(&options, &like, &raw);
    const struct phase phases[2] = {{&ours, GROUP_ASK, false}, {&raw, GROUP_ASK, false}};
    struct row row = {.what = "fetch", .other = "raw", .goal = GOAL, .memory_per_item = ours.memory_per_item};
    ok = report_pair(ok, &options, row, phases, true);
    if (!ok)
        return false;
    report_value(given, "put, MB/s", (double)load.fill / put * 1e-6, 0, "MB/s");
    report_value(given, "map, ms", map * 1e3, 0, "ms");
    return true;
}
