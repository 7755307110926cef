/* A file is ours if its name has our shape, its head is sound, and the head has this folder's id and the kind and
 * number of the name. Whatever removes or overwrites a file checks that first. */
#include "broker/journal/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/crc32c.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/need.h"
#include "proto/base/text.h"

static const char MAGIC[8] = {'R', 'P', 'L', 'Y', 'D', 'I', 'S', 'K'};

void folder_name(enum disk_kind kind, uint64_t number, bool part, char *out, size_t size)
{
    snprintf(out, size, "%s-%08" PRIu64 ".replay%s", kind == DISK_SEGMENT ? "segment" : "checkpoint", number,
             part ? ".part" : "");
}

/* Reads a name as folder_name writes it. False: it has another shape. */
static bool name_read(const char *name, enum disk_kind *kind, uint64_t *number, bool *part)
{
    char again[64];
    const char *digits = strchr(name, '-');
    if (!digits)
        return false;
    *kind = name[0] == 's' ? DISK_SEGMENT : DISK_CHECKPOINT;
    *number = strtoull(digits + 1, NULL, 10);
    *part = text_ends(name, ".part");
    folder_name(*kind, *number, *part, again, sizeof again);
    return *number > 0 && *number < UINT64_C(1) << (64 - DISK_OFFSET_BITS) && strcmp(name, again) == 0;
}

static uint32_t head_crc(const struct file_head *head)
{
    struct file_head copy = *head;
    copy.crc = 0;
    return crc32c(0, &copy, sizeof copy);
}

/* Reads a file's head. False: there is none, or it is damaged. */
static bool head_read(int file, struct file_head *out)
{
    return io_read(file, out, sizeof *out, 0) == (ssize_t)sizeof *out && memcmp(out->magic, MAGIC, sizeof MAGIC) == 0 &&
           out->crc == head_crc(out);
}

