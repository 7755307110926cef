/* Patterns: which items they make after which steps. */

#include "proto/base/rng.h"
#include "tests/support/writer_fixture.h"

static const rp_column columns[] = {
    {.name = "x", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO},
    {.name = "r", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO},
};

static void set_up(struct writer_fixture *f)
{
    writer_fixture_start(f);
    writer_fixture_open(f, columns, 2, OPTIONS(rp_writer, .chunk_length = 2, .keep_alive = 8));
}

static void add_pattern(struct writer_fixture *f, const char *table, uint32_t steps, const rp_condition *conditions,
                        uint32_t n)
{
    rp_slice slice = {.column = 0, .start = -(int64_t)steps};
    rp_pattern pattern = {
        .table = table, .priority = 1, .slices = &slice, .n_slices = 1, .conditions = conditions, .n_conditions = n};
    ok(rp_writer_add_pattern(f->writer, &pattern, &err));
}

static void run(struct writer_fixture *f, uint32_t steps)
{
    float x = 1, r = 2;
    const void *values[] = {&x, &r};
    for (uint32_t i = 0; i < steps; i++)
        assert_int_equal(rp_writer_append(f->writer, values, 5000, &err), RP_OK);
}

static void end(struct writer_fixture *f)
{
    ok(rp_writer_end_episode(f->writer, RP_END_WAIT, 5000, &err));
}

FIXTURE(struct writer_fixture, set_up, writer_fixture_stop)

CASE(every_step_as_soon_as_it_fits)
{
    add_pattern(f, "a", 3, NULL, 0);
    for (int episode = 0; episode < 2; episode++) {
        run(f, 10);
        end(f);
    }
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(f->peer.lengths[i], 3);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.layouts), 1);
}

/* ---- random patterns against a model that keeps everything */

enum { MODEL_PATTERNS = 6, MODEL_CONDITIONS = 3, MODEL_STEPS = 30, MODEL_COLUMNS = 5 };

static const rp_column model_columns[MODEL_COLUMNS] = {
    {.name = "x", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO},
    {.name = "i64", .dtype = RP_DTYPE_INT64, .codec = RP_CODEC_AUTO},
    {.name = "u8", .dtype = RP_DTYPE_UINT8, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {1}},
    {.name = "f64", .dtype = RP_DTYPE_FLOAT64, .codec = RP_CODEC_AUTO},
    {.name = "u64", .dtype = RP_DTYPE_UINT64, .codec = RP_CODEC_AUTO},
};

struct model_pattern {
    rp_condition conditions[MODEL_CONDITIONS];
    uint32_t n, depth;
    uint64_t last; /* step of the last item; 0: none in this episode */
};

struct model {
    struct model_pattern patterns[MODEL_PATTERNS];
    long double newest[MODEL_COLUMNS]; /* exact for every value here */
    bool absent[MODEL_COLUMNS];
    uint64_t steps, items[FAKEPEER_TABLES], episodes;
    uint64_t whole; /* newest steps that have a value in column 0, of which the slices are */
};

static bool model_compares(long double value, uint64_t compare, long double number)
{
    return compare == RP_COMPARE_EQ   ? value == number
           : compare == RP_COMPARE_NE ? value != number
           : compare == RP_COMPARE_LT ? value < number
           : compare == RP_COMPARE_LE ? value <= number
           : compare == RP_COMPARE_GT ? value > number
                                      : value >= number;
}

static bool model_holds(const struct model *self, const struct model_pattern *pattern, bool end)
{
    bool at_end = false;
    for (uint32_t i = 0; i < pattern->n; i++) {
        const rp_condition *c = &pattern->conditions[i];
        at_end |= c->kind == RP_WHEN_END_OF_EPISODE;
        if ((c->kind == RP_WHEN_STEP_MODULO && self->steps % c->a != c->b) ||
            (c->kind == RP_WHEN_MIN_STEPS && self->steps < c->a) ||
            (c->kind == RP_WHEN_EVERY && pattern->last && self->steps - pattern->last < c->a) ||
            (c->kind == RP_WHEN_STEPS && !model_compares((long double)self->steps, c->a, (long double)c->number)) ||
            (c->kind == RP_WHEN_VALUE &&
             (self->absent[c->column] || !model_compares(self->newest[c->column], c->a, (long double)c->number))))
            return false;
    }
    return at_end == end && self->whole >= pattern->depth;
}

