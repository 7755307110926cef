/* The ZAP handler: a good request gets the number of its identity, everything else is refused, whatever its frames are. */

#include "broker/peer/peers.h"
#include "tests/support/embed.h"
#include "tests/support/tempdir.h"

#define FRAMES_MOST 12u

struct scene {
    struct embed embed;
    struct key key, observer;
    void *ask;
};

static void scene_start(struct scene *self)
{
    struct allowed_key allowed = {.name = "a", .roles = KEY_ACTOR, .quota = {-1, -1, -1, -1, -1}};
    assert_int_equal(tempdir_enter(NULL), 0);
    assert_int_equal(key_make(&self->key, "a", NULL), RP_OK);
    memcpy(allowed.public_key, self->key.public_key, KEY_BYTES);
    assert_int_equal(allow_add(tempdir, &allowed, NULL), RP_OK);
    assert_int_equal(key_make(&self->observer, "o", NULL), RP_OK);
    allowed = (struct allowed_key){.name = "o", .roles = KEY_OBSERVER | KEY_LEARNER, .quota = {-1, -1, -1, -1, -1}};
    memcpy(allowed.public_key, self->observer.public_key, KEY_BYTES);
    assert_int_equal(allow_add(tempdir, &allowed, NULL), RP_OK);
    embed_start(&self->embed, "  - {name: t, max_size: 10}\n",
                textf("service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"
                      "security: {mode: curve, keys: %s}\n",
                      tempdir));
    self->ask = zmq_socket(self->embed.context, ZMQ_REQ);
    assert_int_equal(zmq_connect(self->ask, "inproc://zeromq.zap.01"), 0);
}

static void scene_stop(struct scene *self)
{
    int linger = 0;
    zmq_setsockopt(self->ask, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(self->ask);
    embed_stop(&self->embed);
    assert_int_equal(tempdir_leave(NULL), 0);
}

struct frame {
    const void *data;
    size_t size;
};

static struct frame text(const char *data)
{
    return (struct frame){data, strlen(data)};
}

/* Asks, and returns the status code; user_id: the fifth frame of the answer. */
static int ask(struct scene *self, const struct frame *frames, uint32_t n, char user_id[32])
{
    char parts[6][32] = {{0}};
    for (uint32_t i = 0; i < n; i++)
        assert_true(zmq_send(self->ask, frames[i].data, frames[i].size, i + 1 < n ? ZMQ_SNDMORE : 0) >= 0);
    zmq_pollitem_t item = {self->ask, 0, ZMQ_POLLIN, 0};
    for (uint32_t ms = 0; zmq_poll(&item, 1, 1) == 0 && ms < WAIT; ms++)
        broker_turn(self->embed.broker, 0);
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(zmq_recv(self->ask, parts[i], sizeof parts[i] - 1, ZMQ_DONTWAIT) >= 0);
        int more;
        zmq_getsockopt(self->ask, ZMQ_RCVMORE, &more, &(size_t){sizeof more});
        assert_int_equal(more, i < 5);
    }
    assert_string_equal(parts[0], "1.0");
    if (n > 1 && frames[1].size < sizeof parts[1])
        assert_memory_equal(parts[1], frames[1].data, frames[1].size);
    snprintf(user_id, 32, "%s", parts[4]);
    return atoi(parts[2]);
}

TEST(requests)
{
    struct scene scene = {0};
    char user[32];
    uint8_t other[KEY_BYTES] = {1};
    scene_start(&scene);
    const struct frame good[FRAMES_MOST] = {text("1.0"),
                                            text("id"),
                                            text(ZAP_DOMAIN),
                                            text("1.2.3.4"),
                                            text(""),
                                            text("CURVE"),
                                            {scene.key.public_key, KEY_BYTES},
                                            text("x"),
                                            text("y"),
                                            text("z"),
                                            text("z"),
                                            text("z")};
    assert_int_equal(ask(&scene, good, 7, user), 200);
    assert_string_equal(user, "0");
    for (uint32_t n = 1; n <= FRAMES_MOST; n++) /* too few and too many frames */
        if (n != 7) {
            assert_int_equal(ask(&scene, good, n, user), 400);
            assert_string_equal(user, "");
        }
    const struct {
        uint32_t at;
        struct frame frame;
    } wrong[] = {{0, text("2.0")},       {0, text("")},     {2, text("")},
                 {2, text("other")},     {5, text("NULL")}, {5, text("PLAIN")},
                 {5, text("curve")},     {6, text("")},     {6, {scene.key.public_key, KEY_BYTES - 1}},
                 {6, {other, KEY_BYTES}}};
    for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct frame frames[7];
        memcpy(frames, good, sizeof frames);
        frames[wrong[i].at] = wrong[i].frame;
        assert_int_equal(ask(&scene, frames, 7, user), 400);
        assert_string_equal(user, "");
    }
    assert_int_equal(ask(&scene, good, 7, user), 200);
    /* At the ingest endpoint an actor comes in, an observer does not. */
    for (int observer = 0; observer < 2; observer++) {
        struct frame frames[7];
        memcpy(frames, good, sizeof frames);
        if (observer)
            frames[6].data = scene.observer.public_key;
        assert_int_equal(ask(&scene, frames, 7, user), 200);
        frames[2] = text(ZAP_DOMAIN_INGEST);
        assert_int_equal(ask(&scene, frames, 7, user), observer ? 400 : 200);
    }
    assert_int_equal(scene.embed.broker->peers.counters.messages_in, 0);
    scene_stop(&scene);
}
