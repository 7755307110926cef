/* What the thread that plans does: who is there, permits, picks. */
#include <stdarg.h>
#include <stdio.h>

#include "agent/client/sampler/mixer_impl.h"
#include "proto/base/error.h"

/* A state that is older is asked for again while batches are waited for. */
#define OLD_NS (100 * NS_PER_MS)
/* The most that a broker grants at once. */
#define MOST_PERMITS (1u << 24)

/* ---- who is there ---- */

/* Asks the connections; released meanwhile. */
static void look_at_connections(struct mixer *self, int64_t now_ns)
{
    pthread_mutex_unlock(&self->lock);
    for (uint32_t p = 0; p < self->n_parts; p++) /* only this thread uses `connected` */
        self->parts[p].connected = conn_state(self->parts[p].source.conn) == RP_CLIENT_CONNECTED;
    pthread_mutex_lock(&self->lock);
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct part *part = &self->parts[p];
        if (part->connected)
            part->lost_ns = 0;
        else if (part->lost_ns == 0)
            part->lost_ns = now_ns;
    }
}

/* True if the broker is connected and answers nothing: it is stopped, or its machine is gone. */
static bool is_silent(const struct part *self, int64_t now_ns)
{
    const struct pick *pick = self->asked.first;
    while (pick && pick->arrived)
        pick = pick->next;
    if (conn_is_hosted(self->source.conn))
        return false; /* it answers when it is asked to run */
    int64_t wait = self->source.paid ? 0 : CHOOSE_MS * NS_PER_MS;
    if (pick && now_ns - pick->asked_ns > SILENT_NS + wait)
        return true;
    return self->permit && now_ns - self->permit->asked_ns > SILENT_NS + CHOOSE_MS * NS_PER_MS;
}

static bool has_other(const struct mixer *self, const struct part *part)
{
    const struct group *group = &self->groups[part->group];
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        if (&self->parts[p] != part && part_weight(&self->parts[p]) > 0)
            return true;
    return false;
}

/* A part that is away gives up what it was asked for, if another part can give it. */
static void look_at_parts(struct mixer *self, int64_t now_ns)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct part *part = &self->parts[p];
        if (self->groups[part->group].n == 1)
            continue;
        if ((part->lost_ns && now_ns - part->lost_ns > AWAY_NS) || is_silent(part, now_ns))
            part->away = true;
        if (part->away && has_other(self, part))
            part_abandon(part);
    }
}

/* Asks for states that are old, and of parts that have never answered. Released meanwhile. */
static void ask_states(struct mixer *self, int64_t now_ns)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct part *part = &self->parts[p];
        bool old = !part->known || now_ns - part->state_ns > OLD_NS;
        if (self->groups[part->group].deal != DEAL_PLAIN && old && !part->permit && now_ns >= part->retry_ns)
            part_permit(part, 0);
    }
}

/* ---- permits ---- */

/* Returns how many more permits a group should ask for: for the plans that wait, and for the burst after them. */
static uint64_t permits_missing(struct mixer *self, uint32_t g)
{
    struct group *group = &self->groups[g];
    uint64_t want = plans_want(self, g, PLAN_DRAWN), have = group->stock + group->out;
    uint64_t max = self->options.max_samples, planned = self->got + self->asked;
    double ahead = self->options.on_demand ? 0 : (double)self->window / 2 * self->options.batch_size;
    if (max)
        ahead = planned >= max ? 0 : ahead < (double)(max - planned) ? ahead : (double)(max - planned);
    if (self->ending)
        ahead = 0;
    want += (uint64_t)(ahead * group->share);
    return want > have ? want - have : 0;
}

static bool may_ask(const struct part *self, int64_t now_ns)
{
    return self->known && !self->away && self->connected && !self->permit && now_ns >= self->retry_ns &&
           self->asked_step != self->mixer->steps;
}

/* Returns the part with the most room of those that may be asked: there is one. */
static struct part *roomiest(struct mixer *self, const struct group *group, int64_t now_ns)
{
    struct part *best = NULL;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        if (may_ask(&self->parts[p], now_ns) && (!best || self->parts[p].room > best->room))
            best = &self->parts[p];
    return best;
}

