/* The sampler: options, life and threads, what the thread that plans does, and the caller's side. See sampler.h for how it works.
 *
 * The room agent/client/sampler takes batches of items out of a table and sends priorities and deletions back. part.c is a table at
 * one broker, plan.c makes batches of what the parts give, batch.h decodes and joins, changes.c changes items by key. The room uses conn
 * (requests). */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/client/conn/client.h"
#include "agent/client/sampler/sampler.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/trace.h"

#define DEFAULT_BATCH_SIZE 256u
#define SAMPLER_DEFAULT_IN_FLIGHT 4u
#define DEFAULT_MAX_BYTES (UINT64_C(4) << 30)
#define MOST_BYTES (UINT64_MAX / 4) /* sums with it do not overflow */
/* A longer time until the stream ends has no end. */
#define MOST_MS (INT64_MAX / NS_PER_MS / 4)
#define MAX_SOURCES 64u
#define MAX_IN_FLIGHT 1024u
#define MAX_GATHER_THREADS 64u
/* More would not fill batches faster: few threads read as fast as memory gives. */
#define DEFAULT_GATHER_THREADS 4
/* A batch of fewer bytes is decoded in less time than it takes to wake a thread for it, or little more. */
#define SMALL_BATCH (UINT64_C(256) << 10)
/* How long a new sampler waits for what brokers say about its tables: for the first of each group, and then for the others. */
#define LEARN_NS (2 * NS_PER_S)
#define LEARN_MORE_NS (NS_PER_S / 5)
/* A broker that does not answer for this long gets no requests until it does. */
#define SILENT_NS NS_PER_S
#define AWAY_NS (NS_PER_S / 4)
/* A state that is older is asked for again while batches are waited for. */
#define OLD_NS (100 * NS_PER_MS)
/* The same of a table whose limiter is lag: inserts may wait for room of another shard. */
#define MOVE_NS (5 * NS_PER_MS)
/* The most permits that a broker grants at once. */
#define MOST_PERMITS (1u << 24)
/* How long before the caller's deadline the brokers are asked why there is no sample. */
#define ASK_WHY_NS (200 * NS_PER_MS)
/* How long on_demand waits for answers that are due; alone, a request is cancelled then. */
#define GRACE_NS (2 * NS_PER_S)
#define GRACE_ALONE_NS (10 * NS_PER_S)
/* How often a caller alone whose deadline has passed checks that the connection is still up. */
#define SAMPLER_LOOK_NS (20 * NS_PER_MS)
/* How long on_demand waits for the answers to cancels when the caller has ended the wait. */
#define STOP_NS (100 * NS_PER_MS)
/* How long the end of a sampler waits for them: a connection that is up answers in less. */
#define LEAVE_NS NS_PER_S

/* Returns the connection of the first part: all parts belong to one process. */
static struct conn *conn_of(const rp_sampler *self)
{
    return self->parts[0].conn;
}

/* ---- options ---- */

static rp_status check_options(const rp_sampler_options *options, uint32_t max_batch, uint32_t unit, rp_error *err)
{
    if (options->batch_size > max_batch)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "batch_size is %u, and the broker gives at most %u items at once: take several batches",
                       options->batch_size, max_batch);
    if (options->in_flight > MAX_IN_FLIGHT)
        return err_set(err, RP_INVALID_ARGUMENT, "in_flight is %u; it may be 1 to %u", options->in_flight,
                       MAX_IN_FLIGHT);
    if (!isfinite(options->beta) || options->beta < 0)
        return err_set(err, RP_INVALID_ARGUMENT, "beta is %g; it must be 0 or more", options->beta);
    if (options->on_demand > 1)
        return err_set(err, RP_INVALID_ARGUMENT, "on_demand is %u; it may be 0 or 1", options->on_demand);
    if (options->fill < RP_FILL_WAIT || options->fill > RP_FILL_WHOLE)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no rp_fill %d", (int)options->fill);
    if (options->gather_threads > MAX_GATHER_THREADS)
        return err_set(err, RP_INVALID_ARGUMENT, "gather_threads is %u; it may be 1 to %u", options->gather_threads,
                       MAX_GATHER_THREADS);
    if (!options->memory.alloc != !options->memory.free)
        return err_set(err, RP_INVALID_ARGUMENT, "memory has only one of alloc and free: give both, or none");
    if (options->tokens > INT32_MAX)
        return err_set(err, RP_INVALID_ARGUMENT, "tokens is %llu; it may be 1 to %d",
                       (unsigned long long)options->tokens, INT32_MAX);
    if (options->tokens && (options->distinct || options->fill != RP_FILL_WAIT))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a batch that is filled by tokens takes items of several requests: it cannot be distinct, whole "
                       "or flexible");
    if (unit > 1 && (options->batch_size % unit || options->max_samples % unit))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "batch_size is %u and max_samples %llu; a table with groups of %u needs multiples of that",
                       options->batch_size, (unsigned long long)options->max_samples, unit);
    if (options->on_demand && options->end_after_ms)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "end_after_ms is %lld with on_demand or leases: give the time to rp_sampler_next instead",
                       (long long)options->end_after_ms);
    if (options->lease_ms > WIRE_LEASE_MOST_MS)
        return err_set(err, RP_INVALID_ARGUMENT, "lease_ms is %u; it may be 1 to %u, a day", options->lease_ms,
                       WIRE_LEASE_MOST_MS);
    return RP_OK;
}

