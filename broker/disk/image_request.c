/* Requests that may be repeated: replies, and selections of samples. A forgotten one leaves a hole in its array; holes
 * are removed when there are many, and at the end. */
#include <stdlib.h>
#include <string.h>

#include "broker/disk/image_impl.h"
#include "proto/base/error.h"

static void selection_destroy(struct image_selection **selection)
{
    struct image_selection *self = *selection;
    *selection = NULL;
    if (!self)
        return;
    for (uint32_t i = 0; i < self->n; i++)
        image_item_fini(&self->items[i]);
    free(self->items);
    free(self->probability);
    free(self);
}

static void selections_compact(struct image *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_selections; i++) {
        struct image_selection *selection = self->selections[i];
        if (!selection)
            continue;
        /* The key is in the map, so this only changes its value and needs no memory. */
        if (n != i)
            (void)request_map_put(&self->impl->by_selection, selection->client, selection->id, n);
        self->selections[n++] = selection;
    }
    self->n_selections = n;
}

static void replies_compact(struct image *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_replies; i++) {
        struct image_reply reply = self->replies[i];
        if (!reply.frame)
            continue;
        if (n != i)
            (void)request_map_put(&self->impl->by_reply, reply.client, reply.id, n);
        self->replies[n++] = reply;
    }
    self->n_replies = n;
    self->impl->replies_first = 0;
}

void image_requests_compact(struct image *self)
{
    selections_compact(self);
    replies_compact(self);
}

void image_requests_clear(struct image *self)
{
    for (uint32_t i = 0; i < self->n_selections; i++)
        selection_destroy(&self->selections[i]);
    for (uint32_t i = 0; i < self->n_replies; i++)
        free(self->replies[i].frame);
    self->n_selections = self->n_replies = 0;
    self->impl->selections_live = self->impl->replies_live = self->impl->replies_first = 0;
    request_map_fini(&self->impl->by_selection);
    request_map_fini(&self->impl->by_reply);
}

static void selection_drop(struct image *self, uint64_t client, uint64_t id)
{
    uint32_t at = request_map_get(&self->impl->by_selection, client, id);
    if (at == IMAGE_NOWHERE)
        return;
    selection_destroy(&self->selections[at]);
    request_map_remove(&self->impl->by_selection, client, id);
    self->impl->selections_live--;
    if (self->n_selections > 64 && self->impl->selections_live < self->n_selections / 2)
        selections_compact(self);
}

static void reply_drop(struct image *self, uint32_t at)
{
    struct image_reply *reply = &self->replies[at];
    request_map_remove(&self->impl->by_reply, reply->client, reply->id);
    free(reply->frame);
    *reply = (struct image_reply){0};
    self->impl->replies_live--;
}

/* Appends an empty selection for this request, and drops an older one. */
static struct image_selection *selection_new(struct image *self, uint64_t client, uint64_t id, uint32_t room)
{
    selection_drop(self, client, id);
    struct image_selection *selection = calloc(1, sizeof *selection);
    void *list = self->selections;
    if (!selection)
        return NULL;
    selection->client = client;
    selection->id = id;
    selection->items = calloc(room ? room : 1, sizeof *selection->items);
    selection->probability = calloc(room ? room : 1, sizeof *selection->probability);
    bool grown = image_grow(&list, &self->impl->selections_capacity, self->n_selections, sizeof(*self->selections));
    self->selections = list;
    if (!selection->items || !selection->probability || !grown ||
        !request_map_put(&self->impl->by_selection, client, id, self->n_selections)) {
        selection_destroy(&selection);
        return NULL;
    }
    self->selections[self->n_selections++] = selection;
    self->impl->selections_live++;
    return selection;
}

static bool selection_grow(struct image_selection *self, uint32_t n)
{
    struct image_item *items = realloc(self->items, ((size_t)self->n + n) * sizeof *items);
    if (items)
        self->items = items;
    double *probability = realloc(self->probability, ((size_t)self->n + n) * sizeof *probability);
    if (probability)
        self->probability = probability;
    return items && probability;
}

static struct entry_picked picked_at(const struct entry_view *entry, uint32_t i)
{
    struct entry_picked picked;
    memcpy(&picked, entry->body + sizeof(struct entry_pick) + i * sizeof picked, sizeof picked);
    return picked;
}

/* Returns the selection that these picks belong to, with room for them. */
static struct image_selection *pick_selection(struct image *self, const struct entry_pick *head, uint32_t table)
{
    uint32_t at = request_map_get(&self->impl->by_selection, head->client, head->id);
    struct image_selection *selection = at == IMAGE_NOWHERE ? NULL : self->selections[at];
    if (selection && !selection->answered && selection->table == table) {
        if (!selection_grow(selection, head->n))
            return NULL;
    } else {
        selection = selection_new(self, head->client, head->id, head->n);
    }
    if (selection) {
        selection->table = table;
        selection->want = head->want;
        selection->flags = head->flags & ~(uint32_t)PICK_COUNTED;
        selection->table_size = head->table_size;
    }
    return selection;
}

