/* One rule for each cause, in the order of enum why_cause; the first that applies speaks. */
#include "agent/view/why.h"

#include <dirent.h>
#include <json-c/json.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"
#include "replay.pb-c.h"

/* Parameters and reduce are polled all the time: only a long wait says something. */
#define POLL_NS UINT64_C(5000000000)
#define OTHERS_CORES 0.25
#define OTHERS_SHARE 0.5 /* of the processors */
#define BUSY_SHARE 0.95
#define RATE_MOST 1e15 /* bytes/s */

const char *const why_cause_names[WHY_CAUSES + 1] = {
    [WHY_SHARD] = "shard",           [WHY_BROKER] = "broker",     [WHY_DISK] = "disk",       [WHY_REDUCE] = "reduce",
    [WHY_PARAMETERS] = "parameters", [WHY_HOSTS] = "hosts",       [WHY_TOO_SMALL] = "size",  [WHY_MEMORY] = "memory",
    [WHY_OTHERS] = "others",         [WHY_NETWORK] = "network",   [WHY_FILLING] = "filling", [WHY_ACTORS] = "actors",
    [WHY_CORES] = "cores",           [WHY_LEARNERS] = "learners", [WHY_NOTHING] = "nothing", [WHY_IDLE] = "idle",
    [WHY_PAUSED] = "paused",         [WHY_UNREAD] = "unread",     [WHY_CAUSES] = "",
};
const char *const why_side_names[WHY_SIDES] = {
    [WHY_NOBODY] = "", [WHY_SIDE_ACTORS] = "actors", [WHY_SIDE_LEARNERS] = "learners"};

#define say(out, ...) snprintf((out)->text, sizeof(out)->text, __VA_ARGS__)
#define advise(out, ...) snprintf((out)->advice, sizeof(out)->advice, __VA_ARGS__)

/* ---- what the facts say ---- */

/* Without shares of a run: a wait of this length counts. */
#define LONG_NS UINT64_C(1000000000)
/* A side that waits for less than this share of its time does not limit anything. */
#define IDLE_SHARE 0.15
/* From this share on, one more of them would only wait as well. */
#define MOSTLY_IDLE 0.5

/* The broker's answers, as its messages. */
static const Replay__InfoReply *info_of(const struct why_facts *facts)
{
    return (const Replay__InfoReply *)facts->info;
}

static const Replay__WhyReply *waits_of(const struct why_facts *facts)
{
    static const Replay__WhyReply none = REPLAY__WHY_REPLY__INIT;
    return facts->waits ? (const Replay__WhyReply *)facts->waits : &none;
}

static const Replay__LimiterInfo *limiter_of(const Replay__TableInfo *table)
{
    static const Replay__LimiterInfo none = REPLAY__LIMITER_INFO__INIT;
    return table->limiter ? table->limiter : &none;
}

static const Replay__Shards *shards_of(const struct why_facts *facts)
{
    static const Replay__Shards none = REPLAY__SHARDS__INIT;
    return facts->info && info_of(facts)->shards ? info_of(facts)->shards : &none;
}

/* The kind of samples that wait for their own client: "unread". The broker's sentence says it (broker/sample/samples.c). Over shards,
 * samplers wait for permits instead of samples. */
static bool is_kind(const Replay__Wait *wait, const char *kind)
{
    if (strcmp(wait->kind, "sample") == 0 && strstr(wait->text, "read earlier replies"))
        return strcmp(kind, "unread") == 0;
    return strcmp(wait->kind, kind) == 0 || (strcmp(kind, "sample") == 0 && strcmp(wait->kind, "permit") == 0);
}

/* Returns the longest wait of a kind that lasts at least this long; table NULL: of any table. */
static const Replay__Wait *longest(const struct why_facts *facts, const char *kind, const char *table,
                                   uint64_t least_ns)
{
    const Replay__Wait *found = NULL;
    for (uint32_t i = 0; i < waits_of(facts)->n_waits; i++) {
        const Replay__Wait *wait = waits_of(facts)->waits[i];
        if (!is_kind(wait, kind) || wait->waited_ns < least_ns || (table && strcmp(wait->table, table) != 0))
            continue;
        if (!found || wait->waited_ns > found->waited_ns)
            found = wait;
    }
    return found;
}

