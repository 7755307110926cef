/* See arena.h. What a broker says about its memory is not trusted: whatever it names, nothing is mapped but a file that stays as large as
 * it is, so that no read of it fails. */
#include "agent/client/conn/arena.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_wanted(bool inside)
{
    const char *value = getenv("REPLAY_SHM");
    return value ? strcmp(value, "0") != 0 : !inside;
}

/* Opens a file of a process if it is a regular one of this size: to open others, such as a pipe, would have an effect on who uses them.
 * Returns -1 if not. */
static int open_file(uint32_t pid, uint32_t number, uint64_t size)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%u/fd/%u", pid, number);
    int name = open(path, O_PATH | O_CLOEXEC), fd = -1;
    if (name < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", name);
    if (fstat(name, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size == size)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    close(name);
    return fd;
}

/* True if the file is memory that cannot become smaller. */
static bool is_sealed(int fd, uint64_t size)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &info) == 0 && (uint64_t)info.st_size == size;
}

/* Returns NULL unless the file begins with the nonce. */
static const uint8_t *map_file(int fd, size_t size, uint64_t nonce)
{
    void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return NULL;
    if (memcmp(data, &nonce, sizeof nonce) == 0)
        return data;
    munmap(data, size);
    return NULL;
}

struct conn_arena *conn_arena_map(struct conn_arena *before, const Replay__Arena *offer, bool inside)
{
    if (!offer || !is_wanted(inside) || offer->size < sizeof before->nonce || offer->size > SIZE_MAX / 2)
        return NULL;
    if (before && before->nonce == offer->nonce && before->size == offer->size)
        return conn_arena_ref(before);
    struct conn_arena *self = malloc(sizeof *self);
    int fd = self ? open_file(offer->pid, offer->fd, offer->size) : -1;
    size_t size = (size_t)offer->size;
    const uint8_t *data = fd >= 0 && is_sealed(fd, size) ? map_file(fd, size, offer->nonce) : NULL;
    if (fd >= 0)
        close(fd);
    if (data)
        *self = (struct conn_arena){.refs = 1, .data = data, .size = size, .nonce = offer->nonce};
    else
        free(self);
    return data ? self : NULL;
}

struct conn_arena *conn_arena_ref(struct conn_arena *self)
{
    if (self)
        __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    return self;
}

void conn_arena_unref(struct conn_arena **self_p)
{
    struct conn_arena *self = *self_p;
    *self_p = NULL;
    if (!self || __atomic_sub_fetch(&self->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    munmap((void *)(uintptr_t)self->data, self->size);
    free(self);
}
