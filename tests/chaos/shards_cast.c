/* Writers, learners and consumers, each a thread with a client of its own. */

#include "proto/base/clock.h"
#include "proto/base/text.h"
#include "tests/chaos/shards.h"

#define LONG_MS 60000

/* What a sampler does. Consumers of tables that remove items run until the end, stop now and then, and are slower than
 * the writers, so that every shard has items, and is asked. The others run while there are faults, and their waits are
 * noted. */
struct part {
    const char *name;
    uint32_t table, batch;
    bool on_demand, flexible;
    bool updates;        /* a learner: gives new priorities to the items that are its own */
    int64_t timeouts_ms; /* up to twice that */
};

static const struct part parts[] = {{"learner", REPLAY, 64, .updates = true, .timeouts_ms = 250},
                                    {"learner", REPLAY, 64, .updates = true, .timeouts_ms = 250},
                                    {"browser", PLAIN, 32, .on_demand = true, .timeouts_ms = 20},
                                    {"consumer", QUEUE, 16, .flexible = true, .timeouts_ms = 100},
                                    {"consumer", QUEUE, 16, .on_demand = true, .timeouts_ms = 15},
                                    {"consumer", ONCE, 16, .flexible = true, .timeouts_ms = 100},
                                    {"consumer", ONCE, 16, .on_demand = true, .timeouts_ms = 15},
                                    {"consumer", TWICE, 16, .flexible = true, .timeouts_ms = 100},
                                    {"consumer", TWICE, 16, .on_demand = true, .timeouts_ms = 15}};
#define SAMPLERS (sizeof parts / sizeof *parts)

struct role {
    struct chaos *chaos;
    uint32_t number;
    pthread_t thread;
    struct rng rng;
};

static struct role writers[WRITERS], samplers[SAMPLERS];

/* ---- writers ---- */

static void keep_doubt(struct chaos *self, uint64_t key)
{
    pthread_mutex_lock(&self->lock);
    if (self->n_doubts == self->doubts_capacity) {
        self->doubts_capacity = self->doubts_capacity ? 2 * self->doubts_capacity : 1024;
        self->doubts = realloc(self->doubts, self->doubts_capacity * sizeof *self->doubts);
    }
    self->doubts[self->n_doubts++] = key;
    pthread_mutex_unlock(&self->lock);
}

static void read_rejections(struct chaos *self, rp_writer *writer)
{
    for (rp_rejection rejection; rp_writer_next_rejection(writer, &rejection) == RP_OK;) {
        if (rejection.status != RP_IN_DOUBT || self->journal)
            chaos_complain(self, "an item of shard %u was refused: %s", (uint32_t)(rejection.key >> 56),
                           rejection.text);
        keep_doubt(self, rejection.key);
    }
}

struct step {
    rp_writer *writer;
    struct chaos *chaos;
    uint32_t number;
};

/* Repeats a call that timed out, and notes how long it took in all. Without a journal, a call may say that items are in doubt. */
#define PERSIST(self, call)                                                                                            \
    do {                                                                                                               \
        struct moment start = chaos_moment((self)->chaos);                                                             \
        rp_status status;                                                                                              \
        while ((status = (call)) == RP_DEADLINE_EXCEEDED && clock_ns() - start.ns < 60 * NS_PER_S)                     \
            ;                                                                                                          \
        chaos_raise(&(self)->chaos->actor_ns, chaos_waited((self)->chaos, start));                                     \
        if (status != RP_OK && (status != RP_IN_DOUBT || (self)->chaos->journal))                                      \
            chaos_complain((self)->chaos, "a writer's call failed: %s", err.text);                                     \
    } while (0)