static bool concerns(const Replay__Wait *wait, const char *kind, const char *table)
{
    return is_kind(wait, kind) && strcmp(wait->table, table) == 0;
}

/* Somebody who waits at several shards counts once. */
static uint32_t count_waits(const struct why_facts *facts, const char *kind, const char *table)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < waits_of(facts)->n_waits; i++) {
        const Replay__Wait *wait = waits_of(facts)->waits[i];
        bool again = !concerns(wait, kind, table);
        for (uint32_t k = 0; shards_of(facts)->n_shard && k < i && !again; k++)
            again = concerns(waits_of(facts)->waits[k], kind, table) &&
                    strcmp(waits_of(facts)->waits[k]->who, wait->who) == 0;
        n += !again;
    }
    return n;
}

/* Returns the table of that name; NULL: there is none. */
static const Replay__TableInfo *table_of(const struct why_facts *facts, const char *name)
{
    for (uint32_t i = 0; i < info_of(facts)->n_tables; i++)
        if (strcmp(info_of(facts)->tables[i]->name, name) == 0)
            return info_of(facts)->tables[i];
    return NULL;
}

/* True if a wait is long. With a run, its share of waiting counts; without, the length of the present wait. A sampler asks for its permits again and again,
 * at other shards: the length of one says nothing. */
static bool waits_long(double idle, const Replay__Wait *wait)
{
    return wait &&
           (isfinite(idle) ? idle >= IDLE_SHARE : wait->waited_ns >= LONG_NS || strcmp(wait->kind, "permit") == 0);
}

/* Returns the share of the time for which a side waits; NAN: not known. */
static double idle_of(const struct why_facts *facts, bool actors)
{
    return !facts->run ? NAN : actors ? facts->run->actor_idle : facts->run->learner_idle;
}

/* Writes who waits, and how much: "Learners wait 34% of the time", "3 samplers wait". Returns out. */
static const char *how_much(const struct why_facts *facts, bool actors, const char *table, char *out, size_t size)
{
    double idle = idle_of(facts, actors);
    uint32_t n = count_waits(facts, actors ? "insert" : "sample", table);
    if (isfinite(idle))
        snprintf(out, size, "%s wait %.0f%% of the time", actors ? "actors" : "learners", 100 * idle);
    else if (actors)
        snprintf(out, size, "%u writer%s", n, n == 1 ? " waits" : "s wait");
    else
        snprintf(out, size, "%u sampler%s", n, n == 1 ? " waits" : "s wait");
    out[0] = (char)(out[0] >= 'a' && out[0] <= 'z' ? out[0] - 32 : out[0]);
    return out;
}

/* The longest wait of a side, over all tables. */
static const Replay__Wait *side_waits(const struct why_facts *facts, bool actors)
{
    const Replay__Wait *wait = longest(facts, actors ? "insert" : "sample", NULL, 0);
    return waits_long(idle_of(facts, actors), wait) ? wait : NULL;
}

/* ---- one rule for each cause: true if it applies ---- */

static bool silent_broker(const struct why_facts *facts, struct why *out)
{
    if (facts->info)
        return false;
    out->bad = true;
    say(out, "The broker does not answer%s%s.", facts->silence && facts->silence[0] ? ": " : "",
        facts->silence ? facts->silence : "");
    advise(out,
           "Nothing is lost that it has confirmed if it keeps a journal; everybody connects again when it is back.");
    return true;
}

static bool slow_disk(const struct why_facts *facts, struct why *out)
{
    const Replay__Wait *wait = longest(facts, "journal", NULL, LONG_NS / 2);
    if (!wait)
        return false;
    out->bad = true;
    out->blocked = WHY_SIDE_ACTORS;
    say(out, "Inserts wait for the broker's disk: %s.", wait->text);
    advise(out, "Free space there or use a faster disk; journal: never asks less of it.");
    return true;
}

