/* Adders against a model that gets whole episodes and lists the items that must come out: random lengths, ends,
 * discounts and settings, sampled back from a real broker in the order of insertion and compared field by field. */

#include "tests/support/adding.h"
#include "tests/support/naive.h"
#include "tests/support/numbers.h"

#define MAX_T 40
#define MAX_ROWS 64
#define MAX_WANTS 1000
#define MAX_EPISODES 4

static const char tables[] = "  - {name: queue, max_size: 100000, max_times_sampled: 1, sampler: {kind: fifo},\n"
                             "     limiter: {kind: min_size, min_size: 1}}\n";

ADDER_FIXTURE(tables)

/* ---- episodes ---- */

struct frame {
    uint8_t observation[12], action[8];
    float reward, value, q, log_prob;
    uint64_t policy;
};

struct episode {
    uint32_t length;
    bool terminal;
    float last_value;
    struct frame frames[MAX_T + 1]; /* the last one has nothing but an observation */
};

struct world {
    struct rng rng;
    rp_env_spec spec;
    size_t observation_bytes, action_bytes;
    uint64_t policy;
    uint32_t n;
    struct episode episodes[MAX_EPISODES];
};

static float number(struct rng *rng)
{
    return (float)(rng_unit(rng) * 4 - 2);
}

static void fill(struct rng *rng, uint8_t *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += sizeof(float)) {
        float value = number(rng);
        memcpy(out + i, &value, sizeof value);
    }
}

static void world_init(struct world *self, uint64_t seed)
{
    memset(self, 0, sizeof *self);
    rng_seed(&self->rng, seed);
    if (rng_below(&self->rng, 2)) {
        self->spec = (rp_env_spec){
            .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {3}, .n_actions = 4};
        self->observation_bytes = 12;
        self->action_bytes = 4;
    } else {
        self->spec = (rp_env_spec){.observation_dtype = RP_DTYPE_UINT8,
                                   .observation_rank = 3,
                                   .observation_shape = {2, 4, 1},
                                   .action_size = 2};
        self->observation_bytes = 8;
        self->action_bytes = 8;
    }
    self->policy = 1 + rng_below(&self->rng, 1000);
}

static struct episode *world_episode(struct world *self, uint32_t length, bool terminal)
{
    struct episode *episode = &self->episodes[self->n++];
    episode->length = length;
    episode->terminal = terminal;
    episode->last_value = number(&self->rng);
    for (uint32_t t = 0; t <= length; t++) {
        struct frame *frame = &episode->frames[t];
        fill(&self->rng, frame->observation, self->observation_bytes);
        if (t == length)
            break;
        fill(&self->rng, frame->action, self->action_bytes);
        frame->reward = number(&self->rng);
        frame->value = number(&self->rng);
        frame->q = number(&self->rng);
        frame->log_prob = number(&self->rng);
        self->policy += rng_below(&self->rng, 4) == 0;
        frame->policy = self->policy;
    }
    return episode;
}

/* ---- the model ---- */

struct row {
    uint8_t observation[12], action[8];
    double reward, discount;
    uint8_t type;
    float log_prob;
};

struct want {
    double priority;
    uint64_t policy, step;
    uint32_t n;
    uint8_t next[12]; /* transitions */
    struct row rows[MAX_ROWS];
};

struct model {
    const struct adder_config *config;
    uint64_t step; /* rows of the stream so far */
    uint32_t n;
    struct want wants[MAX_WANTS];
};

static void model_transition(struct model *self, const struct episode *e, uint32_t from, uint32_t to)
{
    const struct adder_config *config = self->config;
    struct want *want = &self->wants[self->n++];
    double sum = 0, d = 1;
    for (uint32_t t = from; t < to; t++) {
        sum += pow(config->discount, t - from) * d * (double)e->frames[t].reward;
        d *= t + 1 == e->length && e->terminal ? 0 : 1;
    }
    double discount = pow(config->discount, to - from - 1) * d;
    double value = to < e->length ? (double)e->frames[to].value : (double)e->last_value;
    double error = fabs(sum + config->discount * discount * value - (double)e->frames[from].q);
    want->priority = config->actor_priorities ? fmax(error, 1e-6) : ADDER_PRIORITY;
    want->policy = e->frames[from].policy;
    want->step = self->step + from;
    want->n = 1;
    want->rows[0].reward = sum;
    want->rows[0].discount = discount;
    memcpy(want->rows[0].observation, e->frames[from].observation, 12);
    memcpy(want->rows[0].action, e->frames[from].action, 8);
    memcpy(want->next, e->frames[to].observation, 12);
}

