/* A copy of the files of a running broker that a broker can start with, here or on another machine.
 *
 * The broker makes a checkpoint; then all files are opened before any is copied, so that those it removes meanwhile stay readable.
 * Files of a journal grow: what they hold when they are opened is copied, which is a state that the broker had. The copy is loaded to
 * check it, and gets its name when it is complete. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "broker/checkpoint/loading.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/io.h"
#include "proto/base/need.h"
#include "replay/types.h"

/* A broker may remove a file between the list and its opening: so many times another list is made. */
#define TRIES 5

struct backup {
    uint64_t files, bytes, items;
};

static rp_status io_error(const char *what, const char *path, rp_error *err)
{
    return err_set(err, RP_IO, "cannot %s '%s': %s", what, path, strerror(errno));
}

/* Copies what the file holds now: it may grow. */
static rp_status copy_file(int from, const char *path, struct backup *sum, rp_error *err)
{
    struct stat about = {0};
    int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = to >= 0 && fstat(from, &about) == 0;
    for (off_t done = 0; ok && done < about.st_size;) {
        ssize_t n = sendfile(to, from, &done, (size_t)(about.st_size - done));
        if (n == 0)
            errno = EIO; /* the file has become shorter */
        ok = n > 0 || (n < 0 && errno == EINTR);
    }
    ok = ok && fsync(to) == 0;
    rp_status status = ok ? RP_OK : io_error("write", path, err);
    if (to >= 0 && close(to) != 0 && ok)
        status = io_error("write", path, err);
    sum->files++;
    sum->bytes += (uint64_t)about.st_size;
    return status;
}

static rp_status sync_folder(const char *path, rp_error *err)
{
    return io_sync_folder(path) ? RP_OK : io_error("sync", path, err);
}

/* Copies the files, all of which are opened first. RP_NOT_FOUND: the broker removed one of them before that. */
static rp_status copy_all(const struct folder *from, int *files, const char *to, struct backup *sum, rp_error *err)
{
    for (uint32_t i = 0; i < from->n_files; i++) {
        files[i] = folder_read(from, from->files[i].kind, from->files[i].number, err);
        if (files[i] < 0)
            return (rp_status)err->status;
    }
    for (uint32_t i = 0; i < from->n_files; i++) {
        char name[64], path[PATH_MAX];
        folder_name(from->files[i].kind, from->files[i].number, false, name, sizeof name);
        if (snprintf(path, sizeof path, "%s/%s", to, name) >= (int)sizeof path)
            return err_set(err, RP_INVALID_ARGUMENT, "the name '%s/%s' is too long", to, name);
        RP_TRY(copy_file(files[i], path, sum, err));
    }
    return sync_folder(to, err);
}

static rp_status copy_once(const char *path, const char *to, struct backup *sum, rp_error *err)
{
    struct folder from;
    rp_status status = folder_open(&from, path, false, err);
    if (status == RP_NOT_FOUND)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "the broker's folder '%s' is not here: run this on the broker's machine, in the directory in "
                       "which the broker was started",
                       path);
    if (status != RP_OK)
        return status;
    int *files = need_alloc((from.n_files + 1) * sizeof *files);
    memset(files, -1, (from.n_files + 1) * sizeof *files);
    status = copy_all(&from, files, to, sum, err);
    for (uint32_t i = 0; i < from.n_files; i++)
        if (files[i] >= 0)
            close(files[i]);
    free(files);
    folder_close(&from);
    return status;
}

/* Loads the copy as a broker would. */
static rp_status check_copy(const char *path, struct backup *sum, rp_error *err)
{
    struct folder folder;
    struct offline offline;
    RP_TRY(folder_open(&folder, path, false, err));
    offline_init(&offline);
    rp_status status = offline_load(&offline, &folder, 0, false, err);
    if (status == RP_OK)
        status = loading_read_chunks(&offline.loading, NULL, err);
    if (status == RP_OK)
        sum->items += loading_items(&offline.loading);
    offline_fini(&offline);
    folder_close(&folder);
    return status;
}

static rp_status copy_folder(const char *path, const char *to, struct backup *sum, rp_error *err)
{
    if (mkdir(to, 0700) != 0)
        return io_error("make", to, err);
    rp_status status = RP_NOT_FOUND;
    for (int i = 0; i < TRIES && status == RP_NOT_FOUND; i++)
        status = copy_once(path, to, sum, err);
    RP_TRY(status);
    return check_copy(to, sum, err);
}

static rp_status copy_shards(const Replay__CheckpointReply *made, const char *to, struct backup *sum, rp_error *err)
{
    if (!made->shards)
        return copy_folder(made->folder, to, sum, err);
    if (mkdir(to, 0700) != 0)
        return io_error("make", to, err);
    for (size_t i = 0; i < made->shards->n_shard; i++) {
        const Replay__ShardInfo *shard = made->shards->shard[i];
        char own[PATH_MAX];
        if (!shard->checkpoint)
            return err_set(err, RP_UNAVAILABLE, "shard %u made no checkpoint: %s", shard->shard, shard->problem);
        if (snprintf(own, sizeof own, "%s/shard-%u", to, shard->shard) >= (int)sizeof own)
            return err_set(err, RP_INVALID_ARGUMENT, "the name '%s' is too long", to);
        RP_TRY(copy_folder(shard->checkpoint->folder, own, sum, err));
    }
    return sync_folder(to, err);
}

static int report(const struct ctl *ctl, const char *to, const struct backup *sum)
{
    format_buffer items, bytes;
    if (!ctl->json) {
        printf("%s: %s items, %llu files, %s; a broker with 'folder: %s' starts with them\n", to,
               format_count(items, sum->items), (unsigned long long)sum->files, format_bytes(bytes, sum->bytes), to);
        return CTL_OK;
    }
    struct json json = {0};
    json_open(&json, '{');
    json_text(&json, "folder", to);
    json_count(&json, "items", sum->items);
    json_count(&json, "files", sum->files);
    json_count(&json, "bytes", sum->bytes);
    json_close(&json, '}');
    return ctl_print_text(&json);
}

int ctl_backup(struct ctl *ctl)
{
    char to[PATH_MAX], part[PATH_MAX + 8];
    struct stat about;
    rp_info *reply = NULL;
    struct backup sum = {0};
    int length = snprintf(to, sizeof to, "%s", ctl->argv[1]);
    if (length >= (int)sizeof to)
        return ctl_usage("the name of the folder is too long");
    while (length > 1 && to[length - 1] == '/')
        to[--length] = '\0';
    snprintf(part, sizeof part, "%s.part", to);
    if (lstat(to, &about) == 0)
        return ctl_usage("'%s' is there already: name a folder that is not", to);
    rp_status status =
        rp_admin_checkpoint(ctl->client, ctl->given & CTL_TIMEOUT ? ctl->timeout_ms : -1, &reply, &ctl->err);
    if (status == RP_OK)
        status = copy_shards(ADMIN_AS(CheckpointReply, reply), part, &sum, &ctl->err);
    rp_info_free(&reply);
    if (status == RP_OK && rename(part, to) != 0)
        status = io_error("rename to", to, &ctl->err);
    if (status == RP_OK)
        return sync_folder(dirname(part), &ctl->err) == RP_OK ? report(ctl, to, &sum) : ctl_fail(ctl);
    if (access(part, F_OK) == 0)
        fprintf(stderr, "replay-ctl: remove '%s', the incomplete copy, before the next backup\n", part);
    return ctl_fail(ctl);
}