/* The others go on, but its items are not sampled, and writers keep what they have sent to it. */
static bool lost_shard(const struct why_facts *facts, struct why *out)
{
    const Replay__ShardInfo *lost = NULL;
    uint32_t n = 0;
    const Replay__Shards *shards = shards_of(facts);
    for (size_t i = 0; i < shards->n_shard; i++) {
        const Replay__ShardInfo *shard = shards->shard[i];
        n += shard->problem[0] != '\0';
        lost = lost || !shard->problem[0] ? lost : shard;
    }
    if (!lost)
        return false;
    out->bad = true;
    out->blocked = lost->shard == 0 ? WHY_SIDE_LEARNERS : WHY_NOBODY;
    char others[64] = "";
    if (n > 1)
        snprintf(others, sizeof others, " %u other%s not, either.", n - 1, n > 2 ? "s do" : " does");
    say(out, "%zu of %zu shards answer: %s.%s", shards->n_shard - n, shards->n_shard, lost->problem, others);
    advise(out, lost->shard == 0
                    ? "Counters and rounds of learners wait until shard 0 is back; its log says why it is away."
                    : "The others go on without its items; its log says why it is away.");
    return true;
}

static bool paused(const struct why_facts *facts, struct why *out)
{
    const Replay__InfoReply *info = info_of(facts);
    for (size_t i = 0; i < info->n_tables; i++) {
        const char *name = info->tables[i]->name;
        if (!limiter_of(info->tables[i])->paused)
            continue;
        snprintf(out->table, sizeof out->table, "%s", name);
        say(out, "Table '%.200s' is paused: inserts and samples wait.", name);
        if (facts->run)
            advise(out, "'replay-launch ask go' lets the run go on.");
        else
            advise(out, "'replay-ctl limiter %.200s go' lets it go on.", name);
        return true;
    }
    return false;
}

/* Processes of lost hosts are the cause if none of a side is left, or if the others wait for that side. */
static bool lost_host(const struct why_facts *facts, struct why *out)
{
    const struct why_run *run = facts->run;
    if (!run || !run->lost || run->stranded_actors + run->stranded_learners == 0)
        return false;
    bool none = (run->stranded_actors > 0 && run->actors == 0) || (run->stranded_learners > 0 && run->learners == 0);
    bool few_actors = run->stranded_actors > 0 && side_waits(facts, false);
    bool few_learners =
        run->stranded_learners > 0 && (side_waits(facts, true) || longest(facts, "reduce", NULL, POLL_NS));
    if (!none && !few_actors && !few_learners)
        return false;
    uint32_t all = run->actors + run->learners + run->stranded_actors + run->stranded_learners;
    out->bad = none;
    out->blocked = few_actors                                                ? WHY_SIDE_LEARNERS
                   : few_learners                                            ? WHY_SIDE_ACTORS
                   : run->stranded_actors > 0 && run->stranded_learners == 0 ? WHY_SIDE_ACTORS
                                                                             : WHY_SIDE_LEARNERS;
    say(out, "%u of %u actors and learners wait for hosts: %s.", run->stranded_actors + run->stranded_learners, all,
        run->lost);
    advise(out, "They start again when the host is back; the table of hosts says how each is.");
    return true;
}

static bool lost_learner(const struct why_facts *facts, struct why *out)
{
    const Replay__Wait *wait = longest(facts, "reduce", NULL, POLL_NS);
    if (!wait)
        return false;
    out->bad = true;
    out->blocked = WHY_SIDE_LEARNERS;
    say(out, "Learners wait for another learner: %s.", wait->text);
    advise(out, "A learner has died or hangs: its log says why. The others go on without it when its time is over "
                "(learners.round).");
    return true;
}

