/* File descriptors: how many a broker needs, and what happens when connections have used them up. */
#ifndef BROKER_DESCRIPTORS_H
#define BROKER_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

struct broker_config;

/* Raises the limit to the highest that the system allows, and fails if that is too low to start: libzmq and czmq abort the
 * process when they cannot open what they need. From now on connections leave DESCRIPTORS_RESERVE descriptors to the broker. */
rp_status descriptors_init(const struct broker_config *config, rp_error *err);

/* Logs when descriptors become scarce, once each time, and when connections were refused. */
struct descriptors_watch {
    bool few;
    uint64_t refused; /* connections, at the last check */
};
void descriptors_check(struct descriptors_watch *self);

#endif
