/* What replay-ctl makes of numbers and names. Its sources are not part of a library: they are compiled in here. */

#include "agent/ctl/ctl.c"
#include "agent/ctl/top.c"
#include "proto/base/format.h"
#include "tests/support/test.h"

TEST(bytes)
{
    format_buffer out;
    assert_string_equal(format_bytes(out, 0), "0 B");
    assert_string_equal(format_bytes(out, 999), "999 B");
    assert_string_equal(format_bytes(out, 1000), "1.0 KiB");
    assert_string_equal(format_bytes(out, 1024), "1 KiB");
    assert_string_equal(format_bytes(out, 1288490189), "1.2 GiB");
    assert_string_equal(format_bytes(out, UINT64_C(4) << 30), "4 GiB");
    assert_string_equal(format_bytes(out, UINT64_MAX), "16 EiB");
}

TEST(counts)
{
    format_buffer out;
    assert_string_equal(format_count(out, 0), "0");
    assert_string_equal(format_count(out, 999), "999");
    assert_string_equal(format_count(out, 1000), "1,000");
    assert_string_equal(format_count(out, 1234567), "1,234,567");
    assert_string_equal(format_count(out, UINT64_MAX), "18,446,744,073,709,551,615");
    assert_string_equal(format_rate(out, 3400000), "3.4 M/s");
    assert_string_equal(format_rate(out, 0), "0/s");
    assert_string_equal(format_rate(out, 0.001), "0/s");
    assert_string_equal(format_rate(out, 12.34), "12/s");
    assert_string_equal(format_rate(out, 999.6), "1.0 k/s");
    assert_string_equal(format_short(out, -2500), "-2.5 k");
    assert_string_equal(format_short(out, NAN), "?");
    assert_string_equal(format_short(out, -INFINITY), "-inf");
    assert_string_equal(format_bound(out, 1.7e308), "none");
    assert_string_equal(format_bound(out, -INFINITY), "none");
    assert_string_equal(format_bound(out, -12.5), "-12.5");
    assert_string_equal(format_percent(out, 1, 3), "33%");
    assert_string_equal(format_percent(out, 1, 0), "-");
}

TEST(times)
{
    format_buffer out;
    assert_string_equal(format_time(out, 0), "0 ns");
    assert_string_equal(format_time(out, 1500), "1.5 us");
    assert_string_equal(format_time(out, 3400000), "3.4 ms");
    assert_string_equal(format_time(out, UINT64_C(999600000)), "1.0 s");
    assert_string_equal(format_time(out, UINT64_C(12000000000)), "12 s");
    assert_string_equal(format_time(out, UINT64_C(59600000000)), "1 min");
    assert_string_equal(format_time(out, UINT64_C(125000000000)), "2 min 5 s");
    assert_string_equal(format_time(out, UINT64_C(12000) * 1000000000), "3 h 20 min");
    assert_string_equal(format_time(out, UINT64_C(352800) * 1000000000), "4 d 2 h");
    assert_non_null(format_time(out, UINT64_MAX));
    assert_string_equal(format_seconds(out, 0.25), "250 ms");
    assert_string_equal(format_seconds(out, -1), "-");
    assert_string_equal(format_seconds(out, NAN), "-");
}

TEST(clean)
{
    char out[32];
    assert_string_equal(format_clean(out, sizeof out, "a\x1b[2Jb\n\x7f"), "a?[2Jb??");
    assert_string_equal(format_clean(out, sizeof out,
                                     "\xc2\x9b"
                                     "2J \xc3\xbc"),
                        "?2J \xc3\xbc");
    assert_string_equal(format_clean(out, 4, "abcdef"), "abc");
    assert_string_equal(format_clean(out, sizeof out, NULL), "");
    assert_int_equal(format_width("gr\xc3\xbc\xc3\x9f"), 4);
    assert_int_equal(format_cut("gr\xc3\xbc\xc3\x9f", 3), 4);
    assert_int_equal(format_cut("ab", 3), 2);
}

