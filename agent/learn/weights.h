/* Named tensors in one block of bytes: the format of parameter slots, of saved learners and of checkpoints' weights.
 * proto/PROTOCOL.md, 21 describes it; version 1 is: "RPWT", version, counts, a table of entries (name, dtype, shape, offset),
 * the data aligned to 64 bytes, crc32c of all before it. Little-endian. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "replay/error.h"
#include "replay/types.h"

#define WEIGHTS_MAX_NAME 127u
#define WEIGHTS_MAX_TENSORS 1024u
#define WEIGHTS_MAX_BYTES (UINT64_C(1) << 32) /* of a file */
#define WEIGHTS_VERSION 1u
#define WEIGHTS_HEADER_BYTES 32u

struct tensor {
    char name[WEIGHTS_MAX_NAME + 1];
    int32_t dtype; /* an rp_dtype */
    uint32_t rank;
    uint64_t shape[RP_MAX_RANK];
    void *data; /* shape product times the size of dtype bytes; borrowed */
};

uint64_t tensor_bytes(const struct tensor *self);
/* A tensor of n numbers. */
struct tensor tensor_vector(const char *name, int32_t dtype, void *data, uint64_t n);

/* Bytes that weights_encode writes. Names are 1 to WEIGHTS_MAX_NAME visible ASCII characters, each once; at most
 * WEIGHTS_MAX_TENSORS. */
size_t weights_size(const struct tensor *tensors, uint32_t n);
void weights_encode(const struct tensor *tensors, uint32_t n, void *out);

/* Checks everything (magic, version, bounds, names, checksum) before a single number is copied. Every tensor asked for
 * must be there with its dtype and shape; further ones in the block are ignored. On error nothing was copied, and the
 * text says what is wrong: "tensor 'q/layer0/weight' is [4, 64] here and [8, 64] in the network". */
rp_status weights_decode(const void *block, size_t size, struct tensor *tensors, uint32_t n, rp_error *err);
/* Lists the tensors of a block (data points into the block, and is aligned if the block is). *n may be more than the
 * `max` that out has room for. */
rp_status weights_list(const void *block, size_t size, struct tensor *out, uint32_t max, uint32_t *n, rp_error *err);

/* Makes a block of the same tensors whose float32 are bfloat16, rounded to nearest: half the bytes. Free *out. */
rp_status weights_bf16(const void *block, size_t size, uint8_t **out, size_t *out_size, rp_error *err);

/* Writes under a temporary name, syncs and renames: the file is the old one or the new one, never a part. */
rp_status weights_write_file(const char *path, const struct tensor *tensors, uint32_t n, rp_error *err);
/* Gives the whole file, unchecked, for weights_list: free(). */
rp_status weights_load_file(const char *path, uint8_t **block, size_t *size, rp_error *err);
rp_status weights_read_file(const char *path, struct tensor *tensors, uint32_t n, rp_error *err);
