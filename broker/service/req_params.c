/* Puts and gets of parameters, whole or part by part (store/params.h), and counters. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/entries.h"
#include "broker/peer/peers.h"
#include "broker/service/service.h"
#include "proto/base/error.h"
#include "proto/base/memfile.h"
#include "proto/base/utf8.h"
#include "proto/wire/pb.h"

/* Waiting requests that are looked at in one slice after a put: each takes about a microsecond. */
#define WAKE_SLICE 256u
/* Most slots of one request. */
#define GET_SLOTS 256u

/* A params_get that waits. */
struct params_wait {
    struct wait wait;
    LIST_ENTRY(params_wait) link;
    Replay__ParamsGet *ask;
};

static rp_status name_check(const char *name, const char *what, rp_error *err)
{
    size_t size = strlen(name);
    if (size == 0 || size > PARAMS_NAME_MOST || !utf8_valid(name, size))
        return err_set(err, RP_INVALID_ARGUMENT, "a %s needs a name of 1 to %u bytes of UTF-8", what, PARAMS_NAME_MOST);
    return RP_OK;
}

static void slot_info(const struct service *service, struct param_slot *slot, Replay__SlotInfo *out)
{
    replay__slot_info__init(out);
    out->name = slot->name;
    out->version = slot->version;
    out->bytes = param_slot_bytes(slot);
    out->age_ns = (uint64_t)(service->loop->now_ns - slot->put_ns);
}

/* How a value is cut, and where it is in memory. */
struct parts_info {
    Replay__SlotParts parts;
    Replay__Arena memory;
};

static Replay__SlotParts *parts_info(const struct param_value *value, uint32_t part, struct parts_info *out)
{
    struct memfile_name file;
    replay__slot_parts__init(&out->parts);
    out->parts.put = value->shape.put;
    out->parts.bytes = value->shape.bytes;
    out->parts.bf16_bytes = value->shape.bf16_bytes;
    out->parts.part_bytes = value->shape.part_bytes;
    out->parts.part = part;
    if (param_value_file(value, &file)) {
        replay__arena__init(&out->memory);
        out->memory.pid = file.pid;
        out->memory.fd = file.fd;
        out->memory.size = file.size;
        out->memory.nonce = file.nonce;
        out->parts.memory = &out->memory;
    }
    return &out->parts;
}

/* Refuses to send a value in parts to a client that would take a part for the whole. */
static void get_refuse(struct service *service, const struct envelope *to, uint64_t id, const struct param_slot *slot)
{
    char text[256];
    snprintf(text, sizeof text,
             "slot '%.64s' has %" PRIu64 " bytes in %u parts: set `parts`, and ask for one at a time (PROTOCOL.md, 14)",
             slot->name, param_slot_bytes(slot), slot->value->n_parts);
    request_fail(service->peers, to, id, RP_FAILED_PRECONDITION, text);
}

/* Sends the slots whose version is not the one that the client has. False: there is no such slot, and nothing was sent unless
 * even_empty. */
static bool get_answer(struct service *service, const struct envelope *to, uint64_t id, const Replay__ParamsGet *ask,
                       bool even_empty)
{
    Replay__SlotInfo infos[GET_SLOTS], *list[GET_SLOTS];
    struct parts_info parts[GET_SLOTS];
    zmq_msg_t payload[GET_SLOTS];
    uint32_t n = 0, frames = 0;
    for (size_t i = 0; i < ask->n_name; i++) {
        struct param_slot *slot = params_find(service->params, ask->name[i]);
        uint64_t have = i < ask->n_have ? ask->have[i] : 0;
        if (!slot || slot->version == 0 || slot->version == have)
            continue;
        if (slot->value->shape.put && !ask->parts && !ask->head) {
            frames_close(payload, frames);
            get_refuse(service, to, id, slot);
            return true;
        }
        slot_info(service, slot, &infos[n]);
        if (slot->value->shape.put) {
            param_value_named(slot->value, service->loop->now_ns);
            infos[n].parts = parts_info(slot->value, 0, &parts[n]);
        } else if (!ask->head) {
            zmq_msg_init(&payload[frames]);
            zmq_msg_copy(&payload[frames++], &slot->value->parts[0]);
        }
        list[n] = &infos[n];
        n++;
    }
    if (n || even_empty) {
        Replay__ParamsReply reply = REPLAY__PARAMS_REPLY__INIT;
        reply.n_slots = n;
        reply.slots = list;
        request_send(service->peers, to, id,
                     &(struct answer){RP_OK, NULL, REPLAY__REPLY__BODY_PARAMS, &reply.base, payload, frames});
    }
    return n > 0;
}

