#!/usr/bin/env bash
# The Debian package: everything is in it, it installs into an empty root, what it installs works there, and removing it
# leaves nothing behind.
set -euo pipefail
: "${RP_BUILD_DIR:?}" "${RP_VERSION:?}"
if [ -n "${RP_SANITIZE:-}" ] || ! type dpkg-shlibdeps help2man file >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
    echo "skipped: packages are made of plain builds, by root, with dpkg-dev, help2man and file"
    exit 77
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=$folder/root
mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info"
touch "$root/var/lib/dpkg/status"
(cd "$folder" && cpack -G DEB -B "$folder" --config "$RP_BUILD_DIR/CPackConfig.cmake") >"$folder/log" 2>&1 ||
    { cat "$folder/log"; exit 1; }
deb=$(echo "$folder"/replay_"$RP_VERSION"*.deb)

echo "-- what it needs"
needs=$(dpkg-deb -f "$deb" Depends)
echo "$needs"
for library in libzmq5 libprotobuf-c1 liblz4-1 libyaml-0-2; do
    [[ $needs == *$library* ]] || { echo "the package does not depend on $library"; exit 1; }
done

echo "-- install"
dpkg --root="$root" --force-depends --force-script-chrootless --log="$folder/dpkg.log" -i "$deb" >"$folder/log" 2>&1 ||
    { cat "$folder/log"; exit 1; }
programs="broker ctl launch actor learner single bench demo"
for name in $programs; do
    program=replay-$name
    "$root/usr/bin/$program" --help >"$folder/help" </dev/null
    grep -q "^\.TH ${program^^} " "$root/usr/share/man/man1/$program.1"
    [ -e "$root/usr/share/bash-completion/completions/$program" ]
done
[ "$("$root/usr/bin/replay-broker" --version)" = "replay-broker $RP_VERSION" ]
share=$root/usr/share
for file in replay/proto/replay.proto replay/configs/cartpole-dqn.yaml doc/replay/README.md doc/replay/proto/PROTOCOL.md \
    doc/replay/docs/OPERATE.md; do
    [ -s "$share/$file" ] || { echo "no $file"; exit 1; }
done
cd "$folder"
for config in "$share"/replay/configs/*.yaml; do
    "$root/usr/bin/replay-launch" check "$config" || { echo "$config is installed, and does not run"; exit 1; }
done

echo "-- the unit starts what the package has"
unit=$root/usr/lib/systemd/system/replay-broker.service
if command -v systemd-analyze >/dev/null; then
    # systemd looks for programs in fixed places of the running system only.
    sed "s#^ExecStart=replay-broker#ExecStart=$root/usr/bin/replay-broker#" "$unit" >"$folder/replay-broker.service"
    systemd-analyze verify --man=no "$folder/replay-broker.service" 2>"$folder/log" || { cat "$folder/log"; exit 1; }
    ! grep -F replay-broker.service "$folder/log"
fi
options=$(sed -n 's/^Environment="REPLAY_OPTIONS=\(.*\)"$/\1/p' "$unit")
[ -n "$options" ]
# shellcheck disable=SC2086
"$root/usr/bin/replay-broker" ${options//%S/$folder} --check

echo "-- completion"
# complete_bash, complete_zsh and complete_fish PROGRAM WORDS...: what the shell offers for the last word, in one line
complete_bash() (
    . "$share/bash-completion/completions/$1"
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _replay "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
)
complete_zsh() { # _describe and _files work within zsh's line editor only: the test has its own, with the choice by prefix
    zsh -fc 'words=("$@") CURRENT=$#
        _describe() { print -- ${${(M)found:#${words[-1]}*}%%:*} }
        _files() { : }
        source '"$share/zsh/vendor-completions/_replay" zsh "$@"
}
complete_fish() {
    fish --no-config -c 'source $argv[1]; complete -C "$argv[2]" | string replace -r "\t.*" "" | string join " "; true' \
        "$share/fish/vendor_completions.d/$1.fish" "$*"
}
mkdir -p "$folder/here/runs/cartpole-1"
cd "$folder/here"
for shell in bash zsh fish; do
    command -v $shell >/dev/null || continue
    echo "$shell"
    while read -r expected words; do
        # shellcheck disable=SC2086
        found=$(PATH=$root/usr/bin:$PATH complete_$shell $words)
        [ "${found%/}" = "$expected" ] || { echo "$shell completes '$words' to '$found', not '$expected'"; exit 1; }
    done <<'TABLE'
check replay-launch che
limiter replay-ctl lim
limiter replay-ctl --timeout 1s lim
revoke replay-ctl key rev
--print-reference replay-broker --print-r
--again replay-launch plan --ag
cartpole-1 replay-launch stop cart
cartpole-1 replay-ctl --run cart
warn replay-broker --log-level wa
TABLE
    # A name of a run is text: nothing of it is executed, and a space is part of it.
    mkdir -p 'runs/odd $(touch executed)' 'runs/odd `touch executed`'
    found=$(PATH=$root/usr/bin:$PATH complete_$shell replay-launch stop odd)
    rmdir runs/odd*
    [[ $found == *'$(touch executed)'* && ! -e executed ]] || { echo "$shell offers '$found'"; exit 1; }
done
cd /

echo "-- remove"
dpkg --root="$root" --force-script-chrootless --log="$folder/dpkg.log" --purge replay >"$folder/log" 2>&1 ||
    { cat "$folder/log"; exit 1; }
left=$(find "$root" -path "$root/var/lib/dpkg" -prune -o -type f -print)
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
