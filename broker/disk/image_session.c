/* Sessions of an image, sorted by ordinal. Entries of an unknown session are skipped: it has ended, and what still
 * came from it concerned its items alone. */
#include <stdlib.h>
#include <string.h>

#include "broker/disk/image_impl.h"
#include "proto/base/error.h"

#define FORM_IDS 65536u

/* Returns the index of a session, or where it belongs. */
static uint32_t session_place(const struct image *self, uint32_t ordinal)
{
    uint32_t low = 0, high = self->n_sessions;
    if (high && self->sessions[high - 1]->ordinal < ordinal)
        return high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (self->sessions[middle]->ordinal < ordinal)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct image_session *image_session_find(struct image *self, uint32_t ordinal)
{
    struct image_session *last = self->impl->last;
    if (last && last->ordinal == ordinal)
        return last;
    uint32_t at = session_place(self, ordinal);
    if (at == self->n_sessions || self->sessions[at]->ordinal != ordinal)
        return NULL;
    return self->impl->last = self->sessions[at];
}

static struct image_session *session_named(struct image *self, uint64_t ordinal)
{
    return ordinal <= UINT32_MAX ? image_session_find(self, (uint32_t)ordinal) : NULL;
}

static void session_destroy(struct image_session *self)
{
    replay__hello__free_unpacked(self->hello, NULL);
    for (uint32_t i = 0; i < self->n_forms; i++)
        if (self->forms[i])
            replay__layout__free_unpacked(self->forms[i], NULL);
    for (uint32_t i = 0; i < self->n_rejections; i++)
        free(self->rejections[i].text);
    free(self->forms);
    free(self->flows);
    free(self->rejections);
    free(self);
}

static void session_remove(struct image *self, uint32_t at)
{
    if (self->impl->last == self->sessions[at])
        self->impl->last = NULL;
    session_destroy(self->sessions[at]);
    memmove(self->sessions + at, self->sessions + at + 1, (self->n_sessions - at - 1) * sizeof(*self->sessions));
    self->n_sessions--;
}

void image_sessions_clear(struct image *self)
{
    for (uint32_t i = 0; i < self->n_sessions; i++)
        session_destroy(self->sessions[i]);
    self->n_sessions = 0;
    self->impl->last = NULL;
}

rp_status image_apply_session(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    if (named.number == 0 || named.number > UINT32_MAX)
        return err_set(err, RP_BAD_MESSAGE, "session %llu has an impossible ordinal", (unsigned long long)named.number);
    struct image_session *session = calloc(1, sizeof *session);
    void *sessions = self->sessions;
    if (!session || !image_grow(&sessions, &self->impl->sessions_capacity, self->n_sessions, sizeof(*self->sessions))) {
        free(session);
        return err_set(err, RP_NO_MEMORY, "no memory for a session");
    }
    self->sessions = sessions;
    session->ordinal = (uint32_t)named.number;
    session->hello = replay__hello__unpack(NULL, entry->size - sizeof named, entry->body + sizeof named);
    if (!session->hello) {
        free(session);
        return err_set(err, RP_BAD_MESSAGE, "the HELLO of session %llu cannot be decoded",
                       (unsigned long long)named.number);
    }
    uint32_t at = session_place(self, session->ordinal);
    if (at < self->n_sessions && self->sessions[at]->ordinal == session->ordinal)
        session_remove(self, at);
    memmove(self->sessions + at + 1, self->sessions + at, (self->n_sessions - at) * sizeof(*self->sessions));
    self->sessions[at] = session;
    self->n_sessions++;
    if (named.number >= self->next_ordinal)
        self->next_ordinal = named.number + 1;
    return RP_OK;
}

rp_status image_apply_session_end(struct image *self, const struct entry_view *entry, rp_error *err)
{
    (void)err;
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    const struct image_session *session = session_named(self, named.number);
    if (session)
        session_remove(self, session_place(self, session->ordinal));
    return RP_OK;
}

rp_status image_apply_form(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_named named;
    memcpy(&named, entry->body, sizeof named);
    struct image_session *session = session_named(self, named.number);
    if (!session)
        return RP_OK;
    Replay__Layout *form = replay__layout__unpack(NULL, entry->size - sizeof named, entry->body + sizeof named);
    if (!form || form->id >= FORM_IDS) {
        if (form)
            replay__layout__free_unpacked(form, NULL);
        return err_set(err, RP_BAD_MESSAGE, "a layout of session %u cannot be decoded", session->ordinal);
    }
    if (form->id >= session->n_forms) {
        uint32_t n = form->id + 1 + form->id / 2;
        Replay__Layout **forms = realloc(session->forms, n * sizeof(*forms));
        if (!forms) {
            replay__layout__free_unpacked(form, NULL);
            return err_set(err, RP_NO_MEMORY, "no memory for the layouts of a session");
        }
        memset(forms + session->n_forms, 0, (n - session->n_forms) * sizeof(*forms));
        session->forms = forms;
        session->n_forms = n;
    }
    if (session->forms[form->id])
        replay__layout__free_unpacked(session->forms[form->id], NULL);
    session->forms[form->id] = form;
    return RP_OK;
}

struct entry_flow *image_flow(struct image_session *session, uint32_t table)
{
    if (table >= session->n_flows) {
        struct entry_flow *flows = realloc(session->flows, (table + 1) * sizeof *flows);
        if (!flows)
            return NULL;
        for (uint32_t i = session->n_flows; i <= table; i++)
            flows[i] = (struct entry_flow){.table = i};
        session->flows = flows;
        session->n_flows = table + 1;
    }
    return &session->flows[table];
}

/* Drops the rejections that the client has confirmed. */
static void rejections_confirm(struct image_session *session, uint64_t confirmed)
{
    uint64_t passed = confirmed > session->confirmed_rejections ? confirmed - session->confirmed_rejections : 0;
    uint32_t n = passed < session->n_rejections ? (uint32_t)passed : session->n_rejections;
    for (uint32_t i = 0; i < n; i++)
        free(session->rejections[i].text);
    if (n)
        memmove(session->rejections, session->rejections + n,
                (session->n_rejections - n) * sizeof *session->rejections);
    session->n_rejections -= n;
    session->confirmed_rejections = confirmed;
}

rp_status image_apply_progress(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_progress progress;
    memcpy(&progress, entry->body, sizeof progress);
    struct image_session *session = image_session_find(self, progress.session);
    if (!session)
        return RP_OK;
    struct entry_flow from;
    for (uint32_t i = 0; i < progress.n_flows; i++) {
        memcpy(&from, entry->body + sizeof progress + i * sizeof from, sizeof from);
        uint32_t table = image_table_index(self, from.table);
        if (table == IMAGE_NOWHERE)
            return err_set(err, RP_BAD_MESSAGE, "table %u was not named in this file", from.table);
        if (!image_flow(session, table))
            return err_set(err, RP_NO_MEMORY, "no memory for a session");
    }
    for (uint32_t i = 0; i < progress.n_flows; i++) {
        memcpy(&from, entry->body + sizeof progress + i * sizeof from, sizeof from);
        uint32_t table = image_table_index(self, from.table);
        session->flows[table] = from;
        session->flows[table].table = table;
    }
    session->epoch = progress.epoch;
    session->received = progress.received;
    session->counted = progress.counted;
    session->received_bytes = progress.received_bytes;
    session->allowed_bytes = progress.allowed_bytes;
    /* A checkpoint holds only unconfirmed ones. */
    if (self->impl->in_checkpoint)
        session->confirmed_rejections = progress.confirmed_rejections;
    else
        rejections_confirm(session, progress.confirmed_rejections);
    return RP_OK;
}

static rp_status rejection_keep(struct image_session *session, const struct entry_rejection *head, uint32_t table,
                                const uint8_t *text, size_t size, rp_error *err)
{
    uint32_t n = session->n_rejections;
    if (n >= IMAGE_REJECTIONS)
        return RP_OK;
    /* The array grows in powers of two. */
    if ((n & (n - 1)) == 0) {
        struct image_rejection *more = realloc(session->rejections, (n ? (size_t)n * 2 : 1) * sizeof *more);
        if (!more)
            return err_set(err, RP_NO_MEMORY, "no memory for a rejection");
        session->rejections = more;
    }
    char *copy = strndup((const char *)text, size);
    if (!copy)
        return err_set(err, RP_NO_MEMORY, "no memory for a rejection");
    session->rejections[session->n_rejections++] = (struct image_rejection){
        .table = table, .status = head->status, .more = head->more, .item = head->item, .key = head->key, .text = copy};
    return RP_OK;
}

rp_status image_apply_rejection(struct image *self, const struct entry_view *entry, rp_error *err)
{
    struct entry_rejection head;
    memcpy(&head, entry->body, sizeof head);
    struct image_session *session = image_session_find(self, head.session);
    if (!session)
        return RP_OK;
    uint32_t table = IMAGE_NOWHERE;
    struct entry_flow *flow = NULL;
    if (head.table != IMAGE_NOWHERE) {
        table = image_table_index(self, head.table);
        if (table == IMAGE_NOWHERE)
            return err_set(err, RP_BAD_MESSAGE, "table %u was not named in this file", head.table);
        flow = image_flow(session, table);
        if (!flow)
            return err_set(err, RP_NO_MEMORY, "no memory for a session");
    }
    RP_TRY(rejection_keep(session, &head, table, entry->body + sizeof head, entry->size - sizeof head, err));
    /* The counters of a checkpoint include its rejections. An item that was not the next one of its flow resolves
     * nothing. */
    if (flow && !self->impl->in_checkpoint && head.item == flow->resolved + 1) {
        flow->resolved = head.item + head.more;
        flow->rejected += UINT64_C(1) + head.more;
        self->tables[table].rejected += UINT64_C(1) + head.more;
    }
    return RP_OK;
}
