/* Rows of several batches in one: fields of different lengths, orders and types, bounds, weights. */

#include "agent/client/sampler/batch.h"
#include "tests/support/test.h"

#define ITEMS 4u

/* A batch of ITEMS items with the fields "steps" (of different numbers of steps) and "one" (of one number). */
struct made {
    struct rp_batch *batch;
    uint32_t lengths[ITEMS];
    int32_t steps[ITEMS * 8], one[ITEMS];
};

static struct made *make(struct batch_pool *pool, uint64_t first_key, uint32_t most_steps, const uint32_t *lengths)
{
    struct made *self = calloc(1, sizeof *self);
    struct batch_spec_field fields[2] = {{.view.name = "steps"}, {.view.name = "one"}};
    struct batch_spec spec = {.n = ITEMS, .n_fields = 2, .fields = fields};
    struct rp_batch *batch;
    assert_true(self && most_steps <= 8);
    assert_int_equal(batch_make(pool, &spec, &batch, NULL), RP_OK);
    self->batch = batch;
    batch->info = (rp_batch_info){.struct_size = sizeof batch->info, .n = ITEMS, .n_fields = 2, .waited_ns = first_key};
    memset(batch->memory, 0, (size_t)ITEMS * (BATCH_WIDE * 8 + BATCH_NARROW * 4));
    uint64_t *key = batch_wide(batch, 0);
    double *probability = batch_wide(batch, 2);
    for (uint32_t i = 0; i < ITEMS; i++) {
        key[i] = first_key + i;
        probability[i] = 0.125 * (i + 1);
        self->one[i] = (int32_t)key[i];
        self->lengths[i] = lengths[i];
        for (uint32_t k = 0; k < lengths[i]; k++)
            self->steps[i * most_steps + k] = (int32_t)(100 * key[i] + k);
    }
    batch->fields[0] = (rp_field_view){.name = "steps",
                                       .dtype = RP_DTYPE_INT32,
                                       .rank = 2,
                                       .shape = {ITEMS, most_steps},
                                       .data = self->steps,
                                       .bytes = (uint64_t)ITEMS * most_steps * 4,
                                       .lengths = self->lengths};
    batch->fields[1] = (rp_field_view){.name = "one",
                                       .dtype = RP_DTYPE_INT32,
                                       .rank = 1,
                                       .shape = {ITEMS},
                                       .data = self->one,
                                       .bytes = sizeof self->one};
    return self;
}

static void swap_fields(struct made *self)
{
    rp_field_view first = self->batch->fields[0];
    self->batch->fields[0] = self->batch->fields[1];
    self->batch->fields[1] = first;
}

struct fixture {
    struct batch_pool *pool;
    struct made *a, *b;
    struct batch_rows rows[3]; /* items 11, 20, 12 */
    struct batch_join_options options;
    struct rp_batch *out;
};

static void set_up(struct fixture *f)
{
    f->pool = batch_pool_new(4, NULL);
    f->a = make(f->pool, 10, 8, (const uint32_t[]){8, 2, 3, 1});
    f->b = make(f->pool, 20, 5, (const uint32_t[]){1, 5, 4, 5});
    f->rows[0] = (struct batch_rows){f->a->batch, 1, 1, 0.5, 0, 3};
    f->rows[1] = (struct batch_rows){f->b->batch, 0, 1, 0.25, 1, 2};
    f->rows[2] = (struct batch_rows){f->a->batch, 2, 1, 0.5, 0, 3};
    f->options = (struct batch_join_options){.beta = 1, .sources = true, .shards = true};
}

static void tear_down(struct fixture *f)
{
    batch_list_release(&f->out);
    rp_batch_release(&f->a->batch);
    rp_batch_release(&f->b->batch);
    free(f->a);
    free(f->b);
    batch_pool_unref(&f->pool);
}

/* Checks the items against their keys. */
static void check(const struct rp_batch *batch, const uint64_t *keys, const uint32_t *lengths, uint32_t n,
                  uint32_t most)
{
    const rp_field_view *steps = rp_batch_find(batch, "steps"), *one = rp_batch_find(batch, "one");
    const int32_t *numbers = steps->data;
    assert_int_equal(batch->info.n, n);
    assert_int_equal(steps->shape[0], n);
    assert_int_equal(steps->shape[1], most);
    assert_int_equal(steps->bytes, 4 * n * most);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(batch->arrays.key[i], keys[i]);
        assert_int_equal(((const int32_t *)one->data)[i], keys[i]);
        assert_int_equal(steps->lengths[i], lengths[i]);
        for (uint32_t k = 0; k < most; k++)
            assert_int_equal(numbers[i * most + k], k < lengths[i] ? 100 * keys[i] + k : 0);
    }
}

/* Joins the first n rows; what was joined before is gone. */
static const struct rp_batch *join(struct fixture *f, uint32_t n)
{
    batch_list_release(&f->out);
    ok(batch_join(f->pool, f->rows, n, &f->options, &f->out, &err));
    return f->out;
}

FIXTURE(struct fixture, set_up, tear_down)

/* Padded to the longest item that is there, not to the longest of where the items came from. */
CASE(items_of_different_lengths)
{
    check(join(f, 3), (const uint64_t[]){11, 20, 12}, (const uint32_t[]){2, 1, 3}, 3, 3);
    assert_null(f->out->next);
    f->rows[0].first = 0;
    check(join(f, 1), (const uint64_t[]){10}, (const uint32_t[]){8}, 1, 8);
}

CASE(fields_are_found_by_name)
{
    swap_fields(f->b);
    check(join(f, 3), (const uint64_t[]){11, 20, 12}, (const uint32_t[]){2, 1, 3}, 3, 3);
    assert_null(f->out->next);
}

/* Each with its own weights; items keep their order. */
CASE(items_that_do_not_fit_are_apart)
{
    f->b->batch->fields[1].dtype = RP_DTYPE_FLOAT32;
    const struct rp_batch *out = join(f, 3);
    check(out, (const uint64_t[]){11, 12}, (const uint32_t[]){2, 3}, 2, 3);
    assert_int_equal(out->next->info.n, 1);
    assert_int_equal(out->next->arrays.key[0], 20);
    assert_true(out->next->arrays.weight[0] == 1);
    f->b->batch->fields[1].dtype = RP_DTYPE_INT32;
    f->b->batch->fields[0].lengths = NULL; /* all items have shape[1] steps: another kind of field */
    assert_non_null(join(f, 3)->next);
}

CASE(probabilities_and_weights)
{
    const double expected[] = {0.5 * 0.25, 0.25 * 0.125, 0.5 * 0.375};
    const struct rp_batch *out = join(f, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(fabs(out->arrays.probability[i] - expected[i]) < 1e-12);
        assert_true(fabs(out->arrays.weight[i] - expected[1] / expected[i]) < 1e-6);
        assert_int_equal(out->arrays.source[i], i == 1);
        assert_int_equal(out->arrays.shard[i], i == 1 ? 2 : 3);
    }
    assert_int_equal(out->info.waited_ns, 20);
}

/* 3 items: 3 * 3 steps of 4 bytes, rounded up to 64, and 3 numbers. */
CASE(max_bytes_is_exact)
{
    f->options.max_bytes = 64 + 12;
    join(f, 3);
    batch_list_release(&f->out);
    f->options.max_bytes--;
    assert_int_equal(batch_join(f->pool, f->rows, 3, &f->options, &f->out, &err), RP_RESOURCE_EXHAUSTED);
    assert_null(f->out);
}
