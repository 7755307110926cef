#include "agent/client/admin/gather.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/wire/figures.h"
#include "proto/wire/pb.h"

#define PATIENCE_NS NS_PER_S
#define LOOK_NS (100 * NS_PER_MS) /* how often it is looked whether a shard is still connected */

/* ---- answers ---- */

/* Reads the reply that came for a question; without one, says why the shard has not answered: the connection's own sentence about an
 * absence, or that it is silent. */
static void answer_read(struct gather_answer *self, Replay__Reply__BodyCase want, struct conn *conn)
{
    rp_error err = {0};
    self->answered = self->reply && self->reply->answered;
    self->status = self->reply ? conn_reply_status(self->reply, &err) : RP_UNAVAILABLE;
    if (self->status == RP_OK && want != REPLAY__REPLY__BODY__NOT_SET)
        self->status = conn_reply_read(self->reply, want, &self->body, &err);
    if (self->reply) {
        snprintf(self->problem, sizeof self->problem, "%s", err.text);
        return;
    }
    conn_describe(conn, self->problem, sizeof self->problem);
    self->away_ns = conn_away_ns(conn);
    if (!self->problem[0])
        snprintf(self->problem, sizeof self->problem, "%s has not answered within a second after the others",
                 conn_title(conn));
}

static rp_status answers_judge(struct gather_answers *self, rp_error *err)
{
    const struct gather_answer *bad = NULL;
    for (uint32_t i = 0; i < self->n; i++) {
        const struct gather_answer *answer = &self->of[i];
        self->asked += answer->asked;
        if (answer->asked && answer->status == RP_OK)
            self->good++;
        else if (answer->asked && (!bad || (answer->answered && !bad->answered)))
            bad = answer;
    }
    return self->good || !bad ? RP_OK : err_set(err, bad->status, "%s", bad->problem);
}

/* ---- asking ---- */

static rp_status send_all(rp_client *client, const struct gather_plan *plan, struct gather_answers *self, rp_error *err)
{
    for (uint32_t i = 0; i < self->n; i++) {
        const struct conn_message *message = plan->message ? plan->message : plan->each[i];
        self->of[i].service = conn_endpoint(client_shard(client, i));
        self->of[i].asked = message != NULL;
        if (message && !(self->of[i].ticket = conn_ticket_new(client_shard(client, i), message, err)))
            return RP_NO_MEMORY;
    }
    return RP_OK;
}

/* Returns until when the caller waits for shards that have not answered, after the first answer. */
static int64_t wait_until(const struct gather_answers *self, rp_client *client, bool patient, int64_t first_ns)
{
    int64_t until = 0, now = clock_ns();
    for (uint32_t i = 0; i < self->n; i++) {
        if (!self->of[i].ticket || self->of[i].reply)
            continue;
        int64_t away = conn_away_ns(client_shard(client, i)), end = first_ns + PATIENCE_NS;
        if (away == 0 && patient)
            return INT64_MAX;
        if (away > 0 && now - away + PATIENCE_NS < end)
            end = now - away + PATIENCE_NS;
        until = end > until ? end : until;
    }
    return until;
}

/* Collects the replies as they come. False: the caller has ended the wait. */
static bool await_all(struct gather_answers *self, rp_client *client, bool patient)
{
    int64_t first_ns = 0; /* time of the first answer of a broker; 0: none yet */
    for (;;) {
        struct gather_answer *open = NULL;
        for (uint32_t i = 0; i < self->n; i++) {
            struct gather_answer *answer = &self->of[i];
            if (answer->ticket && !answer->reply)
                answer->reply = conn_ticket_await(answer->ticket, 0);
            if (answer->reply && answer->reply->answered && first_ns == 0)
                first_ns = clock_ns();
            open = answer->ticket && !answer->reply ? answer : open;
        }
        int64_t now = clock_ns(), until = first_ns ? wait_until(self, client, patient, first_ns) : INT64_MAX;
        if (!open || now >= until)
            return true;
        if (self->n > 1 && until > now + LOOK_NS)
            until = now + LOOK_NS;
        open->reply = conn_ticket_await(open->ticket, until);
        if (!open->reply && conn_is_stopped())
            return false;
    }
}

