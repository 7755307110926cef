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
