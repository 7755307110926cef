
#include "broker/journal/record.h"
#include "proto/base/crc32c.h"
#include "proto/base/error.h"
#include "tests/support/test.h"

/* An entry of each type with nothing wrong, in `out`; gives the size of its body. Trailing parts have two elements. */
static size_t example(uint16_t type, uint8_t *out)
{
    memset(out, 0, 1024);
    uint64_t places[2] = {disk_at(1, 64), disk_at(7, 1 << 20)};
#define BODY(type_) type_ *body = (type_ *)(void *)out
    switch (type) {
    case ENTRY_START:
        return sizeof(struct entry_start);
    case ENTRY_TABLE:
        return sizeof(struct entry_table) + 7;
    case ENTRY_CHUNK: {
        BODY(struct entry_chunk);
        *body = (struct entry_chunk){.length = 2, .bytes = 30, .columns = 2};
        uint32_t sizes[2] = {10, 20};
        memcpy(body + 1, sizes, sizeof sizes);
        memset(out + sizeof *body + 10, 0x5a, 30);
        return sizeof *body + 10 + 30;
    }
    case ENTRY_INSERT: {
        BODY(struct entry_insert);
        *body = (struct entry_insert){.n_chunks = 2, .length = 1, .priority = 1};
        memcpy(body + 1, places, sizeof places);
        return sizeof *body + sizeof places;
    }
    case ENTRY_ITEM: {
        BODY(struct entry_item);
        body->insert = (struct entry_insert){.n_chunks = 2, .length = 1, .priority = 1};
        memcpy(body + 1, places, sizeof places);
        return sizeof *body + sizeof places;
    }
    case ENTRY_REMOVE:
    case ENTRY_FREE:
    case ENTRY_HIDE:
    case ENTRY_SHOW:
        return sizeof(struct entry_slot);
    case ENTRY_GROUP:
        return sizeof(struct entry_group);
    case ENTRY_PRIORITY:
        return sizeof(struct entry_priority);
    case ENTRY_PICK: {
        BODY(struct entry_pick);
        body->n = 2;
        return sizeof *body + 2 * sizeof(struct entry_picked);
    }
    case ENTRY_RESET:
        return 0;
    case ENTRY_LIMITER:
        return sizeof(struct entry_limiter);
    case ENTRY_PROGRESS: {
        BODY(struct entry_progress);
        body->n_flows = 2;
        return sizeof *body + 2 * sizeof(struct entry_flow);
    }
    case ENTRY_REJECTION:
        return sizeof(struct entry_rejection) + 5;
    case ENTRY_SLOT: {
        BODY(struct entry_value);
        body->name_bytes = 3;
        body->value_bytes = 9;
        memcpy(body + 1, "abc", 3);
        return sizeof *body + 12;
    }
    case ENTRY_SLOT_PART: {
        BODY(struct entry_part);
        *body = (struct entry_part){.put = 1, .bytes = 9, .part_bytes = 9, .name_bytes = 3, .data_bytes = 9};
        memcpy(body + 1, "abc", 3);
        return sizeof *body + 12;
    }
    case ENTRY_SLOT_WHOLE:
    case ENTRY_COUNTER: {
        BODY(struct entry_value);
        body->name_bytes = 3;
        memcpy(body + 1, "abc", 3);
        return sizeof *body + 3;
    }
    case ENTRY_REPLY:
        return sizeof(struct entry_request) + 11;
    case ENTRY_ANSWERED:
    case ENTRY_FORGET:
        return sizeof(struct entry_request);
    case ENTRY_SELECTOR: {
        BODY(struct entry_selector);
        *body = (struct entry_selector){1, 6};
        return sizeof *body + 6;
    }
    case ENTRY_CHECKPOINT: {
        BODY(struct entry_checkpoint);
        *body = (struct entry_checkpoint){.number = 5, .base = 4};
        return sizeof *body;
    }
    case ENTRY_SELECTION: {
        BODY(struct entry_selection);
        *body = (struct entry_selection){.n = 2, .n_chunks = 2};
        struct entry_selected selected[2] = {{.chunks = 2}, {.chunks = 0}};
        memcpy(body + 1, selected, sizeof selected);
        memcpy(out + sizeof *body + sizeof selected, places, sizeof places);
        return sizeof *body + sizeof selected + sizeof places;
    }
    case ENTRY_PARTS:
        return sizeof(struct entry_named) + sizeof places;
    case ENTRY_END:
        return sizeof(struct entry_end);
    default: /* those with a name and protobuf */
        return sizeof(struct entry_named);
    }
#undef BODY
}

