#include "proto/wire/unpack.h"

#include <stdbool.h>
#include <stdlib.h>

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
