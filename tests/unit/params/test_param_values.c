

#include "broker/store/params.h"
#include "tests/support/test.h"

static void put(struct params *params, const char *name, const char *value, int64_t now_ns)
{
    zmq_msg_t message;
    zmq_msg_init_size(&message, strlen(value));
    memcpy(zmq_msg_data(&message), value, strlen(value));
    struct param_slot *slot = params_make_slot(params, name);
    params_put(params, slot, &message, slot->version + 1, now_ns);
    zmq_msg_close(&message);
}

static void expect(const struct params *params, const char *name, uint64_t version, const char *value)
{
    struct param_slot *slot = params_find(params, name);
    assert_non_null(slot);
    assert_int_equal(slot->version, version);
    assert_int_equal(params_version(params, name), version);
    assert_int_equal(zmq_msg_size(&slot->value->parts[0]), strlen(value));
    assert_memory_equal(zmq_msg_data(&slot->value->parts[0]), value, strlen(value));
}

FIXTURE(struct params, (void), params_fini)

/* Up to the bound, while the arrays grow: each put is the next version, and bytes are those of the last. */
CASE(slots_and_counters_are_bounded)
{
    uint64_t bytes = 0;
    assert_int_equal(params_version(f, "0"), 0);
    assert_null(params_find(f, "0"));
    for (uint32_t i = 0; i < PARAMS_SLOTS_MOST; i++) {
        const char *value = textf("a value that is longer than a message keeps in itself: %u", i);
        put(f, textf("%u", i), "first", 1);
        put(f, textf("%u", i), value, i);
        bytes += strlen(value);
        assert_non_null(params_add_counter(f, textf("%u", i)));
    }
    for (uint32_t i = 0; i < PARAMS_SLOTS_MOST; i++) {
        expect(f, textf("%u", i), 2, textf("a value that is longer than a message keeps in itself: %u", i));
        assert_int_equal(params_find(f, textf("%u", i))->put_ns, i);
    }
    assert_int_equal(f->bytes, bytes);
    assert_null(params_make_slot(f, "one more"));
    assert_null(params_add_counter(f, "one more"));
    assert_false(params_restore_slot(f, "one more", 1, 0, "x", 1));
    assert_non_null(params_make_slot(f, "17"));
    assert_int_equal(f->n_slots, PARAMS_SLOTS_MOST);
    assert_int_equal(f->n_counters, PARAMS_SLOTS_MOST);
}

CASE(restored_values_count_on)
{
    assert_true(params_restore_slot(f, "policy", 41, 7, "old", 3));
    assert_true(params_restore_slot(f, "empty", 1, 7, NULL, 0));
    assert_true(params_restore_counter(f, "steps", -5));
    assert_true(params_restore_counter(f, "steps", 12));
    expect(f, "policy", 41, "old");
    expect(f, "empty", 1, "");
    assert_int_equal(f->bytes, 3);
    put(f, "policy", "newer", 8);
    expect(f, "policy", 42, "newer");
    assert_int_equal(f->n_counters, 1);
    assert_int_equal(params_find_counter(f, "steps")->value, 12);
}
