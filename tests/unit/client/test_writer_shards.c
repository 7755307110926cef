/* A writer over several shards: waits over all of its lanes. The shards are scripted, so that they confirm items when they are told to. */
#include "proto/base/clock.h"
#include "replay/writer.h"
#include "tests/support/fakepeer.h"

#define SHARDS FAKESHARDS
#define ITEMS 60u

struct fixture {
    struct fakeshards shards;
    rp_client *client;
    rp_writer *writer;
    uint32_t looks;
};

static const rp_column column = {.name = "number", .dtype = RP_DTYPE_INT32};

static void set_up(struct fixture *f)
{
    fakeshards_start(&f->shards, 1);
    for (uint32_t i = 0; i < SHARDS; i++)
        fakepeer_set(&f->shards.peers[i], &f->shards.peers[i].hold, true);
    f->client = must(rp_client_connect(f->shards.list[0], NULL, WAIT, &err));
}

static void tear_down(struct fixture *f)
{
    rp_wait_set(NULL, NULL);
    rp_writer_destroy(&f->writer, 0, NULL);
    rp_client_destroy(&f->client);
    fakeshards_stop(&f->shards);
}

/* Writes items, an episode for each: the better of two makes their numbers about equal. */
static void write_items(struct fixture *f)
{
    for (int32_t i = 0; i < (int32_t)ITEMS; i++) {
        const void *value = &i;
        ok(rp_writer_append(f->writer, &value, WAIT, &err));
        ok(rp_writer_item_last(f->writer, "a", 1, 1, WAIT, NULL, &err));
        ok(rp_writer_end_episode(f->writer, RP_END_GO, WAIT, &err));
    }
}

static uint64_t arrived(struct fixture *f)
{
    uint64_t items = 0;
    for (uint32_t i = 0; i < SHARDS; i++)
        items += fakepeer_read(&f->shards.peers[i], &f->shards.peers[i].items);
    return items;
}

static void insert(struct fixture *f)
{
    f->writer = must(rp_writer_new(f->client, &column, 1, NULL, WAIT, &err));
    write_items(f);
    assert_int_equal(rp_writer_flush(f->writer, 0, 0, &err), RP_DEADLINE_EXCEEDED); /* sends what is collected */
    wait_until(arrived(f) == ITEMS);
}

/* ---- flush ---- */

static int release_two(void *ctx)
{
    struct fixture *f = ctx;
    if (f->looks++ == 0)
        for (uint32_t i = 1; i < SHARDS; i++)
            fakepeer_release(&f->shards.peers[i]);
    return 0;
}

FIXTURE(struct fixture, set_up, tear_down)

/* A flush that may leave some items needs no particular lane to be empty: here the first one keeps all of its items. */
CASE(a_flush_leaves_items_of_any_lane)
{
    rp_writer_info info = {.struct_size = sizeof info};
    insert(f);
    uint64_t kept = fakepeer_read(&f->shards.peers[0], &f->shards.peers[0].items);
    assert_in_range(kept, 1, ITEMS - 1);
    rp_wait_set(release_two, f);
    int64_t start = clock_ns();
    ok(rp_writer_flush(f->writer, kept, WAIT, &err));
    assert_true(clock_ns() - start < (WAIT - 500) * NS_PER_MS); /* not at the end of the time */
    ok(rp_writer_get_info(f->writer, &info, &err));
    assert_int_equal(info.unconfirmed, kept);
}

/* The error counts the items of all lanes. */
CASE(a_flush_in_vain_counts_all_lanes)
{
    unsigned items = 0;
    insert(f);
    fakepeer_release(&f->shards.peers[1]);
    uint64_t confirmed = fakepeer_read(&f->shards.peers[1], &f->shards.peers[1].items);
    ok(rp_writer_flush(f->writer, ITEMS - confirmed, WAIT, &err));
    assert_int_equal(rp_writer_flush(f->writer, 0, 20, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(sscanf(err.text, "%u items are unconfirmed", &items), 1);
    assert_int_equal(items, ITEMS - confirmed);
    assert_int_equal(rp_writer_destroy(&f->writer, 0, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(sscanf(err.text, "%u items are unconfirmed", &items), 1);
    assert_int_equal(items, ITEMS - confirmed);
}

static int stop_once(void *ctx)
{
    struct fixture *f = ctx;
    return f->looks++ == 0;
}

/* A caller that stops once has stopped the whole wait, not that of the first lane. */
CASE(a_stop_ends_the_wait_for_all_lanes)
{
    insert(f);
    rp_wait_set(stop_once, f);
    assert_int_equal(rp_writer_flush(f->writer, 0, WAIT, &err), RP_CANCELLED);
    assert_int_equal(f->looks, 1);
    f->looks = 0;
    assert_int_equal(rp_writer_destroy(&f->writer, WAIT, &err), RP_CANCELLED);
    assert_int_equal(f->looks, 1);
}

/* ---- patterns ---- */

/* A pattern belongs to the writer: it makes items of every lane's episodes, and starts anew with each. */
CASE(a_pattern_applies_on_all_lanes)
{
    const rp_slice slice = {.start = -1};
    const rp_condition seldom = {.kind = RP_WHEN_EVERY, .a = 3};
    const rp_pattern pattern = {
        .table = "b", .priority = 1, .slices = &slice, .n_slices = 1, .conditions = &seldom, .n_conditions = 1};
    f->writer = must(rp_writer_new(f->client, &column, 1, NULL, WAIT, &err));
    ok(rp_writer_add_pattern(f->writer, &pattern, &err));
    for (int32_t i = 0; i < 3 * (int32_t)ITEMS; i++) {
        const void *value = &i;
        ok(rp_writer_append(f->writer, &value, WAIT, &err));
        if (i % 3 == 2) /* one item: the step after three steps would make the next */
            ok(rp_writer_end_episode(f->writer, RP_END_GO, WAIT, &err));
    }
    assert_int_equal(rp_writer_flush(f->writer, 0, 0, &err), RP_DEADLINE_EXCEEDED); /* sends what is collected */
    wait_until(arrived(f) >= ITEMS);
    assert_int_equal(arrived(f), ITEMS);
    for (uint32_t i = 0; i < SHARDS; i++)
        assert_in_range(fakepeer_read(&f->shards.peers[i], &f->shards.peers[i].items), 1, ITEMS - 1);
}

/* ---- life ---- */

/* A shard that is connected and silent does not hold a writer up that has a session elsewhere. */
CASE(a_silent_shard_opens_later)
{
    fakepeer_set(&f->shards.peers[1], &f->shards.peers[1].deaf, true);
    f->writer = must(rp_writer_new(f->client, &column, 1, NULL, 300, &err));
    write_items(f);
    for (uint32_t i = 0; i < SHARDS; i += 2)
        fakepeer_release(&f->shards.peers[i]);
    ok(rp_writer_flush(f->writer, 0, WAIT, &err));
}
