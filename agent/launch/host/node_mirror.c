#include "agent/launch/host/node_mirror.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/host/host_folder.h"
#include "proto/base/clock.h"
#include "proto/base/need.h"

#define FILES_MOST 16384u
#define EVERY_NS (400 * NS_PER_MS)
#define AGAIN_NS (5 * NS_PER_S)
#define PIECES_MOST 4 /* in one turn, so that output of processes gets through as well */
#define DEPTH_MOST 6

static const char *const skipped[] = {"config.yaml", "keys", "here", NULL};

/* What the launcher has of a file. */
struct node_file {
    char *name;
    dev_t device;
    ino_t inode;
    int64_t sent;            /* bytes that the launcher has */
    struct timespec changed; /* when the file was last seen */
    bool whole;              /* to be sent from its beginning */
    bool due;                /* this pass has yet to send it */
    uint64_t seen;           /* the last pass in which the file was there */
    int64_t again_ns;        /* when the launcher last asked for the whole file; 0: never */
};

void node_mirror_init(struct node_mirror *self, const char *work)
{
    *self = (struct node_mirror){.work = work};
}

static void free_file(struct node_file *file)
{
    free(file->name);
    free(file);
}

void node_mirror_fini(struct node_mirror *self)
{
    if (self->file)
        close(self->fd);
    for (uint32_t i = 0; i < self->n; i++)
        free_file(self->files[i]);
    free(self->files);
}

bool node_mirror_busy(const struct node_mirror *self)
{
    return self->begun > self->finished;
}

/* ---- what the launcher has ---- */

