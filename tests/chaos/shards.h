/* Chaos over shards: real brokers that are the shards of one, writers and samplers of the library, random faults, and books that
 * must agree in the end. See README.md. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "proto/base/rng.h"
#include "tests/support/shardbed.h"

#define MOST_ITEMS 4000000u
#define WRITERS 3u
#define LEARNERS 2u
#define PAUSE_NS (2 * NS_PER_S) /* what a fault may cost those who do not need that shard */

enum { REPLAY, QUEUE, PLAIN, ONCE, TWICE, TABLES };
extern const char *const table_names[TABLES];
/* How often a table gives each item, and then removes it; 0: any number of times. */
extern const uint32_t table_times[TABLES];

enum phase { RUN, DRAIN, STOP };

/* What is known about the items of one step: it has an item in each table. */
struct book {
    _Atomic uint64_t key[TABLES];   /* 0: not created yet */
    uint32_t kills[TABLES];         /* of the item's shard, when the item was created */
    bool doubt[TABLES];             /* the writer does not know whether it was inserted */
    _Atomic uint32_t taken[TABLES]; /* times that it came out of tables that remove it then */
    double priority;                /* given last; 0: never changed */
    uint32_t found[TABLES];         /* times that it was found in its table */
};

/* One or two shards that are struck at once. */
struct strike {
    int64_t start_ns, pause_ns;
    uint32_t n, shard[2], kind[2]; /* 0: killed, 1: stopped, 2: its connections were cut */
};
#define MOST_STRIKES 100000u

struct chaos {
    struct shardbed set;
    uint32_t n; /* shards */
    bool journal;
    struct rng rng; /* of the faults */
    _Atomic int phase;
    struct book *books;
    _Atomic uint32_t count; /* books in use */
    _Atomic uint32_t kills[SHARDBED_MOST];
    _Atomic int64_t zero_ns; /* when shard 0 was last away; INT64_MAX: it is */
    struct strike *strikes;  /* oldest first; n_strikes are valid */
    _Atomic uint32_t n_strikes;
    /* How busy the machine is: the longest time that a thread woke up late; the time in all that small files took to be written, and
     * since when one is; 0: none is. */
    _Atomic int64_t late_ns, disk_ns, disk_since_ns;
    /* Longest waits (chaos_waited), of learners without what stops may cost; the last: while shard 0 was away, too. */
    _Atomic int64_t actor_ns, learner_ns, zero_learner_ns;
    _Atomic uint64_t sampled[TABLES], taken, batches;
    _Atomic uint64_t ignored; /* updates: for shards that were away for long */
    _Atomic uint32_t complaints;
    pthread_mutex_t lock; /* of what follows, and of the output */
    uint64_t *doubts;     /* keys */
    uint32_t n_doubts, doubts_capacity;
    uint32_t older;         /* items with a priority that is not the last one */
    double lowest, highest; /* sum of the cursors */
};

/* When a wait has begun, and how long the disk had taken for files until then. */
struct moment {
    int64_t ns, disk_ns;
};
struct moment chaos_moment(const struct chaos *self);
/* Returns the time since then. With a journal all shards wait while the disk takes nothing for seconds, as a busy machine's may: twice
 * that time does not count. */
int64_t chaos_waited(const struct chaos *self, struct moment since);
void chaos_sleep(double seconds);
void chaos_raise(_Atomic int64_t *most, int64_t value);
/* Prints a line. */
void chaos_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, and the run has failed. */
void chaos_complain(struct chaos *self, const char *format, ...) __attribute__((format(printf, 2, 3)));
rp_client *chaos_connect(struct chaos *self, uint32_t shard, const char *name);

/* shards_cast.c: threads. */
void cast_start(struct chaos *self);
/* Waits for the writers, which end after RUN; they confirm everything. */
void cast_join_writers(void);
void cast_join(void);

/* shards_audit.c */
/* The thread that watches the cursors. */
void *audit_watch(void *arg);
/* Returns how many items were not taken as often as they are given, though they cannot be lost. */
uint32_t audit_waiting(struct chaos *self);
/* Compares the books with the tables. */
void audit(struct chaos *self, rp_client *client);
