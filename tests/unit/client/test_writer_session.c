/* A writer against a scripted peer: what is sent when, credit, and what happens when messages, sessions or the peer's
 * patience get lost. */

#include "tests/support/facts.h"
#include "tests/support/writer_fixture.h"

static const rp_column columns[] = {
    {.name = "x", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {4}},
    {.name = "r", .dtype = RP_DTYPE_INT32, .codec = RP_CODEC_AUTO},
};

static void open_writer(struct writer_fixture *f, const rp_writer_options *options)
{
    writer_fixture_open(f, columns, 2, options);
}

static void append(struct writer_fixture *f)
{
    float x[4] = {(float)f->step, 1, 2, 3};
    const void *values[] = {x, &f->step};
    ok(rp_writer_append(f->writer, values, 5000, &err));
    f->step++;
}

static uint64_t add_item(struct writer_fixture *f, const char *table, uint32_t steps)
{
    uint64_t key = 0;
    ok(rp_writer_item_last(f->writer, table, 1.0, steps, 5000, &key, &err));
    return key;
}

/* Appends n steps, and after each an item of so many steps to table "a". */
static void write_items(struct writer_fixture *f, int n, uint32_t steps)
{
    for (int i = 0; i < n; i++) {
        append(f);
        add_item(f, "a", steps);
    }
}

static void flush(struct writer_fixture *f)
{
    ok(rp_writer_flush(f->writer, 0, 10000, &err));
}

static rp_writer_info info(struct writer_fixture *f)
{
    rp_writer_info out = {.struct_size = sizeof out};
    assert_int_equal(rp_writer_get_info(f->writer, &out, NULL), RP_OK);
    return out;
}

/* ---- what is sent when */

FIXTURE(struct writer_fixture, writer_fixture_start, writer_fixture_stop)

CASE(nothing_is_sent_without_items)
{
    open_writer(f, NULL);
    for (int i = 0; i < 1000; i++)
        append(f);
    flush(f);
    assert_int_equal(rp_writer_end_episode(f->writer, RP_END_WAIT, 1000, &err), RP_OK);
    assert_true(fakepeer_await(&f->peer, &f->peer.heartbeats, fakepeer_read(&f->peer, &f->peer.heartbeats) + 2));
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.messages), 0);
}

CASE(an_item_is_sent_when_its_chunk_is_complete)
{
    open_writer(f, OPTIONS(rp_writer, .chunk_length = 4, .keep_alive = 8));
    write_items(f, 1, 1);
    append(f);
    append(f);
    assert_true(fakepeer_await(&f->peer, &f->peer.heartbeats, fakepeer_read(&f->peer, &f->peer.heartbeats) + 2));
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 0);
    append(f);
    assert_true(fakepeer_await(&f->peer, &f->peer.items, 1));
    assert_int_equal(f->peer.chunk_lengths[0], 4);
    /* A flush completes the chunk. */
    write_items(f, 1, 5);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 2);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.chunks), 2);
    assert_int_equal(f->peer.chunk_lengths[1], 1);
    assert_int_equal(f->peer.lengths[1], 5);
}

CASE(an_item_leaves_at_once_when_idle_and_batches_under_load)
{
    open_writer(f, NULL);
    write_items(f, 1, 1);
    assert_true(fakepeer_await(&f->peer, &f->peer.items, 1));
    write_items(f, 20000, 1);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 20001);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.largest), 50);
    assert_true(fakepeer_read(&f->peer, &f->peer.messages) < 2000);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.layouts), 1);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.out_of_order), 0);
}

CASE(layouts_are_shared_by_items_of_any_length)
{
    open_writer(f, OPTIONS(rp_writer, .keep_alive = 32));
    for (uint32_t i = 1; i <= 32; i++) {
        append(f);
        add_item(f, "a", i);
        rp_slice ends[] = {{.field = "first", .column = 0, .start = -(int64_t)i, .count = 1, .squeeze = 1},
                           {.field = "last", .column = 0, .start = -1, .count = 1, .squeeze = 1}};
        if (i > 1)
            assert_int_equal(rp_writer_item(f->writer, "b", 1, ends, 2, 1000, NULL, &err), RP_OK);
    }
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.layouts), 2);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.chunks), 32);
}

