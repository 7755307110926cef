/* See log_json.h. No allocation: a log line must get out when memory is short. */
#include "proto/base/log_json.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/utf8.h"

#define KEY_MOST 64u
#define DIGITS_MOST 15u
#define END_ROOM 8u /* for the end of a string, of the object and of the line */

struct out {
    char *data;
    size_t size, used;
};

/* ---- writing ---- */

/* False: it does not fit, and nothing is written. */
static bool put(struct out *self, const char *text, size_t size)
{
    if (self->used + size + END_ROOM > self->size)
        return false;
    memcpy(self->data + self->used, text, size);
    self->used += size;
    return true;
}

static void put_end(struct out *self, const char *text)
{
    size_t size = strlen(text);
    memcpy(self->data + self->used, text, size);
    self->used += size;
}

/* A byte as it stands in a string of JSON. */
static bool put_byte(struct out *self, unsigned char byte)
{
    char escaped[8];
    int size = byte == '"' || byte == '\\'   ? snprintf(escaped, sizeof escaped, "\\%c", byte)
               : byte == '\n'                ? snprintf(escaped, sizeof escaped, "\\n")
               : byte < 0x20 || byte == 0x7f ? snprintf(escaped, sizeof escaped, "\\u%04x", byte)
                                             : snprintf(escaped, sizeof escaped, "%c", byte);
    return put(self, escaped, (size_t)size);
}

/* Begins a member; false: there is no room for it. */
static bool put_key(struct out *self, const char *key)
{
    size_t before = self->used;
    if (put(self, before > 1 ? ", \"" : "\"", before > 1 ? 3 : 1) && put(self, key, strlen(key)) &&
        put(self, "\": ", 3) && self->used + 2 * END_ROOM < self->size)
        return true;
    self->used = before;
    return false;
}

/* Turns the text of the string that began at `from` into valid UTF-8, also where it was cut, and ends it. */
static void end_string(struct out *self, size_t from)
{
    utf8_clean(self->data + from, self->used - from);
    put_end(self, "\"");
}

static void put_string(struct out *self, const char *key, const char *text, size_t size)
{
    if (!put_key(self, key) || !put(self, "\"", 1))
        return;
    size_t from = self->used;
    for (size_t i = 0; i < size && put_byte(self, (unsigned char)text[i]);)
        i++;
    end_string(self, from);
}

/* ---- values ---- */

/* Undoes one escape of log_quote: returns its length and sets *byte. */
static size_t unescape(const char *at, unsigned char *byte)
{
    static const char letters[] = "abtnvfr";
    const char *letter = at[1] ? strchr(letters, at[1]) : NULL;
    unsigned value = 0;
    if (at[1] == 'x' && isxdigit((unsigned char)at[2]) && isxdigit((unsigned char)at[3]) &&
        sscanf(at + 2, "%2x", &value) == 1) {
        *byte = (unsigned char)value;
        return 4;
    }
    *byte = letter ? (unsigned char)(7 + (letter - letters)) : (unsigned char)at[1];
    return at[1] ? 2 : 1;
}

/* Writes a value in quotes; returns what follows it. A value that was cut has no closing quote. */
static const char *put_quoted(struct out *self, const char *key, const char *at)
{
    bool begun = put_key(self, key) && put(self, "\"", 1), room = begun;
    size_t from = self->used;
    for (at++; *at && *at != '"';) {
        unsigned char byte = (unsigned char)*at;
        at += *at == '\\' ? unescape(at, &byte) : 1;
        room = room && byte != 0 && put_byte(self, byte);
    }
    if (begun)
        end_string(self, from);
    return *at ? at + 1 : at;
}

/* True for what JSON calls a number. Ids of 16 digits are none: many readers would round them. */
static bool is_number(const char *at, size_t size)
{
    if (size > DIGITS_MOST && !memchr(at, '.', size))
        return false;
    size_t i = at[0] == '-', digits = 0;
    bool zero = i < size && at[i] == '0';
    for (; i < size && isdigit((unsigned char)at[i]); i++)
        digits++;
    if (!digits || (zero && digits > 1))
        return false;
    if (i < size && at[i] == '.') {
        size_t point = i++;
        while (i < size && isdigit((unsigned char)at[i]))
            i++;
        if (i == point + 1)
            return false;
    }
    if (i < size && (at[i] == 'e' || at[i] == 'E')) {
        i += i + 1 < size && (at[i + 1] == '+' || at[i + 1] == '-') ? 2 : 1;
        size_t power = i;
        while (i < size && isdigit((unsigned char)at[i]))
            i++;
        if (i == power)
            return false;
    }
    return i == size;
}

/* ---- fields ---- */

/* Length of the key if a field begins here; 0: none does. */
static size_t key_at(const char *at)
{
    size_t n = 0;
    while (islower((unsigned char)at[n]) || at[n] == '_' || (n > 0 && isdigit((unsigned char)at[n])))
        n++;
    return n > 0 && n < KEY_MOST - 1 && at[n] == '=' ? n : 0;
}

/* Writes a value without quotes, which reaches up to the next field. */
static const char *put_plain(struct out *self, const char *key, const char *at)
{
    size_t size = 0;
    while (at[size] && !(at[size] == ' ' && (!at[size + 1] || key_at(at + size + 1))))
        size++;
    bool word = (size == 4 && memcmp(at, "true", 4) == 0) || (size == 5 && memcmp(at, "false", 5) == 0);
    if (!word && !is_number(at, size)) {
        put_string(self, key, at, size);
    } else {
        size_t before = self->used;
        if (put_key(self, key) && !put(self, at, size))
            self->used = before;
    }
    return at + size;
}

static void put_field(struct out *self, const char **at, size_t length)
{
    static const char *const taken[] = {"time", "level", "id", "text"};
    char key[KEY_MOST + 1];
    snprintf(key, sizeof key, "%.*s", (int)length, *at);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (strcmp(key, taken[i]) == 0)
            snprintf(key, sizeof key, "%s_", taken[i]);
    *at += length + 1;
    *at = **at == '"' ? put_quoted(self, key, *at) : put_plain(self, key, *at);
}

size_t log_json(char *out, size_t size, const struct log_parts *parts)
{
    struct out self = {.data = out, .size = size};
    put(&self, "{", 1);
    put_string(&self, "time", parts->time, strlen(parts->time));
    put_string(&self, "level", parts->level, strlen(parts->level));
    put_string(&self, "id", parts->id, strlen(parts->id));
    put_string(&self, "text", parts->what, strlen(parts->what));
    for (const char *at = parts->fields; *at;) {
        size_t length = key_at(at);
        if (length)
            put_field(&self, &at, length);
        else
            at++;
    }
    put_end(&self, "}\n");
    return self.used;
}
