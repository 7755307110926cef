/* A shell script of this machine, with the tools that everybody has, describes the bundle and packs it. What it printed is remembered
 * in a small file whose name is a hash of paths, sizes and times of all that goes into the bundle. */
#include "agent/launch/host/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/error.h"
#include "proto/base/siphash.h"

#define KEY_BYTES 16u

/* Arguments: folder of the programs, folder of the cache, and the hash of the bundle if it is to be packed. Prints "size hash
 * programs path"; size 0: it is only described. The four newest bundles are kept. The names of libraries that are left out are those
 * of the C library and of the loader, which only work as a whole. */
static const char script[] =
    "set -e; umask 077; export LC_ALL=C\n"
    "programs=$1 cache=$2 wanted=$3\n"
    "mkdir -p \"$cache\"; cd \"$programs\"\n"
    "names=\"replay-launch replay-actor replay-learner\"\n"
    "python=$(if [ -d lib/python ]; then find -L lib/python -type f -not -name '*.pyc' | sort; fi)\n"
    "libs=$(for file in $names $(echo \"$python\" | grep '[.]so$' || :); do ldd \"$file\"; done |\n"
    "    sed -n 's/.* => \\(\\/.*\\) (0x.*/\\1/p' | sort -u |\n"
    "    grep -Ev "
    "'/(libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libnss_[a-z]*|libthread_db|ld-[^/]*)"
    "[.]so' || :)\n"
    "own=$(echo $names $python | xargs sha256sum)\n"
    "list=$( (echo \"$own\" | sed 's/  /  .\\//'; echo \"$libs\" | while read -r lib; do\n"
    "    [ -z \"$lib\" ] || echo \"$(sha256sum <\"$lib\" | cut -c1-64)  ./libs/${lib##*/}\"; done) | sort -u -k2)\n"
    "own=$(echo \"$own\" | sha256sum | cut -c1-64); hash=$(echo \"$list\" | sha256sum | cut -c1-64)\n"
    "if [ -z \"$wanted\" ]; then echo \"0 $hash $own -\"; exit; fi\n"
    "if [ \"$wanted\" != \"$hash\" ]; then echo \"they have changed since the start\"; exit 1; fi\n"
    "new=$(mktemp -d \"$cache/new.XXXXXX\"); trap 'rm -rf \"$new\"' EXIT; trap 'exit 1' HUP INT TERM\n"
    "mkdir -p \"$new/tree/libs\"\n"
    "echo \"$libs\" | while read -r lib; do\n"
    "    [ -z \"$lib\" ] || [ -e \"$new/tree/libs/${lib##*/}\" ] || cp -L \"$lib\" \"$new/tree/libs/\"; done\n"
    "tar chf - $names $python | tar xf - -C \"$new/tree\"\n"
    "cd \"$new/tree\"; echo \"$list\" >list\n"
    "tar cf - * | gzip -1 >../bundle\n"
    "mv ../bundle \"$cache/bundle-$hash.tar.gz\"; size=$(wc -c <\"$cache/bundle-$hash.tar.gz\")\n"
    "ls -1t \"$cache\"/bundle-*.tar.gz | tail -n +5 | while read -r old; do rm -f \"$old\"; done\n"
    "find \"$cache\" -maxdepth 1 -name 'new.*' -mmin +60 -exec rm -rf {} +\n"
    "ls -1t \"$cache\"/bundle-*.txt 2>/dev/null | tail -n +16 | while read -r old; do rm -f \"$old\"; done\n"
    "echo \"$size $hash $own $cache/bundle-$hash.tar.gz\"\n";

/* ---- the key ---- */