/* ---- refusals at the call */

CASE(bad_calls_are_refused_with_a_sentence)
{
    open_writer(f, OPTIONS(rp_writer, .keep_alive = 3));
    const rp_slice past = {.column = 0, .start = -4, .count = 1};
    float x[4] = {0};
    int32_t r = 0;
    for (int i = 0; i < 5; i++)
        append(f);
    must_fail(rp_writer_item(f->writer, "a", 1, &past, 1, 0, NULL, &err), RP_INVALID_ARGUMENT, "keep_alive is 3");
    must_fail(rp_writer_item_last(f->writer, "c", 1, 1, 0, NULL, &err), RP_NOT_FOUND, "'a', 'b'");
    assert_int_equal(rp_writer_item_last(f->writer, "a", -1, 1, 0, NULL, &err), RP_INVALID_ARGUMENT);
    assert_int_equal(rp_writer_item_last(f->writer, "a", NAN, 1, 0, NULL, &err), RP_INVALID_ARGUMENT);
    assert_int_equal(rp_writer_item_last(f->writer, "a", INFINITY, 1, 0, NULL, &err), RP_INVALID_ARGUMENT);
    assert_int_equal(rp_writer_item_last(f->writer, "a", 1, 4, 0, NULL, &err), RP_INVALID_ARGUMENT);
    assert_int_equal(rp_writer_set(f->writer, 0, x, sizeof x, &err), RP_OK);
    assert_int_equal(rp_writer_set(f->writer, 0, x, sizeof x, &err), RP_FAILED_PRECONDITION);
    must_fail(rp_writer_set(f->writer, 1, x, sizeof x, &err), RP_INVALID_ARGUMENT, "takes 1 ");
    assert_int_equal(rp_writer_end_episode(f->writer, RP_END_WAIT, 0, &err), RP_FAILED_PRECONDITION);
    assert_int_equal(rp_writer_end_step(f->writer, 0, &err), RP_OK);
    assert_int_equal(rp_writer_end_step(f->writer, 0, &err), RP_FAILED_PRECONDITION);
    /* That step has no r. */
    const rp_slice absent = {.column = 1, .start = -1, .count = 1};
    assert_int_equal(rp_writer_item(f->writer, "a", 1, &absent, 1, 0, NULL, &err), RP_INVALID_ARGUMENT);
    assert_true(facts_within(err.text, "'r' has no value"));
    const rp_slice present = {.column = 0, .start = -1, .count = 1};
    assert_int_equal(rp_writer_item(f->writer, "a", 1, &present, 1, 0, NULL, &err), RP_OK);
    const void *none[] = {NULL, NULL}, *again[] = {NULL, &r};
    assert_int_equal(rp_writer_append(f->writer, none, 0, &err), RP_INVALID_ARGUMENT);
    assert_int_equal(rp_writer_set(f->writer, 1, &r, sizeof r, &err), RP_OK);
    assert_int_equal(rp_writer_append(f->writer, again, 0, &err), RP_FAILED_PRECONDITION);
}

