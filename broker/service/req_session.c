/* HELLO, HEARTBEAT and BYE: the life of a session as the client sees it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/journal/stream.h"
#include "broker/service/info.h"
#include "broker/service/service.h"
#include "broker/session/session.h"
#include "proto/base/error.h"

static Replay__TableSpec **table_specs(struct arena *arena, const struct tables *tables)
{
    Replay__TableSpec **list, *specs = pb_messages(arena, &replay__table_spec__descriptor, tables->n, &list);
    for (uint32_t i = 0; i < tables->n; i++) {
        const struct table *table = &tables->list[i];
        specs[i].name = (char *)(uintptr_t)table->name;
        specs[i].id = table->id;
        specs[i].max_size = (uint64_t)table->config->max_size;
        specs[i].max_bytes = (uint64_t)table->config->max_bytes;
        specs[i].group_size = (uint32_t)table->config->group_size;
        specs[i].n_signature = table->signature.n;
        specs[i].signature = info_signature(arena, &table->signature);
    }
    return list;
}

static void hello_reply(struct service *service, struct request *request, struct session *session, bool resumed,
                        uint64_t lost)
{
    struct arena arena = {0};
    Replay__HelloReply reply = REPLAY__HELLO_REPLY__INIT;
    reply.heartbeat_ms = (uint32_t)(service->config->expiry_ns / CONFIG_HEARTBEATS / NS_PER_MS);
    reply.expiry_ms = (uint32_t)(service->config->expiry_ns / NS_PER_MS);
    reply.ingest = service->peers->told.ingest;
    reply.events = service->peers->told.events;
    reply.n_tables = service->tables->n;
    reply.tables = table_specs(&arena, service->tables);
    reply.max_message_bytes = (uint64_t)service->config->max_message_bytes;
    reply.instance = service->instance;
    reply.release = (char *)(uintptr_t)rp_version();
    reply.max_batch = SAMPLE_MAX_ITEMS;
    reply.max_keys = REQUEST_MAX_KEYS;
    struct identities *identities = &service->peers->identities;
    if (identities->has_next)
        reply.next_key = (ProtobufCBinaryData){KEY_BYTES, identities->next_key};
    if (service->shards.count) {
        reply.shard = (uint32_t)service->config->shard;
        reply.n_shards = service->shards.count;
        reply.shards = service->shards.list;
        reply.settings = service->config->settings;
    }
    Replay__Arena shared = REPLAY__ARENA__INIT;
    if (service->samples->store->shm && request->identity->roles & (KEY_LEARNER | KEY_ADMIN)) {
        struct memfile_name name = memfile_name(shm_file(service->samples->store->shm));
        shared.pid = name.pid;
        shared.fd = name.fd;
        shared.size = name.size;
        shared.nonce = name.nonce;
        reply.arena = &shared;
    }
    if (session) {
        reply.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, session->id};
        reply.ordinal = session->ordinal;
        reply.key_base = session->keys.base;
        reply.key_count = session->keys.count;
        reply.epoch = session->epoch;
        reply.credit = credit_message(&arena, session, false);
        reply.resumed = resumed;
        reply.lost_messages = lost;
        reply.reads = session->borrowed.data != NULL;
    }
    request_ok(service->peers, request, REPLAY__REPLY__BODY_HELLO, &reply.base);
    arena_fini(&arena);
}

/* Finds the session of an id that a client sent. NULL with err set. */
static struct session *find_session(struct service *service, const ProtobufCBinaryData *id, const struct identity *who,
                                    rp_error *err)
{
    struct session *session = id->len == WIRE_SESSION_BYTES ? session_find(service->sessions, id->data) : NULL;
    if (id->len != WIRE_SESSION_BYTES)
        err_set(err, RP_INVALID_ARGUMENT, "a session id has %u bytes, not %zu", WIRE_SESSION_BYTES, id->len);
    else if (!session)
        err_set(err, RP_SESSION_UNKNOWN,
                "this broker does not know the session: it was closed, it was silent for too long, or the broker has "
                "restarted without it. Open a new one with HELLO");
    else if (session_check_owner(session, who, err) != RP_OK)
        session = NULL;
    return session;
}