static bool head_of(const struct folder *self, const char *name, struct file_head *out)
{
    int file = openat(self->descriptor, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return false;
    bool ok = head_read(file, out);
    close(file);
    return ok;
}

static bool head_fits(const struct file_head *head, enum disk_kind kind, uint64_t number)
{
    return head->kind == (uint16_t)kind && head->number == number;
}

static int by_kind_and_number(const void *a, const void *b)
{
    const struct folder_file *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* A file whose name has our shape. */
struct found {
    struct folder_file file;
    char name[64];
    bool part;
    bool sound; /* its head is, and fits its name */
    struct file_head head;
};

/* Finds them all. *out is the caller's; NULL after an error. */
static rp_status find_all(const struct folder *self, struct found **out, uint32_t *n, rp_error *err)
{
    int copy = openat(self->descriptor, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = copy >= 0 ? fdopendir(copy) : NULL;
    *out = NULL;
    *n = 0;
    if (!names) {
        rp_status status = err_set(err, RP_IO, "folder '%s' cannot be listed: %s", self->path, strerror(errno));
        if (copy >= 0)
            close(copy);
        return status;
    }
    for (struct dirent *name; (name = readdir(names));) {
        struct found found = {0};
        struct stat about;
        if (!name_read(name->d_name, &found.file.kind, &found.file.number, &found.part) ||
            fstatat(self->descriptor, name->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode))
            continue;
        found.file.bytes = (uint64_t)about.st_size;
        found.file.changed_ns = (int64_t)about.st_mtim.tv_sec * 1000000000 + about.st_mtim.tv_nsec;
        snprintf(found.name, sizeof found.name, "%s", name->d_name);
        found.sound =
            head_of(self, found.name, &found.head) && head_fits(&found.head, found.file.kind, found.file.number);
        if ((*n & (*n - 1)) == 0) /* the array grows in powers of two */
            *out = need_resize(*out, *n ? (size_t)*n * 2 : 1, sizeof **out);
        (*out)[(*n)++] = found;
    }
    closedir(names);
    return RP_OK;
}

rp_status folder_list(struct folder *self, rp_error *err)
{
    struct found *found;
    uint32_t n;
    rp_status status = find_all(self, &found, &n, err);
    if (status != RP_OK)
        return status;
    free(self->files);
    self->files = need_alloc((n + 1) * sizeof *self->files);
    self->n_files = 0;
    memset(self->highest, 0, sizeof self->highest);
    for (uint32_t i = 0; i < n; i++) {
        struct folder_file file = found[i].file;
        if (file.number > self->highest[file.kind])
            self->highest[file.kind] = file.number;
        if (found[i].sound && self->id == 0)
            self->id = found[i].head.folder;
        file.mine = found[i].sound && found[i].head.folder == self->id;
        if (!found[i].part)
            self->files[self->n_files++] = file;
    }
    qsort(self->files, self->n_files, sizeof *self->files, by_kind_and_number);
    free(found);
    return RP_OK;
}

/* All sound heads must have one id. A file that was damaged or renamed is not ours: it stays, and whoever needs it will
 * report it as missing. */
static rp_status check_owner(struct folder *self, const struct found *found, uint32_t n, bool write, rp_error *err)
{
    const struct found *first = NULL;
    for (const struct found *at = found; at < found + n; at++) {
        if (!at->sound)
            continue;
        if (write && at->head.version != DISK_VERSION)
            return err_set(err, RP_UNSUPPORTED,
                           "folder '%s': file '%s' has version %u of the format, this release writes %u. Use the "
                           "release that made it, or another folder",
                           self->path, at->name, at->head.version, DISK_VERSION);
        first = first ? first : at;
        if (at->head.folder != first->head.folder)
            return err_set(err, RP_FAILED_PRECONDITION,
                           "folder '%s': files '%s' and '%s' are of two different brokers' folders. Move those of one "
                           "elsewhere",
                           self->path, first->name, at->name);
    }
    self->id = first ? first->head.folder : 0;
    return RP_OK;
}

static rp_status folder_make(const char *path, rp_error *err)
{
    if (strlen(path) >= PATH_MAX)
        return err_set(err, RP_INVALID_ARGUMENT, "the folder's name is too long");
    io_make_parents(path, 0777);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return err_set(err, RP_IO, "folder '%s' cannot be created: %s", path, strerror(errno));
    return RP_OK;
}

static rp_status folder_lock(struct folder *self, rp_error *err)
{
    self->lock = openat(self->descriptor, "replay.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (self->lock < 0)
        return err_set(err, RP_IO, "folder '%s' cannot be written to: replay.lock: %s", self->path, strerror(errno));
    /* The folder, too: somebody may remove the file. */
    if (flock(self->lock, LOCK_EX | LOCK_NB) != 0 ||
        (flock(self->descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)) {
        char holder[32] = "";
        ssize_t n = pread(self->lock, holder, sizeof holder - 1, 0);
        holder[n > 0 ? strspn(holder, "0123456789") : 0] = '\0';
        return err_set(err, RP_FAILED_PRECONDITION,
                       "folder '%s' is in use by another broker (process %s): give each broker a folder of its own",
                       self->path, holder[0] ? holder : "unknown");
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    /* The pid is only for the message above, so a full disk must not prevent the start. */
    (void)!(ftruncate(self->lock, 0) == 0 && pwrite(self->lock, text, (size_t)n, 0) == n);
    return RP_OK;
}

/* Checks the files. For writing: removes parts that a killed broker left. */
static rp_status folder_own(struct folder *self, const struct found *found, uint32_t n, bool write, rp_error *err)
{
    RP_TRY(check_owner(self, found, n, write, err));
    while (write && self->id == 0)
        if (getrandom(&self->id, sizeof self->id, 0) != (ssize_t)sizeof self->id)
            return err_set(err, RP_IO, "no random number for the folder's id: %s", strerror(errno));
    for (uint32_t i = 0; write && i < n; i++)
        if (found[i].part && found[i].sound)
            unlinkat(self->descriptor, found[i].name, 0);
    return RP_OK;
}

static rp_status folder_begin(struct folder *self, bool write, rp_error *err)
{
    if (write)
        RP_TRY(folder_make(self->path, err));
    self->descriptor = open(self->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (self->descriptor < 0)
        return err_set(err, errno == ENOENT ? RP_NOT_FOUND : RP_IO, "folder '%s' cannot be opened: %s", self->path,
                       strerror(errno));
    if (write)
        RP_TRY(folder_lock(self, err));
    struct found *found;
    uint32_t n;
    rp_status status = find_all(self, &found, &n, err);
    if (status == RP_OK)
        status = folder_own(self, found, n, write, err);
    free(found);
    return status == RP_OK ? folder_list(self, err) : status;
}

rp_status folder_open(struct folder *self, const char *path, bool write, rp_error *err)
{
    *self = (struct folder){.descriptor = -1, .lock = -1, .path = need_text(path)};
    rp_status status = folder_begin(self, write, err);
    if (status != RP_OK)
        folder_close(self);
    return status;
}

void folder_close(struct folder *self)
{
    if (self->lock >= 0)
        close(self->lock);
    if (self->descriptor >= 0)
        close(self->descriptor);
    free(self->files);
    free(self->path);
    *self = (struct folder){.descriptor = -1, .lock = -1};
}

uint64_t folder_next(const struct folder *self, enum disk_kind kind)
{
    return self->highest[kind] + 1;
}

int folder_read(const struct folder *self, enum disk_kind kind, uint64_t number, rp_error *err)
{
    char name[64];
    folder_name(kind, number, false, name, sizeof name);
    int file = openat(self->descriptor, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct file_head head;
    if (file < 0)
        err_set(err,
                errno == ENOENT                                         ? RP_NOT_FOUND
                : errno == EMFILE || errno == ENFILE || errno == ENOMEM ? RP_NO_MEMORY
                                                                        : RP_IO,
                "file '%s/%s' cannot be opened: %s", self->path, name, strerror(errno));
    else if (!head_read(file, &head))
        err_set(err, RP_BAD_MESSAGE, "file '%s/%s' has no head, or a damaged one", self->path, name);
    else if (!head_fits(&head, kind, number) || head.folder != self->id)
        err_set(err, RP_BAD_MESSAGE, "file '%s/%s' is not of this folder, or was renamed", self->path, name);
    else if (head.version != DISK_VERSION)
        err_set(err, RP_UNSUPPORTED, "file '%s/%s' has version %u of the format, this release reads %u", self->path,
                name, head.version, DISK_VERSION);
    else
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

/* Creates a file that gets its name after its head is written: a broker that is killed before leaves no file without a
 * head. -1: the file system cannot do that, which is no error. */
static int create_at_once(const struct folder *self, const char *name, const struct file_head *head)
{
    int file = openat(self->descriptor, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    if (file >= 0 && io_write(file, head, sizeof *head, 0) &&
        linkat(AT_FDCWD, link, self->descriptor, name, AT_SYMLINK_FOLLOW) == 0)
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

int folder_create(const struct folder *self, enum disk_kind kind, uint64_t number, rp_error *err)
{
    char name[64];
    folder_name(kind, number, kind == DISK_CHECKPOINT, name, sizeof name);
    struct file_head head = {.version = DISK_VERSION, .kind = (uint16_t)kind, .number = number, .folder = self->id};
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    head.crc = head_crc(&head);
    int file = create_at_once(self, name, &head);
    if (file >= 0)
        return file;
    file = openat(self->descriptor, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0) {
        err_set(err, errno == ENOSPC ? RP_RESOURCE_EXHAUSTED : RP_IO, "file '%s/%s' cannot be created: %s", self->path,
                name, strerror(errno));
        return -1;
    }
    if (!io_write(file, &head, sizeof head, 0)) {
        err_set(err, errno == ENOSPC ? RP_RESOURCE_EXHAUSTED : RP_IO, "file '%s/%s' cannot be written: %s", self->path,
                name, strerror(errno));
        unlinkat(self->descriptor, name, 0);
        close(file);
        return -1;
    }
    return file;
}

rp_status folder_finish(const struct folder *self, uint64_t checkpoint, int descriptor, rp_error *err)
{
    char part[64], name[64];
    folder_name(DISK_CHECKPOINT, checkpoint, true, part, sizeof part);
    folder_name(DISK_CHECKPOINT, checkpoint, false, name, sizeof name);
    if (fsync(descriptor) != 0)
        return err_set(err, RP_IO, "file '%s/%s' cannot be synced: %s", self->path, part, strerror(errno));
    int failed = renameat2(self->descriptor, part, self->descriptor, name, RENAME_NOREPLACE);
    /* EINVAL: the file system has no rename without replacing. */
    if (failed && errno == EINVAL)
        failed = faccessat(self->descriptor, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0
                     ? (errno = EEXIST, -1)
                     : renameat(self->descriptor, part, self->descriptor, name);
    if (failed)
        return err_set(err, RP_IO, "file '%s/%s' cannot be renamed to '%s': %s", self->path, part, name,
                       strerror(errno));
    if (fsync(self->descriptor) != 0)
        return err_set(err, RP_IO, "folder '%s' cannot be synced: %s", self->path, strerror(errno));
    return RP_OK;
}

rp_status folder_remove(const struct folder *self, enum disk_kind kind, uint64_t number, bool part, rp_error *err)
{
    char name[64];
    folder_name(kind, number, part, name, sizeof name);
    struct stat about;
    if (fstatat(self->descriptor, name, &about, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
        return RP_OK;
    struct file_head head;
    if (!head_of(self, name, &head) || !head_fits(&head, kind, number) || head.folder != self->id)
        return err_set(err, RP_FAILED_PRECONDITION, "file '%s/%s' is not one of this broker's: it stays", self->path,
                       name);
    if (unlinkat(self->descriptor, name, 0) != 0 && errno != ENOENT)
        return err_set(err, RP_IO, "file '%s/%s' cannot be removed: %s", self->path, name, strerror(errno));
    return RP_OK;
}
