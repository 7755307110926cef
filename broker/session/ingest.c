/* Messages of a session are taken in the order of their numbers, each once. What is wrong with one item concerns that item
 * alone: it is rejected with a sentence, and the other items are taken. */
#include "broker/session/ingest.h"

#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/frames.h"
#include "broker/peer/peers.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"
#include "broker/session/intake.h"
#include "broker/session/session_chunks.h"
#include "proto/base/error.h"

/* Most blocks of one message: a chunk takes 16 bytes of the header, however many columns it has. */
#define BLOCKS_PER_MESSAGE (1u << 20)
#define FRAMES_MOST 1024u

void intake_complain(struct sessions *sessions, const char *id, const char *what, const struct session *session,
                     const char *text)
{
    uint32_t held;
    char quoted[320], name[SESSION_QUOTED];
    if (log_allow(&sessions->ingest_log, 5, sessions->loop->now_ns, &held))
        log_line(LEVEL_WARN, id, what, "session=%s text=%s held_back=%u", session ? session_quoted(session, name) : "-",
                 log_quote(quoted, sizeof quoted, text), held);
}

/* Returns the flow of a message with one item for a table that has no unresolved item of the session: it needs no credit. NULL
 * for other messages. */
static const struct flow *lone_flow(const struct intake *self)
{
    if (self->in.n_items != 1)
        return NULL;
    uint32_t id = 0;
    for (uint32_t run = 0; run < self->in.n_runs; run++)
        if (pb_u32(&self->in.run_items, run) == 1)
            id = pb_u32(&self->in.run_layout, run);
    const struct session *session = self->session;
    const struct table *table = id < session->n_layouts ? session->layouts[id].table : NULL;
    const struct flow *flow = table ? session->flows[table->id] : NULL;
    return flow && flow->arrived == flow->resolved ? flow : NULL;
}

/* Checks the message as a whole: its bytes against the credit, its frames against its chunks. */
static rp_status message_check(struct intake *self, rp_error *err)
{
    struct session *session = self->session;
    struct sessions *sessions = session->sessions;
    uint32_t frames = self->in.n_chunks - self->in.packed + (self->in.packed ? 1 : 0);
    /* Bytes that have arrived count as granted, whether they were or not: offered - returned stays true. */
    uint64_t allowed = session->allowed_bytes;
    bool over = session->received_bytes > allowed;
    if (session->received_bytes > session->offered_bytes)
        credit_offer(session, session->received_bytes - session->offered_bytes);
    uint64_t blocks = (uint64_t)self->in.n_chunks * session->columns->count;
    if (blocks > BLOCKS_PER_MESSAGE)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "%u chunks of %u columns in one message are too many: send fewer",
                       self->in.n_chunks, session->columns->count);
    if (self->n_payload != frames)
        return err_set(err, RP_BAD_MESSAGE, "%u payload frames where %u chunks, %u of them packed, need %u",
                       self->n_payload, self->in.n_chunks, self->in.packed, frames);
    if (self->bytes > (uint64_t)sessions->config->max_message_bytes)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "message %llu has %llu bytes, at most %lld are allowed",
                       (unsigned long long)self->in.number, (unsigned long long)self->bytes,
                       (long long)sessions->config->max_message_bytes);
    if (!over || self->lone)
        return RP_OK;
    uint32_t held;
    char name[SESSION_QUOTED];
    if (log_allow(&sessions->credit_log, 5, sessions->loop->now_ns, &held))
        log_line(LEVEL_WARN, "B0206", "a writer ignores its credit", "session=%s message=%llu held_back=%u",
                 session_quoted(session, name), (unsigned long long)self->in.number, held);
    return err_set(err, RP_CREDIT_EXCEEDED,
                   "message %llu goes %llu bytes over what the session was allowed: wait for credit",
                   (unsigned long long)self->in.number, (unsigned long long)(session->received_bytes - allowed));
}

/* Starts the ring of a resumed tombstone anew, at the oldest chunk that the writer can still refer to. */
static void ring_rebase(struct intake *self)
{
    uint64_t base = self->in.oldest_chunk ? self->in.oldest_chunk : 1;
    for (uint32_t i = 0; i < self->in.n_chunks; i++) {
        uint64_t number = pb_u64(&self->in.chunk_number, i);
        base = number && number < base ? number : base;
    }
    self->session->oldest_chunk = base;
    self->session->newest_chunk = base - 1;
    self->session->rebase = false;
}

/* Counts a message as lost that there is no memory for: its writer sends it again, and what was taken of it is known by its
 * numbers. The writer learns of it with the answer to its next heartbeat: at once, writer and broker would do nothing else. */
static void message_missed(struct session *session, uint64_t number)
{
    session->received = number - 1;
    session->gap = true;
    intake_complain(session->sessions, "B0211", "no memory for a message: its writer sends it again", session,
                    "lower memory_limit, or give the machine more memory");
}

/* Counts a message as lost that came without credit while its key owes: otherwise a writer that sends its items one by one would
 * have no limit. Its writer hears of it with the next credit. */
static void message_early(struct session *session, uint64_t number)
{
    session->received = number - 1;
    session->gap = true;
    credit_mark(session, true);
}