CASE(a_signature_is_checked_at_the_call)
{
    static const rp_column signature[] = {
        {.name = "obs", .dtype = RP_DTYPE_FLOAT32, .rank = 2, .shape = {3, 4}},
        {.name = "r", .dtype = RP_DTYPE_INT32, .rank = 1, .shape = {0}},
    };
    rp_client_destroy(&f->client);
    pthread_mutex_lock(&f->peer.mutex);
    f->peer.signature = signature;
    f->peer.n_signature = 2;
    pthread_mutex_unlock(&f->peer.mutex);
    f->client = rp_client_connect(f->peer.endpoint, NULL, 5000, &err);
    open_writer(f, OPTIONS(rp_writer, .keep_alive = 8));
    for (int i = 0; i < 5; i++)
        append(f);
    rp_slice good[] = {{.field = "obs", .column = 0, .start = -3, .count = 3}, {.column = 1, .start = -3}};
    assert_int_equal(rp_writer_item(f->writer, "a", 1, good, 2, 0, NULL, &err), RP_OK);
    good[0].count = 0; /* three steps are three steps */
    assert_int_equal(rp_writer_item(f->writer, "a", 1, good, 2, 0, NULL, &err), RP_OK);
    good[0].count = 2;
    assert_int_equal(rp_writer_item(f->writer, "a", 1, good, 2, 0, NULL, &err), RP_INVALID_ARGUMENT);
    assert_string_equal(err.text, "field 'obs' has shape [2,4], table 'a' wants [3,4]");
    good[0].count = 3;
    good[0].column = 1;
    assert_int_equal(rp_writer_item(f->writer, "a", 1, good, 2, 0, NULL, &err), RP_INVALID_ARGUMENT);
    assert_string_equal(err.text, "field 'obs' is int32, table 'a' wants float32");
    assert_int_equal(rp_writer_item(f->writer, "a", 1, good, 1, 0, NULL, &err), RP_INVALID_ARGUMENT);
    flush(f);
}

/* ---- credit */

CASE(credit_of_one_table_does_not_hold_back_another)
{
    fakepeer_set(&f->peer, &f->peer.hold, true);
    fakepeer_set(&f->peer, &f->peer.window_items[0], 5);
    open_writer(f, NULL);
    for (int i = 0; i < 100; i++) {
        append(f);
        add_item(f, "a", 1);
        add_item(f, "b", 1);
    }
    assert_true(fakepeer_await(&f->peer, &f->peer.arrived[1], 100));
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.arrived[0]), 5);
    must_fail(rp_writer_flush(f->writer, 0, 200, &err), RP_DEADLINE_EXCEEDED, "200 items are unconfirmed");
    assert_non_null(strstr(err.text, "the test says so"));
    fakepeer_release(&f->peer);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.arrived[0]), 100);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.out_of_order), 0);
    assert_int_equal(info(f).accepted, 200);
}

/* A writer that is asked to keep less says so at once, sends no more than it kept, and starts anew after HELLO. */
CASE(unused_credit_is_given_up_on_request)
{
    const uint64_t window = 200000, keep = 20000;
    fakepeer_set(&f->peer, &f->peer.hold, true);
    fakepeer_set(&f->peer, &f->peer.window_bytes, window);
    fakepeer_set(&f->peer, &f->peer.keep_bytes, keep);
    open_writer(f, NULL);
    assert_true(fakepeer_await(&f->peer, &f->peer.released_bytes, window - keep));
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.window_bytes), keep);
    write_items(f, 2000, 1);
    assert_int_equal(rp_writer_flush(f->writer, 0, 200, &err), RP_DEADLINE_EXCEEDED);
    uint64_t bytes = fakepeer_read(&f->peer, &f->peer.received_bytes);
    assert_true(bytes > 0 && bytes <= keep);
    /* In the next epoch all of a larger window counts. */
    fakepeer_set(&f->peer, &f->peer.keep_bytes, 0);
    fakepeer_set(&f->peer, &f->peer.window_bytes, UINT64_C(1) << 40);
    fakepeer_set(&f->peer, &f->peer.gap, true);
    assert_true(fakepeer_await(&f->peer, &f->peer.resumes, 1));
    fakepeer_release(&f->peer);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.released_bytes), 0);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 2000);
    assert_int_equal(info(f).rejected, 0);
}

/* A broker that restarts from an older checkpoint has counted fewer bytes: the writer must not wait for credit that it would
 * never get. */
