/* Random operations of several sessions on an embedded broker, held against a table that is too simple to be wrong:
 * an array of items, the two rules of the limiter, and a list of sessions whose items wait. For selectors with a fixed
 * order everything is predicted; for random ones what was picked is taken from the broker and checked. In some rounds items are
 * members of groups: all but the first member of a complete group are hidden. */

#include "tests/support/naive.h"
#include "tests/support/testpeer.h"

#define SESSIONS 3u
#define ITEMS 4096u
#define WAITING 512u
#define DEADLINE_MS 1000 /* of groups */
#if defined(__SANITIZE_ADDRESS__)
#define ROUNDS 20u
#else
#define ROUNDS 80u
#endif

static const char *const kinds[] = {"fifo", "lifo", "min_heap", "max_heap", "uniform", "prioritized"};
#define FIXED_KINDS 4u

struct entry {
    uint64_t key;
    int64_t queued, stacked,
        touched; /* places in fifo, lifo and among equals of a heap; shown first: below 0, but for lifo */
    bool hidden;
    double priority;
    uint32_t times;
    uint64_t episode; /* session and its episode: writer's number << 32 | episode */
    uint64_t policy;
    uint64_t group;  /* key of its group; 0: none */
    uint64_t serial; /* of the group: another may have the same key */
    uint64_t
        place; /* among the members, in the order in which they came; also after others have left, in the order of all items */
    int64_t began_ms;
    bool closed; /* its group is */
};

struct waiting {
    uint64_t key;
    double priority;
    uint64_t episode, policy, group;
};

struct writer {
    struct testpeer *peer;
    struct waiting queue[WAITING];
    uint32_t count;
    uint64_t resolved, rejected;
    uint64_t number;  /* of this session */
    uint64_t counted; /* episode of its last insert; 0: none since the last reset */
};

struct model {
    struct rng rng;
    struct embed embed;
    struct testpeer *admin;
    uint32_t sampler, remover, max_size, max_times;
    struct naive_limiter limiter;
    struct entry items[ITEMS];
    uint32_t size;
    int64_t sequence, returned;
    uint64_t next_key;
    uint64_t next_writer;
    uint64_t episodes, unique; /* counts since the last reset */
    uint64_t updates, missing; /* of all updates */
    int64_t max_lag;           /* < 0: none */
    double batch;              /* limiter lag; otherwise 0 */
    bool ratio;                /* limiter sample_to_insert_ratio */
    uint64_t version, stale;
    uint32_t group_size; /* 0: no groups */
    bool deliver;        /* groups without all members, at their deadline */
    int64_t now_ms;
    uint64_t serial, complete, dropped, delivered;
    struct writer writers[SESSIONS];
    uint32_t ring[SESSIONS], n_ring; /* sessions whose items wait, the next one first */
    uint32_t look;                   /* session + 1: where the search for a member of an open group goes on; 0: first */
    uint64_t pending_evictions;      /* by a random remover: which ones is read from the broker */
};

/* ---- the naive table ---- */

static uint32_t find(const struct model *self, uint64_t key)
{
    uint32_t i = 0;
    while (i < self->size && self->items[i].key != key)
        i++;
    return i;
}

/* The next member of a group after one; ITEMS: there is none. */
static uint32_t next_member(const struct model *self, uint64_t serial, const struct entry *after)
{
    uint32_t best = ITEMS;
    for (uint32_t i = 0; i < self->size; i++)
        if (self->items[i].serial == serial && (!after || self->items[i].place > after->place) &&
            (best == ITEMS || self->items[i].place < self->items[best].place))
            best = i;
    return best;
}

static uint32_t members(const struct model *self, uint64_t serial)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->size; i++)
        n += self->items[i].serial == serial;
    return n;
}

/* The priority by which it is selected: the mean of its group. */
static double weight(const struct model *self, const struct entry *item)
{
    double mean = 0;
    if (!self->group_size)
        return item->priority;
    uint32_t n = members(self, item->serial);
    for (uint32_t i = next_member(self, item->serial, NULL); i < ITEMS;
         i = next_member(self, item->serial, &self->items[i]))
        mean += self->items[i].priority / n;
    return mean;
}

