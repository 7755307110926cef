/* Measurements and plans for tests: as a profile would have made them. */
#pragma once

#include "agent/launch/plan/plan.h"
#include "tests/support/test.h"

#define MIB (1024.0 * 1024.0)
#define GIB (1024.0 * MIB)

struct plan_unit unit_of(double rate, double cpu, double broker_cpu, double memory);
/* One machine with two cores and 4 GiB, 100 MiB of them for the broker, that takes both roles. Its host is one of a few static ones:
 * the input is not freed, and after many calls the oldest is used again. */
struct plan_input curves_input(struct plan_unit actor, struct plan_unit learner, double spi);
/* A joint run of a pair with one shard. */
struct plan_pair run_of(uint32_t actors, uint32_t learners, double inserts, double samples, double actor_idle,
                        double learner_idle, double cpu);
/* Fails the test if there is no plan. */
struct plan curves_solve(const struct plan_input *input);
