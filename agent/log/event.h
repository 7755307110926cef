/* TensorBoard's event files: scalars by tag and step.
 *
 * A file is a row of records: u64 length, masked crc32c of the length, that many bytes of a tensorboard.Event
 * (proto/event.proto), masked crc32c of the bytes; all little-endian. The first record tells the version. Every start
 * of a process begins a file of its own, named by time, host and process; TensorBoard reads the files of a folder one
 * after the other. TensorBoard follows a file while it grows, so events are not removed from it later: instead, the longer a
 * process runs, the further apart they are (thin_width). */
#ifndef AGENT_LOG_EVENT_H
#define AGENT_LOG_EVENT_H

#include "agent/log/log.h"
#include "agent/log/log_file.h"

#define EVENT_VERSION "brain.Event:2"

struct event_writer {
    char *folder;
    char *process;
    struct log_file file;   /* opened with the first event */
    double first_s, last_s; /* times of the first and of the last event */
};

/* Takes folder and process. */
void event_writer_init(struct event_writer *self, char *folder, char *process);
void event_writer_fini(struct event_writer *self);
/* Writes one event with all scalars, at step at->environment_steps, unless the last one is too near. False with errno set: not
 * written. */
bool event_write(struct event_writer *self, const struct run_log_at *at, const struct agent_scalar *scalars,
                 uint32_t n);

#endif
