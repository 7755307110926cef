/* One client's connection to a broker.
 *
 * The room agent/client/conn owns the service DEALER, the background thread that uses it, and reconnecting. It offers requests
 * with replies (conn_send, conn_call), what the broker said in HELLO, and parts: objects of other rooms that live on the I/O
 * thread (struct conn_part). Files, from the ground up: wait.c (deadlines), pool.c (memory that any thread returns), arena.c (the memory
 * of a broker on this host), request.c (requests and replies), hello.c (what brokers say of themselves), handshake.c (keys), conn.c
 * (one connection), client.c (rp_client: the connections to all shards), params.c (parameters), collective.c (counters, sums).
 *
 * A connection through the channels of a host has no thread: a caller that waits does the thread's work, in turn with the host. "The
 * I/O thread" is then the caller's thread, and all calls come from one thread.
 *
 * Any thread may send requests. They are sent in the order of the calls, again with the same id after a reconnect, and each
 * ends in exactly one call of its reply function: with the broker's reply, or with a status of the library
 * (RP_UNAVAILABLE, RP_DEADLINE_EXCEEDED, RP_CANCELLED). Reply functions run on the I/O thread: they must be short and must
 * not wait. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/client/conn/hello.h"
#include "agent/client/conn/request.h"
#include "agent/client/conn/wait.h"
#include "replay/client.h"

struct conn;
struct trace;

/* ---- requests ---- */

/* Sends a request, and returns its id, never 0. Out of memory: calls fn with RP_NO_MEMORY on the caller's thread before it returns, and
 * the payload stays as it was. */
uint64_t conn_send(struct conn *self, const struct conn_message *message, conn_reply_fn *fn, void *ctx);

/* The same, but returns 0 if there is no memory: then fn is not called. */
uint64_t conn_try_send(struct conn *self, const struct conn_message *message, conn_reply_fn *fn, void *ctx);

/* The items of a sample were read, or nobody wants them: the broker need not keep them. Ends a loan once. */
void conn_loan_end(struct conn *self, struct loan *loan);

/* Cancels a waiting request, here and at the broker. Its reply function is still called once: with the reply if it was
 * already in flight, else with RP_CANCELLED. Ignores unknown ids. */
void conn_cancel(struct conn *self, uint64_t id);

/* A request whose reply the caller collects. The mutex of the connection guards the reply. */
struct conn_ticket {
    struct conn *conn;
    uint64_t id;              /* of the request */
    uint32_t refs;            /* the caller, and the request */
    struct conn_reply *reply; /* NULL: no reply yet */
};

/* Sends a request. NULL: no memory. */
struct conn_ticket *conn_ticket_new(struct conn *conn, const struct conn_message *message, rp_error *err);
/* Waits for the reply and gives it to the caller, once; a deadline of 0 does not wait. NULL: the deadline has passed, or the function
 * of rp_wait_set has ended the wait; the request goes on. */
struct conn_reply *conn_ticket_await(struct conn_ticket *self, int64_t deadline_ns);
/* The reply is not wanted any more; the request is not cancelled. */
void conn_ticket_destroy(struct conn_ticket **self);

/* Sends a request and waits. Returns the broker's status, with its text in err. Gives the reply to the caller in *out if the
 * status is RP_OK; otherwise *out is NULL. out may be NULL. */
rp_status conn_call(struct conn *self, const struct conn_message *message, struct conn_reply **out, rp_error *err);

/* Returns the newest answer to HELLO with a reference; never NULL once rp_client_wait has returned RP_OK. */
struct conn_hello *conn_hello_ref(struct conn *self);

/* ---- life ---- */

struct key;

/* A broker in this process: it runs on the thread that waits for it, or the connection uses its sockets with a key that is in no
 * file. */
struct conn_host {
    struct channels *channels; /* borrowed: the broker's; NULL: it has sockets, and a thread of its own */
    /* Lets the broker handle messages and timers. Sleeps for at most wait_ms if there is nothing to do. */
    void (*turn)(void *ctx, int wait_ms);
    void *ctx;
    const struct key *key; /* copied; NULL: none, or that of a key file */
};

/* Where a connection leads. conn_open copies what it needs. */
struct conn_plan {
    const char *endpoint;
    const rp_client_options *options;
    const struct conn_host *host; /* NULL, or without channels: the connection has a thread */
    struct conn_shards *shards;   /* of the client; outlives the connection */
    uint32_t shard;               /* that is expected there; CONN_SHARD_UNKNOWN: any */
    uint64_t client_id;
};

/* Starts to connect and does not wait. */
rp_status conn_open(const struct conn_plan *plan, struct conn **out, rp_error *err);
/* Lets what another shard said stand in for the answer to HELLO, on a connection that has not heard from its broker yet. */
void conn_stand_in(struct conn *self, struct conn_hello *from);
/* Says, with the mutex of the shards held, for which shard this connection is. */
void conn_number(struct conn *self, uint32_t shard);
/* Tells the thread to stop, and does not wait for it. */
void conn_stop(struct conn *self);
/* Ends all requests with RP_CANCELLED and stops the thread. It must have no users. */
void conn_destroy(struct conn **self);
/* The same of a connection that has users, whose memory stays for them: their calls end with RP_CANCELLED. */
void conn_abandon(struct conn *self);
/* An object that must go before the connection counts as a user of it: parts do by themselves. */
void conn_hold(struct conn *self);
void conn_let_go(struct conn *self);
uint32_t conn_users(struct conn *self);

