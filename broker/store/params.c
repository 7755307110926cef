#include "broker/store/params.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "proto/base/io.h"
#include "proto/base/memfile.h"
#include "proto/base/need.h"
#include "proto/wire/channel.h"

/* A smaller value is copied: its message may be a view into a receive buffer that it shares with others, and would pin. The
 * store has such a bound of its own: the two need not agree. */
#define KEEP_BYTES 32768u
#define PAGE_BYTES 4096u

/* ---- files of values ---- */

/* Shared by the parts that lie in it, wherever their messages are. */
struct param_file {
    atomic_uint refs;
    struct memfile file;
};

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static struct param_file *file_new(const struct param_shape *shape)
{
    struct param_file *self = need_alloc(sizeof *self);
    if (memfile_make(&self->file, PARAMS_FILE_AT + pages(shape->bytes) + pages(shape->bf16_bytes))) {
        atomic_init(&self->refs, 1);
        return self;
    }
    free(self);
    return NULL;
}

static void file_release(struct param_file *self)
{
    if (!self || atomic_fetch_sub_explicit(&self->refs, 1, memory_order_acq_rel) != 1)
        return;
    memfile_fini(&self->file);
    free(self);
}

/* The last message with a part has gone; on any thread. */
static void part_gone(void *data, void *hint)
{
    (void)data;
    file_release(hint);
}

/* Copies a part into the file, and makes the message a view of it. By a system call: to touch fresh pages through the mapping would take
 * three times as long, and would end the process where memory lacks. False: no memory. */
static bool file_write(struct param_file *self, uint64_t at, zmq_msg_t *message)
{
    size_t size = zmq_msg_size(message);
    zmq_msg_t view;
    if (!io_write(self->file.fd, zmq_msg_data(message), size, (int64_t)at) ||
        zmq_msg_init_data(&view, self->file.memory + at, size, part_gone, self) != 0)
        return false;
    atomic_fetch_add_explicit(&self->refs, 1, memory_order_relaxed);
    zmq_msg_move(message, &view);
    zmq_msg_close(&view);
    return true;
}

bool param_value_file(const struct param_value *value, struct memfile_name *out)
{
    if (value->file)
        *out = memfile_name(&value->file->file);
    return value->file != NULL;
}

/* ---- values ---- */

uint32_t param_shape_parts(const struct param_shape *shape, uint32_t *second)
{
    *second = 1;
    if (!shape->put)
        return 1;
    if (!shape->part_bytes || !shape->bytes || shape->bytes > INT64_MAX / 2 || shape->bf16_bytes > INT64_MAX / 2)
        return 0;
    uint64_t first = (shape->bytes - 1) / shape->part_bytes + 1;
    uint64_t rest = shape->bf16_bytes ? (shape->bf16_bytes - 1) / shape->part_bytes + 1 : 0;
    if (first > PARAMS_PARTS_MOST || rest > PARAMS_PARTS_MOST || first + rest > PARAMS_PARTS_MOST)
        return 0;
    *second = (uint32_t)first;
    return (uint32_t)(first + rest);
}

/* Returns the size of a part, and where it lies in the value's file. */
static uint64_t part_place(const struct param_shape *shape, uint32_t part, uint64_t *at)
{
    uint32_t second;
    param_shape_parts(shape, &second);
    bool first = part < second;
    uint64_t before = (uint64_t)(first ? part : part - second) * shape->part_bytes;
    uint64_t left = (first ? shape->bytes : shape->bf16_bytes) - before;
    *at = PARAMS_FILE_AT + (first ? 0 : pages(shape->bytes)) + before;
    return shape->put && left > shape->part_bytes ? shape->part_bytes : left;
}

uint64_t param_shape_part(const struct param_shape *shape, uint32_t part)
{
    uint64_t at;
    return part_place(shape, part, &at);
}

/* A message and its heap block, beside the data. */
#define PART_COST 128u

uint64_t param_shape_bytes(const struct param_shape *shape)
{
    uint32_t second;
    uint64_t cost =
        shape->put ? sizeof(struct param_value) + (uint64_t)param_shape_parts(shape, &second) * PART_COST : 0;
    return shape->bytes + shape->bf16_bytes + cost;
}

static uint64_t value_bytes(const struct param_value *value)
{
    return param_shape_bytes(&value->shape);
}

