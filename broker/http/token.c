#include "broker/http/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/error.h"

#define PATH_BYTES 4096u

static bool is_token(const char *text)
{
    return strlen(text) == TOKEN_TEXT - 1 && strspn(text, "0123456789abcdef") == TOKEN_TEXT - 1;
}

static rp_status token_read(const char *path, char token[TOKEN_TEXT], rp_error *err)
{
    char text[TOKEN_TEXT + 2] = "";
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool known = fd >= 0 && fstat(fd, &facts) == 0;
    ssize_t size = known ? read(fd, text, sizeof text - 1) : -1;
    int error = errno;
    if (fd >= 0)
        close(fd);
    if (size < 0)
        return err_set(err, RP_IO, "cannot read the token %s: %s", path, strerror(error));
    if (facts.st_uid != geteuid() || facts.st_mode & 077)
        return err_set(err, RP_PERMISSION_DENIED,
                       "the token %s belongs to somebody else, or others may read it: chmod 600 it, or remove it",
                       path);
    text[strcspn(text, "\r\n")] = '\0';
    if (!is_token(text))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the token %s has not 64 hexadecimal digits: remove it, and the broker makes a new one", path);
    memcpy(token, text, TOKEN_TEXT);
    return RP_OK;
}

/* Several shards make it at the same time: the first one's counts, and it is there as a whole or not at all. */
static rp_status token_make(const char *path, char token[TOKEN_TEXT], rp_error *err)
{
    char temporary[PATH_BYTES + 8];
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return err_set(err, RP_IO, "cannot make the token %s: %s", path, strerror(errno));
    http_make_token(token);
    bool written = dprintf(fd, "%s\n", token) == TOKEN_TEXT;
    int error = errno;
    bool ok = close(fd) == 0 && written;
    bool made = ok && link(temporary, path) == 0;
    if (!made && written)
        error = errno;
    unlink(temporary);
    if (made)
        return RP_OK;
    return ok && error == EEXIST ? token_read(path, token, err)
                                 : err_set(err, RP_IO, "cannot write the token %s: %s", path, strerror(error));
}

rp_status token_open(const char *folder, const char *file, char token[TOKEN_TEXT], rp_error *err)
{
    char path[PATH_BYTES];
    struct stat facts;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, file) >= sizeof path)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the folder of keys is too long");
    return lstat(path, &facts) == 0 ? token_read(path, token, err) : token_make(path, token, err);
}
