/* Curves: one actor alone; then learners alone on the items that the actor has left; then more actors, as long as learners could
 * use their items. With hosts, actors are measured on one host of each kind, and learners where the run will have them. A host
 * that is lost meanwhile is left out, and its part is measured without it. */
#include <math.h>
#include <stdlib.h>

#include "agent/launch/profile/profile_config.h"
#include "agent/launch/profile/profile_hosts.h"
#include "agent/launch/profile/profile_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "replay/admin.h"

/* Shares of the whole work, for progress. */
#define FIRST_END 0.1
#define LEARNERS_END 0.4
/* More processes do not pay if twice as many gain less than this; with all cores busy, less than the second number. */
#define LEAST_GROWTH 0.10
#define LEAST_GROWTH_BUSY 0.25
#define BUSY 0.95
/* Actors that make this many times what all learners use are not measured. */
#define PLENTY 3.0
#define WARM_NS (300 * NS_PER_MS)
#define FOREIGN_SLOT_NS (5 * NS_PER_S)
#define FILL_NS (10 * NS_PER_S)
#define INFO_MS 2000
/* Bytes of an item beside its data: its place in the table, the sampler and the index. */
#define ITEM_BYTES 160.0
/* Bytes of an insert on the wire beside its data: its part of a message. */
#define WIRE_BYTES 64.0

/* ---- which counts ---- */

/* Returns the next count after `count` (0: the first); 0: there is none. */
static uint32_t next_count(uint32_t count, uint32_t fixed, uint32_t most)
{
    if (count == 0)
        return 1;
    if (fixed > 0)
        return count < fixed ? fixed : 0;
    if (count >= most)
        return 0;
    return count * 2 < most ? count * 2 : most;
}

/* What a curve is measured with. */
struct budget {
    double cores, memory; /* of the machine */
    double taken;         /* bytes of the broker there */
};

/* True if the last point was worth its processes and there is memory for the next. */
static bool goes_on(const struct budget *budget, const struct plan_curve *curve, uint32_t fixed, uint32_t next)
{
    if (curve->n == 0 || fixed > 0)
        return curve->n < PLAN_MAX_POINTS;
    const struct plan_point *last = &curve->points[curve->n - 1];
    if (curve->n == PLAN_MAX_POINTS || last->memory * next + budget->taken > budget->memory)
        return false;
    if (curve->n == 1)
        return true;
    const struct plan_point *before = last - 1;
    double growth = before->rate > 0 ? last->rate / before->rate - 1.0 : 1.0;
    bool busy = last->cpu + (budget->taken > 0 ? last->broker_cpu : 0.0) >= BUSY * budget->cores;
    return growth >= (busy ? LEAST_GROWTH_BUSY : LEAST_GROWTH);
}

/* The machine of a curve; without hosts, this one. */
static struct budget budget_of(const struct profile *self, uint32_t host)
{
    const struct plan_input *out = self->out;
    struct budget budget = {.cores = out->cores, .memory = out->memory, .taken = (double)self->session.base_memory};
    if (out->n_hosts > 0) {
        budget.cores = out->hosts[host].cores;
        budget.memory = out->hosts[host].memory > 0 ? out->hosts[host].memory : INFINITY;
        budget.taken = host == HOST_POOL_HOME ? budget.taken : 0.0;
    }
    return budget;
}

/* A part of the progress. */
struct part {
    double from, to;
    uint32_t done;
};

static void tell(struct profile *self, const struct part *part, uint32_t count, const char *what, uint32_t host)
{
    double size = part->to - part->from;
    double share = part->from + size * (1.0 - pow(0.7, part->done));
    double next = part->from + size * (1.0 - pow(0.7, part->done + 1));
    bool hosts = self->out->n_hosts > 0;
    profile_session_tell(&self->session, share, next, "%u %s%s%s%s", count, what, count == 1 ? "" : "s",
                         hosts ? " on " : "", hosts ? self->out->hosts[host].name : "");
}

static void add_point(struct plan_curve *curve, uint32_t count, double rate, enum role role,
                      const struct profile_measured *measured)
{
    curve->points[curve->n++] = (struct plan_point){.count = count,
                                                    .rate = rate,
                                                    .cpu = measured->cpu[role],
                                                    .broker_cpu = measured->cpu[ROLE_BROKER],
                                                    .memory = measured->memory[role]};
}

/* ---- actors ---- */

static bool has_policy(struct profile_session *session, void *context)
{
    (void)context;
    return session->seen.policy > 0;
}

