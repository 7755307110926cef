#!/usr/bin/env bash
# ./dev release [SUITE ...]: makes what a release consists of, and tries it as a user would. Needs root and 6 GiB in TMPDIR for a suite.
# The source archive is made of the last commit. In a clean root of each suite, the Debian package and the wheel are built from that archive;
# in another one, which has no compiler, tests/release_check.sh installs, uses and removes them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() { printf '%s\n' "$*" >&2; exit 1; }

[ $# -gt 0 ] || set -- bookworm trixie
version=$(sed -n 's/^project(replay VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
grep -q "^## $version " CHANGELOG.md || die "CHANGELOG.md has no section '## $version': describe the release there first"
[ -z "$(git status --porcelain)" ] || die "there are changes that are not committed, and the archive is made of the last commit: commit or stash them"

dist=$PWD/build/dist archive=$PWD/build/dist/replay-$version.tar.gz
rm -rf "$dist" && mkdir -p "$dist"
git archive --prefix "replay-$version/" -o "$archive" HEAD

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
for suite in "$@"; do
    bash tests/roots.sh --suites "$suite" --folder "$work/try" --archive "$archive" true
    mkdir -p "$work/make" "$dist/$suite"
    cp -a "$work/try/$suite" "$work/make/"
    bash tests/roots.sh --suites "$suite" --folder "$work/make" --archive "$archive" "./dev package" "./dev python"
    cp "$work/make/$suite"/replay/build/package/*.deb "$work/make/$suite"/replay/build/python/*.whl "$dist/$suite/"
    rm -rf --one-file-system "$work/make"
    mkdir -p "$work/try/$suite/dist"
    cp "$dist/$suite"/* "$work/try/$suite/dist/"
    bash tests/roots.sh --suites "$suite" --folder "$work/try" --archive "$archive" "bash tests/release_check.sh /dist"
done
(cd "$dist" && sha256sum "$(basename "$archive")" */* | tee SHA256SUMS)