/* An item of the open group of a key, or ITEMS. */
static uint32_t find_open(const struct model *self, uint64_t group)
{
    uint32_t i = 0;
    while (i < self->size && !(self->items[i].group == group && !self->items[i].closed))
        i++;
    return group && i < self->size ? i : ITEMS;
}

/* The first member of the open group that began first, other than this one; or ITEMS. */
static uint32_t oldest_open(const struct model *self, uint64_t but)
{
    uint32_t best = ITEMS;
    for (uint32_t i = 0; i < self->size; i++)
        if (!self->items[i].closed && self->items[i].serial != but &&
            (best == ITEMS || self->items[i].place < self->items[best].place))
            best = i;
    return best;
}

static uint32_t count_open(const struct model *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->size; i++)
        n += !self->items[i].closed && next_member(self, self->items[i].serial, NULL) == i;
    return n;
}

static bool comes_first(const struct model *self, uint32_t kind, const struct entry *a, const struct entry *b)
{
    double first = weight(self, a), second = weight(self, b);
    switch (kind) {
    case 0:
        return a->queued < b->queued;
    case 1:
        return a->stacked > b->stacked;
    case 2:
        return first < second || (first == second && a->touched < b->touched);
    default:
        return first > second || (first == second && a->touched < b->touched);
    }
}

static uint32_t visible(const struct model *self)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->size; i++)
        n += !self->items[i].hidden;
    return n;
}

/* Of the items that are not hidden. */
static uint32_t first(const struct model *self, uint32_t kind)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < self->size; i++)
        if (!self->items[i].hidden &&
            (best == UINT32_MAX || comes_first(self, kind, &self->items[i], &self->items[best])))
            best = i;
    return best;
}

/* A member of an open group is let in; another begins a group, if there is room for all that groups still lack. */
static bool may_insert(const struct model *self, uint64_t group)
{
    if (!self->group_size)
        return naive_may_insert(&self->limiter) && self->size - visible(self) < self->max_size;
    struct naive_limiter later = self->limiter;
    uint32_t open = 0;
    for (uint32_t i = 0; i < self->size; i++)
        open += !self->items[i].closed;
    later.inserts += (count_open(self) + 1) * self->group_size - open - 1;
    return find_open(self, group) < ITEMS || (self->size == 0 && self->ratio) || naive_may_insert(&later);
}

/* With its group. Returns how many items go. */
static uint32_t take_out(struct model *self, uint32_t i)
{
    uint64_t serial = self->items[i].serial;
    uint32_t n = 0;
    for (uint32_t k = self->group_size ? 0 : i; k < self->size; k++)
        if (k == i || (self->group_size && self->items[k].serial == serial)) {
            self->items[k] = self->items[--self->size];
            n++;
            if (!self->group_size)
                break;
            k = i = UINT32_MAX; /* begins again */
        }
    self->limiter.deletes += n;
    return n;
}

/* Evictions by a random remover: whatever the broker no longer has. */
static void take_evicted(struct model *self)
{
    const struct table *table = embed_table(&self->embed, "t");
    for (uint32_t i = 0; i < self->size && self->pending_evictions;) {
        if (table_find(table, self->items[i].key) == UINT32_MAX) {
            self->items[i] = self->items[--self->size];
            self->pending_evictions--;
        } else {
            i++;
        }
    }
    assert_int_equal(self->pending_evictions, 0);
}

/* An item leaves with its group before it was sampled enough. The limiter gets back what they owe, unless others have paid for it: versions
 * with the limiter lag, and samples of other items otherwise. Returns how many go. */
static uint32_t forget(struct model *self, uint32_t i)
{
    struct naive_limiter *limiter = &self->limiter;
    double owed = limiter->samples_per_insert - (self->max_times == 1 ? 0 : self->items[i].times), least = 0;
    uint32_t n = take_out(self, i);
    for (uint32_t k = 0; k < self->size && self->batch > 0; k++)
        least += self->items[k].times == 0;
    if (self->ratio) /* the cursor of a table that reaches min_size */
        least = limiter->samples_per_insert * limiter->min_size;
    for (uint32_t k = 0; k < n; k++) {
        double room = naive_cursor(limiter) - least, back = owed < room ? owed : room;
        if (limiter->max_diff < 1e300 && back > 0)
            limiter->offset -= back;
    }
    return n;
}

