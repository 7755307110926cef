/* A round closes when every member has added its vector, or when the deadline of a waiting member has passed. Members that
 * are missing then leave the group: their next vector is refused, and they join again. Vectors are summed in the order of
 * member numbers, so the bits of the sum do not depend on who came first. The last two sums are kept for members whose reply
 * was lost, as long as the group has members and nobody else needs the memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/service/service.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/base/utf8.h"

#define GROUPS_MOST 1024u
#define MEMBERS_MOST 1024u
#define SUMS_KEPT 2u

struct reduce_addition {
    struct wait wait;
    struct reduce_group *group;
    uint64_t member;
    zmq_msg_t vector;
};

struct reduce_member {
    uint64_t id;
    struct reduce_addition *addition; /* NULL: it has not added its vector yet */
};

struct reduce_sum {
    uint64_t round;
    uint32_t contributors;
    uint64_t *members; /* that have contributed */
    zmq_msg_t vector;
    bool full;
};

struct reduce_group {
    struct reduce_group *next;
    char *name;
    uint64_t round; /* being collected */
    struct reduce_member *members;
    uint32_t n_members, capacity;
    uint32_t n_additions;
    size_t bytes;      /* of the vectors of this round */
    int64_t closed_ns; /* time of its last round */
    struct reduce_sum sums[SUMS_KEPT];
};

static void sum_clear(struct reduces *reduces, struct reduce_sum *sum)
{
    if (!sum->full)
        return;
    reduces->bytes -= zmq_msg_size(&sum->vector);
    zmq_msg_close(&sum->vector);
    free(sum->members);
    sum->members = NULL;
    sum->full = false;
}

static void sums_clear(struct reduces *reduces, struct reduce_group *group)
{
    for (uint32_t i = 0; i < SUMS_KEPT; i++)
        sum_clear(reduces, &group->sums[i]);
}

static void group_free(struct reduces *reduces, struct reduce_group *group)
{
    sums_clear(reduces, group);
    free(group->members);
    free(group->name);
    free(group);
}

/* Removes a group that has no members. False: there is none. */
static bool group_evict(struct reduces *reduces)
{
    struct reduce_group **at = &reduces->groups, *group;
    while (*at && (*at)->n_members)
        at = &(*at)->next;
    group = *at;
    if (!group)
        return false;
    *at = group->next;
    reduces->count--;
    group_free(reduces, group);
    return true;
}

static struct reduce_group *group_find(struct service *service, const char *name, bool make)
{
    for (struct reduce_group *group = service->reduces.groups; group; group = group->next)
        if (strcmp(group->name, name) == 0)
            return group;
    if (!make || (service->reduces.count == GROUPS_MOST && !group_evict(&service->reduces)))
        return NULL;
    struct reduce_group *group = need_alloc(sizeof *group);
    group->name = need_text(name);
    group->round = 1;
    group->next = service->reduces.groups;
    service->reduces.groups = group;
    service->reduces.count++;
    return group;
}

static struct reduce_member *member_find(const struct reduce_group *group, uint64_t id)
{
    for (uint32_t i = 0; i < group->n_members; i++)
        if (group->members[i].id == id)
            return &group->members[i];
    return NULL;
}

static bool member_add(struct reduce_group *group, uint64_t id)
{
    if (group->n_members == MEMBERS_MOST)
        return false;
    group->members = need_room(group->members, group->n_members, &group->capacity, sizeof *group->members);
    uint32_t at = group->n_members++;
    for (; at > 0 && group->members[at - 1].id > id; at--)
        group->members[at] = group->members[at - 1];
    group->members[at] = (struct reduce_member){.id = id};
    return true;
}

static void member_drop(struct reduce_group *group, struct reduce_member *member)
{
    uint32_t at = (uint32_t)(member - group->members);
    memmove(member, member + 1, (group->n_members - at - 1) * sizeof *member);
    group->n_members--;
}

static void addition_end(struct wait *wait)
{
    struct service *service = wait->ctx;
    struct reduce_addition *self = (struct reduce_addition *)wait;
    wait_end(wait);
    struct reduce_member *member = member_find(self->group, self->member);
    if (member)
        member->addition = NULL;
    self->group->n_additions--;
    service->reduces.bytes -= zmq_msg_size(&self->vector);
    zmq_msg_close(&self->vector);
    free(self);
}

static void send_sum(struct service *service, const struct reduce_group *group, const struct envelope *to, uint64_t id,
                     struct reduce_sum *sum, bool counted)
{
    Replay__ReduceReply reply = REPLAY__REDUCE_REPLY__INIT;
    reply.round = sum->round;
    reply.contributors = sum->contributors;
    reply.members = group->n_members;
    reply.counted = counted;
    zmq_msg_t vector;
    zmq_msg_init(&vector);
    zmq_msg_copy(&vector, &sum->vector);
    request_send(service->peers, to, id,
                 &(struct answer){RP_OK, NULL, REPLAY__REPLY__BODY_REDUCE, &reply.base, &vector, 1});
}

