#!/usr/bin/env bash
# release_check.sh DIR: in a clean root, installs the package and the wheel in DIR, uses them, removes them, and looks for what is left.
set -euo pipefail
dist=$1
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y)

files() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /dist -o -path /var/lib -o -path /var/cache \
    -o -path /var/log -o -path /replay \) -prune -o -print | sort; }

"${apt[@]}" update >/dev/null
"${apt[@]}" install --no-install-recommends python3-venv python3-numpy >/dev/null
packages() { dpkg-query -W -f '${Package}\n' | sort; }
packages >/tmp/packages
files >/tmp/before

echo "-- install"
"${apt[@]}" install --no-install-recommends "$dist"/replay_*.deb
replay-broker --version
echo "-- the demo"
folder=$(mktemp -d)
export HOME=$folder # plans are cached there
(cd "$folder" && replay-launch /usr/share/replay/configs/cartpole-dqn.yaml --quiet)
report=$(find "$folder/runs" -name report.html)
[ -s "$report" ] || { echo "the run left no report"; exit 1; }

echo "-- the wheel"
python3 -m venv --system-site-packages "$folder/venv"
"$folder/venv/bin/pip" install -q --no-index --no-deps "$dist"/*.whl
"$folder/venv/bin/python" -m replaybus
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np, replaybus
with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
    with client.writer() as writer:
        for t in range(8):
            writer.append({"x": np.float32(t)})
            writer.item("replay", priority=1.0, slices=1)
        writer.flush()
    with client.sampler("replay", batch_size=4, max_samples=4) as sampler:
        batch = next(iter(sampler))
    assert batch.data["x"].shape[0] == 4, batch.data["x"].shape
print("four of eight items sampled")
PYTHON
rm -rf "$folder"

echo "-- remove"
"${apt[@]}" purge replay >/dev/null
# shellcheck disable=SC2046
"${apt[@]}" purge $(packages | comm -13 /tmp/packages -) >/dev/null
files >/tmp/after
left=$(comm -13 /tmp/before /tmp/after | grep -v '/__pycache__' || true)
[ -z "$left" ] || { printf 'left behind:\n%s\n' "$left"; exit 1; }
echo "nothing is left"