void param_value_asked(struct param_value *self, uint64_t client, uint32_t part, int64_t now_ns)
{
    uint32_t second, n = self->n_readers, at = 0;
    param_shape_parts(&self->shape, &second);
    self->used_ns = now_ns;
    while (at < n && self->readers[at].client != client)
        at++;
    if (part + 1 == second || part + 1 == self->n_parts) { /* its last one */
        if (at < n)
            self->readers[at] = self->readers[--self->n_readers];
        return;
    }
    if (at == PARAMS_READERS_MOST) {
        at = 0;
        for (uint32_t i = 1; i < n; i++)
            at = self->readers[i].asked_ns < self->readers[at].asked_ns ? i : at;
    }
    self->n_readers += at == n;
    self->readers[at] = (struct param_reader){client, now_ns};
}

static bool value_is_read(const struct param_value *self, int64_t now_ns)
{
    for (uint32_t i = 0; i < self->n_readers; i++)
        if (self->readers[i].asked_ns + PARAMS_HOLD_NS > now_ns)
            return true;
    return false;
}

static struct param_value *value_new(const struct param_shape *shape, bool shares, int64_t now_ns)
{
    uint32_t second, n = param_shape_parts(shape, &second);
    struct param_value *self = need_alloc(sizeof *self + n * sizeof self->parts[0]);
    self->shape = *shape;
    self->n_parts = n;
    self->used_ns = now_ns;
    self->n_readers = 0;
    self->file = shares && shape->bytes >= PARAMS_FILE_FROM ? file_new(shape) : NULL;
    for (uint32_t i = 0; i < n; i++)
        zmq_msg_init(&self->parts[i]);
    return self;
}

static void *value_free(void *value)
{
    struct param_value *self = value;
    for (uint32_t i = 0; i < self->n_parts; i++)
        zmq_msg_close(&self->parts[i]);
    file_release(self->file);
    free(self);
    return NULL;
}

/* To free a gigabyte takes the kernel a tenth of a second, in which the core thread would serve nobody: another thread does it. */
#define FREE_AT_ONCE (4u << 20)
static void value_drop(struct params *params, struct param_value *self)
{
    pthread_t thread;
    params->bytes -= value_bytes(self);
    if (value_bytes(self) > FREE_AT_ONCE && pthread_create(&thread, NULL, value_free, self) == 0)
        pthread_detach(thread);
    else
        value_free(self);
}

/* Moves the message into a part that is not there. */
static void value_add(struct param_value *self, uint32_t part, zmq_msg_t *message)
{
    uint64_t at;
    size_t size = part_place(&self->shape, part, &at);
    zmq_msg_t *to = &self->parts[part];
    if (self->file && !file_write(self->file, at, message)) {
        file_release(self->file); /* no longer whole; parts that lie there stay */
        self->file = NULL;
    }
    if (self->file || size >= KEEP_BYTES || !message_copy(to, zmq_msg_data(message), size)) {
        zmq_msg_init(to);
        zmq_msg_move(to, message);
    }
    while (self->missing < self->n_parts && zmq_msg_size(&self->parts[self->missing]))
        self->missing++;
}

/* ---- slots ---- */

static void free_list(struct param_value *value)
{
    for (struct param_value *next; value; value = next) {
        next = value->next;
        value_free(value);
    }
}

/* Takes a stage off the list, and gives its value. */
static struct param_value *stage_end(struct params *self, struct param_stage *stage)
{
    struct param_stage **at = &self->stages;
    struct param_value *value = stage->value;
    while (*at != stage)
        at = &(*at)->next;
    *at = stage->next;
    self->n_stages--;
    self->staged_bytes -= value_bytes(value);
    free(stage->name);
    free(stage);
    return value;
}

void params_fini(struct params *self)
{
    while (self->stages)
        value_free(stage_end(self, self->stages));
    for (uint32_t i = 0; i < self->n_slots; i++) {
        free(self->slots[i].name);
        free_list(self->slots[i].value);
        free_list(self->slots[i].old);
    }
    for (uint32_t i = 0; i < self->n_counters; i++)
        free(self->counters[i].name);
    free(self->slots);
    free(self->counters);
    *self = (struct params){.shares = self->shares};
}

struct param_slot *params_find(const struct params *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_slots; i++)
        if (strcmp(self->slots[i].name, name) == 0)
            return &self->slots[i];
    return NULL;
}

uint64_t params_version(const struct params *self, const char *name)
{
    const struct param_slot *slot = params_find(self, name);
    return slot ? slot->version : 0;
}

