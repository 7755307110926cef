/* Compares two states that must be equal: a running broker and the image of its files, or a broker that was started from them. */
#ifndef TESTS_SUPPORT_TWIN_H
#define TESTS_SUPPORT_TWIN_H

#include "broker/disk/image.h"
#include "tests/support/embed.h"

struct twin_folder {
    char path[64];
};

void twin_folder_init(struct twin_folder *self);
/* Copies all files as they are now. */
void twin_folder_copy(struct twin_folder *self, const struct twin_folder *from);
void twin_folder_fini(struct twin_folder *self);
/* Returns the YAML of a journal in this folder and further keys, in static memory. */
const char *twin_config(const struct twin_folder *self, const char *more);

/* Ends a broker without closing sessions or emptying tables: the files stay as they are. */
void twin_kill(struct embed *embed);

/* Makes a checkpoint and waits until it is complete. */
void twin_checkpoint(struct embed *embed);

/* Reads the files. Fails the test if they are damaged. */
void twin_load(struct image *image, const struct twin_folder *folder);
/* Checks that broker and image have the same tables, limiters, sessions and parameters. Writes the progress of sessions first, so
 * that their numbers are current. */
void twin_check_image(struct embed *embed, const struct twin_folder *folder);
/* The same for a broker that was started from a copy of the other's files. */
void twin_check(struct embed *old, struct embed *new);
/* Empties a table of both in the order of its sampler, or of its remover, and checks that the keys are the same. For selectors
 * that are not random. */
void twin_drain(struct embed *old, struct embed *new, const char *table, bool remover);

#endif
