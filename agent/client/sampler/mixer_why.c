/* What a batch over several parts waits for, in a sentence. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/client/sampler/mixer_impl.h"

/* How much longer than it should an answer may take before a time-out names the broker. */
#define LATE_NS (100 * NS_PER_MS)

static void add(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add(char *out, size_t size, const char *format, ...)
{
    size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    if (used + 1 < size)
        vsnprintf(out + used, size - used, format, args);
    va_end(args);
}

/* Writes "shards 1, 2 and 3" of the parts of a group for which the question is answered with yes. Returns how many. */
static uint32_t name_parts(const struct mixer *self, const struct group *group, bool (*is)(const struct part *),
                           char *out, size_t size)
{
    uint32_t n = 0, at = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        n += is(&self->parts[p]);
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        const struct part *part = &self->parts[p];
        if (!is(part))
            continue;
        const char *before = at == 0 ? (n > 1 ? "shards " : "shard ") : at + 1 == n ? " and " : ", ";
        if (self->n_shards > 1)
            add(out, size, "%s%u", before, part->shard);
        else
            add(out, size, "%s'%s'", at == 0 ? (n > 1 ? "tables " : "table ") : before, part->source.table);
        at++;
    }
    return n;
}

/* True if the part has not answered a request for longer than the request may wait inside the broker. */
static bool is_late(const struct part *part)
{
    const struct pick *pick = part->asked.first;
    int64_t inside = CHOOSE_MS * NS_PER_MS, limit = conn_now() - LATE_NS;
    while (pick && pick->arrived)
        pick = pick->next;
    bool items = pick && pick->asked_ns + (part->source.paid ? 0 : inside) < limit;
    bool permits = part->permit && part->permit->asked_ns + (part->permit->sure ? 0 : inside) < limit;
    return !conn_is_hosted(part->source.conn) && (items || permits);
}

static bool is_missing(const struct part *part)
{
    return part->away || !part->known || is_late(part);
}

static bool is_there(const struct part *part)
{
    return !is_missing(part);
}

/* Adds what the limiter of the first broker that is there lacks: what it says is about its own part of the table. */
static void explain_limiter(const struct mixer *self, const struct group *group, char *out, size_t size)
{
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        const struct part *part = &self->parts[p];
        if (part->why[0] == '\0' || (group->deal != DEAL_PLAIN && is_missing(part)))
            continue;
        if (self->n_shards > 1)
            add(out, size, "shard %u: ", part->shard);
        add(out, size, "%s; ", part->why);
        return;
    }
}

/* Adds what keeps brokers that answer from giving a group's items. */
static void explain_group(struct mixer *self, struct group *group, char *out, size_t size)
{
    const struct plan *plan = self->build < self->tail ? plan_at(self, self->build) : NULL;
    uint64_t room = group->stock, want = plan ? plan->of_group[group - self->groups] : self->options.batch_size;
    const char *table = self->parts[group->first].source.table, *where = "";
    struct group_sum sum;
    group_sum(self, group, &sum);
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        room += self->parts[p].away ? 0 : self->parts[p].room;
    /* What is known of a plain group's broker is its state at the start. */
    uint32_t missing = group->deal != DEAL_PLAIN ? name_parts(self, group, is_missing, out, size) : 0;
    if (missing) {
        add(out, size, " %s not answer; ", missing > 1 ? "do" : "does");
        where = " on the shards that answer";
    } else if (self->n_shards > 1) {
        where = " on all shards";
    }
    if (plan && plan->state != PLAN_DRAWN && group->deal == DEAL_PERMITS)
        return; /* it has its permits, and waits for the items */
    if (group->deal == DEAL_PERMITS && room < want) {
        uint32_t there = name_parts(self, group, is_there, out, size);
        if (there)
            add(out, size, " %s room for %llu of %llu samples; ", there > 1 ? "have" : "has", (unsigned long long)room,
                (unsigned long long)want);
    } else if (group->deal == DEAL_MASS && sum.size < sum.min_size) {
        add(out, size, "table '%s' has %llu items%s, min_size is %llu; ", table, (unsigned long long)sum.size, where,
            (unsigned long long)sum.min_size);
        return;
    } else if (sum.size == 0 && group->deal != DEAL_PLAIN) {
        add(out, size, "table '%s' is empty%s", table, where);
        if (group_rows(self, group))
            add(out, size, ", and %llu of %llu items are here", (unsigned long long)group_rows(self, group),
                (unsigned long long)want);
        add(out, size, "; ");
        return;
    } else if (self->options.distinct && sum.size < want && group->deal != DEAL_PLAIN) {
        add(out, size, "table '%s' has %llu items%s, and a batch of %llu is without replacement; ", table,
            (unsigned long long)sum.size, where, (unsigned long long)want);
    }
    explain_limiter(self, group, out, size);
}

void mixer_explain(struct mixer *self, char *out, size_t size)
{
    out[0] = '\0';
    for (uint32_t g = 0; g < self->n_groups; g++)
        explain_group(self, &self->groups[g], out, size);
    size_t used = strlen(out);
    if (used > 2)
        out[used - 2] = '\0'; /* the last "; " */
    else
        snprintf(out, size, "the brokers have not answered yet");
}

/* ---- asking a broker ---- */

static void on_why(void *ctx, struct conn_reply *reply)
{
    struct part *self = ctx;
    struct mixer *mixer = self->mixer;
    Replay__Reply *wire = reply->status == RP_OK ? conn_reply_unpack(reply, NULL) : NULL;
    char us[64]; /* with keys a broker shows another number, which it alone knows */
    snprintf(us, sizeof us, "client %016llx", (unsigned long long)conn_client_id(self->source.conn));
    pthread_mutex_lock(&mixer->lock);
    self->why_asked = false;
    if (wire)
        self->why[0] = '\0'; /* it may wait no more */
    for (size_t i = 0; wire && wire->body_case == REPLAY__REPLY__BODY_WHY && i < wire->why->n_waits; i++) {
        const Replay__Wait *wait = wire->why->waits[i];
        bool all = wait->has_shard_case == REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
        bool ours = !all && (conn_has_key(self->source.conn) || strcmp(wait->who, us) == 0) &&
                    (strcmp(wait->kind, "sample") == 0 || strcmp(wait->kind, "permit") == 0);
        if (ours && strcmp(wait->table, self->source.table) == 0)
            snprintf(self->why, sizeof self->why, "%s", wait->text);
    }
    pthread_mutex_unlock(&mixer->lock);
    if (wire)
        conn_reply_unpacked_free(wire);
    conn_reply_destroy(&reply);
    mixer_unref(mixer);
}

void part_ask_why(struct part *self)
{
    struct mixer *mixer = self->mixer;
    if (self->why_asked || self->away)
        return;
    self->why_asked = true;
    __atomic_add_fetch(&mixer->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mixer->lock);
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_WHY, .timeout_ms = 1000};
    conn_send(self->source.conn, &message, on_why, self);
    pthread_mutex_lock(&mixer->lock);
}
