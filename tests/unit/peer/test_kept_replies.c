#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "broker/peer/kept_replies.h"

#define KEPT 4096u

static uint32_t reported;

static void report(struct effects *self, uint64_t client, uint64_t id, const void *frame, size_t size)
{
    (void)self, (void)client, (void)id, (void)frame, (void)size;
    reported++;
}

static void add(struct kept_replies *kept, struct loop *loop, uint64_t client, uint64_t id, size_t size)
{
    uint8_t *frame = calloc(1, size);
    memcpy(frame, &id, sizeof id);
    kept_replies_add(kept, loop, &(struct kept_reply){client, id, frame, size});
    free(frame);
}

static void a_retry_finds_its_reply_and_nobody_elses(void **state)
{
    (void)state;
    struct effects effects = {.reply = report};
    struct loop loop = {.effects = &effects};
    struct kept_replies kept = {0};
    assert_null(kept_replies_find(&kept, 1, 7));
    reported = 0;
    add(&kept, &loop, 1, 7, 20);
    add(&kept, &loop, 2, 7, 30);
    add(&kept, &loop, 0, 8, 20);                    /* anonymous */
    add(&kept, &loop, 1, 9, KEPT_REPLY_BYTES + 1u); /* too large */
    assert_int_equal(reported, 2);
    assert_int_equal(kept_replies_find(&kept, 1, 7)->size, 20);
    assert_int_equal(kept_replies_find(&kept, 2, 7)->size, 30);
    assert_null(kept_replies_find(&kept, 0, 8));
    assert_null(kept_replies_find(&kept, 1, 9));
    kept_replies_fini(&kept);
    assert_null(kept_replies_find(&kept, 1, 7));
}

static void in_order(void *ctx, const struct kept_reply *reply)
{
    uint64_t *next = ctx, in_frame;
    memcpy(&in_frame, reply->frame, sizeof in_frame);
    assert_int_equal(reply->id, *next);
    assert_int_equal(in_frame, *next);
    (*next)++;
}

static void the_oldest_replies_go_first(void **state)
{
    (void)state;
    struct loop loop = {0};
    struct kept_replies kept = {0};
    for (uint64_t id = 1; id <= KEPT + 10; id++)
        add(&kept, &loop, 1, id, 16);
    assert_null(kept_replies_find(&kept, 1, 10));
    assert_non_null(kept_replies_find(&kept, 1, 11));
    uint64_t next = 11;
    kept_replies_each(&kept, in_order, &next);
    assert_int_equal(next, KEPT + 11);
    kept_replies_fini(&kept);
}

/* However many permits there are, a counter's reply stays. */
static void permits_push_out_permits_alone(void **state)
{
    (void)state;
    struct loop loop = {0};
    struct kept_replies kept = {0};
    uint8_t permit[] = {0x08, 1, 0xA2, 0x02, 0x02, 0x08, 0x05}; /* Reply {version: 1, permit: {granted: 5}} */
    add(&kept, &loop, 1, 7, 20);
    for (uint64_t id = 1; id <= KEPT + 10; id++)
        kept_replies_add(&kept, &loop, &(struct kept_reply){2, id, permit, sizeof permit});
    assert_non_null(kept_replies_find(&kept, 1, 7));
    assert_null(kept_replies_find(&kept, 2, 10));
    assert_int_equal(kept_replies_find(&kept, 2, 11)->size, sizeof permit);
    assert_int_equal(kept.bytes, 20 + KEPT * sizeof permit);
    kept_replies_fini(&kept);
}

static void a_reservation_gives_two_blocks(void **state)
{
    (void)state;
    struct kept_replies kept = {0};
    assert_null(kept_replies_spare(&kept, 10));
    assert_true(kept_replies_reserve(&kept, KEPT_OTHERS));
    assert_null(kept_replies_spare(&kept, KEPT_REPLY_BYTES + 1u));
    uint8_t *blocks[2] = {kept_replies_spare(&kept, 10), kept_replies_spare(&kept, KEPT_REPLY_BYTES)};
    assert_non_null(blocks[0]);
    assert_non_null(blocks[1]);
    assert_null(kept_replies_spare(&kept, 10));
    assert_true(kept_replies_reserve(&kept, KEPT_OTHERS));
    free(blocks[0]);
    free(blocks[1]);
    kept_replies_fini(&kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_retry_finds_its_reply_and_nobody_elses),
        cmocka_unit_test(the_oldest_replies_go_first),
        cmocka_unit_test(permits_push_out_permits_alone),
        cmocka_unit_test(a_reservation_gives_two_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
