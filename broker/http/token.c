#include "broker/http/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/error.h"

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

static rp_status token_write(int fd, const char *path, char token[TOKEN_TEXT], rp_error *err)
{
    http_make_token(token);
    bool ok = dprintf(fd, "%s\n", token) == TOKEN_TEXT;
    int error = errno;
    ok = close(fd) == 0 && ok;
    if (ok)
        return RP_OK;
    unlink(path);
    return err_set(err, RP_IO, "cannot write the token %s: %s", path, strerror(error));
}

rp_status token_open(const char *folder, char token[TOKEN_TEXT], rp_error *err)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, TOKEN_FILE) >= sizeof path)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the folder of keys is too long");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        return token_write(fd, path, token, err);
    if (errno == EEXIST)
        return token_read(path, token, err);
    return err_set(err, RP_IO, "cannot make the token %s: %s", path, strerror(errno));
}