TEST(grid)
{
    static const char *const titles[] = {"name", ">size", "note"};
    struct grid grid;
    grid_init(&grid, titles, 3);
    grid_add(&grid, "replay");
    grid_addf(&grid, "%d", 12345);
    grid_add(&grid, "full\n");
    grid_add(&grid, "\xc3\xbc");
    grid_addf(&grid, "%d", 1);
    grid_add(&grid, "");
    assert_string_equal(PRINTED(grid_print(&grid, printing)), "name     size  note\n"
                                                              "replay  12345  full?\n"
                                                              "\xc3\xbc           1  \n");
}

/* ---- top ---- */

struct view {
    Replay__InfoReply info;
    Replay__WhyReply why;
    Replay__ServerInfo server;
    Replay__TableInfo tables[20], *table_list[20];
    Replay__LimiterInfo limiter;
    Replay__Wait waits[50], *wait_list[50];
};

static struct top view_init(struct view *v, uint32_t n_tables, uint32_t n_waits)
{
    replay__info_reply__init(&v->info);
    replay__why_reply__init(&v->why);
    replay__server_info__init(&v->server);
    replay__limiter_info__init(&v->limiter);
    v->info.server = &v->server;
    v->info.n_tables = n_tables;
    v->info.tables = v->table_list;
    v->why.n_waits = n_waits;
    v->why.waits = v->wait_list;
    v->limiter.kind = (char *)"sample_to_insert_ratio";
    v->limiter.min_diff = -100;
    v->limiter.max_diff = 100;
    for (uint32_t i = 0; i < 20; i++) {
        replay__table_info__init(&v->tables[i]);
        v->tables[i].name =
            (char *)"a table with a rather long name \xc3\xbc\x1b[2J, longer than a line has room for in a terminal";
        v->tables[i].limiter = &v->limiter;
        v->tables[i].size = 50;
        v->tables[i].max_size = 100;
        v->table_list[i] = &v->tables[i];
    }
    for (uint32_t i = 0; i < 50; i++) {
        replay__wait__init(&v->waits[i]);
        v->waits[i].who = (char *)"actor-1";
        v->waits[i].kind = (char *)"insert";
        v->waits[i].text =
            (char *)"needs 5 more samples: the cursor, now 100, would be above max_diff 100 after the next insert";
        v->wait_list[i] = &v->waits[i];
    }
    return (struct top){
        .info = (rp_info *)&v->info, .waits = (rp_info *)&v->why, .fresh = true, .rate = -1, .endpoint = "here"};
}

static const char *rendered(struct top *top, uint32_t columns, uint32_t rows, struct tui *tui)
{
    struct text text = {0};
    render(&text, top, &(struct canvas_style){.columns = columns, .rows = rows}, tui);
    return owned(text.data);
}

/* Counts the lines and checks that none is too wide or could move the cursor. */
static uint32_t check_screen(const char *text, uint32_t columns)
{
    uint32_t lines = 0;
    assert_null(strchr(text, '\x1b'));
    for (const char *at = text; *at; lines++) {
        char line[2048];
        size_t size = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)size, at);
        if (columns)
            assert_true(format_width(line) <= columns);
        at += size + 1;
    }
    return lines;
}

TEST(top_fits)
{
    static const uint32_t sizes[][2] = {{80, 24}, {80, 10}, {40, 5}, {10, 1}, {200, 60}};
    struct view v;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct top top = view_init(&v, 20, 50);
        const char *text = rendered(&top, sizes[i][0], sizes[i][1], &(struct tui){0});
        uint32_t lines = check_screen(text, sizes[i][0]);
        assert_true(lines > 0 && lines <= sizes[i][1]);
        if (sizes[i][1] >= 24)
            HAS(text, "more tables", "needs 5 more samples", "more that wait");
    }
}

