/* Key files and lists of keys: what is written is read back, and everything else is refused with a reason. */
#include <sys/stat.h>

#include "proto/base/endpoint.h"
#include "proto/keys/allow.h"
#include "tests/support/tempdir.h"

static char path[96];

static int setup(void **state)
{
    int status = tempdir_enter(state);
    snprintf(path, sizeof path, "%s/a.key", tempdir);
    return status;
}

static void write_text(const char *name, const char *text, mode_t mode)
{
    file_put(name, text);
    assert_int_equal(chmod(name, mode), 0);
}

TEST(round_trip, setup, tempdir_leave)
{
    struct key key, other, read;
    struct stat info;
    assert_int_equal(key_make(&key, "actor-1", &err), RP_OK);
    assert_int_equal(key_make(&other, "broker", &err), RP_OK);
    assert_memory_not_equal(key.public_key, other.public_key, KEY_BYTES);
    key_add_broker(&key, other.public_key);
    assert_int_equal(key_write(path, &key, false, &err), RP_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(key_read(path, &read, &err), RP_OK);
    assert_memory_equal(&read, &key, sizeof key);
    assert_int_equal(key_write(path, &key, false, &err), RP_ALREADY_EXISTS);
    assert_int_equal(key_write(path, &other, true, &err), RP_OK);
    assert_int_equal(key_read(path, &read, &err), RP_OK);
    assert_string_equal(read.name, "broker");
}

TEST(loose_files_are_refused, setup, tempdir_leave)
{
    static const mode_t loose[] = {0640, 0604, 0660, 0644, 0777, 0610};
    struct key key;
    assert_int_equal(key_make(&key, "a", &err), RP_OK);
    assert_int_equal(key_write(path, &key, true, &err), RP_OK);
    for (size_t i = 0; i < sizeof loose / sizeof loose[0]; i++) {
        chmod(path, loose[i]);
        struct key read;
        assert_int_equal(key_read(path, &read, &err), RP_PERMISSION_DENIED);
        static const uint8_t zero[KEY_BYTES];
        assert_memory_equal(read.secret_key, zero, KEY_BYTES);
    }
    chmod(path, 0400);
    assert_int_equal(key_read(path, &key, &err), RP_OK);
    assert_int_equal(key_read(tempdir, &key, &err), RP_IO);
    assert_int_equal(key_read("/nowhere/a.key", &key, &err), RP_NOT_FOUND);
}

/* Every text but a right one is refused, and no message quotes a secret. */
TEST(damaged_files, setup, tempdir_leave)
{
    struct key key, other;
    char public_key[KEY_TEXT], secret[KEY_TEXT], other_public[KEY_TEXT];
    key_make(&key, "a", &err);
    key_make(&other, "b", &err);
    key_text(key.public_key, public_key);
    key_text(key.secret_key, secret);
    key_text(other.public_key, other_public);
    const char *const texts[] = {
        "",
        "name a\n",
        textf("name a\npublic %s\n", public_key),
        textf("name a\npublic %s\nsecret short\n", public_key),
        textf("name a\npublic %s\nsecret %s\nsecret %s\n", public_key, secret, secret),
        textf("name a/b\npublic %s\nsecret %s\n", public_key, secret),
        textf("name a\npublic %s\nsecret %s\nbroker x\n", public_key, secret),
        textf("name a\npublic %s\nsecret %s extra\n", public_key, secret),
        textf("name a\npublic %s\nsecret %s\ncolour red\n", public_key, secret),
        textf("name a\npublic %s\nsecret %s\n", other_public, secret),
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_text(path, texts[i], 0600);
        assert_int_equal(key_read(path, &other, &err), RP_INVALID_ARGUMENT);
        assert_has_not(err.text, secret);
    }
    write_text(path, textf("# note\n\n name a \r\npublic %s\nsecret %s\n", public_key, secret), 0600);
    ok(key_read(path, &other, &err));
    write_text(path, textf("%020000d", 1), 0600);
    assert_int_equal(key_read(path, &other, &err), RP_IO);
}

TEST(brokers_of_a_key)
{
    struct key key = {0};
    uint8_t brokers[KEY_BROKERS + 2][KEY_BYTES];
    for (uint8_t i = 0; i < KEY_BROKERS + 2; i++) {
        memset(brokers[i], i + 1, KEY_BYTES);
        key_add_broker(&key, brokers[i]);
        assert_memory_equal(key.brokers[0], brokers[i], KEY_BYTES);
    }
    assert_int_equal(key.n_brokers, KEY_BROKERS);
    assert_memory_equal(key.brokers[KEY_BROKERS - 1], brokers[2], KEY_BYTES);
    key_add_broker(&key, brokers[3]); /* known: it moves to the front */
    assert_int_equal(key.n_brokers, KEY_BROKERS);
    assert_memory_equal(key.brokers[0], brokers[3], KEY_BYTES);
    for (uint32_t i = 1; i < KEY_BROKERS - 1; i++)
        assert_memory_equal(key.brokers[i], brokers[KEY_BROKERS + 2 - i], KEY_BYTES);
    assert_memory_equal(key.brokers[KEY_BROKERS - 1], brokers[2], KEY_BYTES);
}

TEST(roles)
{
    char text[64];
    for (uint32_t set = 1; set <= KEY_ANY; set++)
        assert_int_equal(roles_parse(roles_text(set, text, sizeof text)), set);
    static const char *const wrong[] = {"",    "actor+",        "+actor", "actors",
                                        "act", "actor learner", "ADMIN",  "actor++admin"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(roles_parse(wrong[i]), 0);
}

static struct allowed_key make_allowed(const char *name, uint32_t roles)
{
    struct key key;
    struct allowed_key out = {.roles = roles, .quota = {-1, -1, -1, -1, -1}};
    assert_int_equal(key_make(&key, name, NULL), RP_OK);
    memcpy(out.public_key, key.public_key, KEY_BYTES);
    snprintf(out.name, sizeof out.name, "%s", name);
    return out;
}

/* Fails unless the list has exactly these keys. */
static void expect_list(const struct allowed_key *keys, uint32_t n)
{
    struct allow_list list;
    ok(allow_read(tempdir, &list, &err));
    assert_int_equal(list.n, n);
    for (uint32_t i = 0; i < n; i++) {
        char text[KEY_TEXT];
        key_text(keys[i].public_key, text);
        assert_memory_equal(&list.keys[i], &keys[i], sizeof keys[i]);
        assert_ptr_equal(allow_find(&list, text), &list.keys[i]);
    }
    allow_free(&list);
}

TEST(list, setup, tempdir_leave)
{
    expect_list(NULL, 0);
    struct allowed_key keys[] = {make_allowed("a", KEY_ACTOR), make_allowed("b", KEY_ADMIN | KEY_LEARNER)};
    keys[0].quota = (struct quota){3, 1 << 20, 7, 0, 100};
    assert_int_equal(allow_add(tempdir, &keys[0], &err), RP_OK);
    assert_int_equal(allow_add(tempdir, &keys[1], &err), RP_OK);
    assert_int_equal(allow_add(tempdir, &keys[1], &err), RP_ALREADY_EXISTS);
    struct allowed_key same = make_allowed("a", KEY_ADMIN);
    assert_int_equal(allow_add(tempdir, &same, &err), RP_ALREADY_EXISTS);
    expect_list(keys, 2);
    char text[KEY_TEXT];
    key_text(keys[0].public_key, text);
    const struct quota some = {-1, -1, 9, -1, 0};
    keys[0].roles = KEY_OBSERVER;
    keys[1].quota = some;
    assert_int_equal(allow_change(tempdir, "a", KEY_OBSERVER, &(struct quota){-1, -1, -1, -1, -1}, &err), RP_OK);
    assert_int_equal(allow_change(tempdir, "b", 0, &some, &err), RP_OK);
    assert_int_equal(allow_change(tempdir, "c", 0, &some, &err), RP_NOT_FOUND);
    expect_list(keys, 2);
    assert_int_equal(allow_remove(tempdir, text, &err), RP_OK);
    assert_int_equal(allow_remove(tempdir, text, &err), RP_NOT_FOUND);
    assert_int_equal(allow_remove(tempdir, "b", &err), RP_OK);
    expect_list(NULL, 0);
    assert_int_equal(allow_add("/nowhere", &keys[0], &err), RP_NOT_FOUND);
}

/* Comments and the lines of others survive a change; a wrong line is named by its number. */
TEST(list_edited_by_hand, setup, tempdir_leave)
{
    char line[KEY_TEXT];
    const char *file = owned(strdup(tempdir_at(ALLOW_FILE)));
    struct allow_list list;
    struct allowed_key hand = make_allowed("hand", KEY_ACTOR), added = make_allowed("added", KEY_OBSERVER);
    key_text(hand.public_key, line);
    write_text(file, textf("# mine\n\nhand actor %s granted=64MiB", line), 0600);
    assert_int_equal(allow_add(tempdir, &added, &err), RP_OK);
    assert_int_equal(allow_read(tempdir, &list, &err), RP_OK);
    assert_int_equal(list.n, 2);
    assert_int_equal(list.keys[0].quota.granted_bytes, 64 << 20);
    allow_free(&list);
    assert_int_equal(allow_remove(tempdir, "hand", &err), RP_OK);
    assert_memory_equal(file_text(file), "# mine\n", 7);
    const char *const wrong[] = {"x",
                                 "x actor",
                                 "x actor short",
                                 textf("x actor %s sessions", line),
                                 textf("x actor %s sessions=-1", line),
                                 textf("x actor %s size=3", line),
                                 textf("x boss %s", line),
                                 textf("a b actor %s", line)};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        write_text(file, textf("\n%s\n", wrong[i]), 0600);
        assert_int_equal(allow_read(tempdir, &list, &err), RP_INVALID_ARGUMENT);
        assert_has(err.text, "line 2");
    }
    write_text(file, "", 0622);
    assert_int_equal(allow_read(tempdir, &list, &err), RP_PERMISSION_DENIED);
}

/* Root changes the files of a broker that runs as somebody else: it can still read them. */
TEST(files_keep_their_owner, setup, tempdir_leave)
{
    const char *file = tempdir_at(ALLOW_FILE);
    struct stat info;
    struct key key;
    struct allowed_key allowed = make_allowed("a", KEY_ACTOR);
    const uid_t owner = 4321;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chown(tempdir, owner, owner), 0);
    assert_int_equal(allow_add(tempdir, &allowed, &err), RP_OK);
    assert_int_equal(stat(file, &info), 0);
    assert_int_equal(info.st_uid, owner);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(chown(file, 0, owner), 0);
    assert_int_equal(chmod(file, 0640), 0);
    assert_int_equal(allow_remove(tempdir, "a", &err), RP_OK);
    assert_int_equal(stat(file, &info), 0);
    assert_int_equal(info.st_uid, 0);
    assert_int_equal(info.st_gid, owner);
    assert_int_equal(info.st_mode & 07777, 0640);
    assert_int_equal(key_make(&key, "a", &err), RP_OK);
    assert_int_equal(key_write(path, &key, false, &err), RP_OK);
    assert_int_equal(chown(path, owner, owner), 0);
    assert_int_equal(key_write(path, &key, true, &err), RP_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_uid, owner);
}

