#include "agent/learn/weights.h"
#include "proto/base/crc32c.h"

#include "tests/support/tempdir.h"

static struct tensor tensor(const char *name, int32_t dtype, uint32_t rank, const uint64_t *shape, void *data)
{
    struct tensor t = {.dtype = dtype, .rank = rank, .data = data};
    snprintf(t.name, sizeof t.name, "%s", name);
    for (uint32_t i = 0; i < rank; i++)
        t.shape[i] = shape[i];
    return t;
}

/* A matrix, a vector, a number and nothing, of different types. */
struct sample {
    float matrix[2][3];
    double vector[5];
    uint64_t count;
    struct tensor tensors[4];
};

static void sample_init(struct sample *s, bool filled)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; filled && i < 6; i++)
        s->matrix[i / 3][i % 3] = (float)i + 0.5f;
    for (int i = 0; filled && i < 5; i++)
        s->vector[i] = -i;
    s->count = filled ? UINT64_C(0x0123456789abcdef) : 0;
    s->tensors[0] = tensor("q/layer0/weight", RP_DTYPE_FLOAT32, 2, (const uint64_t[]){2, 3}, s->matrix);
    s->tensors[1] = tensor("v", RP_DTYPE_FLOAT64, 1, (const uint64_t[]){5}, s->vector);
    s->tensors[2] = tensor("steps", RP_DTYPE_UINT64, 0, NULL, &s->count);
    s->tensors[3] = tensor("none", RP_DTYPE_INT8, 2, (const uint64_t[]){0, UINT64_MAX}, NULL);
}

static uint8_t *encode(const struct tensor *tensors, uint32_t n, size_t *size)
{
    *size = weights_size(tensors, n);
    uint8_t *block = owned(malloc(*size));
    memset(block, 0xee, *size);
    weights_encode(tensors, n, block);
    return block;
}

/* The block of a filled sample. */
static uint8_t *sample_block(struct sample *from, size_t *size)
{
    sample_init(from, true);
    return encode(from->tensors, 4, size);
}

static void seal(uint8_t *block, size_t size)
{
    uint32_t sum = crc32c(0, block, size - 4);
    for (int i = 0; i < 4; i++)
        block[size - 4 + (size_t)i] = (uint8_t)(sum >> (8 * i));
}

/* Refused by both readers, and nothing copied. */
static void expect_refused(const uint8_t *block, size_t size, int32_t status, const char *text)
{
    struct sample s, before;
    struct tensor list[8];
    uint32_t n;
    sample_init(&s, false);
    before = s;
    uint8_t *copy = owned(malloc(size ? size : 1)); /* of this size, for the sanitizers */
    memcpy(copy, block, size);
    assert_int_equal(weights_decode(copy, size, s.tensors, 4, &err), status);
    assert_has(err.text, text);
    assert_memory_equal(s.matrix, before.matrix, sizeof s.matrix);
    assert_memory_equal(s.vector, before.vector, sizeof s.vector);
    assert_true(s.count == 0);
    assert_int_equal(weights_list(copy, size, list, 8, &n, &err), status);
    assert_has(err.text, text);
    assert_int_equal(weights_list(copy, size, list, 8, &n, NULL), status);
}

TEST(round_trip)
{
    struct sample from, to;
    size_t size;
    sample_init(&to, false);
    uint8_t *block = sample_block(&from, &size);
    assert_int_equal(weights_decode(block, size, to.tensors, 4, &err), RP_OK);
    assert_memory_equal(from.matrix, to.matrix, sizeof to.matrix);
    assert_memory_equal(from.vector, to.vector, sizeof to.vector);
    assert_true(from.count == to.count);
    /* Only some of them, in another order, from memory that is aligned to nothing. */
    uint8_t *odd = owned(malloc(size + 1));
    memcpy(odd + 1, block, size);
    sample_init(&to, false);
    struct tensor some[] = {to.tensors[2], to.tensors[0]};
    assert_int_equal(weights_decode(odd + 1, size, some, 2, &err), RP_OK);
    assert_true(to.count == from.count && to.vector[1] == 0);
    assert_memory_equal(from.matrix, to.matrix, sizeof to.matrix);
}

