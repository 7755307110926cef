/* A program outside of the tree, built against the installed library by install_test.sh. */
#include <stdio.h>

#include "replay/error.h"
#include "replay/plugin.h"
#include "replay/types.h"

int main(void)
{
    printf("%s %s: %s\n", rp_version(), rp_status_name(RP_UNAVAILABLE), rp_status_text(RP_UNAVAILABLE));
    return 0;
}
