/* The folders of shards: an item stays with its shard, so their number stays as it is. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "broker/config/config.h"
#include "proto/base/error.h"

/* True if a broker has written there. */
static bool has_tables(const char *folder)
{
    DIR *files = opendir(folder);
    bool found = false;
    for (const struct dirent *file; files && !found && (file = readdir(files));) {
        const char *dot = strrchr(file->d_name, '.');
        found = dot && strcmp(dot, ".replay") == 0;
    }
    if (files)
        closedir(files);
    return found;
}

/* Returns the number of shards whose tables are in a folder: each has a folder shard-0, shard-1, ..., and at least one has written
 * into its own. 0: nobody has. */
static uint32_t count_parts(const char *folder)
{
    char path[4096 + 32];
    struct stat status;
    uint32_t n = 0;
    bool written = false;
    for (; n <= CONFIG_MAX_SHARDS; n++) {
        snprintf(path, sizeof path, "%.4096s/shard-%u", folder, n);
        if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode))
            break;
        written = written || has_tables(path);
    }
    return written ? n : has_tables(folder);
}

void config_make_parts(const struct broker_config *config, const char *folder)
{
    char path[4096 + 32];
    for (uint32_t i = 0; folder && i < config_shards(config); i++) {
        snprintf(path, sizeof path, "%.4096s/shard-%u", folder, i);
        for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
            *slash = '\0';
            mkdir(path, 0777);
            *slash = '/';
        }
        mkdir(path, 0777);
    }
}

rp_status config_check_folder(const struct broker_config *config, const char *folder, rp_error *err)
{
    uint32_t shards = config_shards(config), found = folder ? count_parts(folder) : 0;
    bool unread = config->checkpoint_load && strcmp(config->checkpoint_load, "none") == 0;
    if (found == 0 || found == shards || unread || config_shard_endpoint(config, 0))
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "the tables in '%s' are those of %u shard%s, and this broker has %u: an item stays with its shard. "
                   "Write shards: %u, name another folder, or write checkpoint.load: none to begin with empty tables",
                   folder, found, found == 1 ? "" : "s", shards, found);
}
