/* A broker with an adder and a sampler; a test that fails may leave both. */
#pragma once

#include "agent/learn/adder.h"
#include "tests/support/process.h"

struct fixture {
    SERVED;
    struct adder *adder;
    rp_sampler *sampler;
};

static inline void adding_stop(struct fixture *f)
{
    rp_sampler_destroy(&f->sampler);
    (void)adder_destroy(&f->adder, 0, NULL);
    served_stop(f);
}

#define ADDER_FIXTURE(tables)                                                                                          \
    static void set_up(struct fixture *f)                                                                              \
    {                                                                                                                  \
        served_start(f, tables, NULL, NULL);                                                                           \
    }                                                                                                                  \
    FIXTURE(struct fixture, set_up, adding_stop)