static void take_all_stale(struct model *self)
{
    for (uint32_t i = 0; i < self->size && self->max_lag >= 0;) {
        if (self->items[i].policy + (uint64_t)self->max_lag < self->version) {
            self->stale += forget(self, i);
            i = 0;
        } else {
            i++;
        }
    }
}

/* A group takes no more members: it can be sampled. */
static void close_group(struct model *self, uint64_t serial)
{
    struct entry *leader = &self->items[next_member(self, serial, NULL)];
    for (uint32_t i = 0; i < self->size; i++)
        self->items[i].closed |= self->items[i].serial == serial;
    leader->hidden = false;
    leader->queued = leader->stacked = leader->touched = self->sequence++;
}

static void enter_group(struct model *self, struct entry *item)
{
    uint32_t other = find_open(self, item->group);
    item->serial = other < ITEMS ? self->items[other].serial : ++self->serial;
    item->began_ms = other < ITEMS ? self->items[other].began_ms : self->now_ms;
    item->hidden = true;
    item->closed = false;
    self->size++;
    if (members(self, item->serial) < self->group_size)
        return;
    self->complete++;
    close_group(self, item->serial);
}

static void end_groups(struct model *self)
{
    uint32_t oldest;
    while (self->group_size && (oldest = oldest_open(self, 0)) < ITEMS &&
           self->items[oldest].began_ms + DEADLINE_MS <= self->now_ms) {
        if (self->deliver) {
            self->delivered++;
            close_group(self, self->items[oldest].serial);
        } else {
            self->dropped++;
            forget(self, oldest);
        }
    }
}

static void insert(struct model *self, struct writer *writer, const struct waiting *item)
{
    writer->resolved++;
    if (!(item->priority >= 0) || find(self, item->key) < self->size) {
        writer->rejected++;
        return;
    }
    self->items[self->size] = (struct entry){.key = item->key,
                                             .queued = self->sequence,
                                             .stacked = self->sequence,
                                             .touched = self->sequence,
                                             .priority = item->priority,
                                             .episode = item->episode,
                                             .policy = item->policy,
                                             .group = item->group,
                                             .place = (uint64_t)self->sequence,
                                             .closed = true};
    if (self->max_lag >= 0 && item->policy > self->version + 1)
        self->items[self->size].policy = self->version; /* a version that does not exist */
    uint64_t own = 0;
    if (self->group_size) {
        enter_group(self, &self->items[self->size]);
        uint32_t open = find_open(self, item->group);
        own = open < ITEMS ? self->items[open].serial : 0;
    } else {
        self->size++;
    }
    self->episodes += item->episode != writer->counted;
    writer->counted = item->episode;
    self->sequence++;
    self->limiter.inserts++;
    take_all_stale(self);
    if (self->size - self->pending_evictions <= self->max_size)
        return;
    if (self->group_size && !visible(self)) {
        self->dropped++;
        forget(self, oldest_open(self, own));
    } else if (self->remover < FIXED_KINDS) {
        take_out(self, first(self, self->remover));
    } else {
        self->limiter.deletes++;
        self->pending_evictions++;
    }
}

static void pop(struct model *self, struct writer *writer)
{
    struct waiting item = writer->queue[0];
    memmove(writer->queue, writer->queue + 1, --writer->count * sizeof item);
    insert(self, writer, &item);
}

/* Returns the place of a session in the ring; n_ring: it is not there. */
static uint32_t ring_place(const struct model *self, uint32_t w)
{
    uint32_t i = 0;
    while (i < self->n_ring && self->ring[i] != w)
        i++;
    return i;
}

static void leave_ring(struct model *self, uint32_t w)
{
    uint32_t i = ring_place(self, w);
    if (i == self->n_ring)
        return;
    if (self->look == w + 1)
        self->look = self->ring[(i + 1) % self->n_ring] + 1;
    memmove(self->ring + i, self->ring + i + 1, (--self->n_ring - i) * sizeof self->ring[0]);
    if (!self->n_ring)
        self->look = 0;
}