/* Refuses a further session of a key that has as many as it may. */
static rp_status check_sessions(const struct identity *identity, rp_error *err)
{
    if (identity->quota.sessions == 0 || identity->sessions < identity->quota.sessions)
        return RP_OK;
    return err_set(
        err, RP_RESOURCE_EXHAUSTED,
        "the key '%s' has %u open writers, which is its limit: close one, or raise sessions= in the broker's "
        "list of keys",
        identity->name, identity->sessions);
}

static struct session *hello_open(struct service *service, const Replay__Hello *ask, struct identity *who,
                                  rp_error *err)
{
    if (check_sessions(who, err) != RP_OK)
        return NULL;
    struct columns *columns = columns_new(ask->columns, ask->n_columns, err);
    struct session *session = columns ? session_open(service->sessions, ask->name, columns, who, err) : NULL;
    if (!session) {
        columns_release(columns);
        return NULL;
    }
    EFFECT(service->loop, session, session);
    log_line(LEVEL_DEBUG, "B0101", "session opened", "name=%s ordinal=%u columns=%u", log_text(session->name),
             session->ordinal, session->columns->count);
    return session;
}

/* Resumes the session that the request names. If it states columns, they must be those of the session. */
static struct session *hello_resume(struct service *service, const Replay__Hello *ask, struct identity *who,
                                    uint64_t *lost, rp_error *err)
{
    struct columns *columns = ask->n_columns ? columns_new(ask->columns, ask->n_columns, err) : NULL;
    if (ask->n_columns && !columns)
        return NULL;
    struct session *session = find_session(service, &ask->session, who, err);
    if (session && session->tombstone && check_sessions(who, err) != RP_OK)
        session = NULL;
    if (session && columns && !columns_equal(columns, session->columns)) {
        err_set(err, RP_INVALID_ARGUMENT,
                "the columns are not those with which session '%s' was opened: open a new session", session->name);
        session = NULL;
    }
    columns_release(columns);
    if (session) {
        if (session->owner != who) {
            session_set_owner(session, who);
            EFFECT(service->loop, session, session);
        }
        session_resume(session, ask->oldest_number, lost);
        credit_refresh(session);
    }
    return session;
}

rp_status req_hello(struct service *service, struct request *request, rp_error *err)
{
    Replay__Hello *ask = (Replay__Hello *)request->body;
    if (ask->session.len == 0 && ask->n_columns == 0) {
        /* It changes nothing. A client that asks why the broker stands still must not wait for the journal. */
        service->peers->commit.ahead = true;
        hello_reply(service, request, NULL, false, 0);
        return RP_OK;
    }
    if (service->loop->draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down and takes no further sessions");
    RP_TRY(identity_check(request->identity, KEY_ACTOR, "a writer's session", err));
    uint64_t lost = 0;
    bool resumed = ask->session.len != 0;
    struct session *session = resumed ? hello_resume(service, ask, request->identity, &lost, err)
                                      : hello_open(service, ask, request->identity, err);
    if (!session)
        return (rp_status)err->status;
    session->notices = ask->notices;
    session->remote = request_is_remote(request);
    session->to = request->from;
    session_borrow(session, ask->memory);
    hello_reply(service, request, session, resumed, lost);
    return RP_OK;
}

/* Answers a heartbeat with a Credit that confirms nothing: it has no tables and no numbers, only a sentence and, of an expired
 * session, the request for a HELLO. */
static rp_status heartbeat_bare(struct service *service, struct request *request, const struct session *session,
                                char *text)
{
    Replay__Credit credit = REPLAY__CREDIT__INIT;
    /* The client's epoch, or it would ignore the answer: a broker that was restored from a checkpoint may know an older one. */
    credit.epoch = ((const Replay__Heartbeat *)request->body)->epoch;
    credit.session = session->ordinal;
    credit.gap = credit.expired = session->tombstone; /* a gap, which every client follows with HELLO */
    credit.n_waiting = 1;
    credit.waiting = &text;
    service->peers->commit.ahead = true;
    request_reply(service->peers, request,
                  &(struct answer){RP_OK, text, REPLAY__REPLY__BODY_CREDIT, &credit.base, NULL, 0});
    service->peers->commit.ahead = false;
    return RP_OK;
}

/* Refuses a heartbeat of an earlier epoch. It comes from a connection that the writer has closed: it must neither redirect the
 * notices nor confirm anything. */
static rp_status check_epoch(const struct session *session, uint32_t epoch, rp_error *err)
{
    if (epoch == session->epoch || (session->tombstone && epoch > session->epoch))
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "the heartbeat is of epoch %u, session '%s' is at epoch %u: state the epoch of the newest HELLO",
                   epoch, session->name, session->epoch);
}