TEST(list)
{
    struct sample from;
    struct tensor list[8];
    uint32_t n;
    size_t size, again;
    uint8_t *block = sample_block(&from, &size);
    assert_int_equal(weights_list(block, size, list, 2, &n, NULL), RP_OK);
    assert_int_equal(n, 4);
    assert_int_equal(weights_list(block, size, NULL, 0, &n, NULL), RP_OK);
    assert_int_equal(weights_list(block, size, list, 8, &n, NULL), RP_OK);
    for (uint32_t i = 0; i < 4; i++) {
        assert_string_equal(list[i].name, from.tensors[i].name);
        assert_int_equal(list[i].dtype, from.tensors[i].dtype);
        assert_int_equal(list[i].rank, from.tensors[i].rank);
        assert_memory_equal(list[i].shape, from.tensors[i].shape, sizeof list[i].shape);
        assert_int_equal(((uint8_t *)list[i].data - block) % 64, 0);
    }
    assert_memory_equal(list[0].data, from.matrix, sizeof from.matrix);
    uint8_t *same = encode(list, 4, &again);
    assert_int_equal(again, size);
    assert_memory_equal(same, block, size);
}

TEST(empty)
{
    size_t size;
    uint32_t n = 7;
    uint8_t *block = encode(NULL, 0, &size);
    assert_int_equal(size, 68);
    assert_int_equal(weights_list(block, size, NULL, 0, &n, NULL), RP_OK);
    assert_int_equal(n, 0);
    assert_int_equal(weights_decode(block, size, NULL, 0, NULL), RP_OK);
    struct sample s;
    sample_init(&s, false);
    assert_int_equal(weights_decode(block, size, s.tensors, 1, &err), RP_NOT_FOUND);
}

/* The worked example of proto/PROTOCOL.md, 21. */
TEST(example_of_the_documentation)
{
    static const uint8_t head[] = {
        'R',  'P',  'W',  'T',  1, 0, 0, 0,    1,   0, 0, 0, 32, 0, 0, 0, /* magic, version, tensors, table */
        76,   0,    0,    0,    0, 0, 0, 0,    0,   0, 0, 0, 0,  0, 0, 0, /* size, 0 */
        1,    12,   1,    0,    0, 0, 0, 0,    64,  0, 0, 0, 0,  0, 0, 0, /* name length, dtype, rank, 0, offset */
        2,    0,    0,    0,    0, 0, 0, 0,    'b', 0, 0, 0, 0,  0, 0, 0, /* shape, name */
        0,    0,    0x80, 0x3f, 0, 0, 0, 0xc0,                            /* 1, -2 */
        0xb8, 0x0b, 0xbc, 0xe5,                                           /* checksum */
    };
    float values[2] = {1, -2};
    struct tensor t = tensor("b", RP_DTYPE_FLOAT32, 1, (const uint64_t[]){2}, values);
    size_t size;
    uint8_t *block = encode(&t, 1, &size);
    assert_int_equal(size, sizeof head);
    assert_memory_equal(block, head, size);
}

TEST(every_flipped_byte_is_found)
{
    struct sample from;
    size_t size;
    uint8_t *block = sample_block(&from, &size);
    for (size_t i = 0; i < size; i++) {
        const uint8_t flips[] = {(uint8_t)(1u << i % 8), 0xff};
        for (uint32_t k = 0; k < 2; k++) {
            block[i] ^= flips[k];
            expect_refused(block, size, i >= 4 && i < 8 ? RP_UNSUPPORTED : RP_DATA_LOSS, "weights");
            block[i] ^= flips[k];
        }
    }
}

/* With a good checksum: whatever the damage is, it is refused, or does not concern the four tensors' layout: then
 * encoding what was read gives the same bytes. */
TEST(damage_under_a_good_checksum)
{
    struct sample from;
    size_t size, again;
    uint8_t *block = sample_block(&from, &size);
    uint32_t accepted = 0;
    for (size_t bit = 0; bit < 8 * (size - 4); bit++) {
        uint8_t *copy = owned(malloc(size));
        memcpy(copy, block, size);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        seal(copy, size);
        struct tensor list[8];
        uint32_t n;
        err = (rp_error){0};
        if (weights_list(copy, size, list, 8, &n, &err) == RP_OK) {
            uint8_t *same = encode(list, n, &again);
            assert_int_equal(again, size);
            assert_memory_equal(same, copy, size);
            accepted++;
        } else {
            assert_true(err.text[0] != '\0');
        }
    }
    assert_true(accepted >= 8 * (sizeof from.matrix + sizeof from.vector + sizeof from.count));
}

