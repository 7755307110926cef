/* Requests that tests make often. */
#include "tests/support/testpeer.h"

uint64_t testpeer_sample_as(struct testpeer *self, uint64_t id, const char *table, uint32_t count, int64_t timeout_ms,
                            int flags)
{
    Replay__Request *request = REQUEST_OF(SAMPLE, sample, Sample, .table = testpeer_text(table), .count = count,
                                          .distinct = (flags & DISTINCT) != 0, .flexible = (flags & FLEXIBLE) != 0,
                                          .whole = (flags & WHOLE) != 0, .paid = (flags & PAID) != 0,
                                          .shared = flags & HEAD     ? 3
                                                    : flags & PACKED ? 2
                                                                     : (flags & SHARED) != 0,
                                          .lease_ms = self->lease_ms, TIMEOUT_OF(SAMPLE, timeout_ms));
    return testpeer_ask_with(self, request, id, NULL, 0);
}

uint64_t testpeer_sample(struct testpeer *self, const char *table, uint32_t count, int64_t timeout_ms, int flags)
{
    return testpeer_sample_as(self, 0, table, count, timeout_ms, flags);
}

uint64_t testpeer_put(struct testpeer *self, const char *name, uint64_t version, const void *value, size_t size)
{
    Replay__Request *request =
        REQUEST_OF(PARAMS_PUT, params_put, ParamsPut, .name = testpeer_text(name), .version = version);
    return testpeer_ask_with(self, request, 0, value, size);
}

uint64_t testpeer_permit(struct testpeer *self, uint64_t id, const char *table, uint32_t count, int64_t timeout_ms,
                         int flags)
{
    Replay__Request *request = REQUEST_OF(PERMIT, permit, Permit, .table = testpeer_text(table), .count = count,
                                          .flexible = (flags & FLEXIBLE) != 0, TIMEOUT_OF(PERMIT, timeout_ms));
    return testpeer_ask_with(self, request, id, NULL, 0);
}

struct testpeer_answer *testpeer_sampled(struct testpeer *self, const char *table, uint32_t count)
{
    return testpeer_good(self, testpeer_sample(self, table, count, 0, 0));
}

struct testpeer_answer *testpeer_update(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys,
                                        const double *priorities)
{
    return testpeer_call(self, REQUEST_OF(UPDATE, update, Update, .table = testpeer_text(table), .n_key = n,
                                          .key = testpeer_keys(keys), .n_priority = n,
                                          .priority = (double *)(uintptr_t)priorities));
}

struct testpeer_answer *testpeer_lease(struct testpeer *self, const char *table, uint32_t op, uint32_t ms, uint32_t n,
                                       const uint64_t *keys)
{
    return testpeer_call(self, REQUEST_OF(LEASE, lease, Lease, .table = testpeer_text(table), .op = op, .ms = ms,
                                          .n_key = n, .key = testpeer_keys(keys)));
}

struct testpeer_answer *testpeer_delete(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys)
{
    Replay__Delete del = REPLAY__DELETE__INIT;
    del.table = testpeer_text(table);
    del.n_key = n;
    del.key = testpeer_keys(keys);
    TESTPEER_REQUEST(request, DELETE, delete_, &del);
    return testpeer_call(self, &request);
}

struct testpeer_answer *testpeer_fetch(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys)
{
    return testpeer_call(
        self, REQUEST_OF(FETCH, fetch, Fetch, .table = testpeer_text(table), .n_key = n, .key = testpeer_keys(keys)));
}

struct testpeer_answer *testpeer_reset(struct testpeer *self, const char *table)
{
    return testpeer_call(self, REQUEST_OF(RESET, reset, Reset, .table = testpeer_text(table)));
}

/* The test fails unless the answer is good. */
static const Replay__Reply *good_reply(struct testpeer *self, Replay__Request *request)
{
    struct testpeer_answer *answer = testpeer_call(self, request);
    assert_int_equal(answer->status, RP_OK);
    return answer->reply;
}

int64_t testpeer_counter(struct testpeer *self, const char *name, int64_t add)
{
    return good_reply(self, REQUEST_OF(COUNTER, counter, Counter, .name = testpeer_text(name), .add = add))
        ->counter->value;
}

Replay__InfoReply *testpeer_info(struct testpeer *self)
{
    return good_reply(self, REQUEST_OF(INFO, info, Info, .sessions = true))->info;
}

Replay__TableInfo *testpeer_table_info(struct testpeer *self, const char *table)
{
    Replay__InfoReply *info = testpeer_info(self);
    for (size_t i = 0; i < info->n_tables; i++)
        if (strcmp(info->tables[i]->name, table) == 0)
            return info->tables[i];
    fail_msg("no table '%s'", table);
    return NULL;
}

void testpeer_settled(struct testpeer *self, uint64_t id)
{
    Replay__Request *request = REQUEST_OF(COUNTER, counter, Counter, .name = testpeer_text("any"));
    request->settled = id ? id : self->next_id;
    good_reply(self, request);
    embed_settle(self->embed);
}

uint64_t testpeer_ask_cancel(struct testpeer *self, uint32_t n, uint64_t *ids)
{
    return testpeer_ask(self, REQUEST_OF(CANCEL, cancel, Cancel, .n_id = n, .id = ids));
}

uint64_t testpeer_cancel(struct testpeer *self, uint32_t n, uint64_t *ids)
{
    return testpeer_await(self, testpeer_ask_cancel(self, n, ids))->reply->change->applied;
}

const Replay__WhyReply *testpeer_why(struct testpeer *self)
{
    return testpeer_call(self, REQUEST_OF(WHY, why, Why))->reply->why;
}

rp_status testpeer_limit(struct testpeer *self, const char *table, Replay__SetLimiter change)
{
    change.table = testpeer_text(table);
    TESTPEER_REQUEST(request, SET_LIMITER, set_limiter, &change);
    return testpeer_call(self, &request)->status;
}
