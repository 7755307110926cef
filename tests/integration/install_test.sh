#!/usr/bin/env bash
# Installs into a temporary folder and builds a small program against the result, outside of the tree: with pkg-config
# (shared and static) and with find_package; and the program that replay.h shows, with a broker within the process. Also: the library exports its public functions and nothing else.
set -euo pipefail
: "${RP_BUILD_DIR:?}" "${RP_SOURCE_DIR:?}" "${RP_VERSION:?}"
if [ -n "${RP_SANITIZE:-}" ]; then
    echo "skipped: an instrumented library needs programs that are built the same way"
    exit 77
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix="$folder/prefix"
cmake --install "$RP_BUILD_DIR" --prefix "$prefix" >"$folder/install.log" || { cat "$folder/install.log"; exit 1; }
cp -r "$RP_SOURCE_DIR/tests/install" "$folder/program"
cd "$folder/program"
# The program that the head of replay.h shows.
sed -n 's/^ \*     //p' "$RP_SOURCE_DIR/include/replay/replay.h" >server.c

pc=$(dirname "$(find "$prefix" -name replay.pc)")
export PKG_CONFIG_PATH="$pc"
libdir=$(pkg-config --variable=libdir replay)
[ "$(pkg-config --modversion replay)" = "$RP_VERSION" ]

run() {
    local got
    got=$("$@")
    echo "$got"
    [ "${got%% *}" = "$RP_VERSION" ] || { echo "expected version $RP_VERSION from $*"; exit 1; }
}

echo "-- pkg-config, shared"
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Werror -pedantic program.c $(pkg-config --cflags --libs replay) -o shared
run env LD_LIBRARY_PATH="$libdir" ./shared

echo "-- pkg-config, static"
# shellcheck disable=SC2046
cc -std=c11 program.c $(pkg-config --cflags replay) "$libdir/libreplay.a" \
    $(pkg-config --libs libzmq libprotobuf-c liblz4) -lm -pthread -o static
run ./static

echo "-- find_package"
cmake -S . -B build -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 || { cat cmake.log; exit 1; }
cmake --build build >build.log 2>&1 || { cat build.log; exit 1; }
run ./build/program
run ./build/program_static

if command -v c++ >/dev/null; then
    echo "-- the headers in C++"
    for header in "$prefix"/include/replay/*.h; do
        echo "#include \"replay/$(basename "$header")\""
    done >headers.cc
    c++ -fsyntax-only -Wall -Wextra -Werror -I "$prefix/include" headers.cc
fi

echo "-- each header on its own"
for header in "$prefix"/include/replay/*.h; do
    echo "#include \"replay/$(basename "$header")\"" >alone.c
    cc -std=c11 -fsyntax-only -Wall -Wextra -Werror -pedantic -I "$prefix/include" alone.c
done

echo "-- a broker within the process: pkg-config, shared and static; find_package"
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Werror -pedantic server.c $(pkg-config --cflags --libs replayserver) -o server_shared
run env LD_LIBRARY_PATH="$libdir" ./server_shared
# shellcheck disable=SC2046
cc -std=c11 server.c $(pkg-config --cflags replayserver) "$libdir/libreplayserver.a" \
    $(pkg-config --libs libzmq libczmq libprotobuf-c liblz4 yaml-0.1 libisal) -lm -pthread -ldl -o server_static
run ./server_static
run ./build/server

echo "-- exported symbols"
for library in replay replayserver; do
    nm -D --defined-only "$libdir/lib$library.so" | awk '{print $NF}' | sed 's/@.*//' | sort >"exported_$library"
    grep -v '^rp_' "exported_$library" | grep -v '^_\(init\|fini\|edata\|end\)$\|^__bss_start' >internal || true
    nm --defined-only --extern-only "$libdir/lib$library.a" | awk 'NF == 3 {print $3}' | grep -v '^rp_' >>internal || true
    if [ -s internal ]; then
        echo "lib$library shows internal symbols:"
        cat internal
        exit 1
    fi
done
# Everything that the headers declare is there. The entries are what plug-ins define.
declared() {
    cat "$@" | tr '\n' ' ' | sed 's/;/;\n/g' | grep 'RP_API' | grep -o 'rp_[a-z0-9_]*(' | tr -d '(' | sort -u |
        grep -vE '^rp_(env_)?plugin_entry$'
}
check_exports() {
    if ! comm -23 declared "exported_$1" >absent || [ -s absent ]; then
        echo "declared in the headers, but not in lib$1:"
        cat absent
        exit 1
    fi
    echo "lib$1: $(wc -l <"exported_$1") symbols exported, all of them public"
}
declared "$prefix"/include/replay/*.h >declared
check_exports replayserver
mv "$prefix/include/replay/server.h" .
declared "$prefix"/include/replay/*.h >declared
check_exports replay
ldd "$libdir/libreplay.so" | grep -q yaml && { echo "the client library needs libyaml"; exit 1; }
exit 0
