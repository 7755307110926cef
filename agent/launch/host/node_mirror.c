/* Files of the work folder go home: new bytes of a file that has grown, and the whole of a file that is new or was replaced. Names
 * that begin with a dot or end in ".tmp" are not sent, nor are the files that only the launcher writes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/host/node_impl.h"
#include "proto/base/clock.h"

#define EVERY_NS (400 * NS_PER_MS)
#define AGAIN_NS (5 * NS_PER_S)
#define PIECES_MOST 4 /* in one turn, so that output of processes gets through as well */
#define DEPTH_MOST 6

static const char *const skipped[] = {"config.yaml", "keys", "here", NULL};

void node_mirror_init(struct node_mirror *self)
{
    *self = (struct node_mirror){.fd = -1};
}

static void clear_queue(struct node_mirror *self)
{
    for (uint32_t i = 0; i < self->queued; i++)
        free(self->queue[i]);
    free(self->queue);
    self->queue = NULL;
    self->queued = self->at = 0;
}

void node_mirror_fini(struct node_mirror *self)
{
    clear_queue(self);
    for (uint32_t i = 0; i < self->n; i++)
        free(self->files[i].name);
    free(self->files);
    if (self->fd >= 0)
        close(self->fd);
    node_mirror_init(self);
}

bool node_mirror_busy(const struct node_mirror *self)
{
    return self->begun > self->finished;
}

/* ---- what the launcher has ---- */

/* Index of the file, or of the place where it belongs. */
static uint32_t place_of(const struct node_mirror *self, const char *name, bool *found)
{
    uint32_t low = 0, high = self->n;
    *found = false;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(self->files[middle].name, name);
        if (order == 0) {
            *found = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct node_file *find(struct node_mirror *self, const char *name)
{
    bool found;
    uint32_t at = place_of(self, name, &found);
    return found ? &self->files[at] : NULL;
}

/* Returns the file, a new one with nothing sent if there was none; NULL: too many, or no memory. */
static struct node_file *find_or_add(struct node_mirror *self, const char *name)
{
    bool found;
    uint32_t at = place_of(self, name, &found);
    if (found)
        return &self->files[at];
    if (self->n >= NODE_FILES_MOST)
        return NULL;
    if (self->n == self->capacity) {
        uint32_t capacity = self->capacity ? 2 * self->capacity : 64;
        struct node_file *more = realloc(self->files, capacity * sizeof *more);
        if (!more)
            return NULL;
        self->files = more;
        self->capacity = capacity;
    }
    char *copy = strdup(name);
    if (!copy)
        return NULL;
    memmove(&self->files[at + 1], &self->files[at], (self->n - at) * sizeof *self->files);
    self->n++;
    self->files[at] = (struct node_file){.name = copy, .whole = true, .seen = self->begun};
    return &self->files[at];
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
    struct node_file *file = find(self, name);
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

static void enqueue(struct node_mirror *self, const char *name)
{
    if (self->queued % 64 == 0) {
        char **more = realloc(self->queue, (self->queued + 64) * sizeof *more);
        if (!more)
            return;
        self->queue = more;
    }
    char *copy = strdup(name);
    if (copy)
        self->queue[self->queued++] = copy;
}

static void look_at(struct node *self, const char *name, const struct stat *info)
{
    struct node_file *file = host_folder_allows(name) ? find_or_add(&self->mirror, name) : NULL;
    if (!file)
        return;
    file->seen = self->mirror.begun;
    if (is_replaced(file, info) || info->st_size > file->sent)
        enqueue(&self->mirror, name);
}

/* Takes the descriptor. */
static void walk(struct node *self, int fd, const char *below, int depth)
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

static void forget_removed(struct node_mirror *self)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < self->n; i++) {
        if (self->files[i].seen == self->begun)
            self->files[kept++] = self->files[i];
        else
            free(self->files[i].name);
    }
    self->n = kept;
}

static void begin_pass(struct node *self, int64_t now_ns)
{
    struct node_mirror *mirror = &self->mirror;
    mirror->begun++;
    mirror->begun_ns = now_ns;
    int fd = open(self->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        walk(self, fd, "", 0);
    forget_removed(mirror);
}

/* ---- one file ---- */

/* Opens the file without following links. False: it is gone, or nothing in it is new. */
static bool open_file(struct node *self, const char *name)
{
    struct node_mirror *mirror = &self->mirror;
    char path[sizeof self->work + HOST_FILE_NAME + 2];
    const struct node_file *file = find(mirror, name);
    snprintf(path, sizeof path, "%s/%s", self->work, name);
    int fd = file ? open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    if (fstat(fd, &mirror->info) != 0 || !S_ISREG(mirror->info.st_mode)) {
        close(fd);
        return false;
    }
    mirror->fd = fd;
    mirror->replace = is_replaced(file, &mirror->info);
    mirror->offset = mirror->replace ? 0 : file->sent;
    mirror->size = mirror->info.st_size;
    return true;
}

static void close_file(struct node_mirror *self, bool sent)
{
    struct node_file *file = find(self, self->queue[self->at]);
    close(self->fd);
    self->fd = -1;
    if (file && sent)
        note(file, &self->info, self->offset);
    free(self->queue[self->at]);
    self->queue[self->at++] = NULL;
}

/* Sends the next piece of the file under way, and leaves the file after its last one. */
static void send_piece(struct node *self)
{
    struct node_mirror *mirror = &self->mirror;
    uint8_t bytes[HOST_DATA_MOST];
    int64_t left = mirror->size - mirror->offset;
    ssize_t n = pread(mirror->fd, bytes, left < (int64_t)sizeof bytes ? (size_t)left : sizeof bytes, mirror->offset);
    if (n < 0 || (n == 0 && left > 0)) {
        close_file(mirror, false); /* cut meanwhile: the next pass sends the file whole */
        return;
    }
    bool last = mirror->offset + n >= mirror->size;
    struct json_object *line = host_line_new("file");
    host_line_add_text(line, "name", mirror->queue[mirror->at]);
    host_line_add_number(line, "offset", mirror->offset);
    host_line_add_flag(line, "replace", mirror->replace);
    host_line_add_flag(line, "last", last);
    host_line_add_data(line, bytes, (size_t)n);
    host_writer_put(&self->writer, line);
    mirror->offset += n;
    if (last)
        close_file(mirror, true);
}

void node_mirror_tend(struct node *self, int64_t now_ns, bool wanted)
{
    struct node_mirror *mirror = &self->mirror;
    if (!node_mirror_busy(mirror) && (wanted || now_ns - mirror->begun_ns >= EVERY_NS))
        begin_pass(self, now_ns);
    for (int piece = 0; piece < PIECES_MOST && mirror->at < mirror->queued && host_writer_room(&self->writer);) {
        if (mirror->fd < 0 && !open_file(self, mirror->queue[mirror->at])) {
            free(mirror->queue[mirror->at]);
            mirror->queue[mirror->at++] = NULL;
            continue;
        }
        send_piece(self);
        piece++;
    }
    if (node_mirror_busy(mirror) && mirror->at == mirror->queued) {
        clear_queue(mirror);
        mirror->finished = mirror->begun;
    }
}
