/* Requests for parameters that wait for a newer version. */
#ifndef BROKER_REQ_PARAMS_H
#define BROKER_REQ_PARAMS_H

#include <stdbool.h>

#include "broker/loop/loop.h"

struct params_wait;

struct params_waits {
    struct params_wait *first; /* newest first */
    struct chore waking;       /* answers them after a put, in slices */
    struct params_wait *wake_next;
    bool is_waking, wake_again; /* again: another put came meanwhile, which concerns all of them */
};

#endif
