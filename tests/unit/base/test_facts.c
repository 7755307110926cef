/* The comparison that other tests rely on: prose may change, facts may not. */

#include "tests/support/facts.h"

TEST(facts)
{
    char out[256];
    facts_of("c.yaml:1:42: tables[0].sampler: 'liffo' is not one of them; max_size is 60s (or 5).\nSecond line, 7.",
             out, sizeof out);
    assert_string_equal(out, "c.yaml:1:42 tables[0].sampler 'liffo' max_size 60s 5 \n 7 ");
}

TEST(comparison)
{
    facts_same("waits for 12 items of 'a'", "12 more items are needed in table 'a'");
    assert_true(facts_within("x: needs 12 more inserts: the table has 88 items", "12 inserts, has 88"));
    assert_false(facts_within("needs 12 more inserts: the table has 88 items", "88 items"
                                                                               " 12"));
    assert_false(facts_within("needs 121 more inserts", "12 more"));
    assert_false(facts_within("needs 12 more inserts", "13 more"));
    assert_true(facts_within("nothing waits", "nothing"));
    assert_false(facts_within("nothing waits", "something"));
}
