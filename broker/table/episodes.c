#include "broker/table/episodes.h"

bool episodes_init(struct episodes *self, uint64_t *account)
{
    *self = (struct episodes){.items = keymap_new(account)};
    return self->items != NULL;
}

void episodes_fini(struct episodes *self)
{
    keymap_destroy(&self->items);
}

void episodes_open(struct episodes *self, struct episode_items *place, uint64_t episode)
{
    if (place->n && !keymap_put(self->items, place->episode, place->n))
        self->here--;
    uint32_t n = keymap_remove(self->items, episode);
    *place = (struct episode_items){.episode = episode, .n = n == KEYMAP_NONE ? 0 : n};
}