static bool sum_has(const struct reduce_sum *sum, uint64_t member)
{
    for (uint32_t i = 0; i < sum->contributors; i++)
        if (sum->members[i] == member)
            return true;
    return false;
}

static bool sum_up(struct service *service, struct reduce_group *group, struct reduce_sum *sum)
{
    sum_clear(&service->reduces, sum);
    if (zmq_msg_init_size(&sum->vector, group->bytes) != 0)
        return false;
    sum->members = need_alloc(group->n_additions * sizeof *sum->members);
    sum->full = true;
    sum->round = group->round;
    sum->contributors = 0;
    service->reduces.bytes += group->bytes;
    float *out = zmq_msg_data(&sum->vector);
    size_t n = group->bytes / sizeof(float);
    memset(out, 0, group->bytes);
    for (uint32_t m = 0; m < group->n_members; m++) {
        struct reduce_addition *addition = group->members[m].addition;
        if (!addition)
            continue;
        const char *from = zmq_msg_data(&addition->vector);
        for (size_t i = 0; i < n; i++) {
            float value; /* the frame may be unaligned */
            memcpy(&value, from + i * sizeof value, sizeof value);
            out[i] += value;
        }
        sum->members[sum->contributors++] = group->members[m].id;
    }
    return true;
}

static void round_close(struct service *service, struct reduce_group *group)
{
    struct reduce_sum *sum = &group->sums[group->round % SUMS_KEPT];
    bool ok = sum_up(service, group, sum);
    /* A missing member leaves the group: the others must not wait for it again. */
    for (uint32_t m = group->n_members; ok && m-- > 0;)
        if (!group->members[m].addition) {
            log_line(LEVEL_WARN, "B0401", "learner left its group: no vector before the deadline",
                     "group=%s member=%llu round=%llu", log_text(group->name), (unsigned long long)group->members[m].id,
                     (unsigned long long)group->round);
            member_drop(group, &group->members[m]);
        }
    for (uint32_t m = 0; m < group->n_members; m++) {
        struct reduce_addition *addition = group->members[m].addition;
        if (!addition)
            continue;
        if (!ok) {
            wait_cancel(&addition->wait, RP_NO_MEMORY, "no memory for the sum");
            continue;
        }
        send_sum(service, group, &addition->wait.to, addition->wait.id, sum, true);
        addition_end(&addition->wait);
    }
    group->closed_ns = service->loop->now_ns;
    group->round += ok; /* without a sum, members add to the same round again */
}

static void addition_explain(const struct wait *wait, struct wait_text *out)
{
    const struct reduce_addition *self = (const struct reduce_addition *)wait;
    const struct reduce_group *group = self->group;
    out->count = group->n_members;
    out->got = group->n_additions;
    snprintf(out->text, sizeof out->text, "reduce group '%.64s', round %llu: %u of %u members have added their vector",
             group->name, (unsigned long long)group->round, group->n_additions, group->n_members);
}

static void addition_expire(struct wait *wait)
{
    round_close(wait->ctx, ((struct reduce_addition *)wait)->group);
}

static const struct wait_ops addition_ops = {"reduce", addition_explain, addition_end, NULL, addition_expire};

static void reply_membership(struct service *service, struct request *request, const struct reduce_group *group)
{
    Replay__ReduceReply reply = REPLAY__REDUCE_REPLY__INIT;
    reply.round = group->round;
    reply.members = group->n_members;
    request_ok(service->peers, request, REPLAY__REPLY__BODY_REDUCE, &reply.base);
}

static rp_status reduce_leave(struct service *service, struct request *request, struct reduce_group *group, uint64_t id)
{
    struct reduce_member *member = member_find(group, id);
    if (member && member->addition)
        wait_cancel(&member->addition->wait, RP_CANCELLED, "the member has left the group");
    if (member)
        member_drop(group, member);
    if (group->n_members == 0)
        sums_clear(&service->reduces, group);
    reply_membership(service, request, group);
    if (group->n_members && group->n_additions == group->n_members)
        round_close(service, group);
    return RP_OK;
}

/* Answers for a round that is closed, if its sum is still kept. */
static rp_status reduce_repeat(struct service *service, struct request *request, struct reduce_group *group,
                               const Replay__Reduce *ask, rp_error *err)
{
    struct reduce_sum *old = &group->sums[ask->round % SUMS_KEPT];
    if (!old->full || old->round != ask->round)
        return err_set(err, RP_FAILED_PRECONDITION, "group '%s' is at round %llu, round %llu is gone: join again",
                       group->name, (unsigned long long)group->round, (unsigned long long)ask->round);
    send_sum(service, group, &request->from, request->head.id, old, sum_has(old, ask->member));
    request->answered = true;
    return RP_OK;
}

/* Makes room for a vector: drops the kept sums of groups that wait for no vector, the oldest first. A member that still asks for
 * such a sum joins again. False: the vectors in flight take all that is allowed. */
