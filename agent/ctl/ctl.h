/* replay-ctl, the command-line tool for people who look at a broker or operate it.
 *
 * The room agent/ctl owns its commands: show.c (info, why, items, sessions, params), operate.c (item, delete, reset, limiter,
 * trace), top.c, checkpoint.c and key.c (files without a broker), main.c (the command line), and ctl.c, what they share. It uses
 * agent/client/admin for what a broker says, and broker/checkpoint for files. One struct holds the command line; one row in main.c
 * describes each command. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "agent/client/admin/admin.h"
#include "agent/client/conn/client.h"
#include "agent/view/why.h"
#include "proto/base/json_map.h"
#include "proto/config/cli.h"
#include "replay/admin.h"

enum ctl_exit {
    CTL_OK = 0,
    CTL_REFUSED = 1, /* the broker said no, or the answer could not be written */
    CTL_USAGE = 2,
    CTL_SILENT = 3, /* no broker answers */
};

/* Options that only some commands have. */
enum ctl_option {
    CTL_LIMIT = 1,
    CTL_TABLE = 2,
    CTL_SAVE = 4,
    CTL_INTERVAL = 8,
    CTL_COUNT = 16,
    CTL_VALUES = 32,
    CTL_TIMEOUT = 64, /* an option of all commands */
    CTL_SECONDS = 512,
    CTL_SHARDS = 1024,
    CTL_KEYS = 256,  /* --role, --keys and --broker */
    CTL_FILES = 128, /* not an option: with arguments the command reads files, and needs no broker */
};

/* Largest number of keys in one delete. */
#define CTL_MAX_KEYS 256u

struct ctl {
    rp_client *client;
    int64_t timeout_ms;
    bool json;
    bool shards;    /* show each shard by itself, too */
    uint32_t given; /* ctl_option bits */
    uint64_t limit;
    const char *table;
    const char *save;
    int64_t interval_ns;
    uint64_t count;
    const char *seconds;
    uint32_t values;
    const char *role, *keys, *broker_key;
    char status[800]; /* status.json of the run that was named; "": only a broker was */
    uint32_t argc;    /* arguments of the command */
    char **argv;
    rp_info *reply; /* of the broker to the command; NULL: none yet. main frees it */
    rp_error err;   /* why the command fails */
};

/* What the command line says about where the broker is. */
struct ctl_place {
    const char *endpoint;
    const char *file; /* that replay-broker --endpoints-file wrote */
    const char *run;  /* of replay-launch: its folder, or its name below runs/ */
};

/* Finds the endpoints of the broker: free(*out). Returns 0, or the exit code of a problem that it has printed: the run that was named
 * has ended, for example. */
int ctl_find(struct ctl *ctl, const struct ctl_place *place, char **out);
/* Prints that no broker answers, and what may be the reason. Returns an exit code. */
int ctl_unreachable(struct ctl *ctl, const char *endpoint);
/* Explains what limits the broker, or the run that was named: then as its launcher does. */
void ctl_explain(const struct ctl *ctl, const rp_info *info, const rp_info *waits, struct why *out);
/* Prints ctl->err (as JSON with --json) and returns its exit code. */
int ctl_fail(const struct ctl *ctl);
/* The same for a mistake on the command line. */
#define ctl_usage(...) cli_usage("replay-ctl", __VA_ARGS__)
/* Prints an answer as a line of JSON. Returns an exit code. */
int ctl_print_json(const rp_info *info);
/* Prints the text of a writer as a line, and empties it. Returns an exit code. */
int ctl_print_text(struct json *json);
/* True if the path is, or will be, a file that is replaced as a whole; false for "-", devices, pipes and links. */
bool ctl_is_replaced(const char *path);
/* Writes the bytes to the standard output for "-", otherwise into the file. A file is there whole or, after a failure, as before. */
rp_status ctl_write(const char *path, const void *data, size_t size, rp_error *err);
/* Writes a time, in UTC. */
void ctl_when(char *out, size_t size, int64_t wall_ns);

/* Shards, which may be NULL in all of these: how many have not answered. */
uint32_t ctl_missing(const Replay__Shards *shards);
/* Writes whose totals a reply has: "4 shards", "3 of 4 shards"; "" for a broker that is alone. Returns out. */
const char *ctl_totals(const Replay__Shards *shards, char *out, size_t size);
/* Prints a sentence about each shard that has not answered: on the standard error beside a list or JSON. what: "items are". */
void ctl_print_missing(const Replay__Shards *shards, const char *what, FILE *out);
/* Prints which shards have another limiter than the others: a change has not reached them, or they were restarted since. */
void ctl_print_differences(const Replay__Shards *shards);
/* True if a limiter has a ratio of samples to inserts, and so a cursor that means something. limiter may be NULL. */
static inline bool ctl_has_ratio(const Replay__LimiterInfo *limiter)
{
    return limiter && strcmp(limiter->kind, "none") != 0 && strcmp(limiter->kind, "min_size") != 0;
}

/* show.c: prints a row for each shard and table; with servers also a row for each shard. */
void ctl_print_shards(const Replay__Shards *shards, bool servers);
void ctl_print_limiter(const Replay__LimiterInfo *limiter);

/* The commands. */
int ctl_info(struct ctl *ctl);
int ctl_why(struct ctl *ctl);
int ctl_items(struct ctl *ctl);
int ctl_sessions(struct ctl *ctl);
int ctl_params(struct ctl *ctl);
int ctl_item(struct ctl *ctl);
int ctl_delete(struct ctl *ctl);
int ctl_reset(struct ctl *ctl);
int ctl_limiter(struct ctl *ctl);
int ctl_trace(struct ctl *ctl);
int ctl_top(struct ctl *ctl);
int ctl_checkpoint(struct ctl *ctl); /* asks for a checkpoint, or inspects a folder */
int ctl_backup(struct ctl *ctl);     /* copies the files of a running broker */
int ctl_key(struct ctl *ctl);        /* key files and lists of keys, without a broker */
