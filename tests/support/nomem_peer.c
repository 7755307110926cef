#include "tests/support/nomem_peer.h"

/* ---- only what the broker does counts ---- */

void __real_broker_turn(struct broker *self, int wait_ms);
void __wrap_broker_turn(struct broker *self, int wait_ms);
struct broker *__real_broker_new(const struct broker_config *config, struct clock clock, void *context,
                                 rp_error *error);
struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context,
                                 rp_error *error);

void __wrap_broker_turn(struct broker *self, int wait_ms)
{
    nomem_enter();
    __real_broker_turn(self, wait_ms);
    nomem_leave();
}

struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *error)
{
    nomem_enter();
    struct broker *broker = __real_broker_new(config, clock, context, error);
    nomem_leave();
    return broker;
}

/* ---- peers ---- */

void nomem_refused(struct testpeer *peer, const struct testpeer_answer *answer)
{
    (void)peer;
    assert_non_null(answer);
    if (!nomem_has_failed())
        fail_msg("refused without a reason: %u %s", answer->status, answer->text);
    if (answer->status != RP_NO_MEMORY)
        fail_msg("status %u instead of NO_MEMORY: %s", answer->status, answer->text);
    nomem_disarm();
}

struct testpeer *nomem_peer(struct embed *embed)
{
    struct testpeer *peer = testpeer_new(embed);
    peer->refused = nomem_refused;
    peer->keep = true;
    return peer;
}

struct testpeer *nomem_writer(struct embed *embed, uint32_t big)
{
    const struct testpeer_column columns[] = {{"x", "uint64", 0, {0}, 8}, {"big", "uint8", 1, {big}, big}};
    struct testpeer *peer = nomem_peer(embed);
    testpeer_open_with(peer, true, columns, 2);
    return peer;
}

void nomem_push(struct testpeer *peer)
{
    testpeer_push(peer);
    for (uint32_t tries = 0;; tries++) {
        embed_settle(peer->embed);
        assert_int_equal(testpeer_heartbeat(peer, 0, true)->status, RP_OK);
        if (peer->credit->received == peer->number && !peer->credit->gap)
            return;
        if (!nomem_has_failed() || tries == 2)
            fail_msg("message %llu of %llu was received", (unsigned long long)peer->credit->received,
                     (unsigned long long)peer->number);
        nomem_disarm();
        assert_int_equal(testpeer_resume(peer, 1, true)->status, RP_OK);
        assert_int_equal(peer->lost_messages, 0);
        testpeer_resend(peer, peer->credit->received);
    }
}

struct testpeer_answer *nomem_sample(struct testpeer *peer, const char *table, uint32_t count, bool distinct)
{
    struct testpeer_answer *answer =
        testpeer_call(peer, REQUEST_OF(SAMPLE, sample, Sample, .table = testpeer_text(table), .count = count,
                                       .distinct = distinct, TIMEOUT_OF(SAMPLE, 0)));
    if (answer->status != RP_OK)
        fail_msg("sample: %u %s", answer->status, answer->text);
    assert_int_equal(answer->reply->sample->n_key, count);
    return answer;
}

/* ---- what there is in the end ---- */

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const struct nomem_item *)a)->key, y = ((const struct nomem_item *)b)->key;
    return (x > y) - (x < y);
}

static void count_not_copied(void *to, const char *name, double value)
{
    if (strcmp(name, "not_copied") == 0)
        *(uint32_t *)to += (uint32_t)value;
}

void nomem_look(const struct broker *broker, struct state *out)
{
    memset(out, 0, sizeof *out);
    out->n_tables = broker->tables.n;
    out->n_sessions = broker->sessions.n_open;
    out->counter = broker->params.n_counters ? broker->params.counters[0].value : 0;
    for (uint32_t t = 0; t < out->n_tables; t++) {
        const struct table *table = &broker->tables.list[t];
        out->waiting[t] = (uint32_t)table->n_waiting_items;
        out->size[t] = table->in.size;
        out->inserts[t] = table->stats.total_inserts;
        out->samples[t] = table->stats.total_samples;
        out->charged[t] = table->limiter.samples;
        out->updates[t] = table->stats.updates;
        out->bytes[t] = table->bytes;
        out->orphaned[t] = table->stats.orphaned_picks;
        for (uint32_t i = 0; i < table->n_extensions; i++)
            table->extensions[i].ops->stats(table->extensions[i].self, count_not_copied, &out->not_copied);
        bool random = strcmp(table->name, "prio") == 0;
        for (uint32_t slot = 0; slot < table->in.high; slot++) {
            const struct item *item = &table->in.items[slot];
            if (item->span.n)
                out->item[t][out->n[t]++] =
                    (struct nomem_item){item->key, item->priority, random ? 0 : item->times_sampled};
        }
        qsort(out->item[t], out->n[t], sizeof out->item[t][0], by_key);
    }
}

void nomem_compare(const struct state *want, const struct state *got)
{
    assert_int_equal(got->n_sessions, want->n_sessions);
    assert_int_equal(got->counter, want->counter);
    for (uint32_t t = 0; t < want->n_tables; t++) {
        if (t == NOMEM_COPIES) {
            assert_int_equal(got->size[t] + got->not_copied, want->size[t]);
            continue;
        }
        if (got->size[t] != want->size[t] || got->inserts[t] != want->inserts[t] || got->samples[t] != want->samples[t])
            fail_msg("table %u: size %u %u inserts %u %u samples %u %u", t, got->size[t], want->size[t],
                     (unsigned)got->inserts[t], (unsigned)want->inserts[t], (unsigned)got->samples[t],
                     (unsigned)want->samples[t]);
        assert_int_equal(got->n[t], got->size[t]);
        assert_int_equal(got->waiting[t], want->waiting[t]);
        assert_int_equal(got->charged[t], want->charged[t]);
        assert_int_equal(got->updates[t], want->updates[t]);
        assert_int_equal(got->bytes[t], want->bytes[t]);
        assert_int_equal(got->orphaned[t], want->orphaned[t]);
        assert_memory_equal(got->item[t], want->item[t], sizeof want->item[t]);
    }
}
