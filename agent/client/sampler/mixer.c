/* The mixer's life and its threads: parts, groups and plans are made here. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>

#include "agent/client/conn/client.h"
#include "agent/client/sampler/mixer_impl.h"
#include "proto/base/error.h"

#define MOST_BYTES (UINT64_MAX / 4)
/* How long a new sampler waits for what brokers say about its tables: for the first of each group, and then for the others. */
#define LEARN_NS (2 * NS_PER_S)
#define LEARN_MORE_NS (NS_PER_S / 5)

/* ---- life ---- */

void mixer_unref(struct mixer *self)
{
    if (__atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    for (uint32_t p = 0; p < self->n_parts; p++)
        part_fini(&self->parts[p]);
    for (uint32_t i = 0; self->plans && i < self->capacity; i++) {
        batch_list_release(&self->plans[i].batches);
        free(self->plans[i].of_group);
        free(self->plans[i].need);
        free(self->plans[i].share);
        free(self->plans[i].copies);
        batch_join_drop(&self->plans[i].join);
    }
    batch_pool_unref(&self->pool);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->work);
    pthread_cond_destroy(&self->ready);
    free(self->parts);
    free(self->groups);
    free(self->plans);
    free(self->room);
    free(self->counts);
    free(self->sizes);
    free(self->rows);
    free(self);
}

void mixer_wake(struct mixer *self)
{
    self->news = true;
    pthread_cond_signal(self->inlined ? &self->ready : &self->work);
}

static void *mixer_main(void *arg)
{
    struct mixer *self = arg;
    pthread_mutex_lock(&self->lock);
    while (!self->stopping) {
        int64_t wake = mixer_step(self);
        if (!self->stopping && !self->news)
            conn_cond_wait(&self->work, &self->lock, wake);
    }
    pthread_mutex_unlock(&self->lock);
    mixer_unref(self);
    return NULL;
}

