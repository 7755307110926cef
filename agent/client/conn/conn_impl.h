/* struct conn, and the functions that its files share: the files are one object, cut by task. Only the I/O thread
 * touches the members below "I/O thread". */
#ifndef AGENT_CLIENT_CONN_IMPL_H
#define AGENT_CLIENT_CONN_IMPL_H

#include <stdatomic.h>

#include "agent/client/conn/conn.h"
#include "agent/client/conn/conn_set.h"
#include "proto/base/rng.h"
#include "proto/base/trace.h"
#include "proto/keys/keys.h"

#define REQUEST_BUCKETS 64u
#define CANCEL_GRACE_MS 1000
#define CANCELS_MOST 64u

enum conn_request_field {
    REQUEST_HELLO = 16,
    REQUEST_SAMPLE = 19,
    REQUEST_CANCEL = 22,
};

struct conn_request {
    uint64_t id;
    uint32_t field;                   /* of the body */
    struct conn_request *next, *prev; /* in the order of sending; for samples that is the order of their ids */
    struct conn_request *chain;       /* next in its bucket */
    zmq_msg_t header;
    zmq_msg_t *payload;
    uint32_t n_payload;
    int64_t deadline_ns;
    int64_t timeout_ms;
    int64_t traced_ns; /* when it was sent; 0: no trace was on */
    conn_reply_fn *fn;
    void *ctx;
    struct conn_part *part;   /* not NULL: sent once, for this part */
    struct conn_reply *reply; /* allocated with the request, so that every request can be answered */
    bool cancelled;
    bool sent;  /* at least once */
    bool again; /* was retried because there was no memory, here or at the broker; it is not retried again */
};

struct conn_request_list {
    struct conn_request *first, *last;
};

enum conn_command_kind { COMMAND_ATTACH, COMMAND_DETACH, COMMAND_DROP };

/* Lives on the stack of a thread that waits until it is done. */
struct conn_command {
    enum conn_command_kind kind;
    struct conn_part *part; /* to attach or detach */
    uint64_t id;            /* of a request to drop */
    bool done;
    struct conn_command *next;
};

enum link_state {
    LINK_DOWN,   /* no socket; the next is opened at link_time */
    LINK_ASKING, /* HELLO is in flight; it times out at link_time */
    LINK_UP,     /* with a key: HELLO is said again at link_time */
};

/* This client's part in a trace. Only the I/O thread uses it. */
struct conn_trace {
    struct conn_part part;  /* never attached: requests of the trace are sent for it */
    uint64_t number;        /* of the trace; 0: none is on */
    uint64_t last;          /* of the trace before, which late replies may still name */
    int64_t end_ns;         /* of this process' clock: when the trace ends */
    int64_t offset_ns;      /* the broker's clock less this one's, by the shortest round trip */
    int64_t trip_ns;        /* the shortest round trip; INT64_MAX: none yet */
    uint32_t trips;         /* round trips made to compare the clocks */
    bool sending;           /* a message is in flight */
    struct trace_list list; /* after the end: what is sent */
    uint32_t sent;          /* of these */
};

/* An endpoint that a connection has been given. It stays for as long as the connection, because callers borrow it. */
struct conn_place {
    struct conn_place *next;
    char endpoint[];
};

struct conn {
    const char *endpoint;      /* that is used or tried; the I/O thread changes it, with the mutex held */
    struct conn_place *places; /* all that it was given */
    char *name;
    char *host; /* "127.0.0.1", or NULL if the transport has none */
    void *context;
    bool own_context;
    bool has_key;
    struct key key;      /* with the keys that the broker may have; changed by the I/O thread */
    uint32_t broker_key; /* the one of them that is tried, or in use */
    uint32_t broken;     /* handshakes in a row that broke off without a reason */
    uint64_t client_id;
    struct conn_set *set;
    uint32_t shard; /* expected there; guarded by the set's mutex until the set is complete */
    uint32_t forks; /* forks_count and process id of the process that this connection's threads run in */
    int32_t pid;
    int64_t backoff_min_ns, backoff_max_ns;
    struct trace trace;      /* spans of any thread */
    struct conn_host broker; /* turn NULL: no host, and this connection has a thread */
    pthread_t thread;
    bool started; /* the thread runs, or there is a host */

