#include "agent/client/admin/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"

#define PATIENCE_NS NS_PER_S
#define LOOK_NS (100 * NS_PER_MS) /* how often it is looked whether a shard is still connected */

/* ---- calls under way: they may outlive the caller's patience ---- */

struct slot {
    struct calls *calls;
    struct conn_reply *reply; /* NULL: none yet */
    uint64_t id;              /* of the request; 0: not asked */
};

struct calls {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t refs, left; /* left: requests without a reply */
    int64_t first_ns;    /* time of the first answer of a broker; 0: none yet */
    uint32_t n;
    struct slot slots[];
};

static struct calls *calls_new(uint32_t n)
{
    struct calls *self = calloc(1, sizeof *self + n * sizeof self->slots[0]);
    if (!self)
        return NULL;
    pthread_mutex_init(&self->mutex, NULL);
    conn_cond_init(&self->changed);
    self->refs = 1;
    self->n = n;
    for (uint32_t i = 0; i < n; i++)
        self->slots[i].calls = self;
    return self;
}

/* Call it with the mutex held. */
static void calls_unref(struct calls *self)
{
    bool last = --self->refs == 0;
    pthread_mutex_unlock(&self->mutex);
    if (!last)
        return;
    for (uint32_t i = 0; i < self->n; i++)
        conn_reply_destroy(&self->slots[i].reply);
    pthread_mutex_destroy(&self->mutex);
    pthread_cond_destroy(&self->changed);
    free(self);
}

static void calls_note(void *ctx, struct conn_reply *reply)
{
    struct slot *slot = ctx;
    struct calls *self = slot->calls;
    pthread_mutex_lock(&self->mutex);
    slot->reply = reply;
    self->left--;
    if (reply->answered && self->first_ns == 0)
        self->first_ns = conn_now();
    pthread_cond_signal(&self->changed);
    calls_unref(self);
}

static void calls_send(struct calls *self, rp_client *client, const struct gather_plan *plan)
{
    for (uint32_t i = 0; i < self->n; i++) {
        const struct conn_message *message = plan->message ? plan->message : plan->each[i];
        if (!message)
            continue;
        pthread_mutex_lock(&self->mutex);
        self->refs++;
        self->left++;
        pthread_mutex_unlock(&self->mutex);
        uint64_t id = conn_send(client_shard(client, i), message, calls_note, &self->slots[i]);
        pthread_mutex_lock(&self->mutex);
        self->slots[i].id = id;
        pthread_mutex_unlock(&self->mutex);
    }
}

/* Returns until when the caller waits for shards that have not answered. */
static int64_t calls_until(const struct calls *self, rp_client *client, bool patient)
{
    int64_t until = 0, now = conn_now();
    if (self->first_ns == 0)
        return INT64_MAX;
    for (uint32_t i = 0; i < self->n; i++) {
        if (!self->slots[i].id || self->slots[i].reply)
            continue;
        int64_t away = conn_away_ns(client_shard(client, i)), end = self->first_ns + PATIENCE_NS;
        if (away == 0 && patient)
            return INT64_MAX;
        if (away > 0 && now - away + PATIENCE_NS < end)
            end = now - away + PATIENCE_NS;
        until = end > until ? end : until;
    }
    return until;
}

/* Returns with the mutex held. */
static void calls_wait(struct calls *self, rp_client *client, bool patient)
{
    pthread_mutex_lock(&self->mutex);
    while (self->left > 0) {
        int64_t now = conn_now(), until = calls_until(self, client, patient);
        if (now >= until)
            break;
        if (self->first_ns && until > now + LOOK_NS)
            until = now + LOOK_NS;
        if (!conn_wait(client_conn(client), &self->changed, &self->mutex, until) && conn_is_stopped())
            break;
    }
}

/* Cancels what is still under way. Call it with the mutex held. */
static void calls_give_up(struct calls *self, rp_client *client)
{
    for (uint32_t i = 0; i < self->n; i++) {
        if (!self->slots[i].id || self->slots[i].reply)
            continue;
        uint64_t id = self->slots[i].id;
        pthread_mutex_unlock(&self->mutex);
        conn_cancel(client_shard(client, i), id);
        pthread_mutex_lock(&self->mutex);
    }
}

/* ---- answers ---- */

static struct gather_answers *answers_new(rp_client *client)
{
    uint32_t n = client_shards(client);
    struct gather_answers *self = calloc(1, sizeof *self + n * sizeof self->of[0]);
    for (uint32_t i = 0; self && i < n; i++)
        self->of[i].service = conn_endpoint(client_shard(client, i));
    if (self)
        self->n = n;
    return self;
}

/* Says why a shard has not answered: the connection's own sentence about an absence, or that it is silent. */
static void describe_silence(struct gather_answer *self, struct conn *conn)
{
    char title[300];
    conn_describe(conn, self->problem, sizeof self->problem);
    self->away_ns = conn_away_ns(conn);
    if (!self->problem[0])
        snprintf(self->problem, sizeof self->problem, "%s has not answered within a second after the others",
                 conn_title(conn, title, sizeof title));
}