struct param_slot *params_make_slot(struct params *self, const char *name)
{
    static const struct param_shape empty = {0};
    struct param_slot *slot = params_find(self, name);
    if (slot || self->n_slots == PARAMS_SLOTS_MOST)
        return slot;
    self->slots = need_room(self->slots, self->n_slots, &self->slots_capacity, sizeof *self->slots);
    slot = &self->slots[self->n_slots++];
    *slot = (struct param_slot){.name = need_text(name), .value = value_new(&empty, false, 0)};
    return slot;
}

uint64_t param_slot_bytes(const struct param_slot *slot)
{
    return slot->value->shape.bytes;
}

static void drop_old(struct params *self, struct param_value **at)
{
    struct param_value *value = *at;
    *at = value->next;
    self->old_bytes -= value_bytes(value);
    value_drop(self, value);
}

/* Returns the place of the old value that nobody reads and nobody asked for longest, or `idle`. The list is newest first. */
static struct param_value **find_idle(struct param_value **list, struct param_value **idle, int64_t now_ns)
{
    for (struct param_value **at = list; *at; at = &(*at)->next)
        if (!value_is_read(*at, now_ns) && (!idle || (*at)->used_ns <= (*idle)->used_ns))
            idle = at;
    return idle;
}

/* Replaces the slot's value, which stays for a while if it is being read part by part. */
static void slot_set(struct params *self, struct param_slot *slot, struct param_value *value, uint64_t version,
                     int64_t now_ns)
{
    struct param_value *before = slot->value;
    uint32_t n = 0;
    if (before->shape.put && before->used_ns + PARAMS_HOLD_NS > now_ns) {
        before->next = slot->old;
        slot->old = before;
        self->old_bytes += value_bytes(before);
    } else {
        value_drop(self, before);
    }
    for (const struct param_value *at = slot->old; at; at = at->next)
        n++;
    struct param_value **idle = n > PARAMS_OLD_MOST ? find_idle(&slot->old, NULL, now_ns) : NULL;
    if (n > PARAMS_OLD_MOST)
        drop_old(self, idle ? idle : &slot->old);
    slot->value = value;
    slot->version = version;
    slot->put_ns = now_ns;
}

void params_put(struct params *self, struct param_slot *slot, zmq_msg_t *value, uint64_t version, int64_t now_ns)
{
    struct param_shape shape = {.bytes = zmq_msg_size(value)};
    struct param_value *made = value_new(&shape, false, now_ns);
    value_add(made, 0, value);
    self->bytes += shape.bytes;
    slot_set(self, slot, made, version, now_ns);
}

/* ---- values in parts ---- */

struct param_stage *params_find_stage(const struct params *self, const char *name, uint64_t put)
{
    for (struct param_stage *stage = self->stages; stage; stage = stage->next)
        if (stage->value->shape.put == put && strcmp(stage->name, name) == 0)
            return stage;
    return NULL;
}

struct param_stage *params_add_stage(struct params *self, const char *name, const struct param_shape *shape,
                                     int64_t now_ns)
{
    if (self->n_stages == PARAMS_STAGES_MOST)
        return NULL;
    struct param_stage *stage = need_alloc(sizeof *stage);
    *stage = (struct param_stage){self->stages, need_text(name), value_new(shape, self->shares, now_ns)};
    self->stages = stage;
    self->n_stages++;
    self->bytes += value_bytes(stage->value);
    self->staged_bytes += value_bytes(stage->value);
    return stage;
}

bool params_add_part(struct params *self, struct param_stage *stage, uint32_t part, zmq_msg_t *message, int64_t now_ns)
{
    (void)self;
    stage->value->used_ns = now_ns;
    if (zmq_msg_size(&stage->value->parts[part]))
        return false;
    value_add(stage->value, part, message);
    return true;
}

void params_put_stage(struct params *self, struct param_slot *slot, struct param_stage *stage, uint64_t version,
                      int64_t now_ns)
{
    stage->value->used_ns = now_ns - PARAMS_HOLD_NS; /* nobody reads it yet */
    slot_set(self, slot, stage_end(self, stage), version, now_ns);
}

static void drop_stage(struct params *self, struct param_stage *stage)
{
    value_drop(self, stage_end(self, stage));
}

struct param_value *param_slot_value(const struct param_slot *slot, uint64_t put)
{
    if (slot->value->shape.put == put)
        return slot->value;
    struct param_value *value = slot->old;
    while (value && value->shape.put != put)
        value = value->next;
    return value;
}