static bool may_go_on(const struct model *self, uint32_t w)
{
    return may_insert(self, self->writers[w].queue[0].group);
}

/* Lets items in that wait, session by session: of the first one, or else of one that has a member of an open group. */
static void pump(struct model *self)
{
    for (uint32_t refused = 0; self->n_ring; refused = 0) {
        uint32_t w = self->ring[0];
        bool may = may_go_on(self, w);
        if (may) {
            memmove(self->ring, self->ring + 1, (self->n_ring - 1) * sizeof self->ring[0]);
            self->ring[self->n_ring - 1] = w;
        }
        for (; !may && self->group_size && refused < self->n_ring; refused++) {
            w = self->look ? self->look - 1 : self->ring[0];
            self->look = self->ring[(ring_place(self, w) + 1) % self->n_ring] + 1;
            may = may_go_on(self, w);
        }
        if (!may)
            return;
        struct writer *writer = &self->writers[w];
        pop(self, writer);
        while (writer->count && !(writer->queue[0].priority >= 0))
            pop(self, writer); /* rejections wait for their predecessors only */
        if (!writer->count)
            leave_ring(self, w);
    }
}

static void arrive(struct model *self, uint32_t w, const struct waiting *item)
{
    struct writer *writer = &self->writers[w];
    bool good = item->priority >= 0;
    if (writer->count || (good && !may_insert(self, item->group))) {
        assert_true(writer->count < WAITING);
        if (!writer->count)
            self->ring[self->n_ring++] = w;
        writer->queue[writer->count++] = *item;
        return;
    }
    insert(self, writer, item);
}

/* ---- operations on both ---- */

static double random_priority(struct model *self)
{
    return rng_below(&self->rng, 12) == 0 ? -1.0 : (double)rng_below(&self->rng, 8);
}

static uint64_t random_key(struct model *self)
{
    return self->size && rng_below(&self->rng, 8) ? self->items[rng_below(&self->rng, self->size)].key
                                                  : rng_below(&self->rng, self->next_key + 2);
}

static void begin_writer(struct model *self, uint32_t w, bool notices)
{
    self->writers[w] = (struct writer){.peer = testpeer_new(&self->embed), .number = ++self->next_writer};
    testpeer_open(self->writers[w].peer, notices);
}

static void do_insert(struct model *self)
{
    uint32_t w = (uint32_t)rng_below(&self->rng, SESSIONS), n = 1 + (uint32_t)rng_below(&self->rng, 4);
    struct writer *writer = &self->writers[w];
    if (writer->count > 40)
        return;
    uint32_t layout = testpeer_plain(writer->peer, "t");
    struct waiting list[4];
    uint64_t back = rng_below(&self->rng, 12);
    writer->peer->policy = self->version + 2 > back ? self->version + 2 - back : 0;
    if (rng_below(&self->rng, 20) == 0) /* a version that is far away */
        writer->peer->policy = self->version + rng_below(&self->rng, 3) * (uint64_t)INT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        /* Which keys a random remover has left, or a stale item that has yet to go, is known only afterwards: then all keys are
         * new. */
        bool again = self->remover < FIXED_KINDS && self->max_lag < 0 && rng_below(&self->rng, 6) == 0;
        list[i] = (struct waiting){again ? random_key(self) : self->next_key++, random_priority(self),
                                   writer->number << 32 | writer->peer->episode, writer->peer->policy,
                                   self->group_size ? 1 + rng_below(&self->rng, 5) : 0};
        writer->peer->group = list[i].group;
        const void *blocks[] = {&list[i].key};
        testpeer_item(writer->peer, layout, list[i].key, list[i].priority,
                      testpeer_chunk(writer->peer, 1, blocks, false), 0, 1);
    }
    writer->peer->oldest_chunk = writer->peer->chunk + 1;
    writer->peer->episode += rng_below(&self->rng, 3) == 0;
    testpeer_pushed(writer->peer);
    for (uint32_t i = 0; i < n; i++)
        arrive(self, w, &list[i]);
    pump(self);
}