/* Unpacks the reply, which the answer owns from here on; NULL: none came. */
static void answer_read(struct gather_answer *self, struct conn_reply *reply, Replay__Reply__BodyCase want,
                        struct conn *conn)
{
    rp_error err = {0};
    self->asked = true;
    self->reply = reply;
    self->answered = reply && reply->answered;
    self->status = reply ? conn_reply_status(reply, &err) : RP_UNAVAILABLE;
    if (self->status == RP_OK && want != REPLAY__REPLY__BODY__NOT_SET)
        self->status = conn_reply_read(reply, &self->wire, &err);
    if (self->wire && self->wire->body_case != want)
        self->status = err_set(&err, RP_BAD_MESSAGE, "the broker's reply is not what was asked for");
    if (self->status == RP_OK)
        return;
    conn_reply_unpacked_free(self->wire);
    self->wire = NULL;
    if (reply && (self->answered || self->status != RP_CANCELLED)) {
        snprintf(self->problem, sizeof self->problem, "%s", err.text);
    } else { /* it was given up here */
        self->status = RP_UNAVAILABLE;
        describe_silence(self, conn);
    }
}

static rp_status answers_judge(struct gather_answers *self, rp_error *err)
{
    const struct gather_answer *bad = NULL;
    for (uint32_t i = 0; i < self->n; i++) {
        const struct gather_answer *answer = &self->of[i];
        self->asked += answer->asked;
        if (answer->asked && answer->status == RP_OK)
            self->good++;
        else if (answer->asked && (!bad || (answer->answered && !bad->answered)))
            bad = answer;
    }
    return self->good || !bad ? RP_OK : err_set(err, bad->status, "%s", bad->problem);
}

/* One broker: the call that there was before there were shards. */
static rp_status ask_one(rp_client *client, const struct gather_plan *plan, struct gather_answers *answers,
                         rp_error *err)
{
    struct conn_reply *reply = NULL;
    struct gather_answer *answer = &answers->of[0];
    RP_TRY(conn_call(client_conn(client), plan->message ? plan->message : plan->each[0], &reply, err));
    answer_read(answer, reply, plan->want, client_conn(client));
    return answers_judge(answers, err);
}

static rp_status ask_all(rp_client *client, const struct gather_plan *plan, struct gather_answers *answers,
                         rp_error *err)
{
    RP_TRY(conn_check_process(client_conn(client), err));
    struct calls *calls = calls_new(answers->n);
    if (!calls)
        return err_set(err, RP_NO_MEMORY, "no memory to ask %u shards", answers->n);
    calls_send(calls, client, plan);
    calls_wait(calls, client, plan->patient);
    bool stopped = calls->left > 0 && conn_is_stopped();
    calls_give_up(calls, client);
    for (uint32_t i = 0; i < answers->n && !stopped; i++) {
        if (!calls->slots[i].id)
            continue;
        answer_read(&answers->of[i], calls->slots[i].reply, plan->want, client_shard(client, i));
        calls->slots[i].reply = NULL;
    }
    calls_unref(calls);
    return stopped ? conn_stopped(err) : answers_judge(answers, err);
}

rp_status gather(rp_client *client, const struct gather_plan *plan, struct gather_answers **out, rp_error *err)
{
    struct gather_answers *answers = *out = answers_new(client);
    if (!answers)
        return err_set(err, RP_NO_MEMORY, "no memory for the answers of the broker");
    rp_status status = answers->n > 1 ? ask_all(client, plan, answers, err) : ask_one(client, plan, answers, err);
    if (status != RP_OK)
        gather_free(out);
    return status;
}

void gather_free(struct gather_answers **self)
{
    if (!*self)
        return;
    for (uint32_t i = 0; i < (*self)->n; i++) {
        conn_reply_destroy(&(*self)->of[i].reply);
        conn_reply_unpacked_free((*self)->of[i].wire);
    }
    free(*self);
    *self = NULL;
}

Replay__Reply *gather_take(struct gather_answers *self, uint32_t shard)
{
    Replay__Reply *wire = self->of[shard].wire;
    self->of[shard].wire = NULL;
    return wire;
}

uint32_t gather_first(const struct gather_answers *self)
{
    uint32_t shard = 0;
    while (shard + 1 < self->n && !(self->of[shard].asked && self->of[shard].status == RP_OK))
        shard++;
    return shard;
}

void gather_drop(struct gather_answers *self, uint32_t shard, const rp_error *why)
{
    struct gather_answer *answer = &self->of[shard];
    conn_reply_unpacked_free(answer->wire);
    answer->wire = NULL;
    answer->status = (rp_status)why->status;
    snprintf(answer->problem, sizeof answer->problem, "%s", why->text);
    self->good--;
}

void gather_explain(rp_client *client, const char *table, rp_status status, rp_error *err)
{
    if (status != RP_NOT_FOUND || !table)
        return;
    struct conn_hello *hello = conn_hello_ref(client_conn(client));
    if (!conn_hello_table(hello, table))
        conn_hello_no_table(hello, table, err);
    conn_hello_unref(&hello);
}

rp_status gather_all_good(const struct gather_answers *self, const char *done, rp_error *err)
{
    for (uint32_t i = 0; i < self->n; i++) {
        const struct gather_answer *answer = &self->of[i];
        if (!answer->asked || answer->status == RP_OK)
            continue;
        char prefix[32] = "";
        if (answer->answered)
            snprintf(prefix, sizeof prefix, "shard %u: ", i);
        return err_set(err, answer->status, "%s%.300s; %u of %u shards %s", prefix, answer->problem, self->good,
                       self->asked, done);
    }
    return RP_OK;
}