/* Types whose end is whatever it is. */
static bool is_open(uint16_t type)
{
    return type == ENTRY_TABLE || type == ENTRY_LAYOUT || type == ENTRY_SESSION || type == ENTRY_FORM ||
           type == ENTRY_REPLY || type == ENTRY_REJECTION;
}

TEST(every_type_has_a_rule)
{
    _Alignas(8) uint8_t body[1024];
    for (uint16_t type = 1; type < ENTRY_TYPES; type++) {
        struct entry_view entry = {.type = type, .body = body, .size = example(type, body)};
        if (entry_check(&entry, &err) != RP_OK)
            fail_msg("%s: %s", entry_name(type), err.text);
        assert_string_not_equal(entry_name(type), "UNKNOWN");
        /* Neither longer nor shorter, whatever its counts say. */
        for (size_t size = 0; size < sizeof body; size++) {
            entry.size = size;
            bool sound = entry_check(&entry, &err) == RP_OK;
            if (type == ENTRY_PARTS)
                continue;
            if (sound && size != example(type, body) && !is_open(type))
                fail_msg("%s passes with %zu bytes", entry_name(type), size);
            assert_true(sound || strstr(err.text, entry_name(type)));
        }
    }
    struct entry_view unknown = {.type = ENTRY_TYPES, .body = body};
    assert_int_equal(entry_check(&unknown, NULL), RP_BAD_MESSAGE);
    unknown.type = 0;
    assert_int_equal(entry_check(&unknown, NULL), RP_BAD_MESSAGE);
    assert_string_equal(entry_name(0), "UNKNOWN");
}

/* Changes 8 bytes of an example and expects that it is refused. */
static void refused(uint16_t type, size_t offset, const void *value, size_t size)
{
    _Alignas(8) uint8_t body[1024];
    struct entry_view entry = {.type = type, .body = body, .size = example(type, body)};
    memcpy(body + offset, value, size);
    if (entry_check(&entry, NULL) == RP_OK)
        fail_msg("%s passes with a bad value at %zu", entry_name(type), offset);
}

TEST(values)
{
    double infinite = INFINITY, none = NAN;
    int64_t far = INT64_MAX;
    uint64_t zero = 0, odd = disk_at(1, 68), head = disk_at(1, 8), many = UINT32_MAX;
    uint32_t large = UINT32_MAX;
    refused(ENTRY_INSERT, offsetof(struct entry_insert, priority), &infinite, 8);
    refused(ENTRY_INSERT, offsetof(struct entry_insert, priority), &none, 8);
    refused(ENTRY_INSERT, offsetof(struct entry_insert, insert_ns), &far, 8);
    refused(ENTRY_INSERT, offsetof(struct entry_insert, n_chunks), &large, 4);
    refused(ENTRY_INSERT, offsetof(struct entry_insert, length), &zero, 4);
    refused(ENTRY_INSERT, sizeof(struct entry_insert), &zero, 8);
    refused(ENTRY_INSERT, sizeof(struct entry_insert) + 8, &odd, 8);
    refused(ENTRY_INSERT, sizeof(struct entry_insert) + 8, &head, 8);
    refused(ENTRY_ITEM, offsetof(struct entry_item, insert.priority), &none, 8);
    refused(ENTRY_PRIORITY, offsetof(struct entry_priority, priority), &none, 8);
    refused(ENTRY_PICK, sizeof(struct entry_pick) + offsetof(struct entry_picked, probability), &none, 8);
    refused(ENTRY_LIMITER, offsetof(struct entry_limiter, max_diff), &none, 8);
    refused(ENTRY_TABLE, offsetof(struct entry_table, limiter.offset), &none, 8);
    refused(ENTRY_START, offsetof(struct entry_start, clock_ns), &far, 8);
    refused(ENTRY_CHUNK, sizeof(struct entry_chunk), &large, 4);
    refused(ENTRY_CHUNK, offsetof(struct entry_chunk, length), &zero, 4);
    refused(ENTRY_SLOT, offsetof(struct entry_value, value_bytes), &many, 8);
    refused(ENTRY_SLOT, sizeof(struct entry_value) + 1, &zero, 1);
    refused(ENTRY_SLOT_PART, offsetof(struct entry_part, data_bytes), &many, 8);
    refused(ENTRY_SLOT_PART, offsetof(struct entry_part, name_bytes), &zero, 4);
    refused(ENTRY_SLOT_WHOLE, sizeof(struct entry_value) + 1, &zero, 1);
    refused(ENTRY_SELECTOR, 0, &large, 4);
    refused(ENTRY_CHECKPOINT, offsetof(struct entry_checkpoint, base), &many, 8);
    refused(ENTRY_CHECKPOINT, offsetof(struct entry_checkpoint, number), &zero, 8);
    refused(ENTRY_SELECTION, offsetof(struct entry_selection, n_chunks), &zero, 4);
    refused(ENTRY_SELECTION, sizeof(struct entry_selection) + offsetof(struct entry_selected, chunks), &large, 4);
}