/* Returns the file; NULL: there is none. *at: its place, or the one where it belongs. */
static struct node_file *find(const struct node_mirror *self, const char *name, uint32_t *at)
{
    uint32_t low = 0, high = self->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(self->files[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *at = low;
    return low < self->n && strcmp(self->files[low]->name, name) == 0 ? self->files[low] : NULL;
}

/* Returns the file, a new one with nothing sent if there was none; NULL: there are too many. */
static struct node_file *find_or_add(struct node_mirror *self, const char *name)
{
    uint32_t at;
    struct node_file *file = find(self, name, &at);
    if (file || self->n >= FILES_MOST)
        return file;
    file = need_alloc(sizeof *file);
    *file = (struct node_file){.name = need_text(name), .whole = true, .seen = self->begun};
    self->files = need_resize(self->files, self->n + 1, sizeof *self->files);
    memmove(&self->files[at + 1], &self->files[at], (self->n++ - at) * sizeof *self->files);
    self->files[at] = file;
    return file;
}

static void note(struct node_file *self, const struct stat *info, int64_t sent)
{
    self->device = info->st_dev;
    self->inode = info->st_ino;
    self->changed = info->st_mtim;
    self->sent = sent;
    self->whole = false;
}

void node_mirror_received(struct node_mirror *self, const char *name, const struct stat *info)
{
    struct node_file *file = find_or_add(self, name);
    if (file)
        note(file, info, info->st_size);
}

void node_mirror_again(struct node_mirror *self, const char *name, int64_t now_ns)
{
    uint32_t at;
    struct node_file *file = find(self, name, &at);
    if (!file || (file->again_ns != 0 && now_ns - file->again_ns < AGAIN_NS))
        return;
    file->again_ns = now_ns;
    file->whole = true;
}

static bool same_inode(const struct node_file *self, const struct stat *info)
{
    return self->inode == info->st_ino && self->device == info->st_dev;
}

static bool same_time(const struct node_file *self, const struct stat *info)
{
    return self->changed.tv_sec == info->st_mtim.tv_sec && self->changed.tv_nsec == info->st_mtim.tv_nsec;
}

/* A file of the same size that was written again is replaced, too. */
static bool is_replaced(const struct node_file *self, const struct stat *info)
{
    return self->whole || !same_inode(self, info) || info->st_size < self->sent ||
           (info->st_size == self->sent && !same_time(self, info));
}

/* ---- a pass ---- */

static bool is_skipped(const char *name, int depth)
{
    size_t length = strlen(name);
    if (name[0] == '.' || (length > 4 && strcmp(name + length - 4, ".tmp") == 0))
        return true;
    for (size_t i = 0; depth == 0 && skipped[i]; i++)
        if (strcmp(name, skipped[i]) == 0)
            return true;
    return false;
}

static void look_at(struct node_mirror *self, const char *name, const struct stat *info)
{
    struct node_file *file = host_folder_allows(name) ? find_or_add(self, name) : NULL;
    if (!file)
        return;
    file->seen = self->begun;
    file->due = is_replaced(file, info) || info->st_size > file->sent;
}

/* Takes the descriptor. */
static void walk(struct node_mirror *self, int fd, const char *below, int depth)
{
    DIR *folder = fdopendir(fd);
    if (!folder) {
        close(fd);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char name[HOST_FILE_NAME];
        struct stat info;
        int length = snprintf(name, sizeof name, "%s%s%s", below, below[0] ? "/" : "", entry->d_name);
        if (length >= (int)sizeof name || is_skipped(entry->d_name, depth) ||
            fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISREG(info.st_mode))
            look_at(self, name, &info);
        int deeper = S_ISDIR(info.st_mode) && depth < DEPTH_MOST
                         ? openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                         : -1;
        if (deeper >= 0)
            walk(self, deeper, name, depth + 1);
    }
    closedir(folder);
}

static void begin_pass(struct node_mirror *self, int64_t now_ns)
{
    uint32_t kept = 0;
    self->begun++;
    self->begun_ns = now_ns;
    int fd = open(self->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        walk(self, fd, "", 0);
    for (uint32_t i = 0; i < self->n; i++) {
        if (self->files[i]->seen == self->begun)
            self->files[kept++] = self->files[i];
        else
            free_file(self->files[i]); /* it was removed */
    }
    self->n = kept;
}

/* ---- one file ---- */

/* Opens a file without following links. False: it is gone. */
static bool open_file(struct node_mirror *self, struct node_file *file)
{
    char path[1024 + HOST_FILE_NAME];
    snprintf(path, sizeof path, "%s/%s", self->work, file->name);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &self->info) != 0 || !S_ISREG(self->info.st_mode)) {
        close(fd);
        return false;
    }
    self->file = file;
    self->fd = fd;
    self->replace = is_replaced(file, &self->info);
    self->offset = self->replace ? 0 : file->sent;
    self->size = self->info.st_size;
    return true;
}

/* Opens the next file of this pass. False: none is left. */
static bool open_next(struct node_mirror *self)
{
    for (uint32_t i = 0; i < self->n && !self->file; i++) {
        bool due = self->files[i]->due;
        self->files[i]->due = false;
        if (due)
            open_file(self, self->files[i]);
    }
    return self->file != NULL;
}

/* Sends the next piece of the file under way, and leaves the file after its last one. */
static void send_piece(struct node_mirror *self, struct host_writer *writer)
{
    uint8_t bytes[HOST_DATA_MOST];
    int64_t left = self->size - self->offset;
    ssize_t n = pread(self->fd, bytes, left < (int64_t)sizeof bytes ? (size_t)left : sizeof bytes, self->offset);
    bool cut = n < 0 || (n == 0 && left > 0); /* meanwhile: the next pass sends the file whole */
    bool last = cut || self->offset + n >= self->size;
    if (!cut) {
        struct json_object *line = host_line_new("file");
        host_line_add_text(line, "name", self->file->name);
        host_line_add_number(line, "offset", self->offset);
        host_line_add_flag(line, "replace", self->replace);
        host_line_add_flag(line, "last", last);
        host_writer_put_data(writer, line, bytes, (size_t)n);
        self->offset += n;
    }
    if (!last)
        return;
    close(self->fd);
    if (!cut)
        note(self->file, &self->info, self->offset);
    self->file = NULL;
}

void node_mirror_tend(struct node_mirror *self, struct host_writer *writer, int64_t now_ns, bool wanted)
{
    if (!node_mirror_busy(self) && (wanted || now_ns - self->begun_ns >= EVERY_NS))
        begin_pass(self, now_ns);
    for (int piece = 0; piece < PIECES_MOST && host_writer_room(writer); piece++) {
        if (!self->file && !open_next(self)) {
            self->finished = self->begun;
            return;
        }
        send_piece(self, writer);
    }
}
