/* Streams of lines: a reader with one buffer and a writer with a queue. See host_line.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/host/host_line.h"
#include "proto/base/utf8.h"

#define MARK "@rp "
#define MARK_SIZE (sizeof MARK - 1)
#define DEPTH_MOST 16 /* of nested JSON */
#define READER_SIZE (2 * (size_t)HOST_LINE_MOST)

/* ---- noise ---- */

void host_noise_add(struct host_noise *self, const char *text, size_t size)
{
    char line[sizeof self->lines[0]];
    size_t used = 0;
    for (size_t i = 0; i < size && used + 1 < sizeof line; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= ' ' && c != 0x7f && (c != ' ' || used > 0))
            line[used++] = (char)c;
    }
    if (used == 0)
        return;
    utf8_clean(line, used);
    line[used] = '\0';
    if (self->n == HOST_NOISE_LINES)
        memmove(self->lines[0], self->lines[1], sizeof self->lines - sizeof self->lines[0]);
    else
        self->n++;
    memcpy(self->lines[self->n - 1], line, used + 1);
}

const char *host_noise_text(const struct host_noise *self, char *out, size_t size)
{
    size_t used = 0;
    if (size > 0)
        out[0] = '\0';
    for (uint32_t i = 0; i < self->n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? "; " : "", self->lines[i]);
    return out;
}

/* ---- reader ---- */

bool host_reader_init(struct host_reader *self, int fd, struct host_noise *noise)
{
    *self = (struct host_reader){.fd = fd, .noise = noise, .data = malloc(READER_SIZE)};
    return self->data != NULL;
}

void host_reader_fini(struct host_reader *self)
{
    free(self->data);
    *self = (struct host_reader){.fd = -1, .ended = true};
}

size_t host_reader_fill(struct host_reader *self)
{
    ssize_t n;
    if (self->ended || !self->data)
        return 0;
    memmove(self->data, self->data + self->at, self->used - self->at);
    self->used -= self->at;
    self->at = 0;
    do
        n = read(self->fd, self->data + self->used, READER_SIZE - self->used);
    while (n < 0 && errno == EINTR);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK))
        self->ended = true;
    self->used += n > 0 ? (size_t)n : 0;
    return n > 0 ? (size_t)n : 0;
}

static struct json_object *parse(const char *text, size_t size)
{
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MOST);
    if (!tokener)
        return NULL;
    /* Not JSON_TOKENER_STRICT: with it, json-c 0.18 refuses all bytes above 127, valid UTF-8 too. */
    struct json_object *object = json_tokener_parse_ex(tokener, text, (int)size);
    bool whole = json_tokener_get_error(tokener) == json_tokener_success && json_tokener_get_parse_end(tokener) == size;
    json_tokener_free(tokener);
    if (whole && json_object_is_type(object, json_type_object))
        return object;
    json_object_put(object);
    return NULL;
}

/* The mark may follow noise that did not end its line. */
static struct json_object *take_line(struct host_reader *self, const char *line, size_t size)
{
    if (size > 0 && line[size - 1] == '\r')
        size--;
    const char *mark = memmem(line, size, MARK "{", MARK_SIZE + 1);
    size_t before = mark ? (size_t)(mark - line) : size;
    struct json_object *object = mark ? parse(mark + MARK_SIZE, size - before - MARK_SIZE) : NULL;
    if (before > 0) /* a damaged object says nothing to people: the connection broke in the middle of it */
        host_noise_add(self->noise, line, before);
    return object;
}

/* Returns the size of the next line; SIZE_MAX: there is no whole line. Without an end, the last line ends with the stream. */
static size_t next_line(struct host_reader *self, size_t *skip)
{
    size_t left = self->used - self->at;
    const char *end = memchr(self->data + self->at, '\n', left);
    *skip = end ? 1 : 0;
    if (end)
        return (size_t)(end - (self->data + self->at));
    return left > 0 && (self->ended || left >= HOST_LINE_MOST) ? left : SIZE_MAX;
}

struct json_object *host_reader_next(struct host_reader *self)
{
    size_t skip, size;
    if (!self->data)
        return NULL;
    while ((size = next_line(self, &skip)) != SIZE_MAX) {
        const char *line = self->data + self->at;
        bool cut = skip == 0 && !self->ended, beheaded = self->skip;
        self->at += size + skip;
        self->skip = cut;
        struct json_object *object = NULL;
        if (cut || beheaded || size >= HOST_LINE_MOST)
            host_noise_add(self->noise, line, beheaded ? 0 : size);
        else
            object = take_line(self, line, size);
        if (object)
            return object;
    }
    return NULL;
}

/* ---- writer ---- */

void host_writer_init(struct host_writer *self, int fd)
{
    *self = (struct host_writer){.fd = fd};
}

void host_writer_fini(struct host_writer *self)
{
    free(self->data);
    *self = (struct host_writer){.fd = -1, .broken = true};
}

bool host_writer_room(const struct host_writer *self)
{
    return !self->broken && self->end - self->start < HOST_QUEUE_SOFT;
}

bool host_writer_empty(const struct host_writer *self)
{
    return self->end == self->start;
}

/* Makes room for more bytes at the end of the queue. */
static bool reserve(struct host_writer *self, size_t more)
{
    size_t used = self->end - self->start;
    if (self->start > 0 && self->end + more > self->capacity) {
        memmove(self->data, self->data + self->start, used);
        self->start = 0;
        self->end = used;
    }
    if (self->end + more <= self->capacity)
        return true;
    size_t capacity = self->capacity ? self->capacity : HOST_LINE_MOST;
    while (capacity < self->end + more)
        capacity *= 2;
    char *data = realloc(self->data, capacity);
    if (!data)
        return false;
    self->data = data;
    self->capacity = capacity;
    return true;
}

bool host_writer_put(struct host_writer *self, struct json_object *line)
{
    size_t size = 0;
    const char *text =
        line ? json_object_to_json_string_length(line, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &size)
             : NULL;
    size_t whole = MARK_SIZE + size + 1;
    bool fits = text && whole <= HOST_LINE_MOST && !self->broken;
    if (fits && self->end - self->start + whole > HOST_QUEUE_HARD)
        self->broken = true; /* the other side has not read for long */
    if (fits && !self->broken && !reserve(self, whole))
        self->broken = true; /* the other side would wait for the line in vain */
    fits = fits && !self->broken;
    if (fits) {
        memcpy(self->data + self->end, MARK, MARK_SIZE);
        memcpy(self->data + self->end + MARK_SIZE, text, size);
        self->data[self->end + whole - 1] = '\n';
        self->end += whole;
    }
    json_object_put(line);
    return fits;
}

void host_writer_bytes(struct host_writer *self, const void *bytes, size_t size)
{
    if (self->broken || !reserve(self, size)) {
        self->broken = true;
        return;
    }
    memcpy(self->data + self->end, bytes, size);
    self->end += size;
}

void host_writer_flush(struct host_writer *self)
{
    while (!self->broken && self->start < self->end) {
        ssize_t n = write(self->fd, self->data + self->start, self->end - self->start);
        if (n > 0)
            self->start += (size_t)n;
        else if (errno == EINTR)
            continue;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else
            self->broken = true;
    }
    if (self->start == self->end)
        self->start = self->end = 0;
}
