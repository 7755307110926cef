#include "agent/launch/profile/profile_rate.h"

#include <math.h>
#include <stdlib.h>

#define SLICES 8u
/* With fewer quanta in a slice, the place where the slice begins and ends matters by more than two percent. */
#define LEAST_QUANTA 50.0

void profile_reads_add(struct profile_reads *self, int64_t at_ns, uint64_t count)
{
    if (self->n == PROFILE_MAX_READS)
        return;
    self->at_ns[self->n] = at_ns;
    self->count[self->n++] = count;
}

/* A counter that went back belongs to a restarted broker. */
static double between(const struct profile_reads *reads, uint32_t from, uint32_t to)
{
    double seconds = 1e-9 * (double)(reads->at_ns[to] - reads->at_ns[from]);
    if (seconds <= 0 || reads->count[to] < reads->count[from])
        return 0.0;
    return (double)(reads->count[to] - reads->count[from]) / seconds;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double quantile(const double *sorted, uint32_t n, double share)
{
    double at = share * (double)(n - 1);
    uint32_t low = (uint32_t)at;
    return low + 1 < n ? sorted[low] + (at - low) * (sorted[low + 1] - sorted[low]) : sorted[n - 1];
}

static struct profile_rate of_slices(const struct profile_reads *reads, uint32_t changes)
{
    double rates[SLICES];
    for (uint32_t i = 0; i < SLICES; i++)
        rates[i] = between(reads, i * (reads->n - 1) / SLICES, (i + 1) * (reads->n - 1) / SLICES);
    qsort(rates, SLICES, sizeof rates[0], compare);
    double middle = quantile(rates, SLICES, 0.5);
    double spread = quantile(rates, SLICES, 0.75) - quantile(rates, SLICES, 0.25);
    return (struct profile_rate){middle, middle > 0 ? spread / middle : INFINITY, changes};
}

struct changes {
    uint32_t first, last, n;
};

static struct changes find_changes(const struct profile_reads *reads)
{
    struct changes changes = {0};
    for (uint32_t i = 1; i < reads->n; i++) {
        if (reads->count[i] == reads->count[i - 1])
            continue;
        changes.first = changes.n == 0 ? i : changes.first;
        changes.last = i;
        changes.n++;
    }
    return changes;
}

static double mean_of(const struct profile_reads *reads, const struct changes *changes)
{
    return changes->n >= 3 ? between(reads, changes->first, changes->last) : between(reads, 0, reads->n - 1);
}

double profile_rate_mean(const struct profile_reads *reads)
{
    struct changes changes = find_changes(reads);
    return reads->n < 2 ? 0.0 : mean_of(reads, &changes);
}

struct profile_rate profile_rate(const struct profile_reads *reads, uint64_t quantum)
{
    struct changes changes = find_changes(reads);
    if (reads->n < 2)
        return (struct profile_rate){0.0, INFINITY, 0};
    double grown = (double)reads->count[reads->n - 1] - (double)reads->count[0];
    double quanta = grown / (double)(quantum ? quantum : 1) / SLICES;
    if (reads->n > 2 * SLICES && changes.n >= (reads->n - 1) / 2 && quanta >= LEAST_QUANTA)
        return of_slices(reads, changes.n);
    return (struct profile_rate){mean_of(reads, &changes), INFINITY, changes.n};
}
