/* A line of shell that ssh runs on a host is read by the user's login shell there, which may be any (sh, csh, fish). So it is
 * `exec sh -c 'SCRIPT' sh ARGUMENTS`, and SCRIPT has no single quote, newline, backslash before a quote or exclamation mark. */
#include "agent/launch/host/carrier.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/need.h"

/* ---- the bundle ---- */

#define DESCRIBE_NS (60 * NS_PER_S)

/* sums FOLDER: hashes of programs and Python package, one on a line. identify FOLDER: the hash over them, here and on a host. */
#define IDENTIFY                                                                                                       \
    "sums() { cd \"$1\" && sha256sum replay-launch replay-actor replay-learner && if [ -d lib/python ]; then "         \
    "find -L lib/python -type f -not -name \"*.pyc\" | LC_ALL=C sort | xargs sha256sum; fi; }; "                       \
    "identify() { sums \"$1\" | sha256sum | cut -c1-64; }; "

/* Argument: folder of the programs. */
static const char script_describe[] = IDENTIFY "list=$(sums \"$1\") && echo \"$list\" | sha256sum | cut -c1-64";

/* Runs at home, and reaches the host up to three times: the first time fails with MISSING if the host lacks our programs; then the
 * bundle goes there, packed first if no earlier run has done so, and the node agent is started. Arguments: folder of the programs,
 * their hash, the packed file, the line that runs the agent, the line that stores programs, the words of the carrier.
 *
 * The four newest bundles are kept. The libraries that are left out of a bundle are those of the C library and of the loader, which
 * only work as a whole. */
#define MISSING "86"
static const char script_home[] =
    IDENTIFY "set -e; programs=$1; hash=$2; packed=$3; run=$4; store=$5; shift 5; cache=${packed%/*}\n"
             "status=0; \"$@\" \"$run\" || status=$?; [ $status = " MISSING " ] || exit $status\n"
             "echo '@rp {\"type\":\"sending\"}'\n"
             "pack() { cd \"$programs\"; names=\"replay-launch replay-actor replay-learner\"\n"
             "python=$(if [ -d lib/python ]; then find -L lib/python -type f -not -name '*.pyc'; fi)\n"
             "new=$(mktemp -d \"$cache/new.XXXXXX\"); trap 'rm -rf \"$new\"' EXIT; trap 'exit 1' HUP INT TERM\n"
             "mkdir -p \"$new/tree/libs\"\n"
             "for file in $names $(echo \"$python\" | grep '[.]so$' || :); do ldd \"$file\" || :; done |\n"
             "    sed -n 's/.* => \\(\\/.*\\) (0x.*/\\1/p' | sort -u |\n"
             "    grep -Ev "
             "'/(libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libnss_[a-z]*|libthread_db|ld-[^/]*)"
             "[.]so' | while read -r lib; do\n"
             "    [ -e \"$new/tree/libs/${lib##*/}\" ] || cp -L \"$lib\" \"$new/tree/libs/\"; done\n"
             "tar chf - $names $python | tar xf - -C \"$new/tree\"\n"
             "[ \"$(identify \"$new/tree\")\" = \"$hash\" ] || {\n"
             "    echo \"the programs in $programs have changed since the start\" >&2; exit 1; }\n"
             "cd \"$new/tree\"; find . -type f | sort | xargs sha256sum >../list; mv ../list .\n"
             "tar cf - * | gzip -1 >../bundle\n"
             "mv ../bundle \"$packed\"\n"
             "ls -1t \"$cache\"/bundle-*.tar.gz | tail -n +5 | while read -r old; do rm -f \"$old\"; done\n"
             "find \"$cache\" -maxdepth 1 -name 'new.*' -mmin +60 -exec rm -rf {} +; }\n"
             /* one host packs, the others wait for it */
             "(umask 077; LC_ALL=C; export LC_ALL; mkdir -p \"$cache\"; exec 9>\"$cache/lock\"; flock 9\n"
             "if [ -s \"$packed\" ]; then touch \"$packed\"; else pack; fi)\n"
             "\"$@\" \"$store\" <\"$packed\"\n"
             "exec \"$@\" \"$run\"\n";

