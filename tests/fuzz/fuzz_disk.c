/* Any bytes as a record as they are, and as the entries of a record whose sums are right: all that is checked is applied
 * to an image, which must stay in order whatever it is told. */
#include <stdlib.h>
#include <string.h>

#include "broker/disk/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void check_table(const struct image_table *table)
{
    uint32_t size = 0;
    CHECK(table->high <= table->capacity && table->size <= table->high && table->spec && table->info);
    for (uint32_t i = 0; i < table->high; i++) {
        const struct image_item *item = &table->items[i];
        size += item->n > 0;
        CHECK(item->n == 0 || (item->layout && item->layout->refs > 0 && item->layout->wire));
        for (uint32_t k = 0; k < item->n; k++)
            CHECK(disk_number(image_chunks(item)[k]) > 0);
    }
    CHECK(size == table->size);
}

static void check_image(struct image *image)
{
    image_finish(image);
    for (uint32_t i = 0; i < image->n_tables; i++)
        check_table(&image->tables[i]);
    for (uint32_t i = 0; i < image->n_sessions; i++) {
        const struct image_session *session = image->sessions[i];
        CHECK(i == 0 || session->ordinal > image->sessions[i - 1]->ordinal);
        CHECK(session->hello && session->n_flows <= image->n_tables && session->n_rejections <= IMAGE_REJECTIONS);
    }
    for (struct image_request *at = image->selections.oldest; at; at = at->newer)
        CHECK(image_selection(at)->table < image->n_tables);
    uint32_t replies = 0;
    for (struct image_request *at = image->replies.oldest; at; at = at->newer, replies++)
        CHECK(image_reply(at)->frame && (at->newer || image->replies.newest == at));
    CHECK(replies == image->replies.n && replies <= IMAGE_REPLIES);
}

/* A record that was checked. */
static void walk(const uint8_t *record, size_t size, uint64_t at)
{
    struct image image;
    image_init(&image);
    image.most_slots = 4096;
    struct entry_reader reader = entry_reader((struct record_view){record, size, at});
    for (struct entry_view entry; entry_next(&reader, &entry);) {
        CHECK(entry.body + entry.size <= record + size && entry.at > at);
        rp_error err = {0};
        rp_status status = entry_check(&entry, &err);
        if (status == RP_OK && entry.type == ENTRY_CHUNK) {
            struct chunk_view chunk = entry_chunk_view(&entry);
            CHECK(chunk.data + chunk.head->bytes == entry.body + entry.size && chunk_crc(&chunk) == chunk.head->crc);
        }
        if (status == RP_OK)
            status = image_apply(&image, &entry, &err);
        CHECK(status == RP_OK || err.text[0] != '\0');
    }
    check_image(&image);
    image_rebase(&image, INT64_C(1) << 60, 1000);
    check_image(&image);
    image_fini(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint64_t at = disk_at(1, FILE_HEAD_BYTES);
    size_t whole = 0, room = sizeof(struct record_head) + (size & ~(size_t)7);
    uint8_t *record = malloc(room + 8);
    CHECK(record != NULL);
    memcpy(record, data, size <= room ? size : room);
    if (size >= sizeof(struct record_head) && record_check(record, size, at, &whole, NULL) == RP_OK)
        walk(record, whole, at);
    free(record);
    record = malloc(room);
    CHECK(record != NULL);
    memcpy(record + sizeof(struct record_head), data, size & ~(size_t)7);
    record_seal(record, room, at);
    if (room > sizeof(struct record_head)) {
        CHECK(record_check(record, room, at, &whole, NULL) == RP_OK && whole == room);
        walk(record, room, at);
    }
    free(record);
    return 0;
}
