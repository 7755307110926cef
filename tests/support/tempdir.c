#include "tests/support/tempdir.h"

#include <stdio.h>
#include <stdlib.h>

char tempdir[64];

int tempdir_enter(void **state)
{
    (void)state;
    snprintf(tempdir, sizeof tempdir, "/tmp/replay-test-XXXXXX");
    return mkdtemp(tempdir) ? 0 : -1;
}

int tempdir_leave(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", tempdir);
    return system(command);
}

const char *tempdir_at(const char *path)
{
    static char out[256];
    snprintf(out, sizeof out, "%s/%s", tempdir, path);
    return out;
}
