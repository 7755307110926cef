/* Parameter slots and counters: named, versioned values that learners put and actors get. A value is kept as the message
 * in which it came, and is sent to any number of actors without a copy. */
#ifndef BROKER_PARAMS_H
#define BROKER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "broker/loop/chore.h"
#include "replay/error.h"

struct broker;

#define PARAMS_SLOTS_MOST 4096u
#define PARAMS_NAME_MOST 255u

struct slot {
    char *name;
    uint64_t version; /* 0: nothing put yet */
    int64_t put_ns;
    zmq_msg_t value;
};

struct counter {
    char *name;
    int64_t value;
};

struct params {
    struct slot *slots;
    uint32_t n_slots, slots_capacity;
    struct counter *counters;
    uint32_t n_counters, counters_capacity;
    uint64_t bytes;      /* of all values */
    struct poll *polls;  /* requests that wait for something newer, newest first */
    struct chore waking; /* answers them after a put, in slices */
    struct poll *wake_next;
    bool is_waking, wake_again; /* again: another put came meanwhile, which concerns all of them */
};

/* 0 if there is no such slot. */
uint64_t params_version(const struct params *self, const char *name);
struct slot *params_find(const struct params *self, const char *name);
/* From a file. False: no memory, or no room. */
bool params_restore_slot(struct params *self, const char *name, uint64_t version, int64_t put_ns, const void *value,
                         size_t size);
bool params_restore_counter(struct params *self, const char *name, int64_t value);
void params_fini(struct params *self);

#endif
