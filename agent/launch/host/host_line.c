#include "agent/launch/host/host_line.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/need.h"
#include "proto/base/utf8.h"

#define MARK "@rp "
#define MARK_SIZE (sizeof MARK - 1)
#define HOST_LINE_DEPTH_MOST 16 /* of nested JSON */
#define READER_SIZE (2 * (size_t)HOST_LINE_MOST)

/* ---- objects ---- */

struct json_object *host_line_new(const char *type)
{
    struct json_object *line = json_object_new_object();
    host_line_add_text(line, "type", type);
    return line;
}

void host_line_add_text(struct json_object *line, const char *name, const char *text)
{
    json_object_object_add(line, name, json_object_new_string(text));
}

void host_line_add_number(struct json_object *line, const char *name, int64_t value)
{
    json_object_object_add(line, name, json_object_new_int64(value));
}

void host_line_add_real(struct json_object *line, const char *name, double value)
{
    json_object_object_add(line, name, json_object_new_double(isfinite(value) ? value : 0.0));
}

void host_line_add_flag(struct json_object *line, const char *name, bool value)
{
    json_object_object_add(line, name, json_object_new_boolean(value));
}

void host_line_add_list(struct json_object *line, const char *name, const char *const *list)
{
    struct json_object *array = json_object_new_array();
    for (size_t i = 0; list && list[i]; i++)
        json_object_array_add(array, json_object_new_string(list[i]));
    json_object_object_add(line, name, array);
}

static struct json_object *member(struct json_object *line, const char *name)
{
    struct json_object *value = NULL;
    return json_object_object_get_ex(line, name, &value) ? value : NULL;
}

static const char *text_of(struct json_object *value)
{
    if (!json_object_is_type(value, json_type_string))
        return NULL;
    const char *text = json_object_get_string(value);
    return text && strlen(text) == (size_t)json_object_get_string_len(value) ? text : NULL;
}

const char *host_line_text(struct json_object *line, const char *name)
{
    return text_of(member(line, name));
}

int64_t host_line_number(struct json_object *line, const char *name, int64_t least, int64_t most)
{
    struct json_object *value = member(line, name);
    int64_t number = json_object_is_type(value, json_type_int) ? json_object_get_int64(value) : least;
    return number < least ? least : number > most ? most : number;
}

double host_line_real(struct json_object *line, const char *name, double least, double most)
{
    struct json_object *value = member(line, name);
    bool number = json_object_is_type(value, json_type_double) || json_object_is_type(value, json_type_int);
    double real = number ? json_object_get_double(value) : least;
    return !(real >= least) ? least : fmin(real, most);
}

bool host_line_flag(struct json_object *line, const char *name)
{
    struct json_object *value = member(line, name);
    return json_object_is_type(value, json_type_boolean) && json_object_get_boolean(value);
}

const char **host_line_list(struct json_object *line, const char *name)
{
    struct json_object *array = member(line, name);
    if (!json_object_is_type(array, json_type_array))
        return NULL;
    size_t n = json_object_array_length(array);
    const char **list = need_alloc((n + 1) * sizeof *list);
    for (size_t i = 0; i < n; i++) {
        list[i] = text_of(json_object_array_get_idx(array, i));
        if (!list[i]) {
            free(list);
            return NULL;
        }
    }
    return list;
}

void host_line_dispatch(const struct host_line_handler *table, size_t n, void *self, struct host_message *message)
{
    const char *type = host_line_text(message->line, "type");
    for (size_t i = 0; type && i < n; i++) {
        if (strcmp(table[i].type, type) == 0) {
            table[i].handle(self, message);
            break;
        }
    }
    json_object_put(message->line);
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
    size_t used = 0;
    if (size > 0)
        out[0] = '\0';
    for (uint32_t i = 0; i < self->n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? "; " : "", self->lines[i]);
    return out;
}

/* ---- reader ---- */

void host_reader_init(struct host_reader *self, int fd, struct host_noise *noise)
{
    *self = (struct host_reader){.fd = fd, .noise = noise, .data = need_alloc(READER_SIZE)};
}

