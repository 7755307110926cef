/* protobuf-c's unpacking, which gives NULL for damage and for a lack of memory alike: here the two differ. */
#ifndef PROTO_UNPACK_H
#define PROTO_UNPACK_H

#include <protobuf-c/protobuf-c.h>

#include "proto/base/error.h"

/* RP_OK; RP_BAD_MESSAGE: the bytes are damaged; RP_NO_MEMORY. *out is NULL unless it is RP_OK. */
rp_status unpack(const ProtobufCMessageDescriptor *descriptor, const void *data, size_t size, ProtobufCMessage **out);
/* For messages from unpack alone. NULL is fine. */
void unpack_free(ProtobufCMessage *message);

#endif
