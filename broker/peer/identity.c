#include "broker/peer/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/base/siphash.h"

/* Items that a key with inserts_per_second may insert at once: what comes in this time. */
#define BURST_S 0.1
/* What actors with one key may add to counters: more steps than all of them take, so that a number out of the air does not end
 * a run at once. */
#define ADDS_PER_SECOND (UINT64_C(1) << 24)
/* Pause after which a file that was changed in its place counts as written; more than the clock tick of file systems. Some
 * editors empty a file before they write it. */
#define SETTLE_NS (15 * NS_PER_MS)
#define SETTLE_EMPTY_NS (250 * NS_PER_MS)
/* After a look at the files, the next is at least this many times as far away as the look took. */
#define LOOK_PAUSE 20

/* ---- files ---- */

/* Who may write in the folder can replace the list of keys, and the broker's key. */
static rp_status check_folder(const struct broker_config *config, rp_error *err)
{
    struct stat info;
    if (stat(config->keys_dir, &info) != 0)
        return RP_OK; /* a missing folder is made */
    if (info.st_uid != geteuid() && info.st_uid != 0 && geteuid() != 0)
        return err_set(err, RP_PERMISSION_DENIED, "the folder of keys %s belongs to another user, who may replace them",
                       config->keys_dir);
    if (!(info.st_mode & 022))
        return RP_OK;
    return err_set(err, RP_PERMISSION_DENIED, "others may write in the folder of keys %s (mode %04o): run chmod 700",
                   config->keys_dir, (unsigned)info.st_mode & 07777);
}

/* Reads the broker's key, or makes one. */
static rp_status read_broker_key(struct identities *self, const struct broker_config *config, rp_error *err)
{
    char path[KEY_PATH], text[KEY_TEXT];
    RP_TRY(key_path(config->keys_dir, ALLOW_BROKER_KEY, path, err));
    bool made = access(path, F_OK) != 0;
    RP_TRY(allow_broker_key(config->keys_dir, &self->key, err));
    key_text(self->key.public_key, text);
    if (made)
        log_line(LEVEL_INFO, "B0603", "broker key made", "path=%s public=%s", path, text);
    return RP_OK;
}

static rp_status read_key(const struct broker_config *config, const char *name, struct key *out, rp_error *err)
{
    char path[KEY_PATH];
    RP_TRY(key_path(config->keys_dir, name, path, err));
    return key_read(path, out, err);
}

/* Reads the public half of the key that will replace the broker's. */
static void read_next_key(struct identities *self, const struct broker_config *config)
{
    struct key next = {0};
    rp_error err = {0};
    rp_status status = read_key(config, ALLOW_NEXT_KEY, &next, &err);
    self->has_next = status == RP_OK;
    memcpy(self->next_key, next.public_key, KEY_BYTES);
    key_wipe(&next);
    if (status != RP_OK && status != RP_NOT_FOUND)
        log_line(LEVEL_ERROR, "B0608", "the broker's next key cannot be read: clients do not learn it", "why=%s",
                 log_text(err.text));
}

/* True if a file was changed so recently that its writer may not be done. */
static bool is_fresh(const struct seen_file *file)
{
    int64_t age = clock_of(CLOCK_REALTIME) - file->changed_ns;
    return age >= 0 && age < SETTLE_NS;
}

/* True if a file that is empty now was not seen empty for long. ext4 shows the new size of a file some milliseconds before the new
 * time, so that the time says nothing. */
static bool is_emptied(const struct seen_file *found, struct seen_file *seen)
{
    bool empty = found->node && found->size == 0;
    int64_t now_ns = clock_of(CLOCK_MONOTONIC);
    if (!empty || seen->empty_ns == 0)
        seen->empty_ns = empty ? now_ns : 0;
    return empty && now_ns - seen->empty_ns < SETTLE_EMPTY_NS;
}

static struct seen_file look_at(const struct broker_config *config, const char *name)
{
    char path[KEY_PATH];
    struct stat info;
    if (key_path(config->keys_dir, name, path, NULL) != RP_OK || stat(path, &info) != 0)
        return (struct seen_file){0};
    return (struct seen_file){.changed_ns = info.st_ctim.tv_sec * NS_PER_S + info.st_ctim.tv_nsec,
                              .size = info.st_size,
                              .node = (int64_t)info.st_ino};
}