CASE(after_a_loss_the_writer_counts_as_the_broker_does)
{
    fakepeer_set(&f->peer, &f->peer.window_bytes, 50000);
    open_writer(f, NULL);
    for (int i = 0; fakepeer_read(&f->peer, &f->peer.received_bytes) < 300000; i++) {
        append(f);
        add_item(f, "a", 1);
        if (i % 500 == 499)
            flush(f);
    }
    flush(f);
    fakepeer_set(&f->peer, &f->peer.age, true);
    fakepeer_set(&f->peer, &f->peer.gap, true);
    assert_true(fakepeer_await(&f->peer, &f->peer.resumes, 1));
    fakepeer_set(&f->peer, &f->peer.largest, 0);
    write_items(f, 500, 1);
    flush(f);
    assert_true(fakepeer_read(&f->peer, &f->peer.largest) > 1); /* without credit they go one by one */
    assert_int_equal(info(f).lost_messages, 5);
    assert_int_equal(info(f).rejected, 0);
}

CASE(one_item_may_go_without_any_credit)
{
    fakepeer_set(&f->peer, &f->peer.window_items[0], 0);
    fakepeer_set(&f->peer, &f->peer.window_bytes, 0);
    open_writer(f, NULL);
    write_items(f, 20, 1);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.largest), 1);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 20);
}

CASE(a_full_writer_waits_and_loses_nothing)
{
    fakepeer_set(&f->peer, &f->peer.hold, true);
    open_writer(f, OPTIONS(rp_writer, .max_in_flight_items = 3));
    append(f);
    for (int i = 0; i < 3; i++)
        add_item(f, "a", 1);
    uint64_t key = 0;
    assert_int_equal(rp_writer_item_last(f->writer, "a", 1, 1, 0, &key, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(rp_writer_item_last(f->writer, "a", 1, 1, 150, &key, &err), RP_DEADLINE_EXCEEDED);
    assert_true(facts_within(err.text, "3 items are in flight, the limit is 3: table 'a' holds back"));
    fakepeer_release(&f->peer);
    assert_int_equal(rp_writer_item_last(f->writer, "a", 1, 1, 5000, &key, &err), RP_OK);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 4);
    assert_int_equal(f->peer.keys[3], key);
}

/* More than sockets and the kernel hold, while the peer reads nothing: the rest goes when it reads again. */
CASE(a_full_socket_loses_nothing)
{
    enum { ITEMS = 4000, BYTES = 16384 };
    static const rp_column wide = {
        .name = "x", .dtype = RP_DTYPE_UINT8, .codec = RP_CODEC_RAW, .rank = 1, .shape = {BYTES}};
    static uint8_t x[BYTES];
    const void *values[] = {x};
    fakepeer_set(&f->peer, &f->peer.expiry_ms, 60000);
    writer_fixture_open(f, &wide, 1, OPTIONS(rp_writer, .batch_items = 1, .max_in_flight_items = 2 * ITEMS));
    pthread_mutex_lock(&f->peer.mutex);
    for (int i = 0; i < ITEMS; i++) {
        ok(rp_writer_append(f->writer, values, 5000, &err));
        add_item(f, "a", 1);
    }
    for (uint64_t sent = 0; sent == 0 || sent != info(f).sent;) {
        sent = info(f).sent;
        usleep(200000);
    }
    assert_in_range(info(f).sent, 1, ITEMS - 1);
    pthread_mutex_unlock(&f->peer.mutex);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), ITEMS);
    assert_int_equal(f->peer.duplicates + f->peer.out_of_order + f->peer.gaps, 0);
    assert_int_equal(info(f).resent_messages, 0);
}

