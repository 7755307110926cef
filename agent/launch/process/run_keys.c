#include "agent/launch/process/run_keys.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/crc32c.h"
#include "proto/base/error.h"
#include "proto/base/rng.h"
#include "proto/keys/allow.h"

static const char *const roles[] = {"actor", "learner", "admin"};
/* Letters of a host's name in that of its key: "run-01234567-" and ".learner" must fit as well. */
#define HOST_MOST 42u
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

static bool is_listed(const char *list, const char *name)
{
    struct allow_list known = {0};
    bool found =
        allow_read(list, &known, NULL) != RP_OK || allow_find(&known, name); /* who cannot read it does not know */
    allow_free(&known);
    return found;
}

/* A key to make: which file it has, what it may do, and whose it is. */
struct wanted_key {
    const char *file, *role;
    bool of_host; /* once it is off the list, it stays off */
    const uint8_t *broker;
};

/* A key that is left from before is used again: a resumed run may find processes that still have it. It gets on the list first: a
 * file without a place there is that of a key that was revoked. */
static rp_status make_key(const struct run_keys *self, const struct wanted_key *wanted, char name[KEY_NAME],
                          rp_error *err)
{
    char path[1100];
    uint32_t number;
    struct key key;
    run_keys_file(self, wanted->file, path, sizeof path);
    rng_system(&number, sizeof number);
    if (self->foreign) /* several runs share the list */
        snprintf(name, KEY_NAME, "run-%08x-%s", number, wanted->file);
    else
        snprintf(name, KEY_NAME, "%s", wanted->file);
    rp_status status = key_read(path, &key, err);
    bool found = status == RP_OK;
    if (found && wanted->of_host && !is_listed(self->list, key.name)) {
        key_wipe(&key);
        return err_set(err, RP_PERMISSION_DENIED, "its key was revoked; remove %.300s to let it in again", path);
    }
    if (status == RP_NOT_FOUND)
        status = key_make(&key, name, err);
    bool known = status == RP_OK && key.n_brokers > 0 && memcmp(key.brokers[0], wanted->broker, KEY_BYTES) == 0;
    if (status == RP_OK) {
        uint32_t allows = roles_parse(wanted->role), both = KEY_ACTOR | KEY_LEARNER;
        struct allowed_key allowed = {.roles = self->passes_work && (allows & both) ? both : allows,
                                      .quota = {-1, -1, -1, -1, -1}};
        memcpy(allowed.name, key.name, KEY_NAME);
        memcpy(allowed.public_key, key.public_key, KEY_BYTES);
        memcpy(name, key.name, KEY_NAME);
        key_add_broker(&key, wanted->broker);
        status = let_in(self->list, &allowed, err);
    }
    if (status == RP_OK && !known)
        status = key_write(path, &key, found, err);
    key_wipe(&key);
    return status;
}

rp_status run_keys_of_host(const struct run_keys *self, const char *host, const char *role, struct host_key *out,
                           rp_error *err)
{
    char file[KEY_NAME];
    struct key broker;
    if (strlen(host) <= HOST_MOST)
        snprintf(file, sizeof file, "%s.%s", host, role);
    else
        snprintf(file, sizeof file, "%.*s-%08x.%s", (int)HOST_MOST - 9, host, crc32c(0, host, strlen(host)), role);
    for (char *c = file; *c; c++) /* names of keys are plain: user@cpu3 is user_cpu3 */
        *c = isalnum((unsigned char)*c) || strchr("_.-", *c) ? *c : '_';
    run_keys_file(self, file, out->path, sizeof out->path);
    RP_TRY(allow_broker_key(self->list, &broker, err));
    const struct wanted_key wanted = {file, role, true, broker.public_key};
    rp_status status = make_key(self, &wanted, out->name, err);
    key_wipe(&broker);
    return status;
}

/* True if actors of the user's may take work under leases: from a queue beside the table that learners sample. Whoever has a role
 * of less could not go through such queues, and the broker does not know which of them are whose. */
static bool has_work(const struct run_config *config)
{
    const struct table_config *tables = config->broker.tables.data;
    for (uint32_t i = 0; config->actors.command.count && i < config->broker.tables.count; i++)
        if (tables[i].max_times_sampled == 1 && !tables[i].group_size &&
            strcmp(tables[i].name, config->adder.table) != 0)
            return true;
    return false;
}

rp_status run_keys_open(struct run_keys *self, const struct run_config *config, const char *run_folder,
                        const char *list, rp_error *err)
{
    struct key key;
    *self = (struct run_keys){
        .on = config_uses_curve(&config->broker), .passes_work = has_work(config), .foreign = list[0] != '\0'};
    if (!self->on)
        return RP_OK;
    if ((size_t)snprintf(self->folder, sizeof self->folder, "%s/" RUN_KEYS_FOLDER, run_folder) >= sizeof self->folder ||
        (size_t)snprintf(self->list, sizeof self->list, "%s", list[0] ? list : self->folder) >= sizeof self->list)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the folder of keys is too long");
    if (mkdir(self->folder, 0700) != 0 && errno != EEXIST)
        return err_set(err, RP_IO, "cannot make the folder of keys %s: %s", self->folder, strerror(errno));
    RP_TRY(allow_broker_key(self->list, &key, err));
    rp_status status = RP_OK;
    for (size_t i = 0; status == RP_OK && i < N_ROLES; i++) {
        char name[KEY_NAME];
        status = make_key(self, &(struct wanted_key){roles[i], roles[i], false, key.public_key}, name, err);
    }
    key_wipe(&key);
    return status;
}

void run_keys_close(struct run_keys *self)
{
    DIR *folder = self->on && self->foreign ? opendir(self->folder) : NULL;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[sizeof self->folder + sizeof entry->d_name + 1];
        struct key key;
        snprintf(path, sizeof path, "%s/%s", self->folder, entry->d_name);
        if (key_read(path, &key, NULL) != RP_OK)
            continue;
        if (is_listed(self->list,
                      key.name)) { /* otherwise it was revoked, and its file tells so when the run goes on */
            allow_remove(self->list, key.name, NULL);
            unlink(path);
        }
        key_wipe(&key);
    }
    if (folder)
        closedir(folder);
    self->on = false;
}
