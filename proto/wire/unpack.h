/* Unpacks with protobuf-c and tells damage from a lack of memory; protobuf-c returns NULL for both. */
#ifndef PROTO_UNPACK_H
#define PROTO_UNPACK_H

#include <protobuf-c/protobuf-c.h>

#include "proto/base/error.h"

/* RP_BAD_MESSAGE: the bytes are damaged. RP_NO_MEMORY: there is no memory. *out is NULL unless RP_OK is returned. */
rp_status unpack(const ProtobufCMessageDescriptor *descriptor, const void *data, size_t size, ProtobufCMessage **out);
/* Returns a copy, as unpack makes it; NULL: no memory. */
ProtobufCMessage *unpack_clone(const ProtobufCMessage *from);
/* Frees a message from unpack; NULL is allowed. */
void unpack_free(ProtobufCMessage *message);

#endif
