#include <math.h>
#include <string.h>

#include "agent/client/admin/merge.h"

/* Larger bounds mean that there is none. */
#define NO_BOUND 1e300

static double add_bound(double a, double b)
{
    return fabs(a) > NO_BOUND || fabs(b) > NO_BOUND ? a : a + b;
}

/* Returns the mean of two means with these weights. */
static double mean(double a, double weight_a, double b, double weight_b)
{
    double all = weight_a + weight_b;
    return all > 0 ? (a * weight_a + b * weight_b) / all : a;
}

/* ---- limiters ---- */

bool merge_add_limiter(Replay__LimiterInfo *into, const Replay__LimiterInfo *from)
{
    into->min_size = add_bound(into->min_size, from->min_size);
    into->min_diff = add_bound(into->min_diff, from->min_diff);
    into->max_diff = add_bound(into->max_diff, from->max_diff);
    into->inserts += from->inserts;
    into->samples += from->samples;
    into->deletes += from->deletes;
    into->cursor += from->cursor;
    bool ok = true;
    if (!from->inserts_wait[0])
        ok = merge_set_text(&into->inserts_wait, "%s", "");
    if (!from->samples_wait[0])
        ok = merge_set_text(&into->samples_wait, "%s", "") && ok;
    return ok;
}

static bool end_wait(char **text, uint32_t first, uint32_t n)
{
    char was[512];
    if (!(*text)[0])
        return true;
    snprintf(was, sizeof was, "%s", *text);
    return merge_set_text(text, "shard %u: %s%s", first, was, n > 1 ? "; all other shards wait, too" : "");
}

bool merge_end_limiter(Replay__LimiterInfo *into, uint32_t first, uint32_t n)
{
    into->min_size = fmax(1.0, into->min_size); /* parts of a limiter without one are 0 */
    return end_wait(&into->inserts_wait, first, n) && end_wait(&into->samples_wait, first, n);
}

/* ---- tables ---- */

/* Statistics of extensions are sums, too. */
static void add_stats(Replay__TableInfo *into, const Replay__TableInfo *from)
{
    for (size_t i = 0; i < into->n_stats; i++)
        for (size_t k = 0; k < from->n_stats; k++)
            if (strcmp(into->stats[i]->name, from->stats[k]->name) == 0)
                into->stats[i]->value += from->stats[k]->value;
}

/* Items of a shard may have come before those of another: the first that knows a signature tells it. */
static bool take_signature(Replay__TableInfo *into, const Replay__TableInfo *from)
{
    bool ok = true;
    if (into->n_signature)
        return true;
    for (size_t i = 0; i < from->n_signature && ok; i++)
        ok = merge_append_copy((void ***)&into->signature, &into->n_signature, &from->signature[i]->base);
    return ok;
}

/* Ages and staleness are of the samples of late. The limiter does not count them: over shards they are charged where there is
 * room. So the rates are the weights or, when nothing is sampled any more, the items that were. */
static void add_means(Replay__TableInfo *into, const Replay__TableInfo *from)
{
    bool lately = into->sample_rate + from->sample_rate > 0;
    double here = lately ? into->sample_rate : (double)into->unique_samples;
    double there = lately ? from->sample_rate : (double)from->unique_samples;
    into->mean_age_s = mean(into->mean_age_s, here, from->mean_age_s, there);
    into->mean_staleness = mean(into->mean_staleness, here, from->mean_staleness, there);
}

bool merge_add_table(Replay__TableInfo *into, const Replay__TableInfo *from)
{
    add_means(into, from);
    into->size += from->size;
    into->max_size += from->max_size;
    into->bytes += from->bytes;
    into->max_bytes += from->max_bytes;
    into->insert_rate += from->insert_rate;
    into->sample_rate += from->sample_rate;
    into->update_rate += from->update_rate;
    into->waiting_inserts += from->waiting_inserts;
    into->waiting_samplers += from->waiting_samplers;
    into->updates += from->updates;
    into->updates_missing += from->updates_missing;
    into->rejected += from->rejected;
    into->evicted += from->evicted;
    into->evicted_for_memory += from->evicted_for_memory;
    into->orphaned_picks += from->orphaned_picks;
    into->total_priority += from->total_priority;
    into->episodes += from->episodes;
    into->deleted_episodes += from->deleted_episodes;
    into->unique_samples += from->unique_samples;
    add_stats(into, from);
    bool ok = take_signature(into, from);
    if (into->limiter && from->limiter)
        ok = merge_add_limiter(into->limiter, from->limiter) && ok;
    return ok;
}
