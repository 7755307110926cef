#include "broker/journal/syncer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/error.h"
#include "proto/base/trace.h"

static bool sync_segment(struct syncer *self, struct sync_job *job)
{
    if (job->descriptor < 0) {
        char name[64];
        folder_name(DISK_SEGMENT, job->number, false, name, sizeof name);
        job->descriptor = openat(self->folder->descriptor, name, O_RDONLY | O_CLOEXEC);
        if (job->descriptor < 0 && errno == ENOENT)
            return true; /* removed meanwhile, so nobody needs it */
    }
    if (job->descriptor >= 0 && fdatasync(job->descriptor) == 0)
        return true;
    err_set(&job->err, RP_IO, "segment %llu in %.140s could not be synced: %s; its chunks are written again",
            (unsigned long long)job->number, self->folder->path, strerror(errno));
    atomic_fetch_add(&self->failures, 1);
    return false;
}

static bool sync_finish(struct syncer *self, struct sync_job *job)
{
    if (atomic_load(&self->failures) != job->failures) {
        err_set(&job->err, RP_IO, "a segment that it relies on could not be synced");
        return false;
    }
    return folder_finish(self->folder, job->number, job->descriptor, &job->err) == RP_OK;
}

static void sync_do(struct syncer *self, struct sync_job *job)
{
    switch (job->what) {
    case SYNC_SEGMENT:
        job->ok = sync_segment(self, job);
        break;
    case SYNC_FOLDER:
        job->ok = fsync(self->folder->descriptor) == 0;
        break;
    case SYNC_START:
        sync_file_range(job->descriptor, 0, 0, SYNC_FILE_RANGE_WRITE);
        job->ok = true;
        break;
    case SYNC_REMOVE:
        job->ok = folder_remove(self->folder, job->kind, job->number, false, &job->err) == RP_OK;
        break;
    case SYNC_FINISH:
        job->ok = sync_finish(self, job);
        break;
    }
    if (job->descriptor >= 0)
        close(job->descriptor);
    job->descriptor = -1;
}

static const char *const sync_names[] = {
    [SYNC_SEGMENT] = "sync segment", [SYNC_FOLDER] = "sync folder",       [SYNC_START] = "start to write out",
    [SYNC_REMOVE] = "remove a file", [SYNC_FINISH] = "finish checkpoint",
};

static void syncer_actor(zsock_t *pipe, void *given)
{
    struct syncer *self = given;
    pthread_setname_np(pthread_self(), "syncer");
    void *socket = zsock_resolve(pipe);
    zsock_signal(pipe, 0);
    for (;;) {
        uint8_t message[16];
        int size = zmq_recv(socket, message, sizeof message, 0);
        if (size < 0 && errno == EINTR)
            continue;
        if (size != (int)sizeof(struct sync_job *))
            break; /* $TERM, or the end of the context */
        struct sync_job *job;
        memcpy(&job, message, sizeof job);
        struct trace *trace = self->trace;
        int64_t start = trace ? trace_now(trace) : 0;
        enum sync_what what = job->what;
        sync_do(self, job);
        if (start)
            trace_add_since(trace, sync_names[what], "syncer", start, 0);
        while (zmq_send(socket, &job, sizeof job, 0) < 0 && (errno == EINTR || errno == EAGAIN))
            usleep(1000);
    }
}

zactor_t *syncer_new(struct syncer *self)
{
    return zactor_new(syncer_actor, self);
}
