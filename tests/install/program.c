/* A program outside of the tree, built against the installed library by install_test.sh. */
#include <stdio.h>
#include <string.h>

#include "replay/plugin.h"
#include "replay/replay.h"

/* Nobody listens there: what counts is that the calls are found and the sentence comes back. */
static int connect_to_nobody(void)
{
    rp_error err = {0};
    rp_client_options options = {.struct_size = sizeof options, .name = "installed"};
    rp_client *client = rp_client_connect("tcp://127.0.0.1:1", &options, 50, &err);
    rp_client_destroy(&client);
    return err.status == RP_UNAVAILABLE && strstr(err.text, "no broker answers") ? 0 : 1;
}

int main(void)
{
    rp_writer *writer = NULL;
    printf("%s %s: %s\n", rp_version(), rp_status_name(RP_UNAVAILABLE), rp_status_text(RP_UNAVAILABLE));
    return connect_to_nobody() || rp_writer_destroy(&writer, 0, NULL) != RP_OK;
}
