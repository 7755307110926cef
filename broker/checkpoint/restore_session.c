/* Restores sessions, as tombstones that their writers can resume; parameters, counters, kept replies and kept samples. */
#include <stdlib.h>
#include <string.h>

#include "broker/checkpoint/restore_parts.h"
#include "broker/peer/peers.h"
#include "broker/sample/kept_samples.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"
#include "broker/session/ingest.h"
#include "broker/store/params.h"
#include "proto/base/error.h"

static void restore_flow(struct restoring *self, struct session *session, const struct entry_flow *from)
{
    struct table *table = from->table < self->image.n_tables ? self->tables[from->table] : NULL;
    struct flow *flow = table ? session_flow(session, table) : NULL;
    if (!flow)
        return;
    flow->arrived = flow->resolved = flow->told_resolved = from->resolved;
    flow->rejected = from->rejected;
    flow->allowed = from->allowed > from->resolved ? from->allowed : from->resolved;
    /* After an older state was loaded, a writer may continue with later items; without this they would be refused for
     * ever. */
    flow->jumps = true;
}

static void restore_forms(struct session *session, const struct image_session *from)
{
    for (uint32_t i = 0; i < from->n_forms; i++) {
        const Replay__Layout *form = from->forms[i];
        if (!form)
            continue;
        size_t size = replay__layout__get_packed_size(form);
        uint8_t *packed = malloc(size ? size : 1);
        if (!packed)
            return;
        replay__layout__pack(form, packed);
        intake_register(session, form, packed, size);
        free(packed);
    }
}

static void restore_rejections(struct restoring *self, struct session *session, const struct image_session *from)
{
    for (uint32_t i = 0; i < from->n_rejections; i++) {
        const struct image_rejection *at = &from->rejections[i];
        const struct table *table = at->table < self->image.n_tables ? self->tables[at->table] : NULL;
        struct rejection rejection = {table ? table->id : REJECTED_NOWHERE, (rp_status)at->status, at->item, at->key,
                                      at->text};
        credit_keep_rejection(session, &rejection);
    }
}

static rp_status restore_session(struct restoring *self, const struct image_session *from, rp_error *err)
{
    const Replay__Hello *hello = from->hello;
    if (!hello || hello->session.len != WIRE_SESSION_BYTES)
        return err_set(err, RP_DATA_LOSS, "it has no id");
    struct columns *columns = columns_new(hello->columns, hello->n_columns, err);
    if (!columns)
        return err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    struct session_origin origin = {hello->session.data, hello->name ? hello->name : "", from->ordinal,
                                    ordinals_restored(from->ordinal, hello->oldest_number)};
    struct session *session = session_restore(self->state->sessions, &origin, columns, err);
    if (!session) {
        columns_release(columns);
        return err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    }
    struct identities *identities = &self->state->peers->identities;
    struct identity *owner = identity_by_key(identities, hello->owner.len == KEY_BYTES ? hello->owner.data : NULL);
    if (!owner)
        return err_set(err, RP_NO_MEMORY, "no memory for the key that opened it");
    session_set_owner(session, owner);
    session->epoch = from->epoch > 0 ? from->epoch : 1;
    session->received = from->received;
    session->counted = from->counted;
    session->received_bytes = session->returned_bytes = session->told_returned = from->received_bytes;
    session->allowed_bytes = from->allowed_bytes > from->received_bytes ? from->allowed_bytes : from->received_bytes;
    session->confirmed_rejections = from->confirmed_rejections;
    for (uint32_t i = 0; i < from->n_flows; i++)
        restore_flow(self, session, &from->flows[i]);
    restore_rejections(self, session, from);
    restore_forms(session, from);
    self->sessions++;
    return RP_OK;
}

rp_status restore_sessions(struct restoring *self, rp_error *err)
{
    struct ordinals *ordinals = &self->state->tables->ordinals;
    const struct image *image = &self->image;
    for (uint32_t i = 0; i < image->n_sessions; i++) {
        rp_status status = restore_session(self, image->sessions[i], err);
        if (status != RP_OK) {
            err_prefix(err, "session %u", image->sessions[i]->ordinal);
            return status;
        }
    }
    /* Keys are made from ordinals. Sessions that opened after an older state may still have writers. */
    ordinals->next = image->next_ordinal;
    if (!self->newest)
        ordinals->next += 1 + self->state->instance % (1u << 16);
    return RP_OK;
}

