/* Parameters: named, versioned slots that learners put and actors get, and named counters.
 *
 * This module owns the values. A value is kept as the message in which it came, and is sent to any number of actors without a
 * copy. service/req_params.c handles the requests; sample/ asks for the version of a policy; journal/ and checkpoint/ write
 * the values down and restore them. */
#ifndef BROKER_PARAMS_H
#define BROKER_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

/* Most slots, and most counters. */
#define PARAMS_SLOTS_MOST 4096u
/* Most bytes of a name. */
#define PARAMS_NAME_MOST 255u

struct param_slot {
    char *name;
    uint64_t version; /* 0: nothing put yet */
    int64_t put_ns;
    zmq_msg_t value;
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
    uint64_t bytes; /* of all values */
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

/* Returns the counter of a name, or NULL. */
struct param_counter *params_find_counter(const struct params *self, const char *name);
/* Adds a counter with value 0. NULL: n_counters is PARAMS_SLOTS_MOST. */
struct param_counter *params_add_counter(struct params *self, const char *name);

/* Restores a slot or a counter from a file. False: no memory, or too many. */
bool params_restore_slot(struct params *self, const char *name, uint64_t version, int64_t put_ns, const void *value,
                         size_t size);
bool params_restore_counter(struct params *self, const char *name, int64_t value);

#endif
