/* Any bytes as a record as they are, and as the entries of a record whose sums are right: all that is checked is applied
 * to a state, which must stay in order whatever it is told. */
#include <string.h>

#include "broker/checkpoint/loading.h"
#include "tests/fuzz/target.h"

static void check_table(const struct offline *state, const struct loaded_table *loaded)
{
    const struct table *table = loaded->table;
    uint32_t size = 0;
    CHECK(table->in.high <= table->capacity && table->in.size <= table->in.high && loaded->info);
    for (uint32_t i = 0; i < table->in.high; i++) {
        const struct item *item = &table->in.items[i];
        size += item->span.n > 0;
        CHECK(item->span.n == 0 || layouts_at(&state->layouts, item->span.layout)->refs > 0);
        for (uint32_t k = 0; k < item->span.n; k++)
            CHECK(disk_number(offline_places(item)[k]) > 0);
    }
    CHECK(size == table->in.size);
}

static void check_state(const struct offline *state)
{
    const struct loading *loading = &state->loading;
    for (uint32_t i = 0; i < loading->n_tables; i++)
        check_table(state, &loading->tables[i]);
    uint32_t selections = 0;
    for (const struct loaded_selection *at = TAILQ_FIRST(&loading->kept); at; at = TAILQ_NEXT(at, link), selections++)
        CHECK(at->kept.info.table && (TAILQ_NEXT(at, link) || TAILQ_LAST(&loading->kept, loaded_selections) == at));
    CHECK(selections >= loading->selections.count);
}

/* A record that was checked. */
static void walk(const uint8_t *record, size_t size, uint64_t at)
{
    struct offline state;
    offline_init(&state);
    state.loading.most_slots = 4096;
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
            status = loading_apply(&state.loading, LOAD_JOURNAL, &entry, &err);
        CHECK(status == RP_OK || err.text[0] != '\0');
    }
    check_state(&state);
    loading_end_process(&state.loading, INT64_C(1) << 60);
    check_state(&state);
    offline_fini(&state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint64_t at = disk_at(1, FILE_HEAD_BYTES);
    size_t whole = 0, room = sizeof(struct record_head) + (size & ~(size_t)7);
    uint8_t *record = malloc(room + 8);
    CHECK(record != NULL);
    memcpy(record, data, size <= room ? size : room);
    if (record_check_head(record, size, at, &whole, NULL) == RP_OK && whole <= size &&
        record_check(record, whole, NULL) == RP_OK)
        walk(record, whole, at);
    free(record);
    record = malloc(room);
    CHECK(record != NULL);
    memcpy(record + sizeof(struct record_head), data, size & ~(size_t)7);
    record_seal(record, room, at);
    if (room > sizeof(struct record_head)) {
        CHECK(record_check_head(record, room, at, &whole, NULL) == RP_OK && whole == room);
        CHECK(record_check(record, room, NULL) == RP_OK);
        walk(record, room, at);
    }
    free(record);
    return 0;
}
