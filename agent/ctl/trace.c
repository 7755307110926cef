/* trace: records what the broker and its clients do for a while, into a file for Perfetto. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "proto/base/error.h"

#define DEFAULT_S 5.0
#define MOST_S 60.0

/* True if the path is, or will be, a file that is replaced as a whole; false for "-", devices, pipes and links. */
static bool is_replaced(const char *path)
{
    struct stat info;
    return strcmp(path, "-") != 0 && (lstat(path, &info) != 0 || S_ISREG(info.st_mode));
}

/* Tells before the trace, not after it, that the file cannot be written. */
static rp_status check_path(const char *path, rp_error *err)
{
    const char *slash = strrchr(path, '/');
    struct stat info;
    if (strcmp(path, "-") == 0)
        return RP_OK;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return err_set(err, RP_IO, "%s cannot be written: it is a folder", path);
    char folder[PATH_MAX] = ".";
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (access(is_replaced(path) ? folder : path, W_OK) != 0)
        return err_set(err, RP_IO, "%s cannot be written: %s", path, strerror(errno));
    return RP_OK;
}

/* Writes the text to the standard output for "-", otherwise into the file. A file is there whole or, after a failure, as before. */
static rp_status write_file(const char *path, const char *text, rp_error *err)
{
    char target[PATH_MAX];
    bool standard = strcmp(path, "-") == 0, replaced = is_replaced(path);
    int size = snprintf(target, sizeof target, "%s%s", path, replaced ? ".new" : "");
    errno = ENAMETOOLONG;
    FILE *file = standard ? stdout : size < (int)sizeof target ? fopen(target, "we") : NULL;
    if (!file)
        return err_set(err, RP_IO, "%s cannot be written: %s", path, strerror(errno));
    bool ok = fputs(text, file) >= 0 && fputc('\n', file) >= 0 && fflush(file) == 0;
    int reason = errno;
    if (!standard && fclose(file) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    if (ok && replaced && rename(target, path) != 0) {
        ok = false;
        reason = errno;
    }
    if (!ok && replaced)
        unlink(target);
    return ok ? RP_OK : err_set(err, RP_IO, "%s cannot be written: %s", path, strerror(reason));
}

/* Adds up a number of the trace over its processes. The quotes of a text are escaped there, so a text cannot look like a key. */
static uint64_t sum_of(const char *text, const char *key)
{
    uint64_t sum = 0;
    for (const char *at = text; (at = strstr(at, key)) != NULL; at += strlen(key))
        sum += strtoull(at + strlen(key), NULL, 10);
    return sum;
}

/* Prints the sentence about a shard that has no part in the trace. */
static void print_lost(const char *text)
{
    static const char key[] = "\"shard_missing\": \"";
    const char *at = strstr(text, key);
    if (at)
        printf("%.*s: its part is missing there\n", (int)strcspn(at + sizeof key - 1, "\""), at + sizeof key - 1);
}

static void print_outcome(const char *path, const char *text)
{
    uint64_t dropped = sum_of(text, "\"dropped_spans\": "), missing = sum_of(text, "\"clients_missing\": ");
    printf("wrote %s: open it at https://ui.perfetto.dev or in Chrome's developer tools (Performance, Load profile)\n",
           path);
    if (dropped)
        printf("%" PRIu64
               " spans did not fit: where they are missing, a row ends early. Record fewer seconds to see all\n",
               dropped);
    if (missing)
        printf("%" PRIu64 " clients did not send all of their spans: they have ended, or are too slow\n", missing);
    print_lost(text);
}

int ctl_trace(struct ctl *ctl)
{
    rp_error err = {0};
    char *text = NULL;
    double seconds = DEFAULT_S;
    char *end = NULL;
    if (ctl->seconds)
        seconds = strtod(ctl->seconds, &end);
    if ((end && (*end || end == ctl->seconds)) || !(seconds >= 0.001 && seconds <= MOST_S))
        return ctl_usage("--seconds takes a number from 0.001 to %g, not '%s'", MOST_S, ctl->seconds);
    rp_status status = check_path(ctl->argv[0], &err);
    if (status == RP_OK)
        status = rp_admin_trace_json(ctl->client, (int64_t)(seconds * 1e3), &text, &err);
    if (status == RP_OK)
        status = write_file(ctl->argv[0], text, &err);
    if (status == RP_OK && !ctl->json && strcmp(ctl->argv[0], "-") != 0)
        print_outcome(ctl->argv[0], text);
    rp_string_free(&text);
    return status == RP_OK ? CTL_OK : ctl_fail(ctl, &err);
}
