#!/usr/bin/env bash
# Configuring a second time, as every ./dev command does, changes no compile command: nothing is compiled anew.
set -euo pipefail
: "${RP_SOURCE_DIR:?}"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for try in 1 2; do
    cmake -S "$RP_SOURCE_DIR" -B "$folder/build" -DRP_TESTS=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"$folder/log" 2>&1 ||
        { cat "$folder/log"; exit 1; }
    cp "$folder/build/compile_commands.json" "$folder/commands-$try.json"
done
diff "$folder/commands-1.json" "$folder/commands-2.json" >"$folder/diff" ||
    { echo "the second configuration compiles differently:"; head -n 4 "$folder/diff" | cut -c 1-400; exit 1; }
echo "$(grep -c '"file"' "$folder/commands-2.json") compile commands, the same both times"