void host_reader_fini(struct host_reader *self)
{
    json_object_put(self->line);
    free(self->data);
    *self = (struct host_reader){.fd = -1, .ended = true};
}

size_t host_reader_fill(struct host_reader *self)
{
    ssize_t n;
    if (self->ended)
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
static struct json_object *take_line(struct host_reader *self, const char *line, size_t size)
{
    if (size > 0 && line[size - 1] == '\r')
        size--;
    const char *mark = memmem(line, size, MARK "{", MARK_SIZE + 1);
    size_t before = mark ? (size_t)(mark - line) : size;
    struct json_object *object = mark ? parse(mark + MARK_SIZE, size - before - MARK_SIZE) : NULL;
    if (before > 0) /* a damaged object says nothing to people: the connection broke in the middle of it */
        add_noise(self->noise, line, before);
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

/* Finds the next object and how many bytes follow it. False: no whole line is left. */
static bool find_object(struct host_reader *self)
{
    size_t skip, size;
    while (!self->line && self->data && (size = next_line(self, &skip)) != SIZE_MAX) {
        const char *line = self->data + self->at;
        bool cut = skip == 0 && !self->ended, beheaded = self->skip;
        self->at += size + skip;
        self->skip = cut;
        if (cut || beheaded || size >= HOST_LINE_MOST)
            add_noise(self->noise, line, beheaded ? 0 : size);
        else
            self->line = take_line(self, line, size);
        self->follows = self->line ? (size_t)host_line_number(self->line, "bytes", 0, INT32_MAX) : 0;
        if (self->follows > HOST_DATA_MOST) { /* nobody of ours writes that: what follows is noise */
            json_object_put(self->line);
            self->line = NULL;
        }
    }
    return self->line != NULL;
}

bool host_reader_next(struct host_reader *self, struct host_message *out)
{
    if (!find_object(self) || self->used - self->at < self->follows)
        return false;
    *out = (struct host_message){
        .line = self->line,
        .bytes = self->follows > 0 ? (const uint8_t *)self->data + self->at : NULL,
        .size = self->follows,
    };
    self->at += self->follows;
    self->line = NULL;
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

static void add_bytes(struct host_writer *self, const void *bytes, size_t size)
{
    struct text *queue = &self->queue;
    if (self->broken || size == 0)
        return;
    if (self->sent > 0 && queue->size + size > queue->capacity) {
        queue->size -= self->sent;
        memmove(queue->data, queue->data + self->sent, queue->size);
        self->sent = 0;
    }
    if (queue->size - self->sent + size <= HOST_QUEUE_HARD)
        text_put(queue, bytes, size);
    else
        self->broken = true; /* the other side has not read for long */
    self->broken |= queue->failed;
}

bool host_writer_put_data(struct host_writer *self, struct json_object *line, const void *bytes, size_t size)
{
    const int style = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    size_t length = 0;
    if (size > 0)
        host_line_add_number(line, "bytes", (int64_t)size);
    const char *text = json_object_to_json_string_length(line, style, &length);
    bool fits = MARK_SIZE + length + 1 <= HOST_LINE_MOST;
    if (fits) {
        add_bytes(self, MARK, MARK_SIZE);
        add_bytes(self, text, length);
        add_bytes(self, "\n", 1);
        add_bytes(self, bytes, size);
    }
    json_object_put(line);
    return fits && !self->broken;
}

bool host_writer_put(struct host_writer *self, struct json_object *line)
{
    return host_writer_put_data(self, line, NULL, 0);
}

void host_writer_flush(struct host_writer *self)
{
    while (!self->broken && self->sent < self->queue.size) {
        ssize_t n = write(self->fd, self->queue.data + self->sent, self->queue.size - self->sent);
        if (n > 0)
            self->sent += (size_t)n;
        else if (errno == EINTR)
            continue;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else
            self->broken = true;
    }
    if (self->sent == self->queue.size)
        self->sent = self->queue.size = 0;
}