    int wake_read, wake_write; /* -1: no thread to wake */
    atomic_bool woken;
    atomic_bool stopping;
    atomic_uint_fast64_t waited_ns; /* by callers, for answers that the broker gives at once */
    atomic_uint_fast64_t next_id; /* taken with the mutex held for samples, so that ids are in the order of submitted */

    pthread_mutex_t mutex; /* guards what follows, up to the I/O thread's part */
    pthread_cond_t changed;
    struct conn_request_list submitted;
    uint64_t cancels[CANCELS_MOST]; /* ids that the I/O thread is to cancel */
    uint32_t n_cancels;
    struct conn_command *commands;
    struct conn_hello *hello;
    enum link_state state;
    int64_t lost_ns; /* time at which the connection was lost */
    uint64_t reconnects;
    rp_error refusal;  /* the broker's answer to HELLO, if it was an error */
    const char *other; /* endpoint to try in turn with the first, because a shard has moved there; NULL: none */

    /* I/O thread */
    void *dealer, *monitor;
    uint64_t monitor_serial;
    enum link_state link;
    int64_t link_time;
    int64_t warn_time;     /* while no broker answers: when the log says so */
    int64_t warn_pause_ns; /* between the last two of these lines */
    char reason[128];      /* why the last attempt failed */
    uint32_t failures;
    uint64_t hello_id;
    bool reset_wanted;
    bool joined;        /* counted as up by the set */
    bool is_shard;      /* the broker is known to be one of several shards */
    uint32_t io_thread; /* number of the shard, as far as it is known: its I/O thread follows from it */
    bool pipe_ready;    /* the last poll found a wake-up in the pipe */
    /* The socket may hold something: it is new, its descriptor was readable, or it was used since it was read until it was empty. */
    bool dealer_used, monitor_used;
    uint64_t n_replies; /* taken so far */
    struct conn_request_list pending;
    uint64_t taken; /* id of the last request that another thread has submitted and this thread has taken */
    struct conn_request *buckets[REQUEST_BUCKETS];
    struct conn_part *parts;
    struct conn_trace tracing;
    struct rng rng;
};

/* conn.c: the thread's function; arg is the connection. */
void *conn_main(void *arg);
/* Does everything that can be done now; returns the time at which there is more to do. */
int64_t conn_turn(struct conn *self);
/* Ends all requests, when the thread stops. */
void conn_finish(struct conn *self);

/* conn_poll.c: waits until there is something to do, or until the time has come. */
struct conn_poll {
    struct pollfd *fds;
    uint32_t capacity;
};
void conn_poll(struct conn_poll *self, struct conn *conn, int64_t until_ns);

/* conn_wait.c: waits until the condition is signalled or the time has come, without the function of rp_wait_set. */
bool conn_wait_once(struct conn *self, pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns);

/* conn_life.c: tells the thread to stop, and does not wait for it. */
void conn_stop(struct conn *self);
/* Another shard says that this one is elsewhere now: while it is away, both places are tried in turn. */
void conn_moved(struct conn *self, const char *endpoint);
/* I/O thread: goes to the other place, if there is one. */
void conn_change_place(struct conn *self);

/* conn_link.c: opens, watches and reopens the sockets. */
void link_step(struct conn *self, int64_t now_ns);
void link_fail(struct conn *self, const char *why, int64_t now_ns);
/* From now on a broker is expected to answer: the log says so if it does not. */
void link_expect(struct conn *self, int64_t now_ns);
void link_close(struct conn *self);
/* No memory for a HELLO or its answer: retries later. */
void link_no_memory(struct conn *self);
/* Takes the answer to HELLO. */
void link_answer(struct conn *self, const struct conn_reply *reply);
/* Reads the monitor's events. */
void link_watch(struct conn *self, int64_t now_ns);

