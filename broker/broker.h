/* The broker: one core thread that owns all state below. sockets -> dispatch -> session -> table -> reply.
 *
 * A library with a thin main: tests, benches and single-process runs embed it. Nothing here is locked; only broker_stop
 * may be called from elsewhere. */
#ifndef BROKER_BROKER_H
#define BROKER_BROKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/params/params.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "broker/service/service.h"
#include "broker/session/session.h"
#include "broker/store/layout.h"
#include "broker/store/store.h"
#include "broker/table/tables.h"
#include "proto/base/log.h"
#include "proto/base/rng.h"

struct checkpoints;
struct spill;
struct stream;

struct broker {
    const struct broker_config *config;
    struct loop loop;
    int64_t cpu_ns; /* time of the processor, at the end of the last turn */
    struct rng rng;
    uint64_t instance;
    /* state */
    struct store store;
    struct layouts layouts;
    struct tables tables;
    struct peers peers;
    struct samples samples;
    struct sessions sessions;
    struct params params;
    struct service service;
    struct timer second; /* rates, once a second */
    /* disk */
    struct stream *stream;           /* NULL: nothing is kept */
    struct checkpoints *checkpoints; /* NULL: none are made */
    struct spill *spill;             /* NULL: all in memory */
    int64_t held_ns;                 /* since when sessions.ingest_held is set */
    bool held_told;                  /* and the log says so */
    bool ingest_enough;              /* the journal has no room for more in this turn */
    atomic_bool checkpoint_wanted;
    /* life */
    atomic_bool stop;
    atomic_bool hurry; /* the end must not wait for the disk */
    bool closed; /* requests stay unread: nothing must change, or be told, that the last checkpoint does not have */
    int wake_fd; /* eventfd: wakes the loop from broker_stop */
};

/* config is borrowed, and must outlive the broker. context: a zmq context to bind in (for inproc), or NULL for an own
 * one. Binds, so that clients can connect when it returns. */
struct broker *broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err);
/* A broker without sockets, for one client on the same thread. The ducts are borrowed, and must outlive the broker. */
struct broker *broker_new_local(const struct broker_config *config, struct clock clock, struct ducts *ducts,
                                rp_error *err);
void broker_destroy(struct broker **self);

/* One turn: looks at the sockets, does what is due, sleeps at most wait_ms if there was nothing. */
void broker_turn(struct broker *self, int wait_ms);
/* Turns until broker_stop, then broker_finish. */
void broker_run(struct broker *self);
/* From any thread, and from a signal handler. */
void broker_stop(struct broker *self);
/* The same: broker_finish waits no longer for the disk. What clients were told is there in any case. */
void broker_hurry(struct broker *self);
/* From any thread, and from a signal handler: a checkpoint starts in the next turn. */
void broker_checkpoint(struct broker *self);
/* Waiters get CANCELLED, nothing more is accepted. */
void broker_drain(struct broker *self);
/* Drains, makes the last checkpoint, and waits until what clients are told is on disk. */
void broker_finish(struct broker *self);
/* Writes "service tcp://...", "ingest ...", "events ..." to a file, atomically. */
rp_status broker_write_endpoints(const struct broker *self, const char *path, rp_error *err);

/* Page faults are what large inserts pay for with malloc's defaults: keep large blocks in the heap, and the heap. For the
 * process that runs a broker, before it starts threads. */
void broker_memory_settings(void);

#endif