rp_status gather(rp_client *client, const struct gather_plan *plan, struct gather_answers **out, rp_error *err)
{
    uint32_t n = client_shards(client);
    *out = NULL;
    RP_TRY(conn_check_process(client_conn(client), err));
    struct gather_answers *self = *out = calloc(1, sizeof *self + n * sizeof self->of[0]);
    if (!self)
        return err_set(err, RP_NO_MEMORY, "no memory for the answers of the broker");
    self->n = n;
    rp_status status = send_all(client, plan, self, err);
    if (status == RP_OK && !await_all(self, client, plan->patient))
        status = conn_stopped(err);
    for (uint32_t i = 0; i < n; i++) {
        struct gather_answer *answer = &self->of[i];
        if (answer->ticket && !answer->reply)
            conn_cancel(client_shard(client, i), answer->ticket->id);
        conn_ticket_destroy(&answer->ticket);
        if (answer->asked)
            answer_read(answer, plan->want, client_shard(client, i));
    }
    if (status == RP_OK)
        status = answers_judge(self, err);
    if (status != RP_OK)
        gather_free(out);
    return status;
}

void gather_free(struct gather_answers **self)
{
    if (!*self)
        return;
    for (uint32_t i = 0; i < (*self)->n; i++) {
        conn_reply_destroy(&(*self)->of[i].reply);
        unpack_free((*self)->of[i].body);
    }
    free(*self);
    *self = NULL;
}

uint32_t gather_first(const struct gather_answers *self)
{
    uint32_t shard = 0;
    while (shard + 1 < self->n && !(self->of[shard].asked && self->of[shard].status == RP_OK))
        shard++;
    return shard;
}

void gather_drop(struct gather_answers *self, uint32_t shard, const rp_error *why)
{
    struct gather_answer *answer = &self->of[shard];
    unpack_free(answer->body);
    answer->body = NULL;
    answer->status = (rp_status)why->status;
    snprintf(answer->problem, sizeof answer->problem, "%s", why->text);
    self->good--;
}

void gather_explain(rp_client *client, const char *table, rp_status status, rp_error *err)
{
    if (status != RP_NOT_FOUND || !table)
        return;
    struct conn_hello *hello = conn_hello_ref(client_conn(client));
    conn_hello_table(hello, table, NULL, err);
    conn_hello_unref(&hello);
}

rp_status gather_all_good(const struct gather_answers *self, const char *done, rp_error *err)
{
    for (uint32_t i = 0; i < self->n; i++) {
        const struct gather_answer *answer = &self->of[i];
        if (!answer->asked || answer->status == RP_OK)
            continue;
        char prefix[32] = "";
        if (answer->answered)
            snprintf(prefix, sizeof prefix, "shard %u: ", i);
        return err_set(err, answer->status, "%s%.300s; %u of %u shards %s", prefix, answer->problem, self->good,
                       self->asked, done);
    }
    return RP_OK;
}

/* ---- one answer of many: helpers ---- */

/* Replaces a string of a message, which may be an argument. False: no memory. */
RP_PRINTF(2, 3) static bool set_text(char **text, const char *format, ...)
{
    va_list args;
    char *made = NULL;
    va_start(args, format);
    int size = vasprintf(&made, format, args);
    va_end(args);
    if (size < 0)
        return false;
    if (*text != (const char *)protobuf_c_empty_string)
        free(*text);
    *text = made;
    return true;
}

/* Appends n pointers to an array of a message. False: no memory. */
static bool append(void ***array, size_t *n, void *const *more, size_t n_more)
{
    if (n_more == 0)
        return true;
    void **grown = realloc(*array, (*n + n_more) * sizeof *grown);
    if (!grown)
        return false;
    memcpy(grown + *n, more, n_more * sizeof *grown);
    *array = grown;
    *n += n_more;
    return true;
}