/* A record with one entry of each type. */
static size_t all_types(uint8_t *record, size_t room, uint64_t at)
{
    size_t used = sizeof(struct record_head);
    _Alignas(8) uint8_t body[1024];
    for (uint16_t type = 1; type < ENTRY_TYPES; type++) {
        size_t size = example(type, body);
        struct entry_head head = {.size = (uint32_t)(sizeof head + size), .type = type, .table = (uint16_t)(type * 3)};
        assert_true(used + entry_padded(head.size) <= room);
        memset(record + used, 0, entry_padded(head.size));
        memcpy(record + used, &head, sizeof head);
        memcpy(record + used + sizeof head, body, size);
        used += entry_padded(head.size);
    }
    record_seal(record, used, at);
    return used;
}

/* Checks a whole record as a reader does. */
static rp_status check_whole(const uint8_t *record, size_t room, uint64_t at, size_t *size, rp_error *why)
{
    RP_TRY(record_check_head(record, room, at, size, why));
    return *size <= room ? record_check(record, *size, why) : err_set(why, RP_BAD_MESSAGE, "cut short");
}

TEST(round_trip)
{
    _Alignas(8) static uint8_t record[16384];
    _Alignas(8) uint8_t body[1024];
    uint64_t at = disk_at(9, 4096);
    size_t used = all_types(record, sizeof record, at), size = 0;
    assert_int_equal(check_whole(record, sizeof record, at, &size, NULL), RP_OK);
    assert_int_equal(size, used);
    struct entry_reader reader = entry_reader((struct record_view){record, size, at});
    struct entry_view entry;
    uint16_t type = 1;
    for (; entry_next(&reader, &entry); type++) {
        assert_int_equal(entry.type, type);
        assert_int_equal(entry.table, type * 3);
        assert_int_equal(entry.size, example(type, body));
        assert_int_equal(entry.at, at + (uint64_t)(entry.body - record) - sizeof(struct entry_head));
        assert_int_equal(entry_check(&entry, NULL), RP_OK);
        if (type != ENTRY_CHUNK) {
            assert_memory_equal(entry.body, body, entry.size);
            continue;
        }
        struct chunk_view chunk = entry_chunk_view(&entry);
        assert_int_equal(chunk.head->crc, chunk_crc(&chunk));
        assert_int_equal(chunk.head->crc, crc32c(0, chunk.sizes, 10 + 30));
        assert_int_equal(chunk.data[0], 0x5a);
        assert_ptr_equal(chunk.data + 30, entry.body + entry.size);
    }
    assert_int_equal(type, ENTRY_TYPES);
    assert_false(reader.bad);
}

/* Known answers of crc32c. */
TEST(crc)
{
    static const uint8_t zeros[32];
    assert_int_equal(crc32c(0, zeros, sizeof zeros), 0x8A9136AA);
    assert_int_equal(crc32c(0, "", 0), 0);
    assert_int_equal(crc32c(0, "123456789", 9), 0xE3069283);
    assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xE3069283);
}

TEST(damaged_records)
{
    _Alignas(8) static uint8_t record[16384];
    uint64_t at = disk_at(2, 32);
    size_t used = all_types(record, sizeof record, at), size = 0;
    for (size_t i = 0; i < used; i++) {
        record[i] ^= 0x10;
        if (check_whole(record, sizeof record, at, &size, &err) == RP_OK)
            fail_msg("byte %zu changed, and nothing is said", i);
        assert_true(err.text[0]);
        record[i] ^= 0x10;
        if (check_whole(record, i, at, &size, &err) == RP_OK)
            fail_msg("cut at %zu, and nothing is said", i);
    }
    must_fail(check_whole(record, used, at + 8, &size, &err), RP_BAD_MESSAGE, "offset 32 of file 2");
    assert_int_equal(check_whole(record, used, at, &size, &err), RP_OK);
}

/* Entries that run out of their record end the walk; one that was checked never does. */
TEST(bad_entry_sizes)
{
    _Alignas(8) static uint8_t record[16384];
    uint64_t at = disk_at(2, 32);
    size_t used = all_types(record, sizeof record, at);
    const uint32_t sizes[] = {0, 1, 7, (uint32_t)used, UINT32_MAX, UINT32_MAX - 7};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memcpy(record + sizeof(struct record_head), &sizes[i], 4);
        struct entry_reader reader = entry_reader((struct record_view){record, used, at});
        struct entry_view entry;
        assert_false(entry_next(&reader, &entry));
        assert_true(reader.bad);
        assert_false(entry_next(&reader, &entry));
    }
}
