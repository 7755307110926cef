/* What the facts say, for the rules of why.c. */
#ifndef AGENT_WHY_WHY_FACTS_H
#define AGENT_WHY_WHY_FACTS_H

#include <stddef.h>

#include "agent/why/why.h"

/* Without shares of a run: a wait of this length counts. */
#define LONG_NS UINT64_C(1000000000)

/* Returns the longest wait of a kind that lasts at least this long; table NULL: of any table. */
const rp_wait *facts_longest(const struct why_facts *facts, const char *kind, const char *table, uint64_t least_ns);
/* Returns the table of that name; NULL: there is none. */
const rp_table_info *facts_table_of(const struct why_facts *facts, const char *name);
/* Returns the share of the time for which a side waits; NAN: not known. */
double facts_idle_of(const struct why_facts *facts, bool actors);
/* True if a wait is long. With a run, its share of waiting counts; without, the length of the present wait. A sampler asks for its permits again and again,
 * at other shards: the length of one says nothing. */
bool facts_waits_long(double idle, const rp_wait *wait);
/* Writes who waits, and how much: "Learners wait 34% of the time", "3 samplers wait". Returns out. */
const char *facts_how_much(const struct why_facts *facts, bool actors, const char *table, char *out, size_t size);

#endif