static uint32_t parts_to_ask(const struct mixer *self, const struct group *group, int64_t now_ns)
{
    uint32_t n = 0;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        n += may_ask(&self->parts[p], now_ns);
    return n;
}

/* Asks parts with room for what they have, and spreads the rest: it waits there. Released meanwhile. */
static void get_permits(struct mixer *self, uint32_t g, int64_t now_ns)
{
    struct group *group = &self->groups[g];
    uint64_t missing;
    uint32_t n;
    while ((missing = permits_missing(self, g)) > 0 && (n = parts_to_ask(self, group, now_ns)) > 0) {
        struct part *part = roomiest(self, group, now_ns);
        uint64_t share = (missing + n - 1) / n, count = part->room > share ? part->room : share;
        count = count < missing ? count : missing;
        part->asked_step = self->steps; /* who has said no is not asked again at once */
        if (!part_permit(part, count < MOST_PERMITS ? (uint32_t)count : MOST_PERMITS))
            break;
    }
}

/* ---- picks ---- */

static void ask(struct part *self, uint64_t count)
{
    struct mixer *mixer = self->mixer;
    /* The broker's largest; a whole request gets no more than the caller expects at once. */
    uint32_t most = self->source.options.whole ? mixer->options.batch_size : self->source.options.batch_size;
    while (count && !mixer->stopping) {
        uint32_t part = count < most ? (uint32_t)count : most;
        part_ask(self, part);
        count -= part;
    }
}

/* Others give the items that a part cannot give. With `distinct` the batch does without them: who has given items to it already
 * could give the same again. */
static void give_up(struct mixer *self, struct part *part, uint64_t count)
{
    uint64_t come = self->options.max_samples && part->away && part_is_last(part) ? part->outstanding : 0;
    count -= come < count ? come : count; /* with others there would be too many when they come */
    if (!self->options.distinct)
        plans_redraw(self, part, count);
    else if (has_other(self, part))
        plans_excuse(self, part, count);
}

static void ask_part(struct mixer *self, struct part *part, int64_t now_ns)
{
    enum deal deal = self->groups[part->group].deal;
    if (part->excused) {
        plans_excuse(self, part, part->excused);
        part->excused = 0;
    }
    uint64_t have = part->rows + part_expected(part);
    uint64_t owed = part->needed > have ? part->needed - have : 0;
    if (owed == 0)
        return;
    if (deal != DEAL_PLAIN && part_weight(part) == 0) {
        give_up(self, part, owed);
        return;
    }
    if (now_ns >= part->retry_ns && !self->ending && (deal != DEAL_PLAIN || mixer_is_open(self)))
        ask(part, owed);
}

static bool is_idle(const struct part *self, int64_t now_ns)
{
    return self->known && !self->away && !self->outstanding && now_ns >= self->retry_ns;
}

/* Asks the parts of a queue for what its plans want: first where items are, then everywhere, each time from another part on. */
static void ask_queue(struct mixer *self, uint32_t g, int64_t now_ns)
{
    struct group *group = &self->groups[g];
    uint64_t want = plans_want(self, g, PLAN_PAID), have = 0;
    uint32_t idle = 0, turn = self->turn++;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        have +=
            self->parts[p].rows + (self->options.max_samples ? self->parts[p].outstanding /* others would be too many */
                                                             : part_expected(&self->parts[p]));
    for (uint32_t p = group->first; p < group->first + group->n && want > have; p++) {
        struct part *part = &self->parts[p];
        if (!is_idle(part, now_ns) || part->size == 0)
            continue;
        uint64_t count = part->size < want - have ? part->size : want - have;
        have += count;
        ask(part, count);
    }
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        idle += is_idle(&self->parts[p], now_ns);
    for (uint32_t i = 0; i < group->n && want > have && idle; i++) {
        struct part *part = &self->parts[group->first + (turn + i) % group->n];
        if (!is_idle(part, now_ns))
            continue;
        uint64_t count = (want - have + idle - 1) / idle;
        have += count;
        idle--;
        ask(part, count);
    }
}

