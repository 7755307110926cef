/* Curves and plans for tests: as a profile would have measured them. */
#ifndef TESTS_SUPPORT_CURVES_H
#define TESTS_SUPPORT_CURVES_H

#include "agent/launch/plan/plan.h"

#define MIB (1024.0 * 1024.0)
#define GIB (1024.0 * MIB)

/* Each of `count` the same as one: 1, 2, 4, ... and the last. */
struct plan_curve curves_linear(uint32_t last, double rate, double cpu, double broker_cpu, double memory);
/* Two cores, 4 GiB, 100 MiB of them for the broker. */
struct plan_input curves_input(struct plan_curve actors, struct plan_curve learners, double spi);
/* Fails the test if there is no plan. */
struct plan curves_solve(const struct plan_input *input);

#endif