static bool is_same_file(const struct seen_file *a, const struct seen_file *b)
{
    return a->changed_ns == b->changed_ns && a->size == b->size && a->node == b->node;
}

/* True if a file of the folder has changed since this function last said so. A file that is being written in its place counts
 * when its writer has paused; a file that was renamed into its place counts at once, unless somebody has emptied it since. */
static bool file_has_changed(const struct broker_config *config, const char *name, struct seen_file *seen)
{
    struct seen_file found = look_at(config, name);
    if (is_emptied(&found, seen) || is_same_file(&found, seen) || (found.node == seen->node && is_fresh(&found)))
        return false;
    found.empty_ns = seen->empty_ns;
    *seen = found;
    return true;
}

/* ---- the list ---- */

static uint64_t id_of(const uint8_t *public_key)
{
    uint64_t id;
    memcpy(&id, public_key, sizeof id);
    return id;
}

void unread_release(struct unread *self)
{
    if (self && atomic_fetch_sub_explicit(&self->refs, 1, memory_order_acq_rel) == 1)
        free(self);
}

static struct identity *add(struct identities *self, const uint8_t *public_key)
{
    self->list = need_room(self->list, self->n, &self->capacity, sizeof(*self->list));
    struct identity *identity = need_alloc(sizeof *identity);
    identity->unread = need_alloc(sizeof *identity->unread);
    atomic_init(&identity->unread->refs, 1);
    memcpy(identity->public_key, public_key, KEY_BYTES);
    snprintf(identity->name, sizeof identity->name, "unknown");
    identity->number = self->n;
    if (!idmap_get(&self->by_key, id_of(public_key)))
        idmap_put(&self->by_key, id_of(public_key), identity);
    return self->list[self->n++] = identity;
}

struct identity *identity_find(const struct identities *self, const uint8_t *public_key)
{
    struct identity *first = idmap_get(&self->by_key, id_of(public_key));
    if (!first || memcmp(first->public_key, public_key, KEY_BYTES) == 0)
        return first;
    for (uint32_t i = 0; i < self->n; i++) /* two keys begin alike */
        if (memcmp(self->list[i]->public_key, public_key, KEY_BYTES) == 0)
            return self->list[i];
    return NULL;
}

struct identity *identity_by_key(struct identities *self, const uint8_t *public_key)
{
    if (!self->on || !public_key)
        return &self->anyone;
    struct identity *known = identity_find(self, public_key);
    return known ? known : add(self, public_key);
}

/* Logs a key whose roles or limits differ from those of the list before. */
static void log_change(const struct identity *self)
{
    char roles[64] = "none";
    if (self->roles)
        roles_text(self->roles, roles, sizeof roles);
    if (self->roles != self->before || (self->roles && self->limited))
        log_line(LEVEL_INFO, "B0609",
                 !self->before  ? "key let in"
                 : !self->roles ? "key revoked"
                                : "key changed",
                 "key=%s roles=%s", log_text(self->name), roles);
}

/* Takes over the list of keys. Keys that are not in it lose their roles. */
static void set_list(struct identities *self, const struct allow_list *list, const struct quota *common)
{
    for (uint32_t i = 0; i < self->n; i++) {
        self->list[i]->before = self->list[i]->roles;
        if (!self->list[i]->own)
            self->list[i]->roles = 0;
    }
    for (uint32_t i = 0; list->keys && i < list->n; i++) {
        const struct allowed_key *key = &list->keys[i];
        struct identity *identity = identity_by_key(self, key->public_key);
        struct quota before = identity->quota;
        memcpy(identity->name, key->name, sizeof identity->name);
        identity->roles = key->roles;
        identity->quota = *common;
        quota_replace(&identity->quota, &key->quota);
        identity->limited = memcmp(&before, &identity->quota, sizeof before) != 0;
        atomic_store_explicit(&identity->unread->most, identity->quota.unread_bytes, memory_order_relaxed);
    }
    for (uint32_t i = 0; self->listed && i < self->n; i++)
        log_change(self->list[i]);
    self->listed = true;
}

