/* What changed since the last checkpoint. That a checkpoint copies each slot once, as it was: tests/unit/checkpoint/test_checkpoint.c. */

#include "broker/table/contents.h"
#include "tests/support/test.h"

#define SLOTS 300u

TEST(a_changed_slot_counts_once)
{
    struct marks *marks = marks_new(SLOTS);
    assert_true(marks->all_changed);
    marks->all_changed = false;
    static const uint32_t slots[] = {3, 3, SLOTS};
    for (uint32_t i = 0; i < 3; i++)
        marks_touch(marks, NULL, NULL, slots[i]);
    assert_int_equal(marks->n_changed, 2);
    assert_int_equal(marks->changed[0], 8);
    marks_abandon(marks);
    assert_true(marks->all_changed);
    marks_destroy(&marks);
    assert_null(marks);
}