static void write_step(struct step *self)
{
    struct chaos *chaos = self->chaos;
    struct book *book = &chaos->books[self->number];
    int32_t number = (int32_t)self->number;
    const void *values[] = {&number};
    rp_slice slice = {.column = 0, .count = 1, .start = -1, .squeeze = 1};
    PERSIST(self, rp_writer_append(self->writer, values, 1000, &err));
    for (uint32_t t = 0; t < TABLES; t++) {
        uint32_t kills[SHARDBED_MOST];
        uint64_t key = 0;
        for (uint32_t s = 0; s < chaos->n; s++)
            kills[s] = atomic_load(&chaos->kills[s]);
        PERSIST(self, rp_writer_item(self->writer, table_names[t], 1, &slice, 1, 1000, &key, &err));
        if (key >> 56 >= chaos->n)
            chaos_complain(chaos, "key %llx is of no shard", (unsigned long long)key);
        else
            book->kills[t] = kills[key >> 56];
        atomic_store(&book->key[t], key);
    }
}

static void close_writer(struct role *self, rp_writer *writer)
{
    rp_writer_info info = {.struct_size = sizeof info};
    rp_status status = rp_writer_flush(writer, 0, LONG_MS, &err);
    if (status != RP_OK && (status != RP_IN_DOUBT || self->chaos->journal))
        chaos_complain(self->chaos, "a writer's flush failed: %s", err.text);
    read_rejections(self->chaos, writer);
    rp_writer_get_info(writer, &info, &err);
    if (info.unconfirmed || info.rejected || info.rejections_dropped ||
        (self->chaos->journal && (info.in_doubt || info.lost_messages)))
        chaos_complain(self->chaos,
                       "a writer has %llu unconfirmed, %llu rejected, %llu doubtful items, %llu lost messages",
                       (unsigned long long)info.unconfirmed, (unsigned long long)info.rejected,
                       (unsigned long long)info.in_doubt, (unsigned long long)info.lost_messages);
    status = rp_writer_destroy(&writer, LONG_MS, &err);
    if (status != RP_OK && (status != RP_IN_DOUBT || self->chaos->journal))
        chaos_complain(self->chaos, "a writer's end failed: %s", err.text);
}

static void *writer_main(void *arg)
{
    struct role *self = arg;
    struct chaos *chaos = self->chaos;
    rp_client *client = chaos_connect(chaos, self->number, "writer");
    rp_column columns[] = {{.name = "number", .dtype = RP_DTYPE_INT32}};
    rp_writer *writer = client ? rp_writer_new(client, columns, 1, NULL, LONG_MS, &err) : NULL;
    struct step step = {writer, chaos, 0};
    if (!writer)
        chaos_complain(chaos, "no writer: %s", err.text);
    while (writer && atomic_load(&chaos->phase) == RUN) {
        for (uint64_t left = 1 + rng_below(&self->rng, 6); left; left--) {
            step.number = atomic_fetch_add(&chaos->count, 1);
            if (step.number < MOST_ITEMS)
                write_step(&step);
        }
        PERSIST(&step, rp_writer_end_episode(writer, RP_END_GO, 1000, &err));
        read_rejections(chaos, writer);
        chaos_sleep(0.04 * rng_unit(&self->rng));
    }
    if (writer)
        close_writer(self, writer);
    rp_client_destroy(&client);
    return NULL;
}

/* ---- samplers ---- */

/* Checks what came, and returns the books of its items. */
static void check_batch(struct chaos *self, const rp_batch *batch, uint32_t table, struct book **books,
                        rp_batch_arrays *arrays)
{
    const int32_t *numbers = rp_batch_find(batch, "number")->data;
    *arrays = (rp_batch_arrays){.struct_size = sizeof *arrays};
    rp_batch_get_arrays(batch, arrays);
    for (uint32_t i = 0; i < arrays->n; i++) {
        books[i] = &self->books[(uint32_t)numbers[i] < MOST_ITEMS ? (uint32_t)numbers[i] : 0];
        uint64_t key = atomic_load(&books[i]->key[table]); /* 0: its writer is about to note it */
        if ((uint32_t)numbers[i] >= atomic_load(&self->count) || (key && key != arrays->key[i]))
            chaos_complain(self, "item %d of '%s' came with the key %llx instead of %llx", numbers[i],
                           table_names[table], (unsigned long long)arrays->key[i], (unsigned long long)key);
        if (!arrays->shard || arrays->shard[i] != arrays->key[i] >> 56)
            chaos_complain(self, "an item of shard %u is said to be of another", (uint32_t)(arrays->key[i] >> 56));
        if (!(arrays->probability[i] > 0) || !(arrays->probability[i] <= 1))
            chaos_complain(self, "an item has the probability %g", arrays->probability[i]);
    }
    atomic_fetch_add(&self->sampled[table], arrays->n);
    atomic_fetch_add(&self->batches, 1);
}