TEST(every_cut_is_found)
{
    struct sample from;
    size_t size;
    uint8_t *block = sample_block(&from, &size);
    for (size_t part = 0; part < size; part++)
        expect_refused(block, part, RP_DATA_LOSS, part < 32 ? "too few" : "cut short");
    uint8_t *longer = owned(calloc(1, size + 4));
    memcpy(longer, block, size);
    expect_refused(longer, size + 4, RP_DATA_LOSS, "end after");
}

/* Changes one byte of a good block and makes the checksum right. */
static void expect_change_refused(size_t at, uint8_t value, int32_t status, const char *text)
{
    struct sample from;
    size_t size;
    uint8_t *block = sample_block(&from, &size);
    assert_true(block[at] != value);
    block[at] = value;
    seal(block, size);
    expect_refused(block, size, status, text);
}

TEST(hostile_fields)
{
    /* The first entry is at 32: 16 bytes, two numbers of shape, 15 characters and a 0; the second at 80. */
    expect_change_refused(0, 'r', RP_DATA_LOSS, "begin with 72 50 57 54");
    expect_change_refused(4, 2, RP_UNSUPPORTED, "format version 2; this program reads version 1");
    expect_change_refused(8, 3, RP_DATA_LOSS, "continues after its 3 entries");
    expect_change_refused(8, 5, RP_DATA_LOSS, "ends within entry 4");
    expect_change_refused(11, 0xff, RP_DATA_LOSS, "4278190084 tensors");
    expect_change_refused(15, 0xff, RP_DATA_LOSS, "cannot hold a table of");
    expect_change_refused(12, 8, RP_DATA_LOSS, "ends within entry 0");
    expect_change_refused(23, 0xff, RP_DATA_LOSS, "cut short");
    expect_change_refused(24, 1, RP_DATA_LOSS, "not valid");
    expect_change_refused(32, 0, RP_DATA_LOSS, "a name of 0 bytes");
    expect_change_refused(32, 127, RP_DATA_LOSS, "ends within entry 0");
    expect_change_refused(32, 128, RP_DATA_LOSS, "name of 128 bytes");
    expect_change_refused(33, 0, RP_DATA_LOSS, "has type 0");
    expect_change_refused(33, 200, RP_DATA_LOSS, "has type 200");
    expect_change_refused(34, 9, RP_DATA_LOSS, "rank 9");
    expect_change_refused(34, 8, RP_DATA_LOSS, "bytes that no name has");
    expect_change_refused(35, 1, RP_DATA_LOSS, "not valid");
    expect_change_refused(40, 0, RP_DATA_LOSS, "should be at 192");
    expect_change_refused(47, 0xff, RP_DATA_LOSS, "should be at 192");
    expect_change_refused(55, 0xff, RP_DATA_LOSS, "does not fit");
    expect_change_refused(48, 0xff, RP_DATA_LOSS, "does not fit");
    /* The product of this shape is 24 bytes in 64 bits. */
    expect_change_refused(55, 0x80, RP_DATA_LOSS, "does not fit");
    expect_change_refused(64, 0, RP_DATA_LOSS, "bytes that no name has");
    expect_change_refused(64, 0xc3, RP_DATA_LOSS, "bytes that no name has");
    expect_change_refused(79, 'x', RP_DATA_LOSS, "bytes that no name has");
    expect_change_refused(218, 1, RP_DATA_LOSS, "bytes before tensor 'v' are not 0");
}

TEST(two_of_a_name)
{
    float a = 1, b = 2;
    struct tensor two[] = {tensor("same", RP_DTYPE_FLOAT32, 0, NULL, &a),
                           tensor("same", RP_DTYPE_FLOAT32, 0, NULL, &b)};
    size_t size;
    uint8_t *block = encode(two, 2, &size);
    expect_refused(block, size, RP_DATA_LOSS, "two tensors 'same'");
}

static void expect_mismatch(struct tensor wanted, int32_t status, const char *text)
{
    err = (rp_error){0};
    struct sample from, to;
    size_t size;
    sample_init(&to, false);
    uint8_t *block = sample_block(&from, &size);
    /* The first would fit, and is not copied either. */
    struct tensor both[] = {to.tensors[1], wanted};
    assert_int_equal(weights_decode(block, size, both, 2, &err), status);
    assert_string_equal(err.text, text);
    assert_true(to.vector[1] == 0);
}