static void model_apply(struct model *self, bool end)
{
    for (uint32_t i = 0; i < MODEL_PATTERNS; i++)
        if (model_holds(self, &self->patterns[i], end)) {
            self->items[i % FAKEPEER_TABLES]++;
            self->patterns[i].last = self->steps;
        }
}

static const double numbers[] = {-INFINITY,
                                 -9223372036854775808.0,
                                 -3,
                                 -1.5,
                                 -1,
                                 0,
                                 0.5,
                                 1,
                                 2,
                                 7,
                                 9007199254740993.0,
                                 9223372036854775808.0,
                                 1.8446744073709552e19,
                                 INFINITY};

static rp_condition random_condition(struct rng *rng)
{
    rp_condition c = {.kind = (int32_t)rng_below(rng, 6) + 1, .a = rng_below(rng, 6) + 1};
    if (c.kind == RP_WHEN_STEP_MODULO)
        c.b = rng_below(rng, c.a);
    if (c.kind == RP_WHEN_STEPS)
        c.number = (double)rng_below(rng, 20) / 2;
    if (c.kind == RP_WHEN_VALUE) {
        c.column = (uint32_t)rng_below(rng, MODEL_COLUMNS);
        c.number = numbers[rng_below(rng, sizeof numbers / sizeof numbers[0])];
    }
    return c;
}

static void random_patterns(struct writer_fixture *f, struct model *model, struct rng *rng)
{
    for (uint32_t i = 0; i < MODEL_PATTERNS; i++) {
        struct model_pattern *pattern = &model->patterns[i];
        pattern->depth = (uint32_t)rng_below(rng, 4) + 1;
        pattern->n = (uint32_t)rng_below(rng, MODEL_CONDITIONS + 1);
        for (uint32_t c = 0; c < pattern->n; c++)
            pattern->conditions[c] = random_condition(rng);
        add_pattern(f, i % FAKEPEER_TABLES ? "b" : "a", pattern->depth, pattern->conditions, pattern->n);
    }
}

static void random_step(struct writer_fixture *f, struct model *model, struct rng *rng)
{
    static const int64_t whole[] = {INT64_MIN, INT64_MIN + 1, -3, -2, -1, 0, 1, 2, 7, 9007199254740993, INT64_MAX};
    static const double real[] = {-INFINITY, -3, -1.5, 0, -0.0, 0.5, 2, 1.8446744073709552e19, INFINITY, NAN};
    static const uint64_t natural[] = {0, 1, 2, 7, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX};
    float x = (float)rng_below(rng, 4) - 1;
    int64_t i64 = whole[rng_below(rng, 11)];
    uint8_t u8 = (uint8_t)rng_below(rng, 9);
    double f64 = real[rng_below(rng, 10)];
    uint64_t u64 = natural[rng_below(rng, 7)];
    const void *values[MODEL_COLUMNS] = {&x, &i64, &u8, &f64, &u64};
    const long double exact[MODEL_COLUMNS] = {(long double)x, (long double)i64, (long double)u8, (long double)f64,
                                              (long double)u64};
    for (uint32_t i = 0; i < MODEL_COLUMNS; i++) {
        model->absent[i] = rng_below(rng, i ? 8 : 30) == 0 && (i < MODEL_COLUMNS - 1 || !model->absent[0]);
        values[i] = model->absent[i] ? NULL : values[i];
        model->newest[i] = exact[i];
    }
    assert_int_equal(rp_writer_append(f->writer, values, 5000, &err), RP_OK);
    model->steps++;
    model->whole = model->absent[0] ? 0 : model->whole + 1;
    model_apply(model, false);
}

static void same(uint64_t items, uint64_t wanted, uint64_t seed, const struct model *model, const char *where)
{
    if (items != wanted)
        fail_msg("seed %llu, step %llu: %llu items%s, the model has %llu", (unsigned long long)seed,
                 (unsigned long long)model->steps, (unsigned long long)items, where, (unsigned long long)wanted);
}

/* ended: all items have arrived. */
static void agrees(struct writer_fixture *f, const struct model *model, uint64_t seed, bool ended)
{
    rp_writer_info info = {.struct_size = sizeof info};
    assert_int_equal(rp_writer_get_info(f->writer, &info, NULL), RP_OK);
    assert_int_equal(info.episode, model->episodes);
    same(info.created, model->items[0] + model->items[1], seed, model, "");
    for (uint32_t t = 0; ended && t < FAKEPEER_TABLES; t++)
        same(fakepeer_read(&f->peer, &f->peer.arrived[t]), model->items[t], seed, model, t ? " in b" : " in a");
}

