"""Agents really learn: Ape-X DQN on CartPole-v1 to a mean return of 400 over 20 greedy episodes, for three seeds; and a
run in one process is the same every time for a seed."""

import concurrent.futures
import json
import os
import subprocess
import sys
import time

SEEDS = (1, 2, 3)
ENOUGH = 400
BUDGET = 50_000  # environment steps
AT_ONCE = 2


def run(seed, *settings):
    """The lines that replay-single prints, as objects; the last is the result."""
    config = os.path.join(os.environ["RP_SOURCE_DIR"], "configs", "learning", "cartpole-apex-dqn.yaml")
    words = [os.environ["RP_SINGLE"], "-c", config, "--seed", str(seed), "--json"]
    for setting in settings:
        words += ["--set", setting]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"seed {seed}: exit status {done.returncode}: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if not lines or not lines[-1].get("result"):
        sys.exit(f"seed {seed}: no result in what replay-single printed: {done.stdout[-500:]}")
    return lines


def learn(seed):
    return run(seed, f"stop.value={ENOUGH}", f"stop.steps={BUDGET}", "evaluator.every=1000", "evaluator.episodes=20")


def check_learning(pool):
    """True if every seed has an evaluation that is enough, within the budget."""
    met = True
    for seed, lines in zip(SEEDS, pool.map(learn, SEEDS)):
        result = lines.pop()
        curve = [(line["environment_steps"], line["return"]) for line in lines if line["return"] is not None]
        steps, best = max(curve, key=lambda point: point[1])
        print(f"seed {seed}: return {best:.1f} after {steps} environment steps; final weights {result['return']:.1f}, "
              f"{result['learner_steps']} learner steps, {result['seconds']:.1f} s, {result['fingerprint']}")
        if best < ENOUGH or result["environment_steps"] > BUDGET:
            met = False
            print(f"seed {seed} did not get to {ENOUGH} within {BUDGET} steps: {curve}")
    return met


def check_repeatable(pool):
    """True if a seed repeats its weights, and another seed does not."""
    prints = [lines[-1]["fingerprint"] for lines in pool.map(lambda seed: run(seed, "stop.steps=4000"), (1, 1, 2))]
    print(f"fingerprints after 4000 steps: seed 1 {prints[0]}, again {prints[1]}; seed 2 {prints[2]}")
    return prints[0] == prints[1] != prints[2]


def main():
    if os.environ.get("RP_SANITIZE"):
        print("skipped: it would take many minutes with instrumented programs")
        return 77
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        met = check_learning(pool)
        same = check_repeatable(pool)
    print(f"{time.monotonic() - began:.1f} s in all")
    if not same:
        print("a seed does not repeat its weights, or two seeds give the same")
    return 0 if met and same else 1