/* Appends a copy of a message. False: no memory. */
static bool append_copy(void ***array, size_t *n, const ProtobufCMessage *from)
{
    void *copy = unpack_clone(from);
    bool ok = copy && append(array, n, &copy, 1);
    if (!ok && copy)
        unpack_free(copy);
    return ok;
}

bool gather_move(void ***into, size_t *n, void ***from, size_t *n_from)
{
    if (!append(into, n, *from, *n_from))
        return false;
    free(*from);
    *from = NULL;
    *n_from = 0;
    return true;
}

/* Makes a row for each shard that was asked. NULL: no memory. */
static Replay__Shards *shards_new(const struct gather_answers *answers)
{
    Replay__Shards shards = REPLAY__SHARDS__INIT;
    Replay__ShardInfo rows[WIRE_MAX_SHARDS], *list[WIRE_MAX_SHARDS];
    for (uint32_t i = 0; i < answers->n; i++) {
        list[i] = &rows[i];
        replay__shard_info__init(&rows[i]);
        rows[i].shard = i;
        rows[i].service = (char *)(uintptr_t)answers->of[i].service;
        rows[i].problem = (char *)(uintptr_t)answers->of[i].problem;
    }
    shards.shard = list;
    shards.n_shard = answers->n;
    return (Replay__Shards *)unpack_clone(&shards.base);
}

/* Takes the body of a shard; NULL: it has none. */
static void *take(struct gather_answers *self, uint32_t shard)
{
    ProtobufCMessage *body = self->of[shard].body;
    self->of[shard].body = NULL;
    return body;
}

/* ---- numbers ---- */

static const char *name_of(const ProtobufCMessage *message)
{
    return *(const char *const *)(const void *)((const char *)message + message->descriptor->fields[0].offset);
}

/* Adds a histogram place by place. False: no memory. */
static bool add_counts(uint64_t **into, size_t *n, const uint64_t *from, size_t n_from)
{
    if (n_from > *n) {
        uint64_t *grown = realloc(*into, n_from * sizeof *grown);
        if (!grown)
            return false;
        memset(grown + *n, 0, (n_from - *n) * sizeof *grown);
        *into = grown;
        *n = n_from;
    }
    for (size_t i = 0; i < n_from; i++)
        (*into)[i] += from[i];
    return true;
}

/* Adds messages that have a name: those of one name become one; a name that the shards before did not have is new in the list. */
static bool add_list(void ***into, size_t *n, ProtobufCMessage *const *from, size_t n_from)
{
    bool ok = true;
    for (size_t k = 0; k < n_from && ok; k++) {
        size_t i = 0;
        while (i < *n && strcmp(name_of((*into)[i]), name_of(from[k])) != 0)
            i++;
        ok = i < *n ? gather_add((*into)[i], from[k]) : append_copy(into, n, from[k]);
    }
    return ok;
}

/* Sessions and shards are no sums: gather_merge has them. Items of a shard may have come before those of another: the first that knows
 * a signature tells it. False: no memory. */
static bool add_repeated(const ProtobufCFieldDescriptor *field, char *into, const char *from)
{
    size_t *n = (size_t *)(void *)(into + field->quantifier_offset);
    size_t n_from = *(const size_t *)(const void *)(from + field->quantifier_offset);
    void *at = into + field->offset;
    void *const *list = *(void *const *const *)(const void *)(from + field->offset);
    if (field->descriptor == &replay__session_info__descriptor)
        return true;
    if (field->descriptor == &replay__column__descriptor)
        return *n || add_list(at, n, (ProtobufCMessage *const *)list, n_from);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return add_list(at, n, (ProtobufCMessage *const *)list, n_from);
    return field->type != PROTOBUF_C_TYPE_UINT64 || add_counts(at, n, (const uint64_t *)list, n_from);
}