CASE(random_patterns_agree_with_a_model)
{
    for (uint64_t seed = 1; seed <= 600; seed++) {
        struct rng rng;
        struct model model = {0};
        rng_seed(&rng, seed);
        rp_writer_options options = {
            .struct_size = sizeof options, .chunk_length = (uint32_t)rng_below(&rng, 4) + 1, .keep_alive = 4};
        rp_writer_destroy(&f->writer, 5000, NULL);
        f->writer = must(rp_writer_new(f->client, model_columns, MODEL_COLUMNS, &options, 5000, &err));
        random_patterns(f, &model, &rng);
        for (uint32_t i = 0; i < MODEL_STEPS; i++) {
            random_step(f, &model, &rng);
            agrees(f, &model, seed, false);
            if (rng_below(&rng, 10) > 0)
                continue;
            model_apply(&model, true);
            end(f);
            end(f); /* an empty episode is none */
            model.episodes++;
            agrees(f, &model, seed, true);
            model.steps = model.whole = 0;
            for (uint32_t p = 0; p < MODEL_PATTERNS; p++)
                model.patterns[p].last = 0;
        }
    }
}

CASE(bad_patterns_are_refused)
{
    static const struct {
        const char *table;
        double priority;
        rp_slice slice;
        rp_condition condition;
        rp_status status;
    } bad[] = {
        {"a", 1, {.start = -9}, {0}, RP_INVALID_ARGUMENT},
        {"a", 1, {.start = 0}, {0}, RP_INVALID_ARGUMENT},
        {"a", 1, {.start = -1, .column = 2}, {0}, RP_INVALID_ARGUMENT},
        {"a", 1, {.start = -1, .count = 2}, {0}, RP_INVALID_ARGUMENT},
        {"c", 1, {.start = -1}, {0}, RP_NOT_FOUND},
        {"a", -1, {.start = -1}, {0}, RP_INVALID_ARGUMENT},
        {"a", 1, {.start = -1}, {.kind = RP_WHEN_STEP_MODULO, .a = 3, .b = 3}, RP_INVALID_ARGUMENT},
        {"a", 1, {.start = -1}, {.kind = RP_WHEN_VALUE, .a = RP_COMPARE_EQ, .column = 2}, RP_INVALID_ARGUMENT},
        {"a", 1, {.start = -1}, {.kind = RP_WHEN_VALUE, .a = 7}, RP_INVALID_ARGUMENT},
        {"a", 1, {.start = -1}, {.kind = RP_WHEN_VALUE, .a = RP_COMPARE_EQ, .number = NAN}, RP_INVALID_ARGUMENT},
        {"a", 1, {.start = -1}, {.kind = 7, .a = RP_COMPARE_EQ}, RP_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const rp_pattern pattern = {.table = bad[i].table,
                                    .priority = bad[i].priority,
                                    .slices = &bad[i].slice,
                                    .n_slices = 1,
                                    .conditions = &bad[i].condition,
                                    .n_conditions = bad[i].condition.kind != 0};
        assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &err), bad[i].status);
        if (i == 0)
            assert_string_equal(err.text, "a slice starts 9 steps back, but keep_alive is 8");
    }
    run(f, 4);
    end(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.messages), 0);
    /* Values are compared in columns of one number that C has a type for. */
    rp_condition condition = {.kind = RP_WHEN_VALUE, .a = RP_COMPARE_EQ, .column = 1};
    add_pattern(f, "a", 1, &condition, 1);
    static const rp_column others[] = {
        {.name = "pair", .dtype = RP_DTYPE_INT32, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {2}},
        {.name = "half", .dtype = RP_DTYPE_FLOAT16, .codec = RP_CODEC_AUTO},
    };
    rp_writer_destroy(&f->writer, 5000, NULL);
    f->writer = rp_writer_new(f->client, others, 2, NULL, 5000, &err);
    const rp_slice slice = {.start = -1};
    const rp_pattern pattern = {
        .table = "a", .priority = 1, .slices = &slice, .n_slices = 1, .conditions = &condition, .n_conditions = 1};
    for (condition.column = 0; condition.column < 2; condition.column++)
        assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &err), RP_INVALID_ARGUMENT);
}
