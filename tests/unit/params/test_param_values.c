

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

TEST(values_stay_when_the_array_grows)
{
    struct params params = {0};
    char name[32], value[64];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "slot %d", i);
        snprintf(value, sizeof value, "a value that is longer than a message keeps in itself: %d", i);
        put(&params, name, value, i);
    }
    uint64_t bytes = 0;
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "slot %d", i);
        snprintf(value, sizeof value, "a value that is longer than a message keeps in itself: %d", i);
        expect(&params, name, 1, value);
        assert_int_equal(params_find(&params, name)->put_ns, i);
        bytes += strlen(value);
    }
    assert_int_equal(params.bytes, bytes);
    assert_int_equal(params.n_slots, 100);
    params_fini(&params);
    assert_int_equal(params.n_slots, 0);
}

FIXTURE(struct params, (void), params_fini)

CASE(each_put_is_the_next_version_and_bytes_are_those_of_the_last)
{
    assert_int_equal(params_version(f, "policy"), 0);
    assert_null(params_find(f, "policy"));
    put(f, "policy", "first", 1);
    put(f, "policy", "the second", 2);
    put(f, "target", "t", 3);
    expect(f, "policy", 2, "the second");
    expect(f, "target", 1, "t");
    assert_int_equal(f->bytes, strlen("the second") + 1);
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

CASE(slots_and_counters_are_bounded)
{
    char name[32];
    for (uint32_t i = 0; i < PARAMS_SLOTS_MOST; i++) {
        snprintf(name, sizeof name, "%u", i);
        assert_non_null(params_make_slot(f, name));
        assert_non_null(params_add_counter(f, name));
    }
    assert_null(params_make_slot(f, "one more"));
    assert_null(params_add_counter(f, "one more"));
    assert_false(params_restore_slot(f, "one more", 1, 0, "x", 1));
    assert_non_null(params_make_slot(f, "17"));
    assert_int_equal(f->n_slots, PARAMS_SLOTS_MOST);
    assert_int_equal(f->n_counters, PARAMS_SLOTS_MOST);
}
