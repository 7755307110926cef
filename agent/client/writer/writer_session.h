/* A writer's session with the broker, as a part of the client's connection: HELLO, heartbeats, credit, the PUSH socket,
 * and what happens when any of them fails. Runs on the I/O thread. */
#ifndef AGENT_CLIENT_WRITER_SESSION_H
#define AGENT_CLIENT_WRITER_SESSION_H

#include "agent/client/conn/conn.h"
#include "agent/client/outbox/outbox.h"

enum writer_session_state {
    SESSION_CLOSED, /* no connection */
    SESSION_ASKING, /* HELLO is under way */
    SESSION_OPEN,
    SESSION_WAITING, /* HELLO was not answered well: again at retry_ns */
    SESSION_LEAVING, /* BYE is under way: its keys are used up, and a new one takes its place */
};

struct writer_session {
    struct conn_part part; /* first: reply functions get it */
    struct conn *conn;
    struct handoff *handoff;
    struct outbox outbox;
    char name[RP_MAX_NAME + 1];
    Replay__Column **columns; /* for HELLO */
    uint32_t n_columns;
    enum writer_session_state state;
    uint8_t id[WIRE_SESSION_BYTES];
    bool has_id;
    bool refused; /* the first HELLO was: the writer is not going to be */
    uint32_t epoch, ordinal;
    struct conn_hello *hello; /* shared: where data goes */
    void *push;
    bool push_full;
    int64_t heartbeat_ns, expiry_ns;
    int64_t next_heartbeat_ns, answered_ns, retry_ns, explain_ns;
    int64_t ticked_ns;          /* the last look at the time; 0: none yet */
    uint64_t answered_sent;     /* what the last answered heartbeat had stated as sent */
    uint64_t answered_received; /* and what the broker had received then */
    uint64_t stated_sent;
    int64_t stuck_ns; /* since when messages do not arrive */
    int64_t patience;
    bool confirm; /* rejections were read, or credit is given up: say so */
};

struct writer_session_options {
    struct conn *conn;
    struct handoff *handoff;
    const struct step_stream *stream; /* its columns are copied */
    const struct conn_hello *hello;
    const char *name;
    int32_t doubt; /* rp_doubt */
};

bool writer_session_init(struct writer_session *self, const struct writer_session_options *options);
/* After conn_detach. */
void writer_session_fini(struct writer_session *self);

#endif
