/* Options as a table: each kind of value, options that a program does not have, and mistakes. */

#include "proto/base/log.h"
#include "proto/config/cli.h"
#include "tests/support/test.h"

struct target {
    bool on;
    const char *text;
    uint32_t small;
    int64_t large, time_ns;
    int level;
    struct words overrides;
    uint32_t seen;
};

static int take_even(const struct cli *cli, const struct cli_option *option, const char *argument, void *target)
{
    ((struct target *)target)->large = argument[0] - '0';
    return (argument[0] - '0') % 2 == 0 ? CLI_GO_ON : cli_usage(cli->program, "--%s is odd", option->name);
}

static int count(const struct cli_option *option, void *target)
{
    ((struct target *)target)->seen++;
    return option->who & 4 ? 7 : CLI_GO_ON;
}

static void print_help(const void *target)
{
    (void)target;
}

#define AT(field) CLI_AT(struct target, field)
static const struct cli_option rows[] = {
    {"on", 'o', NULL, "a switch", 1, CLI_SWITCH, AT(on)},
    {"text", 't', "TEXT", "a text", 1, CLI_TEXT, AT(text)},
    {"small", 0, "N", "at most 9", 1, CLI_WHOLE, AT(small), .most = 9},
    {"large", 0, "N", "any", 1, CLI_WHOLE, AT(large)},
    {"time", 0, "TIME", "a time", 1, CLI_TIME, AT(time_ns), .least = 1e6},
    {"log-level", 0, "LEVEL", "a level", 1, CLI_LEVEL, AT(level)},
    {"set", 0, "KEY=VALUE", "a value", 1, CLI_OVERRIDE, AT(overrides)},
    {"seed", 0, "N", "a value", 1, CLI_OVERRIDE, AT(overrides), .prefix = "seed="},
    {"even", 0, "N", "a digit", 1, CLI_TAKE, .take = take_even},
    {"other", 0, NULL, "of another program", 2, CLI_SWITCH, AT(on)},
    {"refused", 0, NULL, "not now", 5, CLI_SWITCH, AT(on)},
    CLI_HELP_AND_VERSION(1),
};
static const struct cli cli = {.program = "test",
                               .options = rows,
                               .n = sizeof rows / sizeof rows[0],
                               .who = 1,
                               .help = print_help,
                               .admit = count};

/* Reads a line of at most seven words. */
static int read_line(struct target *target, const char *const words[7])
{
    char *argv[9] = {(char *)"test"};
    int argc = 1;
    for (uint32_t i = 0; i < 7 && words[i]; i++)
        argv[argc++] = (char *)words[i];
    *target = (struct target){.large = -1};
    optind = 0;
    return cli_read(&cli, target, argc, argv);
}

#define READ(target, ...) read_line(target, (const char *const[7]){__VA_ARGS__})

TEST(values)
{
    struct target t;
    assert_int_equal(READ(&t, "--on", "-tx", "--small=9", "--large", "5000000000", "word"), CLI_GO_ON);
    assert_true(t.on);
    assert_string_equal(t.text, "x");
    assert_int_equal(t.small, 9);
    assert_int_equal(t.large, 5000000000);
    assert_int_equal(t.seen, 4);
    assert_int_equal(optind, 6);
    assert_int_equal(READ(&t, "--tim", "2s", "--log-level", "warn", "--even", "4"), CLI_GO_ON);
    assert_int_equal(t.time_ns, 2000000000);
    assert_int_equal(t.level, LEVEL_WARN);
    assert_int_equal(t.large, 4);
    assert_int_equal(READ(&t, "--set", "a=1", "--seed", "3"), CLI_GO_ON);
    assert_int_equal(t.overrides.count, 2);
    assert_string_equal(t.overrides.list[0], "a=1");
    assert_string_equal(t.overrides.list[1], "seed=3");
    assert_null(t.overrides.list[2]);
    words_clear(&t.overrides);
    assert_int_equal(t.overrides.count, 0);
}

TEST(mistakes)
{
    static const char *const lines[][2] = {
        {"--small", "10"}, {"--small", "-1"},         {"--large", "x"}, {"--time", "2"},
        {"--time", "1us"}, {"--log-level", "louder"}, {"--even", "3"},  {"--other", NULL},
        {"--txet", "x"},   {"--nonesuch", NULL},      {"-x", NULL},     {"--text", NULL},
    };
    struct target t;
    for (uint32_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        assert_int_equal(READ(&t, lines[i][0], lines[i][1]), CLI_USAGE);
    assert_int_equal(READ(&t, "--refused"), 7);
    assert_false(t.on);
    assert_int_equal(READ(&t, "--help", "--nonesuch"), 0);
    assert_int_equal(READ(&t, "--version"), 0);
}

TEST(overrides_are_bounded)
{
    struct words all = {0};
    for (uint32_t i = 0; i < CLI_MAX_OVERRIDES; i++)
        assert_int_equal(cli_override(&cli, &all, "", "a=1"), CLI_GO_ON);
    assert_int_equal(cli_override(&cli, &all, "", "a=1"), CLI_USAGE);
    assert_null(all.list[CLI_MAX_OVERRIDES]);
    words_clear(&all);
}