/* Counts are whole numbers that a double may be too small for. */
static void add_number(const ProtobufCFieldDescriptor *field, enum figure_fold how, void *into, const void *from)
{
    if (field->type == PROTOBUF_C_TYPE_FIXED64) {
        uint64_t *sum = into, more = *(const uint64_t *)from;
        bool other = (how == FOLD_MOST && more > *sum) || (how == FOLD_LEAST && more < *sum);
        *sum = how == FOLD_SUM ? *sum + more : other ? more : *sum;
    } else if (field->type == PROTOBUF_C_TYPE_DOUBLE) {
        double *sum = into, more = *(const double *)from;
        bool other = (how == FOLD_MOST && more > *sum) || (how == FOLD_LEAST && more < *sum);
        bool both = fabs(*sum) <= FIGURE_NO_BOUND && fabs(more) <= FIGURE_NO_BOUND;
        *sum = how == FOLD_SUM || (how == FOLD_BOUND && both) ? *sum + more : other ? more : *sum;
    } else if (field->type == PROTOBUF_C_TYPE_BOOL && how == FOLD_MOST) {
        *(protobuf_c_boolean *)into |= *(const protobuf_c_boolean *)from;
    }
}

static bool add_fields(ProtobufCMessage *into, const ProtobufCMessage *from)
{
    bool ok = true;
    for (unsigned i = 0; i < into->descriptor->n_fields && ok; i++) {
        const ProtobufCFieldDescriptor *field = &into->descriptor->fields[i];
        const struct figure *row = figure_find(into->descriptor, field->name);
        char *at = (char *)into + field->offset;
        const char *there = (const char *)from + field->offset;
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            ok = add_repeated(field, (char *)into, (const char *)from);
        else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            ProtobufCMessage **own = (ProtobufCMessage **)(void *)at;
            const ProtobufCMessage *more = *(ProtobufCMessage *const *)(const void *)there;
            if (*own && more)
                ok = gather_add(*own, more);
            else if (more) /* what only one side has is not added */
                ok = (*own = unpack_clone(more)) != NULL;
        } else if (row)
            add_number(field, row->fold, at, there);
    }
    return ok;
}

/* ---- what is no sum of numbers ---- */

/* Ages and staleness are of the samples of late. The limiter does not count them: over shards they are charged where there is
 * room. So the rates are the weights or, when nothing is sampled any more, the samples that were. */
static void add_means(Replay__TableInfo *into, const Replay__TableInfo *from)
{
    bool lately = into->sample_rate + from->sample_rate > 0;
    double here = lately ? into->sample_rate : (double)into->total_samples;
    double there = lately ? from->sample_rate : (double)from->total_samples;
    double all = here + there;
    if (all <= 0)
        return;
    into->mean_age_s = (into->mean_age_s * here + from->mean_age_s * there) / all;
    into->mean_staleness = (into->mean_staleness * here + from->mean_staleness * there) / all;
}

/* Readers of the slowest shard get its version. */
static void take_older(Replay__SlotInfo *into, const Replay__SlotInfo *from)
{
    if (from->version >= into->version)
        return;
    into->bytes = from->bytes;
    into->age_ns = from->age_ns;
}

/* Of checkpoints that are being made, the slowest one counts. */
static void add_progress(Replay__DiskInfo *into, const Replay__DiskInfo *from)
{
    if (from->checkpoint_running &&
        (!into->checkpoint_running || from->checkpoint_progress < into->checkpoint_progress))
        into->checkpoint_progress = from->checkpoint_progress;
}

/* A sum waits only if all shards do. */
static bool clear_waits(Replay__LimiterInfo *into, const Replay__LimiterInfo *from)
{
    bool ok = from->inserts_wait[0] || set_text(&into->inserts_wait, "%s", "");
    return (from->samples_wait[0] || set_text(&into->samples_wait, "%s", "")) && ok;
}

bool gather_add(ProtobufCMessage *into, const ProtobufCMessage *from)
{
    bool ok = true;
    const ProtobufCMessageDescriptor *of = into->descriptor;
    if (of == &replay__table_info__descriptor)
        add_means((Replay__TableInfo *)into, (const Replay__TableInfo *)from);
    else if (of == &replay__slot_info__descriptor)
        take_older((Replay__SlotInfo *)into, (const Replay__SlotInfo *)from);
    else if (of == &replay__disk_info__descriptor)
        add_progress((Replay__DiskInfo *)into, (const Replay__DiskInfo *)from);
    else if (of == &replay__limiter_info__descriptor)
        ok = clear_waits((Replay__LimiterInfo *)into, (const Replay__LimiterInfo *)from);
    return add_fields(into, from) && ok;
}

