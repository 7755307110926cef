/* What the files conn*.c share. Everything below "I/O thread" is touched by that
 * thread alone. */
#ifndef AGENT_CLIENT_CONN_IMPL_H
#define AGENT_CLIENT_CONN_IMPL_H

#include <stdatomic.h>

#include "agent/client/conn/conn.h"
#include "proto/base/rng.h"

#define REQUEST_BUCKETS 64u
#define CANCEL_GRACE_MS 1000
#define CANCELS_MOST 64u

enum conn_request_field {
    REQUEST_HELLO = 16,
    REQUEST_HEARTBEAT = 17,
    REQUEST_BYE = 18,
    REQUEST_SAMPLE = 19,
    REQUEST_CANCEL = 22,
};

struct conn_request {
    uint64_t id;
    uint32_t field;                   /* of the body */
    struct conn_request *next, *prev; /* in the order of sending; samples by their ids, too */
    struct conn_request *chain;       /* of its bucket */
    zmq_msg_t header;
    zmq_msg_t *payload;
    uint32_t n_payload;
    int64_t deadline_ns;
    int64_t timeout_ms;
    conn_reply_fn *fn;
    void *ctx;
    struct conn_part *part;   /* set: sent once, for this part */
    struct conn_reply *reply; /* made with it: whatever becomes of the request, that can be told */
    bool cancelled;
    bool sent;  /* at least once */
    bool again; /* sent again because there was no memory, here or at the broker; not a third time */
};

struct conn_request_list {
    struct conn_request *first, *last;
};

enum conn_command_kind { COMMAND_ATTACH, COMMAND_DETACH };

/* On the stack of a thread that waits until it is done. */
struct conn_command {
    enum conn_command_kind kind;
    struct conn_part *part;
    bool done;
    struct conn_command *next;
};

enum link_state {
    LINK_DOWN,   /* no socket; a new one at link_time */
    LINK_ASKING, /* HELLO is under way; given up at link_time */
    LINK_UP,
};

struct conn {
    char *endpoint;
    char *name;
    char *host; /* "127.0.0.1", or NULL if the transport has none */
    void *context;
    bool own_context;
    uint64_t client_id;
    int64_t backoff_min_ns, backoff_max_ns;
    struct conn_host broker; /* turn NULL: elsewhere, and this connection has a thread */
    pthread_t thread;
    bool started; /* the thread, or what stands for it */

    int wake_read, wake_write; /* -1: nobody sleeps who could be woken */
    atomic_bool woken;
    atomic_bool stopping;
    atomic_uint_fast64_t next_id; /* of samples: taken with the mutex held, in the order of submitted */

    pthread_mutex_t mutex; /* guards what follows, up to the I/O thread's part */
    pthread_cond_t changed;
    struct conn_request_list submitted;
    uint64_t cancels[CANCELS_MOST]; /* left for the I/O thread */
    uint32_t n_cancels;
    struct conn_command *commands;
    struct conn_hello *hello;
    enum link_state state;
    int64_t lost_ns; /* since when nobody answers */
    uint64_t reconnects;
    rp_error refusal; /* the broker's answer to HELLO, when it was an error */

    /* I/O thread */
    void *dealer, *monitor;
    uint64_t monitor_serial;
    enum link_state link;
    int64_t link_time;
    uint32_t failures;
    uint64_t hello_id;
    bool reset_wanted;
    bool pipe_ready;    /* the last poll saw something in the wake-up pipe */
    uint64_t n_replies; /* taken so far */
    struct conn_request_list pending;
    uint64_t taken; /* id of the last request that another thread has submitted and that is, or was, pending */
    struct conn_request *buckets[REQUEST_BUCKETS];
    struct conn_part *parts;
    struct rng rng;
};

/* conn.c: the thread's function; arg is the connection. */
void *conn_main(void *arg);
/* The thread's last act: ends all requests. */
void conn_finish(struct conn *self);

/* conn_life.c: tells the thread to end, and does not wait for it. */
void conn_stop(struct conn *self);

/* conn_link.c: the sockets, and when to make new ones. */
void link_step(struct conn *self, int64_t now_ns);
void link_fail(struct conn *self, const char *why, int64_t now_ns);
void link_close(struct conn *self);
/* There is no memory for a HELLO or its answer: tried again later. */
void link_no_memory(struct conn *self);
/* The answer to the HELLO of this attempt. */
void link_answer(struct conn *self, const struct conn_reply *reply);
/* Reads what the monitor has to say. */
void link_watch(struct conn *self, int64_t now_ns);

/* conn_request.c */
/* Without an id yet: conn_request_name gives it one. */
struct conn_request *conn_request_new(struct conn *self, const struct conn_message *message);
void conn_request_name(struct conn_request *request, uint64_t id);
void conn_request_free(struct conn_request *request);
void conn_request_track(struct conn *self, struct conn_request *request);
struct conn_request *conn_request_find(struct conn *self, uint64_t id);
/* Takes it out of pending; NULL if there is none. */
struct conn_request *conn_request_take(struct conn *self, uint64_t id);
void conn_request_transmit(struct conn *self, struct conn_request *request);
/* Ends one that was taken out, without an answer. */
void conn_request_end(struct conn_request *request, rp_status status, const char *format, ...) RP_PRINTF(3, 4);
/* Ends those past their deadline; gives the next deadline. */
int64_t conn_request_expire(struct conn *self, int64_t now_ns);
void conn_request_resend(struct conn *self);
/* Ends the requests of parts (or of one) that are sent once. */
void conn_request_drop_once(struct conn *self, const struct conn_part *part, bool tell);
void conn_request_cancel(struct conn *self, uint64_t id, int64_t now_ns);
void conn_request_list_add(struct conn_request_list *list, struct conn_request *request);
/* Reads one message: false if there is none. *reply is given to the caller and may be NULL even so: it is
 * damaged, or there is no memory for it, and *lost says which request it answered. */
bool reply_receive(struct conn *self, struct conn_reply **reply, uint64_t *lost);
/* Ends a request that was taken out, with a reply that is given to it. */
void conn_request_answer(struct conn_request *request, struct conn_reply *reply);
/* A reply that says so. Needs no memory. */
struct conn_reply *reply_no_memory(void);

/* conn_hello.c */
struct conn_hello *hello_read(const struct conn_reply *reply, const char *host, rp_error *err);
/* Puts the host in the place of a "*" in a tcp endpoint. NULL: out of memory. */
char *hello_endpoint(const char *endpoint, const char *host);

#endif
