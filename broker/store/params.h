/* Parameters: named, versioned slots that learners put and actors get, and named counters.
 *
 * This module owns the values. A value is a list of parts, each kept as the message in which it came and sent to any number of
 * actors without a copy. A small value is one part. A large one (weights of a gigabyte) comes part by part:
 *
 *   staged     Its parts are collected under the random number `put` that its publisher gave it, and nobody sees them. A part that
 *              comes twice changes nothing, so a publisher that lost its connection, or its broker, goes on with the first part that
 *              is missing. A stage that gets no part for PARAMS_STAGE_NS is dropped.
 *   current    The last missing part makes it the slot's version, at once and as a whole.
 *   old        A version that was replaced stays for PARAMS_HOLD_NS after somebody asked for a part of it, so that readers finish
 *              what they have begun. A reader that comes later is told so, and begins with the newest version.
 *
 * However fast versions come, a slow reader finishes one: a version that somebody is reading gives way to nothing. Where PARAMS_OLD_MOST
 * of a slot are being read, the next one is not kept, and its readers begin anew; one of the next versions gets the first place that
 * becomes free, and whoever waits is reading that. Where there is no memory beside what is being read, the next put waits.
 *
 * A value may have a second form, a shorter one for readers that want less (bfloat16 of float32): its parts follow those of the first.
 * The publisher makes it. The broker could do so only if it knew what the bytes mean, and would spend time of its one core thread; at a
 * reader it would save no byte on the way.
 *
 * Where the broker may share memory (shared_memory), the parts of a value from PARAMS_FILE_FROM bytes on lie in a file of their own
 * (memfile.h), which readers on this host map. Nothing is ever written twice to that file, and its pages live as long as the last
 * reader has it mapped.
 *
 * Staged parts count with their announced size from the first part on. Where there is no room for a put, old versions that nobody reads
 * yield first, then stages that have been silent for PARAMS_SILENT_NS (params_yield).
 *
 * service/req_params.c handles the requests; sample/ asks for the version of a policy; journal/ and checkpoint/ write the values down,
 * with the staged ones, and restore them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "proto/base/clock.h"

struct loop;

/* Most slots, and most counters. */
#define PARAMS_SLOTS_MOST 4096u
/* Most bytes of a name. */
#define PARAMS_NAME_MOST 255u
/* Most parts of a value: their list takes 4 MiB. */
#define PARAMS_PARTS_MOST 65536u
/* Most values that are staged at a time, and most old versions of a slot. */
#define PARAMS_STAGES_MOST 64u
#define PARAMS_OLD_MOST 4u
/* Longer than a client needs to reconnect; so long as a broker needs to restart, and to read a journal, for stages. */
#define PARAMS_HOLD_NS (10 * NS_PER_S)
#define PARAMS_STAGE_NS (60 * NS_PER_S)
#define PARAMS_SILENT_NS (2 * NS_PER_S)
/* Readers of a value that are known. Of more, those are that were heard of last. */
#define PARAMS_READERS_MOST 16u
/* A smaller value is copied faster than it is mapped. */
#define PARAMS_FILE_FROM (1u << 20)
/* Where a value begins in its file: behind the page with the nonce. The second form begins with the next page after the first. */
#define PARAMS_FILE_AT 4096u

/* How a value is cut. Each form begins with a new part, and all parts of a form but its last have part_bytes. */
struct param_shape {
    uint64_t put; /* number that names the value; 0: it is one part, without a second form */
    uint64_t bytes, bf16_bytes;
    uint64_t part_bytes;
};

/* Memory of a value that clients on this host map. */
struct param_file;

/* A client that has asked for a part, and not yet for the last one of its form. */
struct param_reader {
    uint64_t client;
    int64_t asked_ns;
};

struct param_value {
    struct param_shape shape;
    struct param_value *next; /* of old ones: the one before it */
    int64_t used_ns;          /* when somebody asked for a part, or the last part came; see param_value_named */
    struct param_file *file;  /* NULL: its parts are messages */
    uint32_t n_parts;
    uint32_t missing; /* number of the first part that is not there; n_parts: none */
    uint32_t n_readers;
    struct param_reader readers[PARAMS_READERS_MOST];
    zmq_msg_t parts[];
};

struct param_slot {
    char *name;
    uint64_t version; /* 0: nothing put yet */
    int64_t put_ns;
    struct param_value *value; /* never NULL */
    struct param_value *old;   /* newest first */
};

/* A value of which parts are missing. */
struct param_stage {
    struct param_stage *next;
    char *name; /* of its slot */
    struct param_value *value;
};

