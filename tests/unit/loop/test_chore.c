

#include "broker/loop/loop.h"
#include "proto/base/clock.h"
#include "tests/support/clock_manual.h"
#include "tests/support/test.h"

/* A slice takes one millisecond of the clock. */
static struct clock_manual manual;
static char order[100];
static uint32_t n_order;

struct task {
    struct chore chore;
    char name;
    uint32_t slices;
};

static bool step(struct chore *chore)
{
    struct task *self = (struct task *)chore;
    manual.now_ns += NS_PER_MS;
    order[n_order++] = self->name;
    if (--self->slices)
        return true;
    free(self);
    return false;
}

static void add(struct chores *chores, char name, uint32_t slices)
{
    struct task *task = calloc(1, sizeof *task);
    *task = (struct task){{NULL, step}, name, slices};
    chores_add(chores, &task->chore);
}

TEST(chores_take_turns_within_the_budget)
{
    struct chores chores;
    struct clock clock = clock_manual(&manual);
    chores_init(&chores);
    assert_false(chores_run(&chores, &clock, NS_PER_S));
    add(&chores, 'a', 3);
    add(&chores, 'b', 1);
    add(&chores, 'c', 4);
    assert_true(chores_run(&chores, &clock, 2 * NS_PER_MS));
    assert_int_equal(n_order, 2); /* no longer than asked for */
    assert_true(chores_run(&chores, &clock, 0));
    assert_int_equal(n_order, 3); /* but always a slice */
    add(&chores, 'd', 1);
    assert_false(chores_run(&chores, &clock, NS_PER_S));
    order[n_order] = '\0';
    assert_string_equal(order, "abcacdacc");
    assert_false(chores_run(&chores, &clock, NS_PER_S));
    add(&chores, 'e', 1);
    assert_false(chores_run(&chores, &clock, NS_PER_S));
}
