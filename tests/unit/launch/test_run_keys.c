/* The keys of a run: made once, used again by a later leg, and replaced when their file is gone. */

#include <sys/stat.h>

#include "agent/launch/process/run_keys.h"
#include "proto/keys/allow.h"
#include "tests/support/tempdir.h"

static const struct run_config curve = {.broker.security_mode = SECURITY_CURVE};

/* Opens the run's keys, and checks that the list lets in exactly one key for each role: the one of the file. */
static void open_and_check(uint8_t actor[KEY_BYTES])
{
    struct run_keys keys;
    struct allow_list list;
    assert_int_equal(run_keys_open(&keys, &curve, tempdir, "", &err), RP_OK);
    assert_int_equal(allow_read(keys.list, &list, &err), RP_OK);
    assert_int_equal(list.n, 3);
    static const char *const roles[] = {"actor", "learner", "admin"};
    for (int i = 0; i < 3; i++) {
        char path[1100];
        struct key key;
        assert_int_equal(key_read(run_keys_file(&keys, roles[i], path, sizeof path), &key, &err), RP_OK);
        const struct allowed_key *allowed = allow_find(&list, roles[i]);
        assert_non_null(allowed);
        assert_int_equal(allowed->roles, roles_parse(roles[i]));
        assert_memory_equal(allowed->public_key, key.public_key, KEY_BYTES);
        if (i == 0)
            memcpy(actor, key.public_key, KEY_BYTES);
        key_wipe(&key);
    }
    allow_free(&list);
    run_keys_close(&keys);
}

TEST(keys_are_used_again, tempdir_enter, tempdir_leave)
{
    uint8_t first[KEY_BYTES], second[KEY_BYTES];
    open_and_check(first);
    open_and_check(second);
    assert_memory_equal(first, second, KEY_BYTES);
    assert_int_equal(unlink(tempdir_at("keys/actor.key")), 0); /* a lost file gets another key */
    open_and_check(second);
    assert_memory_not_equal(first, second, KEY_BYTES);
}

/* Each host has a key of its own for each role; one that was revoked stays so until its file is removed. */
TEST(keys_of_hosts, tempdir_enter, tempdir_leave)
{
    static const char *const hosts[] = {"cpu1", "me@cpu1", "a-rack-with-a-name-that-is-much-too-long-for-keys.node-1",
                                        "a-rack-with-a-name-that-is-much-too-long-for-keys.node-2"};
    struct run_keys keys;
    struct host_key key, again;
    struct allow_list list;
    assert_int_equal(run_keys_open(&keys, &curve, tempdir, "", &err), RP_OK);
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        assert_int_equal(run_keys_of_host(&keys, hosts[i], "actor", &key, &err), RP_OK);
        assert_int_equal(run_keys_of_host(&keys, hosts[i], "learner", &again, &err), RP_OK);
    }
    assert_int_equal(allow_read(keys.list, &list, &err), RP_OK);
    assert_int_equal(list.n, 3 + 8);
    assert_int_equal(allow_find(&list, "cpu1.learner")->roles, KEY_LEARNER);
    allow_free(&list);
    assert_int_equal(run_keys_of_host(&keys, "cpu1", "actor", &key, &err), RP_OK);
    assert_string_equal(key.name, "cpu1.actor");
    assert_int_equal(allow_remove(keys.list, "cpu1.actor", &err), RP_OK);
    assert_int_equal(run_keys_of_host(&keys, "cpu1", "actor", &again, &err), RP_PERMISSION_DENIED);
    assert_int_equal(unlink(key.path), 0);
    assert_int_equal(run_keys_of_host(&keys, "cpu1", "actor", &again, &err), RP_OK);
    run_keys_close(&keys);
}

/* In a list of the user's, too: the end of a leg takes the run's keys off that list. */
TEST(a_revoked_host_of_a_foreign_list, tempdir_enter, tempdir_leave)
{
    struct run_keys keys;
    struct host_key key, other;
    char list[128];
    snprintf(list, sizeof list, "%s/list", tempdir);
    for (int leg = 0; leg < 2; leg++) {
        assert_int_equal(run_keys_open(&keys, &curve, tempdir, list, &err), RP_OK);
        assert_int_equal(run_keys_of_host(&keys, "cpu1", "actor", &key, &err), leg ? RP_PERMISSION_DENIED : RP_OK);
        assert_int_equal(run_keys_of_host(&keys, "cpu2", "actor", &other, &err), RP_OK);
        if (leg == 0)
            assert_int_equal(allow_remove(list, key.name, &err), RP_OK);
        run_keys_close(&keys);
    }
}

/* Actors of the user's that have a queue beside the learners' table sample it, and learners write to it. */
TEST(both_roles_where_work_is_passed_on, tempdir_enter, tempdir_leave)
{
    struct table_config tables[] = {{.name = "work", .max_times_sampled = 1},
                                    {.name = "replay", .max_times_sampled = 1}};
    char *word = "actor";
    struct run_config config = curve;
    config.adder.table = "replay";
    config.broker.tables = (struct schema_list){.data = tables, .count = 2};
    for (uint32_t commands = 0; commands < 2; commands++)
        for (tables[0].max_times_sampled = 0; tables[0].max_times_sampled < 2; tables[0].max_times_sampled++) {
            struct run_keys keys;
            struct host_key key;
            struct allow_list list;
            char folder[128];
            bool both = commands && tables[0].max_times_sampled;
            config.actors.command = (struct schema_list){.data = &word, .count = commands};
            snprintf(folder, sizeof folder, "%s/%u%u", tempdir, commands, (uint32_t)tables[0].max_times_sampled);
            assert_int_equal(mkdir(folder, 0700), 0);
            assert_int_equal(run_keys_open(&keys, &config, folder, "", &err), RP_OK);
            assert_int_equal(run_keys_of_host(&keys, "cpu1", "actor", &key, &err), RP_OK);
            assert_int_equal(allow_read(keys.list, &list, &err), RP_OK);
            assert_int_equal(allow_find(&list, "actor")->roles, both ? KEY_ACTOR | KEY_LEARNER : KEY_ACTOR);
            assert_int_equal(allow_find(&list, "learner")->roles, both ? KEY_ACTOR | KEY_LEARNER : KEY_LEARNER);
            assert_int_equal(allow_find(&list, "cpu1.actor")->roles, both ? KEY_ACTOR | KEY_LEARNER : KEY_ACTOR);
            assert_int_equal(allow_find(&list, "admin")->roles, KEY_ADMIN);
            allow_free(&list);
            run_keys_close(&keys);
        }
}
