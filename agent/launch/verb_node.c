/* replay-launch node: the agent that replay-launch starts on other machines. */
#include <stdio.h>
#include <unistd.h>

#include "agent/launch/host/node.h"
#include "agent/launch/launch.h"

int launch_node(struct launch *launch)
{
    rp_error err = {0};
    (void)launch;
    if (isatty(STDIN_FILENO)) {
        fprintf(stderr,
                LAUNCH_PROGRAM " node: replay-launch starts this on other machines by itself; nobody can type its "
                               "orders. See hosts in docs/CONFIG.md.\n");
        return EXIT_USAGE;
    }
    return node_run(STDIN_FILENO, STDOUT_FILENO, &err) == RP_OK ? 0 : launch_fail(&err);
}