static void count_sample(struct model *self, uint32_t i, const Replay__SampleReply *reply, uint32_t at)
{
    struct entry *item = &self->items[i];
    self->unique += item->times++ == 0;
    self->limiter.samples++;
    assert_int_equal(reply->key[at], item->key);
    assert_true(reply->priority[at] == item->priority);
    assert_int_equal(sampled_u32(reply->times_sampled, reply->n_times_sampled, at), item->times);
    if (self->group_size)
        assert_int_equal(reply->group[reply->n_group == 1 ? 0 : at], item->group);
    else
        assert_int_equal(reply->n_group, 0);
}

/* Counts a sample of an item, or of all members of its group, in the order in which they came. Returns how many. */
static uint32_t count_samples(struct model *self, uint32_t i, const struct testpeer_answer *answer, uint32_t at)
{
    uint64_t serial = self->items[i].serial;
    uint32_t n = 0, member = i;
    if (self->group_size)
        assert_int_equal(next_member(self, serial, NULL), i);
    do {
        sampled_check(answer, at + n);
        count_sample(self, member, answer->reply->sample, at + n++);
        member = self->group_size ? next_member(self, serial, &self->items[member]) : ITEMS;
    } while (member < ITEMS);
    if (self->max_times && self->items[i].times == self->max_times)
        take_out(self, i);
    return n;
}

static void do_sample(struct model *self)
{
    uint32_t unit = self->group_size ? self->group_size : 1;
    uint32_t want = unit * (1 + (uint32_t)rng_below(&self->rng, self->group_size ? 3 : 6)), got = 0, empty = 0;
    struct testpeer_answer *answer = testpeer_await(self->admin, testpeer_sample(self->admin, "t", want, 0, 0));
    const Replay__SampleReply *reply = answer->status == RP_OK ? answer->reply->sample : NULL;
    while (got + empty < want && visible(self)) {
        bool fixed = self->sampler < FIXED_KINDS;
        if (!fixed && (!reply || got == reply->n_key)) { /* of a random group, all members must be allowed */
            struct naive_limiter later = self->limiter;
            later.samples += unit - 1;
            assert_false(naive_may_sample(&later));
            break;
        }
        uint32_t i = fixed ? first(self, self->sampler) : find(self, reply->key[got]);
        assert_true(i < self->size && !self->items[i].hidden);
        struct naive_limiter later = self->limiter;
        uint32_t n = self->group_size ? members(self, self->items[i].serial) : 1;
        later.samples += n - 1;
        if (!naive_may_sample(&later))
            break;
        assert_non_null(reply);
        assert_true(got + n <= reply->n_key);
        if (self->sampler == 5) { /* an item of weight 0 is only picked where all are 0 */
            double total = 0;
            for (uint32_t k = 0; k < self->size; k++)
                total += self->items[k].hidden ? 0 : weight(self, &self->items[k]);
            assert_true(total == 0 || weight(self, &self->items[i]) > 0);
        }
        got += count_samples(self, i, answer, got);
        empty += unit - n;
    }
    if (got) {
        assert_int_equal(reply->n_key, got);
        assert_int_equal(reply->partial, got + empty < want);
    } else {
        assert_int_equal(answer->status, RP_DEADLINE_EXCEEDED);
        assert_true(strlen(answer->text) > 20);
    }
    pump(self);
}

static void do_update(struct model *self)
{
    uint32_t n = 1 + (uint32_t)rng_below(&self->rng, 4);
    uint64_t keys[4], applied = 0, missing = 0, refused = 0;
    double priorities[4];
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = random_key(self);
        priorities[i] = random_priority(self);
        uint32_t at = find(self, keys[i]);
        if (priorities[i] < 0) {
            refused++;
        } else if (at == self->size) {
            missing++;
        } else {
            applied++;
            self->items[at].priority = priorities[i];
            at = self->group_size ? next_member(self, self->items[at].serial, NULL) : at;
            self->items[at].touched = self->sequence++;
        }
    }
    const Replay__ChangeReply *reply = testpeer_update(self->admin, "t", n, keys, priorities)->reply->change;
    assert_int_equal(reply->applied, applied);
    assert_int_equal(reply->missing, missing);
    assert_int_equal(reply->refused, refused);
    self->updates += applied;
    self->missing += missing;
}

