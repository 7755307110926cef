#include "broker/session/transit.h"

#include <stdio.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/session/flow.h"
#include "broker/session/session.h"
#include "proto/base/format.h"

/* A writer that waits for less than this share of its time is not held back. */
#define SHARE_LEAST 0.15
/* Confirmations on a fast network take less, even with busy processors. */
#define FLIGHT_LEAST_NS (10 * NS_PER_MS)
/* After this many intervals without a heartbeat, nothing is known any more. */
#define SILENT_HEARTBEATS 3
/* So many measurements in a row end it: a single one may fall on a busy moment. */
#define MISSES 2u

static bool waits_here(const struct session *session)
{
    for (uint32_t i = 0; i < session->n_tables; i++)
        if (session->flows[i] && session->flows[i]->count > 0)
            return true;
    return false;
}

/* True if the writer waits, and not for this broker. */
static bool is_held(const struct session *session)
{
    const struct transit *self = &session->transit;
    return session->remote && self->share >= SHARE_LEAST && self->flight_ns >= FLIGHT_LEAST_NS &&
           session->sessions->ingest_idle && !session->sessions->ingest_held && !waits_here(session);
}

void transit_measure(struct session *session, const struct transit_report *report)
{
    struct transit *self = &session->transit;
    int64_t now = session->sessions->loop->now_ns, ns = now - self->at_ns;
    if (ns < session->sessions->config->expiry_ns / CONFIG_HEARTBEATS / 2)
        return;
    bool known = self->at_ns > 0 && report->waited_ns >= self->waited_ns && session->received_bytes >= self->bytes;
    double share = known ? (double)(report->waited_ns - self->waited_ns) / (double)ns : 0.0;
    self->share = share < 1.0 ? share : 1.0;
    self->rate = known ? (double)(session->received_bytes - self->bytes) * 1e9 / (double)ns : 0.0;
    self->flight_ns = report->flight_ns;
    self->messages = report->sent > session->received ? report->sent - session->received : 0;
    self->waited_ns = report->waited_ns;
    self->bytes = session->received_bytes;
    self->at_ns = now;
    self->misses = is_held(session) ? 0 : self->misses + 1;
    if (self->misses >= MISSES)
        self->since_ns = 0;
    else if (self->misses == 0 && self->since_ns == 0)
        self->since_ns = now - ns;
}

bool transit_holds(const struct session *session)
{
    const struct transit *self = &session->transit;
    int64_t silent = session->sessions->loop->now_ns - self->at_ns;
    return self->since_ns > 0 && !session->tombstone &&
           silent < SILENT_HEARTBEATS * session->sessions->config->expiry_ns / CONFIG_HEARTBEATS;
}

void transit_explain(const struct session *session, char *out, unsigned size)
{
    const struct transit *self = &session->transit;
    format_buffer rate, flight;
    snprintf(out, size, "its data takes %s to the broker, which gets %s/s of it; the writer waits %.0f%% of its time",
             format_time(flight, self->flight_ns), format_bytes(rate, (uint64_t)self->rate), 100 * self->share);
}
