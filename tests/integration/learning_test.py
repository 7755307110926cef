"""Agents really learn: Ape-X DQN on CartPole-v1 to a mean return of 400 over 20 greedy episodes, for three seeds. And bench/learning
--agents: which runs it repeats, its numbers and its curves, with a replay-launch that writes made-up results."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
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


# Takes the place of replay-launch. The learner waits 0.9 of its first report, which has no beginning, then 0.5 of one second and 0.1
# of three: 0.2 in all. In these four seconds it makes 80 updates, and two actors take 1,000 steps. A seed fails while there is a
# file fail-SEED.
MADE_UP = """#!/usr/bin/python3
import json, pathlib, sys
words = sys.argv[1:]
folder, seed = pathlib.Path(words[words.index("--folder") + 1]), int(words[words.index("--seed") + 1])
cloning = words[0].endswith("/td3-bc.yaml")
offline = cloning or words[0].endswith("/iql.yaml")
place = pathlib.Path(__file__).parent
with open(place / "called", "a") as file:
    file.write(f"{seed}\\n")
if (place / f"fail-{seed}").exists():
    sys.exit("made to fail")
folder.mkdir()

def put(name, *lines):
    keys = ("time", "environment_steps", "learner_steps", "wait_share", "return")
    text = [json.dumps({"process": name, **{k: v for k, v in zip(keys, line) if v is not None}}) + "\\n" for line in lines]
    (folder / (name + ".jsonl")).write_text("".join(text))

steps = 0 if offline else 1
put("learner-0", (100, 0, 0, 0.9), (101, 100 * steps, 20, 0.5), (104, 1000 * steps, 80, 0.1))
if not offline:
    put("actor-0", (100, 0, 0), (103, 900, 60))
    put("actor-1", (100.5, 50, 0), (104, 1000, 80))
