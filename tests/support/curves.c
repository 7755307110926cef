#include "tests/support/curves.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct plan_curve curves_linear(uint32_t last, double rate, double cpu, double broker_cpu, double memory)
{
    struct plan_curve curve = {0};
    for (uint32_t count = 1;; count = count * 2 < last ? count * 2 : last) {
        curve.points[curve.n++] = (struct plan_point){count, rate * count, cpu * count, broker_cpu * count, memory};
        if (count == last)
            return curve;
    }
}

struct plan_input curves_input(struct plan_curve actors, struct plan_curve learners, double spi)
{
    return (struct plan_input){.actors = actors,
                               .learners = learners,
                               .spi = spi,
                               .cores = 2,
                               .memory = 4 * GIB,
                               .broker_memory = 100 * MIB,
                               .other_memory = 20 * MIB};
}

struct plan curves_solve(const struct plan_input *input)
{
    struct plan plan;
    rp_error err = {0};
    if (plan_solve(input, &plan, &err) != RP_OK)
        fail_msg("no plan: %s", err.text);
    return plan;
}
