/* Reads chunks from segments into the store, each once, in the order of their places. */
#include <stdlib.h>
#include <string.h>

#include "broker/checkpoint/restore_parts.h"
#include "broker/journal/stream.h"
#include "proto/base/error.h"

#define DIGIT_BITS 11u
#define DIGITS (1u << DIGIT_BITS)
#define PASSES 6u /* 66 bits */

static bool is_sorted(const struct pair *pairs, uint64_t n)
{
    for (uint64_t i = 1; i < n; i++)
        if (pairs[i].key < pairs[i - 1].key)
            return false;
    return true;
}

bool pairs_sort(struct pair *pairs, uint64_t n)
{
    if (is_sorted(pairs, n))
        return true;
    struct pair *other = malloc(n * sizeof *other);
    uint64_t(*counts)[DIGITS] = calloc(PASSES, sizeof *counts);
    if (other && counts) {
        for (uint64_t i = 0; i < n; i++)
            for (uint32_t pass = 0; pass < PASSES; pass++)
                counts[pass][pairs[i].key >> (pass * DIGIT_BITS) & (DIGITS - 1)]++;
        struct pair *from = pairs, *to = other;
        for (uint32_t pass = 0; pass < PASSES; pass++) {
            uint32_t shift = pass * DIGIT_BITS;
            if (counts[pass][from[0].key >> shift & (DIGITS - 1)] == n)
                continue; /* all keys have the same digit */
            uint64_t sum = 0;
            for (uint32_t digit = 0; digit < DIGITS; digit++) {
                uint64_t count = counts[pass][digit];
                counts[pass][digit] = sum;
                sum += count;
            }
            for (uint64_t i = 0; i < n; i++)
                to[counts[pass][from[i].key >> shift & (DIGITS - 1)]++] = from[i];
            struct pair *swap = from;
            from = to;
            to = swap;
        }
        if (from != pairs)
            memcpy(pairs, from, n * sizeof *pairs);
    }
    bool ok = other && counts;
    free(other);
    free(counts);
    return ok;
}

void restore_want(struct restoring *self, uint64_t *place)
{
    self->wanted[self->n_wanted++] = (struct pair){*place, (uint64_t)(uintptr_t)place};
}

uint64_t restore_count_wanted(const struct restoring *self)
{
    uint64_t n = 0;
    for (uint32_t t = 0; t < self->image.n_tables; t++)
        for (uint32_t i = 0; self->tables[t] && i < self->image.tables[t].high; i++)
            n += self->image.tables[t].items[i].n;
    for (uint32_t s = 0; s < self->image.n_selections; s++) {
        const struct image_selection *selection = self->image.selections[s];
        for (uint32_t i = 0; i < selection->n && restore_selection_holds(self, selection); i++)
            n += selection->items[i].n;
    }
    return n;
}

/* Data beyond storage.memory is left on disk. */
static struct chunk *chunk_make(const struct durable_state *state, uint64_t at, const struct chunk_view *view)
{
    struct store *store = state->store;
    const struct entry_chunk *head = view->head;
    if (store->split && head->bytes >= STORE_SPLIT_BYTES &&
        store->split_bytes + head->bytes > (uint64_t)state->config->storage_memory)
        return store_add_absent(store, head->columns, head->bytes, head->raw_bytes, at);
    if (head->bytes < STORE_KEEP_BYTES)
        return store_add(store, head->columns, view->data, head->bytes, head->raw_bytes, NULL);
    /* A message can be sent without a copy. */
    zmq_msg_t message;
    if (zmq_msg_init_size(&message, head->bytes) != 0)
        return NULL;
    memcpy(zmq_msg_data(&message), view->data, head->bytes);
    struct chunk *chunk =
        store_add(store, head->columns, zmq_msg_data(&message), head->bytes, head->raw_bytes, &message);
    zmq_msg_close(&message);
    return chunk;
}

static rp_status chunk_take(void *ctx, uint64_t at, const struct chunk_view *view, rp_error *err)
{
    struct restoring *self = ctx;
    const struct entry_chunk *head = view->head;
    struct chunk *chunk = chunk_make(self->state, at, view);
    if (!chunk)
        return err_set(err, RP_NO_MEMORY, "no memory for the chunks of the tables: %llu bytes were read so far",
                       (unsigned long long)self->bytes);
    memcpy(chunk_block_sizes(chunk), view->sizes, head->columns * sizeof(uint32_t));
    memcpy(chunk_block_codecs(chunk), view->codecs, head->columns);
    chunk->step = head->step;
    chunk->length = head->length;
    chunk->session = head->session;
    chunk->episode = head->episode;
    chunk->absent = head->absent != 0;
    chunk->at = at;
    chunk->refs = 0;
    for (; self->next_wanted < self->n_wanted && self->wanted[self->next_wanted].key == at; self->next_wanted++) {
        *(uint64_t *)(uintptr_t)self->wanted[self->next_wanted].value = (uint64_t)(uintptr_t)chunk;
        chunk->refs++;
    }
    stream_chunk_known(self->stream, chunk);
    self->chunks++;
    self->bytes += head->bytes;
    return RP_OK;
}

rp_status restore_chunks(struct restoring *self, rp_error *err)
{
    if (self->n_wanted == 0)
        return RP_OK;
    uint64_t *places = malloc(self->n_wanted * sizeof *places);
    if (!places || !pairs_sort(self->wanted, self->n_wanted)) {
        free(places);
        return err_set(err, RP_NO_MEMORY, "no memory for the places of %llu chunks",
                       (unsigned long long)self->n_wanted);
    }
    uint64_t n = 0;
    for (uint64_t i = 0; i < self->n_wanted; i++)
        if (n == 0 || places[n - 1] != self->wanted[i].key)
            places[n++] = self->wanted[i].key;
    rp_status status = chunks_read(self->folder, places, n, chunk_take, self, err);
    free(places);
    if (status == RP_OK && self->next_wanted != self->n_wanted)
        status = err_set(err, RP_DATA_LOSS, "%llu of %llu chunks of the tables are not in the segments",
                         (unsigned long long)(self->n_wanted - self->next_wanted), (unsigned long long)self->n_wanted);
    return status;
}
