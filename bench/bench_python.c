/* Starts the module replaybus_bench of the Python tree that the build makes beside this program. */
#include "bench/bench_python.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ARGUMENTS 32

/* Writes the path of the Python tree. Returns whether the bench is in it. */
static bool find_tree(char *path, size_t size)
{
    static const char tree[] = "lib/python";
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    size_t at = slash ? (size_t)(slash + 1 - path) : 0;
    char file[PATH_MAX + 64];
    if (at + sizeof tree > size)
        return false;
    memcpy(path + at, tree, sizeof tree);
    snprintf(file, sizeof file, "%s/replaybus_bench/__main__.py", path);
    return access(file, R_OK) == 0;
}

int bench_python(int argc, char **argv)
{
    char tree[PATH_MAX];
    if (!find_tree(tree, sizeof tree)) {
        fprintf(stderr,
                "replay-bench python: there is no %s/replaybus_bench: run ./dev bench python in the source tree\n",
                tree);
        return 1;
    }
    if (argc > MAX_ARGUMENTS) {
        fprintf(stderr, "replay-bench python: at most %d arguments are possible\n", MAX_ARGUMENTS);
        return 2;
    }
    const char *given = getenv("RP_PYTHON");
    const char *python = given && given[0]                       ? given
                         : access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3"
                                                                 : "python3";
    char *line[MAX_ARGUMENTS + 4] = {(char *)(uintptr_t)python, "-m", "replaybus_bench"};
    for (int i = 1; i < argc; i++)
        line[i + 2] = argv[i];
    if (setenv("PYTHONPATH", tree, 1) == 0)
        execvp(python, line);
    fprintf(stderr, "replay-bench python: %s cannot be started: %s\n", python, strerror(errno));
    return 1;
}
