/* The folders of shards stand side by side: shard-0, shard-1, ... Started with another number of shards than before, a broker
 * would leave some of their data behind without a word. */
#include <libgen.h>
#include <stdio.h>

#include "broker/disk/folder.h"
#include "proto/base/error.h"

#define PATH_BYTES 4096u

/* True if the folder has segments or checkpoints. */
static bool has_files(const char *path)
{
    struct folder folder;
    rp_error ignored;
    if (folder_open(&folder, path, false, &ignored) != RP_OK)
        return false;
    bool found = folder.n_files > 0;
    folder_close(&folder);
    return found;
}

static bool has_shard(const char *path, uint32_t shard)
{
    char name[PATH_BYTES + 32];
    snprintf(name, sizeof name, "%s/shard-%u", path, shard);
    return has_files(name);
}

rp_status folder_check_shards(const char *path, uint32_t shards, rp_error *err)
{
    char copy[PATH_BYTES];
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy)
        return err_set(err, RP_INVALID_ARGUMENT, "the folder's name is too long");
    if (shards <= 1)
        return has_shard(path, 0)
                   ? err_set(err, RP_FAILED_PRECONDITION,
                             "the folder '%s' has the data of shards, and this broker is alone: start as many shards "
                             "as before, or use another folder",
                             path)
                   : RP_OK;
    const char *all = dirname(copy);
    if (has_shard(all, shards))
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the folder '%s' has the data of more than %u shards: start as many as before, or use another "
                       "folder",
                       all, shards);
    if (has_files(all))
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the folder '%s' has the data of a broker without shards: use another folder for %u shards", all,
                       shards);
    return RP_OK;
}
