#include "broker/spill/fetcher.h"

#include <czmq.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "proto/base/need.h"

/* Chunks with gaps up to this size are read together: a second read would cost more than the gap. */
#define GAP_BYTES (32u << 10)
#define RUN_BYTES (1u << 20)
#define OPEN_FILES 16u

struct open_file {
    uint64_t number; /* 0: no file */
    uint64_t used;   /* value of `uses` at the last use */
    int descriptor;
};

/* The actor's state. */
struct reader {
    struct folder folder;
    struct open_file files[OPEN_FILES];
    uint64_t uses;
    uint8_t *buffer;
};

struct fetcher {
    zactor_t *actor;
    struct reader reader;
    uint32_t under_way;
};

static size_t entry_bytes(const struct fetch_job *job)
{
    return sizeof(struct entry_head) + sizeof(struct entry_chunk) + (size_t)job->columns * 5 + job->bytes;
}

static int reader_open(struct reader *self, uint64_t number, rp_error *err)
{
    struct open_file *oldest = &self->files[0];
    for (uint32_t i = 0; i < OPEN_FILES; i++) {
        struct open_file *file = &self->files[i];
        if (file->number == number) {
            file->used = ++self->uses;
            return file->descriptor;
        }
        if (file->used < oldest->used)
            oldest = file;
    }
    int descriptor = folder_read(&self->folder, DISK_SEGMENT, number, err);
    if (descriptor < 0)
        return -1;
    if (oldest->number)
        close(oldest->descriptor);
    *oldest = (struct open_file){number, ++self->uses, descriptor};
    return descriptor;
}

static void reader_fini(struct reader *self)
{
    for (uint32_t i = 0; i < OPEN_FILES; i++)
        if (self->files[i].number)
            close(self->files[i].descriptor);
    free(self->buffer);
}