/* Starts learners where the run will have them. *host: where the first of them is. */
static rp_status start_learners(struct profile *self, uint32_t count, uint32_t *host, rp_error *err)
{
    uint32_t n = self->out->n_hosts, *at = n > 0 ? calloc((size_t)n * 2, sizeof *at) : NULL;
    *host = HOST_POOL_HOME;
    if (n > 0 && !at)
        return err_set(err, RP_NO_MEMORY, "no memory for %u hosts", n);
    if (at)
        plan_place(self->out, 0, count, at, at + n);
    while (at && *host + 1 < n && at[n + *host] == 0)
        ++*host;
    rp_status status = profile_session_spread(&self->session, ROLE_LEARNER, count, at ? at + n : NULL, n, err);
    free(at);
    return status;
}

/* Actors wait for the first parameters. These stay when the learner that made them ends. */
static rp_status first_parameters(struct profile *self, rp_error *err)
{
    bool foreign = self->config->learners.command.count > 0;
    uint32_t host;
    profile_session_tell(&self->session, 0.0, 0.0, "first parameters");
    RP_TRY(start_learners(self, 1, &host, err));
    rp_status status =
        profile_session_await(&self->session, has_policy, NULL, foreign ? FOREIGN_SLOT_NS : PROFILE_FIRST_NS, err);
    if (status == RP_DEADLINE_EXCEEDED && !foreign)
        return err_set(err, status, "the learner published no parameters within %d s: see %s/learner-0.log",
                       (int)(PROFILE_FIRST_NS / NS_PER_S), self->session.folder);
    if (status != RP_DEADLINE_EXCEEDED)
        RP_TRY(status);
    return profile_session_stop(&self->session, ROLE_LEARNER, err);
}

struct all_insert {
    uint32_t count;
    bool any; /* at least one actor has inserted */
};

static bool all_insert(struct profile_session *session, void *context)
{
    struct all_insert *wanted = context;
    rp_info *info = NULL;
    uint32_t n = 0;
    if (rp_admin_info(observer_client(session->observer), NULL, 1, INFO_MS, &info, NULL) != RP_OK)
        return false;
    for (uint32_t i = 0; i < info->n_sessions; i++)
        n += !info->sessions[i].expired && info->sessions[i].resolved > 0;
    rp_info_free(&info);
    wanted->any = n > 0;
    return n >= wanted->count;
}

/* A user's own actors may share a session: then the visible sessions have to do. */
static rp_status await_inserts(struct profile *self, uint32_t count, rp_error *err)
{
    struct all_insert wanted = {.count = count};
    bool foreign = self->config->actors.command.count > 0;
    rp_status status = profile_session_await(&self->session, all_insert, &wanted, PROFILE_FIRST_NS, err);
    if (status == RP_DEADLINE_EXCEEDED && foreign && wanted.any)
        return RP_OK;
    if (status == RP_DEADLINE_EXCEEDED)
        return err_set(err, status, "%s of %u actors inserted an item into '%s' within %d s: see %s/actor-*.log",
                       wanted.any ? "not each" : "none", count, self->config->adder.table,
                       (int)(PROFILE_FIRST_NS / NS_PER_S), self->session.folder);
    return status;
}

static uint32_t hosts_of(const struct plan_input *input, uint32_t kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < input->n_hosts; i++)
        n += input->hosts[i].kind == kind && input->hosts[i].actors;
    return n;
}

/* True if the last point, on all hosts of its kind, makes far more than all learners can use: more actors would show nothing. */
static bool is_plenty(const struct profile *self, const struct plan_curve *actors, uint32_t hosts)
{
    const struct plan_curve *learners = &self->out->learners;
    double most = 0.0;
    for (uint32_t i = 0; i < learners->n; i++)
        most = fmax(most, learners->points[i].rate);
    return self->out->fixed_actors == 0 && learners->n > 0 && actors->n > 1 && self->out->spi > 0 &&
           actors->points[actors->n - 1].rate * hosts * self->out->spi > PLENTY * most;
}

