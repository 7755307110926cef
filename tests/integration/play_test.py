"""An agent at play: episodes that the evaluator records, and the environment drawn in a terminal."""

import pathlib
import re
import shutil
import subprocess
import sys

from launches import ENDLESS, PATIENCE, Place, check, equal, program, sets
from harness import contains, json_lines
from terminals import PROMPT, Terminal

PACKAGE = pathlib.Path(program("launch")).resolve().parent / "lib" / "python"


def episodes(folder):
    return json_lines(folder / "episodes.jsonl")


def test_evaluations_are_recorded():
    """One episode of each evaluation, in a file of the run, and the last one in its report; a resumed run goes on with the file."""
    with Place() as place:
        launcher = place.running("--folder", "one", *sets(*ENDLESS, "evaluator.every=500"))
        launcher.await_alive(lambda: len(episodes(launcher.folder)) > 1, "two recordings")
        launcher.stop()
        kept = episodes(launcher.folder)
        means = {one["environment_steps"]: one["return"] for one in json_lines(launcher.folder / "evaluator-0.jsonl")}
        for one in kept:
            head, frames = one["head"], one["frames"]
            equal(head["mean"], means[head["at"]], "mean return")
            equal((head["environment"], head["episodes"], head["width"]), ("CartPole-v1", 2, 0), "head")
            equal([frame[0] for frame in frames], list(range(head["steps"] + 1)), "steps")
            equal(frames[-1][1], head["return"], "return")
        report = (launcher.folder / "report.html").read_text()
        contains(report, '"api/play?at=%d"' % kept[-1]["head"]["at"])
        check('"api/play?at=%d"' % kept[0]["head"]["at"] not in report, "the report has more than the last episode")
        again = place.start("resume", str(launcher.folder), *sets("stop.steps=%d" % (launcher.steps() + 1000)))
        again.given = launcher.given
        again.ends()
        later = episodes(launcher.folder)
        equal(later[:1], kept[:1], "the first recording after a resume")
        check(later[-1]["head"]["at"] > kept[-1]["head"]["at"], "no later recording")


def show(terminal, episodes):
    """Draws episodes in the terminal. Returns after two frames."""
    terminal.type("clear; stty -g > before; %s eval one --show --episodes %d; echo status=$?; stty -g > after" % (program("launch"), episodes))
    shown = ("episode [0-9]+ of %d" % episodes, "space pauses, q ends", "▀")
    first = terminal.await_screen(lambda screen: all(re.search(text, "\n".join(screen)) for text in shown) and screen, "a frame")
    terminal.await_screen(lambda screen: screen != first, "another frame")


def is_over(terminal, place):
    """Returns what is on the screen. The terminal is as it was."""
    screen = terminal.await_screen(lambda screen: PROMPT.strip() in screen and screen, "the prompt")
    check("status=0" in screen, "exit status", screen)
    equal((place.base / "after").read_text(), (place.base / "before").read_text(), "the terminal's mode")
    terminal.is_restored()
    return "\n".join(screen)


def test_an_episode_in_a_terminal():
    """eval --show draws at the environment's speed, pauses, and ends with q or Ctrl-C; without a terminal it says so and prints text."""
    if not shutil.which("tmux"):
        print("no tmux: skipped")
        return
    with Place() as place:
        place.launch("--folder", "one").ends()
        with Terminal(place, 120, 24) as terminal:
            show(terminal, 4)
            terminal.press("Space", "q")
            contains(is_over(terminal, place), "mean return of 4 episodes")
            show(terminal, 100)
            terminal.await_screen(lambda screen: re.search("episode ([2-9]|[1-9][0-9]) of 100", "\n".join(screen)), "a later episode")
            terminal.press("C-c")
            check("mean return" not in is_over(terminal, place), "a result after Ctrl-C")
        out, err = place.call("eval", "one", "--show", "--episodes", "1")
        contains(err, "standard output is not a terminal, so the environment cannot be drawn")
        contains(out, "mean return of 1 episodes")


ENVIRONMENT = """
import numpy as np
from replaybus import statistics
from replaybus.spaces import Box, Discrete

class Blinker:
    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)
    metadata, render_mode = {"render_fps": 5}, "rgb_array"

    def reset(self, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 5, False, {}

    def render(self):
        frame = np.zeros((200, 300, 3), np.uint8)
        frame[:100] = (250, 40 * self.steps, 0)
        return frame

def make():
    return statistics.normalize(Blinker())
"""


def test_frames_of_python():
    """What an environment in Python renders is recorded, made smaller. Its statistics are in the run's folder."""
    if not PACKAGE.is_dir():
        return  # a build without Python
    with Place() as place:
        (place.base / "blinker.py").write_text(ENVIRONMENT)
        words = sets("environment.name=python:blinker:make", "folder=one", "actors.count=1", "stop.steps=300", "evaluator.every=100",
                     "environment.spec={dtype: float32, shape: [2], actions: 2, max_steps: 0}")
        done = subprocess.run([sys.executable, "-m", "replaybus.single", "-c", str(place.config), "--quiet", *words],
                              cwd=place.base, env=dict(place.environment, PYTHONPATH="%s:%s" % (PACKAGE, place.base)), timeout=PATIENCE,
                              stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        equal(done.returncode, 0, done.stderr)
        check((place.base / "one" / "actor-0.statistics.npy").exists(), "no statistics")
        last = episodes(place.base / "one")[-1]
        equal((last["head"]["width"], last["head"]["height"], last["head"]["step_s"]), (75, 50, 0.2), "size and speed")
        equal(len(last["frames"]), 6, "frames")
        check(last["frames"][0][3].startswith("/8A"), last["frames"][0][3][:12])  # 64 pixels of red 15, green 0, blue 0
        check(len({frame[3] for frame in last["frames"]}) == 6, "frames are alike")