/* Writes the strikes since this time, the newest first. Returns what those that stopped a shard may have cost: each as long as it
 * lasted since then, and at most PAUSE_NS. */
static int64_t strikes_since(const struct chaos *self, int64_t from_ns, struct text *out)
{
    static const char *const kinds[] = {"killed", "stopped", "cut off"};
    int64_t sum = 0;
    for (uint32_t i = atomic_load(&self->n_strikes); i-- > 0;) {
        const struct strike *one = &self->strikes[i];
        int64_t lasted = one->start_ns + one->pause_ns - (one->start_ns > from_ns ? one->start_ns : from_ns);
        if (lasted < 0)
            break;
        if (one->kind[0] == 1 || (one->n > 1 && one->kind[1] == 1))
            sum += lasted < PAUSE_NS ? lasted : PAUSE_NS;
        for (uint32_t k = 0; k < one->n; k++)
            text_add(out, "; %u %s at %.2f s for %.2f s", one->shard[k], kinds[one->kind[k]],
                     (double)(one->start_ns - from_ns) * 1e-9, (double)one->pause_ns * 1e-9);
    }
    return sum;
}

/* A batch came after this time. PAUSE_NS is allowed, or what all stops meanwhile may cost. */
static void note_wait(struct chaos *self, struct moment since, const char *said)
{
    struct text strikes = {0};
    int64_t sum = strikes_since(self, since.ns, &strikes), all = clock_ns() - since.ns;
    int64_t wait = chaos_waited(self, since) - (sum > PAUSE_NS ? sum - PAUSE_NS : 0);
    bool zero = atomic_load(&self->zero_ns) > since.ns - NS_PER_S;
    chaos_raise(zero ? &self->zero_learner_ns : &self->learner_ns, wait);
    if (all > PAUSE_NS)
        chaos_say("a learner waited for %.2f s, of which %.2f s count%s: %s%s", (double)all * 1e-9, (double)wait * 1e-9,
                  zero ? " (with shard 0 away)" : "", said, strikes.data ? strikes.data : "");
    text_fini(&strikes);
}

/* Gives new priorities to the items that are this learner's own. */
static void update(struct role *self, rp_updater *updater, struct book *const *books, const rp_batch_arrays *arrays)
{
    for (uint32_t i = 0; i < arrays->n; i++) {
        double priority = 0.5 + rng_unit(&self->rng);
        uint32_t taken = 0;
        if ((books[i] - self->chaos->books) % LEARNERS != self->number)
            continue;
        rp_status status = rp_updater_add(updater, &arrays->key[i], &priority, 1, 0, &taken, &err);
        if (taken)
            books[i]->priority = priority;
        else if (status != RP_DEADLINE_EXCEEDED)
            chaos_complain(self->chaos, "an update failed: %s", err.text);
    }
}

static rp_sampler *new_sampler(struct chaos *self, rp_client *client, const struct part *part)
{
    const rp_sampler_options *options = OPTIONS(rp_sampler, .batch_size = part->batch, .on_demand = part->on_demand,
                                                .fill = part->flexible ? RP_FILL_AT_ONCE : RP_FILL_WAIT, .beta = 0.5);
    rp_sampler *sampler = client ? rp_sampler_new(client, table_names[part->table], options, &err) : NULL;
    if (!sampler)
        chaos_complain(self, "no sampler: %s", err.text);
    return sampler;
}

