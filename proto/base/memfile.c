#include "proto/base/memfile.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "proto/base/rng.h"

bool memfile_make(struct memfile *self, uint64_t size)
{
    *self = (struct memfile){.size = size};
    /* A file that is larger than the process may make would be its end, by SIGXFSZ. */
    struct rlimit most;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < size)
        return false;
    self->fd = memfd_create("replay", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (self->fd < 0)
        return false;
    rng_system(&self->nonce, sizeof self->nonce);
    void *memory = ftruncate(self->fd, (off_t)size) == 0 && memfile_fill(self, 0, sizeof self->nonce)
                       ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, self->fd, 0)
                       : MAP_FAILED;
    if (memory != MAP_FAILED && fchmod(self->fd, S_IRUSR) == 0 &&
        fcntl(self->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        self->memory = memcpy(memory, &self->nonce, sizeof self->nonce);
        return true;
    }
    if (memory != MAP_FAILED)
        munmap(memory, size);
    close(self->fd);
    return false;
}

void memfile_fini(struct memfile *self)
{
    if (!self->memory)
        return;
    munmap(self->memory, self->size);
    close(self->fd);
    self->memory = NULL;
}

bool memfile_fill(const struct memfile *self, uint64_t at, uint64_t bytes)
{
    return fallocate(self->fd, 0, (off_t)at, (off_t)bytes) == 0;
}

struct memfile_name memfile_name(const struct memfile *self)
{
    return (struct memfile_name){(uint32_t)getpid(), (uint32_t)self->fd, self->size, self->nonce};
}

/* Opens a file of a process if it is a regular one of this size: to open others, such as a pipe, would have an effect on who uses them.
 * It must be this user's own, too: root may open the files of all, and must not read them for whoever names them. Returns -1 if not. */
static int open_file(const struct memfile_name *of)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%u/fd/%u", of->pid, of->fd);
    int name = open(path, O_PATH | O_CLOEXEC), fd = -1;
    if (name < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", name);
    if (fstat(name, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size == of->size &&
        info.st_uid == geteuid())
        fd = open(path, O_RDONLY | O_CLOEXEC);
    close(name);
    return fd;
}

/* True if the file is memory that cannot become smaller, and begins with the nonce. Not of huge pages: where none is left, reading a hole
 * in it would end this process. */
static bool is_sealed(int fd, const struct memfile_name *name)
{
    struct stat info;
    struct statfs kind;
    uint64_t nonce;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &info) == 0 && (uint64_t)info.st_size == name->size &&
           fstatfs(fd, &kind) == 0 && kind.f_type == TMPFS_MAGIC &&
           pread(fd, &nonce, sizeof nonce, 0) == sizeof nonce && nonce == name->nonce;
}

const uint8_t *memfile_map(const struct memfile_name *name)
{
    if (name->size < sizeof name->nonce || name->size > SIZE_MAX / 2)
        return NULL;
    int fd = open_file(name);
    if (fd < 0)
        return NULL;
    void *memory = is_sealed(fd, name) ? mmap(NULL, (size_t)name->size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

void memfile_unmap(const uint8_t *memory, uint64_t size)
{
    if (memory)
        munmap((void *)(uintptr_t)memory, (size_t)size);
}
