/* Patterns: which items they make after which steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/log.h"
#include "replay/client.h"
#include "replay/writer.h"
#include "tests/support/fakepeer.h"

static const rp_column columns[] = {
    {.name = "x", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO},
    {.name = "r", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO},
};

struct fixture {
    struct fakepeer peer;
    rp_client *client;
    rp_writer *writer;
    rp_error err;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    rp_writer_options options = {.struct_size = sizeof options, .chunk_length = 2, .keep_alive = 8};
    log_set_level(LEVEL_OFF);
    fakepeer_start(&f->peer);
    f->client = rp_client_connect(f->peer.endpoint, NULL, 5000, &f->err);
    f->writer = rp_writer_new(f->client, columns, 2, &options, 5000, &f->err);
    if (!f->writer)
        fail_msg("%s", f->err.text);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    rp_writer_destroy(&f->writer, 0, NULL);
    rp_client_destroy(&f->client);
    fakepeer_stop(&f->peer);
    free(f);
    return 0;
}

static void add_pattern(struct fixture *f, const char *table, uint32_t steps, const rp_condition *conditions,
                        uint32_t n)
{
    rp_slice slice = {.column = 0, .start = -(int64_t)steps};
    rp_pattern pattern = {
        .table = table, .priority = 1, .slices = &slice, .n_slices = 1, .conditions = conditions, .n_conditions = n};
    if (rp_writer_add_pattern(f->writer, &pattern, &f->err) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void run(struct fixture *f, uint32_t steps)
{
    float x = 1, r = 2;
    const void *values[] = {&x, &r};
    for (uint32_t i = 0; i < steps; i++)
        assert_int_equal(rp_writer_append(f->writer, values, 5000, &f->err), RP_OK);
}

static void end(struct fixture *f)
{
    if (rp_writer_end_episode(f->writer, RP_END_WAIT, 5000, &f->err) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void every_step_as_soon_as_it_fits(void **state)
{
    struct fixture *f = *state;
    add_pattern(f, "a", 3, NULL, 0);
    for (int episode = 0; episode < 2; episode++) {
        run(f, 10);
        end(f);
    }
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(f->peer.lengths[i], 3);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.layouts), 1);
}

static void conditions_choose_the_steps(void **state)
{
    struct fixture *f = *state;
    const rp_condition modulo = {.kind = RP_WHEN_STEP_MODULO, .a = 4, .b = 0};
    const rp_condition late[] = {{.kind = RP_WHEN_MIN_STEPS, .a = 5}, {.kind = RP_WHEN_EVERY, .a = 3}};
    add_pattern(f, "a", 2, &modulo, 1); /* steps 4, 8, 12 */
    add_pattern(f, "b", 1, late, 2);    /* steps 5, 8, 11 */
    run(f, 12);
    end(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.arrived[0]), 3);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.arrived[1]), 3);
    run(f, 5); /* the count starts again: 4, and 5 */
    end(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.arrived[0]), 4);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.arrived[1]), 4);
}

static void the_end_of_an_episode(void **state)
{
    struct fixture *f = *state;
    const rp_condition last = {.kind = RP_WHEN_END_OF_EPISODE};
    const rp_condition last_of_long[] = {last, {.kind = RP_WHEN_MIN_STEPS, .a = 6}};
    add_pattern(f, "a", 1, &last, 1);
    add_pattern(f, "b", 5, last_of_long, 2);
    run(f, 5);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 0);
    end(f);
    run(f, 7);
    end(f);
    end(f); /* an empty episode is none */
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.arrived[0]), 2);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.arrived[1]), 1);
    rp_writer_info info = {.struct_size = sizeof info};
    rp_writer_get_info(f->writer, &info, NULL);
    assert_int_equal(info.episode, 2);
}

static void absent_values_make_no_item(void **state)
{
    struct fixture *f = *state;
    float x = 1;
    const void *values[] = {NULL, &x};
    add_pattern(f, "a", 2, NULL, 0);
    run(f, 3);
    assert_int_equal(rp_writer_append(f->writer, values, 0, &f->err), RP_OK);
    run(f, 3);
    end(f);
    /* After steps 2, 3, 6 and 7. */
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.items), 4);
}

static void a_time_out_takes_no_step(void **state)
{
    struct fixture *f = *state;
    rp_writer_options options = {.struct_size = sizeof options, .max_in_flight_items = 2, .keep_alive = 4};
    rp_writer_destroy(&f->writer, 0, NULL);
    fakepeer_set(&f->peer, &f->peer.hold, true);
    f->writer = rp_writer_new(f->client, columns, 2, &options, 5000, &f->err);
    add_pattern(f, "a", 1, NULL, 0);
    run(f, 2);
    float x = 0;
    const void *values[] = {&x, &x};
    assert_int_equal(rp_writer_append(f->writer, values, 30, &f->err), RP_DEADLINE_EXCEEDED);
    rp_writer_info info = {.struct_size = sizeof info};
    rp_writer_get_info(f->writer, &info, NULL);
    assert_int_equal(info.steps, 2);
    fakepeer_release(&f->peer);
    run(f, 1);
    end(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.resolved[0]), 3);
}

static void bad_patterns_are_refused(void **state)
{
    struct fixture *f = *state;
    rp_slice slice = {.column = 0, .start = -1};
    rp_condition never = {.kind = RP_WHEN_STEP_MODULO, .a = 3, .b = 3};
    rp_pattern pattern = {.table = "a", .priority = 1, .slices = &slice, .n_slices = 1};
    slice.start = -9;
    assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &f->err), RP_INVALID_ARGUMENT);
    assert_string_equal(f->err.text, "a slice starts 9 steps back, but keep_alive is 8");
    slice.start = 0;
    assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &f->err), RP_INVALID_ARGUMENT);
    slice.start = -1;
    slice.column = 2;
    assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &f->err), RP_INVALID_ARGUMENT);
    slice.column = 0;
    slice.count = 2;
    assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &f->err), RP_INVALID_ARGUMENT);
    slice.count = 1;
    pattern.conditions = &never;
    pattern.n_conditions = 1;
    assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &f->err), RP_INVALID_ARGUMENT);
    pattern.n_conditions = 0;
    pattern.table = "c";
    assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &f->err), RP_NOT_FOUND);
    pattern.table = "a";
    pattern.priority = -1;
    assert_int_equal(rp_writer_add_pattern(f->writer, &pattern, &f->err), RP_INVALID_ARGUMENT);
    run(f, 4);
    end(f);
    assert_int_equal(fakepeer_read(&f->peer, &f->peer.messages), 0);
}

#define WITH_PEER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PEER(every_step_as_soon_as_it_fits), WITH_PEER(conditions_choose_the_steps),
        WITH_PEER(the_end_of_an_episode),         WITH_PEER(absent_values_make_no_item),
        WITH_PEER(a_time_out_takes_no_step),      WITH_PEER(bad_patterns_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