static void get_end(struct wait *wait)
{
    struct service *service = wait->ctx;
    struct params_wait *self = (struct params_wait *)wait;
    if (service->params_waits.wake_next == self)
        service->params_waits.wake_next = LIST_NEXT(self, link);
    wait_end(&self->wait);
    LIST_REMOVE(self, link);
    unpack_free(&self->ask->base);
    free(self);
}

static void get_explain(const struct wait *wait, struct wait_text *out)
{
    const struct service *service = wait->ctx;
    const struct params_wait *self = (const struct params_wait *)wait;
    uint64_t have = self->ask->n_have ? self->ask->have[0] : 0;
    out->count = self->ask->n_name;
    uint64_t version = params_version(service->params, self->ask->name[0]);
    const char *others = self->ask->n_name > 1 ? " and others" : "";
    if (!version && !have)
        snprintf(out->text, sizeof out->text, "parameters '%.64s'%s: nothing was published yet", self->ask->name[0],
                 others);
    else
        snprintf(out->text, sizeof out->text, "parameters '%.64s'%s: needs another version than %llu, there is %llu",
                 self->ask->name[0], others, (unsigned long long)have, (unsigned long long)version);
}

static const struct wait_ops get_ops = {"params", get_explain, get_end, NULL, NULL};

/* True if a slot has another version than the client. */
static bool get_is_ready(const struct params *params, const Replay__ParamsGet *ask)
{
    for (size_t i = 0; i < ask->n_name; i++) {
        uint64_t version = params_version(params, ask->name[i]);
        if (version && version != (i < ask->n_have ? ask->have[i] : 0))
            return true;
    }
    return false;
}

/* Answers a slice of the waiting requests. A request that begins to wait meanwhile has seen the newest versions. */
static bool wake_slice(struct service *service)
{
    struct params_waits *waits = &service->params_waits;
    for (uint32_t i = 0; i < WAKE_SLICE; i++) {
        if (!waits->wake_next && waits->wake_again) {
            waits->wake_again = false;
            waits->wake_next = LIST_FIRST(&waits->list);
        }
        struct params_wait *wait = waits->wake_next;
        if (!wait)
            return false;
        waits->wake_next = LIST_NEXT(wait, link);
        if (get_is_ready(service->params, wait->ask) &&
            get_answer(service, &wait->wait.to, wait->wait.id, wait->ask, false))
            get_end(&wait->wait);
    }
    return waits->wake_next || waits->wake_again;
}

static bool wake_step(struct chore *chore)
{
    struct params_waits *waits = (struct params_waits *)(void *)((char *)chore - offsetof(struct params_waits, waking));
    struct service *service = (struct service *)(void *)((char *)waits - offsetof(struct service, params_waits));
    waits->is_waking = wake_slice(service);
    return waits->is_waking;
}

/* After a put: answers a few waiting requests at once and many in slices, so that samplers and writers do not wait for all
 * of them. */
static void wake_all(struct service *service)
{
    struct params_waits *waits = &service->params_waits;
    waits->wake_again = true;
    if (waits->is_waking || !wake_slice(service))
        return;
    waits->is_waking = true;
    waits->waking.step = wake_step;
    chores_add(&service->loop->chores, &waits->waking);
}

/* Largest version that a client may name: the next ones must fit, too. */
#define VERSION_MOST (UINT64_MAX / 2)

static rp_status put_check(const struct request *request, const Replay__ParamsPut *ask, rp_error *err)
{
    RP_TRY(name_check(ask->name, "parameter slot", err));
    if (request->n_payload != 1)
        return err_set(err, RP_INVALID_ARGUMENT, "parameters come as one frame after the header, not %u",
                       request->n_payload);
    if (ask->version > VERSION_MOST || ask->above > VERSION_MOST)
        return err_set(err, RP_INVALID_ARGUMENT, "a version is at most %" PRIu64, VERSION_MOST);
    return RP_OK;
}