/* Continues the curve of a host up to `until` actors. */
static rp_status measure_actors(struct profile *self, uint32_t host, uint32_t until, rp_error *err)
{
    struct plan_input *out = self->out;
    uint32_t kind = out->n_hosts > 0 ? out->hosts[host].kind : 0, hosts = out->n_hosts > 0 ? hosts_of(out, kind) : 1;
    struct plan_curve *curve = out->n_hosts > 0 ? &out->hosts[kind].curve : &out->actors;
    struct profile_session *session = &self->session;
    const struct budget budget = budget_of(self, host);
    uint32_t fixed = profile_hosts_fixed(out, kind), most = (uint32_t)self->config->plan.max_actors;
    uint32_t count = plan_last(curve);
    while ((count = next_count(count, fixed, most)) && count <= until && goes_on(&budget, curve, fixed, count) &&
           !is_plenty(self, curve, hosts)) {
        struct profile_measured measured;
        struct part part = {self->from, self->to, curve->n - (curve->n > 0)};
        tell(self, &part, count, "actor", host);
        RP_TRY(profile_session_start(session, ROLE_ACTOR, count, host, err));
        RP_TRY(await_inserts(self, count, err));
        RP_TRY(profile_session_wait(session, WARM_NS, err));
        RP_TRY(profile_session_measure(session, PROFILE_INSERTS, 1, self->config->plan.measure_ns, &measured, err));
        double rate = profile_lasting(self->items_per_step, measured.steps, measured.inserts);
        add_point(curve, count, rate, ROLE_ACTOR, &measured);
    }
    return RP_OK;
}

/* The first host that takes actors; without hosts, this machine. */
static uint32_t first_host(const struct profile *self)
{
    for (uint32_t i = 0; i < self->out->n_hosts; i++)
        if (self->out->hosts[i].actors)
            return i;
    return HOST_POOL_HOME;
}

static rp_status measure_first(struct profile *self, rp_error *err)
{
    self->from = 0.0;
    self->to = FIRST_END;
    RP_TRY(measure_actors(self, first_host(self), 1, err));
    /* A profile that lost a host has the curve already, and still needs items. */
    return profile_session_start(&self->session, ROLE_ACTOR, 1, first_host(self), err);
}

static uint32_t count_kinds(const struct plan_input *input)
{
    uint32_t n = 0;
    for (uint32_t kind = 0; kind < input->n_hosts; kind++)
        n += profile_hosts_first(input, kind) != PROFILE_NO_HOST;
    return n;
}

/* The curves of all kinds, each on its first host. */
static rp_status measure_kinds(struct profile *self, rp_error *err)
{
    uint32_t kinds = count_kinds(self->out), done = 0;
    self->from = LEARNERS_END;
    self->to = PROFILE_ALONE_END;
    if (self->out->n_hosts == 0)
        return measure_actors(self, HOST_POOL_HOME, UINT32_MAX, err);
    for (uint32_t kind = 0; kind < self->out->n_hosts; kind++) {
        uint32_t host = profile_hosts_first(self->out, kind);
        if (host == PROFILE_NO_HOST)
            continue;
        double size = (PROFILE_ALONE_END - LEARNERS_END) / kinds;
        self->from = LEARNERS_END + size * done++;
        self->to = self->from + size;
        RP_TRY(measure_actors(self, host, UINT32_MAX, err));
        RP_TRY(profile_session_stop(&self->session, ROLE_ACTOR, err));
    }
    plan_add_up(self->out);
    return RP_OK;
}

/* ---- what the learners find ---- */

static bool filled(struct profile_session *session, void *context)
{
    const uint64_t *wanted = context;
    return session->seen.size >= *wanted ||
           (session->seen.max_size > 0 && session->seen.size >= session->seen.max_size);
}

/* Bytes of the broker with full tables, from what items take now. */
static double full_memory(const struct profile *self)
{
    const struct observation *seen = &self->session.seen;
    double items = 0.0, limit = (double)self->config->broker.memory_limit;
    if (seen->size > 0)
        items = (double)seen->max_size * ((double)seen->broker_bytes / (double)seen->size + ITEM_BYTES);
    if (self->table->max_bytes > 0)
        items = fmin(items, (double)self->table->max_bytes * 1.25);
    return (double)self->session.base_memory + fmin(items, limit);
}

/* Bytes of an insert on the wire: chunks are stored as they came. */
static double bytes_of_insert(const struct profile *self)
{
    rp_info *info = NULL;
    uint64_t items = 0;
    if (rp_admin_info(observer_client(self->session.observer), NULL, 0, INFO_MS, &info, NULL) != RP_OK)
        return 0.0;
    for (uint32_t i = 0; i < info->n_tables; i++)
        items += info->tables[i].size;
    double bytes = items > 0 ? (double)info->server.chunk_bytes / (double)items + WIRE_BYTES : 0.0;
    rp_info_free(&info);
    return bytes;
}

