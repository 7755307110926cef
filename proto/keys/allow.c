#include "proto/keys/allow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/config/schema.h"

#define FILE_MOST (4u << 20) /* 50,000 keys */

/* ---- roles ---- */

static const struct {
    const char *name;
    uint32_t role;
} roles[] = {{"actor", KEY_ACTOR}, {"learner", KEY_LEARNER}, {"observer", KEY_OBSERVER}, {"admin", KEY_ADMIN}};
#define N_ROLES (sizeof roles / sizeof roles[0])

uint32_t roles_parse(const char *text)
{
    uint32_t found = 0;
    for (const char *word = text;; word++) {
        size_t length = strcspn(word, "+");
        uint32_t role = 0;
        for (uint32_t i = 0; i < N_ROLES; i++)
            if (strlen(roles[i].name) == length && strncmp(word, roles[i].name, length) == 0)
                role = roles[i].role;
        if (!role)
            return 0;
        found |= role;
        word += length;
        if (!*word)
            return found;
    }
}

static const char *join(uint32_t set, const char *between, char *out, size_t size)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < N_ROLES && at < size; i++)
        if (set & roles[i].role)
            at += (size_t)snprintf(out + at, size - at, "%s%s", at ? between : "", roles[i].name);
    return out;
}

const char *roles_text(uint32_t set, char *out, size_t size)
{
    return join(set, "+", out, size);
}

const char *roles_any(uint32_t set, char *out, size_t size)
{
    return join(set, " or ", out, size);
}

/* ---- one line ---- */

static const struct {
    const char *name;
    size_t offset;
} limits[] = {
    {"sessions", offsetof(struct quota, sessions)},
    {"granted", offsetof(struct quota, granted_bytes)},
    {"waiting", offsetof(struct quota, waiting)},
    {"unread", offsetof(struct quota, unread_bytes)},
    {"inserts", offsetof(struct quota, inserts_per_second)},
};
#define N_LIMITS (sizeof limits / sizeof limits[0])

static int64_t *limit_of(struct quota *quota, uint32_t i)
{
    return (int64_t *)(void *)((char *)quota + limits[i].offset);
}

void quota_replace(struct quota *self, const struct quota *by)
{
    struct quota from = *by;
    for (uint32_t i = 0; i < N_LIMITS; i++)
        if (*limit_of(&from, i) >= 0)
            *limit_of(self, i) = *limit_of(&from, i);
}

bool quota_parse(char *word, struct quota *out)
{
    char *value = strchr(word, '=');
    if (!value)
        return false;
    *value++ = '\0';
    for (uint32_t i = 0; i < N_LIMITS; i++)
        if (strcmp(word, limits[i].name) == 0)
            return schema_parse_bytes(value, limit_of(out, i)) && *limit_of(out, i) >= 0;
    return false;
}

bool allow_parse(char *line, struct allowed_key *out)
{
    char *rest = line, *words[3] = {0};
    *out = (struct allowed_key){.quota = {-1, -1, -1, -1, -1}};
    for (uint32_t i = 0; i < 3; i++)
        words[i] = strtok_r(i ? NULL : line, " \t\r", &rest);
    if (!words[2] || !key_name_is_good(words[0]) || !key_parse(words[2], out->public_key))
        return false;
    snprintf(out->name, sizeof out->name, "%s", words[0]);
    out->roles = roles_parse(words[1]);
    for (char *word; (word = strtok_r(NULL, " \t\r", &rest));)
        if (!quota_parse(word, &out->quota))
            return false;
    return out->roles != 0;
}

static void print_line(FILE *file, const struct allowed_key *key)
{
    char text[KEY_TEXT], names[64];
    struct quota quota = key->quota;
    key_text(key->public_key, text);
    fprintf(file, "%s %s %s", key->name, roles_text(key->roles, names, sizeof names), text);
    for (uint32_t i = 0; i < N_LIMITS; i++)
        if (*limit_of(&quota, i) >= 0)
            fprintf(file, " %s=%lld", limits[i].name, (long long)*limit_of(&quota, i));
    fputc('\n', file);
}

static bool is_blank(const char *line)
{
    line += strspn(line, " \t\r");
    return *line == '\0' || *line == '#';
}

/* ---- the file ---- */

struct allowed_key *allow_find(struct allow_list *self, const char *who)
{
    uint8_t public_key[KEY_BYTES];
    bool is_key = key_parse(who, public_key);
    for (uint32_t i = 0; i < self->n; i++)
        if (strcmp(self->keys[i].name, who) == 0 ||
            (is_key && memcmp(self->keys[i].public_key, public_key, KEY_BYTES) == 0))
            return &self->keys[i];
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct allowed_key *)a)->name, ((const struct allowed_key *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return memcmp(((const struct allowed_key *)a)->public_key, ((const struct allowed_key *)b)->public_key, KEY_BYTES);
}

/* A name and a public key may be in the list once. */
static rp_status check_twins(const struct allow_list *self, const char *path, rp_error *err)
{
    static int (*const orders[])(const void *, const void *) = {by_name, by_key};
    struct allowed_key *sorted = need_alloc(self->n * sizeof *sorted);
    rp_status status = RP_OK;
    if (self->n > 0)
        memcpy(sorted, self->keys, self->n * sizeof *sorted);
    for (uint32_t o = 0; o < 2; o++) {
        qsort(sorted, self->n, sizeof *sorted, orders[o]);
        for (uint32_t i = 1; i < self->n && status == RP_OK; i++)
            if (orders[o](&sorted[i - 1], &sorted[i]) == 0)
                status = err_set(err, RP_ALREADY_EXISTS, "%s has '%s', or its key, already: change or revoke it", path,
                                 sorted[i].name);
    }
    free(sorted);
    return status;
}

static void add_key(struct allow_list *self, const struct allowed_key *key)
{
    self->keys = need_room(self->keys, self->n, &self->capacity, sizeof *self->keys);
    self->keys[self->n++] = *key;
}

static rp_status parse(char *text, const char *path, struct allow_list *out, rp_error *err)
{
    uint32_t number = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        struct allowed_key key;
        number++;
        if (is_blank(line))
            continue;
        if (!allow_parse(line, &key))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "line %u of %s is wrong: NAME ROLES PUBLIC, then limits such as sessions=10; roles are "
                           "actor, learner, observer and admin, joined by '+'",
                           number, path);
        add_key(out, &key);
    }
    return check_twins(out, path, err);
}

