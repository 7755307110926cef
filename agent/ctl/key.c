/* replay-ctl key: makes and shows key files, and changes a broker's list of keys. It needs no broker: a broker reads its files
 * again when they change. Secrets are never printed. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "proto/base/error.h"
#include "proto/keys/allow.h"

/* Prints a key: {"name": ..., "public": ...} or two words. */
static void print_key(const struct ctl *ctl, const char *name, const uint8_t *public_key, const char *roles)
{
    char text[KEY_TEXT];
    key_text(public_key, text);
    if (!ctl->json) {
        printf("%s%s%s %s\n", name, roles ? " " : "", roles ? roles : "", text);
        return;
    }
    struct json json = {0};
    json_open(&json, '{');
    json_text(&json, "name", name);
    if (roles)
        json_text(&json, "roles", roles);
    json_text(&json, "public", text);
    json_close(&json, '}');
    ctl_print_text(&json);
}

/* ---- key files ---- */

/* The name of a key is the name of its file without a suffix. */
static void name_of(const char *path, char out[KEY_NAME])
{
    const char *slash = strrchr(path, '/');
    snprintf(out, KEY_NAME, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(out, '.');
    if (dot && dot > out)
        *dot = '\0';
}

/* Names the broker in a new key, and lets the key in, as far as the options say. */
static rp_status introduce(const struct ctl *ctl, struct key *key, rp_error *err)
{
    uint8_t public_key[KEY_BYTES];
    if (ctl->broker_key && !key_parse(ctl->broker_key, public_key))
        return err_set(err, RP_INVALID_ARGUMENT, "--broker is not a public key of 40 characters");
    if (ctl->broker_key)
        key_add_broker(key, public_key);
    if (!ctl->keys)
        return RP_OK;
    struct key broker;
    RP_TRY(allow_broker_key(ctl->keys, &broker, err));
    key_add_broker(key, broker.public_key);
    key_wipe(&broker);
    struct allowed_key allowed = {.roles = roles_parse(ctl->role ? ctl->role : ""), .quota = {-1, -1, -1, -1, -1}};
    memcpy(allowed.name, key->name, KEY_NAME);
    memcpy(allowed.public_key, key->public_key, KEY_BYTES);
    return allow_add(ctl->keys, &allowed, err);
}

static int no_role(const struct ctl *ctl)
{
    return ctl_usage("'%s' is no role: actor, learner, observer or admin, or several joined by '+'", ctl->role);
}

static int key_new(struct ctl *ctl)
{
    struct key key;
    char name[KEY_NAME];
    const char *path = ctl->argv[1];
    if (ctl->keys && !ctl->role)
        return ctl_usage("--keys needs --role: actor, learner, observer or admin, or several joined by '+'");
    if (ctl->keys && !roles_parse(ctl->role))
        return no_role(ctl);
    if (!ctl->keys && ctl->role)
        return ctl_usage("--role is for the broker's list of keys: give its folder with --keys");
    name_of(path, name);
    rp_status status = key_make(&key, name, &ctl->err);
    /* The file first: a key that is in the list and in no file is of no use. */
    bool made = status == RP_OK && (status = key_write(path, &key, false, &ctl->err)) == RP_OK;
    if (made && (status = introduce(ctl, &key, &ctl->err)) == RP_OK)
        status = key_write(path, &key, true, &ctl->err);
    else if (made) /* only what was made here: whatever else has this name stays */
        remove(path);
    if (status == RP_OK)
        print_key(ctl, key.name, key.public_key, ctl->role);
    key_wipe(&key);
    return status == RP_OK ? CTL_OK : ctl_fail(ctl);
}

static int key_show(struct ctl *ctl)
{
    struct key key;
    struct stat info;
    char path[KEY_PATH];
    const char *file = ctl->argv[1];
    if (stat(file, &info) == 0 && S_ISDIR(info.st_mode)) {
        if (key_path(file, ALLOW_BROKER_KEY, path, &ctl->err) != RP_OK)
            return ctl_fail(ctl);
        file = path;
    }
    if (key_read(file, &key, &ctl->err) != RP_OK)
        return ctl_fail(ctl);
    print_key(ctl, key.name, key.public_key, NULL);
    for (uint32_t i = 0; i < key.n_brokers; i++)
        print_key(ctl, "broker", key.brokers[i], NULL);
    key_wipe(&key);
    return CTL_OK;
}

static int key_trust(struct ctl *ctl)
{
    struct key key;
    uint8_t public_key[KEY_BYTES];
    if (!key_parse(ctl->argv[2], public_key))
        return ctl_usage("'%s' is not a public key of 40 characters", ctl->argv[2]);
    rp_status status = key_read(ctl->argv[1], &key, &ctl->err);
    if (status == RP_OK) {
        key_add_broker(&key, public_key);
        status = key_write(ctl->argv[1], &key, true, &ctl->err);
    }
    key_wipe(&key);
    return status == RP_OK ? CTL_OK : ctl_fail(ctl);
}

/* ---- the list of a broker ---- */

static int key_allow(struct ctl *ctl)
{
    struct allowed_key key;
    if (ctl->role && !roles_parse(ctl->role))
        return no_role(ctl);
    if (!ctl->role)
        return ctl_usage("--role is needed: actor, learner, observer or admin, or several joined by '+'");
    char line[1024];
    int size = snprintf(line, sizeof line, "%s %s %s", ctl->argv[2], ctl->role, ctl->argv[3]);
    for (uint32_t i = 4; i < ctl->argc && size > 0 && (size_t)size < sizeof line; i++)
        size += snprintf(line + size, sizeof line - (size_t)size, " %s", ctl->argv[i]);
    if (size < 0 || (size_t)size >= sizeof line || !allow_parse(line, &key))
        return ctl_usage("NAME PUBLIC are a name and a public key of 40 characters; limits are sessions=N, "
                         "granted=BYTES, waiting=N, unread=BYTES, inserts=N");
    return allow_add(ctl->argv[1], &key, &ctl->err) == RP_OK ? CTL_OK : ctl_fail(ctl);
}

static int key_change(struct ctl *ctl)
{
    struct quota quota = {-1, -1, -1, -1, -1};
    if (ctl->role && !roles_parse(ctl->role))
        return no_role(ctl);
    if (!ctl->role && ctl->argc == 3)
        return ctl_usage("there is nothing to change: give --role ROLES, or limits such as sessions=10");
    for (uint32_t i = 3; i < ctl->argc; i++) {
        char word[64];
        snprintf(word, sizeof word, "%s", ctl->argv[i]);
        if (!quota_parse(word, &quota))
            return ctl_usage("'%s' is no limit: sessions=N, granted=BYTES, waiting=N, unread=BYTES, inserts=N",
                             ctl->argv[i]);
    }
    uint32_t roles = ctl->role ? roles_parse(ctl->role) : 0;
    return allow_change(ctl->argv[1], ctl->argv[2], roles, &quota, &ctl->err) == RP_OK ? CTL_OK : ctl_fail(ctl);
}

static int key_revoke(struct ctl *ctl)
{
    return allow_remove(ctl->argv[1], ctl->argv[2], &ctl->err) == RP_OK ? CTL_OK : ctl_fail(ctl);
}

static int key_list(struct ctl *ctl)
{
    struct allow_list list;
    char roles[64];
    if (allow_read(ctl->argv[1], &list, &ctl->err) != RP_OK)
        return ctl_fail(ctl);
    bool empty = list.n == 0;
    for (uint32_t i = 0; i < list.n; i++)
        print_key(ctl, list.keys[i].name, list.keys[i].public_key, roles_text(list.keys[i].roles, roles, sizeof roles));
    allow_free(&list);
    if (empty && access(ctl->argv[1], F_OK) != 0) {
        err_set(&ctl->err, RP_NOT_FOUND, "there is no folder '%s'", ctl->argv[1]);
        return ctl_fail(ctl);
    }
    if (empty && !ctl->json)
        printf("no keys are let in by %s\n", ctl->argv[1]);
    return CTL_OK;
}

/* Makes the next key. If root does, it gets the owner of the present one: the broker has to read it. */
static rp_status make_next(const char *present, const char *next, struct key *key, rp_error *err)
{
    struct stat info;
    RP_TRY(key_read(present, key, err));
    RP_TRY(key_make(key, "broker", err));
    RP_TRY(key_write(next, key, false, err));
    if (geteuid() != 0 || stat(present, &info) != 0 || chown(next, info.st_uid, info.st_gid) == 0)
        return RP_OK;
    return err_set(err, RP_IO, "cannot give %s to the owner of %s: %s", next, present, strerror(errno));
}

/* First makes the next key, which a running broker announces; then, with "finish", gives it the place of the old one. */
static int key_rotate(struct ctl *ctl)
{
    char present[KEY_PATH], next[KEY_PATH];
    struct key key;
    const char *folder = ctl->argv[1];
    bool finish = ctl->argc == 3 && strcmp(ctl->argv[2], "finish") == 0;
    if (ctl->argc == 3 && !finish)
        return ctl_usage("key rotate DIR, and later key rotate DIR finish");
    rp_status status = key_path(folder, ALLOW_BROKER_KEY, present, &ctl->err);
    if (status == RP_OK)
        status = key_path(folder, ALLOW_NEXT_KEY, next, &ctl->err);
    if (status == RP_OK && finish) {
        status = key_read(next, &key, &ctl->err);
        if (status == RP_OK && rename(next, present) != 0)
            status = err_set(&ctl->err, RP_IO, "cannot rename %s: %s", next, strerror(errno));
    } else if (status == RP_OK) {
        status = make_next(present, next, &key, &ctl->err);
    }
    if (status == RP_OK)
        print_key(ctl, finish ? "broker" : "next", key.public_key, NULL);
    key_wipe(&key);
    return status == RP_OK ? CTL_OK : ctl_fail(ctl);
}

/* ---- the command ---- */

static const struct {
    const char *name;
    uint32_t least, most; /* arguments after the name */
    int (*run)(struct ctl *ctl);
} key_verbs[] = {
    {"new", 1, 1, key_new},     {"show", 1, 1, key_show},     {"trust", 2, 2, key_trust},
    {"allow", 3, 8, key_allow}, {"change", 2, 7, key_change}, {"revoke", 2, 2, key_revoke},
    {"list", 1, 1, key_list},   {"rotate", 1, 2, key_rotate},
};

int ctl_key(struct ctl *ctl)
{
    for (uint32_t i = 0; i < sizeof key_verbs / sizeof key_verbs[0]; i++)
        if (strcmp(ctl->argv[0], key_verbs[i].name) == 0) {
            if (ctl->argc - 1 < key_verbs[i].least || ctl->argc - 1 > key_verbs[i].most)
                return ctl_usage("wrong number of arguments for 'key %s': see replay-ctl key --help", ctl->argv[0]);
            return key_verbs[i].run(ctl);
        }
    return ctl_usage("there is no 'key %s': new, show, trust, allow, change, revoke, list and rotate", ctl->argv[0]);
}
