/* What brokers say about their tables, and permits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/sampler/mixer_impl.h"
#include "proto/base/error.h"
#include "proto/wire/pb.h"

#define MOST_COUNT (UINT64_C(1) << 48)
#define MOST_MASS 1e300

static double as_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- what the broker says about its table ---- */

void part_note_answer(struct part *self)
{
    self->away = false;
}

static uint64_t at_most(uint64_t value, uint64_t most)
{
    return value < most ? value : most;
}

/* Whatever a broker says, sums over parts neither overflow nor become infinite. */
static void set_state(struct part *self, double mass, uint64_t room, uint64_t size)
{
    self->mass = !(mass > 0) ? 0 : mass < MOST_MASS ? mass : MOST_MASS;
    self->room = at_most(room, MOST_COUNT);
    self->size = at_most(size, MOST_COUNT);
    self->state_ns = conn_now();
}

void part_read_sample(struct part *self, const struct conn_reply *reply, uint64_t table_size)
{
    struct pb_reader reader = pb_reader(reply->view.data, reply->view.size);
    struct pb_field field;
    double mass = 0; /* absent: 0 */
    uint64_t room = 0;
    while (pb_next(&reader, &field) == 1) {
        if (field.number == 24 && field.wire == PB_FIXED64)
            mass = as_double(field.value);
        else if (field.number == 25 && field.wire == PB_FIXED64)
            room = field.value;
    }
    set_state(self, mass, room, table_size);
}

/* Tells the caller what is wrong with a table. */
static bool refuse(struct part *self, rp_status status, const char *text)
{
    struct mixer *mixer = self->mixer;
    if (mixer->error.status == RP_OK)
        err_set(&mixer->error, status, "%s", text);
    self->retry_ns = conn_now() + RETRY_NS;
    pthread_cond_signal(&mixer->ready);
    return false;
}

/* Returns a part of the same group that has answered before. */
static const struct part *known_other(const struct part *self)
{
    const struct mixer *mixer = self->mixer;
    const struct group *group = &mixer->groups[self->group];
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        if (mixer->parts[p].known && &mixer->parts[p] != self)
            return &mixer->parts[p];
    return NULL;
}

/* Checks what the first answer says. False: the part cannot be used. */
static bool check_deal(struct part *self)
{
    static const char *const ways[] = {"has a ratio of samples to inserts", "has no ratio", "is a queue"};
    const struct mixer *mixer = self->mixer;
    const struct group *group = &mixer->groups[self->group];
    const struct part *other = known_other(self);
    uint32_t batch = mixer->options.batch_size;
    char text[sizeof mixer->error.text];
    if (self->deal > DEAL_QUEUE) {
        snprintf(text, sizeof text, "the broker does not say how table '%s' is sampled over shards",
                 self->source.table);
        return refuse(self, RP_BAD_MESSAGE, text);
    }
    if (other && group->deal != self->deal) {
        snprintf(text, sizeof text,
                 "table '%s' %s and table '%s' %s: sources without a share must be alike; give each of them a share",
                 other->source.table, ways[group->deal], self->source.table, ways[self->deal]);
        return refuse(self, RP_INVALID_ARGUMENT, text);
    }
    if (self->deal == DEAL_PERMITS && self->buffer > 0 && batch > self->buffer) {
        snprintf(text, sizeof text,
                 "a batch of %u is more than the limiter of one shard of table '%s' can be apart (%g): raise "
                 "error_buffer to at least %u, or use fewer shards",
                 batch, self->source.table, self->buffer, (batch + 1) / 2 * group->n);
        return refuse(self, RP_INVALID_ARGUMENT, text);
    }
    return true;
}

/* The first answer says how the part is sampled, before anything is picked there. Returns true if it can be. */
static bool learn_deal(struct part *self)
{
    struct group *group = &self->mixer->groups[self->group];
    if (self->known || group->deal == DEAL_PLAIN)
        return true;
    if (!check_deal(self))
        return false;
    group->deal = (enum deal)self->deal;
    self->source.paid = group->deal != DEAL_QUEUE;
    self->source.options.whole = 0;
    self->source.options.flexible = group->deal == DEAL_QUEUE;
    return true;
}