/* conn_request.c */
/* Makes a request without an id: conn_request_name sets it. */
struct conn_request *conn_request_new(struct conn *self, const struct conn_message *message);
void conn_request_name(struct conn_request *request, uint64_t id);
void conn_request_free(struct conn_request *request);
void conn_request_track(struct conn *self, struct conn_request *request);
struct conn_request *conn_request_find(struct conn *self, uint64_t id);
/* Takes a request out of pending; NULL if there is none. */
struct conn_request *conn_request_take(struct conn *self, uint64_t id);
void conn_request_transmit(struct conn *self, struct conn_request *request);
/* Ends a request that was taken out, with a status of the library. */
void conn_request_end(struct conn_request *request, rp_status status, const char *format, ...) RP_PRINTF(3, 4);
/* Ends requests past their deadline; returns the next deadline. */
int64_t conn_request_expire(struct conn *self, int64_t now_ns);
void conn_request_resend(struct conn *self);
/* Ends requests that are sent once: those of one part, or of all (NULL). tell: calls their reply functions. */
void conn_request_drop_once(struct conn *self, const struct conn_part *part, bool tell);
void conn_request_cancel(struct conn *self, uint64_t id, int64_t now_ns);
/* Cancels a request whose caller is gone: its reply function is no longer called. */
void conn_request_drop(struct conn *self, uint64_t id);
void conn_request_list_add(struct conn_request_list *list, struct conn_request *request);
/* Receives one message; false: there is none. Gives *reply to the caller. *reply NULL: the message is damaged, or there is no
 * memory for it, and *lost is the id of the request that it answers. */
bool reply_receive(struct conn *self, struct conn_reply **reply, uint64_t *lost);
/* Ends a request that was taken out, with this reply. Takes the reply. */
void conn_request_answer(struct conn_request *request, struct conn_reply *reply);
/* Returns a constant reply with RP_NO_MEMORY. */
struct conn_reply *reply_no_memory(void);

/* conn_trace.c */
/* A reply says that a trace is on. sent_ns: when its request was sent; 0: not known. */
void conn_trace_told(struct conn *self, const struct wire_reply *reply, int64_t sent_ns);
/* Adds the span of a request that was answered. */
void conn_trace_request(struct conn *self, const struct conn_request *request);
/* Sends the spans when the trace has ended; returns the time of the next call. */
int64_t conn_trace_tick(struct conn *self, int64_t now_ns);
void conn_trace_fini(struct conn *self);

/* conn_key.c */
/* Takes the key that is given, or reads the key file that the options or the environment name, if any. */
rp_status conn_key_load(struct conn *self, const rp_client_options *options, const struct key *given, rp_error *err);
/* The broker will have this key after its own was rotated. */
void conn_key_announced(struct conn *self, const uint8_t *public_key);
/* A handshake failed, by this event of a monitor and its value. False: another key of the broker is to be tried first. */
bool conn_key_failed(struct conn *self, uint16_t event, uint32_t value, rp_error *out);

/* conn_greeting.c: writes the mechanism that the peer at an endpoint speaks, "NULL" or "CURVE". False: not known. Waits for less
 * than a second. */
bool greeting_mechanism(const char *endpoint, char out[21]);

/* conn_join.c: returns the number of shards that the broker is one of; 1: it is alone. */
uint32_t conn_hello_count(const struct conn_hello *hello);

/* conn_hello.c */
struct conn_hello *hello_read(const struct conn_reply *reply, const char *host, rp_error *err);
/* Makes a stand-in, which keeps a reference to from. NULL: out of memory. */
struct conn_hello *hello_stand_in(const struct conn_hello *from);
/* Replaces "*" by the host in a tcp endpoint. NULL: out of memory. */
char *hello_endpoint(const char *endpoint, const char *host);

#endif
