/* Splits a reply whose items do not all have the same fields into several batches, so that no item is lost. Each batch has the
 * items of layouts that agree, in the order of the reply. */
#include <stdio.h>
#include <string.h>

#include "agent/client/batch/batch_decoder.h"
#include "proto/base/error.h"

#define NARROW 3u /* arrays of 4 bytes per item: BATCH_NARROW, length */

static void subset(struct pb_array *array, size_t width, const uint32_t *index, uint32_t n, uint8_t **room)
{
    if (array->n <= 1)
        return;
    for (uint32_t i = 0; i < n; i++)
        memcpy(*room + i * width, array->data + index[i] * width, width);
    *array = (struct pb_array){*room, n};
    *room += n * width;
}

/* Copies the reply's arrays for the items at these indices. The chunks are those of the whole reply. */
static void part_arrays(struct wire_sampled *part, const uint32_t *index, uint32_t n, uint8_t *room)
{
    struct pb_array *const wide[BATCH_WIDE] = {&part->key,    &part->priority, &part->probability,
                                               &part->age_ns, &part->policy,   &part->step};
    struct pb_array *const narrow[NARROW] = {&part->times_sampled, &part->session, &part->length};
    for (uint32_t k = 0; k < BATCH_WIDE; k++)
        subset(wide[k], 8, index, n, &room);
    for (uint32_t k = 0; k < NARROW; k++)
        subset(narrow[k], 4, index, n, &room);
    part->n_items = n;
}

/* Returns the number of layouts of the group before this one. */
static uint32_t place_in_group(const uint32_t *groups, uint32_t layout)
{
    uint32_t place = 0;
    for (uint32_t l = groups[layout]; l < layout; l++)
        place += groups[l] == groups[layout];
    return place;
}

/* Lists the items of a group in `index`, and makes them the current items. */
static uint32_t part_items(struct batch_decoder *self, uint32_t n_items, uint32_t group, uint32_t *index)
{
    const struct batch_item *all = self->all_items.data;
    const uint32_t *groups = self->groups.data;
    struct batch_item *items = self->items.data;
    uint32_t n = 0, last = UINT32_MAX, place = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        if (groups[all[i].layout] != group)
            continue;
        if (all[i].layout != last)
            place = place_in_group(groups, last = all[i].layout);
        items[n] = all[i];
        items[n].layout = place;
        index[n++] = i;
    }
    return n;
}

static rp_status part_build(struct batch_decoder *self, const struct wire_sampled *view, uint32_t group,
                            struct wire_string text, struct rp_batch **out, rp_error *err)
{
    struct wire_sampled part = *view;
    uint32_t *index = self->arrays.data;
    uint32_t n = part_items(self, view->n_items, group, index);
    if (n == 0)
        return RP_OK;
    part_arrays(&part, index, n, (uint8_t *)(index + ((view->n_items + 1) & ~1u)));
    part.partial = true;
    if (!batch_use_group(self, group, view->n_layouts))
        return batch_no_memory(err);
    char why[sizeof((*out)->text)];
    if (!text.size) {
        snprintf(why, sizeof why,
                 "the %u items of the reply do not all have the same fields, this batch has %u of them: %s",
                 view->n_items, n, self->why.text);
        text = (struct wire_string){why, (uint32_t)strlen(why)};
    }
    self->view = &part;
    rp_status status = batch_build(self, text, out, err);
    self->view = view;
    return status;
}

rp_status batch_split(struct batch_decoder *self, const struct wire_sampled *view, struct wire_string text,
                      struct rp_batch **out, rp_error *err)
{
    struct batch_vec items = self->items;
    self->items = self->all_items;
    self->all_items = items;
    size_t bytes = 8 + (size_t)view->n_items * (4 + BATCH_WIDE * 8 + NARROW * 4);
    if (!batch_vec_reserve(&self->items, view->n_items, sizeof(struct batch_item)) ||
        !batch_vec_reserve(&self->arrays, bytes, 1))
        return batch_no_memory(err);
    const uint32_t *groups = self->groups.data;
    struct rp_batch **end = out;
    rp_status status = RP_OK;
    for (uint32_t l = 0; l < view->n_layouts && status == RP_OK; l++) {
        if (groups[l] != l)
            continue;
        status = part_build(self, view, l, text, end, err);
        if (*end)
            end = &(*end)->next;
    }
    if (status != RP_OK)
        batch_list_release(out);
    return status;
}