bool part_read_permit(struct part *self, const struct conn_reply *reply, uint32_t most, uint32_t *granted)
{
    uint64_t values[9] = {0}; /* by field */
    *granted = 0;
    if (!reply->answered || reply->view.body != REPLAY__REPLY__BODY_PERMIT)
        return false;
    struct pb_reader reader = pb_reader(reply->view.data, reply->view.size);
    struct pb_field field;
    while (pb_next(&reader, &field) == 1)
        if (field.number < 9 && field.wire != PB_BYTES)
            values[field.number] = field.value;
    set_state(self, as_double(values[4]), values[3], values[5]);
    self->deal = values[2] <= UINT32_MAX ? (uint32_t)values[2] : UINT32_MAX;
    self->min_size = at_most(values[6], MOST_COUNT);
    self->buffer = as_double(values[7]) > 0 ? as_double(values[7]) : 0;
    self->removes = values[8] != 0;
    self->known = learn_deal(self);
    *granted = (uint32_t)at_most(values[1], most);
    return true;
}

void part_note_error(struct part *self, rp_status status, const rp_error *error, int64_t now_ns)
{
    struct mixer *mixer = self->mixer;
    if (status == RP_DEADLINE_EXCEEDED) {
        snprintf(self->why, sizeof self->why, "%s", error->text);
        return;
    }
    self->retry_ns = now_ns + RETRY_NS;
    if (status == RP_CANCELLED || status == RP_UNAVAILABLE || mixer->error.status != RP_OK)
        return;
    mixer->error = *error;
    mixer->error.status = status;
    pthread_cond_signal(&mixer->ready);
}

int64_t mixer_broker_ms(const struct mixer *mixer, int64_t timeout_ms)
{
    int64_t end = mixer->options.on_demand        ? mixer->deadline_ns
                  : mixer->options.timeout_ms < 0 ? INT64_MAX
                                                  : mixer->last_ns + mixer->options.timeout_ms * NS_PER_MS;
    int64_t left = conn_left_ms(end);
    return left >= 0 && (timeout_ms < 0 || left < timeout_ms) ? left : timeout_ms;
}

/* ---- permits ---- */

static void on_permit(void *ctx, struct conn_reply *reply)
{
    struct permit *permit = ctx;
    struct part *part = permit->part;
    struct mixer *mixer = part->mixer;
    rp_error error = {0};
    rp_status status = conn_reply_status(reply, &error);
    pthread_mutex_lock(&mixer->lock);
    struct group *group = &mixer->groups[part->group];
    uint32_t granted;
    int64_t now = conn_now();
    if (part->permit == permit)
        part->permit = NULL;
    group->out -= permit->count;
    if (reply->answered)
        part_note_answer(part);
    if (part_read_permit(part, reply, permit->most, &granted))
        group->stock += granted;
    if (granted)
        part->why[0] = '\0'; /* it waits no more */
    if (status == RP_OK && permit->most && !granted)
        part->retry_ns = now + RETRY_NS; /* it neither grants nor waits */
    if (status != RP_OK && !mixer->stopping)
        part_note_error(part, status, &error, now);
    mixer_wake(mixer);
    pthread_mutex_unlock(&mixer->lock);
    conn_reply_destroy(&reply);
    free(permit);
    mixer_unref(mixer);
}

bool part_permit(struct part *self, uint32_t count)
{
    struct mixer *mixer = self->mixer;
    struct permit *permit = malloc(sizeof *permit);
    if (!permit)
        return false; /* asked for again at the next step */
    *permit = (struct permit){.part = self, .count = count, .most = count, .asked_ns = conn_now()};
    permit->sure = count && self->room > 0;
    self->room -= at_most(self->room, count); /* until it tells */
    self->permit = permit;
    mixer->groups[self->group].out += count;
    int64_t timeout_ms = count ? mixer_broker_ms(mixer, CHOOSE_MS) : 0;
    struct group_sum sum = {0};
    uint32_t wanted = count ? 0 : group_lacks(mixer, self->group, &sum); /* the broker shows that somebody waits */
    __atomic_add_fetch(&mixer->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mixer->lock);
    Replay__Permit body = REPLAY__PERMIT__INIT;
    body.table = self->source.table;
    body.count = count;
    body.flexible = true;
    body.has_timeout_ms_case = REPLAY__PERMIT__HAS_TIMEOUT_MS_TIMEOUT_MS;
    body.timeout_ms = (uint64_t)timeout_ms;
    body.wanted = wanted;
    body.size = sum.size;
    body.min_size = sum.min_size;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PERMIT, .body = &body.base, .timeout_ms = -1};
    uint64_t id = conn_send(self->source.conn, &message, on_permit, permit);
    pthread_mutex_lock(&mixer->lock);
    if (self->permit == permit) /* it may have been answered and freed meanwhile */
        permit->id = id;
    return true;
}