static bool end_wait(char **text, uint32_t first, uint32_t n)
{
    const char *others = n > 1 ? "; all other shards wait, too" : "";
    return !(*text)[0] || set_text(text, "shard %u: %s%s", first, *text, others);
}

bool gather_end_limiter(Replay__LimiterInfo *into, uint32_t first, uint32_t n)
{
    into->min_size = fmax(1.0, into->min_size); /* parts of a limiter without one are 0 */
    return end_wait(&into->inserts_wait, first, n) && end_wait(&into->samples_wait, first, n);
}

/* ---- info ---- */

static void mark_sessions(const Replay__InfoReply *info, uint32_t shard)
{
    for (size_t i = 0; i < info->n_sessions; i++) {
        info->sessions[i]->has_shard_case = REPLAY__SESSION_INFO__HAS_SHARD_SHARD;
        info->sessions[i]->shard = shard;
    }
}

static bool move_to_row(Replay__InfoReply *info, Replay__ShardInfo *row)
{
    row->server = info->server;
    row->disk = info->disk;
    info->server = NULL;
    info->disk = NULL;
    return gather_move((void ***)&row->tables, &row->n_tables, (void ***)&info->tables, &info->n_tables);
}

static bool add_info(Replay__InfoReply *into, Replay__InfoReply *from, Replay__ShardInfo *row)
{
    mark_sessions(from, row->shard);
    bool ok = true;
    if (into->disk && from->disk && from->disk->trouble[0] && !into->disk->trouble[0])
        ok = set_text(&into->disk->trouble, "shard %u: %s", row->shard, from->disk->trouble);
    return ok && add_fields(&into->base, &from->base) &&
           gather_move((void ***)&into->sessions, &into->n_sessions, (void ***)&from->sessions, &from->n_sessions) &&
           move_to_row(from, row);
}

/* The row of the first shard gets copies, because the sum goes on with its message. */
static bool sum_info(struct gather_answers *answers, Replay__InfoReply *sum, uint32_t first)
{
    Replay__Shards *rows = shards_new(answers);
    size_t sessions = sum->n_sessions;
    sum->n_sessions = 0;
    Replay__InfoReply *copy = (Replay__InfoReply *)unpack_clone(&sum->base);
    sum->n_sessions = sessions;
    sum->shards = rows;
    mark_sessions(sum, first);
    bool ok = rows && copy && move_to_row(copy, rows->shard[first]);
    unpack_free(copy ? &copy->base : NULL);
    for (uint32_t i = first + 1; i < answers->n && ok; i++)
        if (answers->of[i].info)
            ok = add_info(sum, answers->of[i].info, rows->shard[i]);
    for (size_t i = 0; i < sum->n_tables && ok; i++)
        ok = !sum->tables[i]->limiter || gather_end_limiter(sum->tables[i]->limiter, first, answers->good);
    return ok;
}

/* ---- why ---- */

static bool is_for_all(const Replay__Wait *wait)
{
    return wait->has_shard_case == REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
}

static bool name_shard(const Replay__WhyReply *why, uint32_t shard)
{
    bool ok = true;
    for (size_t i = 0; i < why->n_waits && ok; i++) {
        Replay__Wait *wait = why->waits[i];
        if (is_for_all(wait))
            continue;
        wait->has_shard_case = REPLAY__WAIT__HAS_SHARD_SHARD;
        wait->shard = shard;
        ok = set_text(&wait->text, "shard %u: %s", shard, wait->text);
    }
    return ok;
}

/* Returns the same wait as another shard told it. NULL: none has. */
static Replay__Wait *told_before(const Replay__WhyReply *why, const Replay__Wait *wait)
{
    for (size_t i = 0; is_for_all(wait) && i < why->n_waits; i++) {
        Replay__Wait *other = why->waits[i];
        if (is_for_all(other) && strcmp(other->who, wait->who) == 0 && strcmp(other->kind, wait->kind) == 0 &&
            strcmp(other->table, wait->table) == 0)
            return other;
    }
    return NULL;
}

