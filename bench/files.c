#include "bench/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/children.h"
#include "proto/base/rng.h"

#define BLOCK_BYTES (1u << 20)

bool files_folder(const char *parent, char *out, size_t size)
{
    snprintf(out, size, "%s/disk-XXXXXX", parent ? parent : children_dir());
    if (mkdtemp(out))
        return true;
    fprintf(stderr, "replay-bench: cannot make a folder like %s: %s\n", out, strerror(errno));
    return false;
}

/* Calls fn with every file's path. */
static void each(const char *folder, void (*fn)(const char *path, void *ctx), void *ctx)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        fn(path, ctx);
    }
    if (dir)
        closedir(dir);
}

static void remove_one(const char *path, void *ctx)
{
    (void)ctx;
    unlink(path);
}

void files_remove(const char *folder)
{
    each(folder, remove_one, NULL);
    rmdir(folder);
}

static void add_bytes(const char *path, void *ctx)
{
    struct stat found;
    if (stat(path, &found) == 0)
        *(uint64_t *)ctx += (uint64_t)found.st_size;
}

uint64_t files_bytes(const char *folder)
{
    uint64_t bytes = 0;
    each(folder, add_bytes, &bytes);
    return bytes;
}

static uint8_t *block(void)
{
    static uint8_t data[BLOCK_BYTES];
    struct rng rng;
    rng_seed(&rng, 5);
    for (size_t i = 0; i < sizeof data; i += 8) {
        uint64_t value = rng_next(&rng);
        memcpy(data + i, &value, 8);
    }
    return data;
}

double files_write(const char *folder, uint64_t bytes)
{
    char path[4096];
    const uint8_t *data = block();
    snprintf(path, sizeof path, "%s/plain", folder);
    double start = children_now();
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    bool ok = file >= 0;
    for (uint64_t at = 0; ok && at < bytes; at += BLOCK_BYTES) {
        size_t size = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        ok = write(file, data, size) == (ssize_t)size;
    }
    ok = ok && fsync(file) == 0;
    double took = children_now() - start;
    if (!ok)
        fprintf(stderr, "replay-bench: cannot write %s: %s\n", path, strerror(errno));
    if (file >= 0)
        close(file);
    unlink(path);
    return ok ? took : -1;
}

static void read_one(const char *path, void *ctx)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    while (file >= 0 && read(file, ctx, BLOCK_BYTES) > 0) {
    }
    if (file >= 0)
        close(file);
}

double files_read(const char *folder)
{
    static uint8_t data[BLOCK_BYTES];
    double start = children_now();
    each(folder, read_one, data);
    return children_now() - start;
}

static void forget_one(const char *path, void *ctx)
{
    (void)ctx;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
}

void files_forget(const char *folder)
{
    each(folder, forget_one, NULL);
}
