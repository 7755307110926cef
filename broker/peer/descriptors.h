/* File descriptors: how many a broker needs, and what happens when connections have taken them all. */
#ifndef BROKER_DESCRIPTORS_H
#define BROKER_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

struct broker_config;

/* Raises the limit to the highest that the system allows, and fails if that is too few to start: libzmq and czmq abort
 * the process when they cannot open what they need. From here on connections leave DESCRIPTORS_RESERVE to the broker. */
rp_status descriptors_init(const struct broker_config *config, rp_error *err);

/* Logs, once each time it begins, that few descriptors are left, or that connections were refused. */
struct descriptors_watch {
    bool few;
    uint64_t refused; /* connections, when it last looked */
};
void descriptors_check(struct descriptors_watch *self);

#endif