/* unit: items of a group of the table, or 1. */
static rp_status read_options(struct conn *conn, const char *table, const rp_sampler_options *given,
                              rp_sampler_options *out, uint32_t *unit, rp_error *err)
{
    RP_TRY(client_copy_options(out, sizeof *out, given, "rp_sampler_options", err));
    struct conn_hello *hello = conn_hello_ref(conn);
    uint32_t max_batch = hello->says->max_batch, index;
    rp_status status = conn_hello_table(hello, table, &index, err);
    *unit = status == RP_OK && hello->says->tables[index]->group_size ? hello->says->tables[index]->group_size : 1;
    if (out->batch_size == 0) {
        out->batch_size = max_batch < DEFAULT_BATCH_SIZE ? max_batch : DEFAULT_BATCH_SIZE;
        out->batch_size = out->batch_size < *unit ? *unit : out->batch_size - out->batch_size % *unit;
    }
    if (out->in_flight == 0)
        out->in_flight = SAMPLER_DEFAULT_IN_FLIGHT;
    if (out->max_bytes == 0)
        out->max_bytes = DEFAULT_MAX_BYTES;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (out->gather_threads == 0)
        out->gather_threads = processors < DEFAULT_GATHER_THREADS ? (uint32_t)processors : DEFAULT_GATHER_THREADS;
    out->on_demand |= out->lease_ms != 0;
    if (out->max_bytes > MOST_BYTES)
        out->max_bytes = MOST_BYTES;
    status = status == RP_OK ? check_options(out, max_batch, *unit, err) : status;
    conn_hello_unref(&hello);
    return status;
}

/* ---- the thread that plans: who is there ---- */

/* True if requests may be made that wait inside a broker. */
static bool is_open(const rp_sampler *self)
{
    return (!self->options.on_demand || self->wanted) && !self->late && !self->ending;
}

/* Asks the connections; released meanwhile. */
static void look_at_connections(rp_sampler *self)
{
    pthread_mutex_unlock(&self->lock);
    for (uint32_t p = 0; p < self->n_parts; p++)
        self->parts[p].lost_ns = conn_away_ns(self->parts[p].conn);
    pthread_mutex_lock(&self->lock);
}

static bool has_other(const rp_sampler *self, const struct part *part)
{
    const struct group *group = part->group;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        if (&self->parts[p] != part && part_weight(&self->parts[p]) > 0)
            return true;
    return false;
}

/* A part that is away gives up what it was asked for, if another part can give it. */
static void look_at_parts(rp_sampler *self)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct part *part = &self->parts[p];
        if (part->group->n == 1)
            continue;
        if (part->lost_ns > AWAY_NS || part_is_late(part, SILENT_NS))
            part->away = true;
        if (part->away && has_other(self, part))
            part_abandon(part);
    }
}

/* Asks for states that are old, and of parts that have never answered. Released meanwhile. */
static void ask_states(rp_sampler *self, int64_t now_ns)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        struct part *part = &self->parts[p];
        struct group_sum sum;
        bool old = !part->known || now_ns - part->state_ns > (part->lag ? MOVE_NS : OLD_NS);
        if (part->group->deal != DEAL_PLAIN && old && !part->permit && now_ns >= part->retry_ns)
            part_permit(part, 0, 0, group_lacks(self, (uint32_t)(part->group - self->groups), &sum), &sum);
    }
}

/* ---- permits ---- */

/* Returns how many more permits a group should ask for: for the plans that wait, and for the burst after them. */
static uint64_t permits_missing(rp_sampler *self, uint32_t g)
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

/* Asks parts with room for what they have, the roomiest first, and spreads the rest: it waits there. Released meanwhile. */
static void get_permits(rp_sampler *self, uint32_t g, int64_t now_ns)
{
    const struct group *group = &self->groups[g];
    for (uint64_t missing; (missing = permits_missing(self, g)) > 0;) {
        struct part *best = NULL;
        uint32_t n = 0;
        for (struct part *part = &self->parts[group->first]; part < &self->parts[group->first + group->n]; part++) {
            if (!part->known || part->away || part->lost_ns || part->permit || now_ns < part->retry_ns ||
                part->asked_step == self->steps)
                continue;
            n++;
            best = !best || part->room > best->room ? part : best;
        }
        if (!best)
            return;
        uint64_t share = (missing + n - 1) / n, count = best->room > share ? best->room : share;
        count = count < missing ? count : missing;
        count = count < MOST_PERMITS ? count : MOST_PERMITS;
        best->asked_step = self->steps; /* who has said no is not asked again at once */
        if (!part_permit(best, (uint32_t)count, plans_timeout_ms(self, CHOOSE_MS), 0, NULL))
            return;
    }
}

/* ---- room for inserts ---- */

/* Moves room for inserts that wait from where there is some, or takes the next step of a move. Released meanwhile. */
static void move_room(rp_sampler *self, struct group *group)
{
    struct move *move = &group->move;
    struct part *parts = &self->parts[group->first], *from = NULL, *to = NULL;
    if (move->held) {
        part_move(move->to, (int32_t)move->n);
        return;
    }
    for (struct part *part = parts; part < parts + group->n && !move->busy; part++)
        if (!part->away && !part->lost_ns && part->insert_need && (!to || part->insert_need > to->insert_need))
            to = part;
    for (struct part *part = parts; part < parts + group->n && to; part++)
        if (!part->away && !part->lost_ns && part->number == to->number && part->version == to->version &&
            part->insert_room && (!from || part->insert_room > from->insert_room))
            from = part;
    if (!from)
        return;
    move->from = from;
    move->to = to;
    move->version = to->version;
    move->n = (uint32_t)(from->insert_room < to->insert_need ? from->insert_room : to->insert_need);
    to->insert_need = 0; /* until it tells */
    part_move(from, -(int32_t)move->n);
}

static bool is_moving(const rp_sampler *self)
{
    bool any = false;
    for (uint32_t g = 0; g < self->n_groups; g++)
        any = any || self->groups[g].move.busy || self->groups[g].move.held;
    return any;
}

