#include <stdint.h>

#include <stdlib.h>
#include <string.h>

#include "broker/loop/loop.h"
#include "broker/peer/kept_replies.h"
#include "tests/support/test.h"

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

TEST(a_retry_finds_its_reply_and_nobody_elses)
{
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

TEST(the_oldest_replies_go_first)
{
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

static uint8_t permit[] = {0x08, 1, 0xA2, 0x02, 0x02, 0x08, 0x05}; /* Reply {version: 1, permit: {granted: 5}} */

static void add_permit(struct kept_replies *kept, struct loop *loop, uint64_t client, uint64_t id)
{
    kept_replies_add(kept, loop, &(struct kept_reply){client, id, permit, sizeof permit});
}

/* However many permits a client gets, a counter's reply stays, and so do the permits of others. */
TEST(permits_push_out_permits_of_their_client)
{
    struct effects effects = {.reply = report};
    struct loop loop = {.effects = &effects};
    struct kept_replies kept = {0};
    const uint64_t n = 3 * KEPT;
    reported = 0;
    add(&kept, &loop, 1, 7, 20);
    add_permit(&kept, &loop, 1, 8);
    for (uint64_t id = 1; id <= n; id++)
        add_permit(&kept, &loop, 2, id);
    assert_non_null(kept_replies_find(&kept, 1, 7));
    assert_non_null(kept_replies_find(&kept, 1, 8));
    assert_null(kept_replies_find(&kept, 2, n - KEPT_OF_CLIENT));
    assert_int_equal(kept_replies_find(&kept, 2, n - KEPT_OF_CLIENT + 1)->size, sizeof permit);
    assert_int_equal(kept.bytes, 20 + (KEPT_OF_CLIENT + 1) * sizeof permit);
    assert_int_equal(reported, n + 2);
    kept_replies_fini(&kept);
}

struct model {
    uint64_t last[64]; /* newest id of each client */
    uint64_t seen[64]; /* by kept_replies_each */
    uint64_t n;
};

static void check_order(void *ctx, const struct kept_reply *reply)
{
    struct model *model = ctx;
    assert_true(reply->id > model->seen[reply->client]);
    model->seen[reply->client] = reply->id;
    model->n++;
}

/* Few clients: the last of each. Too many: the newest of each, and no more than there are places. */
TEST(permits_of_many_clients)
{
    struct effects effects = {.reply = report};
    struct loop loop = {.effects = &effects};
    for (uint32_t clients = 1; clients < 64; clients += 7) {
        struct kept_replies kept = {0};
        struct model model = {0};
        uint64_t random = 1, total = 20000;
        reported = 0;
        for (uint64_t i = 0; i < total; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
            uint64_t client = 1 + (random >> 40) % clients;
            add_permit(&kept, &loop, client, ++model.last[client]);
        }
        kept_replies_each(&kept, check_order, &model);
        assert_int_equal(reported, total);
        assert_true(model.n <= KEPT);
        for (uint64_t client = 1; client <= clients; client++) {
            assert_int_equal(model.seen[client], model.last[client]);
            uint64_t sure = clients * KEPT_OF_CLIENT <= KEPT ? KEPT_OF_CLIENT : 1;
            for (uint64_t back = 0; back < sure && back < model.last[client]; back++)
                assert_non_null(kept_replies_find(&kept, client, model.last[client] - back));
            assert_true(model.last[client] <= KEPT_OF_CLIENT ||
                        !kept_replies_find(&kept, client, model.last[client] - KEPT_OF_CLIENT));
        }
        kept_replies_fini(&kept);
    }
}

TEST(a_reservation_gives_two_blocks)
{
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