/* Threads leave the host program's signals alone. */
static bool start_thread(struct mixer *self, pthread_t *thread, void *(*main)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    bool started = pthread_create(thread, NULL, main, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_setname_np(*thread, main == mixer_main ? "mixer" : "part");
    if (!started)
        __atomic_sub_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    return started;
}

static bool start_threads(struct mixer *self)
{
    if (self->inlined)
        return true;
    self->started = start_thread(self, &self->thread, mixer_main, self);
    for (uint32_t p = 0; p < self->n_parts && self->started; p++) {
        struct part *part = &self->parts[p];
        part->started = start_thread(self, &part->thread, part_main, part);
        if (!part->started)
            return false;
    }
    return self->started;
}

void mixer_destroy(struct mixer **self)
{
    struct mixer *mixer = *self;
    if (!mixer)
        return;
    *self = NULL;
    pthread_mutex_lock(&mixer->lock);
    mixer->stopping = true;
    pthread_cond_broadcast(&mixer->work);
    for (uint32_t p = 0; p < mixer->n_parts; p++)
        pthread_cond_signal(&mixer->parts[p].work);
    pthread_mutex_unlock(&mixer->lock);
    if (mixer->started)
        pthread_join(mixer->thread, NULL);
    for (uint32_t p = 0; p < mixer->n_parts; p++)
        if (mixer->parts[p].started)
            pthread_join(mixer->parts[p].thread, NULL);
    pthread_mutex_lock(&mixer->lock);
    for (uint32_t p = 0; p < mixer->n_parts; p++)
        part_cancel(&mixer->parts[p]);
    pthread_mutex_unlock(&mixer->lock);
    mixer_unref(mixer);
}

/* ---- parts and groups ---- */

static uint32_t count_parts(const rp_source *sources, uint32_t n)
{
    uint32_t parts = 0;
    for (uint32_t i = 0; i < n; i++)
        parts += client_shards(sources[i].client);
    return parts;
}

/* Returns the largest memory of a reply: it has items of several batches, each of which may have max_bytes. */
static uint64_t reply_bytes(const rp_sampler_options *options, uint32_t most_items)
{
    uint64_t batches = most_items / options->batch_size + 2;
    return options->max_bytes < MOST_BYTES / batches ? options->max_bytes * batches : MOST_BYTES;
}

static bool add_part(struct mixer *self, const rp_source *source, uint32_t number, uint32_t shard, uint32_t group)
{
    struct part *part = &self->parts[self->n_parts];
    struct conn *conn = client_shard(source->client, shard);
    rp_sampler_options options = self->options;
    struct conn_hello *hello = conn_hello_ref(conn);
    options.batch_size = hello->max_batch ? hello->max_batch : options.batch_size;
    conn_hello_unref(&hello);
    options.beta = 0; /* weights are computed for the whole batch */
    options.max_bytes = reply_bytes(&self->options, options.batch_size);
    if (!sample_source_init(&part->source, conn, source->table, &options, MOST_AHEAD)) {
        sample_source_fini(&part->source);
        return false;
    }
    if (!conn_is_inside(conn))
        batch_decoder_leave_items(part->source.decoder); /* they are copied once, into their batch */
    part->mixer = self;
    part->group = group;
    part->number = number;
    part->shard = shard;
    part->connected = true;
    part->copies_end = &part->copies;
    pthread_cond_init(&part->work, NULL);
    self->n_parts++;
    self->groups[group].n++;
    return true;
}

/* Adds a source's parts to the newest group. */
static bool add_source(struct mixer *self, const rp_source *sources, uint32_t number)
{
    uint32_t shards = client_shards(sources[number].client);
    self->n_shards = shards > self->n_shards ? shards : self->n_shards;
    for (uint32_t s = 0; s < shards; s++)
        if (!add_part(self, &sources[number], number, s, self->n_groups - 1))
            return false;
    return true;
}

static void add_group(struct mixer *self, double share)
{
    self->groups[self->n_groups++] = (struct group){.share = share, .first = self->n_parts, .deal = DEAL_UNKNOWN};
}

/* Sources with a share are groups of their own; the others form one. */
static bool add_sources(struct mixer *self, const rp_source *sources, uint32_t n)
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
static int64_t learn_until(const struct mixer *self, int64_t start_ns, int64_t now_ns, int64_t *known_ns)
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
static rp_status learn(struct mixer *self, rp_error *err)
{
    pthread_cond_t *planner = self->inlined ? &self->ready : &self->work;
    int64_t start = conn_now(), known_ns = 0, until;
    rp_status status = RP_OK;
    for (uint32_t p = 0; p < self->n_parts; p++)
        self->parts[p].connected = conn_state(self->parts[p].source.conn) == RP_CLIENT_CONNECTED;
    pthread_mutex_lock(&self->lock);
    for (uint32_t p = 0; p < self->n_parts; p++) {
        if (self->parts[p].connected) /* also plain ones: whether they remove items, and whether they are queues */
            part_permit(&self->parts[p], 0);
    }
    while (status == RP_OK && (until = learn_until(self, start, conn_now(), &known_ns)) > 0)
        if (!conn_wait(mixer_conn(self), planner, &self->lock, until) && conn_is_stopped())
            status = conn_stopped(err);
    if (status == RP_OK && self->error.status != RP_OK)
        status = err_set(err, (rp_status)self->error.status, "%s", self->error.text);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* ---- creation ---- */

static bool make_plans(struct mixer *self)
{
    self->plans = calloc(self->capacity, sizeof *self->plans);
    for (uint32_t i = 0; self->plans && i < self->capacity; i++) {
        struct plan *plan = &self->plans[i];
        plan->of_group = calloc(self->n_groups, sizeof *plan->of_group);
        plan->need = calloc(self->n_parts, sizeof *plan->need);
        plan->share = calloc(self->n_parts, sizeof *plan->share);
        plan->copies = calloc(self->n_parts, sizeof *plan->copies);
        if (!plan->of_group || !plan->need || !plan->share || !plan->copies)
            return false;
    }
    return self->plans != NULL;
}

static void seed(struct mixer *self)
{
    uint64_t number = 1; /* runs in one process are repeatable */
    if (!conn_is_hosted(self->parts[0].source.conn))
        rng_system(&number, sizeof number);
    rng_seed(&self->rng, number);
}

static bool make(struct mixer *self, const rp_source *sources, uint32_t n)
{
    uint32_t parts = count_parts(sources, n);
    if (parts == 0)
        return false;
    self->parts = calloc(parts, sizeof *self->parts);
    self->groups = calloc(n + 1, sizeof *self->groups);
    self->room = calloc(2 * (size_t)parts + n + 2, sizeof *self->room);
    self->counts = calloc(parts, sizeof *self->counts);
    self->sizes = calloc(parts, sizeof *self->sizes);
    if (!self->parts || !self->groups || !self->room || !self->counts || !self->sizes || !add_sources(self, sources, n))
        return false;
    for (uint32_t g = 0; g < self->n_groups; g++)
        self->widest = self->groups[g].n > self->widest ? self->groups[g].n : self->widest;
    self->capacity =
        self->options.in_flight > MOST_AHEAD * self->widest ? self->options.in_flight : MOST_AHEAD * self->widest;
    if (self->options.on_demand)
        self->capacity = 1;
    self->window = self->most = 1; /* plans_draw raises it before the first batch */
    self->inlined = self->options.on_demand || conn_is_hosted(self->parts[0].source.conn);
    self->pool = batch_pool_new(self->capacity + 2);
    seed(self);
    return self->pool && make_plans(self);
}

struct mixer *mixer_new(const rp_source *sources, uint32_t n, const rp_sampler_options *options, rp_error *err)
{
    if (check_sources(sources, n, err) != RP_OK)
        return NULL;
    struct mixer *self = calloc(1, sizeof *self);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for a sampler");
        return NULL;
    }
    self->refs = 1;
    self->options = *options;
    self->n_sources = n;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr,
                              PTHREAD_MUTEX_ADAPTIVE_NP); /* many threads hold it, each for less than a wake-up takes */
    pthread_mutex_init(&self->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    conn_cond_init(&self->work);
    conn_cond_init(&self->ready);
    bool made = make(self, sources, n);
    if (!made)
        err_set(err, RP_NO_MEMORY, "no memory for a sampler");
    if (made && learn(self, err) == RP_OK) {
        self->last_ns = conn_now();
        if (start_threads(self))
            return self;
        err_set(err, RP_NO_MEMORY, "no thread for a sampler");
    }
    mixer_destroy(&self);
    return NULL;
}

struct conn *mixer_conn(struct mixer *self)
{
    return self->parts[0].source.conn;
}

struct batch_pool *mixer_pool(struct mixer *self)
{
    return self->pool;
}

uint32_t mixer_batch_size(const struct mixer *self)
{
    return self->options.batch_size;
}