rp_status req_heartbeat(struct service *service, struct request *request, rp_error *err)
{
    Replay__Heartbeat *ask = (Replay__Heartbeat *)request->body;
    struct session *session = find_session(service, &ask->session, request->identity, err);
    if (!session)
        return (rp_status)err->status;
    RP_TRY(check_epoch(session, ask->epoch, err));
    char text[400];
    if (session->tombstone) { /* a client would take an error for the end of the session */
        snprintf(text, sizeof text,
                 session->restored ? "the broker has restarted: resume session '%s' with HELLO"
                                   : "session '%s' was silent for too long and has expired: resume it with HELLO",
                 session->name);
        return heartbeat_bare(service, request, session, text);
    }
    session_touch(session, service->loop->now_ns);
    session->to = request->from;
    credit_confirm(session, ask->confirmed_rejections);
    credit_release(session, ask->released_bytes);
    credit_measure(session);
    transit_measure(session, &(struct transit_report){ask->sent, ask->waited_ns, ask->flight_ns});
    if (service->sessions->ingest_stuck || commit_is_stuck(service->peers)) {
        char why[256] = "the disk is slow";
        stream_is_full(service->stream, why, sizeof why);
        snprintf(text, sizeof text, "the broker waits for its journal: %s. Nothing more is confirmed until then", why);
        return heartbeat_bare(service, request, session, text);
    }
    double owes_s = identity_owes_s(session->owner, service->loop->now_ns);
    if (owes_s > 0.0) {
        snprintf(text, sizeof text, "the key '%s' may insert %lld items/s: the next credit comes in %.1f s",
                 session->owner->name, (long long)session->owner->quota.inserts_per_second, owes_s);
        return heartbeat_bare(service, request, session, text);
    }
    credit_refresh(session);
    struct arena arena = {0};
    request_ok(service->peers, request, REPLAY__REPLY__BODY_CREDIT,
               &credit_message(&arena, session, ask->explain)->base);
    arena_fini(&arena);
    return RP_OK;
}

rp_status req_bye(struct service *service, struct request *request, rp_error *err)
{
    Replay__Bye *ask = (Replay__Bye *)request->body;
    struct session *session = find_session(service, &ask->session, request->identity, err);
    if (!session)
        return (rp_status)err->status;
    if (session->tombstone)
        return err_set(err, RP_FAILED_PRECONDITION,
                       session->restored
                           ? "the broker has restarted: resume session '%s' with HELLO, then say BYE again"
                           : "session '%s' was silent for too long and has expired, and items that waited were "
                             "dropped: resume it with HELLO, then say BYE again",
                       session->name);
    if (session->goodbye)
        return err_set(err, RP_ALREADY_EXISTS, "session '%s' has said BYE already", session->name);
    session_touch(session, service->loop->now_ns);
    bool timed = ask->has_timeout_ms_case == REPLAY__BYE__HAS_TIMEOUT_MS_TIMEOUT_MS;
    return session_say_goodbye(session, request, ask->last_number, timed ? ask->timeout_ms : WAIT_FOREVER, err);
}
