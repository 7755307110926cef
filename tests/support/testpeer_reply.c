/* Reads a sample reply by the rules of PROTOCOL.md, section 11. */
#include "tests/support/testpeer.h"

#include <fcntl.h>
#include <sys/mman.h>

uint32_t sampled_u32(const uint32_t *values, size_t n, uint32_t i)
{
    return n == 0 ? 0 : n == 1 ? values[0] : values[i];
}

static struct {
    uint8_t *memory;
    size_t size;
} shared;

const uint8_t *testpeer_map(struct testpeer *self)
{
    const Replay__Arena *arena =
        testpeer_call(self, REQUEST_OF(HELLO, hello, Hello, .notices = false))->reply->hello->arena;
    assert_non_null(arena);
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/fd/%u", arena->pid, arena->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
    testpeer_unmap();
    shared.size = (size_t)arena->size;
    shared.memory = mmap(NULL, shared.size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(shared.memory != MAP_FAILED);
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    assert_memory_equal(shared.memory, &arena->nonce, 8);
    close(fd);
    return shared.memory;
}

void testpeer_unmap(void)
{
    if (shared.memory)
        munmap(shared.memory, shared.size);
    shared.memory = NULL;
}

void testpeer_read_head(Replay__Reply *reply)
{
    Replay__SampleReply *outer = reply->body_case == REPLAY__REPLY__BODY_SAMPLE ? reply->sample : NULL;
    if (!outer || !outer->n_head_at)
        return;
    const uint64_t *at = outer->head_at; /* place, stamp, offset, bytes */
    assert_int_equal(outer->n_head_at, 4);
    assert_true(shared.memory && at[0] >= 64 && at[0] + at[2] + at[3] <= shared.size);
    assert_memory_equal(shared.memory + at[0] - 64, &at[1], 8);
    reply->sample = replay__sample_reply__unpack(NULL, at[3], shared.memory + at[0] + at[2]);
    assert_non_null(reply->sample);
    reply->sample->head_at = outer->head_at; /* it tells tests where it was */
    reply->sample->n_head_at = outer->n_head_at;
    outer->n_head_at = 0;
    outer->head_at = NULL;
    replay__sample_reply__free_unpacked(outer, NULL);
}

/* Finds the data of a chunk that is in shared memory. NULL: it is in a frame. */
static const uint8_t *find_shared(const Replay__SampleReply *reply, uint32_t chunk, uint32_t n_chunks)
{
    uint32_t first = n_chunks - (uint32_t)reply->n_place;
    bool packed = chunk < reply->packed && reply->n_packed_at;
    assert_int_equal(reply->n_place, reply->n_stamp);
    if (chunk < first && !packed)
        return NULL;
    uint64_t place = packed ? reply->packed_at[0] : reply->place[chunk - first];
    assert_true(shared.memory && place % 64 == 0 && place >= 64 && place < shared.size);
    assert_memory_equal(shared.memory + place - 64, packed ? &reply->packed_at[1] : &reply->stamp[chunk - first], 8);
    return shared.memory + place;
}

/* Finds the block of a column in a chunk of the reply. */
static const uint8_t *find_block(const struct testpeer_answer *answer, uint32_t chunk, uint32_t column, uint32_t *size)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    uint32_t n_chunks = 0, block = 0, n_blocks = 0;
    for (size_t i = 0; i < reply->n_chunk; i++)
        n_chunks = reply->chunk[i] + 1 > n_chunks ? reply->chunk[i] + 1 : n_chunks;
    for (uint32_t i = 0; !reply->n_chunk && i < reply->n_key; i++)
        n_chunks += sampled_u32(reply->chunks, reply->n_chunks, i);
    for (uint32_t i = 0; i < n_chunks; i++)
        n_blocks += sampled_u32(reply->chunk_blocks, reply->n_chunk_blocks, i);
    size_t at = 0;
    for (uint32_t i = 0; i <= chunk; i++) {
        if (i >= reply->packed)
            at = 0;
        uint32_t n = sampled_u32(reply->chunk_blocks, reply->n_chunk_blocks, i);
        for (uint32_t b = 0; b < n; b++, block++) {
            uint32_t bytes = sampled_u32(reply->block_size, reply->n_block_size, block);
            uint32_t of = reply->block_column.data[reply->block_column.len == n_blocks ? block : b];
            if (i == chunk && of == column) {
                const uint8_t *data = find_shared(reply, chunk, n_chunks);
                *size = bytes;
                if (data)
                    return data + at;
                uint32_t frame = i < reply->packed ? 0 : i - reply->packed + (reply->packed && !reply->n_packed_at);
                assert_true(frame < answer->n_payload);
                zmq_msg_t *message = &answer->payload[frame];
                assert_true(at + bytes <= zmq_msg_size(message));
                uint8_t codec = reply->block_codec.data[reply->block_codec.len == 1 ? 0 : block];
                assert_int_equal(codec, RP_CODEC_RAW);
                return (const uint8_t *)zmq_msg_data(message) + at;
            }
            at += bytes;
        }
    }
    fail_msg("column %u is not in chunk %u of the reply", column, chunk);
    return NULL;
}

