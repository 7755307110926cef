/* The machine of a node agent: its work folder, and what the launcher wants to know about it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/launch/host/node_impl.h"
#include "agent/launch/process/machine.h"
#include "proto/base/error.h"

#define PREFIX "replay-node-"
#define LOCK ".lock"
#define RANDOM "XXXXXX"
#define ATTEMPTS 8

/* ---- work folder ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    if (at->level != 1 || strcmp(path + at->base, LOCK) != 0)
        remove(path);
    return 0;
}

/* Removes a work folder. Its lock goes last: a folder without one is nobody's to sweep, and would stay. */
static void remove_tree(const char *path)
{
    char lock[700];
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    snprintf(lock, sizeof lock, "%s/" LOCK, path);
    unlink(lock);
    rmdir(path);
}

/* "replay-node-HOST-": agents of several machines may share a folder in which a lock holds on its own machine alone. */
static void make_prefix(char *out, size_t size)
{
    char hostname[65] = "";
    gethostname(hostname, sizeof hostname - 1);
    for (char *c = hostname; *c; c++)
        *c = *c == '/' ? '_' : *c;
    snprintf(out, size, PREFIX "%s-", hostname);
}

/* Locks the folder as long as this process lives. -1: it is in use, being removed, or not ours to look at. */
static int lock_folder(const char *folder, int flags)
{
    char path[700];
    snprintf(path, sizeof path, "%s/" LOCK, folder);
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
    struct stat info;
    bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    int error = errno;
    if (locked && fstat(fd, &info) == 0 && info.st_nlink > 0)
        return fd;
    if (locked) /* another agent has removed the folder meanwhile */
        error = EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

/* Removes folders of this machine's node agents that were killed: keys and weights lie in them. A folder without a lock may be one that is being
 * made. */
static void sweep(const char *parent, const char *prefix)
{
    size_t length = strlen(prefix);
    DIR *folder = opendir(parent);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[600];
        struct stat info;
        if (strncmp(entry->d_name, prefix, length) != 0 || strlen(entry->d_name) != length + strlen(RANDOM) ||
            fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(info.st_mode) ||
            info.st_uid != geteuid())
            continue;
        snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
        int lock = lock_folder(path, 0);
        if (lock < 0)
            continue;
        remove_tree(path);
        close(lock);
    }
    if (folder)
        closedir(folder);
}

static uint64_t free_bytes(const char *folder)
{
    struct statvfs info;
    return folder && folder[0] == '/' && statvfs(folder, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : 0;
}

/* Where the work folder is made: where the user says, or where there is more room. A learner's snapshots can fill the small file
 * system of XDG_RUNTIME_DIR, which is memory. */
static const char *choose_parent(void)
{
    const char *chosen = getenv("TMPDIR"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (chosen && chosen[0] == '/' && access(chosen, W_OK | X_OK) == 0)
        return chosen;
    return free_bytes(runtime) > free_bytes("/tmp") ? runtime : "/tmp";
}

rp_status node_work_make(struct node *self, rp_error *err)
{
    const char *parent = choose_parent();
    char path[sizeof self->work - 64]; /* names of files follow */
    char prefix[96];
    make_prefix(prefix, sizeof prefix);
    if ((size_t)snprintf(path, sizeof path, "%s/%s" RANDOM, parent, prefix) >= sizeof path)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of TMPDIR is too long: %.300s", parent);
    sweep(parent, prefix);
    /* Another agent that sweeps may take a folder that has no lock yet. */
    for (int attempt = 0; attempt < ATTEMPTS && self->lock < 0; attempt++) {
        snprintf(self->work, sizeof self->work, "%s", path);
        if (!mkdtemp(self->work))
            break;
        self->lock = lock_folder(self->work, O_CREAT | O_EXCL);
        if (self->lock < 0 && errno != EWOULDBLOCK && errno != ENOENT)
            return RP_OK; /* a file system without locks, where nobody sweeps */
    }
    if (self->lock >= 0)
        return RP_OK;
    self->work[0] = '\0';
    return err_set(err, RP_IO, "no folder for the run's files can be made in %.300s: %s; set TMPDIR", parent,
                   strerror(errno));
}

void node_work_remove(struct node *self)
{
    if (self->work[0])
        remove_tree(self->work);
    if (self->lock >= 0)
        close(self->lock);
    self->work[0] = '\0';
    self->lock = -1;
}

/* ---- facts ---- */

/* The folder of this program, where the others are as well. */
static void find_programs(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
}

void node_facts_add(struct node *self, struct json_object *line)
{
    char hostname[256] = "", model[160], programs[512], package[600], address[64] = "";
    const char *connection = getenv("SSH_CONNECTION");
    gethostname(hostname, sizeof hostname - 1);
    find_programs(programs, sizeof programs);
    snprintf(package, sizeof package, "%s/lib/python/replaybus/__init__.py", programs);
    if (connection)
        snprintf(address, sizeof address, "%.*s", (int)strcspn(connection, " "), connection);
    host_line_add_text(line, "hostname", hostname);
    host_line_add_text(line, "model", machine_model(model, sizeof model));
    host_line_add_real(line, "cores", machine_cores());
    host_line_add_real(line, "memory", machine_memory());
    host_line_add_text(line, "work", self->work);
    host_line_add_text(line, "programs", programs);
    host_line_add_text(line, "here", self->here);
    host_line_add_text(line, "address", address);
    host_line_add_flag(line, "python", access(package, R_OK) == 0);
}
