#include "tests/support/statuses.h"

static void release(void *copy)
{
    status_fini(copy);
    free(copy);
}

struct status status_of(const char *members)
{
    struct status *copy = must(calloc(1, sizeof *copy));
    if (!status_from_json(textf("{%s}", members), copy))
        fail_msg("no status: %s", members);
    at_end(release, copy);
    return *copy;
}
