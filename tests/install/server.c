/* A program outside of the tree with a broker in its own process, built against the installed library. */
#include <stdio.h>
#include <string.h>

#include "replay/replay.h"
#include "replay/server.h"

int main(void)
{
    rp_error err = {0};
    rp_log_set(NULL, NULL, RP_LOG_OFF);
    rp_server *server = rp_server_start(NULL, NULL, &err);
    if (!server) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    rp_client *client = rp_client_connect(rp_server_endpoint(server), NULL, 5000, &err);
    const char *table = client ? rp_client_table(client, 0) : NULL;
    int ok = table && strcmp(table, "replay") == 0;
    printf("%s %s\n", rp_version(), ok ? table : err.text);
    rp_client_destroy(&client);
    rp_server_stop(&server);
    return ok ? 0 : 1;
}