static void do_delete(struct model *self)
{
    uint32_t n = 1 + (uint32_t)rng_below(&self->rng, 3);
    uint64_t keys[3], applied = 0;
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = random_key(self);
        uint32_t at = find(self, keys[i]);
        if (at < self->size) {
            applied += take_out(self, at);
        }
    }
    assert_int_equal(testpeer_delete(self->admin, "t", n, keys)->reply->change->applied, applied);
    pump(self);
}

static void do_hide(struct model *self)
{
    take_evicted(self);
    if (!self->size || self->group_size)
        return;
    struct entry *item = &self->items[rng_below(&self->rng, self->size)];
    struct table *table = embed_table(&self->embed, "t");
    uint32_t slot = table_find(table, item->key);
    item->hidden = !item->hidden;
    if (item->hidden) {
        table_hide(table, slot, 0);
        return;
    }
    bool ahead = rng_below(&self->rng, 2);
    table_show(table, slot, ahead);
    embed_settle(&self->embed);
    item->queued = item->touched = ahead ? INT64_MIN + self->returned++ : self->sequence;
    item->stacked = self->sequence++;
    pump(self);
}

static void do_reset(struct model *self)
{
    assert_int_equal(testpeer_reset(self->admin, "t")->reply->change->applied, self->size);
    self->size = 0;
    self->limiter.inserts = self->limiter.samples = self->limiter.deletes = 0;
    self->limiter.offset = 0;
    self->episodes = self->unique = 0;
    for (uint32_t w = 0; w < SESSIONS; w++)
        self->writers[w].counted = 0;
    pump(self);
}

/* The parameters get a newer version, mostly the next one, and now and then one that is far away. Does not wait for the
 * answer. */
static void put_version(struct model *self)
{
    static const uint64_t jumps[] = {1, 1, 1, 1, 5, UINT64_C(1) << 40};
    uint64_t next = self->version + 1 + rng_below(&self->rng, jumps[rng_below(&self->rng, 6)]);
    double moves = (double)(next - self->version);
    testpeer_put(self->admin, "policy", next, "w", 1);
    self->version = next;
    self->limiter.offset -= fmax(0, fmin(naive_cursor(&self->limiter), moves * self->batch));
    take_all_stale(self);
}

static void do_version(struct model *self)
{
    put_version(self);
    embed_settle(&self->embed);
    pump(self);
}

/* Sometimes in the turn of a new version, when items that are stale by then have yet to leave. */
static void do_max_lag(struct model *self)
{
    uint64_t max_lag = rng_below(&self->rng, 8);
    if (rng_below(&self->rng, 2))
        put_version(self);
    rp_status status = TESTPEER_LIMIT(self->admin, "t", MAX_LAG, max_lag, (double)max_lag);
    embed_settle(&self->embed);
    bool known = self->max_lag >= 0,
         reached = !self->batch || self->limiter.min_size <= (double)(max_lag + 1) * self->batch;
    assert_int_equal(status, !known ? RP_FAILED_PRECONDITION : reached ? RP_OK : RP_INVALID_ARGUMENT);
    if (known && reached) {
        self->max_lag = (int64_t)max_lag;
        if (self->batch > 0)
            self->limiter.max_diff = (double)(max_lag + 1) * self->batch;
        take_all_stale(self);
    }
    pump(self);
}

/* Time passes: groups that lack members end. Never at the very moment of a deadline. */
static void do_time(struct model *self)
{
    int64_t ms = 7 * (1 + (int64_t)rng_below(&self->rng, 60));
    self->now_ms += ms;
    embed_advance(&self->embed, ms);
    end_groups(self);
    pump(self);
}

/* A session goes, with what waits of it, and another takes its place. */
static void do_replace_session(struct model *self)
{
    uint32_t w = (uint32_t)rng_below(&self->rng, SESSIONS);
    struct writer *writer = &self->writers[w];
    session_close(session_find(&self->embed.broker->sessions, writer->peer->session));
    testpeer_close(writer->peer);
    leave_ring(self, w);
    begin_writer(self, w, rng_below(&self->rng, 2));
}