static bool no_parameters(const struct why_facts *facts, struct why *out)
{
    const Replay__Wait *wait = longest(facts, "params", NULL, POLL_NS);
    for (uint32_t i = 0; wait && i < info_of(facts)->n_slots; i++)
        if (info_of(facts)->slots[i]->version > 0)
            return false; /* somebody publishes: a poll for the next version is no trouble */
    if (!wait)
        return false;
    out->bad = true;
    out->blocked = WHY_SIDE_ACTORS;
    say(out, "Actors wait for their first parameters: %s.", wait->text);
    advise(out, "No learner has published anything: does one run, and does it use the same slot?");
    return true;
}

/* The first samples wait for min_size items. True also sets the table. */
static const Replay__TableInfo *short_of_items(const struct why_facts *facts)
{
    for (uint32_t i = 0; i < info_of(facts)->n_tables; i++) {
        const Replay__TableInfo *table = info_of(facts)->tables[i];
        if ((double)table->size < limiter_of(table)->min_size && longest(facts, "sample", table->name, 0))
            return table;
    }
    return NULL;
}

static bool too_small(const struct why_facts *facts, struct why *out)
{
    const Replay__TableInfo *table = short_of_items(facts);
    if (!table)
        return false;
    bool bound = limiter_of(table)->min_size > (double)table->max_size;
    bool evicts = table->evicted > 0 && table->size > 0;
    bool quiet = table->insert_rate <= 0 && info_of(facts)->server->session_count == 0 &&
                 longest(facts, "sample", table->name, POLL_NS);
    if (!bound && !evicts && !quiet)
        return false;
    format_buffer size, least;
    out->bad = true;
    out->blocked = WHY_SIDE_LEARNERS;
    snprintf(out->table, sizeof out->table, "%s", table->name);
    say(out, "Samples from table '%s' wait for its first %s items (limiter.min_size), and it %s %s.", table->name,
        format_count(least, (uint64_t)limiter_of(table)->min_size),
        quiet && !bound && !evicts ? "stays at" : "cannot have more than",
        format_count(size, bound ? table->max_size : table->size));
    if (bound)
        advise(out, "Lower limiter.min_size, or raise max_size.");
    else if (evicts)
        advise(
            out,
            "Items are evicted before there are enough: lower limiter.min_size, or raise memory_limit or max_bytes.");
    else
        advise(out, "Nobody inserts: start actors, or lower limiter.min_size.");
    return true;
}

static bool no_memory(const struct why_facts *facts, struct why *out)
{
    for (uint32_t i = 0; i < info_of(facts)->n_tables; i++) {
        const Replay__TableInfo *table = info_of(facts)->tables[i];
        const Replay__Wait *wait = longest(facts, "insert", table->name, 0);
        /* The broker's sentence says it (broker/table/room.c): the table's figures are of another moment. Otherwise the
         * limiter holds them, and no memory would help. */
        if (!waits_long(idle_of(facts, true), wait) ||
            !(strstr(wait->text, "needs memory") || strstr(wait->text, "needs room")))
            continue;
        out->blocked = WHY_SIDE_ACTORS;
        snprintf(out->table, sizeof out->table, "%s", table->name);
        say(out, "Inserts wait for memory: %s.", wait->text);
        advise(out, "Raise memory_limit, lower max_size, or let learners sample faster.");
        return true;
    }
    return false;
}

/* Learners that wait for inserts do read: then it is another client, and holds nobody back. */
static bool unread(const struct why_facts *facts, struct why *out)
{
    const Replay__Wait *wait = longest(facts, "unread", NULL, LONG_NS);
    if (!wait || longest(facts, "sample", NULL, LONG_NS) ||
        (!waits_long(idle_of(facts, false), wait) && !side_waits(facts, true)))
        return false;
    out->bad = true;
    out->blocked = WHY_SIDE_LEARNERS;
    snprintf(out->table, sizeof out->table, "%s", wait->table);
    say(out, "Client %.100s does not read its replies: %s.", wait->who, wait->text);
    advise(out, "It hangs, is stopped, or samples faster than it works: look at that process.");
    return true;
}

