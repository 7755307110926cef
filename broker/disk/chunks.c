/* Reads chunks from many places. Their places are known, their sizes are not, so files are read in windows that start
 * at a place and extend over small gaps. A thread reads ahead while the caller works on the window before. A chunk
 * that runs over the end of its window is read by itself. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/disk/load.h"
#include "proto/base/error.h"

#define WINDOW_BYTES (4u << 20)
#define GAP_BYTES (256u << 10)
/* Bytes that are read after the start of the last chunk of a window. */
#define TAIL_BYTES (64u << 10)
/* With fewer places, a thread is not worth its cost. */
#define THREAD_PLACES 256u
#define WINDOWS 3u

struct window {
    uint8_t *data;
    int file;
    uint64_t offset, size; /* the part of the file that it holds */
    uint64_t first, n;     /* the places that lie in it */
    uint64_t sound;        /* of those, how many from the first on are whole with a correct checksum */
    uint64_t file_bytes;
    rp_status status;
    rp_error error;
};

/* Reads windows, on the caller's thread or ahead of it on its own. */
struct feeder {
    const struct folder *folder;
    const uint64_t *at;
    uint64_t n, next; /* number of places; index of the first one that is in no window yet */
    int file;
    uint64_t number, file_bytes, offset; /* the open file, and the offset up to which it was read */
    struct window windows[WINDOWS];
    /* with a thread */
    bool threaded, stop;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    uint64_t filled, taken; /* number of windows so far */
    int old[WINDOWS];       /* files that the caller may still need for a window; closed together with it */
};