/* ---- comparison ---- */

/* Items that wait only for their rejection hold no chunks. */
static uint64_t bad_waiting(const struct model *self)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < SESSIONS; w++)
        for (uint32_t i = 0; i < self->writers[w].count; i++)
            n += !(self->writers[w].queue[i].priority >= 0);
    return n;
}

/* Episodes of which the model has items. */
static uint64_t episodes_here(const struct model *self)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < self->size; i++) {
        uint32_t first = 0;
        while (self->items[first].episode != self->items[i].episode)
            first++;
        n += first == i;
    }
    return n;
}

static void compare(struct model *self)
{
    const struct table *table = embed_table(&self->embed, "t");
    take_evicted(self);
    assert_int_equal(table->in.size, self->size);
    assert_int_equal(table_visible(table), visible(self));
    assert_int_equal(table->limiter.inserts, self->limiter.inserts);
    assert_int_equal(table->limiter.samples, self->limiter.samples);
    assert_int_equal(table->limiter.deletes, self->limiter.deletes);
    double off = limiter_cursor(&table->limiter) - naive_cursor(&self->limiter);
    assert_true(off > -1e-6 && off < 1e-6);
    assert_int_equal(table->stats.stale, self->stale);
    assert_int_equal(table->in.groups.n_open, count_open(self));
    assert_int_equal(table->stats.complete_groups, self->complete);
    assert_int_equal(table->stats.short_groups, self->delivered);
    assert_int_equal(table->stats.dropped_groups, self->dropped);
    assert_int_equal(table->stats.unique_samples, self->unique);
    assert_int_equal(table->stats.updates, self->updates);
    assert_int_equal(table->stats.updates_missing, self->missing);
    assert_int_equal(table->stats.episodes, self->episodes);
    assert_int_equal(table_deleted_episodes(table), self->episodes - episodes_here(self));
    uint64_t waiting = 0;
    for (uint32_t i = 0; i < self->size; i++) {
        uint32_t slot = table_find(table, self->items[i].key);
        assert_true(slot != UINT32_MAX);
        assert_true(table->in.items[slot].priority == self->items[i].priority);
        assert_int_equal(item_is_hidden(&table->in.items[slot]), self->items[i].hidden);
        assert_int_equal(table->in.items[slot].times_sampled, self->items[i].times);
        assert_int_equal(table->in.items[slot].policy, self->items[i].policy);
    }
    for (uint32_t w = 0; w < SESSIONS; w++) {
        struct writer *writer = &self->writers[w];
        testpeer_heartbeat(writer->peer, writer->rejected, false);
        assert_int_equal(testpeer_resolved(writer->peer, 0), writer->resolved);
        assert_int_equal(writer->peer->credit->rejected[0], writer->rejected);
        waiting += writer->count;
        testpeer_forget(writer->peer);
    }
    assert_int_equal(table->n_waiting_items, waiting);
    /* Where the search for a member goes on depends on how often the broker has searched in vain. */
    self->look = 0;
    for (uint32_t w = 0; w < SESSIONS && table->look; w++)
        if (table->look->session->ordinal == self->writers[w].peer->ordinal)
            self->look = w + 1;
    assert_int_equal(table->bytes, 8 * (uint64_t)self->size);
    testpeer_settled(self->admin, 0);
    assert_int_equal(self->embed.broker->store.chunks, self->size + waiting - bad_waiting(self));
    testpeer_forget(self->admin);
}

/* ---- rounds ---- */