static bool taken_by_others(const struct why_facts *facts, struct why *out)
{
    const struct why_run *run = facts->run;
    if (!run || !(run->others >= OTHERS_CORES))
        return false;
    bool actors = side_waits(facts, true), learners = side_waits(facts, false);
    if (actors && !(learners && idle_of(facts, false) > idle_of(facts, true))) /* the side that waits more */
        out->blocked = WHY_SIDE_ACTORS;
    else if (learners)
        out->blocked = WHY_SIDE_LEARNERS;
    if (out->blocked != WHY_NOBODY && run->others < OTHERS_SHARE * run->cores)
        return false; /* they take too little to be why one side waits for the other */
    say(out, "Other programs take %.2g processors of this machine, and none is free.", run->others);
    advise(out, "The run gets faster when they end; plan.cores makes the plan count with fewer.");
    return true;
}

/* The writers that wait for data on its way to the broker. */
struct on_the_way {
    uint32_t writers;
    double rate; /* bytes/s that arrive from them */
};

static struct on_the_way count_on_the_way(const struct why_facts *facts)
{
    struct on_the_way sum = {0};
    for (uint32_t i = 0; i < waits_of(facts)->n_waits; i++) {
        const Replay__Wait *wait = waits_of(facts)->waits[i];
        bool counts = strcmp(wait->kind, "network") == 0 && wait->waited_ns >= LONG_NS;
        sum.writers += counts;
        /* numbers of another process may be anything */
        sum.rate += counts && wait->rate > 0.0 && wait->rate < RATE_MOST ? wait->rate : 0.0;
    }
    return sum;
}

/* A few writers that are far away do not limit a run whose learners have enough, or whose table takes no more. */
static bool full_network(const struct why_facts *facts, struct why *out)
{
    struct on_the_way way = count_on_the_way(facts);
    bool starves = longest(facts, "sample", NULL, 0), full = longest(facts, "insert", NULL, 0);
    if (way.writers == 0 || (full && !starves) || (!starves && 2 * way.writers < info_of(facts)->server->session_count))
        return false;
    format_buffer rate;
    out->blocked = WHY_SIDE_ACTORS;
    say(out, "The network is the bottleneck: %u writer%s for data on the way to the broker, which gets %s/s.",
        way.writers, way.writers == 1 ? " waits" : "s wait", format_bytes(rate, (uint64_t)way.rate));
    advise(out,
           "Fewer bytes help: a larger adder.chunk_length, or actors beside the broker; over a long way also a larger "
           "adder.buffer_items.");
    return true;
}

static bool filling(const struct why_facts *facts, struct why *out)
{
    const Replay__TableInfo *table = short_of_items(facts);
    if (!table)
        return false;
    format_buffer size, least;
    out->blocked = WHY_SIDE_LEARNERS;
    snprintf(out->table, sizeof out->table, "%s", table->name);
    say(out, "Table '%s' fills: learners begin when it has %s items, and it has %s.", table->name,
        format_count(least, (uint64_t)limiter_of(table)->min_size), format_count(size, table->size));
    if (table->insert_rate > 0)
        advise(out, "That takes about %.0f s more.",
               (limiter_of(table)->min_size - (double)table->size) / table->insert_rate);
    return true;
}