static bool make_room(struct service *service, const struct reduce_group *group, size_t bytes)
{
    while (service->reduces.bytes + bytes > (uint64_t)service->config->memory_limit / 4) {
        struct reduce_group *oldest = NULL;
        for (struct reduce_group *other = service->reduces.groups; other; other = other->next)
            if (other != group && other->n_additions == 0 && (other->sums[0].full || other->sums[1].full) &&
                (!oldest || other->closed_ns < oldest->closed_ns))
                oldest = other;
        if (!oldest)
            return false;
        sums_clear(&service->reduces, oldest);
    }
    return true;
}

/* Checks a vector for the round that is being collected. */
static rp_status check_vector(struct service *service, const struct request *request, const struct reduce_group *group,
                              const Replay__Reduce *ask, rp_error *err)
{
    const struct reduce_member *member = member_find(group, ask->member);
    if (!member)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "member %llu is not in group '%s' (it never joined, or a round closed without it): join first",
                       (unsigned long long)ask->member, group->name);
    if (ask->round != group->round)
        return err_set(err, RP_INVALID_ARGUMENT, "group '%s' is at round %llu, not %llu", group->name,
                       (unsigned long long)group->round, (unsigned long long)ask->round);
    if (member->addition)
        return err_set(err, RP_ALREADY_EXISTS, "member %llu has added its vector to round %llu already",
                       (unsigned long long)ask->member, (unsigned long long)ask->round);
    size_t bytes = request->n_payload == 1 ? zmq_msg_size(&request->payload[0]) : 0;
    if (bytes == 0 || bytes % sizeof(float) != 0)
        return err_set(err, RP_INVALID_ARGUMENT, "a vector comes as one frame of float32 after the header");
    if (group->n_additions && bytes != group->bytes)
        return err_set(err, RP_INVALID_ARGUMENT, "the vector has %zu floats, others of this round have %zu",
                       bytes / sizeof(float), group->bytes / sizeof(float));
    if (!make_room(service, group, bytes))
        return err_set(err, RP_RESOURCE_EXHAUSTED, "vectors of all groups may take a quarter of memory_limit");
    return RP_OK;
}

static rp_status reduce_add(struct service *service, struct request *request, struct reduce_group *group,
                            const Replay__Reduce *ask, rp_error *err)
{
    if (ask->round < group->round)
        return reduce_repeat(service, request, group, ask, err);
    RP_TRY(check_vector(service, request, group, ask, err));
    bool timed = ask->has_timeout_ms_case == REPLAY__REDUCE__HAS_TIMEOUT_MS_TIMEOUT_MS;
    struct reduce_addition *addition = wait_new(service->peers, sizeof *addition, &addition_ops, service, request,
                                                timed ? ask->timeout_ms : WAIT_FOREVER, err);
    if (!addition)
        return (rp_status)err->status;
    zmq_msg_init(&addition->vector);
    zmq_msg_move(&addition->vector, &request->payload[0]);
    addition->group = group;
    addition->member = ask->member;
    member_find(group, ask->member)->addition = addition;
    group->bytes = zmq_msg_size(&addition->vector);
    group->n_additions++;
    service->reduces.bytes += group->bytes;
    if (group->n_additions == group->n_members)
        round_close(service, group);
    return RP_OK;
}

rp_status req_reduce(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Reduce *ask = (const Replay__Reduce *)request->body;
    size_t size = strlen(ask->group);
    if (size == 0 || size > 255 || !utf8_valid(ask->group, size))
        return err_set(err, RP_INVALID_ARGUMENT, "a reduce group needs a name of 1 to 255 bytes of UTF-8");
    struct reduce_group *group = group_find(service, ask->group, ask->op == REPLAY__REDUCE__OP__JOIN);
    if (!group && ask->op == REPLAY__REDUCE__OP__JOIN)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "no room for a further reduce group: there are %u",
                       service->reduces.count);
    if (!group)
        return err_set(err, RP_NOT_FOUND, "no reduce group '%.64s': join it first", ask->group);
    switch (ask->op) {
    case REPLAY__REDUCE__OP__JOIN:
        if (!member_find(group, ask->member) && !member_add(group, ask->member))
            return err_set(err, RP_RESOURCE_EXHAUSTED, "group '%s' has %u members, which is the most", group->name,
                           MEMBERS_MOST);
        reply_membership(service, request, group);
        return RP_OK;
    case REPLAY__REDUCE__OP__LEAVE:
        return reduce_leave(service, request, group, ask->member);
    case REPLAY__REDUCE__OP__ADD:
        return reduce_add(service, request, group, ask, err);
    default:
        return err_set(err, RP_UNSUPPORTED, "unknown reduce operation %d", (int)ask->op);
    }
}

void reduces_fini(struct reduces *self)
{
    while (self->groups) {
        struct reduce_group *group = self->groups;
        self->groups = group->next;
        group_free(self, group);
    }
}
