
#include "broker/table/contents.h"
#include "tests/support/test.h"

#define SLOTS 300u

struct copies {
    uint32_t slot[SLOTS], n;
};

static void copy(void *ctx, const struct table *table, const struct contents *in, uint32_t slot)
{
    struct copies *copies = ctx;
    assert_null(table);
    assert_null(in);
    copies->slot[copies->n++] = slot;
}

static const struct copier copier = {.copy = copy};

static void touch(struct marks *marks, uint32_t slot)
{
    marks_touch(marks, NULL, NULL, slot);
}

TEST(a_changed_slot_counts_once)
{
    struct marks *marks = marks_new(SLOTS);
    assert_true(marks->all_changed);
    touch(marks, 3);
    touch(marks, 3);
    touch(marks, SLOTS);
    assert_int_equal(marks->n_changed, 2);
    assert_int_equal(marks->changed[0], 8);
    marks_destroy(&marks);
    assert_null(marks);
}

/* Of a copy of all 200 slots that has passed the first 64. */
TEST(a_slot_is_copied_before_it_changes)
{
    struct copies copies = {.n = 0};
    struct marks *marks = marks_new(SLOTS);
    marks->whole = true;
    marks->next = 1;
    marks->high = 200;
    marks->copying = &copies;
    marks->copier = &copier;
    static const uint32_t slots[] = {10, 64, 199, 64, 200, 250};
    for (uint32_t i = 0; i < 6; i++)
        touch(marks, slots[i]);
    assert_int_equal(copies.n, 2); /* the others are copied, or were not used when the copy began */
    assert_int_equal(copies.slot[0], 64);
    assert_int_equal(copies.slot[1], 199);
    assert_int_equal(marks->n_changed, 5);
    assert_int_equal(marks_due(marks, 1), ~UINT64_C(1));
    assert_int_equal(marks_due(marks, 3), (UINT64_C(1) << 7) - 1); /* 192 .. 198 */
    marks_destroy(&marks);
}

/* Of a copy of changed slots, which is then abandoned. */
TEST(only_pending_slots_are_copied)
{
    struct copies copies = {.n = 0};
    struct marks *marks = marks_new(SLOTS);
    marks->all_changed = false;
    marks->high = 200;
    marks->pending[1] = 6; /* 65 and 66 */
    marks->copying = &copies;
    marks->copier = &copier;
    touch(marks, 64);
    touch(marks, 65);
    touch(marks, 65);
    assert_int_equal(copies.n, 1);
    assert_int_equal(copies.slot[0], 65);
    assert_int_equal(marks_due(marks, 1), 4);
    marks_abandon(marks);
    assert_int_equal(marks_due(marks, 1), 0);
    assert_true(marks->all_changed);
    marks_destroy(&marks);
}
