#include "broker/select/slotset.h"

#include <assert.h>

#include "broker/store/reserve.h"

#define COUNT_SLOTS 4096u
#define COUNT_WORDS (COUNT_SLOTS / 64)
#define SUM_COUNTS 64u
#define SUM_SLOTS (COUNT_SLOTS * SUM_COUNTS)

void slotset_init(struct slotset *self, uint32_t capacity)
{
    size_t counts = ((size_t)capacity + COUNT_SLOTS - 1) / COUNT_SLOTS;
    size_t sums = (counts + SUM_COUNTS - 1) / SUM_COUNTS;
    size_t bit_bytes = counts * COUNT_WORDS * sizeof(uint64_t);
    *self = (struct slotset){.bytes = bit_bytes + (counts + sums) * sizeof(uint32_t)};
    char *memory = reserve_map(self->bytes);
    self->bits = (uint64_t *)(void *)memory;
    self->counts = (uint32_t *)(void *)(memory + bit_bytes);
    self->sums = self->counts + counts;
}

void slotset_fini(struct slotset *self)
{
    reserve_unmap(self->bits, self->bytes);
    *self = (struct slotset){0};
}

void slotset_add(struct slotset *self, uint32_t slot)
{
    assert(!slotset_has(self, slot));
    self->bits[slot / 64] |= UINT64_C(1) << (slot % 64);
    self->counts[slot / COUNT_SLOTS]++;
    self->sums[slot / SUM_SLOTS]++;
    self->count++;
}

void slotset_remove(struct slotset *self, uint32_t slot)
{
    assert(slotset_has(self, slot));
    self->bits[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    self->counts[slot / COUNT_SLOTS]--;
    self->sums[slot / SUM_SLOTS]--;
    self->count--;
}

uint32_t slotset_nth(const struct slotset *self, uint32_t k)
{
    assert(k < self->count);
    uint32_t sum = 0;
    while (k >= self->sums[sum])
        k -= self->sums[sum++];
    uint32_t block = sum * SUM_COUNTS;
    while (k >= self->counts[block])
        k -= self->counts[block++];
    uint32_t word = block * COUNT_WORDS;
    for (;;) {
        uint32_t ones = (uint32_t)__builtin_popcountll(self->bits[word]);
        if (k < ones)
            break;
        k -= ones;
        word++;
    }
    uint64_t bits = self->bits[word];
    while (k-- > 0)
        bits &= bits - 1;
    return word * 64 + (uint32_t)__builtin_ctzll(bits);
}
