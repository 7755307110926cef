/* A folder of the test's own, below /tmp: set-up and teardown for cmocka, for one test or for a group. */
#ifndef TESTS_SUPPORT_TEMPDIR_H
#define TESTS_SUPPORT_TEMPDIR_H

/* Path of the folder; "" before tempdir_enter. */
extern char tempdir[64];

/* Makes the folder. */
int tempdir_enter(void **state);
/* Removes the folder and everything in it. */
int tempdir_leave(void **state);
/* A path in the folder; valid until the next call. */
const char *tempdir_at(const char *path);

#endif
