/* A writer's session with the broker, as a part of the client's connection: HELLO, heartbeats, credit, the PUSH socket, and
 * recovery when any of them fails. Runs on the I/O thread. */
#pragma once

#include "agent/client/conn/conn.h"
#include "agent/client/writer/outbox.h"

enum writer_session_state {
    SESSION_CLOSED, /* no connection */
    SESSION_ASKING, /* HELLO is in flight */
    SESSION_OPEN,
    SESSION_WAITING, /* HELLO has failed: it is sent again at retry_ns */
    SESSION_LEAVING, /* BYE is in flight: the keys are used up, and a new session follows */
};

struct writer_session {
    struct conn_part part; /* first: reply functions get it */
    struct conn *conn;
    struct handoff *handoff;
    struct outbox outbox;
    char name[RP_MAX_NAME + 1];
    Replay__Column **columns; /* for HELLO */
    uint32_t n_columns;
    Replay__Arena memory; /* for HELLO: size 0, if there is none */
    enum writer_session_state state;
    bool has_id;              /* outbox.session is the id of a session that the broker may know */
    bool refused;             /* the first HELLO was refused: the writer is not opened */
    struct conn_hello *hello; /* a reference: the endpoint for ingest */
    void *push;
    bool push_full;
    int64_t heartbeat_ns, expiry_ns;
    int64_t next_heartbeat_ns, answered_ns, retry_ns, explain_ns;
    int64_t ticked_ns;          /* time of the last tick; 0: none yet */
    uint64_t answered_sent;     /* `sent` in the last heartbeat that was answered */
    uint64_t answered_received; /* `received` in its answer */
    uint64_t stated_sent;
    uint64_t flight_number; /* message whose arrival is timed; 0: none */
    int64_t flight_from_ns; /* when it was sent */
    int64_t flight_ns;      /* how long the last one took until its arrival was known; 0: not known */
    int64_t stuck_ns;       /* time since which messages do not arrive; 0: they do */
    int64_t patience;
    bool confirm; /* send a heartbeat: rejections were read, or credit was released */
};

/* Borrows what it is given; the options are those that were checked, with a name. False: no memory. */
bool writer_session_init(struct writer_session *self, struct conn *conn, struct handoff *handoff,
                         struct step_stream *stream, const struct conn_hello *hello, const rp_writer_options *options);
/* Makes the message that ends the session, with this body. */
struct conn_message writer_session_bye(struct writer_session *self, Replay__Bye *body, int64_t timeout_ms);
/* Call it after conn_detach. */
void writer_session_fini(struct writer_session *self);
