/* Writes JSON text: values with their commas, and any protobuf message by its descriptor.
 *
 * Messages are written with the names of replay.proto. Every field is written, including fields with default values; a
 * member of a oneof only if it is set; an absent sub-message is left out. 64-bit numbers are JSON numbers, bytes are
 * hexadecimal strings, NaN and infinities are strings. Each byte that is not UTF-8 becomes U+FFFD. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"

/* Starts zero-initialised. After a failed allocation nothing more is written, and json_take returns NULL. */
struct json {
    struct text out; /* not terminated before json_take */
    bool comma;      /* the next value needs a comma before it */
};

void json_fini(struct json *self);
/* Gives the terminated text to the caller and empties the writer; NULL: out of memory. */
char *json_take(struct json *self);

/* open is '{' or '['. */
void json_open(struct json *self, char open);
void json_close(struct json *self, char close);
/* Writes a member's name; the next call writes its value. */
void json_key(struct json *self, const char *name);
void json_string(struct json *self, const char *text);
void json_unsigned(struct json *self, uint64_t value);
void json_signed(struct json *self, int64_t value);
/* Writes the shortest decimal number that reads back as the same double; NaN and infinities as strings. */
void json_double(struct json *self, double value);
void json_float(struct json *self, float value);
/* Writes null instead of NaN and infinities. */
void json_number(struct json *self, double value);
void json_boolean(struct json *self, bool value);
void json_null(struct json *self);
/* Writes a value that is JSON already. */
void json_raw(struct json *self, const char *json);
/* Members: a name and its value. A number that is not finite is null; no text is the empty text. */
void json_real(struct json *self, const char *name, double value);
void json_count(struct json *self, const char *name, uint64_t value);
void json_text(struct json *self, const char *name, const char *text);
void json_flag(struct json *self, const char *name, bool value);
/* Writes a member's name and opens its value: open is '{' or '['. */
void json_begin(struct json *self, const char *name, char open);
/* Writes "key" as a number and "key_text" as a string: many readers of JSON keep only 53 bits of a number. */
void json_item_key(struct json *self, uint64_t key);
/* Writes a member: a list of messages. */
void json_list(struct json *self, const char *name, ProtobufCMessage *const *messages, size_t n);
/* Writes null for NULL. */
void json_message(struct json *self, const ProtobufCMessage *message);