/* A terminal with more rows than a frame has lines: the footer stays, and keys lead to every session. */
TEST(top_in_a_high_terminal)
{
    static struct top_session sessions[500];
    struct view v;
    struct top top = view_init(&v, 20, 50);
    top.sessions = sessions;
    top.n_sessions = 500;
    for (uint32_t i = 0; i < 500; i++) {
        sessions[i] = (struct top_session){.ordinal = i, .rate = -1};
        snprintf(sessions[i].name, sizeof sessions[i].name, "actor-%u", i);
    }
    struct tui tui = {.keys = true, .quits = true, .first = 499};
    for (uint32_t rows = 100; rows <= 400; rows += 50) {
        tui.first = 499;
        const char *text = rendered(&top, 100, rows, &tui);
        assert_true(check_screen(text, 100) <= rows);
        HAS(text, "\n q quits", " actor-499 ");
    }
}

/* What has arrived is items, not messages; items that wait have used their credit. */
TEST(sessions)
{
    Replay__SessionInfo info = REPLAY__SESSION_INFO__INIT;
    Replay__SessionTable tables[2] = {REPLAY__SESSION_TABLE__INIT, REPLAY__SESSION_TABLE__INIT};
    Replay__SessionTable *list[2] = {&tables[0], &tables[1]};
    struct top_session session;
    info.name = (char *)"actor-1";
    info.received = 4; /* messages */
    info.n_tables = 2;
    info.tables = list;
    tables[0].resolved = 10;
    tables[0].waiting = 3;
    tables[0].allowed = 20;
    tables[1].resolved = tables[1].allowed = 5;
    tables[1].waiting = 1; /* a single item needs no credit */
    session_fill(&session, &info);
    assert_int_equal(session.received, 19);
    assert_int_equal(session.waiting, 4);
    assert_int_equal(session.credit, 7);
}

TEST(top_says)
{
    struct view v;
    struct top top = view_init(&v, 1, 0);
    v.server.memory_limit = 1000;
    v.server.memory_bytes = 500;
    v.limiter.cursor = 100;
    struct tui tui = {0};
    const char *text = rendered(&top, 0, 0, &tui);
    check_screen(text, 0);
    HAS(text, "memory    ##########..........", "items   ##########.......... 50%",
        "cursor  ...................o 100 in -100..100", "nothing waits");

    /* Figures that cannot be. */
    v.limiter.min_diff = v.limiter.max_diff = v.limiter.cursor = 5;
    v.tables[0].insert_rate = NAN;
    v.tables[0].mean_age_s = -INFINITY;
    v.tables[0].size = UINT64_MAX;
    check_screen(rendered(&top, 80, 24, &tui), 80);

    top.fresh = false;
    top.err = &(rp_error){.text = "no broker answers"};
    assert_has(rendered(&top, 80, 24, &tui), "no broker answers");
}

/* Totals that leave out a shard say so beside them. */
TEST(top_missing_shard)
{
    struct view v;
    Replay__ShardInfo rows[] = {REPLAY__SHARD_INFO__INIT, REPLAY__SHARD_INFO__INIT, REPLAY__SHARD_INFO__INIT};
    Replay__ShardInfo *list[] = {&rows[0], &rows[1], &rows[2]};
    Replay__Shards shards = REPLAY__SHARDS__INIT;
    char totals[40];
    shards.n_shard = 3;
    shards.shard = list;
    assert_string_equal(ctl_totals(NULL, totals, sizeof totals), "");
    assert_string_equal(ctl_totals(&shards, totals, sizeof totals), "3 shards");
    rows[1].problem = (char *)(uintptr_t) "away";
    assert_int_equal(ctl_missing(&shards), 1);
    assert_string_equal(ctl_totals(&shards, totals, sizeof totals), "2 of 3 shards");
    struct top top = view_init(&v, 1, 0);
    v.info.shards = &shards;
    struct tui tui = {0};
    assert_has(rendered(&top, 0, 0, &tui), "items in 2 of 3 shards");
    check_screen(rendered(&top, 40, 24, &tui), 40);
}

TEST(frame)
{
    struct text out = {0};
    terminal_add_frame(&out, "one\n\nlast");
    assert_string_equal(text_get(&out), "one\x1b[K\n\x1b[K\nlast\x1b[K\n\x1b[J");
    text_fini(&out);
}