static bool side_limits(const struct why_facts *facts, struct why *out, bool actors)
{
    const Replay__Wait *wait = side_waits(facts, actors), *other = side_waits(facts, !actors);
    double idle = idle_of(facts, actors), others_idle = idle_of(facts, !actors);
    if (!wait ||
        (other && (isfinite(idle) && isfinite(others_idle) ? others_idle > idle : other->waited_ns > wait->waited_ns)))
        return false;
    char how[96];
    const Replay__TableInfo *table = table_of(facts, wait->table);
    out->blocked = actors ? WHY_SIDE_ACTORS : WHY_SIDE_LEARNERS;
    snprintf(out->table, sizeof out->table, "%s", wait->table);
    say(out, "%s for %s: %s.", how_much(facts, actors, wait->table, how, sizeof how), actors ? "samples" : "inserts",
        wait->text);
    bool busy = facts->run && facts->run->cores > 0 && facts->run->cpu >= BUSY_SHARE * facts->run->cores;
    bool ratio = table && strcmp(limiter_of(table)->kind, "sample_to_insert_ratio") == 0;
    double spi = ratio ? limiter_of(table)->samples_per_insert : 0; /* the others tell 1 */
    const char *more = actors ? "learner" : "actor";
    const Replay__Wait *same = longest(facts, actors ? "sample" : "insert", wait->table, 0);
    bool both = others_idle >= MOSTLY_IDLE || waits_long(others_idle, same);
    if (table && !(limiter_of(table)->batch > 0) && both) /* lag: both wait for a version */
        advise(out, "Inserts and samples of this table wait for each other: ask for smaller batches, lower "
                    "limiter.min_size, or move the limiter's bounds apart (a larger error_buffer; queue: max_size).");
    else if (busy && spi > 0)
        advise(out, "All processors are busy: more of them, or %s samples per insert than %.4g, would change that.",
               actors ? "fewer" : "more", spi);
    else if (spi > 0)
        advise(out, "The ratio of %.4g samples per insert holds them back: one more %s, or a %s ratio, would help.",
               spi, more, actors ? "lower" : "higher");
    else
        advise(out, "One more %s would help.", more);
    return true;
}

static bool actors_limit(const struct why_facts *facts, struct why *out)
{
    return side_limits(facts, out, false);
}

static bool learners_limit(const struct why_facts *facts, struct why *out)
{
    return side_limits(facts, out, true);
}

static bool full_cores(const struct why_facts *facts, struct why *out)
{
    const struct why_run *run = facts->run;
    if (!run || !(run->cores > 0) || run->cpu < BUSY_SHARE * run->cores)
        return false;
    say(out, "Nobody waits long: all %.3g processors are busy.", run->cores);
    advise(out, "More processors would make the run faster.");
    return true;
}

static bool nothing(const struct why_facts *facts, struct why *out)
{
    const struct why_run *run = facts->run;
    bool moves = false;
    for (uint32_t i = 0; i < info_of(facts)->n_tables; i++)
        moves |= info_of(facts)->tables[i]->insert_rate > 0 || info_of(facts)->tables[i]->sample_rate > 0;
    if (!moves)
        return false;
    if (run && isfinite(run->actor_idle) && isfinite(run->learner_idle))
        say(out, "Nobody waits long: actors wait %.0f%% and learners %.0f%% of the time.", 100 * run->actor_idle,
            100 * run->learner_idle);
    else
        say(out, "Nobody waits long.");
    return true;
}

static bool idle(const struct why_facts *facts, struct why *out)
{
    const Replay__ServerInfo *server = info_of(facts)->server;
    say(out, "Nothing is inserted or sampled, and nobody waits: %llu writer%s connected.",
        (unsigned long long)server->session_count, server->session_count == 1 ? " is" : "s are");
    return true;
}

static bool (*const rules[WHY_CAUSES])(const struct why_facts *facts, struct why *out) = {
    [WHY_SHARD] = lost_shard,        [WHY_BROKER] = silent_broker,
    [WHY_DISK] = slow_disk,          [WHY_HOSTS] = lost_host,
    [WHY_REDUCE] = lost_learner,     [WHY_PARAMETERS] = no_parameters,
    [WHY_TOO_SMALL] = too_small,     [WHY_MEMORY] = no_memory,
    [WHY_OTHERS] = taken_by_others,  [WHY_NETWORK] = full_network,
    [WHY_FILLING] = filling,         [WHY_ACTORS] = actors_limit,
    [WHY_LEARNERS] = learners_limit, [WHY_CORES] = full_cores,
    [WHY_NOTHING] = nothing,         [WHY_IDLE] = idle,
    [WHY_PAUSED] = paused,           [WHY_UNREAD] = unread,
};