void identities_trust(struct identities *self, const struct key *key)
{
    struct identity *identity = add(self, key->public_key);
    memcpy(identity->name, key->name, sizeof identity->name);
    identity->roles = KEY_ADMIN;
    identity->own = true;
}

/* True if reading failed for a reason that is not in the file: there may be no descriptor or no memory for a moment. */
static bool is_passing(rp_status status)
{
    return status == RP_IO || status == RP_NO_MEMORY;
}

/* Reads the list of keys; if that fails, nobody is let in. A list that was changed while it was read is read again later. */
static rp_status read_list(struct identities *self, const struct broker_config *config, rp_error *err)
{
    struct allow_list list = {0};
    rp_status status = allow_read(config->keys_dir, &list, err);
    struct seen_file now = look_at(config, ALLOW_FILE);
    if (!is_same_file(&now, &self->list_file)) {
        self->list_file.changed_ns = 0;
        allow_free(&list);
        return RP_OK;
    }
    struct quota common = config_quota(config);
    set_list(self, &list, &common);
    if (status == RP_OK)
        log_line(LEVEL_INFO, "B0604", "list of keys read", "keys=%u", list.n);
    else if (is_passing(status))
        self->list_file.changed_ns = 0; /* the next look reads it again */
    allow_free(&list);
    return status;
}

rp_status identities_open(struct peers *peers, rp_error *err)
{
    struct identities *self = &peers->identities;
    const struct broker_config *config = peers->config;
    self->on = config_uses_curve(config);
    self->anyone = (struct identity){.name = "anyone", .roles = KEY_ANY};
    if (!self->on) {
        if (config_is_open(config))
            log_line(LEVEL_WARN, "B0601", "no security: everybody who can reach the port can do everything",
                     "service=%s way_out=\"security: {mode: curve, keys: DIR}\"", config->service);
        return RP_OK;
    }
    RP_TRY(config_check_keys(config, err));
    RP_TRY(check_folder(config, err));
    RP_TRY(read_broker_key(self, config, err));
    file_has_changed(config, ALLOW_FILE, &self->list_file);
    file_has_changed(config, ALLOW_BROKER_KEY, &self->key_file);
    file_has_changed(config, ALLOW_NEXT_KEY, &self->next_file);
    read_next_key(self, config);
    return read_list(self, config, err);
}

/* Reads the broker's key again. True: it has changed. */
static bool change_key(struct identities *self, const struct broker_config *config)
{
    struct key key = {0};
    rp_error err = {0};
    rp_status status = read_key(config, ALLOW_BROKER_KEY, &key, &err);
    if (status != RP_OK)
        log_line(LEVEL_ERROR, "B0608", "the broker's key cannot be changed", "why=%s", log_text(err.text));
    bool changed = status == RP_OK && memcmp(&key, &self->key, sizeof key) != 0; /* or the file was only touched */
    if (changed)
        self->key = key;
    key_wipe(&key);
    return changed;
}

static void change_list(struct peers *peers)
{
    rp_error err = {0};
    uint32_t held;
    struct identities *self = &peers->identities;
    rp_status status = read_list(self, peers->config, &err);
    if (status != RP_OK && (!is_passing(status) || log_allow(&self->list_log, 1, peers->loop->now_ns, &held)))
        log_line(LEVEL_ERROR, "B0605", "the list of keys cannot be read: nobody is let in until it can", "why=%s",
                 log_text(err.text));
}

uint32_t identities_look(struct peers *peers)
{
    struct identities *self = &peers->identities;
    const struct broker_config *config = peers->config;
    const struct clock *clock = &peers->loop->clock;
    uint32_t changed = 0;
    int64_t start = clock_now(clock);
    if (!self->on || start < self->look_ns)
        return 0;
    if (file_has_changed(config, ALLOW_NEXT_KEY, &self->next_file))
        read_next_key(self, config);
    if (file_has_changed(config, ALLOW_BROKER_KEY, &self->key_file) && self->key_file.node && change_key(self, config))
        changed |= KEYS_BROKER;
    if (file_has_changed(config, ALLOW_FILE, &self->list_file)) {
        change_list(peers);
        changed |= KEYS_LIST;
    }
    struct seen_file now = look_at(config, ALLOW_FILE);
    if (is_same_file(&now, &self->list_file))
        self->known_ns = start;
    /* One long look may be this thread waiting for a processor. Two in a row are a slow disk. */
    int64_t end = clock_now(clock), took = end - start;
    self->look_ns = end + LOOK_PAUSE * (took < self->took_ns ? took : self->took_ns);
    self->took_ns = took;
    return changed;
}

