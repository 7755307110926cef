/* Requests that tests make often. */
#include "tests/support/testpeer.h"

uint64_t testpeer_sample(struct testpeer *self, const char *table, uint32_t count, int64_t timeout_ms, int flags)
{
    Replay__Sample sample = REPLAY__SAMPLE__INIT;
    sample.table = testpeer_text(table);
    sample.count = count;
    sample.distinct = flags & DISTINCT;
    sample.flexible = (flags & FLEXIBLE) != 0;
    sample.whole = (flags & WHOLE) != 0;
    sample.paid = (flags & PAID) != 0;
    sample.shared = flags & HEAD ? 3 : flags & PACKED ? 2 : (flags & SHARED) != 0;
    sample.lease_ms = self->lease_ms;
    if (timeout_ms >= 0) {
        sample.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        sample.timeout_ms = (uint64_t)timeout_ms;
    }
    TESTPEER_REQUEST(request, SAMPLE, sample, &sample);
    return testpeer_ask(self, &request);
}

uint64_t testpeer_permit(struct testpeer *self, uint64_t id, const char *table, uint32_t count, int64_t timeout_ms,
                         int flags)
{
    Replay__Permit permit = REPLAY__PERMIT__INIT;
    permit.table = testpeer_text(table);
    permit.count = count;
    permit.flexible = (flags & FLEXIBLE) != 0;
    if (timeout_ms >= 0) {
        permit.has_timeout_ms_case = REPLAY__PERMIT__HAS_TIMEOUT_MS_TIMEOUT_MS;
        permit.timeout_ms = (uint64_t)timeout_ms;
    }
    TESTPEER_REQUEST(request, PERMIT, permit, &permit);
    return testpeer_ask_with(self, &request, id, NULL, 0);
}

struct testpeer_answer *testpeer_sampled(struct testpeer *self, const char *table, uint32_t count)
{
    struct testpeer_answer *answer = testpeer_await(self, testpeer_sample(self, table, count, 0, 0));
    if (answer->status != RP_OK)
        fail_msg("sample of %u from '%s': %s", count, table, answer->text);
    return answer;
}

struct testpeer_answer *testpeer_update(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys,
                                        const double *priorities)
{
    Replay__Update update = REPLAY__UPDATE__INIT;
    update.table = testpeer_text(table);
    update.n_key = update.n_priority = n;
    update.key = (uint64_t *)(uintptr_t)keys;
    update.priority = (double *)(uintptr_t)priorities;
    TESTPEER_REQUEST(request, UPDATE, update, &update);
    return testpeer_call(self, &request);
}

struct testpeer_answer *testpeer_lease(struct testpeer *self, const char *table, uint32_t op, uint32_t ms, uint32_t n,
                                       const uint64_t *keys)
{
    Replay__Lease lease = REPLAY__LEASE__INIT;
    lease.table = testpeer_text(table);
    lease.op = op;
    lease.ms = ms;
    lease.n_key = n;
    lease.key = (uint64_t *)(uintptr_t)keys;
    TESTPEER_REQUEST(request, LEASE, lease, &lease);
    return testpeer_call(self, &request);
}

struct testpeer_answer *testpeer_delete(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys)
{
    Replay__Delete del = REPLAY__DELETE__INIT;
    del.table = testpeer_text(table);
    del.n_key = n;
    del.key = (uint64_t *)(uintptr_t)keys;
    TESTPEER_REQUEST(request, DELETE, delete_, &del);
    return testpeer_call(self, &request);
}

struct testpeer_answer *testpeer_fetch(struct testpeer *self, const char *table, uint32_t n, const uint64_t *keys)
{
    Replay__Fetch fetch = REPLAY__FETCH__INIT;
    fetch.table = testpeer_text(table);
    fetch.n_key = n;
    fetch.key = (uint64_t *)(uintptr_t)keys;
    TESTPEER_REQUEST(request, FETCH, fetch, &fetch);
    return testpeer_call(self, &request);
}

struct testpeer_answer *testpeer_reset(struct testpeer *self, const char *table)
{
    Replay__Reset reset = REPLAY__RESET__INIT;
    reset.table = testpeer_text(table);
    TESTPEER_REQUEST(request, RESET, reset, &reset);
    return testpeer_call(self, &request);
}

int64_t testpeer_counter(struct testpeer *self, const char *name, int64_t add)
{
    Replay__Counter counter = REPLAY__COUNTER__INIT;
    counter.name = testpeer_text(name);
    counter.add = add;
    TESTPEER_REQUEST(request, COUNTER, counter, &counter);
    struct testpeer_answer *answer = testpeer_call(self, &request);
    assert_int_equal(answer->status, RP_OK);
    return answer->reply->counter->value;
}

Replay__InfoReply *testpeer_info(struct testpeer *self)
{
    Replay__Info info = REPLAY__INFO__INIT;
    info.sessions = true;
    TESTPEER_REQUEST(request, INFO, info, &info);
    struct testpeer_answer *answer = testpeer_call(self, &request);
    assert_int_equal(answer->status, RP_OK);
    return answer->reply->info;
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
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Counter counter = REPLAY__COUNTER__INIT;
    counter.name = testpeer_text("any");
    request.settled = id ? id : self->next_id;
    request.body_case = REPLAY__REQUEST__BODY_COUNTER;
    request.counter = &counter;
    assert_int_equal(testpeer_call(self, &request)->status, RP_OK);
    embed_settle(self->embed);
}

uint64_t testpeer_ask_cancel(struct testpeer *self, uint32_t n, uint64_t *ids)
{
    Replay__Cancel cancel = REPLAY__CANCEL__INIT;
    cancel.n_id = n;
    cancel.id = ids;
    TESTPEER_REQUEST(request, CANCEL, cancel, &cancel);
    return testpeer_ask(self, &request);
}

uint64_t testpeer_cancel(struct testpeer *self, uint32_t n, uint64_t *ids)
{
    return testpeer_await(self, testpeer_ask_cancel(self, n, ids))->reply->change->applied;
}

const Replay__WhyReply *testpeer_why(struct testpeer *self)
{
    Replay__Why why = REPLAY__WHY__INIT;
    TESTPEER_REQUEST(request, WHY, why, &why);
    return testpeer_call(self, &request)->reply->why;
}

rp_status testpeer_limit(struct testpeer *self, const char *table, Replay__SetLimiter change)
{
    change.table = testpeer_text(table);
    TESTPEER_REQUEST(request, SET_LIMITER, set_limiter, &change);
    return testpeer_call(self, &request)->status;
}