static void model_transitions(struct model *self, const struct episode *e)
{
    uint32_t n = (uint32_t)self->config->n_step, k = e->length < n ? e->length : n;
    for (uint32_t to = 1; to <= e->length; to++)
        model_transition(self, e, to < n ? 0 : to - n, to);
    for (uint32_t from = e->length - k + 1; from < e->length; from++)
        model_transition(self, e, from, e->length);
    self->step += e->length + k;
}

struct rows {
    uint32_t n;
    struct row rows[MAX_EPISODES * (MAX_T + 1) + MAX_ROWS];
    uint64_t policies[MAX_EPISODES * (MAX_T + 1) + MAX_ROWS];
};

static void rows_of(struct rows *out, const struct episode *e, bool with_log_prob)
{
    for (uint32_t t = 0; t <= e->length; t++, out->n++) {
        struct row *row = &out->rows[out->n];
        const struct frame *frame = &e->frames[t];
        bool last = t == e->length;
        memcpy(row->observation, frame->observation, 12);
        out->policies[out->n] = e->frames[last ? t - 1 : t].policy;
        row->type = last ? STEP_LAST : t == 0 ? STEP_FIRST : STEP_MID;
        if (last)
            continue;
        memcpy(row->action, frame->action, 8);
        row->reward = (double)frame->reward;
        row->discount = t + 1 == e->length && e->terminal ? 0 : 1;
        row->log_prob = with_log_prob ? frame->log_prob : 0;
    }
}

static void model_rows(struct model *self, const struct rows *rows, uint32_t from, uint32_t to)
{
    struct want *want = &self->wants[self->n++];
    want->priority = ADDER_PRIORITY;
    want->policy = rows->policies[from];
    want->step = self->step + from;
    want->n = to - from;
    memcpy(want->rows, rows->rows + from, want->n * sizeof want->rows[0]);
}

static void model_sequences(struct model *self, struct rows *rows)
{
    uint32_t length = (uint32_t)self->config->length, period = (uint32_t)self->config->period, point = length;
    for (; point <= rows->n; point += period)
        model_rows(self, rows, point - length, point);
    bool missed = point - period != rows->n || rows->n < length;
    int32_t end = self->config->end;
    bool real = point - length < rows->n; /* the next item would hold a row that is not padding */
    if (missed && end == ADDER_WRITE)
        model_rows(self, rows, rows->n < length ? 0 : rows->n - length, rows->n);
    if (missed && end == ADDER_TRUNCATE && real)
        model_rows(self, rows, point - length, rows->n);
    if (missed && end == ADDER_PAD && real) {
        while (rows->n < point)
            rows->rows[rows->n++].type = STEP_PADDING;
        model_rows(self, rows, point - length, point);
    }
    self->step += rows->n;
}

static void model_fill(struct model *self, const struct world *world, bool with_log_prob)
{
    struct rows *rows = calloc(1, sizeof *rows);
    for (uint32_t i = 0; i < world->n; i++) {
        if (self->config->kind == ADDER_TRANSITION) {
            model_transitions(self, &world->episodes[i]);
            continue;
        }
        rows_of(rows, &world->episodes[i], with_log_prob);
        if (self->config->kind == ADDER_EPISODE) {
            model_rows(self, rows, 0, rows->n);
            self->step += rows->n;
        } else if (self->config->end != ADDER_CONTINUE || i + 1 == world->n) {
            model_sequences(self, rows);
        } else {
            continue;
        }
        memset(rows, 0, sizeof *rows);
    }
    free(rows);
}

/* ---- the real thing ---- */

/* Calls again until all of the step is done, as an actor does. */
static void finish(struct adder *adder, rp_status status, int64_t timeout_ms)
{
    while (status == RP_DEADLINE_EXCEEDED) {
        struct adder_step none = {0};
        assert_int_equal(adder_add(adder, &none, 0, &err), RP_FAILED_PRECONDITION);
        assert_int_equal(adder_first(adder, "", &err), RP_FAILED_PRECONDITION);
        status = adder_retry(adder, timeout_ms, &err);
    }
    ok(status);
}

static void feed(struct adder *adder, struct world *world, const struct episode *e)
{
    ok(adder_first(adder, e->frames[0].observation, &err));
    for (uint32_t t = 0; t < e->length; t++) {
        const struct frame *frame = &e->frames[t];
        bool last = t + 1 == e->length;
        struct adder_step step = {.action = frame->action,
                                  .reward = frame->reward,
                                  .terminal = last && e->terminal,
                                  .truncated = last && !e->terminal,
                                  .next_observation = frame[1].observation,
                                  .value = frame->value,
                                  .q = frame->q,
                                  .last_value = last && !e->terminal ? e->last_value : NAN,
                                  .log_prob = frame->log_prob};
        int64_t timeout = (int64_t)rng_below(&world->rng, 4) - 1;
        adder_set_policy(adder, frame->policy);
        finish(adder, adder_add(adder, &step, timeout, &err), timeout < 0 ? 0 : timeout);
    }
}