/* With both numbers a put gives its own block, which may have been replaced since, a higher version. */
static rp_status put_check_own(const struct params *params, const Replay__ParamsPut *ask, rp_error *err)
{
    uint64_t version = params_version(params, ask->name);
    if (!ask->version || !ask->above || version == ask->version)
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "slot '%.64s' has version %" PRIu64 ": that of version %" PRIu64 " was replaced", ask->name, version,
                   ask->version);
}

/* Returns the version that a put makes; the slot's present one if the put is not newer. */
static uint64_t put_version(const struct param_slot *slot, const Replay__ParamsPut *ask)
{
    if (ask->version && !ask->above)
        return ask->version > slot->version ? ask->version : slot->version;
    return (ask->above > slot->version ? ask->above : slot->version) + 1;
}

/* Makes room for a value of so many bytes. The one that it replaces (slot: NULL: none) does not count, unless it may be being read: then
 * it stays for a while. */
static rp_status params_make_room(struct service *service, const struct param_slot *slot, uint64_t bytes, rp_error *err)
{
    struct params *params = service->params;
    bool held = slot && slot->value->shape.put && slot->value->used_ns + PARAMS_HOLD_NS > service->loop->now_ns;
    uint64_t before = slot ? param_shape_bytes(&slot->value->shape) : 0, less = held ? 0 : before;
    uint64_t most = (uint64_t)service->config->memory_limit / 4;
    uint64_t stays = params->bytes - less - params->old_bytes - params->staged_bytes; /* what nobody can free */
    while (params->bytes - less + bytes > most && stays + bytes <= most && params_yield(params, service->loop))
        ;
    if (params->bytes - less + bytes <= most)
        return RP_OK;
    if (params->bytes - before - params->old_bytes + bytes <= most)
        return err_set(err, RP_UNAVAILABLE,
                       "parameters wait for readers: versions that are being read take %" PRIu64 " of the %" PRIu64
                       " bytes that parameters may have, a quarter of memory_limit, and the next one needs %" PRIu64,
                       params->old_bytes + before - less, most, bytes);
    return err_set(err, RP_RESOURCE_EXHAUSTED,
                   "parameters may take %" PRIu64 " bytes, a quarter of %smemory_limit; with these %" PRIu64
                   " bytes there would be %" PRIu64,
                   most, config_shards(service->config) > 1 ? "a shard's part of " : "", bytes,
                   params->bytes - less + bytes);
}

static rp_status find_room(const struct service *service, const char *name, rp_error *err)
{
    const struct params *params = service->params;
    if (params->n_slots == PARAMS_SLOTS_MOST && !params_find(params, name))
        return err_set(err, RP_RESOURCE_EXHAUSTED, "no room for a further parameter slot: there are %u",
                       params->n_slots);
    return RP_OK;
}

/* Answers with one slot, and n frames. */
static void slot_reply(struct service *service, struct request *request, Replay__SlotInfo *info, zmq_msg_t *payload,
                       uint32_t n)
{
    Replay__ParamsReply reply = REPLAY__PARAMS_REPLY__INIT;
    reply.n_slots = 1;
    reply.slots = &info;
    request_reply(service->peers, request,
                  &(struct answer){RP_OK, NULL, REPLAY__REPLY__BODY_PARAMS, &reply.base, payload, n});
}

/* Answers a put with the slot's version. */
static void put_answer(struct service *service, struct request *request, struct param_slot *slot)
{
    Replay__SlotInfo info;
    slot_info(service, slot, &info);
    slot_reply(service, request, &info, NULL, 0);
}

/* Tells everybody of a slot's new version. The put and its reply are in one record, or a retry would put twice. A large value ends its
 * record. */
static void put_done(struct service *service, struct request *request, struct param_slot *slot)
{
    if (service->loop->effects)
        service->loop->effects->begin(service->loop->record);
    put_answer(service, request, slot);
    tables_moved(service->tables, slot); /* in the same record, or a version that was told might give no credit */
    EFFECT(service->loop, slot, slot);
    sockets_announce(service->peers, "params %s %llu", slot->name, (unsigned long long)slot->version);
    wake_all(service);
}

