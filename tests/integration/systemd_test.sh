#!/usr/bin/env bash
# The unit for systemd, started by a real systemd: this system is booted in a container, over a root that keeps no change.
# Inside, the broker comes up and comes back after a kill; keys and a log file work for its dynamic user; a mistake in the
# configuration stops it for good.
set -euo pipefail

await() { # WHAT COMMAND ...
    local end=$((SECONDS + 20)) what=$1
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "not within 20 s: $what"; exit 1; }
        sleep 0.05
    done
    echo "$what"
}
unit() { [ "$(systemctl show -P "$1" replay-broker)" = "$2" ]; }
serves() { replay-ctl info --timeout 3s >/dev/null 2>&1; }

inside() {
    systemctl start replay-broker
    await "the broker serves" serves
    systemctl kill --kill-who=main -s KILL replay-broker
    await "it is started again after a kill" unit NRestarts 1
    await "it serves again" serves

    cat >/run/broker.yaml <<'YAML'
service: tcp://*:7600
ingest: tcp://*:7601
events: tcp://*:7602
log: {file: /var/log/replay/broker.log}
folder: /var/lib/replay
security: {keys: keys}
tables: [{name: replay}]
YAML
    mkdir -p /etc/default
    echo "REPLAY_OPTIONS=-c /run/broker.yaml" >/etc/default/replay-broker
    systemctl restart replay-broker
    await "it has made its key" test -e /var/lib/replay/keys/broker.key
    replay-ctl key new /run/learner.key --role learner --keys /var/lib/replay/keys
    export REPLAY_KEY_FILE=/run/learner.key
    await "it serves with keys" serves
    mv /var/log/replay/broker.log /var/log/replay/broker.log.1
    systemctl reload replay-broker
    await "it has opened a new log file" test -s /var/log/replay/broker.log

    echo "tabels: []" >>/run/broker.yaml
    systemctl restart replay-broker
    await "a mistake in the configuration ends it" unit ActiveState failed
    await "with status 2" unit ExecMainStatus 2
    await "without a restart" unit NRestarts 0
}

if [ "${1:-}" = inside ]; then
    exec >"$2/log" 2>&1
    trap 'status=$?; [ $status = 0 ] || journalctl -u replay-broker -n 20 --no-pager; systemctl exit $status' EXIT
    inside
    exit
fi

: "${RP_BUILD_DIR:?}" "${RP_SOURCE_DIR:?}"
if [ "$(id -u)" != 0 ] || ! command -v systemd-nspawn >/dev/null || [ -n "${RP_SANITIZE:-}" ]; then
    echo "skipped: this needs root, a plain build, and systemd-container (./dev install cluster)"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/results"
printf '%s\n' "[Service]" "ExecStart=bash /run/test.sh inside /run/results" >"$folder/replay-test.service"
status=0
# shellcheck disable=SC2016
timeout 120 unshare --mount bash -c '
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/upper /mnt/work /mnt/root
    mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
    exec systemd-nspawn --quiet --directory=/mnt/root --boot --register=no --keep-unit --private-network --console=pipe "$@"
    ' boot --bind="$folder/results:/run/results" --bind-ro="$folder/replay-test.service:/etc/systemd/system/replay-test.service" \
    --bind-ro="$RP_SOURCE_DIR/tests/integration/systemd_test.sh:/run/test.sh" \
    --bind-ro="$RP_SOURCE_DIR/cmake/package/replay-broker.service:/etc/systemd/system/replay-broker.service" \
    --bind-ro="$RP_BUILD_DIR/replay-broker:/usr/local/bin/replay-broker" \
    --bind-ro="$RP_BUILD_DIR/replay-ctl:/usr/local/bin/replay-ctl" \
    systemd.unit=replay-test.service >"$folder/console" 2>&1 </dev/null || status=$?
if [ ! -e "$folder/results/log" ]; then
    tail -n 5 "$folder/console"
    echo "skipped: no systemd starts in a container here (systemd-nspawn: status $status)"
    exit 77
fi
cat "$folder/results/log"
exit $status
