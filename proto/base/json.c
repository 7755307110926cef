/* See json.h. */
#include "proto/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/utf8.h"

void json_fini(struct json *self)
{
    text_fini(&self->out);
    self->comma = false;
}

char *json_take(struct json *self)
{
    text_put(&self->out, "", 1);
    char *data = self->out.failed ? NULL : self->out.data;
    if (!data)
        free(self->out.data);
    *self = (struct json){0};
    return data;
}

static void value_begins(struct json *self)
{
    if (self->comma)
        text_put(&self->out, ", ", 2);
    self->comma = true;
}

void json_open(struct json *self, char open)
{
    value_begins(self);
    text_put(&self->out, &open, 1);
    self->comma = false;
}

void json_close(struct json *self, char close)
{
    text_put(&self->out, &close, 1);
    self->comma = true;
}

static void quote(struct json *self, const char *text)
{
    text_put(&self->out, "\"", 1);
    for (size_t n; *text; text += n ? n : 1) {
        uint32_t code = utf8_point(text, &n);
        /* What is not printable in YAML is escaped, too: so the text is a YAML string as well. */
        bool hidden = code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 ||
                      code == 0xfeff || code == 0xfffe || code == 0xffff;
        const char *known = code < 0x80 ? strchr("\bb\ff\nn\rr\tt\"\"\\\\", (int)code) : NULL;
        char escape[8];
        if (n == 0)
            text_put(&self->out, "\xef\xbf\xbd", 3);
        else if (known && (hidden || code == '"' || code == '\\'))
            text_put(&self->out, escape, (size_t)snprintf(escape, sizeof escape, "\\%c", known[1]));
        else if (hidden)
            text_put(&self->out, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", code));
        else
            text_put(&self->out, text, n);
    }
    text_put(&self->out, "\"", 1);
}

void json_key(struct json *self, const char *name)
{
    value_begins(self);
    quote(self, name);
    text_put(&self->out, ": ", 2);
    self->comma = false;
}

void json_string(struct json *self, const char *text)
{
    value_begins(self);
    quote(self, text ? text : "");
}

static void json_hex(struct json *self, const uint8_t *data, size_t size)
{
    value_begins(self);
    text_put(&self->out, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        char byte[3];
        snprintf(byte, sizeof byte, "%02x", data[i]);
        text_put(&self->out, byte, 2);
    }
    text_put(&self->out, "\"", 1);
}

static RP_PRINTF(2, 3) void value(struct json *self, const char *format, ...)
{
    char text[40];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    value_begins(self);
    text_put(&self->out, text, (size_t)size);
}

void json_unsigned(struct json *self, uint64_t number)
{
    value(self, "%" PRIu64, number);
}

void json_signed(struct json *self, int64_t number)
{
    value(self, "%" PRId64, number);
}

/* Writes the shortest text that reads back as the same number: a float or a double. */
static void shortest(struct json *self, double number, int digits, bool is_float)
{
    char text[40];
    if (!isfinite(number)) {
        json_string(self, isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity");
        return;
    }
    for (int most = digits + (is_float ? 3 : 2);; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (digits == most || (is_float ? (double)strtof(text, NULL) : strtod(text, NULL)) == number)
            break;
    }
    value(self, "%s", text);
}

void json_double(struct json *self, double number)
{
    shortest(self, number, 15, false);
}

void json_float(struct json *self, float number)
{
    shortest(self, (double)number, 6, true);
}

void json_boolean(struct json *self, bool flag)
{
    json_raw(self, flag ? "true" : "false");
}

void json_number(struct json *self, double number)
{
    if (isfinite(number))
        json_double(self, number);
    else
        json_null(self);
}

void json_null(struct json *self)
{
    json_raw(self, "null");
}

void json_raw(struct json *self, const char *json)
{
    value_begins(self);
    text_put(&self->out, json, strlen(json));
}

/* ---- members ---- */

void json_real(struct json *self, const char *name, double value)
{
    json_key(self, name);
    json_number(self, value);
}

void json_count(struct json *self, const char *name, uint64_t value)
{
    json_key(self, name);
    json_unsigned(self, value);
}

void json_text(struct json *self, const char *name, const char *text)
{
    json_key(self, name);
    json_string(self, text);
}

void json_flag(struct json *self, const char *name, bool value)
{
    json_key(self, name);
    json_boolean(self, value);
}

void json_begin(struct json *self, const char *name, char open)
{
    json_key(self, name);
    json_open(self, open);
}

void json_item_key(struct json *self, uint64_t key)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, key);
    json_count(self, "key", key);
    json_text(self, "key_text", text);
}

/* ---- protobuf ---- */

/* Returns the bytes of one element of a repeated field. */
static size_t element_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static void element(struct json *self, const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        json_signed(self, *(const int32_t *)at);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        json_signed(self, *(const int64_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        json_unsigned(self, *(const uint32_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        json_unsigned(self, *(const uint64_t *)at);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        json_float(self, *(const float *)at);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        json_double(self, *(const double *)at);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        json_boolean(self, *(const protobuf_c_boolean *)at);
        break;
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(field->descriptor, *(const int *)at);
        if (known)
            json_string(self, known->name);
        else
            json_signed(self, *(const int *)at);
        break;
    }
    case PROTOBUF_C_TYPE_STRING:
        json_string(self, *(const char *const *)at);
        break;
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *bytes = at;
        json_hex(self, bytes->data, bytes->len);
        break;
    }
    case PROTOBUF_C_TYPE_MESSAGE:
        json_message(self, *(const ProtobufCMessage *const *)at);
        break;
    }
}

static void repeated(struct json *self, const ProtobufCFieldDescriptor *field, const uint8_t *base)
{
    size_t n, size = element_size(field->type);
    const uint8_t *at;
    memcpy(&n, base + field->quantifier_offset, sizeof n);
    memcpy(&at, base + field->offset, sizeof at);
    json_open(self, '[');
    for (size_t i = 0; i < n; i++)
        element(self, field, at + i * size);
    json_close(self, ']');
}

static bool is_present(const ProtobufCFieldDescriptor *field, const uint8_t *base)
{
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        int which;
        memcpy(&which, base + field->quantifier_offset, sizeof which);
        if ((uint32_t)which != field->id)
            return false;
    }
    const void *pointer = "";
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        memcpy(&pointer, base + field->offset, sizeof pointer);
    return pointer != NULL;
}

static bool is_item_key(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_FIXED64 && strcmp(field->name, "key") == 0;
}

void json_message(struct json *self, const ProtobufCMessage *message)
{
    if (!message) {
        json_null(self);
        return;
    }
    const uint8_t *base = (const uint8_t *)message;
    json_open(self, '{');
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            json_key(self, field->name);
            repeated(self, field, base);
        } else if (is_item_key(field) && is_present(field, base)) {
            uint64_t key;
            memcpy(&key, base + field->offset, sizeof key);
            json_item_key(self, key);
        } else if (is_present(field, base)) {
            json_key(self, field->name);
            element(self, field, base + field->offset);
        }
    }
    json_close(self, '}');
}

void json_list(struct json *self, const char *name, ProtobufCMessage *const *messages, size_t n)
{
    json_key(self, name);
    json_open(self, '[');
    for (size_t i = 0; i < n; i++)
        json_message(self, messages[i]);
    json_close(self, ']');
}