CASE(an_item_larger_than_a_message_is_refused)
{
    const rp_column wide = {.name = "w", .dtype = RP_DTYPE_UINT8, .codec = RP_CODEC_RAW, .rank = 1, .shape = {400000}};
    f->writer = rp_writer_new(f->client, &wide, 1, OPTIONS(rp_writer, .keep_alive = 3), 5000, &err);
    uint8_t *row = calloc(1, 400000);
    const void *values[] = {row};
    for (int i = 0; i < 3; i++)
        assert_int_equal(rp_writer_append(f->writer, values, 0, &err), RP_OK);
    assert_int_equal(rp_writer_item_last(f->writer, "a", 1, 3, 0, NULL, &err), RP_RESOURCE_EXHAUSTED);
    assert_int_equal(rp_writer_item_last(f->writer, "a", 1, 2, 0, NULL, &err), RP_OK);
    flush(f);
    free(row);
}

/* ---- rejections */

CASE(rejections_are_told_once_and_can_be_read)
{
    fakepeer_set(&f->peer, &f->peer.reject_odd, true);
    open_writer(f, NULL);
    append(f);
    uint64_t keys[4];
    for (int i = 0; i < 4; i++)
        keys[i] = add_item(f, "a", 1);
    must_fail(rp_writer_flush(f->writer, 0, 5000, &err), RP_INVALID_ARGUMENT, "odd items are not liked");
    assert_int_equal(rp_writer_flush(f->writer, 0, 5000, &err), RP_OK);
    rp_rejection rejection;
    for (int i = 0; i < 4; i += 2) {
        assert_int_equal(rp_writer_next_rejection(f->writer, &rejection), RP_OK);
        assert_int_equal(rejection.key, keys[i]);
        assert_string_equal(rejection.table, "a");
        assert_int_equal(rejection.status, RP_INVALID_ARGUMENT);
    }
    assert_int_equal(rp_writer_next_rejection(f->writer, &rejection), RP_NOT_FOUND);
    assert_int_equal(info(f).accepted, 2);
    assert_int_equal(info(f).rejected, 2);
    assert_true(fakepeer_await(&f->peer, &f->peer.confirmed, 2));
}

/* ---- loss */

CASE(lost_messages_are_sent_again)
{
    open_writer(f, NULL);
    uint64_t keys[60];
    for (int i = 0; i < 60; i++) {
        if (i == 20)
            flush(f), fakepeer_set(&f->peer, &f->peer.lose, true);
        append(f);
        keys[i] = add_item(f, "a", 1);
        if (i == 39) {
            assert_int_equal(rp_writer_flush(f->writer, 0, 20, NULL), RP_DEADLINE_EXCEEDED);
            fakepeer_set(&f->peer, &f->peer.lose, false);
        }
    }
    flush(f);
    assert_true(fakepeer_read(&f->peer, &f->peer.gaps) >= 1);
    assert_true(fakepeer_read(&f->peer, &f->peer.resumes) >= 1);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 60);
    assert_memory_equal(f->peer.keys, keys, sizeof keys);
    assert_true(info(f).resent_messages >= 1);
    assert_int_equal(info(f).sessions, 1);
}

/* Nothing comes after the lost message: only the numbers in heartbeats tell. */
CASE(a_lost_last_message_is_noticed)
{
    open_writer(f, NULL);
    append(f);
    fakepeer_set(&f->peer, &f->peer.lose, true);
    add_item(f, "a", 1);
    assert_int_equal(rp_writer_flush(f->writer, 0, 30, &err), RP_DEADLINE_EXCEEDED);
    fakepeer_set(&f->peer, &f->peer.lose, false);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 1);
}