final = {21: 500, 22: 500, 23: 440, 24: 400}[seed] if not offline else -800 if cloning else -200
put("evaluator-0", (102, 500 * steps, 40, None, final / 2), (104, 1000 * steps, 80, None, final))
report = {"phase": "done", "reason": "", "final_value": final, "steps": 1000 * steps, "learner_steps": 80, "elapsed_s": 5.0, "restarts": 0}
(folder / "report.json").write_text(json.dumps(report))
"""


class Agents:
    """bench/learning --agents in a folder of its own."""

    def __init__(self, folder):
        self.programs, self.out = folder / "programs", folder / "out"
        self.programs.mkdir()
        (folder / "mixed").mkdir()
        (folder / "mixed" / "scores.json").write_text(json.dumps({"random": -1200, "expert": -200}))
        for name in ("replay-launch", "replay-broker"):
            (self.programs / name).write_text(MADE_UP)
            (self.programs / name).chmod(0o755)

    def run(self, *words):
        """(exit status, {configuration: row} of agents.json, what it has printed, seeds of the runs that were made)"""
        called = self.programs / "called"
        called.write_text("")
        script = os.path.join(os.environ["RP_SOURCE_DIR"], "bench", "learning")
        done = subprocess.run([sys.executable, "-B", script, "--agents", "--jobs", "1", "--out", str(self.out), *words], text=True, cwd=self.out.parent,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "RP_BUILD_DIR": str(self.programs)})
        rows = json.loads((self.out / "agents.json").read_text())["rows"]
        return done.returncode, {row["config"]: row for row in rows}, done.stdout, [int(word) for word in called.read_text().split()]


def check_agents_in_parts(agents):
    """Runs that are there are found; one that failed is made the next time; one of other settings or another agent is made again."""
    (agents.programs / "fail-22").touch()
    status, rows, printed, made = agents.run("--only", "ppo-cartpole", "--seeds", "21-22")
    assert (status, made) == (1, [21, 22]) and "made to fail" in printed and "1 of 2 seeds" in printed, printed
    assert rows["ppo-cartpole"]["returns"] == {"21": 500} and not rows["ppo-cartpole"]["met"]
    (agents.programs / "fail-22").unlink()
    status, rows, printed, made = agents.run("--only", "ppo-cartpole", "--seeds", "21-22")
    assert (status, made) == (0, [22]) and rows["ppo-cartpole"]["met"] and printed.count(", found") == 1, printed
    status, rows, printed, made = agents.run("--only", "iql", "--seeds", "21-22")  # and behaviour cloning
    assert (status, made) == (0, [21, 22, 21, 22]) and (rows["iql"]["of_expert"], rows["iql"]["times_cloned"]) == (1, 2.5), printed
    status, rows, printed, made = agents.run("--only", "ppo-cartpole", "--seeds", "21-24")
    assert (status, made) == (1, [23, 24]), printed
    assert agents.run("--only", "iql", "--seeds", "21-21", "--set", "agent.batch=7")[3] == [21]
    assert agents.run("--only", "iql", "--seeds", "21-21", "--fresh")[3] == [21, 21]


def check_agents_files():
    """A result is outdated if the agent, or what it imports, has changed; not if another agent has."""
    bench = os.path.join(os.environ["RP_SOURCE_DIR"], "bench")
    code = "import os, runs; print(*(os.path.basename(path) for path in runs.agent_files('../configs/agents/{CONFIG}.yaml')))"
    for config, files in {"ppo-cartpole": "common.py ppo.py", "iql": "common.py continuous.py iql.py mixed_data.py offline.py"}.items():
        out = subprocess.run([sys.executable, "-B", "-c", code.replace("{CONFIG}", config)], cwd=bench, capture_output=True, text=True)
        assert out.stdout.strip() == files, out


def check_agents_numbers(agents):
    """A row is of whole runs, and of all seeds."""
    (agents.programs / "replay-broker").unlink()  # nothing is run, so no program is missed
    status, rows, printed, made = agents.run("--draw", "--seeds", "21-24")
    assert (status, made) == (1, []), printed
    row, iql = rows["ppo-cartpole"], rows["iql"]
    assert (row["min"], row["median"], row["mean"], row["max"]) == (400, 470, 460, 500), row
    for name, value in {"wait_share": 0.2, "updates_per_second": 20, "steps_per_second": 250, "seconds": 5}.items():
        assert abs(row[name] - value) < 1e-9, (name, row)
    assert row["complete"] and not row["met"] and row["environment_steps"] == 1000
    assert iql["environment_steps"] == 80 and iql["steps_per_second"] is None and len(iql["keys"]) == 1  # learner steps; 21 was repeated
    curve = [json.loads(line).get("environment_steps") for line in (agents.out / "iql-seed-22.jsonl").read_text().splitlines()]
    assert curve == [None, 40, 80, 80], curve
    assert rows["mpo-swingup"]["mean"] is None and len(rows) > 10
    lines = {line.split("  ")[0] + " " + line.split()[1]: line for line in printed.splitlines() if "  " in line}
    assert lines["CartPole-v1 PPO"].split()[-7:] == ["5", "0.20", "20.0", "250.0", "-", "-", "MISSED"], printed
    assert lines["Pendulum-v1 IQL"].endswith("2 of 4 seeds") and lines["CartPoleSwingUp MPO"].endswith("not run"), printed
    head, *rest = (agents.out / "iql-seed-22.jsonl").read_text().splitlines()  # as if an agent had changed since
    (agents.out / "iql-seed-22.jsonl").write_text("\n".join([head.replace('"key": "', '"key": "0'), *rest]))
    assert "2 of 4 seeds, 2 versions" in agents.run("--draw", "--seeds", "21-24")[2]


def check_agents_curves(agents):
    """PPO is drawn first: 500, 500, 440 and 400 at the end, half of that up to step 500, and a bar at 500."""
    text = (agents.out / "agents.svg").read_text()
    assert text.count("<polyline") == text.count("<polygon") == text.count("stroke-dasharray") == 2  # PPO and IQL
    assert ">worst 400.0, median 470.0; MISSED</text>" in text and ">CartPole-v1, PPO</text>" in text
    assert "not run: ppo-pendulum, mcts-catch" in text
    # The scale is that of two levels, which are printed beside their height.
    levels = {float(value): float(y) - 4 for y, value in re.findall(r'y="([\d.]+)" text-anchor="end"[^>]*>([-\d.]+)</text>', text)[:3]}
    (a, at_a), (b, at_b) = sorted(levels.items())[0], sorted(levels.items())[-1]

    def values(shape):
        points = re.search(f'<{shape} points="([^"]*)"', text)[1].split()
        return [a + (float(point.split(",")[1]) - at_a) * (b - a) / (at_b - at_a) for point in points]

    mean, band = values("polyline"), values("polygon")
    wanted = {"mean": (mean[0], 230), "mean at step 700": (mean[35], 322), "mean at the end": (mean[-1], 460),
              "best": (band[0], 250), "best at the end": (band[len(mean) - 1], 500),
              "worst": (band[-1], 200), "worst at the end": (band[len(mean)], 400)}
    for name, (found, value) in wanted.items():
        assert abs(found - value) < 1, (name, found, value)
    bar = re.search(r'y1="([\d.]+)"[^>]*stroke-dasharray', text)[1]
    assert abs(a + (float(bar) - at_a) * (b - a) / (at_b - at_a) - 500) < 1


def check_agents():
    with tempfile.TemporaryDirectory() as folder:
        agents = Agents(pathlib.Path(folder))
        check_agents_files()
        check_agents_in_parts(agents)
        check_agents_numbers(agents)
        check_agents_curves(agents)


def main():
    check_agents()
    if os.environ.get("RP_SANITIZE"):
        print("skipped: it would take many minutes with instrumented programs")
        return 77
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        met = check_learning(pool)
    print(f"{time.monotonic() - began:.1f} s in all")
    return 0 if met else 1