TEST(loopback)
{
    static const char *const inside[] = {"tcp://127.0.0.1:1", "tcp://127.9.9.9:*", "tcp://localhost:0", "tcp://[::1]:7",
                                         "tcp://lo:5",        "ipc:///tmp/x",      "inproc://x"};
    static const char *const outside[] = {
        "tcp://*:1",    "tcp://0.0.0.0:1", "tcp://[::]:1",         "tcp://10.0.0.1:1",           "tcp://eth0:1",
        "tcp://host:1", "tcp://127.x:1",   "tcp://127.evil.org:1", "tcp://localhost.evil.org:1", "pgm://127.0.0.1:1"};
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++)
        assert_true(endpoint_is_loopback(inside[i]));
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        assert_false(endpoint_is_loopback(outside[i]));
    assert_true(endpoint_is_ipv6("tcp://*:1") && endpoint_is_ipv6("tcp://[::1]:1"));
    assert_false(endpoint_is_ipv6("tcp://0.0.0.0:1") || endpoint_is_ipv6("ipc:///tmp/[x]"));
}

TEST(other_hosts)
{
    static const struct {
        const char *endpoint, *host, *expected;
    } rows[] = {
        {"tcp://*:7600", "10.0.0.5", "tcp://10.0.0.5:7600"},   {"tcp://0.0.0.0:1", "broker.lab", "tcp://broker.lab:1"},
        {"tcp://[::]:1", "[fe80::1]", "tcp://[fe80::1]:1"},    {"tcp://10.0.0.1:1", "1.2.3.4", "tcp://1.2.3.4:1"},
        {"tcp://10.0.0.1:1", "", "tcp://10.0.0.1:1"},          {"tcp://10.0.0.1:1", NULL, "tcp://10.0.0.1:1"},
        {"tcp://127.0.0.1:1", "1.2.3.4", "tcp://127.0.0.1:1"}, {"ipc:///tmp/x:1", "1.2.3.4", "ipc:///tmp/x:1"}};
    char out[64], small[12];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(endpoint_with_host(rows[i].endpoint, rows[i].host, out, sizeof out));
        assert_string_equal(out, rows[i].expected);
    }
    assert_false(endpoint_with_host("tcp://*:7600", "10.0.0.5", small, sizeof small));
    assert_string_equal(small, "");
    static const char *const hosts[] = {"a", "10.0.0.5", "broker-1.lab", "[::1]", "[fe80::1%eth0]"};
    static const char *const others[] = {"",        "tcp://a", "a:1", "::1",     "[]",       "[::1",
                                         "[::1]:7", "a b",     "a/b", "[%eth0]", "[::1%a]b]"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        assert_true(endpoint_is_host(hosts[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(endpoint_is_host(others[i]));
}

TEST(public_keys_do_not_look_like_options)
{
    struct key key;
    char text[KEY_TEXT];
    for (uint32_t i = 0; i < 500; i++) { /* one in 85 would */
        assert_int_equal(key_make(&key, "a", &err), RP_OK);
        key_text(key.public_key, text);
        assert_int_not_equal(text[0], '-');
    }
}