rp_status allow_read(const char *folder, struct allow_list *out, rp_error *err)
{
    char path[KEY_PATH], *text = NULL;
    *out = (struct allow_list){0};
    RP_TRY(key_path(folder, ALLOW_FILE, path, err));
    rp_status status = key_file_read(path, false, FILE_MOST, &text, err);
    if (status == RP_NOT_FOUND)
        return RP_OK;
    if (status == RP_OK)
        status = parse(text, path, out, err);
    free(text);
    if (status != RP_OK)
        allow_free(out);
    return status;
}

void allow_free(struct allow_list *self)
{
    free(self->keys);
    *self = (struct allow_list){0};
}

rp_status allow_broker_key(const char *folder, struct key *out, rp_error *err)
{
    char path[KEY_PATH];
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return err_set(err, RP_IO, "cannot make the folder of keys %s: %s", folder, strerror(errno));
    RP_TRY(key_path(folder, ALLOW_BROKER_KEY, path, err));
    rp_status status = key_read(path, out, err);
    if (status != RP_NOT_FOUND)
        return status;
    RP_TRY(key_make(out, "broker", err));
    status = key_write(path, out, false, err);
    return status == RP_ALREADY_EXISTS ? key_read(path, out, err) : status; /* another process was faster */
}

/* ---- changes ---- */

/* Locks the folder against other writers; the lock goes when the descriptor is closed. */
static int lock_folder(const char *folder, rp_error *err)
{
    int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX) != 0) {
        err_set(err, errno == ENOENT ? RP_NOT_FOUND : RP_IO, "cannot open the folder of keys %s: %s", folder,
                strerror(errno));
        if (lock >= 0)
            close(lock);
        return -1;
    }
    return lock;
}

/* What the new file has: the lines of the old one except that of `without`, and `with`; either may be NULL. */
struct change {
    const char *old;
    const struct allowed_key *without, *with;
};

static void print_change(FILE *file, const void *from)
{
    const struct change *self = from;
    for (const char *line = self->old, *end; *line; line = end) {
        size_t length = strcspn(line, "\n");
        char *copy = need_print("%.*s", (int)length, line);
        struct allowed_key key;
        bool skip = self->without && !is_blank(copy) && allow_parse(copy, &key) &&
                    memcmp(key.public_key, self->without->public_key, KEY_BYTES) == 0;
        free(copy);
        if (!skip)
            fprintf(file, "%.*s\n", (int)length, line);
        end = line[length] ? line + length + 1 : line + length;
    }
    if (self->with)
        print_line(file, self->with);
}

static const char header[] = "# Keys that the broker lets in: NAME ROLES PUBLIC [sessions=N granted=BYTES waiting=N "
                             "unread=BYTES inserts=N]\n";

/* Adds `with`, removes `who`, or, with both, changes `who`. The folder is locked. */
static rp_status change(const char *folder, const struct allowed_key *with, const char *who, rp_error *err)
{
    char path[KEY_PATH], *text = NULL;
    struct allow_list list;
    struct allowed_key merged;
    RP_TRY(key_path(folder, ALLOW_FILE, path, err));
    RP_TRY(allow_read(folder, &list, err));
    const struct allowed_key *without = who ? allow_find(&list, who) : NULL;
    rp_status status = RP_OK;
    if (who && !without)
        status = err_set(err, RP_NOT_FOUND, "%s has no key '%.80s': replay-ctl key list shows what it has", path, who);
    if (with && !who) {
        add_key(&list, with);
        status = check_twins(&list, path, err);
    }
    if (status == RP_OK && with && without) {
        merged = *without;
        merged.roles = with->roles ? with->roles : merged.roles;
        quota_replace(&merged.quota, &with->quota);
        with = &merged;
    }
    if (status == RP_OK && (status = key_file_read(path, false, FILE_MOST, &text, err)) == RP_NOT_FOUND)
        status = RP_OK;
    if (status == RP_OK)
        status =
            key_file_write(path, false, print_change, &(struct change){text ? text : header, without, with}, true, err);
    free(text);
    allow_free(&list);
    return status;
}

static rp_status change_locked(const char *folder, const struct allowed_key *with, const char *who, rp_error *err)
{
    int lock = lock_folder(folder, err);
    if (lock < 0)
        return err ? (rp_status)err->status : RP_IO;
    rp_status status = change(folder, with, who, err);
    close(lock);
    return status;
}

rp_status allow_add(const char *folder, const struct allowed_key *key, rp_error *err)
{
    return change_locked(folder, key, NULL, err);
}

rp_status allow_change(const char *folder, const char *who, uint32_t set, const struct quota *quota, rp_error *err)
{
    return change_locked(folder, &(struct allowed_key){.roles = set, .quota = *quota}, who, err);
}

rp_status allow_remove(const char *folder, const char *who, rp_error *err)
{
    return change_locked(folder, NULL, who, err);
}