/* The bytes of step `row` of item i. */
static const uint8_t *cell(const rp_batch *batch, const char *field, uint32_t i, uint32_t row, size_t bytes)
{
    const rp_field_view *view = rp_batch_find(batch, field);
    if (!view)
        fail_msg("there is no field '%s'", field);
    uint64_t item = view->bytes / view->shape[0];
    assert_true((row + 1) * bytes <= item);
    return (const uint8_t *)view->data + i * item + row * bytes;
}

static double cell_number(const rp_batch *batch, const char *field, uint32_t i, uint32_t row)
{
    float value;
    memcpy(&value, cell(batch, field, i, row, sizeof value), sizeof value);
    return (double)value;
}

static void check_rows(const struct world *world, const rp_batch *batch, uint32_t i, const struct want *want,
                       bool typed, bool with_log_prob)
{
    const rp_field_view *view = rp_batch_find(batch, "observation");
    if (typed)
        assert_int_equal(view->lengths ? view->lengths[i] : view->shape[1], want->n);
    for (uint32_t k = 0; k < want->n; k++) {
        const struct row *row = &want->rows[k];
        size_t bytes = world->observation_bytes;
        assert_memory_equal(cell(batch, "observation", i, k, bytes), row->observation, bytes);
        bytes = world->action_bytes;
        assert_memory_equal(cell(batch, "action", i, k, bytes), row->action, bytes);
        assert_near(cell_number(batch, "reward", i, k), row->reward, 1e-5);
        assert_near(cell_number(batch, "discount", i, k), row->discount, 1e-5);
        if (typed)
            assert_int_equal(*cell(batch, "step_type", i, k, 1), row->type);
        if (with_log_prob)
            assert_near(cell_number(batch, "log_prob", i, k), (double)row->log_prob, 1e-5);
    }
    if (!typed)
        assert_memory_equal(cell(batch, "next_observation", i, 0, world->observation_bytes), want->next,
                            world->observation_bytes);
}

/* Takes everything from the table and holds it against the model. */
static void check_items(struct fixture *f, const struct world *world, const struct model *model, bool with_log_prob)
{
    f->sampler = SAMPLER(f->client, "queue", .batch_size = 7, .on_demand = 1);
    bool typed = model->config->kind != ADDER_TRANSITION;
    uint32_t n = 0, session = 0;
    rp_batch *batch = NULL;
    while (rp_sampler_next(f->sampler, &batch, 0, &err) == RP_OK) {
        rp_batch_arrays arrays = arrays_of(batch);
        assert_int_equal(info_of_batch(batch).n_fields, typed ? with_log_prob ? 6 : 5 : 5);
        for (uint32_t i = 0; i < arrays.n; i++, n++) {
            if (n >= model->n)
                fail_msg("there are more than the %u items of the model", model->n);
            const struct want *want = &model->wants[n];
            assert_near(arrays.priority[i], want->priority, 1e-5);
            assert_int_equal(arrays.policy[i], want->policy);
            assert_int_equal(arrays.step[i], want->step);
            session = n == 0 ? arrays.session[i] : session;
            assert_int_equal(arrays.session[i], session);
            check_rows(world, batch, i, want, typed, with_log_prob);
        }
        rp_batch_release(&batch);
    }
    assert_int_equal(err.status, RP_DEADLINE_EXCEEDED);
    assert_int_equal(n, model->n);
    rp_sampler_destroy(&f->sampler);
}

/* Runs the world's episodes through an adder and the model. Returns the number of items. */
static uint32_t compare(struct fixture *f, struct world *world, const struct adder_config *config, bool with_log_prob)
{
    struct model *model = calloc(1, sizeof *model);
    model->config = config;
    model_fill(model, world, with_log_prob);
    const struct adder_options options = {f->client, "adder", config, &world->spec, with_log_prob, WAIT};
    f->adder = must(adder_new(&options, &err));
    uint64_t steps = 0;
    for (uint32_t i = 0; i < world->n; i++) {
        feed(f->adder, world, &world->episodes[i]);
        steps += world->episodes[i].length;
    }
    ok(adder_flush(f->adder, 0, WAIT, &err));
    struct adder_stats stats;
    adder_get_stats(f->adder, &stats);
    assert_int_equal(stats.steps, steps);
    assert_int_equal(stats.episodes, world->n);
    assert_int_equal(stats.items, model->n);
    check_items(f, world, model, with_log_prob);
    ok(adder_destroy(&f->adder, WAIT, &err));
    assert_null(f->adder);
    uint32_t n = model->n;
    free(model);
    return n;
}