/* Copies the folder of the cache; false: there is no place for one. */
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
    static const char *const names[] = {"replay-launch", "replay-actor", "replay-learner"};
    char absolute[4096], cache[400], path[600];
    struct call call = {0};
    *out = (struct bundle){0};
    if (!find_cache(cache, sizeof cache))
        return err_set(err, RP_IO, "there is no place for the programs of hosts: set HOME or XDG_CACHE_HOME");
    if (!realpath(programs, absolute))
        return err_set(err, RP_NOT_FOUND, "%s: %s", programs, strerror(errno));
    if ((size_t)snprintf(out->programs, sizeof out->programs, "%s", absolute) >= sizeof out->programs)
        return err_set(err, RP_INVALID_ARGUMENT, "the path %.100s... is too long", absolute);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", out->programs, names[i]);
        if (access(path, R_OK) != 0)
            return err_set(err, RP_NOT_FOUND, "%s is missing, and hosts need it: %s", path, strerror(errno));
    }
    const char *const argv[] = {"sh", "-c", script_describe, "sh", out->programs, NULL};
    rp_status status = call_start(&call, argv, NULL, DESCRIBE_NS, err);
    if (status == RP_OK && !call_await(&call))
        status = err_set(err, RP_IO, "the programs in %s could not be read for hosts: %s", out->programs,
                         call_text(&call.err));
    snprintf(out->hash, sizeof out->hash, "%.64s", call_text(&call.out));
    snprintf(out->path, sizeof out->path, "%s/bundle-%s.tar.gz", cache, out->hash);
    call_fini(&call);
    return status;
}

/* ---- the line of shell ---- */

/* Batch mode: nobody is there to type a password. Dead connections are noticed within 15 s, as long as a lease. An existing
 * shared connection of the user's is used, but none is opened that would outlive the run. */
static const char *const ssh_words[] = {
    "ssh", "-T",
    "-x",  "-a",
    "-o",  "BatchMode=yes",
    "-o",  "ConnectTimeout=10",
    "-o",  "ServerAliveInterval=5",
    "-o",  "ServerAliveCountMax=3",
    "-o",  "ClearAllForwardings=yes",
    "-o",  "PermitLocalCommand=no",
    "-o",  "ControlMaster=no",
    "-o",  "LogLevel=ERROR",
    "--",
};
#define SSH_WORDS (sizeof ssh_words / sizeof ssh_words[0])

/* Arguments: name of the host, folder of the programs there. */
static const char script_installed[] =
    "name=$1; dir=$2; "
    "case $dir in \"~/\"*) dir=$HOME/${dir#\"~/\"};; esac; "
    "if [ -x \"$dir/replay-launch\" ]; then exec \"$dir/replay-launch\" node; fi; "
    "echo \"there is no program $dir/replay-launch on $name: correct hosts[].programs\" >&2; exit 1";

#define CACHE "cache=${XDG_CACHE_HOME:-$HOME/.cache}/replay/programs; dir=$cache/$hash; "
#define SAY "say() { echo \"$*\" >&2; exit 1; }; "

/* Arguments: name of the host, hash of the programs, our architecture, our folder of programs. The folder of our own is good if the
 * programs there are the same and can be loaded; a machine that lacks libraries takes those of the bundle, and only then, since other
 * programs there would use them too. */
static const char script_run[] =
    "name=$1; hash=$2; arch=$3; same=$4; " CACHE SAY IDENTIFY
    "loads() { for p in launch actor learner; do ldd \"$1/replay-$p\" 2>&1 || [ $? = 127 ] || echo not found; done "
    "| grep \"not found\" >/dev/null; [ $? = 1 ]; }; "
    "if [ -x \"$same/replay-launch\" ] && [ \"$(identify \"$same\" 2>/dev/null)\" = \"$hash\" ] && loads \"$same\"; "
    "then exec \"$same/replay-launch\" node; fi; "
    "there=$(uname -m); [ \"$there\" = \"$arch\" ] || say \"$name is $there, these programs are for $arch: "
    "install them there and write hosts[].programs\"; "
    "[ -d \"$dir\" ] || exit " MISSING "; touch -c \"$dir\"; "
    "if loads \"$dir\"; then exec \"$dir/replay-launch\" node; fi; "
    "LD_LIBRARY_PATH=$dir/libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; export LD_LIBRARY_PATH; "
    "loads \"$dir\" || say \"our programs need a newer C library than that of $name: build them there and write "
    "hosts[].programs\"; "
    "exec \"$dir/replay-launch\" node";