/* Finds the stage that a part is for, or makes one. NULL with err set. */
static struct param_stage *put_stage(struct service *service, const Replay__ParamsPut *ask,
                                     const struct param_shape *shape, rp_error *err)
{
    struct params *params = service->params;
    struct param_stage *stage = params_find_stage(params, ask->name, shape->put);
    if (stage && memcmp(&stage->value->shape, shape, sizeof *shape) != 0)
        return err_null(err, RP_INVALID_ARGUMENT,
                        "other parts of this value of slot '%.64s' say that it has %" PRIu64 " and %" PRIu64
                        " bytes in parts of %" PRIu64,
                        ask->name, stage->value->shape.bytes, stage->value->shape.bf16_bytes,
                        stage->value->shape.part_bytes);
    const struct param_slot *slot = params_find(params, ask->name);
    if (stage || find_room(service, ask->name, err) != RP_OK ||
        params_make_room(service, slot, param_shape_bytes(shape), err) != RP_OK)
        return stage;
    stage = params_add_stage(params, ask->name, shape, service->loop->now_ns);
    if (!stage)
        err_set(err, RP_RESOURCE_EXHAUSTED, "%u values are being put part by part already: try again later",
                PARAMS_STAGES_MOST);
    return stage;
}

/* A part of a large value: see store/params.h. */
static rp_status put_part(struct service *service, struct request *request, const Replay__ParamsPut *ask, rp_error *err)
{
    struct params *params = service->params;
    struct param_slot *slot = params_find(params, ask->name);
    struct param_shape shape = {ask->put, ask->bytes, ask->bf16_bytes, ask->part_bytes};
    uint32_t second, n = param_shape_parts(&shape, &second);
    size_t size = zmq_msg_size(&request->payload[0]);
    if (n == 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a value in parts has 1 to %u of them: %" PRIu64 " and %" PRIu64 " bytes in parts of %" PRIu64
                       " are impossible",
                       PARAMS_PARTS_MOST, shape.bytes, shape.bf16_bytes, shape.part_bytes);
    if (ask->part >= n || size != param_shape_part(&shape, ask->part))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "part %u of %u of slot '%.64s' has %zu bytes: it is no part of that size", ask->part, n,
                       ask->name, size);
    bool stored = slot && slot->value->shape.put == ask->put, again = ask->version && ask->above;
    bool replaced = slot && !stored && param_slot_value(slot, ask->put);
    if (slot && (stored ? !again : replaced || put_version(slot, ask) == slot->version)) {
        put_answer(service, request, slot); /* the reply to its last part was lost, or the slot has a newer version */
        return RP_OK;
    }
    if (stored) {
        slot->version = put_version(slot, ask);
        put_done(service, request, slot);
        return RP_OK;
    }
    struct param_stage *stage = put_stage(service, ask, &shape, err);
    if (!stage)
        return (rp_status)err->status;
    if (params_add_part(params, stage, ask->part, &request->payload[0], service->loop->now_ns))
        EFFECT(service->loop, part, stage, ask->part);
    if (stage->value->missing < n) {
        struct parts_info parts;
        Replay__SlotInfo info;
        replay__slot_info__init(&info);
        info.name = ask->name;
        info.parts = parts_info(stage->value, stage->value->missing, &parts);
        request->remember = false; /* it may come twice */
        slot_reply(service, request, &info, NULL, 0);
        return RP_OK;
    }
    RP_TRY(find_room(service, ask->name, err));
    slot = params_make_slot(params, ask->name);
    params_put_stage(params, slot, stage, put_version(slot, ask), service->loop->now_ns);
    put_done(service, request, slot);
    return RP_OK;
}

rp_status req_params_put(struct service *service, struct request *request, rp_error *err)
{
    const Replay__ParamsPut *ask = (const Replay__ParamsPut *)request->body;
    RP_TRY(put_check(request, ask, err));
    RP_TRY(put_check_own(service->params, ask, err));
    size_t size = zmq_msg_size(&request->payload[0]);
    if (service->loop->effects && size > ENTRY_MOST)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "a frame of %zu bytes is too large for the journal: at most 1 GiB",
                       size);
    if (ask->put)
        return put_part(service, request, ask, err);
    struct param_slot *slot = params_find(service->params, ask->name);
    RP_TRY(params_make_room(service, slot, size, err));
    RP_TRY(find_room(service, ask->name, err));
    slot = params_make_slot(service->params, ask->name); /* after all refusals: a slot stays */
    uint64_t version = put_version(slot, ask);
    if (version == slot->version) {
        put_answer(service, request, slot);
        return RP_OK;
    }
    params_put(service->params, slot, &request->payload[0], version, service->loop->now_ns);
    put_done(service, request, slot);
    return RP_OK;
}

