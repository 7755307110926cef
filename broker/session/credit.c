/* What writers hear about their credit: notices, rejections, and the Credit message. */
#include "broker/session/credit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/session/bye.h"
#include "broker/session/flow.h"
#include "broker/session/pump.h"
#include "broker/session/session.h"
#include "broker/table/table.h"
#include "proto/base/utf8.h"

#define REJECTIONS_PER_MESSAGE 32u
/* Least time between two notices; while data arrives they come less often, since each costs as much as many items. */
#define NOTICE_NS (100 * NS_PER_US)
#define BUSY_NOTICE_NS NS_PER_MS

void credit_mark(struct session *self, bool urgent)
{
    struct sessions *sessions = self->sessions;
    self->urgent |= urgent;
    if (self->dirty)
        return;
    self->dirty = true;
    self->next_dirty = sessions->dirty;
    sessions->dirty = self;
}

/* True if something has changed since the last notice. */
static bool has_news(const struct session *self)
{
    bool news = self->urgent || self->returned_bytes != self->told_returned;
    for (uint32_t i = 0; i < self->n_tables && !news; i++)
        news = self->flows[i] && self->flows[i]->resolved != self->flows[i]->told_resolved;
    return news;
}

/* True if a notice should be sent now: an eighth of a window has come free, or the writer may be waiting for the rest. */
static bool is_due(const struct session *self)
{
    const struct sessions *sessions = self->sessions;
    if (self->urgent || self->bye)
        return true;
    if (self->returned_bytes - self->told_returned >= self->window_bytes / 8 && self->window_bytes)
        return true;
    for (uint32_t i = 0; i < self->n_tables; i++) {
        const struct flow *flow = self->flows[i];
        if (!flow || flow->resolved == flow->told_resolved)
            continue;
        if (flow->resolved - flow->told_resolved >= flow->window / 8)
            return true;
    }
    return sessions->config->prompt ||
           sessions->loop->now_ns - self->told_ns >= (sessions->ingest_idle ? NOTICE_NS : BUSY_NOTICE_NS);
}

static void send_notice(struct session *self)
{
    struct credit_message *message = credit_message_new(self, false);
    if (!message)
        return;
    request_send(self->sessions->peers, &self->to, 0,
                 &(struct answer){RP_OK, NULL, REPLAY__REPLY__BODY_CREDIT, credit_message_body(message), NULL, 0});
    credit_message_destroy(&message);
}

void credit_notify(struct sessions *sessions)
{
    struct session **at = &sessions->dirty;
    while (*at) {
        struct session *self = *at;
        bool news = self->notices && !self->tombstone && has_news(self);
        if (news && (!is_due(self) || identity_owes_s(self->owner, sessions->loop->now_ns) > 0.0)) {
            at = &self->next_dirty;
            continue;
        }
        *at = self->next_dirty;
        self->dirty = self->urgent = false;
        if (news) {
            credit_refresh(self);
            send_notice(self);
        }
        if (self->bye)
            bye_check(self);
    }
}

void credit_reject(struct flow *flow, uint64_t key, rp_status status, const char *text)
{
    flow->rejected++;
    flow->table->stats.rejected++;
    struct rejection rejection = {flow->table->id, status, flow->resolved + 1, key, (char *)(uintptr_t)text};
    credit_reject_at(flow->session, &rejection);
}

void credit_reject_at(struct session *self, const struct rejection *rejection)
{
    struct sessions *sessions = self->sessions;
    uint32_t held;
    if (log_allow(&sessions->reject_log, 5, sessions->loop->now_ns, &held)) {
        char quoted[320], name[SESSION_QUOTED];
        log_line(LEVEL_WARN, "B0203", "item rejected", "session=%s table=%s key=%llu status=%s text=%s held_back=%u",
                 session_quoted(self, name),
                 rejection->table < sessions->tables->n ? sessions->tables->list[rejection->table].name : "-",
                 (unsigned long long)rejection->key, rp_status_name((int32_t)rejection->status),
                 log_quote(quoted, sizeof quoted, rejection->text), held);
    }
    credit_mark(self, true);
    EFFECT(sessions->loop, rejection, self, rejection);
    credit_keep_rejection(self, rejection); /* without the memory for it, Credit.rejected still counts it */
}

bool credit_reserve(struct session *self)
{
    if (self->rejection_count < self->rejection_capacity || self->rejection_count >= REJECTIONS_KEPT)
        return true;
    uint32_t capacity = self->rejection_capacity ? self->rejection_capacity * 2 : 16;
    struct rejection *ring = malloc(capacity * sizeof *ring);
    if (!ring)
        return false;
    for (uint32_t i = 0; self->rejection_capacity && i < self->rejection_count; i++)
        ring[i] = self->rejections[(self->rejection_head + i) % self->rejection_capacity];
    free(self->rejections);
    self->rejections = ring;
    self->rejection_capacity = capacity;
    self->rejection_head = 0;
    return true;
}