/* RP_FAILED_PRECONDITION: this process was forked from the one that made the connection. The threads and sockets of the
 * connection are not here, and its locks may be held for ever: every public call checks this before it takes a lock. RP_CANCELLED: the
 * client was destroyed. */
rp_status conn_check_process(const struct conn *self, rp_error *err);
/* The same of something that has noted forks_count and the process id when it was made. */
rp_status conn_check_forks(uint32_t forks, pid_t pid, rp_error *err);
/* The same as a question. */
bool conn_is_foreign(const struct conn *self);
/* Adds to the time for which callers waited for answers that the broker gives at once: what is long about them is the way. */
void conn_waited_add(struct conn *self, int64_t ns);
uint64_t conn_waited(const struct conn *self);
/* Returns where threads of this client add spans; they are recorded while the broker records a trace. */
struct trace *conn_trace(struct conn *self);
const char *conn_endpoint(const struct conn *self);
void *conn_zmq_context(struct conn *self);
/* Secures the socket and connects it to an endpoint of the broker. False: zmq_errno() says why. */
bool conn_connect(const struct conn *self, void *socket, const char *endpoint);
/* True if the connection has a host instead of a thread. */
bool conn_is_hosted(const struct conn *self);
/* True if the broker is in this process. Its replies are its own memory, and it takes them for unread until they are destroyed. */
bool conn_is_inside(const struct conn *self);
/* Returns the channel for a hosted connection's ingest; NULL: ingest goes to a socket. */
struct channel *conn_data_channel(struct conn *self);
uint64_t conn_client_id(const struct conn *self);
/* Returns the number that names the broker's process; 0: it has not answered yet. */
uint64_t conn_instance(struct conn *self);
/* True if the connection is made with a key. */
bool conn_has_key(const struct conn *self);
/* True while the connection is up. If it was refused, err gets the reason, which names the endpoint. */
bool conn_outcome(struct conn *self, rp_error *err);
bool conn_is_up(struct conn *self);
/* True if the client is being destroyed, or was. */
bool conn_is_ending(const struct conn *self);
/* True if the memory of the broker is mapped here. */
bool conn_has_arena(const struct conn *self);
uint64_t conn_reconnects(struct conn *self);
/* Returns how long no broker has answered, in nanoseconds and at least 1; 0 while the connection is up. */
int64_t conn_away_ns(struct conn *self);
/* Returns the number of the shard that this connection leads to; 0 if the broker is alone. */
uint32_t conn_shard(const struct conn *self);
/* Returns "the broker at tcp://..." or "shard 2 at tcp://...", in memory of this thread that serves until the next call. */
const char *conn_title(const struct conn *self);
/* Writes "no broker answers at tcp://... for 3.2 s" or "shard 2 at tcp://... has not answered for 3.2 s" ("does not answer", if
 * it never has), or why the broker is refused, or "" while it is connected. */
void conn_describe(struct conn *self, char *out, size_t size);
/* Returns what may be the reason while no broker answers. */
const char *conn_hint(struct conn *self);

/* ---- parts: objects that live on the I/O thread ---- */

struct conn_part;

/* All functions run on the I/O thread. */
struct conn_part_ops {
    /* A broker has answered HELLO on a new socket: open or resume. */
    void (*up)(struct conn_part *part, const struct conn_hello *hello);
    /* The connection is lost: close the part's sockets. */
    void (*down)(struct conn_part *part);
    /* Optional. A Credit notice. The session's ordinal says which session it is for; a notice without one is for all. */
    void (*notice)(struct conn_part *part, const Replay__Credit *credit);
    /* Called after every wake-up: does its work and returns the time of the next call. */
    int64_t (*tick)(struct conn_part *part, int64_t now_ns);
    /* Optional. Returns a full socket, to call tick when it has room; NULL: there is none. */
    void *(*full)(struct conn_part *part);
};

/* Embedded in its owner. */
struct conn_part {
    const struct conn_part_ops *ops;
    struct conn_part *next;
};

/* Return when the I/O thread has taken the part, or has released it: then down was called, and none of its functions runs
 * any more. */
void conn_attach(struct conn *self, struct conn_part *part);
void conn_detach(struct conn *self, struct conn_part *part);
/* Makes the I/O thread call tick soon. Any thread. */
void conn_wake(struct conn *self);
/* For parts: sends at once, from the I/O thread, and does not retry: when the connection is lost, fn is called with
 * RP_UNAVAILABLE. After conn_detach of the part fn is no longer called. fn gets the part as ctx. Returns the id; 0: not
 * sent. */
uint64_t conn_send_once(struct conn *self, struct conn_part *part, const struct conn_message *message,
                        conn_reply_fn *fn);
/* For parts: closes a connection that has stopped working, and opens a new one. */
void conn_reset(struct conn *self, const char *why);

/* ---- waiting ---- */

/* Waits for a condition that the I/O thread signals, and lets the function of rp_wait_set look meanwhile. False: the deadline has
 * passed, or that function has ended the wait. Call it with the mutex held, in a loop that tests the condition: it may return
 * early. */
bool conn_wait(struct conn *self, pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);
/* For calls that do not wait: a connection without a thread does its work here. */
void conn_look(struct conn *self);
