/* Lines of text between the launcher and a node agent: "@rp " and one JSON object. Bytes travel in base64 in the member "data".
 * Every other line is noise, such as a login message or an error of ssh: the last noise lines say why a connection has failed.
 * Readers and writers are bounded and never wait. */
#ifndef AGENT_LAUNCH_HOST_LINE_H
#define AGENT_LAUNCH_HOST_LINE_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOST_PROTOCOL 1
#define HOST_LINE_MOST 65536u         /* bytes of a line with its end */
#define HOST_DATA_MOST 32768u         /* bytes in one line before base64 */
#define HOST_QUEUE_SOFT (256u * 1024) /* output and files wait while more bytes than this are queued */
#define HOST_QUEUE_HARD (16u * 1024 * 1024)

/* ---- objects ---- */

/* Returns a new object with its type; NULL: no memory. The functions that add do nothing to NULL. */
struct json_object *host_line_new(const char *type);
void host_line_add_text(struct json_object *line, const char *name, const char *text);
void host_line_add_number(struct json_object *line, const char *name, int64_t value);
void host_line_add_real(struct json_object *line, const char *name, double value);
void host_line_add_flag(struct json_object *line, const char *name, bool value);
void host_line_add_list(struct json_object *line, const char *name, const char *const *list);
void host_line_add_data(struct json_object *line, const void *bytes, size_t size);

/* Returns a text member; NULL: there is none, or it contains a NUL. Borrowed from the object. */
const char *host_line_text(struct json_object *line, const char *name);
/* A number that is missing, not finite or out of its bounds becomes the nearest bound; missing: least. */
int64_t host_line_number(struct json_object *line, const char *name, int64_t least, int64_t most);
double host_line_real(struct json_object *line, const char *name, double least, double most);
bool host_line_flag(struct json_object *line, const char *name);
/* Returns a NULL-terminated list of texts that borrows them from the object: free(). NULL: not such a list. */
const char **host_line_list(struct json_object *line, const char *name);
/* Decodes "data": free(). NULL: it is missing, damaged or too long. */
uint8_t *host_line_data(struct json_object *line, size_t *size);

/* What to do with a line of a type. */
struct host_line_handler {
    const char *type;
    void (*handle)(void *self, struct json_object *line);
};
/* Calls the handler of the line's type. False: there is none. */
bool host_line_dispatch(const struct host_line_handler *table, size_t n, void *self, struct json_object *line);

/* ---- noise ---- */

#define HOST_NOISE_LINES 3u

struct host_noise {
    char lines[HOST_NOISE_LINES][240]; /* the newest is last */
    uint32_t n;
};
void host_noise_add(struct host_noise *self, const char *text, size_t size);
/* Joins the lines with "; ". Gives out. */
const char *host_noise_text(const struct host_noise *self, char *out, size_t size);

/* ---- reader ---- */

struct host_reader {
    int fd; /* borrowed, non-blocking */
    char *data;
    size_t at, used;
    bool skip; /* the line at `at` has lost its beginning */
    bool ended;
    struct host_noise *noise;
};
/* False: no memory. */
bool host_reader_init(struct host_reader *self, int fd, struct host_noise *noise);
void host_reader_fini(struct host_reader *self);
/* Reads once. Returns the number of bytes; 0: there is nothing now, or never again (ended). */
size_t host_reader_fill(struct host_reader *self);
/* Returns the next object: json_object_put. NULL: no whole line is left. */
struct json_object *host_reader_next(struct host_reader *self);

/* ---- writer ---- */

struct host_writer {
    int fd; /* borrowed, non-blocking */
    char *data;
    size_t start, end, capacity;
    bool broken; /* the other side is gone, or does not read */
};
void host_writer_init(struct host_writer *self, int fd);
void host_writer_fini(struct host_writer *self);
/* True if output and files may be queued now. */
bool host_writer_room(const struct host_writer *self);
bool host_writer_empty(const struct host_writer *self);
/* Queues a line and takes the object. False: the line is too long or there is no memory. */
bool host_writer_put(struct host_writer *self, struct json_object *line);
/* Queues bytes as they are, between lines. */
void host_writer_bytes(struct host_writer *self, const void *bytes, size_t size);
/* Writes what the other side takes now. */
void host_writer_flush(struct host_writer *self);

#endif