bool credit_keep_rejection(struct session *self, const struct rejection *rejection)
{
    if (self->rejection_count >= REJECTIONS_KEPT || !credit_reserve(self))
        return false; /* the writer ignores its credit */
    struct rejection *place =
        &self->rejections[(self->rejection_head + self->rejection_count++) % self->rejection_capacity];
    *place = *rejection;
    place->text = strdup(rejection->text ? rejection->text : "");
    if (place->text) /* it may quote what a client sent, cut in the middle of a character */
        utf8_clean(place->text, strlen(place->text));
    return true;
}

void credit_confirm(struct session *self, uint64_t confirmed)
{
    while (self->rejection_count && self->confirmed_rejections < confirmed) {
        free(self->rejections[self->rejection_head].text);
        self->rejection_head = (self->rejection_head + 1) % self->rejection_capacity;
        self->rejection_count--;
        self->confirmed_rejections++;
    }
}

/* The message, and the arrays that it points to. */
struct credit_message {
    Replay__Credit body;
    uint32_t *table;
    uint64_t *resolved, *allowed, *rejected;
    Replay__Rejection rejections[REJECTIONS_PER_MESSAGE], *rejection_list[REJECTIONS_PER_MESSAGE];
    char **waiting;
};

static void add_rejections(struct credit_message *self, const struct session *session)
{
    self->body.rejections = self->rejection_list;
    self->body.first_rejection = session->confirmed_rejections;
    for (uint32_t i = 0; i < session->rejection_count && i < REJECTIONS_PER_MESSAGE; i++) {
        const struct rejection *from =
            &session->rejections[(session->rejection_head + i) % session->rejection_capacity];
        replay__rejection__init(&self->rejections[i]);
        self->rejections[i].table = from->table;
        self->rejections[i].item = from->item;
        self->rejections[i].key = from->key;
        self->rejections[i].status = (uint32_t)from->status;
        self->rejections[i].text = from->text ? from->text : (char *)(uintptr_t) "";
        self->rejection_list[self->body.n_rejections++] = &self->rejections[i];
    }
}

static void add_waiting(struct credit_message *self, const struct flow *flow)
{
    char text[512], why[400] = "";
    pump_explain_insert(flow->table, why, sizeof why);
    snprintf(text, sizeof text, "table '%s' holds back %llu items of this session: %s", flow->table->name,
             (unsigned long long)(flow->arrived - flow->resolved), why[0] ? why : "about to be inserted");
    char *copy = strdup(text);
    if (copy)
        self->waiting[self->body.n_waiting++] = copy;
}

static struct credit_message *message_alloc(uint32_t n_tables)
{
    struct credit_message *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->table = calloc(n_tables, sizeof *self->table);
    self->resolved = calloc((size_t)n_tables * 3, sizeof *self->resolved);
    self->waiting = calloc(n_tables, sizeof(char *));
    if (!self->table || !self->resolved || !self->waiting) {
        credit_message_destroy(&self);
        return NULL;
    }
    self->allowed = self->resolved + n_tables;
    self->rejected = self->allowed + n_tables;
    replay__credit__init(&self->body);
    self->body.waiting = self->waiting;
    return self;
}

static void add_flows(struct credit_message *self, struct session *session, bool explain)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < session->n_tables; i++) {
        struct flow *flow = session->flows[i];
        if (!flow)
            continue;
        self->table[used] = i;
        self->resolved[used] = flow->told_resolved = flow->resolved;
        self->allowed[used] = flow->allowed;
        self->rejected[used++] = flow->rejected;
        if (explain && flow->arrived > flow->resolved)
            add_waiting(self, flow);
    }
    self->body.n_table = self->body.n_resolved = self->body.n_allowed = self->body.n_rejected = used;
    self->body.table = self->table;
    self->body.resolved = self->resolved;
    self->body.allowed = self->allowed;
    self->body.rejected = self->rejected;
}

struct credit_message *credit_message_new(struct session *session, bool explain)
{
    EFFECT(session->sessions->loop, progress, session);
    struct credit_message *self = message_alloc(session->n_tables);
    if (!self)
        return NULL;
    self->body.received = session->received;
    self->body.gap = session->gap;
    self->body.epoch = session->epoch;
    self->body.session = session->ordinal;
    self->body.allowed_bytes = credit_allowed(session);
    self->body.keep_bytes = session->keep_bytes;
    self->body.returned_bytes = session->told_returned = session->returned_bytes;
    add_flows(self, session, explain);
    add_rejections(self, session);
    session->told_ns = session->sessions->loop->now_ns;
    return self;
}

const ProtobufCMessage *credit_message_body(const struct credit_message *self)
{
    return &self->body.base;
}

void credit_message_destroy(struct credit_message **self)
{
    if (!*self)
        return;
    for (size_t i = 0; i < (*self)->body.n_waiting; i++)
        free((*self)->waiting[i]);
    free((*self)->waiting);
    free((*self)->table);
    free((*self)->resolved);
    free(*self);
    *self = NULL;
}
