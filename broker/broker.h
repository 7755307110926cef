/* The broker: one core thread that owns all state below, and the loop that runs it.
 *
 * A library with a thin main: tests, benches and single-process runs embed it. Nothing is locked. broker_stop, broker_hurry
 * and broker_checkpoint may be called from any thread and from a signal handler; everything else belongs to the core thread. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/loop/resident.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "broker/service/info.h"
#include "broker/service/service.h"
#include "broker/session/session.h"
#include "broker/store/layout.h"
#include "broker/store/params.h"
#include "broker/store/store.h"
#include "broker/table/table.h"
#include "proto/base/rng.h"

struct checkpoints;
struct spill;
struct stream;

struct broker {
    const struct broker_config *config;
    struct rng rng;
    uint64_t instance; /* random number of this run */
    /* rooms */
    struct loop loop;
    struct store store;
    struct layouts layouts;
    struct tables tables;
    struct params params;
    struct peers peers;
    struct samples samples;
    struct sessions sessions;
    struct stream *stream;           /* NULL: nothing is kept on disk */
    struct spill *spill;             /* NULL: all chunks are in memory */
    struct checkpoints *checkpoints; /* NULL: none are made */
    struct service service;
    struct snapshot_maker snapshots; /* for other threads */
    /* the loop */
    struct timer second; /* once a second: rates, and what is kept too long */
    struct timer keys;   /* looks at the files of keys */
    struct resident resident;
    int64_t cpu_ns;       /* processor time at the end of the last turn */
    int64_t held_ns;      /* since when sessions.ingest_held is set */
    bool journal_is_full; /* in this turn: no further message is read */
    bool looked;          /* the sockets were looked at since the last turn */
    bool closed;          /* requests stay unread: nothing may change or be confirmed after the last checkpoint */
    int wake_fd;          /* eventfd: wakes the loop from other threads */
    /* set by other threads and signal handlers */
    atomic_bool stop;
    atomic_bool hurry; /* the end must not wait for the disk */
    atomic_bool checkpoint_wanted;
};

/* config is borrowed, and must outlive the broker. context: a zmq context to bind in (for inproc), or NULL for a new one.
 * Clients can connect when it returns. NULL with err set. */
struct broker *broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err);
/* Makes a broker without sockets, for one client on the same thread. The channels are borrowed, and must outlive the broker. */
struct broker *broker_new_local(const struct broker_config *config, struct clock clock, struct channels *channels,
                                rp_error *err);
void broker_destroy(struct broker **self);

/* Runs one turn of the loop: reads the sockets, does what is due, and sleeps at most wait_ms if there was nothing to do
 * (-1: as long as it takes, also after work, if nothing is left to do). */
void broker_turn(struct broker *self, int wait_ms);
/* Runs turns until broker_stop, then broker_finish, and returns what that returns. */
bool broker_run(struct broker *self);
/* Lets broker_run end. From any thread, and from a signal handler. */
void broker_stop(struct broker *self);
/* The same, and broker_finish no longer waits for the disk. What clients were told is durable in any case. */
void broker_hurry(struct broker *self);
/* Starts a checkpoint in the next turn. From any thread, and from a signal handler. */
void broker_checkpoint(struct broker *self);
/* Cancels all waits and accepts nothing more. */
void broker_drain(struct broker *self);
/* Drains, makes the last checkpoint, and waits until everything that clients were told is durable. Returns false if
 * what came since an earlier checkpoint is lost: there is no journal, and the last checkpoint could not be written. */
bool broker_finish(struct broker *self);
/* Writes "service tcp://...", "ingest ...", "events ...", and "http ..." unless it is "", to a file, atomically. */
rp_status broker_write_endpoints(const struct broker *self, const char *http, const char *path, rp_error *err);

/* Sets malloc to keep large blocks in the heap, and the heap: with its defaults, page faults are most of the cost of large
 * inserts. For the process that runs a broker, before it starts threads. */
void broker_memory_settings(void);