void param_value_named(struct param_value *value, int64_t now_ns)
{
    int64_t at = now_ns - PARAMS_HOLD_NS + PARAMS_SILENT_NS;
    value->used_ns = value->used_ns > at ? value->used_ns : at;
}

/* Drops a stage that is not wanted any more, and has the journal forget it. */
static void give_up_stage(struct params *self, struct loop *loop, struct param_stage *stage)
{
    EFFECT(loop, stage_end, stage);
    drop_stage(self, stage);
}

bool params_yield(struct params *self, struct loop *loop)
{
    struct param_value **idle = NULL;
    for (uint32_t i = 0; i < self->n_slots; i++)
        idle = find_idle(&self->slots[i].old, idle, loop->now_ns);
    if (idle) {
        drop_old(self, idle);
        return true;
    }
    struct param_stage *silent = NULL;
    for (struct param_stage *stage = self->stages; stage; stage = stage->next)
        if (stage->value->used_ns + PARAMS_SILENT_NS <= loop->now_ns &&
            (!silent || stage->value->used_ns < silent->value->used_ns))
            silent = stage;
    if (silent)
        give_up_stage(self, loop, silent);
    return silent != NULL;
}

void params_sweep(struct params *self, struct loop *loop)
{
    for (uint32_t i = 0; self->old_bytes && i < self->n_slots; i++)
        for (struct param_value **at = &self->slots[i].old; *at;)
            if ((*at)->used_ns + PARAMS_HOLD_NS <= loop->now_ns)
                drop_old(self, at);
            else
                at = &(*at)->next;
    for (struct param_stage *stage = self->stages, *next; stage; stage = next) {
        next = stage->next;
        if (stage->value->used_ns + PARAMS_STAGE_NS <= loop->now_ns)
            give_up_stage(self, loop, stage);
    }
}

/* ---- from a file ---- */

bool params_restore_slot(struct params *self, const char *name, uint64_t version, int64_t put_ns, const void *value,
                         size_t size)
{
    struct param_slot *slot = params_make_slot(self, name);
    zmq_msg_t message;
    if (!slot || !message_copy(&message, value, size))
        return false;
    params_put(self, slot, &message, version, put_ns);
    zmq_msg_close(&message);
    return true;
}

bool params_restore_part(struct params *self, const char *name, const struct param_shape *shape, uint32_t part,
                         const void *data, size_t size, int64_t now_ns)
{
    uint32_t second;
    zmq_msg_t message;
    if (!shape->put || part >= param_shape_parts(shape, &second) || param_shape_part(shape, part) != size)
        return false;
    struct param_stage *stage = params_find_stage(self, name, shape->put);
    if (!stage)
        stage = params_add_stage(self, name, shape, now_ns);
    if (!stage || memcmp(&stage->value->shape, shape, sizeof *shape) != 0 || !message_copy(&message, data, size))
        return false;
    params_add_part(self, stage, part, &message, now_ns);
    zmq_msg_close(&message);
    return true;
}

bool params_restore_whole(struct params *self, const char *name, uint64_t put, uint64_t version, int64_t put_ns)
{
    struct param_stage *stage = params_find_stage(self, name, put);
    struct param_slot *slot = version ? params_make_slot(self, name) : NULL;
    if (!version) {
        if (stage)
            drop_stage(self, stage);
        return true;
    }
    if (slot && !stage && slot->value->shape.put == put) { /* a further version of the same value */
        slot->version = version;
        return true;
    }
    if (!slot || !stage || stage->value->missing < stage->value->n_parts)
        return false;
    params_put_stage(self, slot, stage, version, put_ns);
    while (slot->old)
        drop_old(self, &slot->old);
    return true;
}

/* ---- counters ---- */

struct param_counter *params_find_counter(const struct params *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_counters; i++)
        if (strcmp(self->counters[i].name, name) == 0)
            return &self->counters[i];
    return NULL;
}

struct param_counter *params_add_counter(struct params *self, const char *name)
{
    if (self->n_counters == PARAMS_SLOTS_MOST)
        return NULL;
    self->counters = need_room(self->counters, self->n_counters, &self->counters_capacity, sizeof *self->counters);
    struct param_counter *counter = &self->counters[self->n_counters++];
    *counter = (struct param_counter){need_text(name), 0};
    return counter;
}

bool params_restore_counter(struct params *self, const char *name, int64_t value)
{
    struct param_counter *counter = params_find_counter(self, name);
    if (!counter)
        counter = params_add_counter(self, name);
    if (counter)
        counter->value = value;
    return counter != NULL;
}