uint8_t *sampled_rows(const struct testpeer_answer *answer, uint32_t item, uint32_t field_index, uint32_t *rows,
                      uint32_t *row_bytes)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    uint32_t first = 0, n = sampled_u32(reply->chunks, reply->n_chunks, item);
    for (uint32_t i = 0; i < item; i++)
        first += sampled_u32(reply->chunks, reply->n_chunks, i);
    const Replay__Layout *layout = reply->layouts[sampled_u32(reply->layout, reply->n_layout, item)];
    assert_true(field_index < layout->n_fields);
    const Replay__Field *field = layout->fields[field_index];
    uint32_t total = 0, width = 0;
    uint8_t *all = NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t chunk = reply->n_chunk ? reply->chunk[first + i] : first + i, size = 0;
        uint32_t length = sampled_u32(reply->chunk_length, reply->n_chunk_length, chunk);
        const uint8_t *block = find_block(answer, chunk, field->column, &size);
        width = size / length;
        all = realloc(all, (size_t)(total + length) * width);
        memcpy(all + (size_t)total * width, block, size);
        total += length;
    }
    uint32_t offset = sampled_u32(reply->offset, reply->n_offset, item);
    uint32_t length = sampled_u32(reply->length, reply->n_length, item);
    uint32_t start = field->start >= 0 ? (uint32_t)field->start : length - (uint32_t)-field->start;
    uint32_t stride = field->stride ? field->stride : 1;
    uint32_t count = field->count ? field->count : (length - start + stride - 1) / stride;
    uint8_t *out = malloc((size_t)count * width);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = offset + start + i * stride;
        assert_true(at < offset + length && at < total);
        memcpy(out + (size_t)i * width, all + (size_t)at * width, width);
    }
    free(all);
    *rows = count;
    *row_bytes = width;
    return out;
}

void sampled_known(const struct testpeer_answer *answer, uint32_t item)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    const Replay__Layout *layout = reply->layouts[sampled_u32(reply->layout, reply->n_layout, item)];
    uint32_t length = sampled_u32(reply->length, reply->n_length, item), rows, width;
    for (uint32_t f = 0; f < layout->n_fields; f++) {
        const Replay__Field *field = layout->fields[f];
        uint8_t *data = sampled_rows(answer, item, f, &rows, &width);
        uint64_t first = reply->step[item] + (uint64_t)(int64_t)field->start + (field->start < 0 ? length : 0);
        for (uint32_t i = 0; i < rows * width; i++) {
            uint64_t step = first + (uint64_t)(i / width) * (field->stride ? field->stride : 1);
            if (data[i] != testpeer_known_byte(field->column, step, i % width))
                fail_msg("row %u of field %u of item %u is not what was inserted", i / width, f, item);
        }
        free(data);
    }
}

void sampled_check(const struct testpeer_answer *answer, uint32_t item)
{
    uint32_t rows, width;
    uint64_t value;
    uint8_t *data = sampled_rows(answer, item, 0, &rows, &width);
    assert_int_equal(rows, 1);
    assert_int_equal(width, 8);
    memcpy(&value, data, 8);
    free(data);
    assert_int_equal(value, answer->reply->sample->key[item]);
}