static void close_updater(struct chaos *self, rp_updater *updater)
{
    rp_change change = {0};
    if (rp_updater_flush(updater, LONG_MS, &change, &err) != RP_OK)
        chaos_complain(self, "the updates were not confirmed: %s", err.text);
    atomic_fetch_add(&self->ignored, change.missing);
    rp_updater_destroy(&updater, LONG_MS, &err);
}

/* Counts the items of a batch that leave their table for good. */
static void take(struct role *self, rp_sampler *sampler, uint32_t table, struct book *const *books, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        atomic_fetch_add(&books[i]->taken[table], 1);
    atomic_fetch_add(&self->chaos->taken, n);
    if (rng_below(&self->rng, 50) == 0)
        rp_sampler_stop(sampler, &err);
    if (table != QUEUE && atomic_load(&self->chaos->phase) == RUN)
        chaos_sleep(0.2 * rng_unit(&self->rng));
}

static void *sampler_main(void *arg)
{
    struct role *self = arg;
    struct chaos *chaos = self->chaos;
    const struct part *part = &parts[self->number];
    bool consumes = table_times[part->table] > 0;
    rp_client *client = chaos_connect(chaos, self->number, part->name);
    rp_sampler *sampler = new_sampler(chaos, client, part);
    rp_updater *updater = client && part->updates ? rp_updater_new(client, table_names[part->table], NULL, &err) : NULL;
    struct moment last = {0};
    char said[512] = "";
    while (sampler && atomic_load(&chaos->phase) <= (consumes ? DRAIN : RUN)) {
        rp_batch *batch;
        rp_batch_arrays arrays;
        struct book *books[64];
        int64_t timeout = (int64_t)rng_below(&self->rng, 3) * part->timeouts_ms;
        rp_status status = rp_sampler_next(sampler, &batch, timeout, &err);
        if (status == RP_END_OF_STREAM) { /* it was stopped, and has given everything */
            rp_sampler_destroy(&sampler);
            sampler = new_sampler(chaos, client, part);
        } else if (status == RP_OK) {
            if (last.ns && !consumes)
                note_wait(chaos, last, said);
            check_batch(chaos, batch, part->table, books, &arrays);
            if (updater)
                update(self, updater, books, &arrays);
            if (consumes)
                take(self, sampler, part->table, books, arrays.n);
            rp_batch_release(&batch);
            last = chaos_moment(chaos);
            said[0] = '\0';
        } else if (status == RP_DEADLINE_EXCEEDED) {
            snprintf(said, sizeof said, "%s", err.text);
        } else {
            chaos_complain(chaos, "a sample of '%s' failed: %s", table_names[part->table], err.text);
        }
        if (part->on_demand && !consumes)
            chaos_sleep(0.005);
    }
    rp_sampler_destroy(&sampler);
    if (updater)
        close_updater(chaos, updater);
    rp_client_destroy(&client);
    return NULL;
}

static void start(struct chaos *self, struct role *roles, uint32_t n, void *(*main)(void *))
{
    for (uint32_t i = 0; i < n; i++) {
        roles[i] = (struct role){.chaos = self, .number = i};
        rng_seed(&roles[i].rng, rng_next(&self->rng));
        if (pthread_create(&roles[i].thread, NULL, main, &roles[i]) != 0)
            abort();
    }
}

void cast_start(struct chaos *self)
{
    start(self, writers, WRITERS, writer_main);
    start(self, samplers, SAMPLERS, sampler_main);
}

void cast_join_writers(void)
{
    for (uint32_t i = 0; i < WRITERS; i++)
        pthread_join(writers[i].thread, NULL);
}

void cast_join(void)
{
    for (uint32_t i = 0; i < SAMPLERS; i++)
        pthread_join(samplers[i].thread, NULL);
}