static rp_status read_all(int descriptor, uint8_t *out, size_t size, uint64_t at, rp_error *err)
{
    uint64_t offset = disk_offset(at);
    unsigned long long segment = disk_number(at);
    while (size) {
        ssize_t n = pread(descriptor, out, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, errno == EIO ? RP_DATA_LOSS : RP_IO, "segment %llu cannot be read at %llu: %s", segment,
                           (unsigned long long)offset, strerror(errno));
        if (n == 0)
            return err_set(err, RP_DATA_LOSS, "segment %llu ends at %llu, before a chunk that it should hold", segment,
                           (unsigned long long)offset);
        out += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return RP_OK;
}

/* Checks that `raw`, the bytes at the job's place, is the chunk that was written there. *data: where its data starts. */
static rp_status check_chunk(const struct fetch_job *job, const uint8_t *raw, const uint8_t **data, rp_error *err)
{
    unsigned long long segment = disk_number(job->at), offset = disk_offset(job->at);
    struct entry_head head;
    memcpy(&head, raw, sizeof head);
    struct entry_view entry = {head.type, head.table, raw + sizeof head, entry_bytes(job) - sizeof head, job->at};
    if (head.type != ENTRY_CHUNK || head.size != entry_bytes(job) || entry_check(&entry, NULL) != RP_OK)
        return err_set(err, RP_DATA_LOSS, "segment %llu holds no chunk of %u bytes at %llu: the file was changed",
                       segment, job->bytes, offset);
    struct chunk_view view = entry_chunk_view(&entry);
    if (view.head->bytes != job->bytes || view.head->columns != job->columns || chunk_crc(&view) != view.head->crc)
        return err_set(err, RP_DATA_LOSS, "the chunk at %llu of segment %llu is damaged: its checksum is wrong", offset,
                       segment);
    *data = view.data;
    return RP_OK;
}

/* Reads a large chunk by itself. The buffer that was read into becomes the data, without a copy. */
static rp_status read_large(int descriptor, struct fetch_job *job, rp_error *err)
{
    uint8_t *raw = malloc(entry_bytes(job));
    const uint8_t *data;
    if (!raw)
        return err_set(err, RP_NO_MEMORY, "no memory to read a chunk of %u bytes", job->bytes);
    rp_status status = read_all(descriptor, raw, entry_bytes(job), job->at, err);
    if (status == RP_OK)
        status = check_chunk(job, raw, &data, err);
    if (status != RP_OK) {
        free(raw);
        return status;
    }
    memmove(raw, data, job->bytes);
    job->data = raw;
    return RP_OK;
}

static rp_status take_small(struct fetch_job *job, const uint8_t *raw, rp_error *err)
{
    const uint8_t *data;
    RP_TRY(check_chunk(job, raw, &data, err));
    job->data = malloc(job->bytes ? job->bytes : 1);
    if (!job->data)
        return err_set(err, RP_NO_MEMORY, "no memory to read a chunk of %u bytes", job->bytes);
    memcpy(job->data, data, job->bytes);
    return RP_OK;
}

/* Does jobs whose chunks lie close together in one segment, with one read. */
static void read_run(struct reader *self, struct fetch_job *jobs, uint32_t n, rp_error *err)
{
    const struct fetch_job *last = &jobs[n - 1];
    uint64_t start = jobs[0].at;
    size_t size = (size_t)(last->at - start) + entry_bytes(last);
    int descriptor = reader_open(self, disk_number(start), err);
    rp_status status = RP_OK;
    if (descriptor < 0) /* a file that is gone or overwritten stays so; a lack of descriptors or memory may end */
        status = err->status == RP_NOT_FOUND || err->status == RP_BAD_MESSAGE ? RP_DATA_LOSS : RP_IO;
    bool large = n == 1 && size > GAP_BYTES;
    if (status == RP_OK && !large)
        status = read_all(descriptor, self->buffer, size, start, err);
    for (uint32_t i = 0; i < n; i++) {
        jobs[i].status = status;
        if (status == RP_OK)
            jobs[i].status = large ? read_large(descriptor, &jobs[i], err)
                                   : take_small(&jobs[i], self->buffer + (jobs[i].at - start), err);
    }
    /* If the read failed at one place, read the chunks one by one: the others may be fine. */
    if (descriptor >= 0 && status != RP_OK && n > 1)
        for (uint32_t i = 0; i < n; i++)
            read_run(self, &jobs[i], 1, err);
}

static int by_place(const void *a, const void *b)
{
    const struct fetch_job *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static void read_batch(struct reader *self, struct fetch_batch *batch)
{
    qsort(batch->jobs, batch->n, sizeof batch->jobs[0], by_place);
    for (uint32_t first = 0, next; first < batch->n; first = next) {
        struct fetch_job *jobs = &batch->jobs[first];
        uint64_t start = jobs->at, end = start + entry_bytes(jobs);
        for (next = first + 1; next < batch->n; next++) {
            const struct fetch_job *job = &batch->jobs[next];
            uint64_t to = job->at + entry_bytes(job);
            if (disk_number(job->at) != disk_number(start) || job->at > end + GAP_BYTES || to - start > RUN_BYTES)
                break;
            end = to > end ? to : end;
        }
        read_run(self, jobs, next - first, &batch->err);
    }
}

static void fetcher_main(zsock_t *pipe, void *given)
{
    struct reader *self = given;
    pthread_setname_np(pthread_self(), "fetcher");
    void *socket = zsock_resolve(pipe);
    zsock_signal(pipe, 0);
    for (;;) {
        union {
            struct fetch_batch *batch;
            char word[64];
        } message;
        int size = zmq_recv(socket, &message, sizeof message, 0);
        if (size < 0 && errno == EINTR)
            continue;
        if (size != (int)sizeof message.batch)
            break; /* "$TERM", or the context has ended */
        read_batch(self, message.batch);
        zmq_send(socket, &message.batch, sizeof message.batch, 0);
    }
    reader_fini(self);
}

struct fetcher *fetcher_new(const struct folder *folder, rp_error *err)
{
    struct fetcher *self = need_alloc(sizeof *self);
    self->reader.folder = *folder;
    self->reader.buffer = need_alloc(RUN_BYTES);
    self->actor = zactor_new(fetcher_main, &self->reader);
    if (self->actor)
        return self;
    free(self->reader.buffer);
    free(self);
    err_set(err, RP_NO_MEMORY, "no thread to read chunks back");
    return NULL;
}

void fetcher_destroy(struct fetcher **at)
{
    struct fetcher *self = *at;
    if (!self)
        return;
    while (self->under_way) {
        zmq_pollitem_t item = {fetcher_socket(self), 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, -1);
        struct fetch_batch *batch = fetcher_take(self);
        fetch_batch_destroy(&batch);
    }
    zactor_destroy(&self->actor);
    free(self);
    *at = NULL;
}

void fetcher_give(struct fetcher *self, struct fetch_batch *batch)
{
    while (zmq_send(fetcher_socket(self), &batch, sizeof batch, 0) < 0 && errno == EINTR) {
    }
    self->under_way++;
}

struct fetch_batch *fetcher_take(struct fetcher *self)
{
    struct fetch_batch *batch;
    if (zmq_recv(fetcher_socket(self), &batch, sizeof batch, ZMQ_DONTWAIT) != (int)sizeof batch)
        return NULL;
    self->under_way--;
    return batch;
}

void fetch_batch_destroy(struct fetch_batch **self)
{
    if (!*self)
        return;
    for (uint32_t i = 0; i < (*self)->n; i++)
        free((*self)->jobs[i].data);
    free(*self);
    *self = NULL;
}

uint32_t fetcher_under_way(const struct fetcher *self)
{
    return self->under_way;
}

void *fetcher_socket(const struct fetcher *self)
{
    return zsock_resolve(self->actor);
}
