"""The view of replay-launch on a real terminal, by tmux."""

import os
import shlex
import shutil
import sys

from launches import ENDLESS, PATIENCE, Place, check, equal, eventually, program, sets
from harness import contains
from terminals import PROMPT, Terminal

# What the view shows of a run, by the words that begin its lines.
LABELS = ("speed", "inserts", "samples", "SPI", "actors", "learners", "waits", "table", "return", "processes", "memory")


def next_frame(terminal):
    seen = screen_head(terminal.screen())
    terminal.await_screen(lambda now: screen_head(now) not in ("", seen), "the next frame")


def labelled(screen):
    """The lines that begin with a label, as {label: the rest}."""
    return {label_of(line): line for line in screen if label_of(line)}


def label_of(line):
    """The label that a line begins with; None: it has none."""
    word = line[1:].split(" ")[0]
    return word if line.startswith(" ") and word in LABELS else None


def frames(screen):
    """How many heads of a frame there are; one, if nothing is left of old ones."""
    return sum(line.startswith(" small  ") for line in screen)


def last_frame(screen):
    """From the last head on."""
    heads = [i for i, line in enumerate(screen) if line.startswith(" small  ")]
    return screen[heads[-1]:] if heads else [""]


def screen_head(screen):
    return last_frame(screen)[0]


def settled(screen):
    """A whole frame of a run under way."""
    frame = last_frame(screen)
    lines = labelled(frame)
    return set(LABELS) <= set(lines) and "running" in frame[0] and "none yet" not in lines["return"]


def check_frame(screen, columns, rows):
    frame = last_frame(screen)
    lines = labelled(frame)
    check("running" in frame[0], frame[0])
    equal(sorted(filter(None, map(label_of, frame))), sorted(LABELS), "lines")
    progress = frame[1]
    check(set(progress) & set("▏▎▍▌▋▊▉█"), "progress bar:", progress)
    contains(progress, "% ", "steps ", " of 100,000", " left")
    contains(lines["speed"], "steps/s", "updates/s")
    contains(lines["SPI"], "target 4")
    contains(lines["actors"], "% idle")
    contains(lines["learners"], "% idle")
    contains(lines["return"], "best ")
    contains(lines["processes"], "actors 2/2", "learners 1/1", "restarts 0")
    contains(lines["memory"], "MiB", "cores ")
    for line in frame:
        check(len(line) < columns, "a line as wide as the terminal:", repr(line))
    check(len([line for line in frame if line]) < rows, "a frame higher than the terminal")


def start(terminal, place, *more):
    words = [program("launch"), str(place.config), *sets("stop.steps=100000", "environment.delay=1ms", "evaluator.every=300"),
             *more]
    terminal.type("clear; %s %s; echo status=$?" % (place.mark, " ".join(map(shlex.quote, words))))


def curve(screen):
    """Whether a line is made of blocks."""
    return any(set(line.strip()) & set("▁▂▃▄▅▆▇█") and len(set(line.strip())) <= 9 and line.startswith("           ") for line in screen)


def watch(columns, rows):
    """A run from its start to Ctrl-C, on a terminal of that size."""
    with Place() as place, Terminal(place, columns, rows) as terminal:
        start(terminal, place)
        terminal.await_screen(lambda screen: settled(screen) and curve(screen), "a whole frame with the curve of returns")
        terminal.await_check(check_frame, columns, rows)

        # Frames go on in place.
        next_frame(terminal)
        equal(frames(terminal.screen(True)), 1, "frames, with what was scrolled away")

        # Narrower and wider in the middle. A narrower terminal wraps and scrolls away what nobody can take back, and shows it
        # again when it grows (and tmux tells of its new size a little later); but it does so once, and below it frames go on
        # in place.
        for size in ((columns - 22, rows - 4), (columns + 15, rows + 3), (columns, rows)):
            terminal.resize(*size)
            next_frame(terminal)  # which may have begun before the view knew the new size
            next_frame(terminal)
            before = frames(terminal.screen(True))
            next_frame(terminal)
            equal(frames(terminal.screen(True)), before, "frames, old ones included, at %dx%d" % size)
        terminal.await_check(check_frame, columns, rows)

        # The end: the result stands below the last frame, and then the prompt.
        terminal.tmux("send-keys", "C-c")
        terminal.await_screen(lambda now: "status=0" in now, "the end", PATIENCE)
        terminal.await_screen(lambda now: [line for line in now if line][-1] == PROMPT.strip(), "the prompt")
        screen = terminal.screen(True)
        # What a narrower terminal has wrapped and scrolled away is out of reach; nothing else is left of old frames.
        heads = [i for i, line in enumerate(screen) if line.startswith(" small  ")]
        head = heads[-1]
        check("stopped" in screen[head] and not any("stopped" in screen[i] or "stopping" in screen[i] for i in heads[:-1]), screen)
        result = next(i for i, line in enumerate(screen) if line.startswith("small stopped after "))
        check(head < result < screen.index("status=0"), screen)
        contains("\n".join(screen[result:]), "Ctrl-C", "last evaluation ", "report: runs/small-")
        contains(" ".join(screen), "stopping: Ctrl-C")
        terminal.is_restored()


def test_80_by_24():
    watch(80, 24)


def test_120_by_40():
    watch(120, 40)


