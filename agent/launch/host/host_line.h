/* Lines of text between the launcher and a node agent: "@rp " and one JSON object. Bytes follow their line as they are, and its member
 * "bytes" says how many. Every other line is noise, such as a login message or an error of ssh: the last noise lines say why a
 * connection has failed. Readers and writers are bounded and never wait. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"

struct json_object; /* json-c */

#define HOST_LINE_MOST 65536u         /* bytes of a line with its end */
#define HOST_DATA_MOST 65536u         /* bytes that may follow a line */
#define HOST_QUEUE_SOFT (256u * 1024) /* output and files wait while more bytes than this are queued */
#define HOST_QUEUE_HARD (16u * 1024 * 1024)

/* ---- what a line says ---- */

/* Lines of all types, in both directions. A member that is 0, false or NULL is not written, and one that is missing, or of another
 * type, is read as that; a text that contains a NUL is read as NULL. The texts of a line that was read belong to the reader. */
struct host_line {
    const char *type;
    int64_t id; /* of a process: its number in its place */
    /* ---- hello, ready: the two sides */
    int64_t lease_ms;
    const char *version, *here, *cwd, *hostname, *model, *work, *programs, *address;
    double cores, memory; /* also what a process uses */
    bool python;
    /* ---- start (its bytes are words, each with a NUL: `words` of them are the command, the rest the environment),
     * end, ended */
    const char *name;
    int64_t words, pid, status;
    bool kill;
    const char *text; /* why it has failed */
    /* ---- process, load */
    int64_t cpu_ns;
    bool stopped, exited;
    double cpu; /* cores of all programs */
    /* ---- file, again: beside its name */
    int64_t mode, offset;
    bool replace, last;
    /* ---- probe, probed: beside its text */
    const char *endpoint;
    bool ok;
    int64_t ns;
};
/* Adds a line as it is sent, and the bytes that follow it, at most HOST_DATA_MOST. */
void host_line_write(struct text *out, const struct host_line *line, const void *bytes, size_t size);

/* A line as a reader gives it, with the bytes that followed it: valid until the reader is used again. */
struct host_message {
    const struct host_line *line;
    const uint8_t *bytes; /* NULL: none followed */
    size_t size;
};
/* What to do with a line of a type. */
struct host_line_handler {
    const char *type;
    void (*handle)(void *self, const struct host_message *message);
};
/* Calls the handler of the line's type, if there is one. The table ends with {0}. */
void host_line_dispatch(const struct host_line_handler *table, void *self, const struct host_message *message);

/* Copies a text that people read: without control characters and leading blanks, valid UTF-8. Returns its length. */
size_t host_line_clean(char *out, size_t size, const char *text, size_t length);

/* ---- noise ---- */

#define HOST_NOISE_LINES 3u

struct host_noise {
    char lines[HOST_NOISE_LINES][240]; /* the newest is last */
    uint32_t n;
};
/* Joins the lines with "; ". Gives out. */
const char *host_noise_text(const struct host_noise *self, char *out, size_t size);

/* ---- reader ---- */

struct host_reader {
    int fd; /* owned, non-blocking; -1: closed */
    char *data;
    size_t at, used;
    struct json_object *object; /* that has the texts of the line */
    struct host_line line;
    bool pending;   /* the bytes of the line have not all arrived yet */
    size_t follows; /* number of those bytes */
    bool skip;      /* the line at `at` has lost its beginning */
    bool ended;
    struct host_noise *noise;
};
void host_reader_init(struct host_reader *self, int fd, struct host_noise *noise);
void host_reader_fini(struct host_reader *self);
/* Reads once. Returns the number of bytes; 0: there is nothing now, or never again (ended). */
size_t host_reader_fill(struct host_reader *self);
/* Gives the next line. False: no whole line is left. */
bool host_reader_next(struct host_reader *self, struct host_message *out);

/* ---- writer ---- */

struct host_writer {
    int fd; /* owned, non-blocking; -1: closed */
    struct text queue;
    size_t sent; /* bytes of the queue that are written */
    bool broken; /* the other side is gone, or does not read */
};
void host_writer_init(struct host_writer *self, int fd);
void host_writer_fini(struct host_writer *self);
/* True if output and files may be queued now. */
bool host_writer_room(const struct host_writer *self);
bool host_writer_empty(const struct host_writer *self);
/* Queues what host_line_write has made. False: the connection is broken. */
bool host_writer_add(struct host_writer *self, const struct text *lines);
/* Queues a line, and the bytes that follow it. */
bool host_writer_put(struct host_writer *self, const struct host_line *line, const void *bytes, size_t size);
/* Writes what the other side takes now. */
void host_writer_flush(struct host_writer *self);
