/* Clients of an embedded broker that may have no memory: only the broker's allocations fail (this file wraps broker_new and
 * broker_turn), and what it refuses for lack of memory is asked for once more. */
#pragma once

#include "tests/support/nomem_scene.h"
#include "tests/support/testpeer.h"

/* A peer whose requests may be refused with NO_MEMORY, once. */
struct testpeer *nomem_peer(struct embed *embed);
/* The same with a session of two columns: "x", a uint64, and "big", uint8[big]. */
struct testpeer *nomem_writer(struct embed *embed, uint32_t big);
/* A request was refused: fails the test unless there was no memory. */
void nomem_refused(struct testpeer *peer, const struct testpeer_answer *answer);
/* Pushes, and sends again what was lost for lack of memory, until the broker has received everything. */
void nomem_push(struct testpeer *peer);

/* Samples so many items; distinct: without replacement. */
struct testpeer_answer *nomem_sample(struct testpeer *peer, const char *table, uint32_t count, bool distinct);

/* ---- what there is in the end ---- */

#define NOMEM_TABLES 6u
#define NOMEM_COPIES 5u /* number of table "copies", where there is one */
#define NOMEM_ITEMS 300u

struct nomem_item {
    uint64_t key;
    double priority;
    uint32_t times_sampled;
};

struct state {
    uint32_t n_tables, n_sessions, waiting[NOMEM_TABLES], size[NOMEM_TABLES], n[NOMEM_TABLES];
    uint64_t inserts[NOMEM_TABLES], samples[NOMEM_TABLES], charged[NOMEM_TABLES], updates[NOMEM_TABLES],
        bytes[NOMEM_TABLES], orphaned[NOMEM_TABLES];
    struct nomem_item item[NOMEM_TABLES][NOMEM_ITEMS];
    int64_t counter;
    uint32_t not_copied; /* to table "copies", for lack of memory: such an item is counted, and the sample goes on */
};

/* The tables of a broker. Items of table "prio" are sampled at random: how often each was is left out. */
void nomem_look(const struct broker *broker, struct state *out);
void nomem_compare(const struct state *want, const struct state *got);
