/* Transit: whether the network holds a writer back.
 *
 * The broker sees what arrives, and the writer says in its heartbeats how long it waits and how long its messages take. If the writer
 * waits although nothing of it waits here, its data is on its way: that is the network, unless the broker is too busy to read. A
 * writer of this machine has no network between. */
#ifndef BROKER_TRANSIT_H
#define BROKER_TRANSIT_H

#include <stdbool.h>
#include <stdint.h>

struct session;

struct transit {
    int64_t at_ns;                /* time of the last measurement */
    uint64_t waited_ns;           /* as the writer stated it then */
    uint64_t bytes;               /* that had arrived by then */
    int64_t since_ns;             /* since when the network holds the writer back; 0: it does not */
    uint32_t misses;              /* measurements in a row that did not say so */
    double share;                 /* of the time for which the writer waited */
    double rate;                  /* bytes/s that arrived */
    uint64_t flight_ns, messages; /* duration of a message's way and its confirmation; messages on their way */
};

/* What a heartbeat says. Untrusted: any numbers. */
struct transit_report {
    uint64_t sent; /* number of the last message sent */
    uint64_t waited_ns, flight_ns;
};

/* At a heartbeat: measures, if the last measurement is old enough. */
void transit_measure(struct session *session, const struct transit_report *report);
/* True if the network holds the writer back, and the writer still says so. */
bool transit_holds(const struct session *session);
/* Writes a sentence without its full stop. */
void transit_explain(const struct session *session, char *out, unsigned size);

#endif
