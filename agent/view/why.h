/* One sentence about what limits a run or a broker now, and one about what would help. replay-ctl, the launcher's
 * view and the page show the same two sentences. A pure function of what a broker says (include/replay/admin.h) and, for a run, of
 * what its launcher sees. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/json_map.h"
#include "replay/admin.h"

/* What limits. In the order in which they are looked for: a cause hides those below it. */
enum why_cause {
    WHY_BROKER,     /* the broker does not answer */
    WHY_DISK,       /* the journal's disk is full or slow */
    WHY_SHARD,      /* one of the broker's shards does not answer */
    WHY_PAUSED,     /* somebody has paused a table */
    WHY_HOSTS,      /* processes that others wait for are on hosts that are lost */
    WHY_REDUCE,     /* learners wait for a learner that does not come */
    WHY_PARAMETERS, /* actors wait for parameters that nobody publishes */
    WHY_TOO_SMALL,  /* a sampler waits for more items than the table can have */
    WHY_MEMORY,     /* inserts wait for memory, or items are evicted for it */
    WHY_UNREAD,     /* a client does not read the replies to its samples */
    WHY_NETWORK,    /* writers wait for data that is on its way to the broker */
    WHY_OTHERS,     /* other programs take the processors */
    WHY_FILLING,    /* samples wait for the first min_size items */
    WHY_ACTORS,     /* learners wait for inserts */
    WHY_LEARNERS,   /* actors wait for samples */
    WHY_CORES,      /* nobody waits long, and all processors are busy */
    WHY_NOTHING,    /* nobody waits long */
    WHY_IDLE,       /* nothing moves, and nobody waits */
    WHY_CAUSES
};
extern const char *const why_cause_names[WHY_CAUSES + 1]; /* "broker", "disk", ...; WHY_CAUSES is "": not known yet */

enum why_side { WHY_NOBODY, WHY_SIDE_ACTORS, WHY_SIDE_LEARNERS, WHY_SIDES };
extern const char *const why_side_names[WHY_SIDES]; /* "", "actors", "learners" */

/* What a launcher knows beyond the broker. Shares are 0 to 1; NAN: not known. */
struct why_run {
    uint32_t actors, learners;
    double actor_idle, learner_idle;             /* share of the time for which processes wait */
    double cpu, cores;                           /* processors that the run uses and may use; 0: not known */
    double others;                               /* processors that other programs take while none is free */
    uint32_t stranded_actors, stranded_learners; /* that should run, and wait for hosts */
    const char *lost;                            /* one of these hosts, and why it is away; NULL: none is */
};

struct why_facts {
    const rp_info *info;       /* of rp_admin_info; NULL: the broker does not answer */
    const rp_info *waits;      /* of rp_admin_why; may be NULL */
    const struct why_run *run; /* may be NULL */
    const char *silence;       /* why the broker does not answer; may be NULL */
};

struct why {
    enum why_cause cause;
    enum why_side blocked; /* whose arrow stands still */
    bool bad;              /* nothing gets better by itself */
    char table[256];       /* that it concerns; "" */
    char text[640];        /* "Actors wait for learners: ..." */
    char advice[320];      /* "" */
};

void why_explain(const struct why_facts *facts, struct why *out);
/* True if the cause holds somebody back: the last causes of the list say that nobody is. */
bool why_limits(enum why_cause cause);

/* The verdict as members of status.json (proto/base/json_map.h). */
extern const struct json_row why_rows[];
/* Reads the verdict of a run from the text of its status.json, so that nobody who looks at a run judges it again. False: there is
 * none, or it is older than a few seconds: its launcher does not work. */
bool why_read_status(const char *text, struct why *out);

/* Where a run stands, by its status.json. */
struct why_state {
    char phase[16];   /* "running", "done" ... */
    bool ended;       /* the run is over: done, stopped or failed */
    double unix_s;    /* time of the status */
    char reason[256]; /* why the run has ended; "" */
};
/* Returns the text of a status.json, at most 1 MiB of it: free(). NULL: it cannot be read. */
char *why_read_file(const char *path);
/* Reads it from the text of status.json. False: the text is no status. */
bool why_read_state(const char *text, struct why_state *out);
/* Finds the run below a folder that lives, by its status.json: the one that `latest` points to, or else the one with the newest
 * status. False: none lives. */
bool why_find_living(const char *runs, char *out, size_t size);