rp_status restore_params(struct restoring *self, rp_error *err)
{
    struct params *params = self->state->params;
    const struct image *image = &self->image;
    for (uint32_t i = 0; i < image->n_slots; i++) {
        const struct image_slot *slot = &image->slots[i];
        if (!params_restore_slot(params, slot->name, slot->version, slot->put_ns, slot->value, slot->bytes))
            return err_set(err, RP_NO_MEMORY, "no memory for the parameters '%.64s' of %llu bytes", slot->name,
                           (unsigned long long)slot->bytes);
    }
    for (uint32_t i = 0; i < image->n_counters; i++)
        if (!params_restore_counter(params, image->counters[i].name, image->counters[i].value))
            return err_set(err, RP_NO_MEMORY, "no room for the counter '%.64s'", image->counters[i].name);
    for (uint32_t i = 0; i < image->n_replies; i++) {
        const struct image_reply *reply = &image->replies[i];
        kept_replies_add(&self->state->peers->kept_replies, self->state->loop,
                         &(struct kept_reply){reply->client, reply->id, reply->frame, reply->size});
    }
    return RP_OK;
}

/* ---- samples that may be asked for again ---- */

static struct table *selection_table(const struct restoring *self, const struct image_selection *from)
{
    return from->table < self->image.n_tables ? self->tables[from->table] : NULL;
}

/* True if a restored sample holds its chunks: the same rule as in kept_samples_keep. */
bool restore_selection_holds(const struct restoring *self, const struct image_selection *from)
{
    const struct table *table = selection_table(self, from);
    return table && from->n && from->items[0].n && (!from->answered || table->one_by_one);
}

static bool pick_put(struct restoring *self, const struct table *table, struct picks *picks, bool holds,
                     struct image_item *item, double probability)
{
    uint32_t i = picks->n;
    picks->key[i] = item->key;
    picks->priority[i] = item->priority;
    picks->probability[i] = probability;
    picks->times_sampled[i] = item->times_sampled;
    picks->age_ns[i] = picks->policy[i] = picks->step[i] = 0;
    picks->session[i] = picks->layout[i] = picks->offset[i] = picks->length[i] = picks->chunks[i] = 0;
    if (holds) {
        rp_error err = {0};
        struct layout *layout = item->n ? restore_layout(self, item->layout, table, &err) : NULL;
        if (!layout || !picks_reserve_refs(picks, item->n))
            return false;
        uint64_t *places = item->n > 1 ? item->many : &item->one;
        const struct chunk *first = (const struct chunk *)(uintptr_t)places[0];
        picks->age_ns[i] = (uint64_t)item->insert_ns;
        picks->policy[i] = item->policy;
        picks->step[i] = first->step + item->offset;
        picks->session[i] = first->session;
        picks->layout[i] = layout->id;
        picks->offset[i] = item->offset;
        picks->length[i] = item->length;
        picks->chunks[i] = item->n;
        for (uint32_t c = 0; c < item->n; c++) {
            picks->refs[picks->n_refs++] = (struct chunk *)(uintptr_t)places[c];
            places[c] = 0;
        }
        layout->refs++;
    }
    picks->n++;
    return true;
}

static void restore_selection(struct restoring *self, const struct image_selection *from)
{
    struct table *table = selection_table(self, from);
    if (!table || !from->n)
        return;
    struct kept_image kept = {
        .info = {from->client, from->id, table, from->want, from->flags, from->answered,
                 restore_selection_holds(self, from)},
        .picks = {.table_size = from->table_size},
    };
    bool ok = picks_reserve(&kept.picks, from->n);
    for (uint32_t i = 0; i < from->n && ok; i++)
        ok = pick_put(self, table, &kept.picks, kept.info.holds, &from->items[i], from->probability[i]);
    if (ok)
        kept_samples_restore(self->state->samples, &kept);
    if (ok)
        return;
    log_line(LEVEL_WARN, "B0518", "a sample that may be asked for again could not be restored", "table=%s items=%u",
             table->name, from->n);
    if (!kept.info.holds)
        kept.picks.n = 0;
    picks_clear(&kept.picks, self->state->samples);
    picks_fini(&kept.picks);
}

void restore_selections(struct restoring *self)
{
    for (uint32_t i = 0; i < self->image.n_selections; i++)
        restore_selection(self, self->image.selections[i]);
}
