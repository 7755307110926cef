/* A client of several shards: finding them all, and refusing those that do not belong together. The shards are scripted, so that
 * they can say what no real broker would. */

#include "agent/client/conn/client.h"
#include "proto/base/clock.h"
#include "tests/support/fakepeer.h"

#define SHARDS FAKESHARDS
#define SETTINGS UINT64_C(77)

struct fixture {
    struct fakeshards shards;
    rp_client *client;
    int64_t start_ns;
};

static void set_up(struct fixture *f)
{
    f->start_ns = clock_ns();
    fakeshards_start(&f->shards, SETTINGS);
}

static void tear_down(struct fixture *f)
{
    rp_client_destroy(&f->client);
    fakeshards_stop(&f->shards);
}

static rp_client *connect_to(struct fixture *f, const char *endpoints)
{
    f->client = must(rp_client_connect(endpoints, NULL, WAIT, &err));
    return f->client;
}

static uint32_t connected(rp_client *client)
{
    rp_client_info info = {.struct_size = sizeof info};
    assert_int_equal(rp_client_get_info(client, &info, NULL), RP_OK);
    return info.connected_shards;
}

/* A shard that takes more than a second to answer may come after the connect, and reconnect. */
static void check_complete(rp_client *client, struct fixture *f)
{
    rp_client_info info = {.struct_size = sizeof info};
    assert_int_equal(client_shards(client), SHARDS);
    wait_until(connected(client) == SHARDS);
    assert_int_equal(rp_client_get_info(client, &info, NULL), RP_OK);
    assert_int_equal(info.shards, SHARDS);
    if (clock_ns() - f->start_ns < NS_PER_S)
        assert_int_equal(info.reconnects, 0);
    assert_string_equal(info.endpoint, f->shards.peers[0].endpoint);
    for (uint32_t i = 0; i < SHARDS; i++) {
        struct conn *conn = client_shard(client, i);
        struct conn_hello *hello = conn_hello_ref(conn);
        assert_int_equal(conn_shard(conn), i);
        assert_int_equal(hello->says->shard, i);
        assert_string_equal(conn_endpoint(conn), f->shards.peers[i].endpoint);
        assert_int_equal(conn_client_id(conn), info.id);
        assert_int_equal(client_shard_of(client, (uint64_t)i << WIRE_KEY_SHARD_SHIFT | 5), i);
        conn_hello_unref(&hello);
    }
    assert_int_equal(client_shard_of(client, (uint64_t)SHARDS << WIRE_KEY_SHARD_SHIFT), 0);
}

FIXTURE(struct fixture, set_up, tear_down)

/* Any one; or several out of order, one twice, one not at all. */
CASE(any_shard)
{
    const struct fakepeer *peers = f->shards.peers;
    check_complete(connect_to(f, peers[1].endpoint), f);
    rp_client_destroy(&f->client);
    check_complete(connect_to(f, textf("%s, %s,%s", peers[2].endpoint, peers[1].endpoint, peers[2].endpoint)), f);
}

CASE(any_host)
{
    char names[SHARDS][64], *list[SHARDS];
    for (uint32_t i = 0; i < SHARDS; i++) {
        snprintf(names[i], sizeof names[i], "tcp://*%s", strrchr(f->shards.peers[i].endpoint, ':'));
        list[i] = names[i];
    }
    for (uint32_t i = 0; i < SHARDS; i++)
        fakepeer_join(&f->shards.peers[i], i, list, SHARDS, SETTINGS);
    check_complete(connect_to(f, f->shards.peers[0].endpoint), f);
    rp_client_destroy(&f->client);
    for (uint32_t i = 0; i < SHARDS; i++)
        fakepeer_join(&f->shards.peers[i], i, NULL, 0, 0);
}

/* Connects until it is refused: a client gets along without a shard that takes long to answer. */
static int32_t refuse(char *endpoints)
{
    rp_client *client;
    wait_until(!(client = rp_client_connect(endpoints, NULL, WAIT, &err)) || (rp_client_destroy(&client), false));
    return err.status;
}

/* A shard with other settings, with another number, of another number of shards, and of none. */
CASE(shards_that_do_not_belong_together)
{
    const struct {
        uint32_t peer, shard, count;
        uint64_t settings;
        uint32_t asked;
        int32_t status;
    } rows[] = {{2, 2, SHARDS, SETTINGS + 1, 0, RP_FAILED_PRECONDITION},
                {2, 1, SHARDS, SETTINGS, 0, RP_FAILED_PRECONDITION},
                {2, SHARDS, SHARDS, SETTINGS, 2, RP_BAD_MESSAGE},
                {1, 1, SHARDS - 1, SETTINGS, 0, RP_FAILED_PRECONDITION},
                {1, 0, 0, 0, 0, RP_FAILED_PRECONDITION}};
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fakepeer *peer = &f->shards.peers[rows[i].peer];
        fakepeer_join(peer, rows[i].shard, rows[i].count ? f->shards.list : NULL, rows[i].count, rows[i].settings);
        assert_int_equal(refuse(f->shards.peers[rows[i].asked].endpoint), rows[i].status);
        if (i == 0) {
            assert_has(err.text, "shard 2");
            assert_has(err.text, peer->endpoint);
        }
        fakepeer_join(peer, rows[i].peer, f->shards.list, SHARDS, SETTINGS);
    }
}