bool why_limits(enum why_cause cause)
{
    return cause < WHY_CORES;
}

void why_explain(const struct why_facts *facts, struct why *out)
{
    for (int cause = 0; cause < WHY_CAUSES; cause++) {
        *out = (struct why){.cause = (enum why_cause)cause};
        if (rules[cause](facts, out))
            return;
    }
}

#undef say
#undef advise

/* ---- the verdict that a launcher has written into status.json ---- */

/* A launcher writes its status every second. */
#define FRESH_S 5.0
/* A launcher whose status is older is gone. */
#define GONE_S 60.0
/* Largest status.json that is read. */
#define STATUS_MOST (1u << 20)

static double age_s(double unix_s)
{
    return fabs(clock_unix_s() - unix_s);
}

const struct json_row why_rows[] = {
    JSON_WORD(struct why, cause, why_cause_names, WHY_CAUSES),
    JSON_WORD(struct why, blocked, why_side_names, WHY_NOBODY),
    JSON_ROW(struct why, bad),
    JSON_ROW_AS("blocked_table", struct why, table, 0),
    JSON_ROW_AS("waits", struct why, text, 0),
    JSON_ROW(struct why, advice),
    {0},
};
static const struct json_row state_rows[] = {JSON_ROW(struct why_state, phase),
                                             JSON_REAL(struct why_state, unix_s, NAN),
                                             JSON_ROW(struct why_state, reason),
                                             {0}};

bool why_read_status(const char *text, struct why *out)
{
    struct json_object *status = text ? json_tokener_parse(text) : NULL;
    json_map_read(status, why_rows, out);
    bool ok = out->cause < WHY_CAUSES && out->text[0] && age_s(json_map_number(status, "unix_s")) < FRESH_S;
    if (!ok)
        *out = (struct why){.cause = WHY_IDLE};
    json_object_put(status);
    return ok;
}

bool why_read_state(const char *text, struct why_state *out)
{
    struct json_object *status = text ? json_tokener_parse(text) : NULL;
    json_map_read(status, state_rows, out);
    out->ended =
        strcmp(out->phase, "done") == 0 || strcmp(out->phase, "stopped") == 0 || strcmp(out->phase, "failed") == 0;
    json_object_put(status);
    return out->phase[0] && isfinite(out->unix_s);
}

char *why_read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = file ? need_alloc(STATUS_MOST + 1) : NULL;
    if (file) {
        text[fread(text, 1, STATUS_MOST, file)] = '\0';
        fclose(file);
    }
    return text;
}

/* Returns the time of a run's status if the run lives, else 0. */
static double lives_since(const char *folder)
{
    char path[PATH_MAX];
    struct why_state state = {0};
    snprintf(path, sizeof path, "%s/status.json", folder);
    char *text = why_read_file(path);
    bool lives = why_read_state(text, &state) && !state.ended && age_s(state.unix_s) < GONE_S;
    free(text);
    return lives ? state.unix_s : 0.0;
}

bool why_find_living(const char *runs, char *out, size_t size)
{
    char path[PATH_MAX], latest[NAME_MAX + 1] = "";
    double newest = 0.0;
    snprintf(path, sizeof path, "%s/latest", runs);
    ssize_t n = readlink(path, latest, sizeof latest - 1);
    latest[n > 0 ? n : 0] = '\0';
    snprintf(path, sizeof path, "%s/latest/status.json", runs);
    if (n > 0 && access(path, F_OK) != 0) /* it is being measured, or waits for its turn */
        return false;
    DIR *dir = opendir(runs);
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "latest") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", runs, entry->d_name);
        double since = lives_since(path);
        if (since > 0.0 && strcmp(entry->d_name, latest) == 0)
            since = INFINITY;
        if (since > newest && strlen(path) < size) {
            newest = since;
            strcpy(out, path);
        }
    }
    if (dir)
        closedir(dir);
    return newest > 0.0;
}
