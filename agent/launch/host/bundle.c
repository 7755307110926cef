/* The bundle is packed by a shell script of this machine, with the tools that everybody has. What it printed is remembered in a
 * small file whose name is a hash of paths, sizes and times of all that goes into the bundle. */
#include "agent/launch/host/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <stdbool.h>
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

/* Arguments: folder of the programs, folder of the cache. Prints "path size hash programs". The four newest bundles are kept. The
 * names of libraries that are left out are those of the C library and of the loader, which only work as a whole. */
static const char script[] =
    "set -e; umask 077; export LC_ALL=C\n"
    "programs=$1 cache=$2\n"
    "mkdir -p \"$cache\"; new=$(mktemp -d \"$cache/new.XXXXXX\"); trap 'rm -rf \"$new\"' EXIT; trap 'exit 1' HUP INT "
    "TERM\n"
    "cd \"$programs\"; mkdir -p \"$new/tree/libs\"\n"
    "names=\"replay-launch replay-actor replay-learner\"\n"
    "python=$(if [ -d lib/python ]; then find -L lib/python -type f -not -name '*.pyc' | sort; fi)\n"
    "own=$(echo $names $python | xargs sha256sum | sha256sum | cut -c1-64)\n"
    "for file in $names $(echo \"$python\" | grep '[.]so$' || :); do ldd \"$file\"; done |\n"
    "    sed -n 's/.* => \\(\\/.*\\) (0x.*/\\1/p' | sort -u |\n"
    "    grep -Ev "
    "'/(libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libnss_[a-z]*|libthread_db|ld-[^/]*)"
    "[.]so' |\n"
    "    while read -r lib; do cp -L \"$lib\" \"$new/tree/libs/\"; done\n"
    "tar chf - $names $python | tar xf - -C \"$new/tree\"\n"
    "cd \"$new/tree\"; find . -type f | sort | xargs -d '\\n' sha256sum >../list; mv ../list list\n"
    "hash=$(sha256sum <list | cut -c1-64)\n"
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

/* Reads the script's line; true if the bundle that it names is there. */
static bool read_line(const char *line, struct bundle *out)
{
    struct bundle read = {0};
    struct stat info;
    if (sscanf(line, "%" SCNd64 " %64s %64s %511[^\n]", &read.size, read.hash, read.programs, read.path) != 4)
        return false;
    if (!is_hash(read.hash) || !is_hash(read.programs) || stat(read.path, &info) != 0 || info.st_size != read.size)
        return false;
    *out = read;
    return true;
}

static bool is_remembered(const char *path, struct bundle *out)
{
    char line[1024];
    FILE *file = fopen(path, "re");
    bool there = file && fgets(line, sizeof line, file) && read_line(line, out);
    if (file)
        fclose(file);
    if (there)
        utimensat(AT_FDCWD, out->path, NULL, 0); /* the newest bundles are kept */
    return there;
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

/* ---- packing ---- */

static size_t read_all(int fd, char *out, size_t size)
{
    size_t used = 0;
    for (ssize_t n; used + 1 < size && (n = read(fd, out + used, size - 1 - used)) != 0;) {
        if (n < 0 && errno != EINTR)
            break;
        used += n > 0 ? (size_t)n : 0;
    }
    out[used] = '\0';
    return used;
}

/* Runs the script; what it prints, errors included, is the output. False: it failed. */
static bool run_script(const char *programs, const char *cache, char *output, size_t size)
{
    int ends[2], error = 0;
    output[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    const char *argv[] = {"sh", "-c", script, "sh", programs, cache, NULL};
    const struct spawn spawn = {.argv = argv, .in = SPAWN_NULL, .out = ends[1], .err = ends[1], .dies_with_us = true};
    pid_t pid = spawn_start(&spawn, &error);
    close(ends[1]);
    if (pid > 0)
        read_all(ends[0], output, size);
    else
        snprintf(output, size, "sh: %s", strerror(error));
    close(ends[0]);
    int status = pid > 0 ? spawn_reap(pid) : -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static rp_status pack(const char *programs, const char *cache, const char *memory, struct bundle *out, rp_error *err)
{
    char output[2048];
    bool ok = run_script(programs, cache, output, sizeof output);
    if (ok && read_line(output, out)) {
        remember(memory, output);
        return RP_OK;
    }
    output[strcspn(output, "\n")] = '\0';
    return err_set(err, RP_IO, "the programs in %s could not be packed into %s for hosts: %s", programs, cache,
                   output[0] ? output : "the script was killed");
}

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

rp_status bundle_make(const char *programs, struct bundle *out, rp_error *err)
{
    char cache[400], memory[512], absolute[4096];
    uint64_t key = 0;
    if (!find_cache(cache, sizeof cache))
        return err_set(err, RP_IO, "there is no place for the programs of hosts: set HOME or XDG_CACHE_HOME");
    if (!realpath(programs, absolute))
        return err_set(err, RP_NOT_FOUND, "%s: %s", programs, strerror(errno));
    RP_TRY(find_key(absolute, &key, err));
    snprintf(memory, sizeof memory, "%s/bundle-%016" PRIx64 ".txt", cache, key);
    return is_remembered(memory, out) ? RP_OK : pack(absolute, cache, memory, out, err);
}