/* The sampler ends: what was taken is given first. A part that is away does not hold this up: the next version replaces its room. */
static void end_moves(rp_sampler *self)
{
    int64_t end = clock_ns() + SILENT_NS;
    while (is_moving(self) && clock_ns() < end) {
        for (uint32_t g = 0; g < self->n_groups; g++)
            if (self->groups[g].move.held)
                part_move(self->groups[g].move.to, (int32_t)self->groups[g].move.n);
        conn_cond_wait(&self->ready, &self->lock, end);
    }
}

/* ---- picks ---- */

static void ask(rp_sampler *self, struct part *part, uint64_t count, int64_t now_ns)
{
    /* The broker's largest; a whole request gets no more than the caller expects at once. */
    uint32_t most = part->whole ? self->options.batch_size : part->most - part->most % self->unit;
    int64_t timeout_ms = plans_timeout_ms(self, part->group->deal == DEAL_QUEUE ? CHOOSE_MS : -1);
    while (count && !self->stopping) {
        uint32_t n = count < most ? (uint32_t)count : most;
        part_ask(part, n, now_ns, timeout_ms, NULL); /* without memory it is asked for again at the next step */
        count -= n;
    }
}

static void ask_part(rp_sampler *self, struct part *part, int64_t now_ns)
{
    enum deal deal = part->group->deal;
    if (part->excused) {
        plans_excuse(self, part, part->excused);
        part->excused = 0;
    }
    uint64_t have = part->rows + part_expected(part);
    uint64_t owed = part->needed > have ? part->needed - have : 0;
    if (owed == 0)
        return;
    if (deal != DEAL_PLAIN && part_weight(part) == 0) {
        /* Others give the items that a part cannot give. With `distinct` the batch does without them: who has given items to it already
         * could give the same again. */
        uint64_t come = self->options.max_samples && part->away && part_is_last(part) ? part->outstanding : 0;
        owed -= come < owed ? come : owed; /* with others there would be too many when they come */
        if (!self->options.distinct)
            plans_redraw(self, part, owed);
        else if (has_other(self, part))
            plans_excuse(self, part, owed);
        return;
    }
    if (now_ns >= part->retry_ns && !self->ending && (deal != DEAL_PLAIN || is_open(self)))
        ask(self, part, owed, now_ns);
}

static bool is_idle(const struct part *self, int64_t now_ns)
{
    return self->known && !self->away && !self->outstanding && now_ns >= self->retry_ns;
}

/* Asks the parts of a queue for what its plans want: first where items are, then everywhere, each time from the part after the last one
 * on, so that items of all parts come in turn. */
static void ask_queue(rp_sampler *self, uint32_t g, int64_t now_ns)
{
    struct group *group = &self->groups[g];
    uint64_t want = plans_want(self, g, PLAN_PAID), have = 0;
    uint32_t idle = 0, turn = group->turn;
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        have +=
            self->parts[p].rows + (self->options.max_samples ? self->parts[p].outstanding /* others would be too many */
                                                             : part_expected(&self->parts[p]));
    for (uint32_t i = 0; i < group->n && want > have; i++) {
        struct part *part = &self->parts[group->first + (turn + i) % group->n];
        if (!is_idle(part, now_ns) || part->size == 0)
            continue;
        uint64_t count = part->size < want - have ? part->size : want - have;
        have += count;
        group->turn = (turn + i + 1) % group->n;
        ask(self, part, count, now_ns);
    }
    for (uint32_t p = group->first; p < group->first + group->n; p++)
        idle += is_idle(&self->parts[p], now_ns);
    for (uint32_t i = 0; i < group->n && want > have && idle; i++) {
        struct part *part = &self->parts[group->first + (turn + i) % group->n];
        if (!is_idle(part, now_ns))
            continue;
        uint64_t count = (want - have + idle - 1) / idle;
        count += self->unit > 1 ? (self->unit - count % self->unit) % self->unit : 0;
        have += count;
        idle--;
        group->turn = (turn + i + 1) % group->n;
        ask(self, part, count, now_ns);
    }
}

static void ask_picks(rp_sampler *self, int64_t now_ns)
{
    for (uint32_t g = 0; g < self->n_groups; g++) {
        struct group *group = &self->groups[g];
        if (group->deal == DEAL_QUEUE && is_open(self))
            ask_queue(self, g, now_ns);
        /* A redraw may give more to a part that was asked already: twice around serves all. */
        for (uint32_t i = 0; i < 2 * group->n && group->deal != DEAL_QUEUE; i++)
            ask_part(self, &self->parts[group->first + i % group->n], now_ns);
    }
}

/* ---- all of it ---- */

/* True if no pick, no permit and no first question is in flight, at parts that are there. */
static bool is_quiet(const rp_sampler *self)
{
    for (uint32_t p = 0; p < self->n_parts; p++) {
        const struct part *part = &self->parts[p];
        bool unknown = !part->known && !part->away; /* its first answer decides what can be sampled */
        if (part_expected(part) || (part->permit && (part->permit->count || unknown)))
            return false;
    }
    return true;
}

/* Ends the stream, whose plans do with what there is. Released meanwhile. */
static void end_stream(rp_sampler *self)
{
    self->stop = self->ending = true;
    if (self->whole)
        plans_drop(self);
    for (uint32_t p = 0; p < self->n_parts; p++) {
        part_abandon(&self->parts[p]);
        part_recall(&self->parts[p]);
    }
    sampler_wake(self);
    pthread_cond_signal(&self->ready);
}

