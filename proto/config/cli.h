/* Options of a command line as data: one table of rows drives reading, the help text and the answer to a mistake. Numbers
 * and times are written as in a configuration. Command lines mean what getopt_long makes of them: --name=value,
 * abbreviations, "--". */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/need.h"
#include "replay/error.h"

/* The exit status after a mistake on the command line, of every program. */
#define CLI_USAGE 2
/* What readers return while the program should go on; any other value is the exit status. */
#define CLI_GO_ON (-1)
#define CLI_MAX_OPTIONS 32u
#define CLI_MAX_OVERRIDES 128u

enum cli_kind {
    CLI_SWITCH,   /* bool: becomes true */
    CLI_TEXT,     /* const char *: borrows the argument */
    CLI_WHOLE,    /* uint32_t, int64_t or uint64_t: a whole number from `least` to `most` */
    CLI_REAL,     /* double: a number from `least` to `most` */
    CLI_TIME,     /* int64_t, in ns: at least `least` */
    CLI_OVERRIDE, /* struct words: appends prefix and argument */
    CLI_LEVEL,    /* int: an enum log_level */
    CLI_JSON,     /* makes log lines JSON objects */
    CLI_TAKE,     /* whatever `take` does */
    CLI_HELP,     /* prints the program's help and ends the program */
    CLI_VERSION,  /* prints the version and ends the program */
};

struct cli;

struct cli_option {
    const char *name;
    char letter;          /* 0: none */
    const char *argument; /* what the help calls it; NULL: the option has none */
    const char *help;     /* NULL: the help does not show the option */
    uint32_t who;         /* bits of the programs or commands that have the option */
    enum cli_kind kind;
    size_t at, size;    /* the field of the target: CLI_AT */
    double least, most; /* bounds of the value; a `most` of 0 means any */
    const char *prefix; /* for CLI_OVERRIDE: "seed=" */
    int (*take)(const struct cli *cli, const struct cli_option *option, const char *argument, void *target);
};

/* The part of a row that names a field of the target. */
#define CLI_AT(type, field) .at = offsetof(type, field), .size = sizeof(((type *)0)->field)

/* A row for every program that writes a log. */
#define CLI_LOG_JSON(who_)                                                                                             \
    {                                                                                                                  \
        .name = "log-json", .help = "each log line as a JSON object (the same as REPLAY_LOG_JSON=1)", .who = (who_),   \
        .kind = CLI_JSON                                                                                               \
    }

/* The last two rows of most tables. */
#define CLI_HELP_AND_VERSION(who_)                                                                                     \
    {.name = "help", .letter = 'h', .help = "this text", .who = (who_), .kind = CLI_HELP},                             \
    {                                                                                                                  \
        .name = "version", .help = "the version", .who = (who_), .kind = CLI_VERSION                                   \
    }

struct cli {
    const char *program; /* as messages call it */
    const struct cli_option *options;
    uint32_t n;                       /* at most CLI_MAX_OPTIONS */
    uint32_t who;                     /* options without one of these bits do not exist */
    int width;                        /* columns of the help text for names and arguments */
    void (*help)(const void *target); /* for CLI_HELP */
    /* Asked before each option is read, if not NULL: CLI_GO_ON, or the exit status. */
    int (*admit)(const struct cli_option *option, void *target);
};

/* Reads all options into the target. CLI_GO_ON: optind is the first argument that is not an option. Otherwise the exit
 * status: help or version or a mistake was printed. */
int cli_read(const struct cli *cli, void *target, int argc, char **argv);
/* Prints the options that have one of the bits of `who`, one on a line. */
void cli_print_options(const struct cli *cli, uint32_t who);
/* Prints "PROGRAM: ..." and "Try 'PROGRAM --help'."; returns CLI_USAGE. */
int cli_usage(const char *program, const char *format, ...) RP_PRINTF(2, 3);

/* Appends prefix and text, "key=value", which replaces a value of a configuration file; CLI_GO_ON, or the exit status. */
int cli_override(const struct cli *cli, struct words *all, const char *prefix, const char *text);
