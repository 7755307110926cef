#!/bin/bash
# The programs of a run: every mistake has its sentence and its exit status before anything starts; then a whole run of
# separate processes, and the same in one process twice over.
set -u
dir=$(mktemp -d)
broker=
trap '[ -n "$broker" ] && kill "$broker" 2>/dev/null; rm -rf "$dir"' EXIT
failed=0
unset REPLAY_ENDPOINT

# expect STATUS TEXT PROGRAM ...: the exit status, and the text somewhere in what it prints.
expect() {
    local status=$1 text=$2
    shift 2
    "$@" > "$dir/out" 2>&1 < /dev/null
    local got=$?
    if [ $got -ne "$status" ] || ! grep -qF -- "$text" "$dir/out"; then
        echo "FAILED: ${*##*/}: exit status $got (wanted $status), wanted '$text' in:"
        cat "$dir/out"
        failed=1
    fi
}

programs="$RP_ACTOR $RP_LEARNER $RP_SINGLE"

for program in $programs; do
    name=$(basename "$program")
    expect 0 "Usage: $name [options]" "$program" --help
    expect 0 "$name $RP_VERSION" "$program" --version
    expect 0 "no mistakes; CartPole-v1 with dqn" "$program" --check
    expect 0 "learning_rate: 0.001" "$program" --print-config
    expect 0 '| `agent.algorithm` | string | `dqn` |' "$program" --print-reference
    expect 2 "Try '$name --help'." "$program" --no-such-option
    expect 2 "unexpected argument 'run.yaml'. Did you mean -c run.yaml?" "$program" run.yaml
    expect 2 "be read: No such file or directory" "$program" -c "$dir/none.yaml"
    expect 2 "--log-level loud: use debug, info, warn, error or off" "$program" --log-level loud
    expect 2 "override 'seed': has no '='" "$program" --set seed

    # The words of other frameworks.
    expect 2 "did you mean 'learning_rate'?" "$program" --set agent.lr=1
    expect 2 "did you mean 'agent.batch'?" "$program" --set batch_size=1
    expect 2 "did you mean 'discount'?" "$program" --set agent.gamma=1
    expect 2 "did you mean 'max_size'?" "$program" --set broker.tables[0].capacity=1
    expect 0 "no mistakes" "$program" --set broker.tables[0].sampler=uniform --check

    # A configuration that cannot work, before anything is started.
    expect 2 "unknown environment 'CartPol-v1' (did you mean 'CartPole-v1'?)" "$program" --set environment.name=CartPol-v1
    expect 2 "unknown algorithm 'dqm' (did you mean 'dqn'?)" "$program" --set agent.algorithm=dqm
    expect 2 "sac needs continuous actions; CartPole-v1 has 2 discrete ones: use dqn, impala or bc" \
        "$program" --set agent.algorithm=sac
    expect 2 "it does not export rp_env_plugin_entry" "$program" \
        --set environment.plugin="$RP_PLUGIN_DIR/selector_example.so" --set environment.name=Other
    expect 2 "environment plug-in $dir/none.so:" "$program" --set environment.plugin="$dir/none.so"
    expect 2 "agent.filters asks for a convolution over images" "$program" --set agent.filters=8
    expect 2 "$name: 1 mistake in the configuration; nothing was started" "$program" --set actors.count=-1
done

expect 2 "--index is 1, but actors.count is 1: they count from 0 to 0" "$RP_ACTOR" --index 1
expect 2 "--index is 3, but learners.count is 2: they count from 0 to 1" "$RP_LEARNER" --index 3 --set learners.count=2
expect 2 "--index is 1, but actors.count is auto: say --set actors.count=N" "$RP_ACTOR" --index 1 --set actors.count=auto
expect 2 "--index is 1, but learners.count is auto: say --set learners.count=N" \
    "$RP_LEARNER" --index 1 --set learners.count=auto
expect 0 "count: auto" "$RP_SINGLE" --print-config --set actors.count=auto
expect 3 "no broker answers at ipc://$dir/nobody" "$RP_ACTOR" --set actors.count=auto --endpoint "ipc://$dir/nobody" \
    --timeout 200ms
expect 0 "CartPole-v1 with dqn, seed 1: return" "$RP_SINGLE" --quiet --set actors.count=auto --set learners.count=auto \
    --set stop.steps=200 --set evaluator.episodes=1
expect 0 '"return": null' "$RP_SINGLE" --quiet --json --set stop.steps=200 --set evaluator.episodes=0
expect 2 "--index is 'x'; it needs a whole number" "$RP_ACTOR" --index x
expect 2 "--episodes belongs to --evaluate or --weights" "$RP_ACTOR" --episodes 3
expect 2 "--timeout is '3'; it needs a number with a unit" "$RP_ACTOR" --timeout 3
expect 2 "--resume and --fresh exclude each other" "$RP_LEARNER" --resume --fresh
expect 2 "--resume needs the folder of the run" "$RP_LEARNER" --resume
expect 2 "--resume: there is no state at $dir/learner.weights" "$RP_LEARNER" --resume --folder "$dir"
expect 2 "the file '$dir/none'" "$RP_ACTOR" --endpoints-file "$dir/none"
expect 2 "any free port: say with --endpoint" "$RP_ACTOR" --set broker.service=tcp://127.0.0.1:0
expect 1 "min_size limiter always does: use sample_to_insert_ratio or queue" \
    "$RP_SINGLE" --set 'broker.tables[0].limiter={kind: min_size}'

