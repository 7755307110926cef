/* Why: what stands still in the broker, and what it waits for. */
#include <string.h>

#include "broker/service/arena.h"
#include "broker/service/service.h"
#include "broker/service/why.h"
#include "proto/base/error.h"
#include "proto/base/utf8.h"

#define WAITS_MOST 1000u

struct answer_lines {
    const struct service *service;
    struct arena arena;
    Replay__WhyReply reply; /* waits is an array of WAITS_MOST */
};

static bool add_line(void *ctx, const struct why_line *line)
{
    struct answer_lines *self = ctx;
    if (self->reply.n_waits == WAITS_MOST)
        return false;
    Replay__Wait *info = arena_take(&self->arena, 1, sizeof *info);
    char *strings[3];
    const char *const from[3] = {line->who, line->table, line->text};
    for (uint32_t i = 0; i < 3; i++) {
        strings[i] = arena_take(&self->arena, 1, strlen(from[i]) + 1);
        if (strings[i])
            utf8_clean(strcpy(strings[i], from[i]), strlen(from[i]));
    }
    if (self->arena.failed)
        return false;
    replay__wait__init(info);
    info->who = strings[0];
    info->kind = arena_borrow(line->kind);
    info->table = strings[1];
    info->text = strings[2];
    info->count = line->count;
    info->got = line->got;
    info->rate = line->rate;
    if (line->all_shards) {
        info->has_shard_case = REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
        info->all_shards = true;
    }
    info->waited_ns = (uint64_t)(self->service->loop->now_ns - line->since_ns);
    self->reply.waits[self->reply.n_waits++] = info;
    return true;
}

rp_status req_why(struct service *service, struct request *request, rp_error *err)
{
    struct answer_lines lines = {.service = service};
    replay__why_reply__init(&lines.reply);
    lines.reply.waits = arena_take(&lines.arena, WAITS_MOST, sizeof(*lines.reply.waits));
    if (lines.reply.waits)
        why_each(service, add_line, &lines);
    if (!lines.arena.failed)
        request_ok(service->peers, request, REPLAY__REPLY__BODY_WHY, &lines.reply.base);
    arena_fini(&lines.arena);
    return request->answered ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the answer");
}
