/* Keys are handed out once: ordinals in turn, past those that sessions have or whose keys items bear. */

#include "broker/table/ordinals.h"
#include "tests/support/naive.h"

#define LAST (KEY_ORDINALS - 1)

static uint64_t key_of(uint32_t ordinal, uint64_t counter)
{
    return (uint64_t)ordinal << KEY_COUNTER_BITS | counter;
}

static uint32_t open_one(struct ordinals *self, struct key_range *keys)
{
    uint32_t ordinal = ordinals_take(self, keys);
    if (ordinal)
        ordinals_hold(self, ordinal);
    return ordinal;
}

TEST(ordinals_come_in_turn_and_wrap_past_those_in_use)
{
    struct ordinals self;
    struct key_range first, second, keys;
    ordinals_init(&self, 0);
    assert_int_equal(open_one(&self, &first), 1);
    assert_int_equal(open_one(&self, &second), 2);
    assert_int_equal(first.base, key_of(1, 0));
    assert_int_equal(first.count, KEY_COUNTERS);
    ordinals_enter(&self, second.base + 7); /* its session ends, its item stays */
    ordinals_release(&self, 2);
    self.next = LAST;
    assert_int_equal(open_one(&self, &keys), LAST);
    assert_int_equal(keys.base, key_of(LAST, 0));
    assert_int_equal(open_one(&self, &keys), 3); /* 0 is nobody's, 1 has a session, 2 an item */
    self.next = LAST;
    assert_int_equal(open_one(&self, &keys), 4);
    ordinals_leave(&self, second.base + 7);
    self.next = 2;
    assert_int_equal(open_one(&self, &keys), 2); /* nothing bears its keys any more */
    assert_int_equal(keys.base, key_of(2, 0));
    ordinals_fini(&self);
}

/* With items of more sessions than there are ordinals, keys go on behind those of items. */
TEST(when_all_are_in_use_keys_go_on_behind_the_items)
{
    struct ordinals self;
    struct key_range keys;
    ordinals_init(&self, 0);
    for (uint32_t i = 1; i <= LAST; i++)
        ordinals_enter(&self, key_of(i, i % 100));
    self.next = 1000;
    assert_int_equal(open_one(&self, &keys), 1000);
    assert_int_equal(keys.base, key_of(1000, 16));
    assert_int_equal(keys.base + keys.count, key_of(1001, 0));
    assert_int_equal(open_one(&self, &keys), 1001);
    ordinals_leave(&self, key_of(5000, 0));
    self.next = 2000;
    assert_int_equal(open_one(&self, &keys), 5000); /* a free one is preferred, if it is near */
    assert_int_equal(keys.base, key_of(5000, 0));
    /* An ordinal whose keys are nearly used up is passed over. */
    ordinals_enter(&self, key_of(6000, KEY_COUNTERS - 1));
    self.next = 6000;
    assert_int_equal(open_one(&self, &keys), 6001);
    ordinals_fini(&self);
}

TEST(when_all_have_sessions_there_is_none)
{
    struct ordinals self;
    struct key_range keys;
    ordinals_init(&self, 0);
    for (uint32_t i = 1; i <= LAST; i++)
        ordinals_hold(&self, i);
    assert_int_equal(ordinals_take(&self, &keys), 0);
    ordinals_release(&self, 77);
    assert_int_equal(ordinals_take(&self, &keys), 77);
    ordinals_fini(&self);
}

#define SESSIONS 64u
#define ITEMS 512u

struct model {
    struct {
        uint32_t ordinal;
        struct key_range keys;
        uint64_t used;
    } sessions[SESSIONS];
    uint64_t items[ITEMS];
    uint32_t n_items;
};

/* A new session's keys are no other session's, and no item bears one. */
static void check_new(const struct model *model, uint32_t s)
{
    const struct key_range *keys = &model->sessions[s].keys;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        const struct key_range *other = &model->sessions[i].keys;
        if (i == s || !model->sessions[i].ordinal)
            continue;
        assert_int_not_equal(model->sessions[i].ordinal, model->sessions[s].ordinal);
        assert_true(keys->base + keys->count <= other->base || other->base + other->count <= keys->base);
    }
    for (uint32_t i = 0; i < model->n_items; i++)
        assert_false(model->items[i] - keys->base < keys->count);
}

/* Few ordinals are tried, and all others have items: so sessions come back to the same ones again and again. */
TEST(no_key_is_handed_out_while_an_item_bears_it)
{
    struct ordinals self;
    static struct model model;
    struct rng rng = naive_rng(__func__);
    memset(&model, 0, sizeof model);
    ordinals_init(&self, 0);
    for (uint32_t step = 0; step < 100000; step++) {
        uint32_t s = (uint32_t)rng_below(&rng, SESSIONS), what = (uint32_t)rng_below(&rng, 10);
        uint32_t i = (uint32_t)rng_below(&rng, ITEMS);
        if (what == 0 && !model.sessions[s].ordinal) {
            self.next = rng_below(&rng, 4) ? self.next : LAST - rng_below(&rng, 100);
            self.next = self.next > LAST + 40 && rng_below(&rng, 2) ? LAST - 20 : self.next;
            model.sessions[s].ordinal = open_one(&self, &model.sessions[s].keys);
            model.sessions[s].used = 0;
            assert_int_not_equal(model.sessions[s].ordinal, 0);
            check_new(&model, s);
        } else if (what == 1 && model.sessions[s].ordinal) {
            ordinals_release(&self, model.sessions[s].ordinal);
            model.sessions[s].ordinal = 0;
        } else if (what < 6 && model.sessions[s].ordinal && model.n_items < ITEMS) {
            model.sessions[s].used += rng_below(&rng, 1000);
            ordinals_enter(&self, model.items[model.n_items++] = model.sessions[s].keys.base + model.sessions[s].used);
            model.sessions[s].used++;
        } else if (what >= 6 && i < model.n_items) {
            ordinals_leave(&self, model.items[i]);
            model.items[i] = model.items[--model.n_items];
        }
    }
    ordinals_fini(&self);
}
