#!/bin/sh
# What the documents say about keys and log ids is what the program has.
set -eu
cd "$RP_SOURCE_DIR"
failed=0

say() {
    echo "$1"
    failed=1
}

reference="${TMPDIR:-/tmp}/reference.$$"
trap 'rm -f "$reference"' EXIT
"$RP_BROKER" --print-reference > "$reference"
sed -n '/^## The broker/,/^## A run/p' docs/CONFIG.md | grep '^|' | diff -u - "$reference" ||
    say "docs/CONFIG.md is not what 'replay-broker --print-reference' prints"
"$RP_SINGLE" --print-reference | grep -v '^| `broker\.' > "$reference"
sed -n '/^## A run/,$p' docs/CONFIG.md | grep '^|' | diff -u - "$reference" ||
    say "docs/CONFIG.md is not what 'replay-single --print-reference' prints"

# Every log line that asks for something is listed; lines of level info and debug may be left out.
ids() { grep -oE '[ABCL][0-9]{4}' | sort -u; }
all=$(grep -rhoE '"[ABCL][0-9]{4}"' --include='*.c' broker proto agent | ids)
loud=$(grep -rhE '"[ABCL][0-9]{4}"' --include='*.c' broker proto agent | grep -vE 'LEVEL_(INFO|DEBUG), "' |
    grep -oE '"[ABCL][0-9]{4}"' | ids)
listed=$(grep -oE '^\| [ABCL][0-9]{4} ' docs/LOG.md | ids)
for id in $loud; do
    echo "$listed" | grep -qx "$id" || say "docs/LOG.md does not list $id"
done
for id in $listed; do
    echo "$all" | grep -qx "$id" || say "docs/LOG.md lists $id, which no program logs"
done

for config in configs/broker/*.yaml; do
    "$RP_BROKER" -c "$config" --check || say "$config has mistakes"
done

for config in configs/*.yaml configs/learning/*.yaml configs/cluster/*.yaml; do
    "$RP_SINGLE" -c "$config" --check || say "$config has mistakes"
    "$RP_BROKER" -c "$config" --section broker --check || say "the broker's section of $config has mistakes"
done

# Files that the documents name exist.
for name in $(grep -ohE '\b(broker|proto|agent|bench|tests|configs|docs|include)/[A-Za-z0-9_/.-]+\.(c|h|md|yaml|py|sh|proto)\b' \
    README.md docs/*.md | sort -u); do
    [ -e "$name" ] || say "a document names $name, which does not exist"
done

# Links between the documents lead to files and headings that exist.
python3 - README.md docs/*.md proto/PROTOCOL.md bench/README.md <<'PYTHON' || failed=1
import pathlib, re, sys

def headings(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.M)}

wrong = []
for name in sys.argv[1:]:
    here = pathlib.Path(name)
    for target in re.findall(r"\]\(([^)\s]+)\)", here.read_text()):
        path, _, heading = target.partition("#")
        if "://" in path:
            continue
        there = here.parent / path if path else here
        if not there.exists() or (heading and heading not in headings(there)):
            wrong.append("%s: nothing is at %s" % (name, target))
sys.stdout.writelines(line + "\n" for line in wrong)
sys.exit(bool(wrong))
PYTHON

# The walks of docs/ARCHITECTURE.md: each function is defined in the file that its row names.
grep -E '^\| [0-9]+ \|' docs/ARCHITECTURE.md | tr -d '`' | while IFS='|' read -r _ _ functions files _; do
    for function in $(echo "$functions" | grep -oE '\b[a-z]+(_[a-z]+)+\b'); do
        # shellcheck disable=SC2086
        grep -qE "^[a-z].*\b$function\(" $(echo "$files" | tr -d ',') || echo "$function is not in$files"
    done
done >"$reference"
[ ! -s "$reference" ] || say "docs/ARCHITECTURE.md: $(cat "$reference")"

exit $failed
