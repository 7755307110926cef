#include "agent/launch/host/host_line.h"

#include <assert.h>
#include <errno.h>
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/json_map.h"
#include "proto/base/need.h"
#include "proto/base/utf8.h"

#define MARK "@rp "
#define MARK_SIZE (sizeof MARK - 1)
#define HOST_LINE_DEPTH_MOST 16 /* of nested JSON */
#define READER_SIZE (2 * (size_t)HOST_LINE_MOST)

/* ---- what a line says ---- */

enum member { MEMBER_TEXT, MEMBER_NUMBER, MEMBER_REAL, MEMBER_FLAG };

#define MEMBER_OF(member)                                                                                              \
    _Generic(((struct host_line *)0)->member, const char *: MEMBER_TEXT, int64_t: MEMBER_NUMBER, double: MEMBER_REAL,  \
             bool: MEMBER_FLAG)
#define ROW(member)                                                                                                    \
    {                                                                                                                  \
        .name = #member, .kind = MEMBER_OF(member), .offset = offsetof(struct host_line, member)                       \
    }
static const struct {
    const char *name;
    enum member kind;
    size_t offset;
} rows[] = {
    ROW(type), ROW(id),       ROW(lease_ms), ROW(version), ROW(here),     ROW(cwd),     ROW(hostname), ROW(model),
    ROW(work), ROW(programs), ROW(address),  ROW(cores),   ROW(memory),   ROW(python),  ROW(name),     ROW(words),
    ROW(pid),  ROW(status),   ROW(kill),     ROW(text),    ROW(cpu_ns),   ROW(stopped), ROW(exited),   ROW(cpu),
    ROW(mode), ROW(offset),   ROW(replace),  ROW(last),    ROW(endpoint), ROW(ok),      ROW(ns),
};
#define N_ROWS (sizeof rows / sizeof rows[0])

/* Adds a member, unless it says nothing. */
static void write_member(enum member kind, struct json_object *object, const char *name, const void *at)
{
    if (kind == MEMBER_TEXT && *(const char *const *)at)
        json_object_object_add(object, name, json_object_new_string(*(const char *const *)at));
    else if (kind == MEMBER_NUMBER && *(const int64_t *)at)
        json_object_object_add(object, name, json_object_new_int64(*(const int64_t *)at));
    else if (kind == MEMBER_REAL && isnormal(*(const double *)at))
        json_object_object_add(object, name, json_object_new_double(*(const double *)at));
    else if (kind == MEMBER_FLAG && *(const bool *)at)
        json_object_object_add(object, name, json_object_new_boolean(true));
}

static void read_member(enum member kind, struct json_object *value, void *at)
{
    const char *text = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : NULL;
    bool whole = text && strlen(text) == (size_t)json_object_get_string_len(value);
    if (kind == MEMBER_TEXT)
        *(const char **)at = whole ? text : NULL;
    else if (kind == MEMBER_NUMBER)
        *(int64_t *)at = json_object_is_type(value, json_type_int) ? json_object_get_int64(value) : 0;
    else if (kind == MEMBER_REAL)
        *(double *)at = json_map_real(value, 0);
    else
        *(bool *)at = json_object_is_type(value, json_type_boolean) && json_object_get_boolean(value);
}

void host_line_write(struct text *out, const struct host_line *line, const void *bytes, size_t size)
{
    struct json_object *object = json_object_new_object();
    assert(size <= HOST_DATA_MOST);
    for (size_t i = 0; i < N_ROWS; i++)
        write_member(rows[i].kind, object, rows[i].name, (const char *)line + rows[i].offset);
    if (size > 0)
        json_object_object_add(object, "bytes", json_object_new_int64((int64_t)size));
    text_add(out, MARK "%s\n",
             json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    text_put(out, bytes, size);
    json_object_put(object);
}

void host_line_dispatch(const struct host_line_handler *table, void *self, const struct host_message *message)
{
    const char *type = message->line->type ? message->line->type : "";
    while (table->type && strcmp(table->type, type) != 0)
        table++;
    if (table->type)
        table->handle(self, message);
}

/* ---- noise ---- */

size_t host_line_clean(char *out, size_t size, const char *text, size_t length)
{
    size_t used = 0;
    for (size_t i = 0; i < length && used + 1 < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= ' ' && c != 0x7f && (c != ' ' || used > 0))
            out[used++] = (char)c;
    }
    utf8_clean(out, used);
    out[used] = '\0';
    return used;
}

static void add_noise(struct host_noise *self, const char *text, size_t size)
{
    char line[sizeof self->lines[0]];
    size_t used = host_line_clean(line, sizeof line, text, size);
    if (used == 0)
        return;
    if (self->n == HOST_NOISE_LINES)
        memmove(self->lines[0], self->lines[1], sizeof self->lines - sizeof self->lines[0]);
    else
        self->n++;
    memcpy(self->lines[self->n - 1], line, used + 1);
}

const char *host_noise_text(const struct host_noise *self, char *out, size_t size)
{
    out[0] = '\0';
    for (uint32_t i = 0; i < self->n; i++)
        text_append(out, size, "%s%s", i > 0 ? "; " : "", self->lines[i]);
    return out;
}

/* ---- reader ---- */

