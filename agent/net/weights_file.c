#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/net/weights.h"
#include "proto/base/error.h"

static rp_status fail_io(rp_error *err, const char *verb, const char *path)
{
    return err_set(err, errno == ENOENT ? RP_NOT_FOUND : RP_IO, "cannot %s '%s': %s", verb, path, strerror(errno));
}

static rp_status write_all(int file, const char *path, const uint8_t *data, size_t size, rp_error *err)
{
    while (size > 0) {
        ssize_t done = write(file, data, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return fail_io(err, "write", path);
        data += done;
        size -= (size_t)done;
    }
    return RP_OK;
}

static rp_status write_temporary(const char *path, const uint8_t *data, size_t size, rp_error *err)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return fail_io(err, "create", path);
    rp_status status = write_all(file, path, data, size, err);
    if (status == RP_OK && fsync(file) != 0)
        status = fail_io(err, "sync", path);
    if (close(file) != 0 && status == RP_OK)
        status = fail_io(err, "close", path);
    return status;
}

/* A new name is durable once its folder is synced. */
static rp_status sync_folder(const char *path, rp_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (folder == NULL)
        return err_set(err, RP_NO_MEMORY, "no memory to sync the folder of '%s'", path);
    rp_status status = RP_OK;
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync folders and return an error. */
    if (file < 0)
        status = fail_io(err, "open the folder", folder);
    else if (fsync(file) != 0 && errno != EINVAL)
        status = fail_io(err, "sync the folder", folder);
    if (file >= 0)
        close(file);
    free(folder);
    return status;
}

rp_status weights_write_file(const char *path, const struct tensor *tensors, uint32_t n, rp_error *err)
{
    size_t size = weights_size(tensors, n), length = strlen(path) + sizeof ".tmp";
    char *temporary = malloc(length);
    uint8_t *block = malloc(size);
    rp_status status = RP_OK;
    if (temporary == NULL || block == NULL) {
        status = err_set(err, RP_NO_MEMORY, "no memory for the %zu bytes of '%s'", size, path);
        goto done;
    }
    snprintf(temporary, length, "%s.tmp", path);
    weights_encode(tensors, n, block);
    status = write_temporary(temporary, block, size, err);
    if (status == RP_OK && rename(temporary, path) != 0)
        status = fail_io(err, "rename the new file to", path);
    if (status != RP_OK)
        unlink(temporary);
    else
        status = sync_folder(path, err);
done:
    free(block);
    free(temporary);
    return status;
}

static rp_status read_all(int file, const char *path, uint8_t *data, size_t size, rp_error *err)
{
    while (size > 0) {
        ssize_t done = read(file, data, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return fail_io(err, "read", path);
        if (done == 0)
            return err_set(err, RP_DATA_LOSS, "'%s' became shorter while it was read", path);
        data += done;
        size -= (size_t)done;
    }
    return RP_OK;
}

/* Gives the whole file. Allocates memory only after the header agrees with the file's size. */
static rp_status read_block(int file, const char *path, uint8_t **block, size_t *size, rp_error *err)
{
    struct stat info;
    uint8_t head[WEIGHTS_HEADER_BYTES] = {0};
    if (fstat(file, &info) != 0)
        return fail_io(err, "read", path);
    if (!S_ISREG(info.st_mode))
        return err_set(err, RP_INVALID_ARGUMENT, "'%s' is not a file", path);
    *size = (size_t)info.st_size;
    if (*size > WEIGHTS_MAX_BYTES)
        return err_set(err, RP_DATA_LOSS, "'%s' has %zu bytes; weights have at most %" PRIu64, path, *size,
                       WEIGHTS_MAX_BYTES);
    size_t first = *size < sizeof head ? *size : sizeof head;
    RP_TRY(read_all(file, path, head, first, err));
    rp_status status = weights_check_header(head, *size, err);
    if (status != RP_OK) {
        err_prefix(err, "'%s'", path);
        return status;
    }
    assert(*size >= sizeof head);
    *block = malloc(*size);
    if (*block == NULL)
        return err_set(err, RP_NO_MEMORY, "no memory for the %zu bytes of '%s'", *size, path);
    memcpy(*block, head, sizeof head);
    return read_all(file, path, *block + sizeof head, *size - sizeof head, err);
}

rp_status weights_load_file(const char *path, uint8_t **block, size_t *size, rp_error *err)
{
    *block = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return fail_io(err, "open", path);
    rp_status status = read_block(file, path, block, size, err);
    close(file);
    if (status != RP_OK) {
        free(*block);
        *block = NULL;
    }
    return status;
}

rp_status weights_read_file(const char *path, struct tensor *tensors, uint32_t n, rp_error *err)
{
    uint8_t *block = NULL;
    size_t size = 0;
    RP_TRY(weights_load_file(path, &block, &size, err));
    rp_status status = weights_decode(block, size, tensors, n, err);
    if (status != RP_OK)
        err_prefix(err, "'%s'", path);
    free(block);
    return status;
}