# Weights that are none.
head -c 1000 /dev/urandom > "$dir/noise"
: > "$dir/empty"
for file in noise empty none; do
    expect 1 "$dir/$file" "$RP_ACTOR" --weights "$dir/$file"
done

# No broker.
for program in "$RP_ACTOR" "$RP_LEARNER" "$RP_ACTOR --evaluate"; do
    # shellcheck disable=SC2086
    expect 3 "no broker answers at ipc://$dir/nobody" $program --endpoint "ipc://$dir/nobody" --timeout 200ms
done

# The same twice in one process, and another one for another seed.
short=(--set stop.steps=600 --set evaluator.episodes=2 --set "broker.tables[0].limiter.min_size=100")
for run in a b; do
    "$RP_SINGLE" "${short[@]}" --quiet --json --folder "$dir/$run" > "$dir/$run.txt" || failed=1
done
fingerprint() { sed 's/.*"fingerprint": "\([0-9a-f]*\)".*/\1/' "$1"; }
if [ "$(fingerprint "$dir/a.txt")" != "$(fingerprint "$dir/b.txt")" ]; then
    echo "FAILED: the same run twice gives different parameters"
    failed=1
fi
"$RP_SINGLE" "${short[@]}" --quiet --json --seed 2 > "$dir/c.txt" || failed=1
if [ "$(fingerprint "$dir/a.txt")" = "$(fingerprint "$dir/c.txt")" ]; then
    echo "FAILED: another seed gives the same parameters"
    failed=1
fi
expect 0 "mean return of 3 episodes: " "$RP_ACTOR" --weights "$dir/a/learner.weights" --episodes 3
expect 1 "$dir/a/learner.weights" "$RP_ACTOR" --weights "$dir/a/learner.weights" --set "agent.hidden=[32]"
expect 1 "$dir/a/learner.weights" "$RP_ACTOR" --weights "$dir/a/learner.weights" --set environment.name=Acrobot-v1

# What a run records is lost if the disk is full at its end.
for blocks in unlimited 64; do
    expect $([ $blocks = 64 ] && echo 1 || echo 0) "2000 environment steps" bash -c 'trap "" XFSZ; ulimit -f "$0" && exec "$@"' $blocks "$RP_SINGLE" --quiet \
        --set stop.steps=2000 --set evaluator.episodes=1 --set learners.count=0 --set actors.weights="$dir/a/learner.weights" \
        --set broker.folder="$dir/$blocks" --set broker.journal=off --set 'broker.tables[0].limiter={kind: min_size}'
done

# A broker, two actors, a learner and an evaluator as processes, from one file.
cat > "$dir/run.yaml" << END
folder: $dir/run
environment: {name: CartPole-v1}
agent: {algorithm: dqn, hidden: [32, 32], batch: 32}
adder: {table: replay, n_step: 3}
actors: {count: 2, epsilon: 0.4}
evaluator: {episodes: 2}
stop: {steps: 3000}
report: {every: 200ms}
broker:
  service: ipc://$dir/service
  ingest: ipc://$dir/ingest
  events: ipc://$dir/events
  tables:
    - name: replay
      sampler: {kind: prioritized, exponent: 0.6}
      limiter: {kind: sample_to_insert_ratio, samples_per_insert: 8, min_size: 200, error_buffer: 200}
END
"$RP_BROKER" -c "$dir/run.yaml" --section broker --log-level warn > "$dir/broker.txt" 2>&1 &
broker=$!
"$RP_LEARNER" -c "$dir/run.yaml" > "$dir/learner.txt" 2>&1 &
learner=$!
"$RP_ACTOR" -c "$dir/run.yaml" --index 0 > "$dir/actor-0.txt" 2>&1 &
actor0=$!
"$RP_ACTOR" -c "$dir/run.yaml" --index 1 > "$dir/actor-1.txt" 2>&1 &
actor1=$!
"$RP_ACTOR" -c "$dir/run.yaml" --evaluate > "$dir/evaluator.txt" 2>&1 &
evaluator=$!
for process in "$actor0" "$actor1" "$evaluator" "$learner"; do
    wait "$process" || {
        echo "FAILED: a process of the run ended with status $?"
        failed=1
    }
done
for file in actor-0.jsonl actor-1.jsonl learner-0.jsonl evaluator-0.jsonl learner.weights; do
    [ -s "$dir/run/$file" ] || {
        echo "FAILED: the run's folder has no $file"
        failed=1
    }
done
expect 0 "mean return of 2 episodes: " "$RP_ACTOR" -c "$dir/run.yaml" --weights "$dir/run/learner.weights"
if [ $failed -ne 0 ]; then
    tail -n 5 "$dir"/*.txt
fi

# A signal ends each of them in order.
for program in "$RP_ACTOR" "$RP_LEARNER" "$RP_SINGLE"; do
    "$program" -c "$dir/run.yaml" --set stop.steps=0 --set folder= > "$dir/out" 2>&1 &
    process=$!
    for _ in $(seq 500); do # until it has its handler: a signal before would end it with another status
        [ "$(basename "$(readlink "/proc/$process/exe")")" = "$(basename "$program")" ] &&
            grep -q '^SigCgt:.*[4-7c-f]...$' "/proc/$process/status" && break
        sleep 0.02
    done
    kill -TERM "$process"
    wait "$process" || {
        echo "FAILED: ${program##*/} ended with status $? after SIGTERM:"
        cat "$dir/out"
        failed=1
    }
done
kill "$broker" && wait "$broker" || failed=1
broker=
[ $failed -eq 0 ] && echo "all programs behave"
exit $failed
