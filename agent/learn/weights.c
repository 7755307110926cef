/* A reader accepts exactly the bytes that weights_encode would write: offsets, padding and order follow from the
 * table, so nothing can point outside of the block or overlap. */
#include "agent/learn/weights.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/crc32c.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/io.h"

enum { ENTRY_BYTES = 16, CHECKSUM_BYTES = 4, DATA_ALIGN = 64 };

static const char magic[4] = {'R', 'P', 'W', 'T'};

static uint64_t align(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* A number of `size` bytes: the format is little-endian, as the machines are. */
static uint64_t get(const uint8_t *p, size_t size)
{
    uint64_t value = 0;
    memcpy(&value, p, size);
    return value;
}

static void put(uint8_t *p, uint64_t value, size_t size)
{
    memcpy(p, &value, size);
}

uint64_t tensor_bytes(const struct tensor *self)
{
    uint64_t n = dtype_size(self->dtype);
    for (uint32_t i = 0; i < self->rank; i++)
        n *= self->shape[i];
    return n;
}

struct tensor tensor_vector(const char *name, int32_t dtype, void *data, uint64_t n)
{
    struct tensor out = {.dtype = dtype, .rank = 1, .shape = {n}, .data = data};
    snprintf(out.name, sizeof out.name, "%s", name);
    return out;
}

/* ---- writing */

static uint64_t entry_size(uint32_t rank, size_t name_length)
{
    return align(ENTRY_BYTES + 8 * (uint64_t)rank + name_length, 8);
}

static uint64_t table_size(const struct tensor *tensors, uint32_t n)
{
    uint64_t size = 0;
    for (uint32_t i = 0; i < n; i++)
        size += entry_size(tensors[i].rank, strlen(tensors[i].name));
    return size;
}

size_t weights_size(const struct tensor *tensors, uint32_t n)
{
    uint64_t end = align(WEIGHTS_HEADER_BYTES + table_size(tensors, n), DATA_ALIGN);
    for (uint32_t i = 0; i < n; i++)
        end = align(end, DATA_ALIGN) + tensor_bytes(&tensors[i]);
    return align(end, 4) + CHECKSUM_BYTES;
}

static uint8_t *put_entry(uint8_t *p, const struct tensor *tensor, uint64_t offset)
{
    size_t length = strlen(tensor->name);
    assert(length > 0 && length <= WEIGHTS_MAX_NAME && tensor->rank <= RP_MAX_RANK && dtype_size(tensor->dtype) > 0);
    p[0] = (uint8_t)length;
    p[1] = (uint8_t)tensor->dtype;
    p[2] = (uint8_t)tensor->rank;
    put(p + 8, offset, 8);
    for (uint32_t i = 0; i < tensor->rank; i++)
        put(p + ENTRY_BYTES + 8 * (size_t)i, tensor->shape[i], 8);
    memcpy(p + ENTRY_BYTES + 8 * (size_t)tensor->rank, tensor->name, length);
    return p + entry_size(tensor->rank, length);
}

void weights_encode(const struct tensor *tensors, uint32_t n, void *out)
{
    uint8_t *block = out, *entry = block + WEIGHTS_HEADER_BYTES;
    uint64_t size = weights_size(tensors, n), table = table_size(tensors, n);
    uint64_t at = align(WEIGHTS_HEADER_BYTES + table, DATA_ALIGN);
    assert(n <= WEIGHTS_MAX_TENSORS);
    memset(block, 0, at);
    memcpy(block, magic, sizeof magic);
    put(block + 4, WEIGHTS_VERSION, 4);
    put(block + 8, n, 4);
    put(block + 12, table, 4);
    put(block + 16, size, 8);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = tensor_bytes(&tensors[i]), begin = align(at, DATA_ALIGN);
        memset(block + at, 0, begin - at);
        entry = put_entry(entry, &tensors[i], begin);
        if (bytes > 0)
            memcpy(block + begin, tensors[i].data, bytes);
        at = begin + bytes;
    }
    memset(block + at, 0, align(at, 4) - at);
    at = align(at, 4);
    put(block + at, crc32c(0, block, at), 4);
}

/* ---- reading */