void host_reader_init(struct host_reader *self, int fd, struct host_noise *noise)
{
    *self = (struct host_reader){.fd = fd, .noise = noise, .data = need_alloc(READER_SIZE)};
}

void host_reader_fini(struct host_reader *self)
{
    json_object_put(self->object);
    free(self->data);
    if (self->fd >= 0)
        close(self->fd);
    *self = (struct host_reader){.fd = -1, .ended = true};
}

size_t host_reader_fill(struct host_reader *self)
{
    if (self->ended)
        return 0;
    memmove(self->data, self->data + self->at, self->used - self->at);
    self->used -= self->at;
    self->at = 0;
    ssize_t n = read(self->fd, self->data + self->used, READER_SIZE - self->used);
    self->ended = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    self->used += n > 0 ? (size_t)n : 0;
    return n > 0 ? (size_t)n : 0;
}

static struct json_object *parse(const char *text, size_t size)
{
    struct json_tokener *tokener = json_tokener_new_ex(HOST_LINE_DEPTH_MOST);
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
static void take_line(struct host_reader *self, const char *line, size_t size)
{
    if (size > 0 && line[size - 1] == '\r')
        size--;
    const char *mark = memmem(line, size, MARK "{", MARK_SIZE + 1);
    size_t before = mark ? (size_t)(mark - line) : size;
    if (before > 0) /* a damaged object says nothing to people: the connection broke in the middle of it */
        add_noise(self->noise, line, before);
    json_object_put(self->object);
    self->object = mark ? parse(mark + MARK_SIZE, size - before - MARK_SIZE) : NULL;
    struct json_object *bytes = json_object_object_get(self->object, "bytes");
    int64_t follows = json_object_is_type(bytes, json_type_int) ? json_object_get_int64(bytes) : 0;
    for (size_t i = 0; i < N_ROWS; i++)
        read_member(rows[i].kind, json_object_object_get(self->object, rows[i].name),
                    (char *)&self->line + rows[i].offset);
    self->follows = follows > 0 ? (size_t)follows : 0;
    self->pending =
        self->object && self->follows <= HOST_DATA_MOST; /* nobody of ours writes more: what follows is noise */
}

bool host_reader_next(struct host_reader *self, struct host_message *out)
{
    /* Finds the next object and how many bytes follow it. Without an end, the last line ends with the stream. */
    for (size_t left; !self->pending && (left = self->used - self->at) > 0;) {
        const char *line = self->data + self->at, *end = memchr(line, '\n', left);
        size_t size = end ? (size_t)(end - line) : left;
        bool open = !end && !self->ended, beheaded = self->skip;
        if (open && left < HOST_LINE_MOST)
            break;
        self->at += size + (end != NULL);
        self->skip = open;
        if (open || beheaded || size >= HOST_LINE_MOST)
            add_noise(self->noise, line, beheaded ? 0 : size);
        else
            take_line(self, line, size);
    }
    if (!self->pending || self->used - self->at < self->follows)
        return false;
    *out = (struct host_message){
        .line = &self->line,
        .bytes = self->follows > 0 ? (const uint8_t *)self->data + self->at : NULL,
        .size = self->follows,
    };
    self->at += self->follows;
    self->pending = false;
    return true;
}

/* ---- writer ---- */

void host_writer_init(struct host_writer *self, int fd)
{
    *self = (struct host_writer){.fd = fd};
}

void host_writer_fini(struct host_writer *self)
{
    text_fini(&self->queue);
    if (self->fd >= 0)
        close(self->fd);
    *self = (struct host_writer){.fd = -1, .broken = true};
}

bool host_writer_room(const struct host_writer *self)
{
    return !self->broken && self->queue.size - self->sent < HOST_QUEUE_SOFT;
}

bool host_writer_empty(const struct host_writer *self)
{
    return self->queue.size == self->sent;
}

bool host_writer_add(struct host_writer *self, const struct text *lines)
{
    struct text *queue = &self->queue;
    if (self->broken)
        return false;
    if (self->sent > 0 && queue->size + lines->size > queue->capacity) {
        queue->size -= self->sent;
        memmove(queue->data, queue->data + self->sent, queue->size);
        self->sent = 0;
    }
    if (queue->size - self->sent + lines->size <= HOST_QUEUE_HARD)
        text_put(queue, lines->data, lines->size);
    else
        self->broken = true; /* the other side has not read for long */
    self->broken |= queue->failed || lines->failed;
    return !self->broken;
}

bool host_writer_put(struct host_writer *self, const struct host_line *line, const void *bytes, size_t size)
{
    struct text text = {0};
    host_line_write(&text, line, bytes, size);
    bool put = host_writer_add(self, &text);
    text_fini(&text);
    return put;
}

void host_writer_flush(struct host_writer *self)
{
    for (ssize_t n = 1; n > 0 && !self->broken && self->sent < self->queue.size;) {
        n = write(self->fd, self->queue.data + self->sent, self->queue.size - self->sent);
        self->sent += n > 0 ? (size_t)n : 0;
        self->broken = n < 0 && errno != EAGAIN && errno != EINTR;
    }
    if (self->sent == self->queue.size)
        self->sent = self->queue.size = 0;
}