/* Takes out the waits for all shards that are in the sum. */
static void drop_told(const Replay__WhyReply *sum, Replay__WhyReply *from)
{
    size_t n = 0;
    for (size_t i = 0; i < from->n_waits; i++) {
        Replay__Wait *wait = from->waits[i], *before = told_before(sum, wait);
        if (!before) {
            from->waits[n++] = wait;
            continue;
        }
        before->waited_ns = before->waited_ns > wait->waited_ns ? before->waited_ns : wait->waited_ns;
        unpack_free(&wait->base);
    }
    from->n_waits = n;
}

static bool add_missing(Replay__WhyReply *why, const struct gather_answer *answer, uint32_t shard)
{
    Replay__Wait wait = REPLAY__WAIT__INIT;
    char who[32];
    snprintf(who, sizeof who, "shard %u", shard);
    wait.has_shard_case = REPLAY__WAIT__HAS_SHARD_SHARD;
    wait.shard = shard;
    wait.waited_ns = answer->away_ns > 0 ? (uint64_t)answer->away_ns : 0;
    wait.who = who;
    wait.kind = (char *)(uintptr_t) "shard";
    wait.text = (char *)(uintptr_t)answer->problem;
    return append_copy((void ***)&why->waits, &why->n_waits, &wait.base);
}

static bool sum_why(struct gather_answers *answers, Replay__WhyReply *sum, uint32_t first)
{
    bool ok = name_shard(sum, first);
    for (uint32_t i = 0; i < answers->n && ok; i++) {
        Replay__WhyReply *more = answers->of[i].why;
        if (!more) {
            ok = i == first || add_missing(sum, &answers->of[i], i);
            continue;
        }
        drop_told(sum, more);
        ok = name_shard(more, i) &&
             gather_move((void ***)&sum->waits, &sum->n_waits, (void ***)&more->waits, &more->n_waits);
    }
    return ok;
}

/* ---- changes ---- */

static bool sum_limiter(struct gather_answers *answers, Replay__LimiterInfo *sum, uint32_t first)
{
    bool ok = true;
    for (uint32_t i = 0; i < answers->n && ok; i++)
        if (answers->of[i].limiter)
            ok = gather_add(&sum->base, &answers->of[i].limiter->base);
    return ok && gather_end_limiter(sum, first, answers->good);
}

/* A reset or a checkpoint. */
static bool sum_changes(struct gather_answers *answers, ProtobufCMessage *sum, uint32_t first)
{
    bool checkpoint = sum->descriptor == &replay__checkpoint_reply__descriptor;
    Replay__Shards *rows = shards_new(answers);
    bool ok = rows != NULL;
    for (uint32_t i = 0; i < answers->n && ok; i++) {
        void *from = i == first ? unpack_clone(sum) : take(answers, i);
        ok = i == first ? from != NULL : !from || gather_add(sum, from);
        if (checkpoint)
            rows->shard[i]->checkpoint = from;
        else
            rows->shard[i]->change = from;
    }
    if (checkpoint)
        ((Replay__CheckpointReply *)sum)->shards = rows;
    else
        ((Replay__ChangeReply *)sum)->shards = rows;
    return ok;
}

ProtobufCMessage *gather_merge(struct gather_answers *answers)
{
    uint32_t first = gather_first(answers);
    ProtobufCMessage *sum = take(answers, first);
    bool ok = true;
    if (answers->n == 1)
        return sum;
    if (sum->descriptor == &replay__info_reply__descriptor)
        ok = sum_info(answers, (Replay__InfoReply *)sum, first);
    else if (sum->descriptor == &replay__why_reply__descriptor)
        ok = sum_why(answers, (Replay__WhyReply *)sum, first);
    else if (sum->descriptor == &replay__limiter_info__descriptor)
        ok = sum_limiter(answers, (Replay__LimiterInfo *)sum, first);
    else
        ok = sum_changes(answers, sum, first);
    if (ok)
        return sum;
    unpack_free(sum);
    return NULL;
}
