#!/usr/bin/env bash
# Runs commands in clean roots of the systems that docs/GUIDE.md names: ./dev roots, and ./dev release (tests/release.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
tests/roots.sh [--suites "NAME ..."] [--mirror URL] [--folder DIR] [--archive FILE] [COMMAND ...]

Makes a clean root of each suite with debootstrap, copies the files of this working tree into it, and runs each COMMAND there, in the
tree's folder (default: ./dev demo, ./dev test, ./dev test -L slow). Needs root, 8 GiB in DIR for each suite, and half an hour on two cores.

--suites   Debian's names of them; default: "bookworm trixie" (Debian 12 and 13)
--mirror   default: the mirror that this system's apt uses
--folder   keeps the roots, with what was built, in DIR, and uses those that are there; default: a new folder in TMPDIR, removed at
           the end
--archive  unpack FILE.tar.gz instead of the working tree
Exit status 0 if every command passed.
TEXT
}
die() { printf '%s\n' "$*" >&2; exit 1; }

suites="bookworm trixie" mirror='' folder='' archive='' commands=()
while [ $# -gt 0 ]; do
    case $1 in
    --suites | --mirror | --folder | --archive) [ $# -gt 1 ] || die "$1 needs a value"; declare "${1#--}=$2"; shift 2 ;;
    -h | --help) usage; exit ;;
    -*) usage >&2; die "no such option: $1" ;;
    *) commands+=("$1"); shift ;;
    esac
done
[ ${#commands[@]} -gt 0 ] || commands=("./dev demo" "./dev test" "./dev test -L slow")
[ "$(id -u)" = 0 ] || die "debootstrap and chroot need root: sudo ./dev roots or release"
command -v debootstrap >/dev/null || die "there is no debootstrap: ./dev install roots"
# Of the archives of this system, the first one of its own release: not that of updates, security or backports.
[ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Component: main' |
    awk '$2 !~ /-/ && !found++ {print $1}')
[ -n "$mirror" ] || die "this system's apt has no mirror: name one with --mirror"
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf --one-file-system "$folder"' EXIT
fi

# make_root SUITE ROOT: with the settings of this system's apt that reach the mirror: proxies and certificates.
make_root() {
    local new=$2.new proxy=''
    rm -rf --one-file-system "$new"
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    env ${proxy:+"http_proxy=$proxy"} debootstrap --variant=minbase "$1" "$new" "$mirror" || return
    apt-config dump | grep -E '^Acquire::(https?::|Check-Valid-Until)' >"$new/etc/apt/apt.conf.d/90mirror" || true
    [ -e "$new/etc/hosts" ] || printf '127.0.0.1\tlocalhost\n' >"$new/etc/hosts" # which an installed system has
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] ||
        install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$new/etc/ssl/certs/ca-certificates.crt"
    mv "$new" "$2"
}

copy_tree() {
    local to=$1/replay
    mkdir -p "$to"
    find "$to" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
    [ -z "$archive" ] || { tar -xzf "$archive" -C "$to" --strip-components 1; return; }
    git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -cf - | tar -xf - -C "$to"
}

# in_root ROOT COMMAND: in namespaces of its own, so that no mount and no process outlives it, however this script ends.
in_root() {
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child bash -c '
        set -e
        mount -t proc proc "$1/proc"
        mount --rbind /sys "$1/sys"
        mount -t tmpfs tmpfs "$1/dev/shm"
        mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
        exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 bash -c "cd /replay && $2; exit"
    ' in_root "$1" "$2" </dev/null 2>&1 | cat
}

results=()
failed=0
mkdir -p "$folder"
folder=$(realpath "$folder")
for suite in $suites; do
    root=$folder/$suite
    [ -d "$root" ] || make_root "$suite" "$root" || die "no root of $suite could be made from $mirror, see above"
    copy_tree "$root"
    for command in "${commands[@]}"; do
        printf '\n== %s: %s\n' "$suite" "$command"
        start=$SECONDS verdict=passed
        in_root "$root" "$command" || { verdict=FAILED failed=1; }
        results+=("$(printf '%-10s %-8s %5d s  %s' "$suite" "$verdict" $((SECONDS - start)) "$command")")
    done
done
printf '\n'
printf '%s\n' "${results[@]}"
exit $failed
