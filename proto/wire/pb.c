/* The out-of-line half of the protobuf reader and writer. */
#include "proto/wire/pb.h"

#include <stdlib.h>

#define PB_MAX_NUMBER ((UINT64_C(1) << 29) - 1)

struct pb_number pb_read_varint_slow(const uint8_t *at, const uint8_t *end)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < PB_MAX_VARINT && at != end; i++) {
        uint8_t byte = *at++;
        if (i == PB_MAX_VARINT - 1 && byte > 1)
            break;
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80)
            return (struct pb_number){at, value};
    }
    return (struct pb_number){NULL, 0};
}

/* Reads the value after a tag and returns the byte after it; NULL: damaged. */
static const uint8_t *pb_read_value(const uint8_t *at, const uint8_t *end, struct pb_field *field)
{
    struct pb_number number;
    size_t left = (size_t)(end - at);
    switch (field->wire) {
    case PB_VARINT:
        number = pb_read_varint(at, end);
        field->value = number.value;
        return number.at;
    case PB_FIXED64:
    case PB_FIXED32: {
        size_t width = field->wire == PB_FIXED64 ? 8 : 4;
        if (left < width)
            return NULL;
        memcpy(&field->value, at, width);
        return at + width;
    }
    case PB_BYTES:
        number = pb_read_varint(at, end);
        if (number.at == NULL || number.value > (uint64_t)(end - number.at))
            return NULL;
        field->data = number.at;
        field->size = (size_t)number.value;
        return number.at + number.value;
    }
    return NULL;
}

int pb_next(struct pb_reader *self, struct pb_field *field)
{
    if (self->at == self->end)
        return 0;
    struct pb_number tag = pb_read_varint(self->at, self->end);
    if (tag.at == NULL || tag.value >> 3 == 0 || tag.value >> 3 > PB_MAX_NUMBER)
        return -1;
    *field = (struct pb_field){.number = (uint32_t)(tag.value >> 3), .wire = (enum pb_wire)(tag.value & 7)};
    const uint8_t *at = pb_read_value(tag.at, self->end, field);
    if (at == NULL)
        return -1;
    self->at = at;
    return 1;
}

void pb_varint(struct text *self, uint64_t value)
{
    uint8_t *at = text_reserve(self, pb_varint_size(value));
    if (at != NULL)
        pb_store_varint(at, value);
}

void pb_tag(struct text *self, uint32_t number, enum pb_wire wire)
{
    pb_varint(self, (uint64_t)number << 3 | wire);
}

void pb_put_varint(struct text *self, uint32_t number, uint64_t value)
{
    if (value == 0)
        return;
    pb_tag(self, number, PB_VARINT);
    pb_varint(self, value);
}

void pb_put_fixed64(struct text *self, uint32_t number, uint64_t value)
{
    uint64_t tag = (uint64_t)number << 3 | PB_FIXED64;
    uint8_t *at = value == 0 ? NULL : text_reserve(self, pb_varint_size(tag) + sizeof value);
    if (at != NULL)
        memcpy(pb_store_varint(at, tag), &value, sizeof value);
}

/* Writes tag and length of a PB_BYTES field; returns where its bytes go. */
static uint8_t *pb_put_length(struct text *self, uint32_t number, size_t size)
{
    uint64_t tag = (uint64_t)number << 3 | PB_BYTES;
    size_t head = pb_varint_size(tag) + pb_varint_size(size);
    uint8_t *at = size > SIZE_MAX - head ? NULL : text_reserve(self, head + size);
    return at == NULL ? NULL : pb_store_varint(pb_store_varint(at, tag), size);
}

void pb_put_bytes(struct text *self, uint32_t number, const void *data, size_t size)
{
    uint8_t *at = size == 0 ? NULL : pb_put_length(self, number, size);
    if (at != NULL)
        memcpy(at, data, size);
}

uint8_t *pb_put_packed(struct text *self, uint32_t number, uint32_t n, uint32_t width)
{
    return n == 0 ? NULL : pb_put_length(self, number, (size_t)n * width);
}

/* ---- all other messages */

static void *allocate(void *failed, size_t size)
{
    void *block = malloc(size ? size : 1);
    if (!block && failed)
        *(bool *)failed = true;
    return block;
}

static void release(void *failed, void *block)
{
    (void)failed;
    free(block);
}

rp_status unpack(const ProtobufCMessageDescriptor *descriptor, const void *data, size_t size, ProtobufCMessage **out)
{
    bool failed = false;
    ProtobufCAllocator allocator = {allocate, release, &failed};
    *out = protobuf_c_message_unpack(descriptor, &allocator, size, data);
    return *out ? RP_OK : failed ? RP_NO_MEMORY : RP_BAD_MESSAGE;
}

void unpack_free(ProtobufCMessage *message)
{
    ProtobufCAllocator allocator = {allocate, release, NULL};
    protobuf_c_message_free_unpacked(message, &allocator);
}

void *pb_messages(struct arena *arena, const ProtobufCMessageDescriptor *of, size_t n, void *list)
{
    char *first = arena_take(arena, n, of->sizeof_message);
    void **at = list ? arena_take(arena, n, sizeof *at) : NULL;
    for (size_t i = 0; i < n; i++) {
        void *message = first + i * of->sizeof_message;
        of->message_init(message);
        if (at)
            at[i] = message;
    }
    if (at)
        memcpy(list, &at, sizeof at);
    return first;
}

ProtobufCMessage *unpack_clone(const ProtobufCMessage *from)
{
    size_t size = protobuf_c_message_get_packed_size(from);
    uint8_t *bytes = malloc(size + 1);
    ProtobufCMessage *copy = NULL;
    if (bytes && protobuf_c_message_pack(from, bytes) == size)
        unpack(from->descriptor, bytes, size, &copy);
    free(bytes);
    return copy;
}
