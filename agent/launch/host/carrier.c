/* A line of shell that ssh runs on a host is read by the user's login shell there, which may be any (sh, csh, fish). So it is
 * `exec sh -c 'SCRIPT' sh ARGUMENTS`, and SCRIPT has no single quote, newline, backslash before a quote or exclamation mark. */
#include "agent/launch/host/carrier.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "agent/launch/process/command.h"
#include "agent/launch/process/process.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* ---- the bundle ---- */

#define DESCRIBE_NS (60 * NS_PER_S)

/* sums FOLDER: hashes of programs and Python package, one on a line. identify FOLDER: the hash over them, here and on a host. */
#define IDENTIFY                                                                                                       \
    "sums() { cd \"$1\" && sha256sum replay-launch replay-actor replay-learner && if [ -d lib/python ]; then "         \
    "find -L lib/python -type f -not -name \"*.pyc\" | LC_ALL=C sort | xargs sha256sum; fi; }; "                       \
    "identify() { sums \"$1\" | sha256sum | cut -c1-64; }; "

/* Argument: folder of the programs. */
static const char script_describe[] = IDENTIFY "list=$(sums \"$1\") && echo \"$list\" | sha256sum | cut -c1-64";

/* Runs at home, and reaches the host up to three times: the first time fails with MISSING if the host lacks our programs; then they
 * go there, packed first if no earlier host or run needed them, and the node agent is started. Arguments: folder of the programs,
 * their hash, the line that runs the agent, the line that stores programs, the words of the carrier. The libraries that are left
 * out are those of the C library and of the loader, which only work as a whole. */
#define MISSING "86"
static const char script_home[] =
    IDENTIFY "set -e; programs=$1; hash=$2; run=$3; store=$4; shift 4; cache=${XDG_CACHE_HOME:-$HOME/.cache}/replay\n"
             "packed=$cache/bundle-$hash.tar.gz\n"
             "status=0; \"$@\" \"$run\" || status=$?; [ $status = " MISSING " ] || exit $status\n"
             "echo '@rp {\"type\":\"sending\"}'\n"
             "pack() { cd \"$programs\"; names=\"replay-launch replay-actor replay-learner\"\n"
             "python=$(if [ -d lib/python ]; then find -L lib/python -type f -not -name '*.pyc'; fi)\n"
             "libs=$(for file in $names $(echo \"$python\" | grep '[.]so$' || :); do ldd \"$file\" || :; done |\n"
             "    sed -n 's/.* => \\(\\/.*\\) (0x.*/\\1/p' | sort -u | grep -Ev "
             "'/(libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libnss_[a-z]*|libthread_db|ld-[^/]*)"
             "[.]so' || :)\n"
             "[ \"$(identify .)\" = \"$hash\" ] || {\n"
             "    echo \"the programs in $programs have changed since the start\" >&2; exit 1; }\n"
             "rm -f \"$cache\"/bundle-*\n"
             "tar -I 'gzip -1' -chPf \"$packed.new\" --transform='s,^/.*/,libs/,' $names $python $libs\n"
             "mv \"$packed.new\" \"$packed\"; }\n"
             /* one host packs, the others wait for it */
             "(umask 077; mkdir -p \"$cache\"; exec 9>\"$cache/lock\"; flock 9; [ -s \"$packed\" ] || pack)\n"
             "\"$@\" \"$store\" <\"$packed\"\n"
             "exec \"$@\" \"$run\"\n";

rp_status bundle_describe(const char *programs, struct bundle *out, rp_error *err)
{
    char absolute[PATH_MAX];
    struct call call = {0};
    *out = (struct bundle){0};
    if (!realpath(programs, absolute))
        return err_set(err, RP_NOT_FOUND, "%s: %s", programs, strerror(errno));
    if ((size_t)snprintf(out->programs, sizeof out->programs, "%s", absolute) >= sizeof out->programs)
        return err_set(err, RP_INVALID_ARGUMENT, "the path %.100s... is too long", absolute);
    const char *const argv[] = {"sh", "-c", script_describe, "sh", out->programs, NULL};
    rp_status status = call_start(&call, argv, NULL, DESCRIBE_NS, err);
    if (status == RP_OK && !call_await(&call))
        status = err_set(err, RP_IO, "the programs in %s could not be read for hosts: %s", out->programs, call.err);
    snprintf(out->hash, sizeof out->hash, "%.64s", call.out ? call.out : "");
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
    "--",  NULL,
};

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

/* Stores the bundle that comes on standard input; the four newest are kept. Arguments: name of the host, hash of the programs. */
static const char script_store[] =
    "name=$1; hash=$2; new=; " CACHE SAY IDENTIFY "clean() { [ -z \"$new\" ] || rm -rf \"$new\"; }; "
    "for p in tar gzip sha256sum mktemp; do command -v $p >/dev/null || say \"there is no $p on $name: install "
    "it, or install our programs there and write hosts[].programs\"; done; "
    "umask 077; mkdir -p \"$cache\" && new=$(mktemp -d \"$cache/new.XXXXXX\") || say \"$cache on $name cannot be "
    "written\"; "
    "trap clean EXIT; trap \"exit 1\" HUP INT TERM; "
    "tar xzf - -C \"$new\" || say \"our programs could not be stored in $cache on $name\"; "
    "[ \"$(identify \"$new\")\" = \"$hash\" ] || say \"our programs are damaged in $cache on $name\"; "
    "mv -T \"$new\" \"$dir\" 2>/dev/null || [ -d \"$dir\" ] || say \"$dir on $name cannot be written\"; "
    "ls -1td \"$cache\"/[0-9a-f]* | tail -n +5 | while read -r old; do rm -rf \"$old\"; done; "
    "find \"$cache\" -maxdepth 1 -name \"new.*\" -mmin +60 -exec rm -rf {} +";

/* Builds the line that runs a script there with its arguments, whatever they contain. */
static char *build_line(const char *const *words)
{
    struct text line = {0};
    text_add(&line, "exec sh -c");
    for (; *words; words++)
        shell_add(&line, *words);
    return line.data; /* the caller's now */
}

char **carrier_build(const struct bundle *bundle, const struct host_config *host, const char *name, rp_error *err)
{
    bool installed = host->programs[0] != '\0';
    char *const *own = host->command.data;
    struct words words = {0};
    struct utsname machine = {0};
    if (!installed && !bundle) {
        err_fill(err, RP_FAILED_PRECONDITION, "there are no programs for host %s: write hosts[].programs", name);
        return NULL;
    }
    uname(&machine);
    if (!installed) {
        words_put(&words, "sh", "-c", script_home, "sh", bundle->programs, bundle->hash);
        words_take(&words, build_line(WORDS(script_run, "sh", name, bundle->hash, machine.machine, bundle->programs)));
        words_take(&words, build_line(WORDS(script_store, "sh", name, bundle->hash)));
    }
    for (uint32_t i = 0; i < host->command.count; i++)
        words_add(&words, own[i]);
    if (host->command.count == 0) {
        words_add_list(&words, ssh_words);
        words_add(&words, name);
    }
    if (installed)
        words_take(&words, build_line(WORDS(script_installed, "sh", name, host->programs)));
    return words.list;
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
    {"Could not resolve hostname", "correct hosts[].name: no machine is known as ", ""},
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