static struct adder_config random_config(struct rng *rng, int32_t kind)
{
    struct adder_config config = {.kind = kind, .table = "queue"};
    config.n_step = 1 + (int64_t)rng_below(rng, rng_below(rng, 4) ? 6 : 50);
    config.discount = rng_below(rng, 4) == 0 ? (double)rng_below(rng, 2) : rng_unit(rng);
    config.actor_priorities = kind == ADDER_TRANSITION && rng_below(rng, 3) > 0;
    config.length = 1 + (int64_t)rng_below(rng, 10);
    config.period = 1 + (int64_t)rng_below(rng, (uint64_t)config.length);
    config.end = (int32_t)rng_below(rng, 4);
    config.max_length = MAX_T;
    config.chunk_length = 1 + (int64_t)rng_below(rng, 9);
    config.batch_items = 1 + (int64_t)rng_below(rng, 5);
    config.buffer_items = config.batch_items + (int64_t)rng_below(rng, 20);
    return config;
}

static void random_cases(struct fixture *f, int32_t kind, uint64_t seed, uint32_t cases)
{
    struct world *world = calloc(1, sizeof *world);
    for (uint32_t i = 0; i < cases; i++) {
        world_init(world, seed + i);
        struct adder_config config = random_config(&world->rng, kind);
        uint32_t episodes = 1 + (uint32_t)rng_below(&world->rng, MAX_EPISODES);
        for (uint32_t k = 0; k < episodes; k++) {
            uint32_t length = 1 + (uint32_t)rng_below(&world->rng, rng_below(&world->rng, 2) ? MAX_T : 6);
            world_episode(world, length, rng_below(&world->rng, 2));
        }
        compare(f, world, &config, kind != ADDER_TRANSITION && rng_below(&world->rng, 2));
    }
    free(world);
}

CASE(random_episodes)
{
    random_cases(f, ADDER_TRANSITION, naive_seed("transitions"), 60);
    random_cases(f, ADDER_SEQUENCE, naive_seed("sequences"), 100);
    random_cases(f, ADDER_EPISODE, naive_seed("episodes"), 25);
}

/* ---- counts, written down by hand ---- */

static uint64_t count_items(struct fixture *f, const struct adder_config *config, uint32_t length, uint32_t episodes)
{
    struct world *world = calloc(1, sizeof *world);
    world_init(world, length);
    for (uint32_t i = 0; i < episodes; i++)
        world_episode(world, length, i % 2);
    uint64_t n = compare(f, world, config, false);
    free(world);
    return n;
}

CASE(sequence_counts)
{
    /* Rows are one more than steps. {length, period, end, steps, episodes, items} */
    static const int64_t cases[][6] = {
        {4, 2, ADDER_PAD, 7, 1, 3},                                       /* at rows 4, 6, 8 */
        {4, 2, ADDER_PAD, 8, 1, 4},                                       /* and one row of padding */
        {4, 2, ADDER_TRUNCATE, 8, 1, 4},                                  /* the last one with 3 rows */
        {4, 2, ADDER_WRITE, 8, 1, 4},                                     /* the last one over rows 5 .. 8 */
        {4, 2, ADDER_CONTINUE, 8, 1, 3}, {4, 2, ADDER_CONTINUE, 8, 2, 8}, /* 18 rows: at 4, 6 ... 18 */
        {5, 5, ADDER_PAD, 2, 1, 1},      {5, 5, ADDER_TRUNCATE, 2, 1, 1}, {5, 5, ADDER_WRITE, 2, 1, 1},
        {5, 5, ADDER_CONTINUE, 2, 1, 0}, {5, 5, ADDER_CONTINUE, 2, 2, 1}, {3, 3, ADDER_WRITE, 2, 1, 1},
        {1, 1, ADDER_PAD, 4, 1, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct adder_config config = {.kind = ADDER_SEQUENCE,
                                      .table = "queue",
                                      .length = cases[i][0],
                                      .period = cases[i][1],
                                      .end = (int32_t)cases[i][2]};
        uint64_t n = count_items(f, &config, (uint32_t)cases[i][3], (uint32_t)cases[i][4]);
        if (n != (uint64_t)cases[i][5])
            fail_msg("case %zu: %llu items instead of %lld", i, (unsigned long long)n, (long long)cases[i][5]);
    }
}
