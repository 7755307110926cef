/* Compares two states that must be equal: a running broker and its files, or a broker that was started from them. */
#pragma once

#include "broker/checkpoint/loading.h"
#include "tests/support/embed.h"

struct twin_folder {
    char path[64];
};

void twin_folder_init(struct twin_folder *self);
/* Makes a folder with copies of all files as they are now. */
void twin_folder_copy(struct twin_folder *self, const struct twin_folder *from);
/* The same into a folder that is there. */
void twin_folder_fill(const struct twin_folder *self, const struct twin_folder *from);
void twin_folder_fini(struct twin_folder *self);
/* Returns the YAML of a journal in this folder and further keys; the text is lent. */
const char *twin_config(const struct twin_folder *self, const char *more);

/* Ends a broker without closing sessions or emptying tables: the files stay as they are. */
void twin_kill(struct embed *embed);

/* Makes a checkpoint and waits until it is complete. */
void twin_checkpoint(struct embed *embed);

/* Files that were loaded into the tables and sessions of a broker without a folder: items have no chunks. */
struct twin_files {
    struct broker_config config;
    void *context;
    struct broker *broker;
    struct folder folder;
    struct durable_state state;
    struct loading loading;
};
/* Loads the files of embed's broker, whose configuration counts: all, or the checkpoint `number` without what came after it. Fails
 * the test if they are damaged. */
void twin_load(struct twin_files *self, const struct embed *embed, const struct twin_folder *folder, uint64_t number);
void twin_unload(struct twin_files *self);
/* Checks that the files have the tables and parameters of a broker, and the data of its chunks. */
void twin_check_loaded(const struct embed *embed, const struct twin_files *files);
/* Checks that broker and files have the same tables, limiters, sessions and parameters. Writes the progress of sessions first, so
 * that their numbers are current. */
void twin_check_files(struct embed *embed, const struct twin_folder *folder);
/* The same for a broker that was started from a copy of the other's files. */
void twin_check(struct embed *old, struct embed *new);
/* Empties a table of both in the order of its sampler, or of its remover, and checks that the keys are the same. For selectors
 * that are not random. */
void twin_drain(struct embed *old, struct embed *new, const char *table, bool remover);