static void write_stat(const char *path, const struct stat *info, FILE *out)
{
    fprintf(out, "%s %" PRIdMAX " %" PRIdMAX ".%09ld\n", path, (intmax_t)info->st_size, (intmax_t)info->st_mtim.tv_sec,
            info->st_mtim.tv_nsec);
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Sizes and times of the Python package, if there is one. */
static void write_package(const char *programs, FILE *out)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/lib/python", programs) >= (int)sizeof path)
        return;
    FTS *tree = fts_open((char *[]){path, NULL}, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    for (const FTSENT *entry; tree && (entry = fts_read(tree));)
        if (entry->fts_info == FTS_F && !strstr(entry->fts_name, ".pyc"))
            write_stat(entry->fts_path, entry->fts_statp, out);
    if (tree)
        fts_close(tree);
}

static rp_status write_key(const char *programs, FILE *out, rp_error *err)
{
    static const char *const names[] = {"replay-launch", "replay-actor", "replay-learner"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", programs, names[i]);
        if (stat(path, &info) != 0)
            return err_set(err, RP_NOT_FOUND, "%s is missing, and hosts need it: %s", path, strerror(errno));
        write_stat(path, &info, out);
    }
    write_package(programs, out);
    return RP_OK;
}

static rp_status find_key(const char *programs, uint64_t *key, rp_error *err)
{
    static const uint8_t siphash_key[KEY_BYTES] = "replay bundle 1";
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return err_set(err, RP_NO_MEMORY, "no memory for a list of programs");
    rp_status status = write_key(programs, out, err);
    if (fclose(out) != 0 && status == RP_OK)
        status = err_set(err, RP_NO_MEMORY, "no memory for a list of programs");
    if (status == RP_OK)
        *key = siphash(siphash_key, text, size);
    free(text);
    return status;
}

/* ---- what the script prints ---- */

static bool is_hash(const char *text)
{
    return strspn(text, "0123456789abcdef") == BUNDLE_HASH - 1 && !text[BUNDLE_HASH - 1];
}

/* Reads the script's line into self. A bundle that is not there any more is only described. */
static bool read_line(const char *line, struct bundle *self)
{
    struct bundle read = {0};
    struct stat info;
    if (sscanf(line, "%" SCNd64 " %64s %64s %511[^\n]", &read.size, read.hash, read.programs, read.path) != 4)
        return false;
    if (!is_hash(read.hash) || !is_hash(read.programs))
        return false;
    bool there = read.size > 0 && stat(read.path, &info) == 0 && info.st_size == read.size;
    self->size = there ? read.size : 0;
    memcpy(self->path, read.path, sizeof self->path);
    memcpy(self->hash, read.hash, sizeof self->hash);
    memcpy(self->programs, read.programs, sizeof self->programs);
    return true;
}

static bool is_remembered(struct bundle *self)
{
    char line[1024];
    FILE *file = fopen(self->memory, "re");
    bool known = file && fgets(line, sizeof line, file) && read_line(line, self);
    if (file)
        fclose(file);
    if (known && self->size > 0)
        utimensat(AT_FDCWD, self->path, NULL, 0); /* the newest bundles are kept */
    return known;
}

/* A failure only means that the next call packs again. */
static void remember(const char *path, const char *line)
{
    char other[600];
    snprintf(other, sizeof other, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(other, "we");
    if (!file)
        return;
    bool ok = fputs(line, file) >= 0;
    if (fclose(file) != 0 || !ok || rename(other, path) != 0)
        unlink(other);
}

/* ---- the script ---- */

/* Starts the script; what it prints, errors included, is its output. packs: it packs what was described. */
static rp_status start_script(struct bundle *self, bool packs, rp_error *err)
{
    int ends[2], error = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return err_set(err, RP_IO, "a pipe for the programs of hosts: %s", strerror(errno));
    const char *argv[] = {"sh", "-c", script, "sh", self->from, self->cache, packs ? self->hash : "", NULL};
    const struct spawn spawn = {.argv = argv, .in = SPAWN_NULL, .out = ends[1], .err = ends[1], .dies_with_us = true};
    self->pid = spawn_start(&spawn, &error);
    close(ends[1]);
    self->out = ends[0];
    self->used = 0;
    if (self->pid > 0)
        return RP_OK;
    self->pid = 0;
    close(self->out);
    return err_set(err, RP_IO, "sh: %s", strerror(error));
}

/* Reads what the script has printed. True if it has ended. */
static bool read_output(struct bundle *self)
{
    char block[512];
    for (;;) {
        ssize_t n = read(self->out, block, sizeof block);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return true;
        if (n < 0 && errno == EAGAIN)
            return false;
        size_t room = sizeof self->output - 1 - self->used, taken = n > 0 ? (size_t)n : 0;
        taken = taken < room ? taken : room;
        memcpy(self->output + self->used, block, taken);
        self->used += taken;
    }
}

/* After the script's output has ended. */
static rp_status take_output(struct bundle *self, rp_error *err)
{
    int status = spawn_reap(self->pid);
    self->pid = 0;
    close(self->out);
    self->output[self->used] = '\0';
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && read_line(self->output, self)) {
        remember(self->memory, self->output);
        return RP_OK;
    }
    unlink(self->memory);
    self->output[strcspn(self->output, "\n")] = '\0';
    return err_set(err, RP_IO, "the programs in %s could not be packed into %s for hosts: %s", self->from, self->cache,
                   self->output[0] ? self->output : "the script was killed");
}

rp_status bundle_pack(struct bundle *self, rp_error *err)
{
    if (self->size > 0)
        return RP_OK;
    if (self->pid == 0) {
        RP_TRY(start_script(self, true, err));
        fcntl(self->out, F_SETFL, O_NONBLOCK);
    }
    if (!read_output(self))
        return RP_UNAVAILABLE;
    RP_TRY(take_output(self, err));
    return self->size > 0 ? RP_OK : err_set(err, RP_IO, "%s has vanished", self->path);
}

void bundle_fini(struct bundle *self)
{
    if (self->pid == 0)
        return;
    kill(-self->pid, SIGKILL);
    spawn_reap(self->pid);
    close(self->out);
    self->pid = 0;
}

/* ---- the description ---- */

/* False: there is no place for a cache. */
static bool find_cache(char *out, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache && cache[0] == '/')
        length = snprintf(out, size, "%s/replay", cache);
    else if (home && home[0] == '/')
        length = snprintf(out, size, "%s/.cache/replay", home);
    return length > 0 && (size_t)length < size;
}

rp_status bundle_describe(const char *programs, struct bundle *out, rp_error *err)
{
    char absolute[4096];
    uint64_t key = 0;
    *out = (struct bundle){0};
    if (!find_cache(out->cache, sizeof out->cache))
        return err_set(err, RP_IO, "there is no place for the programs of hosts: set HOME or XDG_CACHE_HOME");
    if (!realpath(programs, absolute))
        return err_set(err, RP_NOT_FOUND, "%s: %s", programs, strerror(errno));
    if ((size_t)snprintf(out->from, sizeof out->from, "%s", absolute) >= sizeof out->from)
        return err_set(err, RP_INVALID_ARGUMENT, "the path %.100s... is too long", absolute);
    RP_TRY(find_key(absolute, &key, err));
    snprintf(out->memory, sizeof out->memory, "%s/bundle-%016" PRIx64 ".txt", out->cache, key);
    if (is_remembered(out))
        return RP_OK;
    RP_TRY(start_script(out, false, err));
    while (!read_output(out))
        ;
    return take_output(out, err);
}