static void ask_picks(struct mixer *self, int64_t now_ns)
{
    for (uint32_t g = 0; g < self->n_groups; g++) {
        struct group *group = &self->groups[g];
        if (group->deal == DEAL_QUEUE && mixer_is_open(self))
            ask_queue(self, g, now_ns);
        /* A redraw may give more to a part that was asked already: twice around serves all. */
        for (uint32_t i = 0; i < 2 * group->n && group->deal != DEAL_QUEUE; i++)
            ask_part(self, &self->parts[group->first + i % group->n], now_ns);
    }
}

/* ---- all of it ---- */

bool mixer_is_quiet(const struct mixer *self)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        const struct part *part = &self->parts[p];
        bool unknown = !part->known && !part->away; /* its first answer decides what can be sampled */
        if (part_expected(part) || (part->permit && (part->permit->count || unknown)))
            return false;
    }
    return true;
}

void mixer_end(struct mixer *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(self->end_text, sizeof self->end_text, format, args);
    va_end(args);
    self->ending = true;
    if (self->options.whole)
        plans_drop(self);
    for (uint32_t p = 0; p < self->n_parts; p++) {
        part_abandon(&self->parts[p]);
        if (self->groups[self->parts[p].group].deal == DEAL_PLAIN)
            part_recall(&self->parts[p]);
    }
    mixer_wake(self);
    pthread_cond_signal(&self->ready);
}

/* A source has given nothing for the time that the options allow. */
static void time_out(struct mixer *self)
{
    char why[256];
    mixer_explain(self, why, sizeof why);
    mixer_end(self, "nothing could be sampled from table '%s' for %lld ms: %s", self->parts[0].source.table,
              (long long)self->options.timeout_ms, why);
}

bool mixer_is_owed(const struct mixer *self, bool away)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        const struct part *part = &self->parts[p];
        bool stays = part->known && part->deal != DEAL_QUEUE && !part->removes; /* sampling takes nothing out */
        if (part->outstanding && part_is_last(part) && part->away == away && !stays)
            return true;
    }
    return false;
}

/* When the time of the stream is over, what was asked for in time still comes; then the next batch does with what there is. A stream
 * that ends gives the items that it has got, and does not end while a part owes items that exist nowhere else: as with one broker. */
static void look_at_end(struct mixer *self, int64_t now_ns)
{
    int64_t limit = self->options.timeout_ms, over = now_ns - self->last_ns - limit * NS_PER_MS;
    if (self->build == self->tail || self->stalled || (!self->ending && (limit < 0 || over < 0)))
        return;
    self->late = !mixer_is_owed(self, true) || plan_has_some(self, plan_at(self, self->build));
    if (!self->late || self->news || (!mixer_is_quiet(self) && (over < SILENT_NS || mixer_is_owed(self, false))))
        return;
    if (!plans_hurry(self) && !self->ending)
        time_out(self);
    self->news = true;
}

/* Returns the time of the next step while plans wait. */
static int64_t next_step(const struct mixer *self, int64_t now_ns)
{
    int64_t end = self->last_ns + self->options.timeout_ms * NS_PER_MS, next = now_ns + CHOOSE_MS * NS_PER_MS;
    return self->options.timeout_ms >= 0 && end > now_ns && end < next ? end : next;
}

int64_t mixer_step(struct mixer *self)
{
    int64_t now = conn_now();
    self->news = false;
    self->steps++;
    look_at_connections(self, now);
    for (uint32_t p = 0; p < self->n_parts && self->inlined; p++)
        while (part_decode(&self->parts[p]))
            ;
    if (self->stop && !self->ending)
        mixer_end(self, "%s", SAMPLE_STOPPED);
    look_at_parts(self, now);
    plans_draw(self, now);
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (self->groups[g].deal == DEAL_PERMITS && mixer_is_open(self))
            get_permits(self, g, now);
    if (self->build < self->tail && mixer_is_open(self))
        ask_states(self, now);
    plans_pay(self);
    ask_picks(self, now);
    plans_build(self);
    look_at_end(self, now);
    if (self->news)
        return now;
    return self->build < self->tail ? next_step(self, now) : INT64_MAX;
}
