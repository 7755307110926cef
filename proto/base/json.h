/* JSON text: a writer that puts the commas in, and any protobuf message by its descriptor.
 *
 * Messages come out with the names of replay.proto. Every field is written, also those with default values; a member of
 * a oneof only if it is set; a sub-message that is absent is left out. 64-bit numbers are JSON numbers, bytes are
 * hexadecimal strings, NaN and infinities are strings. Text that is no UTF-8 comes out with U+FFFD in its place. */
#ifndef AGENT_CLIENT_JSON_H
#define AGENT_CLIENT_JSON_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialised. Out of memory is remembered and told by json_take. */
struct json {
    char *data;
    size_t size, capacity;
    bool failed;
    bool comma; /* the next value is not the first */
};

void json_fini(struct json *self);
/* Gives the text, terminated, and empties the writer; NULL: out of memory. */
char *json_take(struct json *self);

/* open is '{' or '['. */
void json_open(struct json *self, char open);
void json_close(struct json *self, char close);
/* A member's name; the next call writes its value. */
void json_key(struct json *self, const char *name);
void json_string(struct json *self, const char *text);
void json_hex(struct json *self, const uint8_t *data, size_t size);
void json_unsigned(struct json *self, uint64_t value);
void json_signed(struct json *self, int64_t value);
/* The shortest decimal number that reads back as the same double. */
void json_double(struct json *self, double value);
void json_float(struct json *self, float value);
void json_boolean(struct json *self, bool value);
/* Members. A number that is not finite is null, and no text is an empty one. */
void json_real(struct json *self, const char *name, double value);
void json_text(struct json *self, const char *name, const char *text);
/* "key" as a number and "key_text" as a string: many readers of JSON keep 53 bits of a number. */
void json_item_key(struct json *self, uint64_t key);
/* NULL writes null. */
void json_message(struct json *self, const ProtobufCMessage *message);

#endif