static void take_message(struct intake *self)
{
    struct session *session = self->session;
    bool owes = session->owner->quota.inserts_per_second &&
                identity_owes_s(session->owner, session->sessions->loop->now_ns) > 0.0;
    session->received = self->in.number;
    if (self->in.number > session->counted) {
        session->counted = self->in.number;
        session->received_bytes += self->bytes;
        credit_use(session);
        if (session->owner->quota.inserts_per_second)
            identity_inserted(session->owner, self->in.n_items, session->sessions->loop->now_ns);
    } else {
        self->bytes = 0;
    }
    if (session->rebase)
        ring_rebase(self);
    bool taken = !self->in.n_layouts || intake_layouts(self);
    const struct flow *lone = lone_flow(self);
    self->lone = lone != NULL;
    rp_error err;
    err.text[0] = '\0';
    self->refused = message_check(self, &err);
    self->why = err.text;
    bool early = owes && lone && lone->arrived >= lone->allowed;
    taken = taken && !early;
    if (taken && self->refused == RP_OK && self->in.n_chunks)
        taken = intake_chunks(self);
    taken = taken && intake_items(self);
    self->why = NULL;
    if (early)
        message_early(session, self->in.number);
    else if (!taken)
        message_missed(session, self->in.number);
    else
        /* Items of this message hold their own chunks. More chunks are released than have come, or a writer of many small
         * chunks would never catch up. */
        session_drop_chunks(session, self->in.oldest_chunk, 2048 + 2 * (uint32_t)self->in.n_chunks);
    if (!self->message)
        credit_return(session, self->bytes);
    credit_mark(session, false);
}

/* The loop has read its clock just before it received the message: so nothing has to be kept for a trace that is off. */
static __attribute__((noinline)) void trace_insert(const struct intake *self)
{
    struct loop *loop = self->session->sessions->loop;
    loop_trace_end(
        loop, "insert", loop->now_ns,
        (struct trace_span){
            .who = self->session->ordinal, .id = self->in.number, .count = self->in.n_items, .link = TRACE_INGEST});
}

/* True if the sender of a message may write, and opened the session. Its writer learns otherwise with its next heartbeat. */
static bool may_feed(const struct session *session, zmq_msg_t *frames)
{
    struct sessions *sessions = session->sessions;
    if (!sessions->peers->identities.on)
        return true;
    const struct identity *who = identity_of(sessions->peers, &frames[0]);
    rp_error err = {0};
    if (identity_check(who, KEY_ACTOR, "an insert", &err) == RP_OK && session_check_owner(session, who, &err) == RP_OK)
        return true;
    sessions->ingest_stale++;
    intake_complain(sessions, "B0213", "message refused", session, err.text);
    return false;
}

/* Skips a message whose header is damaged. If it names its session and is the next of it, the writer gets a rejection. */
static void message_bad(struct sessions *sessions, const struct wire_ingest *in, zmq_msg_t *frames, const char *text)
{
    sessions->peers->counters.messages_bad++;
    struct session *session = session_find(sessions, in->session);
    intake_complain(sessions, "B0207", "bad ingest message", session, text);
    if (!session || session->tombstone || session->gap || in->epoch != session->epoch ||
        in->number != session->received + 1 || !may_feed(session, frames))
        return;
    if (!credit_reserve(session)) {
        message_missed(session, in->number);
        return;
    }
    session->received = in->number;
    struct rejection rejection = {.table = REJECTED_NOWHERE, .status = RP_BAD_MESSAGE, .text = (char *)(uintptr_t)text};
    credit_reject_at(session, &rejection);
}

/* Takes a message of n frames and so many bytes; of a longer message the rest was dropped. */
static void message_receive(struct sessions *sessions, zmq_msg_t *frames, uint32_t n, uint64_t bytes)
{
    struct intake intake = {.payload = frames + 1, .n_payload = n - 1, .bytes = bytes};
    rp_error err;
    rp_status status = wire_read_ingest(zmq_msg_data(&frames[0]), zmq_msg_size(&frames[0]), &intake.in, &err);
    if (status == RP_OK && intake.in.version != WIRE_VERSION)
        status = err_set(&err, RP_UNSUPPORTED, "protocol version %u is unknown here: this broker speaks version %u",
                         intake.in.version, WIRE_VERSION);
    if (status != RP_OK) {
        message_bad(sessions, &intake.in, frames, err.text);
        return;
    }
    struct session *session = intake.session = session_find(sessions, intake.in.session);
    if (!session || session->tombstone || intake.in.epoch != session->epoch) {
        sessions->ingest_stale++;
        if (!session)
            intake_complain(sessions, "B0208", "message of an unknown session ignored", NULL,
                            "it has ended, or this broker never knew it");
        return;
    }
    if (!may_feed(session, frames))
        return;
    session_touch(session, sessions->loop->now_ns);
    if (intake.in.number <= session->received || sessions->loop->draining)
        return;
    /* After a gap nothing is taken until HELLO, not even the message that was missing: what the writer sends again comes in
     * a new epoch, so anything else is left over from a connection that the writer has closed. */
    if (session->gap || intake.in.number > session->received + 1) {
        sessions->ingest_gaps++;
        if (!session->gap) {
            char name[SESSION_QUOTED];
            session->gap = true;
            log_line(LEVEL_WARN, "B0209", "messages were lost on the way", "session=%s received=%llu next=%llu",
                     session_quoted(session, name), (unsigned long long)session->received,
                     (unsigned long long)intake.in.number);
            credit_mark(session, true);
        }
        return;
    }
    take_message(&intake);
    if (trace_on(&sessions->loop->trace))
        trace_insert(&intake);
}

bool ingest_receive(struct sessions *sessions)
{
    static _Thread_local zmq_msg_t frames[FRAMES_MOST];
    uint32_t n;
    bool whole;
    struct way from = {sessions->peers->ingest, sessions->peers->ducts ? &sessions->peers->ducts->data : NULL};
    if (!frames_receive(from, frames, FRAMES_MOST, &n, &whole))
        return false;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += zmq_msg_size(&frames[i]);
    sessions->peers->counters.messages_in++;
    sessions->peers->counters.bytes_in += bytes;
    message_receive(sessions, frames, n, bytes);
    frames_close(frames, n);
    return true;
}
