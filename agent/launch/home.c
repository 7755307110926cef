#include "agent/launch/home.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "agent/config/config.h"
#include "proto/base/error.h"

#define TOKEN "page.token"
#define FOLDERS "page.folders" /* a line each; its number is part of addresses, so no line is ever removed */
#define CHANGING "page.lock"   /* the lock of whoever reads or changes the two */

const char *home_address(const char *given)
{
    const char *wanted = getenv("REPLAY_PAGE");
    bool usual = !given || strcmp(given, LAUNCH_HTTP) == 0;
    return !usual ? given : wanted && wanted[0] ? wanted : LAUNCH_HTTP;
}

bool home_is_shared(const char *address)
{
    const char *colon = strrchr(address, ':');
    return colon && strtoul(colon + 1, NULL, 10) > 0;
}

static rp_status lock_changes(const struct home *self, int *lock, rp_error *err)
{
    *lock = run_folder_lock_file(self->cache, CHANGING, 0600, LOCK_EX);
    return *lock >= 0 ? RP_OK
                      : err_set(err, RP_IO, "'%s/" CHANGING "' cannot be locked: %s", self->cache, strerror(errno));
}

rp_status home_open(struct home *self, const char *address, rp_error *err)
{
    int lock;
    *self = (struct home){.lock = -1};
    snprintf(self->address, sizeof self->address, "%s", address);
    RP_TRY(run_folder_cache(self->cache, err));
    RP_TRY(run_folder_make(self->cache, 0755, err));
    RP_TRY(lock_changes(self, &lock, err));
    rp_status status = RP_OK;
    char *text = run_folder_read(self->cache, TOKEN);
    if (text && strspn(text, "0123456789abcdef") == HTTP_TOKEN - 1 && !text[HTTP_TOKEN - 1]) {
        memcpy(self->token, text, HTTP_TOKEN);
    } else {
        http_make_token(self->token);
        status = run_folder_write_secret(self->cache, TOKEN, self->token, err);
    }
    free(text);
    close(lock);
    return status;
}

/* ---- folders of runs ---- */

static const char *next_line(const char *text)
{
    text += strcspn(text, "\n");
    return text + (*text == '\n');
}

/* Returns the number of a folder; 0: it is not there. Counts the lines. */
static uint32_t number_of(const char *text, const char *folder, uint32_t *lines)
{
    size_t size = strlen(folder);
    uint32_t found = 0;
    for (*lines = 0; *text; text = next_line(text)) {
        ++*lines;
        if (!found && strncmp(text, folder, size) == 0 && text[size] == '\n')
            found = *lines;
    }
    return found;
}

static rp_status add_line(const struct home *self, const char *folder, uint32_t *number, rp_error *err)
{
    char *text = run_folder_read(self->cache, FOLDERS), path[FOLDER_SIZE + 32];
    uint32_t lines = 0;
    size_t length = text ? strlen(text) : 0;
    bool cut = length > 0 && text[length - 1] != '\n'; /* by a full disk */
    *number = number_of(text ? text : "", folder, &lines);
    free(text);
    if (*number)
        return RP_OK;
    *number = lines + 1;
    FILE *out = fopen(run_folder_path(path, sizeof path, self->cache, FOLDERS), "ae");
    bool ok = out && fprintf(out, "%s%s\n", cut ? "\n" : "", folder) > 0;
    if (out && fclose(out) != 0)
        ok = false;
    return ok ? RP_OK : err_set(err, RP_IO, "'%s' cannot be written: %s", path, strerror(errno));
}

rp_status home_add(struct home *self, const char *run, char *page, size_t size, rp_error *err)
{
    char real[PATH_MAX];
    uint32_t number = 0;
    int lock;
    char *name = realpath(run, real) ? strrchr(real, '/') : NULL;
    if (!name || name == real || !name[1] || name - real > (ptrdiff_t)FOLDER_SIZE - 200 || strchr(real, '\n'))
        return err_set(err, RP_INVALID_ARGUMENT, "the folder '%s' cannot be shown: its path is too long, or odd", run);
    *name++ = '\0';
    RP_TRY(lock_changes(self, &lock, err));
    rp_status status = add_line(self, real, &number, err);
    close(lock);
    struct text part = {0};
    for (; *name; name++) /* what is no letter, digit or "-._" has a meaning in addresses, or none */
        text_add(&part, isalnum((unsigned char)*name) || strchr("-._", *name) ? "%c" : "%%%02X", (unsigned char)*name);
    snprintf(page, size, "%u/%s/", number, text_get(&part));
    text_fini(&part);
    return status;
}

bool home_folder(const struct home *self, uint32_t number, char out[FOLDER_SIZE])
{
    char *text = run_folder_read(self->cache, FOLDERS);
    const char *line = text;
    for (; line && *line && number > 1; number--)
        line = next_line(line);
    size_t size = line ? strcspn(line, "\n") : 0;
    bool found = number == 1 && size > 0 && size < FOLDER_SIZE;
    if (found)
        snprintf(out, FOLDER_SIZE, "%.*s", (int)size, line);
    free(text);
    return found;
}

/* ---- who serves ---- */

/* Several machines may share a home folder, and a user may want several addresses. */
bool home_lock(struct home *self)
{
    char node[FOLDER_NODE], name[FOLDER_NODE + HTTP_ADDRESS + 16];
    run_folder_this_node(node);
    snprintf(name, sizeof name, "page-%s-%s.lock", node, self->address);
    self->lock = strchr(name, '/') ? -1 : run_folder_lock_file(self->cache, name, 0600, LOCK_EX | LOCK_NB);
    return self->lock >= 0;
}

void home_unlock(struct home *self)
{
    if (self->lock >= 0)
        close(self->lock);
    self->lock = -1;
}
