#include "broker/spill/fetcher.h"

#include <czmq.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broker/journal/reader.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* Chunks with gaps up to this size are read together: a second read would cost more than the gap. */
#define GAP_BYTES (32u << 10)
#define RUN_BYTES (1u << 20)
#define OPEN_FILES 16u
/* A batch waits so long for descriptors or memory to open files: items that were picked are lost with what cannot be read. */
#define PATIENCE_NS (10 * NS_PER_S)
#define NAP_NS (20 * NS_PER_MS)

/* The actor's state. */
struct segments_read {
    struct folder folder;
    struct {
        struct reader reader; /* number 0: no file */
        uint64_t used;        /* value of `uses` at the last use */
    } files[OPEN_FILES];
    uint64_t uses;
    int64_t patience_ns; /* until then a lack of descriptors or memory is waited for */
};

struct fetcher {
    zactor_t *actor;
    struct segments_read in;
    uint32_t under_way;
};

static size_t entry_bytes(const struct fetch_job *job)
{
    return sizeof(struct entry_head) + sizeof(struct entry_chunk) + (size_t)job->columns * 5 + job->bytes;
}

/* Returns a reader of the segment as it is now. NULL: an error. */
static struct reader *segment_reader(struct segments_read *self, uint64_t number, rp_error *err)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < OPEN_FILES && self->files[at].reader.number != number; i++)
        if (self->files[i].reader.number == number || self->files[i].used < self->files[at].used)
            at = i;
    struct reader *reader = &self->files[at].reader;
    self->files[at].used = ++self->uses;
    if (reader->number == number)
        return reader_restart(reader, err) == RP_OK ? reader : NULL;
    if (reader->number)
        reader_close(reader);
    rp_status status;
    while ((status = reader_open(reader, &self->folder, DISK_SEGMENT, number, err)) == RP_NO_MEMORY &&
           clock_ns() < self->patience_ns)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    if (status != RP_OK) {
        reader->number = 0;
        return NULL;
    }
    posix_fadvise(reader->file, 0, 0, POSIX_FADV_NORMAL); /* what comes next is not known */
    return reader;
}

static rp_status read_one(struct reader *from, struct fetch_job *job, rp_error *err)
{
    struct chunk_view chunk;
    RP_TRY(reader_chunk(from, disk_offset(job->at), &chunk, err));
    if (chunk.head->bytes != job->bytes || chunk.head->columns != job->columns)
        return err_set(err, RP_DATA_LOSS, "segment %llu holds no chunk of %u bytes at %llu: the file was changed",
                       (unsigned long long)from->number, job->bytes, (unsigned long long)disk_offset(job->at));
    job->data = malloc(job->bytes ? job->bytes : 1);
    if (!job->data)
        return err_set(err, RP_NO_MEMORY, "no memory to read a chunk of %u bytes", job->bytes);
    memcpy(job->data, chunk.data, job->bytes);
    return RP_OK;
}

/* Does jobs whose chunks lie close together in one segment, `bytes` bytes in all, with one read. */
static void read_run(struct segments_read *self, struct fetch_job *jobs, uint32_t n, size_t bytes, rp_error *err)
{
    struct reader *from = segment_reader(self, disk_number(jobs->at), err);
    rp_status status = RP_OK;
    if (!from) /* a file that is gone or overwritten stays so; a lack of descriptors or memory may end */
        status = err->status == RP_NOT_FOUND || err->status == RP_BAD_MESSAGE ? RP_DATA_LOSS : RP_IO;
    else
        from->piece = bytes;
    for (uint32_t i = 0; i < n; i++)
        jobs[i].status = from ? read_one(from, &jobs[i], err) : status;
    if (from && from->capacity > GAP_BYTES) {
        free(from->buffer);
        from->buffer = NULL;
        from->capacity = 0;
    }
}

static int by_place(const void *a, const void *b)
{
    const struct fetch_job *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static void read_batch(struct segments_read *self, struct fetch_batch *batch)
{
    self->patience_ns = clock_ns() + PATIENCE_NS;
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
        read_run(self, jobs, next - first, (size_t)(end - start), &batch->err);
    }
}

static void fetcher_main(zsock_t *pipe, void *given)
{
    struct segments_read *self = given;
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
    for (uint32_t i = 0; i < OPEN_FILES; i++)
        if (self->files[i].reader.number)
            reader_close(&self->files[i].reader);
}

struct fetcher *fetcher_new(const struct folder *folder, rp_error *err)
{
    struct fetcher *self = need_alloc(sizeof *self);
    self->in.folder = *folder;
    self->actor = zactor_new(fetcher_main, &self->in);
    if (self->actor)
        return self;
    free(self);
    return err_null(err, RP_NO_MEMORY, "no thread to read chunks back");
}

void fetcher_destroy(struct fetcher **at)
{
    struct fetcher *self = *at;
    if (!self)
        return;
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
