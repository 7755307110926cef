/* What the block's reader shares with the file's. */
#ifndef AGENT_NET_WEIGHTS_IMPL_H
#define AGENT_NET_WEIGHTS_IMPL_H

#include <stdint.h>

#include "replay/error.h"

enum { WEIGHTS_VERSION = 1, WEIGHTS_HEADER_BYTES = 32 };

/* Of a block of `size` bytes whose first WEIGHTS_HEADER_BYTES are at head: magic, version and size. */
rp_status weights_check_header(const uint8_t *head, uint64_t size, rp_error *err);

#endif
