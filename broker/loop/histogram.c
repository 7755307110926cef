#include "broker/loop/histogram.h"

uint32_t histogram_used(const struct histogram *self)
{
    uint32_t n = HISTOGRAM_BUCKETS;
    while (n > 0 && !self->counts[n - 1])
        n--;
    return n;
}

uint64_t histogram_count(const struct histogram *self)
{
    uint64_t n = 0;
    for (uint32_t b = 0; b < HISTOGRAM_BUCKETS; b++)
        n += self->counts[b];
    return n;
}

uint64_t histogram_quantile(const struct histogram *self, double share)
{
    uint64_t n = histogram_count(self), below = 0;
    for (uint32_t b = 0; n && b < HISTOGRAM_BUCKETS; b++) {
        below += self->counts[b];
        if (below && (double)below >= share * (double)n)
            return histogram_bound(b);
    }
    return n ? UINT64_MAX : 0;
}
