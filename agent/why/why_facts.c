/* See why_facts.h. */
#include "agent/why/why_facts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A side that waits for less than this share of its time does not limit anything. */
#define IDLE_SHARE 0.15

/* Over shards, samplers wait for permits instead of samples. */
static bool is_kind(const rp_wait *wait, const char *kind)
{
    return strcmp(wait->kind, kind) == 0 || (strcmp(kind, "sample") == 0 && strcmp(wait->kind, "permit") == 0);
}

const rp_wait *facts_longest(const struct why_facts *facts, const char *kind, const char *table, uint64_t least_ns)
{
    const rp_wait *found = NULL;
    for (uint32_t i = 0; facts->waits && i < facts->waits->n; i++) {
        const rp_wait *wait = &facts->waits->waits[i];
        if (!is_kind(wait, kind) || wait->waited_ns < least_ns || (table && strcmp(wait->table, table) != 0))
            continue;
        if (!found || wait->waited_ns > found->waited_ns)
            found = wait;
    }
    return found;
}

static bool concerns(const rp_wait *wait, const char *kind, const char *table)
{
    return is_kind(wait, kind) && strcmp(wait->table, table) == 0;
}

/* Somebody who waits at several shards counts once. */
static uint32_t count_waits(const struct why_facts *facts, const char *kind, const char *table)
{
    uint32_t n = 0;
    for (uint32_t i = 0; facts->waits && i < facts->waits->n; i++) {
        const rp_wait *wait = &facts->waits->waits[i];
        bool again = !concerns(wait, kind, table);
        for (uint32_t k = 0; facts->info && facts->info->n_shards && k < i && !again; k++)
            again =
                concerns(&facts->waits->waits[k], kind, table) && strcmp(facts->waits->waits[k].who, wait->who) == 0;
        n += !again;
    }
    return n;
}

const rp_table_info *facts_table_of(const struct why_facts *facts, const char *name)
{
    for (uint32_t i = 0; i < facts->info->n_tables; i++)
        if (strcmp(facts->info->tables[i].name, name) == 0)
            return &facts->info->tables[i];
    return NULL;
}

bool facts_waits_long(double idle, const rp_wait *wait)
{
    return wait &&
           (isfinite(idle) ? idle >= IDLE_SHARE : wait->waited_ns >= LONG_NS || strcmp(wait->kind, "permit") == 0);
}

double facts_idle_of(const struct why_facts *facts, bool actors)
{
    return !facts->run ? NAN : actors ? facts->run->actor_idle : facts->run->learner_idle;
}

const char *facts_how_much(const struct why_facts *facts, bool actors, const char *table, char *out, size_t size)
{
    double idle = facts_idle_of(facts, actors);
    uint32_t n = count_waits(facts, actors ? "insert" : "sample", table);
    if (isfinite(idle))
        snprintf(out, size, "%s wait %.0f%% of the time", actors ? "actors" : "learners", 100 * idle);
    else if (actors)
        snprintf(out, size, "%u writer%s", n, n == 1 ? " waits" : "s wait");
    else
        snprintf(out, size, "%u sampler%s", n, n == 1 ? " waits" : "s wait");
    out[0] = (char)(out[0] >= 'a' && out[0] <= 'z' ? out[0] - 32 : out[0]);
    return out;
}
