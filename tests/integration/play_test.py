"""An agent at play: episodes that the evaluator records, and the environment drawn in a terminal."""

import os
import pathlib
import pty
import select
import subprocess
import sys
import termios
import time

from launches import ENDLESS, PATIENCE, Place, check, equal, program, sets
from harness import contains, json_lines

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


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, place, *words):
        self.master, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.before = termios.tcgetattr(theirs)
        self.popen = subprocess.Popen([program("launch"), *words], cwd=place.base, stdin=theirs, stdout=theirs, stderr=theirs,
                                      env=dict(place.environment, TERM="xterm-256color"), start_new_session=True,
                                      preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)))  # becomes the controlling terminal
        self.theirs, self.out = theirs, ""

    def read_until(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not condition(self.out):
            check(time.monotonic() < end, what, "does not come; there is", self.out[-500:])
            if select.select([self.master], [], [], 0.1)[0]:
                self.out += os.read(self.master, 65536).decode(errors="replace")

    def press(self, key):
        os.write(self.master, key)

    def ends(self, text, status=0):
        self.read_until(lambda out: text in out.replace("\r", ""), text)
        equal(self.popen.wait(PATIENCE), status, "exit status")
        equal(termios.tcgetattr(self.theirs), self.before, "the terminal's mode")
        contains(self.out, "\x1b[?25h\x1b[?1049l")  # the cursor, and the usual screen
        os.close(self.master)
        os.close(self.theirs)


def frames(out):
    return out.count("\x1b[H")


def test_an_episode_in_a_terminal():
    """eval --show draws at the environment's speed, pauses, and ends with q or Ctrl-C; without a terminal it says so and prints text."""
    with Place() as place:
        place.launch("--folder", "one").ends()
        terminal = Terminal(place, "eval", "one", "--show", "--episodes", "4")
        terminal.read_until(lambda out: frames(out) >= 3 and "space pauses, q ends" in out, "three frames")
        contains(terminal.out, "▀")
        contains(terminal.out, "episode 1 of 4")
        terminal.press(b" ")
        terminal.press(b"q")
        terminal.ends("mean return of 4 episodes")
        terminal = Terminal(place, "eval", "one", "--show", "--episodes", "100")
        terminal.read_until(lambda out: "episode 2 of 100" in out, "the second episode")
        terminal.press(b"\x03")
        terminal.ends("\x1b[?1049l")
        check("mean return" not in terminal.out, "a result after Ctrl-C")
        out, err = place.call("eval", "one", "--show", "--episodes", "1")
        contains(err, "standard output is not a terminal, so the environment cannot be drawn")
        contains(out, "mean return of 1 episodes")


ENVIRONMENT = """
import numpy as np
from replaybus.spaces import Box, Discrete

class Blinker:
    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)
    metadata, render_mode = {"render_fps": 5}, "rgb_array"

    def reset(self, seed=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 5, False, {}

    def render(self):
        frame = np.zeros((200, 300, 3), np.uint8)
        frame[:100] = (250, 40 * self.steps, 0)
        return frame
"""


def test_frames_of_python():
    """What an environment in Python renders is recorded, made smaller."""
    if not PACKAGE.is_dir():
        return  # a build without Python
    with Place() as place:
        (place.base / "blinker.py").write_text(ENVIRONMENT)
        words = sets("environment.name=python:blinker:Blinker", "actors.count=1", "stop.steps=300", "evaluator.every=100",
                     "environment.spec={dtype: float32, shape: [2], actions: 2, max_steps: 0}")
        done = subprocess.run([sys.executable, "-m", "replaybus.single", "-c", str(place.config), "--folder", "one", "--quiet", *words],
                              cwd=place.base, env=dict(place.environment, PYTHONPATH="%s:%s" % (PACKAGE, place.base)), timeout=PATIENCE,
                              stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        equal(done.returncode, 0, done.stderr)
        last = episodes(place.base / "one")[-1]
        equal((last["head"]["width"], last["head"]["height"], last["head"]["step_s"]), (75, 50, 0.2), "size and speed")
        equal(len(last["frames"]), 6, "frames")
        check(last["frames"][0][3].startswith("/8A"), last["frames"][0][3][:12])  # 64 pixels of red 15, green 0, blue 0
        check(len({frame[3] for frame in last["frames"]}) == 6, "frames are alike")
