/* The line of shell that ssh runs on a host is read by the user's login shell there, which may be any (sh, csh, fish). So it is
 * `exec sh -c 'SCRIPT' sh ARGUMENTS`, and SCRIPT has no single quote, newline, backslash before a quote or exclamation mark. */
#include "agent/launch/host/carrier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "agent/launch/process/command.h"
#include "proto/base/error.h"

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

/* Arguments: name of the host, our architecture, our folder of programs, and hash and hash of the programs of the bundle.
 * The folder of our own is good if the programs there are the same and can be loaded; a machine that lacks libraries takes those
 * of the bundle, and only then, since other programs there would use them too. */
static const char script_found_or_sent[] =
    "name=$1; arch=$2; same=$3; hash=$4; own=$5; "
    "cache=${XDG_CACHE_HOME:-$HOME/.cache}/replay/programs; dir=$cache/$hash; new=; "
    "say() { echo \"$*\" >&2; exit 1; }; "
    "clean() { [ -z \"$new\" ] || rm -rf \"$new\"; }; "
    "loads() { for p in launch actor learner; do ldd \"$1/replay-$p\" 2>&1 || [ $? = 127 ] || echo not found; done "
    "| grep \"not found\" >/dev/null; [ $? = 1 ]; }; "
    "sums() { cd \"$1\" && sha256sum replay-launch replay-actor replay-learner && if [ -d lib/python ]; then "
    "find -L lib/python -type f -not -name \"*.pyc\" | LC_ALL=C sort | xargs sha256sum; fi; }; "
    "is_ours() { [ -x \"$1/replay-launch\" ] && [ \"$(sums \"$1\" 2>/dev/null | sha256sum | cut -c1-64)\" = \"$own\" "
    "]; }; "
    /* asks for the programs and stores them */
    "obtain() { there=$(uname -m); [ \"$there\" = \"$arch\" ] || say \"$name is $there, these programs are for $arch: "
    "install them there and write hosts[].programs\"; "
    "for p in head tr tar gzip sha256sum mktemp; do command -v $p >/dev/null || say \"there is no $p on $name: install "
    "it, or install "
    "our programs there and write hosts[].programs\"; done; "
    "umask 077; mkdir -p \"$cache\" && new=$(mktemp -d \"$cache/new.XXXXXX\") || say \"$cache on $name cannot be "
    "written\"; "
    "trap clean EXIT; trap \"exit 1\" HUP INT TERM; "
    "echo \"@rp {\\\"type\\\":\\\"need\\\",\\\"arch\\\":\\\"$there\\\"}\"; "
    "while read -r line; do case $line in \"@rp \"*bundle*) break;; esac; done; "
    "size=$(echo \"${line##*size}\" | tr -cd 0-9); "
    "head -c \"$size\" | tar xzf - -C \"$new\" || say \"our programs could not be stored in $cache on $name\"; "
    "(cd \"$new\" && sha256sum -c list >/dev/null) || say \"our programs are damaged in $cache on $name\"; "
    "mv -T \"$new\" \"$dir\" 2>/dev/null || [ -d \"$dir\" ] || say \"$dir on $name cannot be written\"; "
    "clean; new=; "
    "ls -1td \"$cache\"/[0-9a-f]* | tail -n +5 | while read -r old; do rm -rf \"$old\"; done; "
    "find \"$cache\" -maxdepth 1 -name \"new.*\" -mmin +60 -exec rm -rf {} +; "
    "echo \"@rp {\\\"type\\\":\\\"got\\\"}\"; }; "
    "if is_ours \"$same\" && loads \"$same\"; then exec \"$same/replay-launch\" node; fi; "
    "if [ -d \"$dir\" ]; then touch -c \"$dir\"; else obtain; fi; "
    "if loads \"$dir\"; then exec \"$dir/replay-launch\" node; fi; "
    "LD_LIBRARY_PATH=$dir/libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; export LD_LIBRARY_PATH; "
    "loads \"$dir\" || say \"our programs need a newer C library than that of $name: build them there and write "
    "hosts[].programs\"; "
    "exec \"$dir/replay-launch\" node";

/* One word for the shell there, whatever it contains. */
static void write_quoted(const char *word, FILE *out)
{
    fputs(" '", out);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    fputc('\'', out);
}

static void write_line(const struct carrier_options *options, const struct host_config *host, const char *name,
                       FILE *out)
{
    struct utsname machine = {0};
    const struct bundle *bundle = options->bundle;
    uname(&machine);
    const char *installed[] = {script_installed, "sh", name, host->programs, NULL};
    const char *sent[] = {
        script_found_or_sent,           "sh", name, machine.machine, options->programs, bundle ? bundle->hash : "",
        bundle ? bundle->programs : "", NULL};
    fputs("exec sh -c", out);
    for (const char **word = host->programs[0] ? installed : sent; *word; word++)
        write_quoted(*word, out);
}

/* Given to the caller; NULL: no memory. */
static char *build_line(const struct carrier_options *options, const struct host_config *host, const char *name)
{
    char *line = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&line, &size);
    if (!out)
        return NULL;
    write_line(options, host, name, out);
    if (fclose(out) == 0)
        return line;
    free(line);
    return NULL;
}

char **carrier_build(const struct carrier_options *options, const struct host_config *host, const char *name,
                     rp_error *err)
{
    if (!host->programs[0] && !options->bundle) {
        err_fill(err, RP_FAILED_PRECONDITION, "there are no programs for host %s: write hosts[].programs", name);
        return NULL;
    }
    char *const *own = host->command.data;
    size_t n = 0, count = host->command.count ? host->command.count : SSH_WORDS + 1;
    char **list = calloc(count + 2, sizeof *list);
    bool ok = list != NULL;
    for (uint32_t i = 0; ok && i < host->command.count; i++)
        ok = (list[n++] = strdup(own[i])) != NULL;
    for (size_t i = 0; ok && i < SSH_WORDS && host->command.count == 0; i++)
        ok = (list[n++] = strdup(ssh_words[i])) != NULL;
    if (ok && host->command.count == 0)
        ok = (list[n++] = strdup(name)) != NULL;
    if (ok)
        ok = (list[n++] = build_line(options, host, name)) != NULL;
    if (!ok) {
        err_fill(err, RP_NO_MEMORY, "no memory for the command of host %s", name);
        if (list)
            command_free(&list);
    }
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