/* Checks magic, version and size of a block of `size` bytes whose first WEIGHTS_HEADER_BYTES are at head. */
static rp_status weights_check_header(const uint8_t *head, uint64_t size, rp_error *err)
{
    if (size < WEIGHTS_HEADER_BYTES)
        return err_set(err, RP_DATA_LOSS, "%" PRIu64 " bytes are too few for weights: the header alone has %d", size,
                       WEIGHTS_HEADER_BYTES);
    if (memcmp(head, magic, sizeof magic) != 0)
        return err_set(err, RP_DATA_LOSS, "these are not weights: they begin with %02x %02x %02x %02x, not with 'RPWT'",
                       head[0], head[1], head[2], head[3]);
    if (get(head + 4, 4) != WEIGHTS_VERSION)
        return err_set(err, RP_UNSUPPORTED,
                       "the weights have format version %" PRIu64 "; this program reads version %d", get(head + 4, 4),
                       WEIGHTS_VERSION);
    if (get(head + 16, 8) > size)
        return err_set(err, RP_DATA_LOSS, "the weights are cut short: %" PRIu64 " of %" PRIu64 " bytes are there", size,
                       get(head + 16, 8));
    if (get(head + 16, 8) < size)
        return err_set(err, RP_DATA_LOSS, "the weights end after %" PRIu64 " bytes, but there are %" PRIu64,
                       get(head + 16, 8), size);
    return RP_OK;
}

static bool all_zero(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* A block whose table is being walked. */
struct walk {
    const uint8_t *block;
    uint64_t entry, table_end; /* offsets */
    uint64_t data, data_end;
};

/* Product of dtype and shape, but at most `limit`; false beyond. */
static bool checked_bytes(const struct tensor *tensor, uint64_t limit, uint64_t *bytes)
{
    bool empty = false, over = false;
    *bytes = dtype_size(tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        empty |= tensor->shape[i] == 0;
        over |= __builtin_mul_overflow(*bytes, tensor->shape[i], bytes);
    }
    *bytes = empty ? 0 : *bytes;
    return empty || (!over && *bytes <= limit);
}

static bool read_name(const uint8_t *p, uint32_t length, char *name)
{
    for (uint32_t i = 0; i < length; i++) {
        if (p[i] < 0x21 || p[i] > 0x7e)
            return false;
        name[i] = (char)p[i];
    }
    name[length] = '\0';
    return true;
}

/* Reads the entry except for the place of its data. */
static rp_status read_entry(struct walk *walk, uint32_t i, struct tensor *out, uint64_t *offset, rp_error *err)
{
    uint64_t left = walk->table_end - walk->entry;
    const uint8_t *p = walk->block + walk->entry;
    if (left < ENTRY_BYTES)
        return err_set(err, RP_DATA_LOSS, "the table of the weights ends within entry %" PRIu32, i);
    uint32_t length = p[0];
    out->dtype = p[1];
    out->rank = p[2];
    *offset = get(p + 8, 8);
    if (length == 0 || length > WEIGHTS_MAX_NAME || out->rank > RP_MAX_RANK || !all_zero(p + 3, 5))
        return err_set(err, RP_DATA_LOSS,
                       "entry %" PRIu32 " of the weights is not valid: a name of %" PRIu32 " bytes, rank %" PRIu32, i,
                       length, out->rank);
    if (left < entry_size(out->rank, length))
        return err_set(err, RP_DATA_LOSS, "the table of the weights ends within entry %" PRIu32, i);
    for (uint32_t k = 0; k < out->rank; k++)
        out->shape[k] = get(p + ENTRY_BYTES + 8 * (size_t)k, 8);
    const uint8_t *name = p + ENTRY_BYTES + 8 * (size_t)out->rank;
    uint64_t used = ENTRY_BYTES + 8 * (uint64_t)out->rank + length, whole = entry_size(out->rank, length);
    if (!read_name(name, length, out->name) || !all_zero(name + length, whole - used))
        return err_set(err, RP_DATA_LOSS, "the name of entry %" PRIu32 " of the weights has bytes that no name has", i);
    if (dtype_size(out->dtype) == 0)
        return err_set(err, RP_DATA_LOSS, "tensor '%s' has type %d, which there is not", out->name, (int)out->dtype);
    walk->entry += whole;
    return RP_OK;
}

static rp_status read_tensor(struct walk *walk, uint32_t i, struct tensor *out, rp_error *err)
{
    uint64_t offset = 0, bytes = 0;
    memset(out, 0, sizeof *out);
    RP_TRY(read_entry(walk, i, out, &offset, err));
    uint64_t begin = align(walk->data, DATA_ALIGN);
    if (offset != begin)
        return err_set(err, RP_DATA_LOSS, "tensor '%s' is at byte %" PRIu64 " and should be at %" PRIu64, out->name,
                       offset, begin);
    if (begin > walk->data_end || !checked_bytes(out, walk->data_end - begin, &bytes))
        return err_set(err, RP_DATA_LOSS, "tensor '%s' does not fit into the %" PRIu64 " bytes of the weights",
                       out->name, walk->data_end + CHECKSUM_BYTES);
    if (!all_zero(walk->block + walk->data, begin - walk->data))
        return err_set(err, RP_DATA_LOSS, "the bytes before tensor '%s' are not 0", out->name);
    out->data = (void *)(uintptr_t)(walk->block + begin);
    walk->data = begin + bytes;
    return RP_OK;
}

static rp_status read_table(struct walk *walk, struct tensor *table, uint32_t n, rp_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        RP_TRY(read_tensor(walk, i, &table[i], err));
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(table[k].name, table[i].name) == 0)
                return err_set(err, RP_DATA_LOSS, "the weights have two tensors '%s'", table[i].name);
    }
    uint64_t head = align(walk->table_end, DATA_ALIGN);
    if (walk->entry != walk->table_end || !all_zero(walk->block + walk->table_end, head - walk->table_end))
        return err_set(err, RP_DATA_LOSS, "the table of the weights continues after its %" PRIu32 " entries", n);
    if (align(walk->data, 4) != walk->data_end || !all_zero(walk->block + walk->data, walk->data_end - walk->data))
        return err_set(err, RP_DATA_LOSS, "the weights go on after the last of their %" PRIu32 " tensors", n);
    return RP_OK;
}