void identities_close(struct identities *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        unread_release(self->list[i]->unread);
        free(self->list[i]);
    }
    idmap_fini(&self->by_key);
    free(self->list);
    self->list = NULL;
    self->n = self->capacity = 0;
    key_wipe(&self->key);
}

/* ---- messages ---- */

uint64_t identity_client(const struct identity *self, uint64_t client)
{
    if (!self->unread) /* without security */
        return client;
    uint8_t text[sizeof client + KEY_BYTES - 16];
    memcpy(text, &client, sizeof client);
    memcpy(text + sizeof client, self->public_key + 16, KEY_BYTES - 16);
    uint64_t hash = siphash(self->public_key, text, sizeof text);
    return hash ? hash : 1; /* 0 is anonymous */
}

struct identity *identity_of(struct peers *peers, zmq_msg_t *message)
{
    struct identities *self = &peers->identities;
    static struct identity nobody = {.name = "nobody"};
    if (!self->on)
        return &self->anyone;
    const char *text = zmq_msg_gets(message, "User-Id");
    unsigned long number = text ? strtoul(text, NULL, 10) : self->n;
    return number < self->n ? self->list[number] : &nobody;
}

rp_status identity_check(const struct identity *self, uint32_t allowed, const char *what, rp_error *err)
{
    char have[64], need[64];
    if (self->roles & (allowed | KEY_ADMIN))
        return RP_OK;
    if (!self->roles)
        return err_set(err, RP_PERMISSION_DENIED,
                       "the key '%s' was revoked: whoever runs the broker can allow it again (replay-ctl key allow)",
                       self->name);
    return err_set(err, RP_PERMISSION_DENIED,
                   "the key '%s' has the role %s, and %s needs %s: whoever runs the broker can give it that role "
                   "(replay-ctl key change)",
                   self->name, roles_text(self->roles, have, sizeof have), what,
                   roles_any(allowed | KEY_ADMIN, need, sizeof need));
}

/* ---- quotas ---- */

static void pay(struct identity *self, int64_t now_ns)
{
    double rate = (double)self->quota.inserts_per_second, burst = rate * BURST_S;
    self->insert_debt -= rate * (double)(now_ns - self->paid_ns) * 1e-9;
    if (self->insert_debt < -burst)
        self->insert_debt = -burst;
    self->paid_ns = now_ns;
}

void identity_inserted(struct identity *self, uint64_t items, int64_t now_ns)
{
    if (self->quota.inserts_per_second == 0)
        return;
    pay(self, now_ns);
    self->insert_debt += (double)items;
}

double identity_owes_s(struct identity *self, int64_t now_ns)
{
    if (self->quota.inserts_per_second == 0)
        return 0.0;
    pay(self, now_ns);
    return self->insert_debt > 0.0 ? self->insert_debt / (double)self->quota.inserts_per_second : 0.0;
}

rp_status identity_adds(struct identity *self, int64_t add, int64_t now_ns, rp_error *err)
{
    if (self->roles & (KEY_LEARNER | KEY_ADMIN))
        return RP_OK;
    if (now_ns - self->added_ns >= NS_PER_S) {
        self->added = 0;
        self->added_ns = now_ns;
    }
    uint64_t size = add < 0 ? -(uint64_t)add : (uint64_t)add;
    if (size > ADDS_PER_SECOND - self->added)
        return err_set(
            err, RP_RESOURCE_EXHAUSTED,
            "the key '%s' has the role actor, and adds at most %llu a second to counters: a learner's key may "
            "add more",
            self->name, (unsigned long long)ADDS_PER_SECOND);
    self->added += size;
    return RP_OK;
}