static rp_status read_at(int file, void *data, uint64_t size, uint64_t offset, rp_error *err)
{
    for (uint64_t done = 0; done < size;) {
        ssize_t n = pread(file, (uint8_t *)data + done, size - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set(err, n < 0 ? RP_IO : RP_DATA_LOSS, "offset %llu: %s", (unsigned long long)(offset + done),
                           n < 0 ? strerror(errno) : "the file ends there");
        done += (uint64_t)n;
    }
    return RP_OK;
}

static rp_status feeder_open(struct feeder *self, uint64_t number, rp_error *err)
{
    rp_error why = {0};
    self->file = folder_read(self->folder, DISK_SEGMENT, number, &why);
    if (self->file < 0)
        return err_set(err, why.status == RP_IO ? RP_IO : RP_DATA_LOSS, "%s", why.text);
    struct stat about;
    if (fstat(self->file, &about) != 0)
        return err_set(err, RP_IO, "%s", strerror(errno));
    posix_fadvise(self->file, 0, 0, POSIX_FADV_SEQUENTIAL);
    self->number = number;
    self->file_bytes = (uint64_t)about.st_size;
    self->offset = 0;
    return RP_OK;
}

/* Reads the next window. There is one. */
static rp_status feeder_read(struct feeder *self, struct window *window, int *old, rp_error *err)
{
    uint64_t place = self->at[self->next];
    if (*old >= 0)
        close(*old);
    *old = -1;
    if (disk_number(place) != self->number || self->file < 0) {
        /* The caller may still work on the window before, and need its file. */
        *old = self->file;
        self->file = -1;
        RP_TRY(feeder_open(self, disk_number(place), err));
    }
    uint64_t start = disk_offset(place);
    if (start + sizeof(struct entry_head) > self->file_bytes)
        return err_set(err, RP_DATA_LOSS, "segment %llu ends before offset %llu", (unsigned long long)self->number,
                       (unsigned long long)start);
    if (start > self->offset && start - self->offset <= GAP_BYTES && self->offset)
        start = self->offset;
    uint64_t end = disk_offset(place), i = self->next;
    while (i < self->n && disk_number(self->at[i]) == self->number && disk_offset(self->at[i]) < start + WINDOW_BYTES &&
           disk_offset(self->at[i]) <= end + GAP_BYTES)
        end = disk_offset(self->at[i++]);
    end += TAIL_BYTES;
    if (end > start + WINDOW_BYTES)
        end = start + WINDOW_BYTES;
    if (end > self->file_bytes)
        end = self->file_bytes;
    *window = (struct window){.data = window->data,
                              .file = self->file,
                              .offset = start,
                              .size = end - start,
                              .first = self->next,
                              .file_bytes = self->file_bytes};
    while (self->next < i && disk_offset(self->at[self->next]) + sizeof(struct entry_head) <= end)
        self->next++;
    window->n = self->next - window->first;
    self->offset = end;
    if (window->n == 0)
        return err_set(err, RP_DATA_LOSS, "segment %llu is cut short at offset %llu", (unsigned long long)self->number,
                       (unsigned long long)end);
    return read_at(self->file, window->data, window->size, start, err);
}

/* Finds the entry at `at`. False: not all of it is in the window, or it is not sound. */
static bool chunk_in_window(const struct window *window, uint64_t at, struct chunk_view *out)
{
    uint64_t start = disk_offset(at) - window->offset;
    struct entry_head head;
    memcpy(&head, window->data + start, sizeof head);
    if (head.type != ENTRY_CHUNK || head.size < sizeof head || head.size > window->size - start)
        return false;
    const struct entry_view entry = {
        .type = head.type, .body = window->data + start + sizeof head, .size = head.size - sizeof head, .at = at};
    if (entry_check(&entry, NULL) != RP_OK)
        return false;
    *out = entry_chunk_view(&entry);
    return true;
}

/* Checks the checksums on this thread: the caller has enough to do. */
static void window_prove(const struct feeder *self, struct window *window)
{
    struct chunk_view chunk;
    while (window->sound < window->n && chunk_in_window(window, self->at[window->first + window->sound], &chunk) &&
           chunk_crc(&chunk) == chunk.head->crc)
        window->sound++;
}

static void feeder_fill(struct feeder *self, uint64_t turn)
{
    struct window *window = &self->windows[turn % WINDOWS];
    rp_error err = {0};
    rp_status status = RP_OK;
    if (!window->data)
        window->data = malloc(WINDOW_BYTES);
    if (!window->data)
        status = err_set(&err, RP_NO_MEMORY, "no memory to read chunks");
    else
        status = feeder_read(self, window, &self->old[turn % WINDOWS], &err);
    if (status == RP_OK)
        window_prove(self, window);
    window->status = status;
    window->error = err;
}

static void *feeder_thread(void *arg)
{
    struct feeder *self = arg;
    pthread_setname_np(pthread_self(), "feeder");
    pthread_mutex_lock(&self->mutex);
    while (!self->stop && self->next < self->n) {
        /* One window fewer than there are, because the caller works on one. */
        if (self->filled - self->taken >= WINDOWS - 1) {
            pthread_cond_wait(&self->moved, &self->mutex);
            continue;
        }
        pthread_mutex_unlock(&self->mutex);
        feeder_fill(self, self->filled);
        bool failed = self->windows[self->filled % WINDOWS].status != RP_OK;
        pthread_mutex_lock(&self->mutex);
        self->filled++;
        pthread_cond_signal(&self->moved);
        if (failed)
            break;
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

/* Returns the next window. */
static struct window *feeder_take(struct feeder *self)
{
    uint64_t turn = self->taken;
    if (self->threaded) {
        pthread_mutex_lock(&self->mutex);
        while (self->filled <= turn)
            pthread_cond_wait(&self->moved, &self->mutex);
        self->taken++;
        pthread_cond_signal(&self->moved);
        pthread_mutex_unlock(&self->mutex);
    } else {
        feeder_fill(self, turn);
        self->taken++;
    }
    return &self->windows[turn % WINDOWS];
}

static void feeder_init(struct feeder *self, const struct folder *folder, const uint64_t *at, uint64_t n)
{
    *self = (struct feeder){.folder = folder, .at = at, .n = n, .file = -1};
    for (uint32_t i = 0; i < WINDOWS; i++)
        self->old[i] = -1;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->moved, NULL);
    self->threaded = n >= THREAD_PLACES && pthread_create(&self->thread, NULL, feeder_thread, self) == 0;
}

static void feeder_fini(struct feeder *self)
{
    if (self->threaded) {
        pthread_mutex_lock(&self->mutex);
        self->stop = true;
        pthread_cond_signal(&self->moved);
        pthread_mutex_unlock(&self->mutex);
        pthread_join(self->thread, NULL);
    }
    for (uint32_t i = 0; i < WINDOWS; i++) {
        free(self->windows[i].data);
        if (self->old[i] >= 0)
            close(self->old[i]);
    }
    if (self->file >= 0)
        close(self->file);
    pthread_mutex_destroy(&self->mutex);
    pthread_cond_destroy(&self->moved);
}

/* A buffer for a chunk that does not fit into its window. */
struct apart {
    uint8_t *data;
    uint64_t capacity;
};

/* Returns all bytes of the entry at `offset`, whose head is in the window. NULL with err set. */
static const uint8_t *entry_bytes(const struct window *window, uint64_t offset, uint64_t size, struct apart *apart,
                                  rp_error *err)
{
    const uint8_t *here = window->data + (offset - window->offset);
    uint64_t have = window->offset + window->size - offset;
    if (size <= have)
        return here;
    if (offset + size > window->file_bytes) {
        err_set(err, RP_DATA_LOSS, "the file ends in it");
        return NULL;
    }
    if (size > apart->capacity) {
        free(apart->data);
        apart->capacity = size > WINDOW_BYTES ? size : WINDOW_BYTES;
        apart->data = malloc(apart->capacity);
        if (!apart->data) {
            apart->capacity = 0;
            err_set(err, RP_NO_MEMORY, "no memory for a chunk of %llu bytes", (unsigned long long)size);
            return NULL;
        }
    }
    memcpy(apart->data, here, have);
    return read_at(window->file, apart->data + have, size - have, offset + have, err) == RP_OK ? apart->data : NULL;
}

static rp_status chunk_give(const struct window *window, uint64_t at, struct apart *apart, chunk_fn *fn, void *ctx,
                            rp_error *err)
{
    uint64_t offset = disk_offset(at);
    struct entry_head head;
    memcpy(&head, window->data + (offset - window->offset), sizeof head);
    rp_error why = {0};
    rp_status status = RP_OK;
    if (head.type != ENTRY_CHUNK || head.size < sizeof head || head.size > RECORD_MOST)
        status = err_set(&why, RP_DATA_LOSS, "there is no chunk");
    const uint8_t *bytes = status == RP_OK ? entry_bytes(window, offset, head.size, apart, &why) : NULL;
    if (status == RP_OK && !bytes)
        status = (rp_status)why.status;
    if (status == RP_OK) {
        struct entry_view entry = {
            .type = head.type, .body = bytes + sizeof head, .size = head.size - sizeof head, .at = at};
        if (entry_check(&entry, &why) != RP_OK)
            status = RP_DATA_LOSS;
        struct chunk_view chunk = status == RP_OK ? entry_chunk_view(&entry) : (struct chunk_view){0};
        if (status == RP_OK && chunk_crc(&chunk) == chunk.head->crc)
            return fn(ctx, at, &chunk, err);
        if (status == RP_OK)
            status = err_set(&why, RP_DATA_LOSS, "the checksum of the chunk is wrong");
    }
    return err_set(err, status, "segment %llu at offset %llu: %s", (unsigned long long)disk_number(at),
                   (unsigned long long)offset, why.text);
}

/* Hands over a chunk whose checksum was checked. */
static rp_status chunk_pass(const struct window *window, uint64_t at, chunk_fn *fn, void *ctx, rp_error *err)
{
    uint64_t start = disk_offset(at) - window->offset;
    struct entry_head head;
    memcpy(&head, window->data + start, sizeof head);
    const struct entry_view entry = {
        .type = head.type, .body = window->data + start + sizeof head, .size = head.size - sizeof head, .at = at};
    struct chunk_view chunk = entry_chunk_view(&entry);
    return fn(ctx, at, &chunk, err);
}

static rp_status places_check(const uint64_t *at, uint64_t n, rp_error *err)
{
    for (uint64_t i = 0; i < n; i++)
        if (disk_number(at[i]) == 0 || disk_offset(at[i]) < FILE_HEAD_BYTES || at[i] % 8 != 0 ||
            (i > 0 && at[i] < at[i - 1]))
            return err_set(err, RP_INVALID_ARGUMENT, "chunks are read by rising places in segments");
    return RP_OK;
}

rp_status chunks_read(const struct folder *folder, const uint64_t *at, uint64_t n, chunk_fn *fn, void *ctx,
                      rp_error *err)
{
    RP_TRY(places_check(at, n, err));
    if (n == 0)
        return RP_OK;
    struct feeder feeder;
    struct apart apart = {0};
    rp_status status = RP_OK;
    feeder_init(&feeder, folder, at, n);
    for (uint64_t done = 0; status == RP_OK && done < n;) {
        const struct window *window = feeder_take(&feeder);
        status = window->status;
        if (status != RP_OK) {
            err_set(err, status, "chunks cannot be read: segment %llu: %s", (unsigned long long)disk_number(at[done]),
                    window->error.text);
            break;
        }
        for (uint64_t i = 0; status == RP_OK && i < window->n; i++)
            if (window->first + i == 0 || at[window->first + i] != at[window->first + i - 1])
                status = i < window->sound ? chunk_pass(window, at[window->first + i], fn, ctx, err)
                                           : chunk_give(window, at[window->first + i], &apart, fn, ctx, err);
        done += window->n;
    }
    feeder_fini(&feeder);
    free(apart.data);
    return status;
}