CASE(an_expired_session_is_filled_again)
{
    open_writer(f, OPTIONS(rp_writer, .keep_alive = 4));
    for (int i = 0; i < 30; i++) {
        append(f);
        add_item(f, i % 3 ? "a" : "b", 1);
    }
    flush(f);
    fakepeer_set(&f->peer, &f->peer.hold, true);
    write_items(f, 30, 4);
    assert_true(fakepeer_await(&f->peer, &f->peer.items, 60));
    uint64_t chunks = fakepeer_read(&f->peer, &f->peer.chunks);
    /* A lost message makes the writer say HELLO, which finds a tombstone. */
    fakepeer_set(&f->peer, &f->peer.expire, true);
    fakepeer_set(&f->peer, &f->peer.lose, true);
    write_items(f, 1, 1);
    assert_int_equal(rp_writer_flush(f->writer, 0, 30, NULL), RP_DEADLINE_EXCEEDED);
    fakepeer_set(&f->peer, &f->peer.lose, false);
    write_items(f, 1, 1);
    assert_true(fakepeer_await(&f->peer, &f->peer.resumes, 1));
    assert_true(fakepeer_await(&f->peer, &f->peer.items, 60 + 30 + 2));
    fakepeer_release(&f->peer);
    flush(f);
    /* The 30 that had not been resolved came a second time, with their chunks; the resolved ones did not. */
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 60 + 30 + 2);
    assert_true(fakepeer_read(&f->peer, &f->peer.chunks) >= chunks + 30 + 2);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.out_of_order), 0);
    assert_int_equal(info(f).accepted, 62);
}

static void lose_session(struct writer_fixture *f, int32_t doubt, uint64_t *keys)
{
    open_writer(f, OPTIONS(rp_writer, .keep_alive = 4, .doubt = doubt));
    for (int i = 0; i < 10; i++) {
        append(f);
        keys[i] = add_item(f, "a", 1);
    }
    flush(f);
    fakepeer_set(&f->peer, &f->peer.window_items[0], 10);
    fakepeer_set(&f->peer, &f->peer.hold, true);
    for (int i = 10; i < 20; i++) {
        append(f);
        keys[i] = add_item(f, "a", 2);
    }
    assert_true(fakepeer_await(&f->peer, &f->peer.items, 20));
    fakepeer_set(&f->peer, &f->peer.hold, false);
    fakepeer_set(&f->peer, &f->peer.forget, true);
    assert_true(fakepeer_await(&f->peer, &f->peer.hellos, 4));
}

CASE(a_forgotten_session_leaves_items_in_doubt)
{
    uint64_t keys[20];
    lose_session(f, RP_DOUBT_REPORT, keys);
    assert_int_equal(rp_writer_flush(f->writer, 0, 5000, &err), RP_IN_DOUBT);
    assert_true(facts_within(err.text, "10 items were not accepted"));
    rp_rejection rejection;
    for (int i = 10; i < 20; i++) {
        assert_int_equal(rp_writer_next_rejection(f->writer, &rejection), RP_OK);
        assert_int_equal(rejection.status, RP_IN_DOUBT);
        assert_int_equal(rejection.key, keys[i]);
    }
    /* Chunks of the window go to the new session too. */
    append(f);
    uint64_t chunks = fakepeer_read(&f->peer, &f->peer.chunks);
    add_item(f, "a", 4);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.chunks), chunks + 4);
    rp_writer_info i = info(f);
    assert_int_equal(i.in_doubt, 10);
    assert_int_equal(i.accepted, 11);
    assert_int_equal(i.sessions, 2);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.out_of_order), 0);
}

CASE(items_in_doubt_can_be_sent_again)
{
    uint64_t keys[20];
    lose_session(f, RP_DOUBT_RESEND, keys);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 30);
    assert_memory_equal(f->peer.keys + 20, keys + 10, 10 * sizeof keys[0]);
    assert_int_equal(info(f).accepted, 20);
    assert_int_equal(info(f).in_doubt, 0);
}

/* A session has so many keys: then the writer goes on in a new one, with nothing lost, doubted or sent twice. */
CASE(used_up_keys_bring_a_new_session)
{
    enum { EACH = 7, ITEMS = 40 };
    fakepeer_set(&f->peer, &f->peer.key_count, EACH);
    open_writer(f, OPTIONS(rp_writer, .chunk_length = 1, .keep_alive = 4));
    uint64_t keys[ITEMS];
    for (uint32_t i = 0; i < ITEMS; i++) {
        append(f);
        keys[i] = add_item(f, "a", i < 3 ? i + 1 : 4); /* over chunks that were sent in the session before, too */
        assert_int_equal(keys[i] & ((UINT64_C(1) << 36) - 1), i % EACH);
        assert_int_equal(keys[i] >> 36, (keys[0] >> 36) + i / EACH);
    }
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), ITEMS);
    assert_memory_equal(f->peer.keys, keys, sizeof keys);
    rp_writer_info i = info(f);
    assert_int_equal(i.accepted, ITEMS);
    assert_int_equal(i.in_doubt + i.rejected, 0);
    assert_int_equal(i.sessions, (ITEMS + EACH - 1) / EACH);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.byes), (ITEMS - 1) / EACH);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.out_of_order), 0);
}