static rp_status leave_table(struct profile *self, rp_error *err)
{
    struct profile_session *session = &self->session;
    uint64_t wanted = 4 * self->batch;
    profile_session_tell(session, FIRST_END, FIRST_END, "filling the table for learners");
    rp_status status = profile_session_await(session, filled, &wanted, FILL_NS, err);
    if (status != RP_DEADLINE_EXCEEDED)
        RP_TRY(status);
    if (session->seen.size == 0)
        return err_set(err, RP_FAILED_PRECONDITION, "table '%s' is empty after its actors have run: see %s/actor-*.log",
                       self->config->adder.table, session->folder);
    self->out->broker_memory = full_memory(self);
    self->out->item_bytes = bytes_of_insert(self);
    return profile_session_stop(session, ROLE_ACTOR, err);
}

/* ---- learners ---- */

static bool samples_flow(struct profile_session *session, void *context)
{
    const uint64_t *wanted = context;
    return session->seen.samples >= *wanted;
}

rp_status profile_await_samples(struct profile *self, uint64_t more, int64_t limit_ns, rp_error *err)
{
    struct profile_session *session = &self->session;
    uint64_t wanted = session->seen.samples + more;
    rp_status status = profile_session_await(session, samples_flow, &wanted, limit_ns, err);
    if (status != RP_DEADLINE_EXCEEDED)
        return status;
    const char *why = session->seen.samples_wait[0] ? session->seen.samples_wait : session->seen.inserts_wait;
    return err_set(err, status, "learners did not sample from '%s' within %d s%s%s: see %s/learner-*.log",
                   self->config->adder.table, (int)(limit_ns / NS_PER_S), why[0] ? "; " : "", why, session->folder);
}

static rp_status fill_table(struct profile *self, rp_error *err)
{
    RP_TRY(measure_first(self, err));
    return leave_table(self, err);
}

static rp_status measure_learners(struct profile *self, rp_error *err)
{
    struct plan_curve *curve = &self->out->learners;
    struct profile_session *session = &self->session;
    uint32_t fixed = self->out->fixed_learners, most = (uint32_t)self->config->plan.max_learners;
    uint32_t host = HOST_POOL_HOME;
    struct budget budget = budget_of(self, host);
    curve->n = 0;
    for (uint32_t count = 0; (count = next_count(count, fixed, most)) && goes_on(&budget, curve, fixed, count);) {
        struct profile_measured measured;
        RP_TRY(profile_session_look(session, err));
        RP_TRY(start_learners(self, count, &host, err));
        budget = budget_of(self, host);
        tell(self, &(struct part){FIRST_END, LEARNERS_END, curve->n}, count, "learner", host);
        RP_TRY(profile_await_samples(self, 2 * count * self->batch, PROFILE_FIRST_NS, err));
        RP_TRY(profile_session_wait(session, WARM_NS, err));
        RP_TRY(profile_session_measure(session, PROFILE_SAMPLES, count * self->batch, self->config->plan.measure_ns,
                                       &measured, err));
        add_point(curve, count, measured.samples, ROLE_LEARNER, &measured);
        RP_TRY(profile_session_stop(session, ROLE_LEARNER, err));
    }
    return RP_OK;
}

/* ---- the whole ---- */

/* Measures a part, and again without a host that was lost meanwhile. */
static rp_status without_lost(struct profile *self, rp_status (*part)(struct profile *, rp_error *), rp_error *err)
{
    for (;;) {
        rp_status status = part(self, err);
        uint32_t lost = self->session.lost;
        if (status == RP_OK || lost == PROFILE_NO_HOST)
            return status;
        profile_session_drop(&self->session, ROLE_ACTOR);
        profile_session_drop(&self->session, ROLE_LEARNER);
        if (!profile_hosts_leave_out(self, lost))
            return status;
    }
}

rp_status profile_measure_alone(struct profile *self, rp_error *err)
{
    static rp_status (*const parts[])(struct profile *, rp_error *) = {first_parameters, fill_table, measure_learners,
                                                                       measure_kinds};
    struct profile_session_options options = {.profile = self->options, .name = "alone"};
    rp_status status = profile_session_open(&self->session, &options, err);
    for (size_t i = 0; status == RP_OK && i < sizeof parts / sizeof parts[0]; i++)
        status = without_lost(self, parts[i], err);
    profile_session_close(&self->session);
    return status;
}