/* True if items are on their way that exist nowhere else, at parts that are away or at parts that are there. */
static bool is_owed(const rp_sampler *self, bool away)
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
static void look_at_end(rp_sampler *self, int64_t now_ns)
{
    bool ends = self->idle_ns != INT64_MAX;
    int64_t over = now_ns - self->last_ns - (ends ? self->idle_ns : 0);
    if (self->build == self->tail || self->stalled || (!self->ending && (!ends || over < 0)))
        return;
    self->late = !is_owed(self, true) || plan_has_some(self, plan_at(self, self->build));
    if (!self->late || self->news || (!is_quiet(self) && (over < SILENT_NS || is_owed(self, false))))
        return;
    if (!plans_hurry(self) && !self->ending) {
        char why[256];
        plans_explain(self, why, sizeof why);
        sampler_time_out(self, why);
        end_stream(self);
    }
    self->news = true;
}

/* Makes one step of the thread that plans; returns the time of the next. Released meanwhile. */
static int64_t make_step(rp_sampler *self)
{
    int64_t now = self->alone ? 0 : clock_ns(); /* then it is not used */
    bool whole, decoded = false;
    self->news = false;
    self->steps++;
    if (!self->alone)
        look_at_connections(self);
    for (uint32_t p = 0; p < self->n_parts && self->decodes; p++)
        while (part_decode(&self->parts[p], &whole))
            decoded = true;
    if (self->stop && !self->ending)
        end_stream(self);
    if (self->alone) {
        plans_ask(self);
        return self->parts[0].retry_ns && !self->ending ? self->parts[0].retry_ns : INT64_MAX;
    }
    self->news = self->news || decoded;
    look_at_parts(self);
    plans_draw(self, now);
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (self->groups[g].deal == DEAL_PERMITS && is_open(self))
            get_permits(self, g, now);
    if (self->build < self->tail && is_open(self))
        ask_states(self, now);
    for (uint32_t g = 0; g < self->n_groups; g++)
        move_room(self, &self->groups[g]);
    plans_pay(self);
    ask_picks(self, now);
    plans_build(self);
    look_at_end(self, now);
    if (self->news)
        return now;
    int64_t end = plans_end_ns(self), next = now + CHOOSE_MS * NS_PER_MS;
    for (uint32_t p = 0; p < self->n_parts; p++)
        next = self->parts[p].lag ? now + MOVE_NS : next;
    return self->build == self->tail ? INT64_MAX : end > now && end < next ? end : next;
}

/* ---- threads ---- */

static void *plan_main(void *arg)
{
    rp_sampler *self = arg;
    pthread_mutex_lock(&self->lock);
    while (!self->stopping) {
        int64_t wake = make_step(self);
        if (!self->stopping && !self->news)
            conn_cond_wait(&self->work, &self->lock, wake);
    }
    pthread_mutex_unlock(&self->lock);
    sampler_unref(self);
    return NULL;
}

static void *part_main(void *arg)
{
    struct part *part = arg;
    rp_sampler *self = part->sampler;
    bool whole;
    pthread_mutex_lock(&self->lock);
    while (!self->stopping) {
        if (plans_copy(self, part))
            continue;
        if (!part_decode(part, &whole)) {
            if (!self->stopping)
                pthread_cond_wait(&part->work, &self->lock);
        } else if (!whole || self->build == self->tail || plans_wait_no_more(self)) {
            sampler_wake(self); /* otherwise there is nothing to do about it before other parts have answered */
        }
    }
    pthread_mutex_unlock(&self->lock);
    sampler_unref(self);
    return NULL;
}