/* The new session waits until everything of the old one is confirmed; a caller without patience is told. */
CASE(a_new_session_waits_for_unconfirmed_items)
{
    fakepeer_set(&f->peer, &f->peer.key_count, 3);
    open_writer(f, NULL);
    fakepeer_set(&f->peer, &f->peer.hold, true);
    append(f);
    for (uint32_t i = 0; i < 3; i++)
        add_item(f, "a", 1);
    uint64_t key;
    assert_int_equal(rp_writer_item_last(f->writer, "a", 1.0, 1, 50, &key, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.byes), 0);
    fakepeer_set(&f->peer, &f->peer.hold, false);
    fakepeer_release(&f->peer);
    add_item(f, "a", 1);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.byes), 1);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 4);
    assert_int_equal(info(f).accepted, 4);
}

CASE(a_silent_broker_is_given_up)
{
    pthread_mutex_lock(&f->peer.mutex);
    f->peer.expiry_ms = 200;
    pthread_mutex_unlock(&f->peer.mutex);
    open_writer(f, NULL);
    append(f);
    fakepeer_set(&f->peer, &f->peer.deaf, true);
    add_item(f, "a", 1);
    uint64_t waited = 0;
    while (rp_client_get_state(f->client) == RP_CLIENT_CONNECTED && waited++ < 200)
        rp_writer_flush(f->writer, 0, 20, NULL);
    assert_int_equal(rp_client_get_state(f->client), RP_CLIENT_CONNECTING);
    must_fail(rp_writer_flush(f->writer, 0, 20, &err), RP_DEADLINE_EXCEEDED, "no broker answers at tcp://");
    fakepeer_set(&f->peer, &f->peer.deaf, false);
    flush(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 1);
    rp_client_info client = {.struct_size = sizeof client};
    rp_client_get_info(f->client, &client, NULL);
    assert_true(client.reconnects >= 1);
}

CASE(a_writer_that_opens_while_the_broker_ends_waits_for_the_next_one)
{
    fakepeer_set(&f->peer, &f->peer.ends, true);
    open_writer(f, NULL);
    assert_true(fakepeer_read(&f->peer, &f->peer.hellos) >= 3); /* of the connection, the refused one, the next one */
    write_items(f, 1, 1);
    flush(f);
}

CASE(destroy_says_bye)
{
    open_writer(f, NULL);
    write_items(f, 1, 1);
    assert_int_equal(rp_writer_destroy(&f->writer, 5000, &err), RP_OK);
    assert_null(f->writer);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.byes), 1);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 1);
}

/* ---- connecting */

TEST(connecting_fails_with_a_sentence)
{
    must_fail_new(rp_client_connect("tcp://127.0.0.1:1", NULL, 100, &err), RP_UNAVAILABLE,
                  "no broker answers at tcp://127.0.0.1:1 within 0.1 s: is replay-broker running, and is this its "
                  "service endpoint?");
    must_fail_new(rp_client_connect("tcp://127.0.0.1:1,tcp://127.0.0.1:2", NULL, 100, &err), RP_UNAVAILABLE, NULL);
    must_fail_new(rp_client_connect("tcp://no..host:1", NULL, 1000, &err), RP_UNAVAILABLE, "cannot be resolved");
    must_fail_new(rp_client_connect("nonsense", NULL, 100, &err), RP_INVALID_ARGUMENT, NULL);
}
