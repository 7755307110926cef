#include "agent/client/sampler/shares.h"

#include <math.h>

static double usable(double weight)
{
    return weight > 0 && isfinite(weight) ? weight : 0;
}

/* Returns the first index whose sum is above `at`. Without branches: half of them would be predicted wrongly. */
static uint32_t find(const double *sums, uint32_t n, double at)
{
    uint32_t low = 0;
    while (n > 1) {
        uint32_t half = n / 2;
        low += sums[low + half - 1] > at ? 0 : half;
        n -= half;
    }
    return low;
}

bool shares_draw(struct rng *rng, const double *weights, uint32_t n, uint32_t count, uint32_t *counts, double *room)
{
    double sum = 0;
    uint32_t last = 0; /* with a weight: rounding must not lead to one without */
    for (uint32_t i = 0; i < n; i++) {
        sum += usable(weights[i]);
        room[i] = sum;
        last = usable(weights[i]) > 0 ? i : last;
    }
    if (!(sum > 0) || !isfinite(sum))
        return false;
    if (n == 1)
        counts[0] += count;
    for (uint32_t k = 0; k < count && n > 1; k++) {
        uint32_t drawn = find(room, n, rng_unit(rng) * sum);
        counts[drawn < last ? drawn : last]++;
    }
    return true;
}

uint32_t shares_draw_distinct(struct rng *rng, const double *weights, const uint64_t *sizes, uint32_t n, uint32_t count,
                              uint32_t *counts)
{
    for (uint32_t k = 0; k < count; k++) {
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            if (counts[i] < sizes[i])
                sum += usable(weights[i]) * (1 - (double)counts[i] / (double)sizes[i]);
        double at = rng_unit(rng) * sum;
        uint32_t drawn = n;
        for (uint32_t i = 0; i < n && at >= 0; i++) {
            double left = counts[i] < sizes[i] ? usable(weights[i]) * (1 - (double)counts[i] / (double)sizes[i]) : 0;
            if (left > 0) {
                drawn = i;
                at -= left;
            }
        }
        if (drawn == n)
            return k;
        counts[drawn]++;
    }
    return count;
}
