#!/usr/bin/python3
"""Records episodes of Pendulum-v1 by a random, a middling and an expert policy, for the offline agents: td3_bc.py, iql.py, cql.py.

  python3 agent/python/agents/mixed_data.py [FOLDER]      # default: mixed

FOLDER/mixed.npz has the steps as a file, which the runs of configs/agents read; FOLDER/table is a broker's folder with a checkpoint of the
same steps. Both policies come from one run of TD3 in one process, which FOLDER/expert keeps: the expert is the snapshot with the highest mean
return, the middling one is the first that is a third of the way from random to expert.

A score is (R - random) / (expert - random) for a mean return R, because the returns of Pendulum are negative. scores.json has both.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import replaybus
import replaybus.torch
from common import Actions, flat, last_observations, mlp, returns_of
from replaybus import data, envs, weights

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT, CONFIG = "Pendulum-v1", ROOT / "configs" / "learning" / "pendulum-td3.yaml"
EPISODES, JUDGED, MIDDLING = {"random": 30, "middling": 30, "expert": 40}, 100, 1 / 3


def train(folder):
    """Trains TD3 and gives the paths of its snapshots, the earliest first."""
    built = [ROOT / "build" / preset / "replay-single" for preset in ("release", "dev")]
    program = shutil.which("replay-single") or next((str(path) for path in built if path.exists()), None)
    if program is None:
        sys.exit("replay-single is not on PATH: build it with ./dev build --preset release")
    subprocess.run([program, "-c", str(CONFIG), "--seed", "3", "--folder", str(folder), "--set", "learners.snapshot_every=1000", "--quiet"],
                   env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, check=True)
    return sorted((folder / "snapshots").iterdir())


def act_by(path, env):
    """Acts by a snapshot; None: at random."""
    actions, rng = Actions(env), np.random.default_rng(1)
    if path is None:
        return lambda observations: rng.uniform(-1, 1, (len(observations), actions.size)).astype("float32")
    policy = mlp([*env.single_observation_space.shape, 64, 64, actions.size], torch.nn.ReLU)
    replaybus.torch.load(policy, weights.load(path), "policy")
    return lambda observations: policy(flat(observations)).tanh().detach().numpy()


def mean_return(path):
    with envs.make_vec(ENVIRONMENT, JUDGED) as env:
        env.reset(seed=1_000_000)
        act, actions = act_by(path, env), Actions(env)
        return float(returns_of(env, lambda observations: actions.to_env(act(observations))).mean())


def record(path, episodes, seed):
    """The steps of whole episodes, one episode after the other, by the names of a file."""
    with envs.make_vec(ENVIRONMENT, episodes) as env:
        act, actions, rows, running = act_by(path, env), Actions(env), [], True
        observations, _ = env.reset(seed=seed)
        while running:
            action = act(observations)
            following, rewards, terminated, truncated, info = env.step(actions.to_env(action))
            rows.append(dict(observations=observations, actions=action, rewards=rewards, terminations=terminated, truncations=truncated,
                             next_observations=last_observations(following, info)))
            observations, running = following, not truncated.any()  # all episodes have the same length
    return {name: np.concatenate(np.stack([row[name] for row in rows], 1)) for name in rows[0]}


def save(folder, parts):
    """Writes the file and the checkpoint."""
    np.savez(folder / "mixed.npz", **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    with replaybus.Server([replaybus.Table("replay")], checkpoint=str(folder / "table")) as server, server.client() as client:
        made = data.load(client, folder / "mixed.npz", "replay")
        client.checkpoint()
    print(f"{folder}: {made.items} transitions of {made.episodes} episodes, as mixed.npz and as a checkpoint in table/")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default="mixed", type=Path)
    folder = parser.parse_args().folder
    if (folder / "table").exists():
        sys.exit(f"{folder / 'table'} exists: remove it, or name another folder")
    torch.set_num_threads(1)
    returns = {path: mean_return(path) for path in train(folder / "expert")}
    paths = {"random": None, "expert": max(returns, key=returns.get)}
    scores = {"random": mean_return(None), "expert": returns[paths["expert"]]}
    wanted = scores["random"] + MIDDLING * (scores["expert"] - scores["random"])
    paths["middling"] = next(path for path, value in returns.items() if value >= wanted)
    scores["middling"] = returns[paths["middling"]]
    for name, episodes in EPISODES.items():
        print(f"{episodes} episodes, {name}: mean return {scores[name]:.1f} over {JUDGED} other episodes")
    save(folder, [record(paths[name], episodes, 1000 * seed) for seed, (name, episodes) in enumerate(EPISODES.items())])
    (folder / "scores.json").write_text(json.dumps(scores))


if __name__ == "__main__":
    main()