/* A shard that does not answer gets the hello of another, and the call does not wait for it for ever. */
CASE(silent_shard)
{
    char text[300];
    rp_client_info info = {.struct_size = sizeof info};
    fakepeer_set(&f->shards.peers[2], &f->shards.peers[2].deaf, true);
    rp_client *client = connect_to(f, f->shards.peers[1].endpoint);
    wait_until(connected(client) == SHARDS - 1);
    assert_int_equal(rp_client_get_info(client, &info, NULL), RP_OK);
    assert_int_equal(info.shards, SHARDS);
    assert_int_equal(info.state, RP_CLIENT_CONNECTED);
    struct conn_hello *hello = conn_hello_ref(client_shard(client, 2));
    assert_int_equal(conn_instance(client_shard(client, 2)), 0);
    assert_int_equal(hello->says->n_tables, FAKEPEER_TABLES);
    assert_int_equal(conn_hello_table(hello, "b", NULL, NULL), RP_OK);
    conn_hello_unref(&hello);
    client_describe(client, text, sizeof text);
    assert_non_null(strstr(text, "shard 2 at "));
    assert_null(strstr(text, "shard 1"));
}

CASE(silent_shard_0)
{
    fakepeer_set(&f->shards.peers[0], &f->shards.peers[0].deaf, true);
    must_fail_new(rp_client_connect(f->shards.peers[1].endpoint, NULL, 1000, &err), RP_UNAVAILABLE, NULL);
    if (clock_ns() - f->start_ns < 2 * NS_PER_S) /* otherwise the named one may have been silent, too */
        assert_non_null(strstr(err.text, "shard 0"));
    /* Those who only look get along without it. */
    f->client = must(client_connect_any(f->shards.peers[1].endpoint, NULL, WAIT, &err));
    rp_client_info info = {.struct_size = sizeof info};
    wait_until(connected(f->client) == SHARDS - 1);
    assert_int_equal(rp_client_get_info(f->client, &info, NULL), RP_OK);
    assert_int_equal(info.state, RP_CLIENT_CONNECTING);
    assert_string_equal(rp_client_table(f->client, 1), "b");
}

static rp_status join(struct conn_shards *set, uint32_t shard, uint64_t settings)
{
    Replay__HelloReply says = {.shard = shard, .settings = settings, .n_shards = 2};
    struct conn_hello hello = {.says = &says};
    return conn_shards_join(set, "tcp://somewhere", &hello, &shard, NULL);
}

/* Settings can be changed by a restart of all shards, and not while one of them goes on with the old. */
TEST(new_settings)
{
    struct conn_shards set = {.n = 0};
    pthread_mutex_init(&set.mutex, NULL);
    assert_int_equal(join(&set, 0, 1), RP_OK);
    assert_int_equal(join(&set, 1, 1), RP_OK);
    conn_shards_leave(&set);
    assert_int_equal(join(&set, 1, 2), RP_FAILED_PRECONDITION);
    conn_shards_leave(&set);
    assert_int_equal(join(&set, 1, 2), RP_OK);
    assert_int_equal(join(&set, 0, 1), RP_FAILED_PRECONDITION);
    assert_int_equal(join(&set, 0, 2), RP_OK);
    Replay__HelloReply says = {.instance = 1};
    struct conn_hello alone = {.says = &says};
    uint32_t shard = 0;
    assert_int_equal(conn_shards_join(&set, "tcp://somewhere", &alone, &shard, NULL), RP_FAILED_PRECONDITION);
    pthread_mutex_destroy(&set.mutex);
}

/* Two brokers that are not shards of one. */
CASE(strangers)
{
    char names[256];
    snprintf(names, sizeof names, "%s,%s", f->shards.peers[0].endpoint, f->shards.peers[1].endpoint);
    fakepeer_join(&f->shards.peers[1], 0, f->shards.list, SHARDS, SETTINGS);
    assert_int_equal(refuse(names), RP_FAILED_PRECONDITION);
    fakepeer_join(&f->shards.peers[0], 0, NULL, 0, 0);
    fakepeer_join(&f->shards.peers[1], 0, NULL, 0, 0);
    assert_int_equal(refuse(names), RP_FAILED_PRECONDITION);
}

CASE(bad_names)
{
    char names[256];
    snprintf(names, sizeof names, "%s,", f->shards.peers[0].endpoint);
    assert_int_equal(refuse(names), RP_INVALID_ARGUMENT);
    snprintf(names, sizeof names, "%s,no-endpoint", f->shards.peers[0].endpoint);
    assert_int_equal(refuse(names), RP_INVALID_ARGUMENT);
}