/* Answers with one part of a value that the client has begun to read. */
static rp_status get_part(struct service *service, struct request *request, const Replay__ParamsGet *ask, rp_error *err)
{
    struct param_slot *slot = params_find(service->params, ask->name[0]);
    struct param_value *value = slot ? param_slot_value(slot, ask->put) : NULL;
    if (!value)
        return err_set(err, RP_NOT_FOUND, "slot '%.64s' no longer has this value: ask for the newest version, %" PRIu64,
                       ask->name[0], slot ? slot->version : 0);
    if (ask->part >= value->n_parts)
        return err_set(err, RP_INVALID_ARGUMENT, "slot '%.64s' has %u parts: there is no part %u", ask->name[0],
                       value->n_parts, ask->part);
    param_value_asked(value, request->head.client, ask->part, service->loop->now_ns);
    zmq_msg_t payload;
    zmq_msg_init(&payload);
    zmq_msg_copy(&payload, &value->parts[ask->part]);
    struct parts_info parts;
    Replay__SlotInfo info;
    slot_info(service, slot, &info);
    info.parts = parts_info(value, ask->part, &parts);
    slot_reply(service, request, &info, &payload, 1);
    return RP_OK;
}

rp_status req_params_get(struct service *service, struct request *request, rp_error *err)
{
    Replay__ParamsGet *ask = (Replay__ParamsGet *)request->body;
    if (ask->n_name == 0 || ask->n_name > GET_SLOTS)
        return err_set(err, RP_INVALID_ARGUMENT, "ask for 1 to %u parameter slots, not %zu", GET_SLOTS, ask->n_name);
    if (ask->n_have > ask->n_name)
        return err_set(err, RP_INVALID_ARGUMENT, "%zu versions for %zu names", ask->n_have, ask->n_name);
    if (ask->put)
        return get_part(service, request, ask, err);
    bool at_once = ask->has_timeout_ms_case == REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS && ask->timeout_ms == 0;
    request->answered = get_answer(service, &request->from, request->head.id, ask, at_once || ask->head);
    if (request->answered || at_once || ask->head) {
        request->answered = true;
        return RP_OK;
    }
    bool timed = ask->has_timeout_ms_case == REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS;
    struct params_wait *waiting = wait_new(service->peers, sizeof *waiting, &get_ops, service, request,
                                           timed ? ask->timeout_ms : WAIT_FOREVER, err);
    if (!waiting)
        return (rp_status)err->status;
    waiting->ask = ask;
    request->body = NULL; /* taken */
    LIST_INSERT_HEAD(&service->params_waits.list, waiting, link);
    return RP_OK;
}

rp_status req_counter(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Counter *ask = (const Replay__Counter *)request->body;
    struct params *params = service->params;
    RP_TRY(name_check(ask->name, "counter", err));
    RP_TRY(identity_adds(request->identity, ask->add, service->loop->now_ns, err));
    struct param_counter *counter = params_find_counter(params, ask->name);
    if (!counter && ask->add != 0) {
        counter = params_add_counter(params, ask->name);
        if (!counter)
            return err_set(err, RP_RESOURCE_EXHAUSTED, "no room for a further counter: there are %u",
                           params->n_counters);
    }
    if (counter && __builtin_add_overflow(counter->value, ask->add, &counter->value))
        counter->value = ask->add > 0 ? INT64_MAX : INT64_MIN;
    if (counter && ask->add != 0)
        EFFECT(service->loop, counter, counter);
    Replay__CounterReply reply = REPLAY__COUNTER_REPLY__INIT;
    reply.value = counter ? counter->value : 0;
    request_ok(service->peers, request, REPLAY__REPLY__BODY_COUNTER, &reply.base);
    return RP_OK;
}
