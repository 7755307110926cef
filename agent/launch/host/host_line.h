/* Lines of text between the launcher and a node agent: "@rp " and one JSON object. Bytes follow their line as they are, and its member
 * "bytes" says how many. Every other line is noise, such as a login message or an error of ssh: the last noise lines say why a
 * connection has failed. Readers and writers are bounded and never wait. */
#ifndef AGENT_LAUNCH_HOST_LINE_H
#define AGENT_LAUNCH_HOST_LINE_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"

#define HOST_PROTOCOL 1
#define HOST_LINE_MOST 65536u         /* bytes of a line with its end */
#define HOST_DATA_MOST 32768u         /* bytes that may follow a line */
#define HOST_QUEUE_SOFT (256u * 1024) /* output and files wait while more bytes than this are queued */
#define HOST_QUEUE_HARD (16u * 1024 * 1024)

/* ---- objects ---- */

/* Returns a new object with its type. */
struct json_object *host_line_new(const char *type);
void host_line_add_text(struct json_object *line, const char *name, const char *text);
void host_line_add_number(struct json_object *line, const char *name, int64_t value);
void host_line_add_real(struct json_object *line, const char *name, double value);
void host_line_add_flag(struct json_object *line, const char *name, bool value);
void host_line_add_list(struct json_object *line, const char *name, const char *const *list);

/* Returns a text member; NULL: there is none, or it contains a NUL. Borrowed from the object. */
const char *host_line_text(struct json_object *line, const char *name);
/* A number that is missing, not finite or out of its bounds becomes the nearest bound; missing: least. */
int64_t host_line_number(struct json_object *line, const char *name, int64_t least, int64_t most);
double host_line_real(struct json_object *line, const char *name, double least, double most);
bool host_line_flag(struct json_object *line, const char *name);
/* Returns a NULL-terminated list of texts that borrows them from the object: free(). NULL: not such a list. */
const char **host_line_list(struct json_object *line, const char *name);

/* A line as a reader gives it, with the bytes that followed it. */
struct host_message {
    struct json_object *line;
    const uint8_t *bytes; /* valid until the reader is used again; NULL: none followed */
    size_t size;
};
/* What to do with a line of a type. */
struct host_line_handler {
    const char *type;
    void (*handle)(void *self, const struct host_message *message);
};
/* Calls the handler of the line's type, if there is one, and frees the line. */
void host_line_dispatch(const struct host_line_handler *table, size_t n, void *self, struct host_message *message);

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
    int fd; /* borrowed, non-blocking */
    char *data;
    size_t at, used;
    struct json_object *line; /* whose bytes have not all arrived yet; NULL: none */
    size_t follows;           /* number of those bytes */
    bool skip;                /* the line at `at` has lost its beginning */
    bool ended;
    struct host_noise *noise;
};
void host_reader_init(struct host_reader *self, int fd, struct host_noise *noise);
void host_reader_fini(struct host_reader *self);
/* Reads once. Returns the number of bytes; 0: there is nothing now, or never again (ended). */
size_t host_reader_fill(struct host_reader *self);
/* Gives the next line; its owner frees it (json_object_put). False: no whole line is left. */
bool host_reader_next(struct host_reader *self, struct host_message *out);

/* ---- writer ---- */

struct host_writer {
    int fd; /* borrowed, non-blocking */
    struct text queue;
    size_t sent; /* bytes of the queue that are written */
    bool broken; /* the other side is gone, or does not read */
};
void host_writer_init(struct host_writer *self, int fd);
void host_writer_fini(struct host_writer *self);
/* True if output and files may be queued now. */
bool host_writer_room(const struct host_writer *self);
bool host_writer_empty(const struct host_writer *self);
/* Queues a line and takes the object. False: the line is too long, or the connection is broken. */
bool host_writer_put(struct host_writer *self, struct json_object *line);
/* The same for a line and the bytes that follow it, at most HOST_DATA_MOST. */
bool host_writer_put_data(struct host_writer *self, struct json_object *line, const void *bytes, size_t size);
/* Writes what the other side takes now. */
void host_writer_flush(struct host_writer *self);

#endif
