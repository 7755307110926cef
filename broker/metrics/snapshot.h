/* The metrics room: what other threads may know of a running broker.
 *
 * The room owns histograms (histogram.h), snapshots (this header), and the place where the core thread hands snapshots over
 * (exchange.h). It knows no room above it: rooms that measure embed histograms, service/snapshot_maker.c fills a snapshot in, and
 * http/ shows it.
 *
 * A snapshot is the reply to Info and, if asked for, the reply to Why. It is made by the core thread, given away, and never changed
 * after that. Each message in it is consistent in itself. In a broker with very many sessions they are copied over several turns,
 * so two messages may be some milliseconds apart. */
#ifndef BROKER_SNAPSHOT_H
#define BROKER_SNAPSHOT_H

#include <stdint.h>

#include "proto/base/arena.h"
#include "replay.pb-c.h"

/* Parts that are made only if somebody asks for them. */
enum snapshot_part {
    SNAPSHOT_STATE = 1,    /* everything but the lists below */
    SNAPSHOT_SESSIONS = 2, /* the list of sessions */
    SNAPSHOT_WAITS = 4,    /* sentences: what waits, and for what */
};

struct snapshot {
    unsigned parts;  /* of enum snapshot_part */
    int64_t made_ns; /* CLOCK_MONOTONIC */
    uint64_t cpu_ns; /* processor time of the core thread */
    Replay__InfoReply info;
    Replay__WhyReply why;
    struct arena arena; /* memory of all of the above */
};

/* Returns a snapshot without parts. */
struct snapshot *snapshot_new(void);
/* NULL is fine. */
void snapshot_destroy(struct snapshot **self);

#endif
