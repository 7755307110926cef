#include "proto/config/cli.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/config/schema.h"

#define FIRST_KEY 256 /* getopt's keys for options without a letter: this plus the row */

int cli_usage(const char *program, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s: ", program);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nTry '%s --help'.\n", program);
    return CLI_USAGE;
}

/* ---- help ---- */

void cli_print_options(const struct cli *cli, uint32_t who)
{
    bool letters = false;
    for (uint32_t i = 0; i < cli->n; i++)
        letters |= cli->options[i].help && cli->options[i].letter;
    for (uint32_t i = 0; i < cli->n; i++) {
        const struct cli_option *option = &cli->options[i];
        char left[64], letter[8] = "";
        if (!option->help || !(option->who & who))
            continue;
        if (letters && option->letter)
            snprintf(letter, sizeof letter, "-%c, ", option->letter);
        else if (letters)
            snprintf(letter, sizeof letter, "    ");
        snprintf(left, sizeof left, "%s--%s%s%s", letter, option->name, option->argument ? " " : "",
                 option->argument ? option->argument : "");
        printf("  %-*s%s%s\n", option->help[0] ? cli->width : 0, left, option->help[0] ? " " : "", option->help);
    }
}

/* ---- values ---- */

static int read_whole(const struct cli *cli, const struct cli_option *option, const char *text, void *field)
{
    int64_t value;
    bool whole = schema_parse_int(text, &value) && (double)value >= option->least;
    if (!whole && option->most <= 0)
        return cli_usage(cli->program, "--%s is '%s'; it needs a whole number from %.0f on", option->name, text,
                         option->least);
    if (!whole || (option->most > 0 && (double)value > option->most))
        return cli_usage(cli->program, "--%s is '%s'; it needs a whole number from %.0f to %.0f", option->name, text,
                         option->least, option->most);
    if (option->size == sizeof(uint32_t))
        *(uint32_t *)field = (uint32_t)value;
    else
        *(int64_t *)field = value;
    return CLI_GO_ON;
}

static int read_real(const struct cli *cli, const struct cli_option *option, const char *text, double *field)
{
    return schema_parse_real(text, field) && *field >= option->least && *field <= option->most
               ? CLI_GO_ON
               : cli_usage(cli->program, "--%s is '%s'; it needs a number from %g to %g", option->name, text,
                           option->least, option->most);
}

static int read_time(const struct cli *cli, const struct cli_option *option, const char *text, int64_t *field)
{
    bool time = schema_parse_time(text, field);
    if (time && (double)*field >= option->least)
        return CLI_GO_ON;
    if (time)
        return cli_usage(cli->program, "--%s is '%s'; it must be more than that, like 500ms or 3s", option->name, text);
    return cli_usage(cli->program, "--%s is '%s'; it needs a number with a unit, like 500ms or 3s", option->name, text);
}

static int read_level(const struct cli *cli, const struct cli_option *option, const char *name, int *field)
{
    *field = log_level_by_name(name);
    return *field >= 0 ? CLI_GO_ON
                       : cli_usage(cli->program, "--%s %s: use debug, info, warn, error or off", option->name, name);
}

int cli_override(const struct cli *cli, struct words *all, const char *prefix, const char *text)
{
    if (all->count == CLI_MAX_OVERRIDES)
        return cli_usage(cli->program, "more than %u values are set", CLI_MAX_OVERRIDES);
    words_addf(all, "%s%s", prefix, text);
    return CLI_GO_ON;
}

static int take(const struct cli *cli, const struct cli_option *option, const char *argument, void *target)
{
    void *field = (char *)target + option->at;
    switch (option->kind) {
    case CLI_SWITCH:
        *(bool *)field = true;
        return CLI_GO_ON;
    case CLI_TEXT:
        *(const char **)field = argument;
        return CLI_GO_ON;
    case CLI_WHOLE:
        return read_whole(cli, option, argument, field);
    case CLI_REAL:
        return read_real(cli, option, argument, field);
    case CLI_TIME:
        return read_time(cli, option, argument, field);
    case CLI_OVERRIDE:
        return cli_override(cli, field, option->prefix ? option->prefix : "", argument);
    case CLI_LEVEL:
        return read_level(cli, option, argument, field);
    case CLI_JSON:
        log_set_json(true);
        return CLI_GO_ON;
    case CLI_TAKE:
        return option->take(cli, option, argument, target);
    case CLI_HELP:
        cli->help(target);
        return EXIT_SUCCESS;
    case CLI_VERSION:
        printf("%s %s\n", cli->program, rp_version());
        return EXIT_SUCCESS;
    }
    return CLI_USAGE;
}

/* ---- the line ---- */

/* The rows in the words of getopt_long: n + 1 names, and up to two characters for each option with a letter. */
static void describe(const struct cli *cli, struct option *names, char *letters)
{
    for (uint32_t i = 0; i < cli->n; i++) {
        const struct cli_option *option = &cli->options[i];
        if (!(option->who & cli->who))
            continue;
        *names++ =
            (struct option){option->name, option->argument ? required_argument : no_argument, NULL, FIRST_KEY + (int)i};
        if (option->letter)
            *letters++ = option->letter;
        if (option->letter && option->argument)
            *letters++ = ':';
    }
    *names = (struct option){0};
    *letters = '\0';
}

/* The row of a key that getopt_long gives. */
static const struct cli_option *find(const struct cli *cli, int key)
{
    uint32_t row = 0;
    if (key >= FIRST_KEY)
        row = (uint32_t)(key - FIRST_KEY);
    else
        while (cli->options[row].letter != key || !(cli->options[row].who & cli->who))
            row++;
    return &cli->options[row];
}

/* getopt has printed what is wrong. */
static int suggest(const struct cli *cli, const char *word)
{
    const char *names[CLI_MAX_OPTIONS];
    char name[64];
    uint32_t n = 0;
    for (uint32_t i = 0; i < cli->n; i++)
        if (cli->options[i].who & cli->who)
            names[n++] = cli->options[i].name;
    const char *near = NULL;
    if (word && strncmp(word, "--", 2) == 0) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
        near = schema_nearest(name, names, n);
    }
    if (near && strcmp(near, name) != 0)
        fprintf(stderr, "Did you mean --%s? ", near);
    fprintf(stderr, "Try '%s --help'.\n", cli->program);
    return CLI_USAGE;
}

int cli_read(const struct cli *cli, void *target, int argc, char **argv)
{
    struct option names[CLI_MAX_OPTIONS + 1];
    char letters[2 * CLI_MAX_OPTIONS + 1];
    describe(cli, names, letters);
    for (int key; (key = getopt_long(argc, argv, letters, names, NULL)) != -1;) {
        if (key == '?')
            return suggest(cli, argv[optind - 1]);
        const struct cli_option *option = find(cli, key);
        int status = cli->admit ? cli->admit(option, target) : CLI_GO_ON;
        if (status == CLI_GO_ON)
            status = take(cli, option, optarg, target);
        if (status != CLI_GO_ON)
            return status;
    }
    return CLI_GO_ON;
}