/* Checks everything. Gives a table: free(). */
static rp_status open_block(const uint8_t *block, size_t size, struct tensor **table, uint32_t *n, rp_error *err)
{
    RP_TRY(weights_check_header(block, size, err));
    uint64_t head = align(WEIGHTS_HEADER_BYTES + get(block + 12, 4), DATA_ALIGN);
    if (size % 4 != 0 || size < head + CHECKSUM_BYTES)
        return err_set(err, RP_DATA_LOSS, "%zu bytes of weights cannot hold a table of %" PRIu64 " and a checksum",
                       size, get(block + 12, 4));
    uint32_t stored = (uint32_t)get(block + size - CHECKSUM_BYTES, 4), sum = crc32c(0, block, size - CHECKSUM_BYTES);
    if (stored != sum)
        return err_set(err, RP_DATA_LOSS,
                       "the weights are damaged: their checksum is %08" PRIx32 " and should be %08" PRIx32, sum,
                       stored);
    struct walk walk = {.block = block,
                        .entry = WEIGHTS_HEADER_BYTES,
                        .table_end = WEIGHTS_HEADER_BYTES + get(block + 12, 4),
                        .data = head,
                        .data_end = size - CHECKSUM_BYTES};
    *n = (uint32_t)get(block + 8, 4);
    if (*n > WEIGHTS_MAX_TENSORS || !all_zero(block + 24, 8))
        return err_set(err, RP_DATA_LOSS,
                       "the header of the weights is not valid: %" PRIu32 " tensors; at most %u are "
                       "possible",
                       *n, WEIGHTS_MAX_TENSORS);
    *table = calloc(*n > 0 ? *n : 1, sizeof **table);
    if (*table == NULL)
        return err_set(err, RP_NO_MEMORY, "no memory for the table of %" PRIu32 " tensors", *n);
    rp_status status = read_table(&walk, *table, *n, err);
    if (status != RP_OK) {
        free(*table);
        *table = NULL;
    }
    return status;
}

/* "[4, 64]" */
static const char *print_shape(const struct tensor *tensor, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (uint32_t i = 0; i < tensor->rank && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%" PRIu64, i > 0 ? ", " : "", tensor->shape[i]);
    if (at < size)
        snprintf(out + at, size - at, "]");
    return out;
}

static rp_status match(const struct tensor *here, const struct tensor *wanted, rp_error *err)
{
    char a[192], b[192];
    if (here->dtype != wanted->dtype)
        return err_set(err, RP_INVALID_ARGUMENT, "tensor '%s' is %s here and %s in the network", wanted->name,
                       dtype_name(here->dtype), dtype_name(wanted->dtype));
    if (here->rank != wanted->rank || memcmp(here->shape, wanted->shape, here->rank * sizeof here->shape[0]) != 0)
        return err_set(err, RP_INVALID_ARGUMENT, "tensor '%s' is %s here and %s in the network", wanted->name,
                       print_shape(here, a, sizeof a), print_shape(wanted, b, sizeof b));
    return RP_OK;
}

static const struct tensor *weights_find(const struct tensor *table, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

rp_status weights_decode(const void *block, size_t size, struct tensor *tensors, uint32_t n, rp_error *err)
{
    struct tensor *table = NULL;
    uint32_t n_table = 0;
    RP_TRY(open_block(block, size, &table, &n_table, err));
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < n && status == RP_OK; i++) {
        const struct tensor *here = weights_find(table, n_table, tensors[i].name);
        status = here != NULL
                     ? match(here, &tensors[i], err)
                     : err_set(err, RP_NOT_FOUND,
                               "there is no tensor '%s' among the %" PRIu32 " of these weights; the first is '%s'",
                               tensors[i].name, n_table, n_table > 0 ? table[0].name : "");
    }
    for (uint32_t i = 0; i < n && status == RP_OK; i++) {
        uint64_t bytes = tensor_bytes(&tensors[i]);
        if (bytes > 0)
            memcpy(tensors[i].data, weights_find(table, n_table, tensors[i].name)->data, bytes);
    }
    free(table);
    return status;
}

rp_status weights_list(const void *block, size_t size, struct tensor *out, uint32_t max, uint32_t *n, rp_error *err)
{
    struct tensor *table = NULL;
    *n = 0;
    RP_TRY(open_block(block, size, &table, n, err));
    uint32_t part = *n < max ? *n : max;
    if (part > 0)
        memcpy(out, table, part * sizeof *out);
    free(table);
    return RP_OK;
}

/* A NaN stays one. */
static uint16_t bf16_of(uint32_t bits)
{
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

/* Gives float32 tensors shorter data, in memory that is enough for all of them. */
static void make_bf16(struct tensor *tensors, uint32_t n, uint16_t *memory)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t count = tensor_bytes(&tensors[i]) / sizeof(uint32_t);
        const uint32_t *from = tensors[i].data;
        if (tensors[i].dtype != RP_DTYPE_FLOAT32)
            continue;
        for (uint64_t k = 0; k < count; k++)
            memory[k] = bf16_of(from[k]);
        tensors[i].dtype = RP_DTYPE_BFLOAT16;
        tensors[i].data = memory;
        memory += count;
    }
}

