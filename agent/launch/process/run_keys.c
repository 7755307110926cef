#include "agent/launch/process/run_keys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "proto/base/rng.h"
#include "proto/keys/allow.h"

static const char *const roles[] = {"actor", "learner", "admin"};
#define N_ROLES (sizeof roles / sizeof roles[0])

const char *run_keys_file(const struct run_keys *self, const char *role, char *out, size_t size)
{
    out[0] = '\0';
    if (self && self->on && (size_t)snprintf(out, size, "%s/%s.key", self->folder, role) >= size)
        out[0] = '\0';
    return out;
}

/* Lets a key in. The list may know its name with another key, whose file is gone: nobody can use that one any more. */
static rp_status let_in(const char *list, const struct allowed_key *key, rp_error *err)
{
    struct allow_list known = {0};
    rp_status status = allow_add(list, key, err);
    if (status != RP_ALREADY_EXISTS)
        return status;
    RP_TRY(allow_read(list, &known, err));
    const struct allowed_key *same = allow_find(&known, key->name);
    bool other = same && memcmp(same->public_key, key->public_key, KEY_BYTES) != 0;
    allow_free(&known);
    if (!other)
        return RP_OK;
    RP_TRY(allow_remove(list, key->name, err));
    return allow_add(list, key, err);
}

/* A key that is left from before is used again: a resumed run may find processes that still have it. */
static rp_status make_key(const struct run_keys *self, const char *role, const uint8_t *broker, rp_error *err)
{
    char path[1100], name[KEY_NAME];
    uint32_t number;
    struct key key;
    run_keys_file(self, role, path, sizeof path);
    rng_system(&number, sizeof number);
    if (self->foreign) /* several runs share the list */
        snprintf(name, sizeof name, "run-%08x-%s", number, role);
    else
        snprintf(name, sizeof name, "%s", role);
    rp_status status = key_read(path, &key, err);
    if (status == RP_NOT_FOUND) {
        status = key_make(&key, name, err);
        if (status == RP_OK) {
            key_add_broker(&key, broker);
            status = key_write(path, &key, false, err);
        }
    } else if (status == RP_OK && memcmp(key.brokers[0], broker, KEY_BYTES) != 0) {
        key_add_broker(&key, broker);
        status = key_write(path, &key, true, err);
    }
    struct allowed_key allowed = {.roles = roles_parse(role), .quota = {-1, -1, -1, -1, -1}};
    memcpy(allowed.name, key.name, KEY_NAME);
    memcpy(allowed.public_key, key.public_key, KEY_BYTES);
    key_wipe(&key);
    RP_TRY(status);
    return let_in(self->list, &allowed, err);
}

rp_status run_keys_open(struct run_keys *self, const struct broker_config *broker, const char *run_folder,
                        const char *list, rp_error *err)
{
    struct key key;
    *self = (struct run_keys){.on = config_uses_curve(broker), .foreign = list[0] != '\0'};
    if (!self->on)
        return RP_OK;
    if ((size_t)snprintf(self->folder, sizeof self->folder, "%s/" RUN_KEYS_FOLDER, run_folder) >= sizeof self->folder ||
        (size_t)snprintf(self->list, sizeof self->list, "%s", list[0] ? list : self->folder) >= sizeof self->list)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the folder of keys is too long");
    if (mkdir(self->folder, 0700) != 0 && errno != EEXIST)
        return err_set(err, RP_IO, "cannot make the folder of keys %s: %s", self->folder, strerror(errno));
    RP_TRY(allow_broker_key(self->list, &key, err));
    rp_status status = RP_OK;
    for (size_t i = 0; status == RP_OK && i < N_ROLES; i++)
        status = make_key(self, roles[i], key.public_key, err);
    key_wipe(&key);
    return status;
}

void run_keys_close(struct run_keys *self)
{
    for (size_t i = 0; self->on && self->foreign && i < N_ROLES; i++) {
        char path[1100];
        struct key key;
        if (key_read(run_keys_file(self, roles[i], path, sizeof path), &key, NULL) == RP_OK)
            allow_remove(self->list, key.name, NULL);
        key_wipe(&key);
        unlink(path);
    }
    self->on = false;
}