/* Threads leave the host program's signals alone. */
static bool start_thread(rp_sampler *self, pthread_t *thread, void *(*main)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    sampler_ref(self);
    bool started = pthread_create(thread, NULL, main, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_setname_np(*thread, main == plan_main ? "sampler" : "part");
    else
        sampler_unref(self); /* the owner's reference is left */
    return started;
}

static bool start_threads(rp_sampler *self)
{
    if (self->inlined)
        return true;
    self->started = start_thread(self, &self->thread, plan_main, self);
    for (uint32_t p = 0; p < self->n_parts && self->started && !self->alone; p++) {
        struct part *part = &self->parts[p];
        part->started = start_thread(self, &part->thread, part_main, part);
        if (!part->started)
            return false;
    }
    return self->started;
}

void rp_sampler_destroy(rp_sampler **sampler)
{
    rp_sampler *self = sampler ? *sampler : NULL;
    if (!self)
        return;
    *sampler = NULL;
    if (self->n_parts && conn_is_foreign(conn_of(self)))
        return; /* its threads and locks are those of the parent */
    pthread_mutex_lock(&self->lock);
    self->stopping = true;
    pthread_cond_broadcast(&self->work);
    for (uint32_t p = 0; p < self->n_parts; p++)
        pthread_cond_signal(&self->parts[p].work);
    pthread_mutex_unlock(&self->lock);
    if (self->started)
        pthread_join(self->thread, NULL);
    for (uint32_t p = 0; p < self->n_parts; p++)
        if (self->parts[p].started)
            pthread_join(self->parts[p].thread, NULL);
    pthread_mutex_lock(&self->lock);
    end_moves(self);
    for (uint32_t p = 0; p < self->n_parts; p++)
        part_cancel(&self->parts[p]);
    int64_t end = clock_ns() + LEAVE_NS;
    while (self->unanswered && conn_wait(conn_of(self), &self->ready, &self->lock, end)) {
    }
    pthread_mutex_unlock(&self->lock);
    for (uint32_t p = 0; p < self->n_parts; p++)
        conn_let_go(self->parts[p].conn);
    sampler_unref(self);
}

/* ---- parts and groups ---- */

static bool add_part(rp_sampler *self, const rp_source *source, uint32_t number, uint32_t shard)
{
    struct part *part = &self->parts[self->n_parts++];
    struct group *group = &self->groups[self->n_groups - 1];
    struct conn *conn = client_shard(source->client, shard);
    conn_hold(conn);
    uint32_t threads = self->options.gather_threads / self->all_parts;
    struct batch_options options = {
        .beta = self->options.beta, .max_bytes = self->options.max_bytes, .threads = threads, .packed = self->tokens};
    struct conn_hello *hello = conn_hello_ref(conn);
    uint32_t most = hello->says->max_batch;
    conn_hello_unref(&hello);
    if (!self->alone) { /* weights are computed for the whole batch, and a reply has items of several */
        uint64_t batches = most / self->options.batch_size + 2, each = self->options.max_bytes;
        options.max_bytes = each < MOST_BYTES / batches ? each * batches : MOST_BYTES;
        options.beta = 0;
        options.leave_items = !self->tokens && !conn_is_inside(conn); /* they are copied once, into their batch */
    }
    struct batch_pool *pool = self->alone ? batch_pool_ref(self->pool) : batch_pool_new(MOST_AHEAD, NULL);
    bool made = part_init(part, self, conn, source->table, pool, &options);
    batch_pool_unref(&pool);
    part->group = group;
    part->siblings = &self->parts[group->first];
    part->most = most;
    part->number = number;
    part->shard = shard;
    group->n++;
    return made;
}

/* Adds a source's parts to the newest group. */
static bool add_source(rp_sampler *self, const rp_source *sources, uint32_t number)
{
    uint32_t shards = client_shards(sources[number].client);
    self->n_shards = shards > self->n_shards ? shards : self->n_shards;
    for (uint32_t s = 0; s < shards; s++)
        if (!add_part(self, &sources[number], number, s))
            return false;
    return true;
}

static void add_group(rp_sampler *self, double share)
{
    self->groups[self->n_groups++] = (struct group){.share = share, .first = self->n_parts, .deal = DEAL_UNKNOWN};
}

/* Sources with a share are groups of their own; the others form one. */
static bool add_sources(rp_sampler *self, const rp_source *sources, uint32_t n)
{
    double rest = 1;
    bool others = false;
    for (uint32_t i = 0; i < n; i++) {
        others = others || sources[i].share < 0;
        if (sources[i].share < 0)
            continue;
        rest -= sources[i].share;
        add_group(self, sources[i].share);
        if (!add_source(self, sources, i))
            return false;
    }
    if (others)
        add_group(self, rest);
    for (uint32_t i = 0; i < n; i++)
        if (sources[i].share < 0 && !add_source(self, sources, i))
            return false;
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (self->groups[g].n == 1)
            self->groups[g].deal = DEAL_PLAIN;
    return true;
}

static rp_status check_sources(const rp_source *sources, uint32_t n, rp_error *err)
{
    double sum = 0;
    bool others = false;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(sources[i].share) || sources[i].share == 0 || sources[i].share > 1)
            return err_set(err, RP_INVALID_ARGUMENT,
                           "the share of source %u is %g; write a number above 0 and at most 1, or -1: by mass", i,
                           sources[i].share);
        sum += sources[i].share > 0 ? sources[i].share : 0;
        others = others || sources[i].share < 0;
    }
    if (others ? sum >= 1 : fabs(sum - 1) > 1e-6)
        return err_set(err, RP_INVALID_ARGUMENT, "the shares of the sources sum up to %g; %s", sum,
                       others ? "sources without a share need a rest" : "they must sum up to 1");
    return RP_OK;
}

/* Returns how long to wait for the answers: until all have come, until there is one of each group and the others are late, or until
 * nobody answers. 0: no longer. */
static int64_t learn_until(const rp_sampler *self, int64_t start_ns, int64_t now_ns, int64_t *known_ns)
{
    bool known = true, open = false;
    for (uint32_t g = 0; g < self->n_groups; g++)
        known = known && self->groups[g].deal != DEAL_UNKNOWN;
    for (uint32_t p = 0; p < self->n_parts; p++)
        open = open || self->parts[p].permit;
    *known_ns = known && *known_ns == 0 ? now_ns : *known_ns;
    int64_t until = known ? *known_ns + LEARN_MORE_NS : start_ns + LEARN_NS;
    return open && self->error.status == RP_OK && now_ns < until ? until : 0;
}

