/* Items and their layouts. The broker reuses the ids of layouts, so an item holds the layout itself. */
#include <stdlib.h>
#include <string.h>

#include "broker/disk/image_impl.h"
#include "proto/base/error.h"

/* No broker has more layouts than this. */
#define LAYOUT_IDS (1u << 22)

void image_layout_release(struct image_layout **layout)
{
    struct image_layout *self = *layout;
    *layout = NULL;
    if (!self || --self->refs > 0)
        return;
    if (self->wire)
        replay__layout__free_unpacked(self->wire, NULL);
    free(self->packed);
    free(self);
}

struct image_layout *image_layout_find(const struct image *self, uint32_t id)
{
    return id < self->impl->n_layouts ? self->impl->layouts[id] : NULL;
}

static bool layouts_reserve(struct image_impl *impl, uint32_t id)
{
    if (id < impl->n_layouts)
        return true;
    uint32_t n = impl->n_layouts ? impl->n_layouts : 64;
    while (n <= id)
        n *= 2;
    struct image_layout **layouts = realloc(impl->layouts, n * sizeof *layouts);
    if (!layouts)
        return false;
    memset(layouts + impl->n_layouts, 0, (n - impl->n_layouts) * sizeof *layouts);
    impl->layouts = layouts;
    impl->n_layouts = n;
    return true;
}

static struct image_layout *layout_new(const uint8_t *packed, size_t size)
{
    struct image_layout *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->refs = 1;
    self->wire = replay__layout__unpack(NULL, size, packed);
    self->packed = malloc(size ? size : 1);
    if (!self->wire || !self->packed) {
        image_layout_release(&self);
        return NULL;
    }
    memcpy(self->packed, packed, size);
    self->packed_size = (uint32_t)size;
    return self;
}

rp_status image_apply_layout(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    const uint8_t *packed = entry->body + sizeof named;
    size_t size = entry->size - sizeof named;
    uint32_t table = image_table_index(self, entry->table);
    if (named.number >= LAYOUT_IDS)
        return err_set(err, RP_BAD_MESSAGE, "layout %llu has an impossible id", (unsigned long long)named.number);
    if (!layouts_reserve(self->impl, (uint32_t)named.number))
        return err_set(err, RP_NO_MEMORY, "no memory for layouts");
    struct image_layout **place = &self->impl->layouts[named.number];
    if (*place && (*place)->table == table && (*place)->packed_size == size &&
        memcmp((*place)->packed, packed, size) == 0)
        return RP_OK;
    struct image_layout *layout = layout_new(packed, size);
    if (!layout)
        return err_set(err, RP_BAD_MESSAGE, "layout %llu cannot be decoded", (unsigned long long)named.number);
    layout->table = table;
    layout->serial = self->impl->serial++;
    image_layout_release(place);
    *place = layout;
    return RP_OK;
}

void image_item_fini(struct image_item *item)
{
    if (item->n > 1)
        free(item->many);
    image_layout_release(&item->layout);
    *item = (struct image_item){0};
}

bool image_item_places(struct image_item *item, const uint8_t *places, uint32_t n)
{
    item->n = n;
    if (n > 1)
        item->many = malloc((size_t)n * sizeof *item->many);
    if (n > 1 && !item->many) {
        item->n = 0;
        return false;
    }
    if (n)
        memcpy(n > 1 ? item->many : &item->one, places, (size_t)n * sizeof(uint64_t));
    return true;
}

bool image_item_copy(struct image_item *to, const struct image_item *from)
{
    *to = *from;
    if (!image_item_places(to, (const uint8_t *)image_chunks(from), from->n)) {
        *to = (struct image_item){0};
        return false;
    }
    if (to->layout)
        to->layout->refs++;
    return true;
}