rp_status weights_bf16(const void *block, size_t size, uint8_t **out, size_t *out_size, rp_error *err)
{
    uint32_t n = 0;
    struct tensor *tensors = calloc(WEIGHTS_MAX_TENSORS, sizeof *tensors);
    uint8_t *aligned = NULL;
    uint16_t *memory = malloc(size / 2 + 1);
    rp_status status = tensors && memory ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for %zu bytes", size);
    if (status == RP_OK && (uintptr_t)block % sizeof(uint32_t)) {
        aligned = malloc(size);
        status = aligned ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for %zu bytes", size);
        block = aligned ? memcpy(aligned, block, size) : NULL;
    }
    if (status == RP_OK)
        status = weights_list(block, size, tensors, WEIGHTS_MAX_TENSORS, &n, err);
    if (status == RP_OK) {
        make_bf16(tensors, n, memory);
        *out_size = weights_size(tensors, n);
        *out = malloc(*out_size);
        status = *out ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for %zu bytes", *out_size);
    }
    if (status == RP_OK)
        weights_encode(tensors, n, *out);
    free(aligned);
    free(memory);
    free(tensors);
    return status;
}

/* ---- files ---- */

static rp_status fail_io(rp_error *err, const char *verb, const char *path)
{
    return err_set(err, errno == ENOENT ? RP_NOT_FOUND : RP_IO, "cannot %s '%s': %s", verb, path, strerror(errno));
}

rp_status weights_write_file(const char *path, const struct tensor *tensors, uint32_t n, rp_error *err)
{
    size_t size = weights_size(tensors, n);
    uint8_t *block = malloc(size);
    if (block == NULL)
        return err_set(err, RP_NO_MEMORY, "no memory for the %zu bytes of '%s'", size, path);
    weights_encode(tensors, n, block);
    rp_status status = io_replace(path, block, size, 0666, true) ? RP_OK : fail_io(err, "write", path);
    free(block);
    return status;
}

rp_status weights_load_file(const char *path, uint8_t **block, size_t *size, rp_error *err)
{
    struct stat info;
    rp_status status = RP_OK;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *block = NULL;
    if (file < 0 || fstat(file, &info) != 0)
        status = fail_io(err, "open", path);
    else if (!S_ISREG(info.st_mode))
        status = err_set(err, RP_INVALID_ARGUMENT, "'%s' is not a file", path);
    else if ((uint64_t)info.st_size > WEIGHTS_MAX_BYTES)
        status = err_set(err, RP_DATA_LOSS, "'%s' has %lld bytes; weights have at most %" PRIu64, path,
                         (long long)info.st_size, WEIGHTS_MAX_BYTES);
    else if (!(*block = malloc((*size = (size_t)info.st_size) + 1)))
        status = err_set(err, RP_NO_MEMORY, "no memory for the %zu bytes of '%s'", *size, path);
    else if (io_read(file, *block, *size, IO_HERE) != (ssize_t)*size)
        status = err_set(err, RP_IO, "'%s' cannot be read, or became shorter meanwhile", path);
    if (file >= 0)
        close(file);
    if (status != RP_OK) {
        free(*block);
        *block = NULL;
    }
    return status;
}

rp_status weights_read_file(const char *path, struct tensor *tensors, uint32_t n, rp_error *err)
{
    uint8_t *block = NULL;
    size_t size = 0;
    RP_TRY(weights_load_file(path, &block, &size, err));
    rp_status status = weights_decode(block, size, tensors, n, err);
    if (status != RP_OK)
        err_prefix(err, "'%s'", path);
    free(block);
    return status;
}