/* Stores the bundle that comes on standard input. Arguments: name of the host, hash of the programs. */
static const char script_store[] =
    "name=$1; hash=$2; new=; " CACHE SAY "clean() { [ -z \"$new\" ] || rm -rf \"$new\"; }; "
    "for p in tar gzip sha256sum mktemp; do command -v $p >/dev/null || say \"there is no $p on $name: install "
    "it, or install our programs there and write hosts[].programs\"; done; "
    "umask 077; mkdir -p \"$cache\" && new=$(mktemp -d \"$cache/new.XXXXXX\") || say \"$cache on $name cannot be "
    "written\"; "
    "trap clean EXIT; trap \"exit 1\" HUP INT TERM; "
    "tar xzf - -C \"$new\" || say \"our programs could not be stored in $cache on $name\"; "
    "(cd \"$new\" && sha256sum -c list >/dev/null) || say \"our programs are damaged in $cache on $name\"; "
    "mv -T \"$new\" \"$dir\" 2>/dev/null || [ -d \"$dir\" ] || say \"$dir on $name cannot be written\"; "
    "ls -1td \"$cache\"/[0-9a-f]* | tail -n +5 | while read -r old; do rm -rf \"$old\"; done; "
    "find \"$cache\" -maxdepth 1 -name \"new.*\" -mmin +60 -exec rm -rf {} +";

/* Builds the line that runs a script there with its arguments, whatever they contain. */
static char *build_line(const char *const *words)
{
    struct text line = {0};
    text_add(&line, "exec sh -c");
    for (; *words; words++) {
        text_add(&line, " '");
        for (const char *c = *words; *c; c++)
            if (*c == '\'')
                text_add(&line, "'\\''");
            else
                text_add(&line, "%c", *c);
        text_add(&line, "'");
    }
    char *copy = need_text(text_get(&line));
    text_fini(&line);
    return copy;
}

char **carrier_build(const struct bundle *bundle, const struct host_config *host, const char *name, rp_error *err)
{
    bool installed = host->programs[0] != '\0';
    char *const *own = host->command.data;
    size_t n = 0;
    struct utsname machine = {0};
    if (!installed && !bundle) {
        err_fill(err, RP_FAILED_PRECONDITION, "there are no programs for host %s: write hosts[].programs", name);
        return NULL;
    }
    uname(&machine);
    char **list = need_alloc((host->command.count + SSH_WORDS + 16) * sizeof *list);
    if (!installed) {
        const char *home[] = {"sh", "-c", script_home, "sh", bundle->programs, bundle->hash, bundle->path};
        for (size_t i = 0; i < sizeof home / sizeof home[0]; i++)
            list[n++] = need_text(home[i]);
        list[n++] =
            build_line((const char *[]){script_run, "sh", name, bundle->hash, machine.machine, bundle->programs, NULL});
        list[n++] = build_line((const char *[]){script_store, "sh", name, bundle->hash, NULL});
    }
    for (uint32_t i = 0; i < host->command.count; i++)
        list[n++] = need_text(own[i]);
    for (size_t i = 0; i < SSH_WORDS && host->command.count == 0; i++)
        list[n++] = need_text(ssh_words[i]);
    if (host->command.count == 0)
        list[n++] = need_text(name);
    if (installed)
        list[n++] = build_line((const char *[]){script_installed, "sh", name, host->programs, NULL});
    return list;
}

/* ---- advice ---- */

struct advice {
    const char *symptom;        /* part of what the carrier printed */
    const char *before, *after; /* the advice, before and after the name of the host */
};

static const struct advice advices[] = {
    {"Host key verification failed", "run `ssh ", "` once by hand and accept its key"},
    {"HOST IDENTIFICATION HAS CHANGED", "find out why the key of ", " has changed before you remove the old one"},
    {"Permission denied (", "let ssh log in there without a password: `ssh-copy-id ", "`"},
    {"Too many authentication failures", "name the right key for ", " in ~/.ssh/config (IdentityFile, IdentitiesOnly)"},
    {"Could not resolve hostname", "correct hosts[].ssh: no machine is known as ", ""},
    {"Connection refused", "start an ssh server on ", ", or write its port into ~/.ssh/config"},
    {"Connection timed out", "see whether ", " is switched on and can be reached from here"},
    {"No route to host", "see whether ", " is switched on and can be reached from here"},
    {"Network is unreachable", "see whether ", " is switched on and can be reached from here"},
    {"No space left on device", "make room on ", ""},
    {"Disk quota exceeded", "make room on ", ""},
};

const char *carrier_advice(const char *reason, const char *name, char *out, size_t size)
{
    out[0] = '\0';
    for (size_t i = 0; i < sizeof advices / sizeof advices[0]; i++)
        if (strstr(reason, advices[i].symptom)) {
            snprintf(out, size, "%s%s%s", advices[i].before, name, advices[i].after);
            break;
        }
    return out;
}