/* Asks all parts how they are sampled, so that what cannot work is refused now. Parts that do not answer are asked again later. */
static rp_status learn(rp_sampler *self, rp_error *err)
{
    pthread_cond_t *planner = self->inlined ? &self->ready : &self->work;
    int64_t start = clock_ns(), known_ns = 0, until;
    rp_status status = RP_OK;
    pthread_mutex_lock(&self->lock);
    look_at_connections(self);
    for (uint32_t p = 0; p < self->n_parts; p++)
        if (!self->parts[p].lost_ns) /* also plain ones: whether they remove items, and whether they are queues */
            part_permit(&self->parts[p], 0, 0, 0, NULL);
    while (status == RP_OK && (until = learn_until(self, start, clock_ns(), &known_ns)) > 0)
        if (!conn_wait(conn_of(self), planner, &self->lock, until) && conn_is_stopped())
            status = conn_stopped(err);
    if (status == RP_OK && self->error.status != RP_OK)
        status = err_set(err, (rp_status)self->error.status, "%s", self->error.text);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* ---- creation ---- */

static bool make_plans(rp_sampler *self)
{
    uint32_t parts = self->n_parts;
    self->plans = calloc(self->capacity, sizeof *self->plans);
    for (uint32_t i = 0; self->plans && i < self->capacity; i++) {
        struct plan *plan = &self->plans[i];
        plan->copies = calloc(parts + self->n_groups, sizeof *plan->copies + sizeof *plan->share + sizeof *plan->need);
        if (!plan->copies)
            return false;
        plan->share = (double *)(plan->copies + parts);
        plan->need = (uint32_t *)(void *)(plan->share + parts);
        plan->of_group = plan->need + parts;
    }
    return self->plans != NULL;
}

static bool make(rp_sampler *self, const rp_source *sources, uint32_t n)
{
    const rp_sampler_options *options = &self->options;
    int64_t end_ms = options->end_after_ms;
    self->flexible = options->fill == RP_FILL_AT_ONCE || self->tokens; /* a few long items may be all that is wanted */
    self->whole = options->fill == RP_FILL_WHOLE;
    self->idle_ns = end_ms == 0 || end_ms > MOST_MS ? INT64_MAX : end_ms < 0 ? 0 : end_ms * NS_PER_MS;
    uint32_t parts = 0;
    for (uint32_t i = 0; i < n; i++)
        parts += client_shards(sources[i].client);
    self->alone = parts == 1;
    self->all_parts = parts;
    self->n_sources = n;
    uint32_t most = self->alone ? 1 : MOST_AHEAD * parts;
    self->pool = batch_pool_new(options->on_demand ? 3 : 2 + (options->in_flight > most ? options->in_flight : most),
                                self->tokens ? NULL : &options->memory);
    self->parts = calloc(parts, sizeof *self->parts);
    self->groups = calloc(n + 1, sizeof *self->groups);
    self->room = calloc(2 * (size_t)parts + n + 2, sizeof *self->room);
    self->counts = calloc(parts, sizeof *self->counts);
    self->sizes = calloc(parts, sizeof *self->sizes);
    if (!self->pool || !self->parts || !self->groups || !self->room || !self->counts || !self->sizes ||
        !add_sources(self, sources, n))
        return false;
    for (uint32_t g = 0; g < self->n_groups; g++)
        self->widest = self->groups[g].n > self->widest ? self->groups[g].n : self->widest;
    uint32_t ahead = self->alone ? 1 : MOST_AHEAD * self->widest;
    self->capacity = options->on_demand ? 1 : options->in_flight > ahead ? options->in_flight : ahead;
    self->window = self->most = 1; /* raised before the first batch */
    self->inlined = options->on_demand || conn_is_hosted(conn_of(self));
    self->decodes = self->inlined || self->alone;
    uint64_t seed = 1; /* runs in one process are repeatable */
    if (!conn_is_hosted(conn_of(self)))
        rng_system(&seed, sizeof seed);
    rng_seed(&self->rng, seed);
    return make_plans(self);
}

/* ---- the caller ---- */

static bool has_ended(const rp_sampler *self)
{
    bool over = self->ending && !plans_left(self) && !is_owed(self, false) && !is_owed(self, true);
    uint64_t max = self->options.max_samples;
    return self->head == self->tail && (over || (max && self->got >= max));
}

/* True if there is a batch to take, or an error instead. Skips plans that have neither. */
static bool has_batch(rp_sampler *self)
{
    for (; self->head < self->build; self->head++) {
        const struct plan *plan = plan_at(self, self->head);
        if (plan->state != PLAN_READY)
            return false;
        if (plan->batches || plan->error.status != RP_OK)
            return true;
        sampler_wake(self); /* there is room for another plan */
    }
    return false;
}

/* A caller that would wait for a reply that is here decodes it: waking another thread takes longer than a small batch. Small ones that
 * came meanwhile stay for the next call. A call that does not wait decodes no large one. */
static void decode_ahead(rp_sampler *self, int64_t timeout_ms)
{
    struct part *part = &self->parts[0];
    bool small = self->item_bytes * self->options.batch_size <= SMALL_BATCH, whole;
    while ((timeout_ms != 0 || small) && !has_batch(self) && part_decode(part, &whole))
        ;
    if (part->retry_ns || self->stop || (!small && part_has_arrived(part)))
        sampler_wake(self);
}

/* Waits until there is something to take; false: the deadline has passed, or the caller has ended the wait. */
static bool wait_for_batch(rp_sampler *self, int64_t timeout_ms)
{
    int64_t deadline = conn_deadline(timeout_ms), ask_at = INT64_MAX;
    bool waited = false;
    if (timeout_ms > 0 && deadline != INT64_MAX) {
        int64_t early = (deadline - clock_ns()) / 4;
        ask_at = deadline - (early < ASK_WHY_NS ? early : ASK_WHY_NS);
    }
    for (;;) {
        int64_t wake = self->inlined ? make_step(self) : INT64_MAX;
        if (self->alone && !self->inlined && !has_batch(self))
            decode_ahead(self, timeout_ms);
        if (has_batch(self) || self->error.status != RP_OK || has_ended(self))
            return true;
        if (!waited)
            plans_note_wait(self);
        waited = true;
        int64_t now = clock_ns();
        if (now >= deadline || (self->alone && self->options.on_demand && !self->wanted))
            return false;
        if (now >= ask_at) {
            ask_at = INT64_MAX;
            for (uint32_t p = 0; p < self->n_parts; p++)
                part_ask_why(&self->parts[p]);
            continue;
        }
        wake = wake < deadline ? wake : deadline;
        if (wake <= now || (self->inlined && self->news))
            continue;
        self->waiting = self->alone && !self->inlined;
        bool in_time = conn_wait(conn_of(self), &self->ready, &self->lock, ask_at < wake ? ask_at : wake);
        self->waiting = false;
        if (!in_time && conn_is_stopped())
            return false;
    }
}

/* on_demand, alone: every request gets a reply, a cancelled one too. Cancels it when nobody is there to answer. */
static void await_reply(rp_sampler *self)
{
    int64_t end = clock_ns() + GRACE_ALONE_NS;
    for (make_step(self); !is_quiet(self) && !self->stalled && !conn_is_ending(conn_of(self)); make_step(self)) {
        pthread_mutex_unlock(&self->lock);
        bool up = conn_is_up(conn_of(self));
        pthread_mutex_lock(&self->lock);
        int64_t now = clock_ns();
        if (now >= end || !up)
            part_recall(&self->parts[0]);
        if (!self->news)
            conn_wait(conn_of(self), &self->ready, &self->lock, now + SAMPLER_LOOK_NS);
    }
}

/* on_demand: the plan of the call waits no longer. False: there is nothing, and it was dropped. */
static bool hurry_call(rp_sampler *self)
{
    const struct plan *plan = plan_at(self, self->build);
    plans_hurry(self);
    if (plan->count > plan->missing && !(self->whole && plan->missing))
        return true;
    plans_drop(self); /* what a whole batch lacks is waited for, and its items are kept */
    return false;
}

/* on_demand: leaves nothing in flight. If the time is over, the batch does with what there is. */
static void settle(rp_sampler *self)
{
    int64_t end = clock_ns() + GRACE_NS;
    bool dropped = false;
    uint32_t hurries = 0; /* the first may ask for items, and the second takes what has come */
    self->wanted = false;
    if (self->alone) {
        await_reply(self);
        return;
    }
    while (clock_ns() < end) {
        int64_t wake = make_step(self);
        if (self->stalled)
            return; /* no memory: the caller learns it now, and the next call goes on */
        bool quiet = is_quiet(self);
        if (quiet && (has_batch(self) || self->build == self->tail || dropped || self->error.status != RP_OK))
            return;
        if (quiet && !self->news && hurries < 2) {
            hurries++;
            dropped = self->build < self->tail && !hurry_call(self);
        } else if (!self->news)
            conn_wait(conn_of(self), &self->ready, &self->lock, wake < end ? wake : end);
    }
    plans_drop(self);
    for (uint32_t p = 0; p < self->n_parts; p++)
        part_abandon(&self->parts[p]);
}

/* on_demand: the caller has ended the wait. Items that are on their way and exist nowhere else are kept for the next call. */
static void settle_now(rp_sampler *self)
{
    int64_t end = clock_ns() + STOP_NS;
    self->wanted = false;
    plans_drop(self);
    for (uint32_t p = 0; p < self->n_parts; p++) {
        part_abandon(&self->parts[p]);
        part_recall(&self->parts[p]);
    }
    do
        make_step(self);
    while (!is_quiet(self) && clock_ns() < end && conn_wait(conn_of(self), &self->ready, &self->lock, end));
}

static rp_status give_error(rp_sampler *self, rp_error *err)
{
    rp_status status = err_set(err, (rp_status)self->error.status, "%s", self->error.text);
    self->error = (rp_error){0};
    if (self->stalled) {
        self->stalled = false;
        for (uint32_t p = 0; p < self->n_parts; p++)
            pthread_cond_signal(&self->parts[p].work);
    }
    sampler_wake(self);
    return status;
}

static rp_status give_batch(rp_sampler *self, rp_batch **batch, rp_error *err)
{
    struct plan *plan = plan_at(self, self->head);
    rp_status status = RP_OK;
    if (plan->batches) {
        *batch = batch_list_take(&plan->batches);
        self->stats.batches += !self->tokens;
        self->stats.items += self->tokens ? 0 : (*batch)->info.n;
        if (plan->batches && !self->cut)
            log_line(LEVEL_WARN, "C0301", "items of different fields come in smaller batches",
                     "table=%s reason=%s hint=\"give the table a signature, or each kind of items a table of its own\"",
                     self->parts[0].table, log_text((*batch)->text));
        self->cut = self->cut || plan->batches;
    } else {
        status = err_set(err, (rp_status)plan->error.status, "%s", plan->error.text);
    }
    if (plan->batches)
        return status;
    self->head++;
    if (self->alone)
        plans_ask(self);
    else if (self->inlined || plans_due(self))
        sampler_wake(self);
    return status;
}

static rp_status timed_out(rp_sampler *self, int64_t timeout_ms, rp_error *err)
{
    char why[256], link[256] = "";
    plans_explain(self, why, sizeof why);
    pthread_mutex_unlock(&self->lock);
    if (self->alone)
        conn_describe(conn_of(self), link, sizeof link);
    pthread_mutex_lock(&self->lock);
    return err_set(err, RP_DEADLINE_EXCEEDED, "no batch from table '%s' within %lld ms: %s", self->parts[0].table,
                   (long long)timeout_ms, link[0] ? link : why);
}

/* Takes the lock. */
static rp_status next(rp_sampler *self, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    rp_status status;
    pthread_mutex_lock(&self->lock);
    self->wanted = true;
    self->deadline_ns = conn_deadline(timeout_ms);
    if (self->alone && self->options.on_demand)
        self->parts[0].retry_ns = 0; /* each call makes its request at once */
    bool got = wait_for_batch(self, timeout_ms);
    bool stopped = !got && (conn_is_stopped() || conn_is_ending(conn_of(self)));
    if (self->options.on_demand && stopped)
        settle_now(self);
    else if (self->options.on_demand && (!got || !is_quiet(self))) {
        settle(self);
        got = got || has_batch(self) || self->error.status != RP_OK;
    }
    self->wanted = false;
    if (!got)
        status = stopped ? conn_stopped(err) : timed_out(self, timeout_ms, err);
    else if (has_batch(self))
        status = give_batch(self, batch, err);
    else if (self->error.status != RP_OK)
        status = give_error(self, err);
    else if (self->ending)
        status = err_set(err, RP_END_OF_STREAM, "%s", self->end_text);
    else
        status = err_set(err, RP_END_OF_STREAM, "all of the %llu samples asked for were given",
                         (unsigned long long)self->options.max_samples);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* The same for batches that are filled by tokens. */
static rp_status next_by_tokens(rp_sampler *self, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms), left_ms = timeout_ms;
    bool ended = false;
    rp_error end;
    while (!tokens_full(self->tokens) && !ended) {
        rp_batch *more;
        rp_status status = next(self, &more, left_ms, &end);
        ended = status == RP_END_OF_STREAM;
        if (status == RP_OK)
            RP_TRY(tokens_add(self->tokens, &more, err));
        else if (!ended || tokens_empty(self->tokens))
            return err_set(err, status, "%s", end.text);
        if (timeout_ms > 0)
            left_ms = conn_left_ms(deadline);
    }
    RP_TRY(tokens_take(self->tokens, batch, err));
    pthread_mutex_lock(&self->lock);
    self->stats.batches++;
    self->stats.items += (*batch)->info.n;
    pthread_mutex_unlock(&self->lock);
    return RP_OK;
}

/* ---- public functions ---- */

rp_sampler *rp_sampler_new(rp_client *client, const char *table, const rp_sampler_options *options, rp_error *err)
{
    rp_source source = {client, table, -1};
    return rp_sampler_new_mixed(&source, 1, options, err);
}

rp_sampler *rp_sampler_new_mixed(const rp_source *sources, uint32_t n, const rp_sampler_options *options, rp_error *err)
{
    rp_sampler_options checked = {0};
    if (n == 0 || n > MAX_SOURCES)
        return err_null(err, RP_INVALID_ARGUMENT, "a sampler has 1 to %u sources, not %u", MAX_SOURCES, n);
    uint32_t unit = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct conn *conn = client_conn(sources[i].client);
        uint32_t before = unit;
        if (conn_check_process(conn, err) != RP_OK ||
            read_options(conn, sources[i].table, options, &checked, &unit, err) != RP_OK)
            return NULL;
        if (before && before != unit)
            return err_null(
                err, RP_INVALID_ARGUMENT,
                "table '%.64s' has groups of %u items, and another source of %u (1: none): all must be alike",
                sources[i].table, unit, before);
    }
    if (check_sources(sources, n, err) != RP_OK)
        return NULL;
    rp_sampler *self = calloc(1, sizeof *self);
    if (!self)
        return err_null(err, RP_NO_MEMORY, "no memory for a sampler");
    pthread_mutexattr_t attr; /* many threads hold the lock, each for less than a wake-up takes */
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&self->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    pthread_cond_init(&self->work, NULL);
    pthread_cond_init(&self->ready, NULL);
    self->refs = 1;
    self->options = checked;
    self->unit = unit;
    if (checked.tokens)
        self->tokens = tokens_new(&checked, unit);
    self->options.beta = checked.tokens ? 0 : checked.beta; /* weights are those of the batches that the caller gets */
    bool made = (self->tokens || !checked.tokens) && make(self, sources, n);
    if (!made)
        err_set(err, RP_NO_MEMORY, "no memory for a sampler");
    if (made && (self->alone || learn(self, err) == RP_OK)) {
        self->last_ns = clock_ns();
        if (self->alone) {
            pthread_mutex_lock(&self->lock);
            plans_ask(self);
            pthread_mutex_unlock(&self->lock);
        }
        if (start_threads(self))
            return self;
        err_set(err, RP_NO_MEMORY, "no thread for a sampler");
    }
    rp_sampler_destroy(&self);
    return NULL;
}

