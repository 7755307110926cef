/* Replies that clients may ask for again. */

#include "broker/loop/loop.h"
#include "broker/peer/kept.h"
#include "tests/support/test.h"

static uint32_t reported;

static void report(struct recorder *to, uint64_t client, uint64_t id, const void *frame, size_t size)
{
    (void)to, (void)client, (void)id, (void)frame, (void)size;
    reported++;
}

static struct effects effects = {.reply = report};
static struct loop loop = {.effects = &effects};

static void add(struct kept_replies *kept, uint64_t client, uint64_t id, size_t size)
{
    uint8_t *frame = calloc(1, size);
    memcpy(frame, &id, sizeof id);
    kept_replies_add(kept, &loop, &(struct kept_reply){client, id, frame, size});
    free(frame);
}

TEST(a_retry_finds_its_reply_and_nobody_elses)
{
    uint64_t account = 5;
    struct kept_replies kept = {.account = &account};
    kept_list_init(&kept.list);
    reported = 0;
    assert_null(kept_replies_find(&kept, 1, 7));
    add(&kept, 1, 7, 20);
    add(&kept, 2, 7, 30);
    add(&kept, 0, 8, 20);                    /* anonymous */
    add(&kept, 1, 9, KEPT_REPLY_BYTES + 1u); /* too large */
    assert_int_equal(reported, 2);
    assert_int_equal(account, 55);
    assert_int_equal(kept_replies_find(&kept, 1, 7)->size, 20);
    assert_int_equal(kept_replies_find(&kept, 2, 7)->size, 30);
    assert_null(kept_replies_find(&kept, 0, 8));
    assert_null(kept_replies_find(&kept, 1, 9));
    kept_replies_fini(&kept);
    assert_null(kept_replies_find(&kept, 1, 7));
    assert_int_equal(account, 5);
}

struct model {
    uint64_t last[64]; /* newest id of each client */
    uint64_t seen[64]; /* by kept_replies_each */
    uint64_t n;
};

static void check_order(void *ctx, const struct kept_reply *reply)
{
    struct model *model = ctx;
    uint64_t in_frame;
    memcpy(&in_frame, reply->frame, sizeof in_frame);
    assert_int_equal(in_frame, reply->id);
    assert_true(reply->id > model->seen[reply->client]);
    model->seen[reply->client] = reply->id;
    model->n++;
}

/* Few clients: the last of each. Too many: at least a fair part of each, and no more than there are places. */
TEST(replies_of_many_clients)
{
    for (uint32_t clients = 1; clients < 64; clients += 7) {
        struct kept_replies kept = {0};
        kept_list_init(&kept.list);
        struct model model = {0};
        uint64_t random = 1, total = 40000;
        for (uint64_t i = 0; i < total; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
            uint64_t client = 1 + (random >> 40) % clients;
            add(&kept, client, ++model.last[client], 16);
        }
        kept_replies_each(&kept, check_order, &model);
        assert_int_equal(model.n, kept.list.count);
        assert_true(model.n <= KEPT_REPLIES);
        for (uint64_t client = 1; client <= clients; client++) {
            assert_int_equal(model.seen[client], model.last[client]);
            uint64_t sure = clients * KEPT_OF_CLIENT <= KEPT_REPLIES ? KEPT_OF_CLIENT : KEPT_FAIR;
            for (uint64_t back = 0; back < sure && back < model.last[client]; back++)
                assert_non_null(kept_replies_find(&kept, client, model.last[client] - back));
            assert_true(model.last[client] <= KEPT_OF_CLIENT ||
                        !kept_replies_find(&kept, client, model.last[client] - KEPT_OF_CLIENT));
        }
        kept_replies_fini(&kept);
    }
}

/* However many replies busy clients get, those of a quiet client stay until there are too many clients. */
TEST(a_busy_client_pushes_out_its_own_replies)
{
    struct kept_replies kept = {0};
    kept_list_init(&kept.list);
    add(&kept, 1, 7, 20);
    for (uint64_t id = 1; id <= 3 * (uint64_t)KEPT_REPLIES; id++)
        add(&kept, 2 + id % 40, id, 16);
    assert_non_null(kept_replies_find(&kept, 1, 7));
    for (uint64_t client = 100; client < 100 + KEPT_REPLIES; client++)
        add(&kept, client, 1, 16);
    assert_null(kept_replies_find(&kept, 1, 7));
    assert_non_null(kept_replies_find(&kept, 99 + KEPT_REPLIES, 1));
    kept_replies_fini(&kept);
}