rp_status image_apply_pick(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_pick head;
    memcpy(&head, entry->body, sizeof head);
    struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    for (uint32_t i = 0; i < head.n; i++)
        if (!image_taken(table, picked_at(entry, i).slot, err))
            return RP_BAD_MESSAGE;
    struct image_selection *selection = NULL;
    if (head.client || head.id) {
        selection = pick_selection(self, &head, (uint32_t)(table - self->tables));
        if (!selection)
            return err_set(err, RP_NO_MEMORY, "no memory for a selection");
    }
    for (uint32_t i = 0; i < head.n; i++) {
        struct entry_picked picked = picked_at(entry, i);
        struct image_item *item = &table->items[picked.slot];
        item->times_sampled = picked.times_sampled;
        table->unique_samples += picked.times_sampled == 1;
        if (!selection)
            continue;
        if (!image_item_copy(&selection->items[selection->n], item))
            return err_set(err, RP_NO_MEMORY, "no memory for a selection");
        selection->probability[selection->n++] = picked.probability;
    }
    table->limiter.samples += (head.flags & (PICK_PAID | PICK_COUNTED)) == PICK_PAID ? 0 : head.n;
    table->total_samples += head.n;
    image_table_changed(self, table);
    return RP_OK;
}

rp_status image_apply_answered(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_request request;
    memcpy(&request, entry->body, sizeof request);
    uint32_t at = request_map_get(&self->impl->by_selection, request.client, request.id);
    if (at != IMAGE_NOWHERE)
        self->selections[at]->answered = true;
    return RP_OK;
}

rp_status image_apply_forget(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_request request;
    memcpy(&request, entry->body, sizeof request);
    selection_drop(self, request.client, request.id);
    uint32_t at = request_map_get(&self->impl->by_reply, request.client, request.id);
    if (at != IMAGE_NOWHERE)
        reply_drop(self, at);
    return RP_OK;
}

rp_status image_apply_reply(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct image_impl *impl = self->impl;
    struct entry_request request;
    memcpy(&request, entry->body, sizeof request);
    size_t size = entry->size - sizeof request;
    uint8_t *frame = malloc(size ? size : 1);
    void *list = self->replies;
    bool grown = image_grow(&list, &impl->replies_capacity, self->n_replies, sizeof *self->replies);
    self->replies = list;
    if (!frame || !grown) {
        free(frame);
        return err_set(err, RP_NO_MEMORY, "no memory for a reply");
    }
    memcpy(frame, entry->body + sizeof request, size);
    uint32_t before = request_map_get(&impl->by_reply, request.client, request.id);
    if (before != IMAGE_NOWHERE)
        reply_drop(self, before);
    if (!request_map_put(&impl->by_reply, request.client, request.id, self->n_replies)) {
        free(frame);
        return err_set(err, RP_NO_MEMORY, "no memory for a reply");
    }
    self->replies[self->n_replies++] = (struct image_reply){request.client, request.id, frame, size};
    impl->replies_live++;
    for (; impl->replies_live > IMAGE_REPLIES; impl->replies_first++)
        if (self->replies[impl->replies_first].frame)
            reply_drop(self, impl->replies_first);
    if (self->n_replies >= 4 * IMAGE_REPLIES)
        replies_compact(self);
    return RP_OK;
}

/* Reads one item of a checkpoint's selection; its chunks start at *chunk. */
static rp_status selected_read(struct image *self, const struct entry_selected *from, const uint8_t *places,
                               struct image_item *out, rp_error *err)
{
    struct image_layout *layout = image_layout_find(self, from->layout);
    if (!layout && from->chunks)
        return err_set(err, RP_BAD_MESSAGE, "layout %u was not described", from->layout);
    *out = (struct image_item){.key = from->key,
                               .priority = from->priority,
                               .insert_ns = image_time(self, self->impl->start.clock_ns - (int64_t)from->age_ns),
                               .policy = from->policy,
                               .times_sampled = from->times_sampled,
                               .offset = from->offset,
                               .length = from->length};
    if (!image_item_places(out, places, from->chunks))
        return err_set(err, RP_NO_MEMORY, "no memory for a selection");
    out->layout = from->chunks ? layout : NULL;
    if (out->layout)
        layout->refs++;
    return RP_OK;
}

rp_status image_apply_selection(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_selection head;
    memcpy(&head, entry->body, sizeof head);
    const struct image_table *table = image_table_of(self, entry, err);
    if (!table)
        return RP_BAD_MESSAGE;
    struct image_selection *selection = selection_new(self, head.client, head.id, head.n);
    if (!selection)
        return err_set(err, RP_NO_MEMORY, "no memory for a selection");
    selection->table = (uint32_t)(table - self->tables);
    selection->want = head.want;
    selection->flags = head.flags;
    selection->table_size = head.table_size;
    selection->answered = head.answered != 0;
    const uint8_t *items = entry->body + sizeof head;
    const uint8_t *places = items + head.n * sizeof(struct entry_selected);
    for (uint32_t i = 0; i < head.n; i++) {
        struct entry_selected selected;
        memcpy(&selected, items + i * sizeof selected, sizeof selected);
        rp_status status = selected_read(self, &selected, places, &selection->items[i], err);
        if (status != RP_OK) {
            selection_drop(self, head.client, head.id);
            return status;
        }
        selection->n++;
        selection->probability[i] = selected.probability;
        places += (size_t)selected.chunks * 8;
    }
    return RP_OK;
}