TEST(mismatches_are_told)
{
    static float room[64];
    expect_mismatch(tensor("q/layer0/weight", RP_DTYPE_FLOAT32, 2, (const uint64_t[]){8, 3}, room), RP_INVALID_ARGUMENT,
                    "tensor 'q/layer0/weight' is [2, 3] here and [8, 3] in the network");
    expect_mismatch(tensor("q/layer0/weight", RP_DTYPE_FLOAT32, 1, (const uint64_t[]){6}, room), RP_INVALID_ARGUMENT,
                    "tensor 'q/layer0/weight' is [2, 3] here and [6] in the network");
    expect_mismatch(tensor("steps", RP_DTYPE_UINT64, 1, (const uint64_t[]){1}, room), RP_INVALID_ARGUMENT,
                    "tensor 'steps' is [] here and [1] in the network");
    expect_mismatch(tensor("steps", RP_DTYPE_INT64, 0, NULL, room), RP_INVALID_ARGUMENT,
                    "tensor 'steps' is uint64 here and int64 in the network");
    expect_mismatch(tensor("policy/bias", RP_DTYPE_FLOAT32, 0, NULL, room), RP_NOT_FOUND,
                    "there is no tensor 'policy/bias' among the 4 of these weights; the first is 'q/layer0/weight'");
}

TEST(longest_shapes_fit_in_the_text)
{
    uint64_t large[RP_MAX_RANK], small[RP_MAX_RANK];
    for (uint32_t i = 0; i < RP_MAX_RANK; i++) {
        large[i] = UINT64_MAX;
        small[i] = UINT64_MAX - 1;
    }
    large[0] = small[0] = 0;
    struct tensor from = tensor("n", RP_DTYPE_FLOAT32, RP_MAX_RANK, large, NULL);
    struct tensor to = tensor("n", RP_DTYPE_FLOAT32, RP_MAX_RANK, small, NULL);
    size_t size;
    uint8_t *block = encode(&from, 1, &size);
    must_fail(weights_decode(block, size, &to, 1, &err), RP_INVALID_ARGUMENT, "18446744073709551614] in the network");
}

/* ---- files */

TEST(file_round_trip, tempdir_enter, tempdir_leave)
{
    const char *file = tempdir_at("weights"), *temporary = tempdir_at("weights.tmp");
    struct sample from, to;
    sample_init(&from, true);
    /* A file that a crash left behind does no harm. */
    file_put(temporary, "half");
    for (int i = 0; i < 2; i++) {
        sample_init(&to, false);
        from.count++;
        assert_int_equal(weights_write_file(file, from.tensors, 4, &err), RP_OK);
        assert_int_equal(weights_read_file(file, to.tensors, 4, &err), RP_OK);
        assert_memory_equal(from.matrix, to.matrix, sizeof to.matrix);
        assert_true(from.count == to.count);
        assert_int_equal(access(temporary, F_OK), -1);
    }
    assert_int_equal(file_size(file), weights_size(from.tensors, 4));
}

static void expect_file_refused(const char *path, int32_t status, const char *text)
{
    struct sample to;
    sample_init(&to, false);
    assert_int_equal(weights_read_file(path, to.tensors, 4, &err), status);
    assert_has(err.text, path);
    assert_has(err.text, text);
    assert_true(to.count == 0 && to.vector[1] == 0);
}

TEST(files_that_are_wrong, tempdir_enter, tempdir_leave)
{
    const char *file = tempdir_at("weights");
    struct sample from;
    size_t size;
    expect_file_refused(file, RP_NOT_FOUND, "cannot open");
    expect_file_refused(tempdir, RP_INVALID_ARGUMENT, "is not a file");
    file_put(file, "");
    expect_file_refused(file, RP_DATA_LOSS, "0 bytes are too few");
    file_put(file, "{\"not\": \"weights, but some other kind of file\"}");
    expect_file_refused(file, RP_DATA_LOSS, "these are not weights");
    uint8_t *block = sample_block(&from, &size);
    file_write(file, block, size - 1, 0600);
    expect_file_refused(file, RP_DATA_LOSS, "cut short");
    block[size - 9] ^= 1;
    file_write(file, block, size, 0600);
    expect_file_refused(file, RP_DATA_LOSS, "damaged");
    /* A hole of 8 GiB takes no disk, and no memory here. */
    assert_int_equal(truncate(file, (off_t)1 << 33), 0);
    expect_file_refused(file, RP_DATA_LOSS, "at most");
    /* unit.best has a write that fails, and the file before it that stays. */
    must_fail(weights_write_file("/nowhere/at/all", from.tensors, 4, &err), RP_NOT_FOUND, "'/nowhere/at/all'");
}
