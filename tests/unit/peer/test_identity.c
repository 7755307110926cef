/* How the broker notices that the list of keys has changed, and what it does on a disk so slow that each look takes long. */

#include <sys/stat.h>
#include <time.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "tests/support/tempdir.h"

/* A clock that moves by itself each time it is read, as on a slow disk. */
struct slow_clock {
    int64_t now_ns, step_ns;
};

struct scene {
    char list[96];
    struct slow_clock slow;
    struct loop loop;
    struct broker_config config;
    struct peers peers;
    struct key keys[2];
};

static int64_t slow_now(void *ctx)
{
    struct slow_clock *self = ctx;
    return self->now_ns += self->step_ns;
}

static void write_list(const struct scene *self, const char *path, const char *roles, mode_t mode)
{
    char text[KEY_TEXT];
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    key_text(self->keys[0].public_key, text);
    fprintf(file, "a %s %s\n", roles, text);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void replace_list(const struct scene *self, const char *roles, mode_t mode)
{
    char path[112];
    snprintf(path, sizeof path, "%s.new", self->list);
    write_list(self, path, roles, mode);
    assert_int_equal(rename(path, self->list), 0);
}

static void set_up(struct scene *self)
{
    assert_int_equal(tempdir_enter(NULL), 0);
    snprintf(self->list, sizeof self->list, "%s/%s", tempdir, ALLOW_FILE);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(key_make(&self->keys[i], "a", NULL), RP_OK);
    replace_list(self, "actor", 0600);
    self->config.keys_dir = tempdir;
    self->config.security_mode = SECURITY_CURVE;
    self->slow.now_ns = 1000 * NS_PER_S;
    self->loop.clock = (struct clock){slow_now, &self->slow};
    peers_init(&self->peers, &self->loop, &self->config, NULL);
    ok(identities_open(&self->peers, &err));
}

static void tear_down(struct scene *self)
{
    identities_close(&self->peers.identities);
    commit_fini(&self->peers.commit);
    assert_int_equal(tempdir_leave(NULL), 0);
}

FIXTURE(struct scene, set_up, tear_down)

static uint32_t roles_now(struct scene *self)
{
    return identity_find(&self->peers.identities, self->keys[0].public_key)->roles;
}

static uint32_t look(struct scene *self)
{
    identities_look(&self->peers);
    return roles_now(self);
}

/* The file was changed in its place: the old roles count still, unless this process itself was held up for too long. */
static void check_unchanged(struct scene *self, uint32_t roles, int64_t within_ms)
{
    struct stat info;
    struct timespec now;
    uint32_t found = look(self);
    assert_int_equal(stat(self->list, &info), 0);
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t passed_ms = (now.tv_sec - info.st_ctim.tv_sec) * 1000 + (now.tv_nsec - info.st_ctim.tv_nsec) / 1000000;
    if (passed_ms < within_ms)
        assert_int_equal(found, roles);
}

CASE(a_file_that_is_replaced_counts_at_once)
{
    assert_int_equal(look(f), KEY_ACTOR);
    replace_list(f, "learner", 0600);
    assert_int_equal(look(f), KEY_LEARNER);
    unlink(f->list);
    assert_int_equal(look(f), 0);
    replace_list(f, "admin+observer", 0600);
    assert_int_equal(look(f), KEY_ADMIN | KEY_OBSERVER);
    replace_list(f, "boss", 0600);
    assert_int_equal(look(f), 0);
    assert_null(identity_find(&f->peers.identities, f->keys[1].public_key));
}

CASE(a_file_that_is_written_in_its_place_counts_after_a_pause)
{
    FILE *file = fopen(f->list, "w"); /* empty */
    assert_non_null(file);
    check_unchanged(f, KEY_ACTOR, 250);
    fclose(file);
    write_list(f, f->list, "learner", 0600);
    check_unchanged(f, KEY_ACTOR, 15);
    usleep(30000);
    assert_int_equal(look(f), KEY_LEARNER);
    chmod(f->list, 0606);
    usleep(30000);
    assert_int_equal(look(f), 0);
    chmod(f->list, 0600);
    usleep(30000);
    assert_int_equal(look(f), KEY_LEARNER);
    assert_int_equal(truncate(f->list, 0), 0);
    usleep(30000);
    check_unchanged(f, KEY_LEARNER, 250); /* an editor may be about to write */
    usleep(300000);
    assert_int_equal(look(f), 0);
}

/* Each look takes 10 ms: the next is at least 200 ms away, however often somebody asks. */
CASE(a_slow_disk_is_looked_at_less_often)
{
    f->slow.step_ns = 10 * NS_PER_MS;
    look(f);
    replace_list(f, "observer", 0600);
    assert_int_equal(look(f), KEY_OBSERVER); /* a single long look means nothing */
    f->slow.step_ns = 0;
    replace_list(f, "learner", 0600);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(look(f), KEY_OBSERVER);
        f->slow.now_ns += 15 * NS_PER_MS;
    }
    f->slow.now_ns += 60 * NS_PER_MS;
    assert_int_equal(look(f), KEY_LEARNER);
}

/* Nobody can choose a client id that the broker takes for that of another key. */
CASE(clients_of_two_keys_have_different_numbers)
{
    struct identity *a = identity_by_key(&f->peers.identities, f->keys[0].public_key);
    struct identity *b = identity_by_key(&f->peers.identities, f->keys[1].public_key);
    uint64_t mixed, salts[2];
    memcpy(&salts[0], a->public_key, 8);
    memcpy(&salts[1], b->public_key, 8);
    for (uint64_t client = 1; client < 1000; client++) {
        mixed = client ^ salts[0] ^ salts[1];
        assert_int_equal(identity_client(a, client), identity_client(a, client));
        assert_int_not_equal(identity_client(a, client), identity_client(b, client));
        assert_int_not_equal(identity_client(a, client), identity_client(b, mixed));
        assert_int_equal(identity_client(&f->peers.identities.anyone, client), client);
    }
}
