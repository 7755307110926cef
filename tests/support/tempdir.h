/* A folder of the test's own, below /tmp: set-up and teardown for cmocka, for one test or for a group. And whole files, there or
 * elsewhere: what cannot be written fails the test. Texts that are returned are lent (test.h). */
#pragma once

#include <sys/types.h>

#include "tests/support/test.h"

/* Path of the folder; "" before tempdir_enter. */
extern char tempdir[64];

/* Makes the folder. */
int tempdir_enter(void **state);
/* Mounts a file system of its own there, which this thread sees and those that it starts. false: this machine does not let it. */
bool tempdir_mount(const char *options);
/* Removes the folder and everything in it. */
int tempdir_leave(void **state);
/* A path in the folder. */
const char *tempdir_at(const char *path);

/* A path in another folder. */
const char *file_in(const char *folder, const char *name);
void file_write(const char *path, const void *bytes, size_t size, mode_t mode);
void file_put(const char *path, const char *text);
/* The contents of a file, terminated, which may be changed; "": there is none. */
char *file_bytes(const char *path, size_t *size);
char *file_text(const char *path);
bool file_exists(const char *path);
/* -1: there is no such file. */
int64_t file_size(const char *path);
/* The n paths that a pattern of the shell matches, sorted; valid until the next call. */
char **files_like(const char *pattern, uint32_t *n);
