#!/bin/bash
# replay-bench runs, and its JSON has what its readers rely on. No figure is judged here but that there is one.
set -u
bench="${RP_BENCH:?}"
fails=0

# check NAME COMMAND...: runs the bench and looks at the JSON that it prints.
check() {
    local name=$1
    shift
    if ! "$bench" "$@" --quick --json >"$out" 2>"$log"; then
        echo "FAILED $name: replay-bench $* ended with an error"
        cat "$log"
        fails=$((fails + 1))
        return
    fi
    if ! /usr/bin/python3 - "$name" "$out" <<'PY'; then
import json, sys

name, path = sys.argv[1:]
with open(path) as file:
    found = json.load(file)
assert found["command"] == name, found["command"]
assert found["quick"] is True and found["repeats"] >= 1
assert found["rows"], "no rows"
if name in ("all", "mixed", "agent", "checkpoint", "params", "shards", "tree", "lag"):
    ratios = [row for row in found["rows"] if "ratio" in row]
    assert len(ratios) == {"all": 30, "mixed": 3, "agent": 4, "checkpoint": 3, "params": 1, "shards": 1, "tree": 0, "lag": 3}[name], "a ratio is missing"
    assert found["missed"] == sum(row.get("met") is False for row in found["rows"])
    assert all(row["value"] >= 0 for row in found["rows"] if "value" in row)
else:
    ratios = found["rows"]
    for row in ratios:
        for key in ("what", "size", "items", "clients", "reference_items_per_s", "broker_cores", "client_cores",
                    "core_thread_ns_per_item", "memory_per_item_beyond_payload"):
            assert key in row, key + " is missing"
        for key in ("median", "min", "max"):
            assert row["items_per_s"][key] > 0 and row["reference_items_per_s"][key] > 0, key
for row in ratios:
    assert row["ratio"] > 0, row
PY
        echo "FAILED $name: $*"
        cat "$out"
        fails=$((fails + 1))
    fi
}

folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder
out=$folder/out log=$folder/log

check agent agent
check tree tree
check checkpoint checkpoint
check params params
check lag lag
if [ -z "${RP_SANITIZE:-}" ]; then # the rest takes too long with instrumentation, and shows nothing new
    check all all
    check insert insert --per-message 1 --client library
    check insert insert --size 40000 --transport ipc
    check sample sample --clients 12
    check update update --items 20k --against 1k
    check mixed mixed --client library
    check shards shards --shards 6 --only half # so many shards that an actor's share of the rate is small
fi

for command in "" all insert sample update mixed agent; do
    # shellcheck disable=SC2086
    if ! "$bench" $command --help >"$out" || ! grep -q -e --json "$out"; then
        echo "FAILED $command --help"
        fails=$((fails + 1))
    fi
done
"$bench" nonsense >/dev/null 2>&1
[ $? -eq 2 ] || { echo "FAILED: a wrong command must give 2"; fails=$((fails + 1)); }
"$bench" all --only nonsense >/dev/null 2>&1
[ $? -eq 1 ] || { echo "FAILED: no row must give 1"; fails=$((fails + 1)); }
"$bench" all --quick --strict --only 'sample 40 kB, library' >/dev/null 2>&1
case $? in 0 | 3) ;; *) echo "FAILED: --strict gives 0 or 3"; fails=$((fails + 1)) ;; esac
"$bench" insert --items many >/dev/null 2>&1
[ $? -eq 2 ] || { echo "FAILED: a wrong number must give 2"; fails=$((fails + 1)); }
"$bench" insert --shards 4 >/dev/null 2>&1
[ $? -eq 2 ] || { echo "FAILED: an option of another command must give 2"; fails=$((fails + 1)); }
if compgen -G "$folder/replay-bench-*" >/dev/null; then
    echo "FAILED: files were left behind: $(ls "$folder")"
    fails=$((fails + 1))
fi
[ "$fails" -eq 0 ] && echo "ok"
exit "$fails"
