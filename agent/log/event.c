/* See event.h. */
#include "agent/log/event.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "event.pb-c.h"
#include "proto/base/crc32c.h"

#define HEAD_BYTES (sizeof(uint64_t) + sizeof(uint32_t))
#define NAMES_TRIED 1000 /* starts within one second */

/* The masked form of a checksum, which may itself be part of data that is checksummed. */
static uint32_t masked(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

void event_writer_init(struct event_writer *self, char *folder, char *process)
{
    *self = (struct event_writer){.folder = folder, .process = process};
    log_file_init(&self->file);
}

void event_writer_fini(struct event_writer *self)
{
    log_file_fini(&self->file);
    free(self->folder);
    free(self->process);
    self->folder = self->process = NULL;
}

static void put_crc(uint8_t *at, const uint8_t *data, size_t size)
{
    uint32_t crc = masked(crc32c(0, data, size));
    memcpy(at, &crc, sizeof crc);
}

static bool append(struct event_writer *self, const Tensorboard__Event *event)
{
    size_t size = tensorboard__event__get_packed_size(event), total = HEAD_BYTES + size + sizeof(uint32_t);
    uint8_t *record = malloc(total);
    if (!record)
        return false;
    uint64_t length = size;
    memcpy(record, &length, sizeof length);
    put_crc(record + sizeof length, record, sizeof length);
    tensorboard__event__pack(event, record + HEAD_BYTES);
    put_crc(record + HEAD_BYTES + size, record + HEAD_BYTES, size);
    bool ok = log_file_append(&self->file, record, total);
    int error = errno;
    free(record);
    errno = error;
    return ok;
}

/* Opens a file under an unused name: the time in the name is increased until it is unused. */
static bool open_new(struct event_writer *self, double time_s)
{
    char host[256];
    if (gethostname(host, sizeof host) != 0)
        snprintf(host, sizeof host, "localhost");
    host[sizeof host - 1] = '\0';
    long long seconds = time_s > 0 && time_s < 1e15 ? (long long)time_s : 0;
    bool ok = false;
    errno = EEXIST;
    for (int i = 0; i < NAMES_TRIED && !ok && errno == EEXIST; i++) {
        char *path;
        if (asprintf(&path, "%s/events.out.tfevents.%010lld.%s.%s", self->folder, seconds + i, host, self->process) < 0)
            return false;
        ok = log_file_open(&self->file, path, true);
        int error = errno;
        free(path);
        errno = error;
    }
    return ok;
}

static bool begin(struct event_writer *self, double time_s)
{
    if (self->file.fd < 0 && !open_new(self, time_s))
        return false;
    if (self->file.size > 0)
        return true;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    char version[] = EVENT_VERSION;
    event.wall_time = time_s;
    event.what_case = TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    event.file_version = version;
    return append(self, &event);
}

bool event_write(struct event_writer *self, const struct run_log_at *at, const struct agent_scalar *scalars, uint32_t n)
{
    double width_s = self->file.size > 0 ? thin_width(at->time_s - self->first_s) : 0;
    if (width_s > 0 && at->time_s >= self->last_s && at->time_s - self->last_s < width_s)
        return true;
    if (!begin(self, at->time_s))
        return false;
    Tensorboard__Summary__Value *values = calloc(n + 1, sizeof *values);
    Tensorboard__Summary__Value **pointers = calloc(n + 1, sizeof *pointers);
    bool ok = values && pointers;
    for (uint32_t i = 0; i < n && ok; i++) {
        tensorboard__summary__value__init(&values[i]);
        values[i].tag = (char *)(uintptr_t)scalars[i].name;
        values[i].value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
        values[i].simple_value = (float)scalars[i].value;
        pointers[i] = &values[i];
    }
    if (ok) {
        Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
        Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
        summary.n_value = n;
        summary.value = pointers;
        event.wall_time = at->time_s;
        event.step = (int64_t)at->environment_steps;
        event.what_case = TENSORBOARD__EVENT__WHAT_SUMMARY;
        event.summary = &summary;
        ok = append(self, &event);
        self->first_s = self->first_s > 0 ? self->first_s : at->time_s;
        self->last_s = at->time_s;
    }
    int error = errno;
    free(values);
    free(pointers);
    errno = error;
    return ok;
}