static void begin(struct model *self)
{
    const char *limiter = "{kind: none}";
    struct rng *rng = &self->rng;
    self->sampler = (uint32_t)rng_below(rng, 6);
    self->remover = (uint32_t)rng_below(rng, 6);
    self->max_size = 4 + (uint32_t)rng_below(rng, 30);
    self->max_times = rng_below(rng, 2) ? (uint32_t)rng_below(rng, 4) : 0;
    uint32_t min_size = 1 + (uint32_t)rng_below(rng, 4);
    double spi = 0.5 * (double)(1 + rng_below(rng, 6)), buffer = fmax(1, spi) + (double)rng_below(rng, 6);
    self->limiter =
        (struct naive_limiter){.samples_per_insert = 1, .min_size = 1, .min_diff = -1e300, .max_diff = 1e300};
    self->max_lag = (int64_t)rng_below(rng, 6) - 2;
    self->batch = 0;
    self->ratio = false;
    self->version = self->stale = 0;
    self->group_size = rng_below(rng, 2) ? 1 + (uint32_t)rng_below(rng, 4) : 0;
    self->deliver = self->group_size && rng_below(rng, 2);
    self->complete = self->dropped = self->delivered = self->updates = self->missing = 0;
    self->now_ms = 0;
    if (self->group_size) { /* who is picked and who goes decides how many members do */
        self->remover %= FIXED_KINDS;
        self->sampler %= self->deliver ? FIXED_KINDS : 6;
        buffer += 3 * self->group_size;
    }
    switch (rng_below(rng, 5)) {
    case 0:
        break;
    case 1:
        limiter = textf("{kind: min_size, min_size: %u}", min_size);
        self->limiter.min_size = min_size;
        break;
    case 2:
        limiter = textf("{kind: sample_to_insert_ratio, samples_per_insert: %g, min_size: %u, error_buffer: %g}", spi,
                        min_size, buffer);
        self->ratio = true;
        self->limiter.samples_per_insert = spi;
        self->limiter.min_size = min_size;
        self->limiter.min_diff = spi * min_size - buffer;
        self->limiter.max_diff = spi * min_size + buffer;
        break;
    case 3:
        self->batch = 1 + (double)rng_below(rng, self->max_size);
        if (self->group_size)
            self->batch = self->group_size * (1 + (double)rng_below(rng, self->max_size / self->group_size));
        self->max_lag = self->max_lag < 0 ? 0 : self->max_lag;
        self->remover %= FIXED_KINDS; /* what the limiter gets back depends on the items that are left */
        limiter = textf("{kind: lag, batch: %.0f}", self->batch);
        self->limiter.max_diff = (double)(self->max_lag + 1) * self->batch;
        self->limiter.lag = true;
        break;
    default:
        limiter = "{kind: queue}";
        self->limiter.min_diff = 0;
        self->limiter.max_diff = self->max_size;
    }
    const char *tables = textf(
        "  - {name: t, max_size: %u, max_times_sampled: %u, max_lag: %d, sampler: {kind: %s}, remover: {kind: %s}, "
        "limiter: %s, group: {size: %u, deadline: %dms, incomplete: %s}}\n",
        self->max_size, self->max_times, self->max_lag < 0 ? -1 : (int)self->max_lag, kinds[self->sampler],
        kinds[self->remover], limiter, self->group_size, DEADLINE_MS, self->deliver ? "deliver" : "drop");
    embed_start(&self->embed, tables, NULL);
    self->admin = testpeer_new(&self->embed);
    for (uint32_t w = 0; w < SESSIONS; w++)
        begin_writer(self, w, w == 1);
    self->size = self->n_ring = self->look = 0;
    self->episodes = self->unique = 0;
    self->next_key = 1;
}

TEST(random_operations_match_the_model)
{
    static struct model model;
    rng_seed(&model.rng, naive_seed(__func__));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        begin(&model);
        for (uint32_t step = 0; step < 150; step++) {
            uint64_t what = rng_below(&model.rng, 100);
            if (what < 45)
                do_insert(&model);
            else if (what < 75)
                do_sample(&model);
            else if (what < 83)
                do_update(&model);
            else if (what < 87)
                do_delete(&model);
            else if (what < 91)
                do_hide(&model);
            else if (what < 93)
                do_time(&model);
            else if (what < 95)
                do_version(&model);
            else if (what < 97)
                do_max_lag(&model);
            else if (what < 98)
                do_reset(&model);
            else
                do_replace_session(&model);
            compare(&model);
        }
        embed_stop(&model.embed); /* checks that everything is released */
    }
}