rp_status rp_sampler_next(rp_sampler *sampler, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    *batch = NULL;
    RP_TRY(conn_check_process(conn_of(sampler), err));
    struct trace *trace = conn_trace(conn_of(sampler));
    int64_t start = trace_now(trace);
    if (timeout_ms == 0)
        conn_look(conn_of(sampler));
    rp_status status =
        sampler->tokens ? next_by_tokens(sampler, batch, timeout_ms, err) : next(sampler, batch, timeout_ms, err);
    trace_add_since(trace, "wait for a sample", NULL, start, *batch ? (*batch)->info.n : 0);
    return status;
}

rp_status rp_sampler_stop(rp_sampler *sampler, rp_error *err)
{
    RP_TRY(conn_check_process(conn_of(sampler), err));
    pthread_mutex_lock(&sampler->lock);
    if (!sampler->stop) /* plans and requests belong to the thread that plans, which may be in the middle of one */
        snprintf(sampler->end_text, sizeof sampler->end_text, "the sampler was stopped");
    sampler->stop = true;
    sampler_wake(sampler);
    pthread_mutex_unlock(&sampler->lock);
    return RP_OK;
}

rp_status rp_sampler_get_stats(rp_sampler *sampler, rp_sampler_stats *out)
{
    RP_TRY(conn_check_process(conn_of(sampler), NULL));
    pthread_mutex_lock(&sampler->lock);
    rp_sampler_stats stats = sampler->stats;
    for (uint64_t at = sampler->head; at < sampler->tail; at++) {
        const struct plan *plan = plan_at(sampler, at);
        stats.requested += plan->state != PLAN_READY;
        stats.ready += plan->state == PLAN_READY && plan->batches;
    }
    for (uint32_t p = 0; p < sampler->n_parts; p++)
        stats.shared += conn_has_arena(sampler->parts[p].conn);
    pthread_mutex_unlock(&sampler->lock);
    return client_copy_out(out, &stats, sizeof stats, NULL);
}