struct param_counter {
    char *name;
    int64_t value;
};

struct params {
    struct param_slot *slots;
    uint32_t n_slots, slots_capacity;
    struct param_counter *counters;
    uint32_t n_counters, counters_capacity;
    struct param_stage *stages;
    uint32_t n_stages;
    bool shares;           /* large values get files */
    uint64_t bytes;        /* of all values: staged and old ones, too, with what their parts cost */
    uint64_t staged_bytes; /* of them: of stages, with what is still to come */
    uint64_t old_bytes;    /* of them: of versions that were replaced */
};

void params_fini(struct params *self);

/* Returns the slot of a name, or NULL. */
struct param_slot *params_find(const struct params *self, const char *name);
/* Returns the version of a slot, 0 if there is no such slot. */
uint64_t params_version(const struct params *self, const char *name);
/* Returns the slot of a name, made if need be. NULL: n_slots is PARAMS_SLOTS_MOST. */
struct param_slot *params_make_slot(struct params *self, const char *name);
/* Moves the message into the slot as this version. */
void params_put(struct params *self, struct param_slot *slot, zmq_msg_t *value, uint64_t version, int64_t now_ns);
/* Returns the bytes of the slot's first form. */
uint64_t param_slot_bytes(const struct param_slot *slot);

/* ---- values in parts ---- */

/* Returns the number of parts, and that of the first part of the second form; 0: the shape is impossible. */
uint32_t param_shape_parts(const struct param_shape *shape, uint32_t *second);
/* Returns the memory that a value of this shape takes. */
uint64_t param_shape_bytes(const struct param_shape *shape);
/* Returns how many bytes a part has. part < n_parts. */
uint64_t param_shape_part(const struct param_shape *shape, uint32_t part);
/* Returns the stage of a value, or NULL. */
struct param_stage *params_find_stage(const struct params *self, const char *name, uint64_t put);
/* Makes a stage of a shape that is possible. NULL: there are PARAMS_STAGES_MOST. */
struct param_stage *params_add_stage(struct params *self, const char *name, const struct param_shape *shape,
                                     int64_t now_ns);
/* Moves the message, of the right size, into the stage. False: that part is there. */
bool params_add_part(struct params *self, struct param_stage *stage, uint32_t part, zmq_msg_t *message, int64_t now_ns);
/* Makes a stage that lacks nothing the value of a slot; takes the stage. */
void params_put_stage(struct params *self, struct param_slot *slot, struct param_stage *stage, uint64_t version,
                      int64_t now_ns);
/* Returns the slot's value of this name, current or old. NULL: it is gone. */
struct param_value *param_slot_value(const struct param_slot *slot, uint64_t put);
/* A client learns of the value, and may map it, or ask for its first part within PARAMS_SILENT_NS. */
void param_value_named(struct param_value *value, int64_t now_ns);
/* A client asks for this part. */
void param_value_asked(struct param_value *value, uint64_t client, uint32_t part, int64_t now_ns);
/* Makes room: drops the old version that was not asked for longest and that nobody reads, or else a silent stage. False: there is
 * neither. */
bool params_yield(struct params *self, struct loop *loop);
/* Drops old versions and stages that nobody uses. Once a second. */
void params_sweep(struct params *self, struct loop *loop);
/* Returns where clients find the value's file. False: it has none. */
struct memfile_name;
bool param_value_file(const struct param_value *value, struct memfile_name *out);

/* ---- counters ---- */

/* Returns the counter of a name, or NULL. */
struct param_counter *params_find_counter(const struct params *self, const char *name);
/* Adds a counter with value 0. NULL: n_counters is PARAMS_SLOTS_MOST. */
struct param_counter *params_add_counter(struct params *self, const char *name);

/* ---- from a file. False: no memory, or too many ---- */

bool params_restore_slot(struct params *self, const char *name, uint64_t version, int64_t put_ns, const void *value,
                         size_t size);
bool params_restore_counter(struct params *self, const char *name, int64_t value);
/* The shape is checked: false, too, if it is impossible, or has no such part of this size. */
bool params_restore_part(struct params *self, const char *name, const struct param_shape *shape, uint32_t part,
                         const void *data, size_t size, int64_t now_ns);
/* Ends a stage: as this version, or, with 0, as none. Of a value that has a version: gives it this one. False, too: parts are missing. */
bool params_restore_whole(struct params *self, const char *name, uint64_t put, uint64_t version, int64_t put_ns);