def listed(screen):
    """The names in the list of processes."""
    titles = [i for i, line in enumerate(screen) if line.lstrip().startswith("process") and "restarts" in line and "cores" in line]
    return [line.split()[0] for line in screen[titles[-1] + 1:] if " runs " in line] if titles else []


def check_narrow(screen, columns):
    """The last frame is whole, and no line has rests of a wider one."""
    frame = last_frame(screen)
    check(all(len(line) < columns for line in frame), frame)
    contains([line for line in frame if line][-1], "Ctrl-C stops")


def test_keys():
    """Sort, scroll, pause, help; q does not end a run, and a narrower terminal has no rests of a wider one."""
    with Place() as place, Terminal(place, 100, 30) as terminal:
        start(terminal, place, "--folder", "run", *sets("actors.count=6"))
        terminal.await_screen(settled, "a whole frame")
        terminal.press("s")
        terminal.await_screen(lambda screen: any("cores▾" in line for line in screen), "a list by processors")
        terminal.press("s", "s", "s")
        terminal.await_screen(lambda screen: any("process▾" in line for line in screen), "a list by name")
        terminal.await_check(lambda screen: equal(listed(screen)[:3], ["broker", "learner-0", "actor-0"], "the list"))
        terminal.resize(100, 27)  # now the list is longer than its room
        terminal.await_screen(lambda screen: any("rows 1 to " in line for line in screen), "a part of the list")
        terminal.press("Down")
        terminal.await_screen(lambda screen: any("rows 2 to " in line for line in screen), "the next part")
        terminal.press("PPage")
        terminal.await_screen(lambda screen: any("rows 1 to " in line for line in screen), "the first part")

        terminal.press("q", "p")
        terminal.await_screen(lambda screen: "[paused]" in screen_head(screen), "a pause")
        held = screen_head(terminal.screen())
        before = (place.base / "run/status.json").stat().st_mtime_ns
        eventually(lambda: (place.base / "run/status.json").stat().st_mtime_ns > before, PATIENCE, "a run that goes on")
        equal(screen_head(terminal.screen()), held, "the head while the view is paused")
        terminal.press("?")
        terminal.await_screen(lambda screen: any("sort the processes" in line for line in screen), "help")
        terminal.press("?", "p")
        terminal.await_screen(lambda screen: "[paused]" not in screen_head(screen) and settled(screen), "the view again")

        terminal.resize(60, 20)
        next_frame(terminal)
        next_frame(terminal)
        terminal.await_check(check_narrow, 60)
        terminal.press("C-c")
        terminal.await_screen(lambda now: "status=0" in now, "the end", PATIENCE)
        terminal.type("echo typed")  # the shell has its terminal back, with echo
        terminal.await_screen(lambda now: PROMPT + "echo typed" in now, "what is typed")


def test_event_above_the_view():
    """What happens is told above the frame, and stays there."""
    with Place() as place, Terminal(place, 100, 30) as terminal:
        start(terminal, place, "--folder", "run", *sets("stop.steps=12000"))  # long enough for the kill to come in time
        terminal.await_screen(lambda screen: "running" in screen_head(screen), "a run")
        log = (place.base / "run/logs/launch.log").read_text()
        pid = next(line for line in log.splitlines() if "started process=actor-1 pid=" in line).rsplit("=", 1)[1]
        os.kill(int(pid), 9)
        terminal.await_screen(lambda screen: any(line.startswith("actor-1 ended after ") for line in screen), "the event")
        terminal.await_screen(lambda screen: any("restarts 1" in line for line in screen), "the count of restarts")
        equal(frames(terminal.screen(True)), 1, "frames")
        terminal.await_screen(lambda screen: "status=0" in screen, "the end")
        screen = terminal.screen(True)
        equal(frames(screen), 1, "frames:\n" + "\n".join(screen))
        event = next(i for i, line in enumerate(screen) if line.startswith("actor-1 ended after "))
        result = next(i for i, line in enumerate(screen) if line.startswith("small done after "))
        check(event < screen.index(screen_head(screen)) < result, screen)
        contains("\n".join(screen[result:]), "12,000 steps", "1 restart", "final return ", "report: run/report.html")


def test_status_follow():
    """The same view, from another terminal."""
    with Place() as place, Terminal(place, 90, 30) as terminal:
        run = place.running(*sets(*ENDLESS))
        terminal.type("clear; %s status --follow; echo status=$?" % shlex.quote(program("launch")))
        terminal.await_screen(lambda screen: "running" in screen_head(screen), "the view")
        next_frame(terminal)
        terminal.press("q")
        terminal.await_screen(lambda screen: "status=0" in screen, "the end by q")
        check(run.alive(), "q ends the view, not the run")
        terminal.type("clear; %s status --follow; echo status=$?" % shlex.quote(program("launch")))
        terminal.await_screen(lambda screen: "running" in screen_head(screen), "the view")
        run.stop()
        terminal.await_screen(lambda screen: "status=0" in screen, "the end of --follow")
        screen = terminal.screen(True)
        equal(frames(screen), 1, "frames:\n" + "\n".join(screen))
        check("stopped" in screen_head(screen), screen_head(screen))


if not shutil.which("tmux"):
    print("no tmux: skipped")
    sys.exit(77)
