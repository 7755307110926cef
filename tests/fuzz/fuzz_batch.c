/* What a client makes of a sample reply from a broker that it cannot trust. Input: the size of the header (2 bytes,
 * little-endian), the header, the number of frames (1 byte), the size of each but the last (2 bytes each), the
 * frames. */
#include <string.h>

#include "agent/client/sampler/batch.h"
#include "proto/wire/wire.h"
#include "tests/fuzz/target.h"

static volatile uint64_t sink;

struct input {
    const uint8_t *at;
    size_t left;
};

/* Exactly `size` bytes in memory of their own, so that a read past them is found. */
static uint8_t *cut(struct input *in, size_t size, size_t *out_size)
{
    *out_size = size < in->left ? size : in->left;
    uint8_t *copy = malloc(*out_size ? *out_size : 1);
    if (copy)
        memcpy(copy, in->at, *out_size);
    in->at += *out_size;
    in->left -= *out_size;
    return copy;
}

static size_t number(struct input *in, size_t bytes)
{
    size_t value = 0;
    for (size_t i = 0; i < bytes && in->left; i++, in->at++, in->left--)
        value |= (size_t)*in->at << (8 * i);
    return value;
}

static void touch(const rp_batch *batch)
{
    rp_batch_arrays a = {.struct_size = sizeof a};
    rp_batch_get_arrays(batch, &a);
    for (uint32_t i = 0; i < a.n; i++)
        sink += a.key[i] + a.times_sampled[i] + a.step[i] + (a.weight[i] > 0.5f);
    const rp_field_view *field;
    for (uint32_t f = 0; (field = rp_batch_field(batch, f)) != NULL; f++) {
        sink += strlen(field->name);
        for (uint64_t i = 0; i < field->bytes; i++)
            sink += ((const uint8_t *)field->data)[i];
        for (uint32_t i = 0; field->lengths && i < a.n; i++)
            sink += field->lengths[i];
    }
}

/* Reads the batch's items out of the reply, if they are still there; copies those of a packed batch. */
static void join(struct batch_pool *pool, rp_batch **batch)
{
    struct batch_rows rows = {.from = *batch, .n = (*batch)->info.n, .share = 1};
    rp_batch *joined = NULL;
    struct batch_join_options options = {.max_bytes = 1 << 22, .packed = (*batch)->info.packed};
    if ((*batch)->next || (!(*batch)->in_reply.step && !options.packed))
        return;
    batch_join(pool, &rows, 1, &options, &joined, NULL);
    rp_batch_release(batch);
    *batch = joined;
}

static void decode(const uint8_t *header, size_t header_size, const struct batch_frame *frames, uint32_t n_frames,
                   bool packed)
{
    struct wire_reply reply;
    struct wire_sampled view;
    static const _Alignas(64) uint8_t arena[1 << 12]; /* the broker's memory */
    struct batch_options options = {.beta = 0.5, .max_bytes = 1 << 22, .packed = packed};
    if (wire_read_reply(header, header_size, &reply, NULL) != RP_OK ||
        wire_read_sampled(reply.data, reply.size, &view, NULL) != RP_OK)
        return;
    struct batch_pool *pool = batch_pool_new(1, NULL);
    struct batch_decoder *decoder = pool ? batch_decoder_new(pool, &options) : NULL;
    /* The second time the layouts are known already. The third time the items stay in the reply. */
    for (uint32_t i = 0; decoder && i < (packed ? 2 : 3); i++) {
        rp_batch *batch = NULL;
        batch_decode(decoder, &(struct batch_reply){&view, reply.text, frames, n_frames, arena, sizeof arena}, &batch,
                     NULL);
        if (batch)
            join(pool, &batch);
        for (const rp_batch *at = batch; at; at = at->next)
            touch(at);
        batch_list_release(&batch);
        if (i == 1 && !packed) {
            batch_decoder_destroy(&decoder);
            options.leave_items = true;
            decoder = batch_decoder_new(pool, &options);
        }
    }
    batch_decoder_destroy(&decoder);
    batch_pool_unref(&pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MOST = 8 };
    struct input in = {data, size};
    struct batch_frame frames[MOST] = {{0}};
    size_t sizes[MOST], header_size;
    uint8_t *header = cut(&in, number(&in, 2), &header_size);
    uint32_t n = (uint32_t)(number(&in, 1) % (MOST + 1));
    for (uint32_t i = 0; i + 1 < n; i++)
        sizes[i] = number(&in, 2);
    for (uint32_t i = 0; i < n; i++)
        frames[i].data = cut(&in, i + 1 < n ? sizes[i] : in.left, &frames[i].size);
    decode(header, header_size, frames, n, false);
    decode(header, header_size, frames, n, true);
    for (uint32_t i = 0; i < n; i++)
        free((void *)(uintptr_t)frames[i].data);
    free(header);
    return 0;
}
