/* See shards.h: a shard's side. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "broker/shards/shards_impl.h"
#include "proto/base/error.h"

static rp_status no_parent(rp_error *err)
{
    return err_set(err, RP_CANCELLED, "the parent of this shard has ended, or a signal has come");
}

static rp_status tell(int link, const char *const own[SHARD_ENDPOINTS], rp_error *err)
{
    char line[LINE_BYTES];
    size_t used = 0;
    for (uint32_t i = 0; i < SHARD_ENDPOINTS && used < sizeof line; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%c", own[i][0] ? own[i] : "-",
                                 i + 1 < SHARD_ENDPOINTS ? SHARD_SEPARATOR[0] : '\n');
    if (used >= sizeof line)
        return err_set(err, RP_INVALID_ARGUMENT, "the endpoints of this shard are too long");
    return send(link, line, used, MSG_NOSIGNAL) == (ssize_t)used ? RP_OK : no_parent(err);
}

/* Reads a line of any length. NULL: the parent is gone, a signal has come that ends this process, or no memory. */
static char *read_line(int link)
{
    char *line = NULL;
    size_t filled = 0, capacity = 0;
    for (;;) {
        if (capacity - filled < 2) {
            char *grown = realloc(line, capacity += 4096);
            if (!grown)
                break;
            line = grown;
        }
        ssize_t got = recv(link, line + filled, capacity - filled - 1, 0);
        if (got <= 0)
            break;
        filled += (size_t)got;
        line[filled] = '\0';
        if (line[filled - 1] == '\n')
            return line;
    }
    free(line);
    return NULL;
}

static void free_list(char **list, uint32_t n)
{
    for (uint32_t i = 0; list && i < n; i++)
        free(list[i]);
    free(list);
}

rp_status shards_join(int link, const char *const own[SHARD_ENDPOINTS], uint32_t n, char ***service, rp_error *err)
{
    sigset_t checkpoint, before;
    RP_TRY(tell(link, own, err));
    sigemptyset(&checkpoint);
    sigaddset(&checkpoint, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &checkpoint, &before); /* it ends nothing: it is for later */
    char *line = read_line(link), *rest = NULL;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!line)
        return no_parent(err);
    char **list = calloc(n, sizeof *list);
    uint32_t found = 0;
    for (char *word = strtok_r(line, SHARD_SEPARATOR "\n", &rest); list && word && found < n;
         word = strtok_r(NULL, SHARD_SEPARATOR "\n", &rest))
        if (!(list[found++] = strdup(word)))
            break;
    free(line);
    if (list && found == n && list[n - 1]) {
        *service = list;
        return RP_OK;
    }
    free_list(list, n);
    return err_set(err, RP_NO_MEMORY, "no memory for the endpoints of %u shards", n);
}

bool shards_pin(uint32_t shard)
{
    cpu_set_t allowed, own;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    int wanted = (int)(shard % (uint32_t)CPU_COUNT(&allowed));
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed) && wanted-- == 0) {
            CPU_ZERO(&own);
            CPU_SET(core, &own);
            return pthread_setaffinity_np(pthread_self(), sizeof own, &own) == 0;
        }
    return false;
}
