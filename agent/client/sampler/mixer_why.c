/* What a batch over several parts waits for, in a sentence. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/client/sampler/mixer_impl.h"

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

static bool is_away(const struct part *part)
{
    return part->away || !part->known;
}

static bool has_no_room(const struct part *part)
{
    return !is_away(part);
}

static void explain_group(struct mixer *self, struct group *group, char *out, size_t size)
{
    struct group_sum sum;
    uint64_t room = group->stock, n;
    uint64_t want = self->build < self->tail ? plan_at(self, self->build)->of_group[group - self->groups]
                                             : self->options.batch_size;
    const char *why = "";
    for (uint32_t p = group->first; p < group->first + group->n; p++) {
        const struct part *part = &self->parts[p];
        room += part->away ? 0 : part->room;
        why = !why[0] && !part->away ? part->why : why;
    }
    group_sum(self, group, &sum);
    n = sum.size;
    if (group->deal == DEAL_PERMITS && room < want) {
        if (name_parts(self, group, has_no_room, out, size))
            add(out, size, " %s room for %llu of %llu samples; ", group->n > 1 ? "have" : "has",
                (unsigned long long)room, (unsigned long long)want);
    } else if (group->deal == DEAL_MASS && n < sum.min_size) {
        add(out, size, "table '%s' has %llu items on all shards, min_size is %llu; ",
            self->parts[group->first].source.table, (unsigned long long)n, (unsigned long long)sum.min_size);
    } else if (self->options.distinct && n < want && n > 0 && group->deal != DEAL_PLAIN) {
        add(out, size, "table '%s' has %llu items, and a batch of %llu is without replacement; ",
            self->parts[group->first].source.table, (unsigned long long)n, (unsigned long long)want);
    } else if (n == 0 && group->deal != DEAL_PLAIN) {
        add(out, size, "table '%s' is empty; ", self->parts[group->first].source.table);
    }
    /* A plain group's broker is not asked for its state. */
    if (group->deal != DEAL_PLAIN && name_parts(self, group, is_away, out, size))
        add(out, size, " cannot be reached; ");
    if (why[0])
        add(out, size, "%s; ", why);
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
    pthread_mutex_lock(&mixer->lock);
    self->why_asked = false;
    for (size_t i = 0; wire && wire->body_case == REPLAY__REPLY__BODY_WHY && i < wire->why->n_waits; i++) {
        const Replay__Wait *wait = wire->why->waits[i];
        bool all = wait->has_shard_case == REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
        bool ours = !all && (strcmp(wait->kind, "sample") == 0 || strcmp(wait->kind, "permit") == 0);
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
