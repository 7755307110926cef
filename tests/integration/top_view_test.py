"""replay-ctl top on a real terminal: what it shows, its keys, and other sizes of the terminal."""

import shlex
import shutil
import sys
import time

from launches import ENDLESS, PATIENCE, Place, check, equal, eventually, program, sets
from harness import contains
from terminals import PROMPT, Terminal

LABELS = ("waits", "memory", "messages", "items", "cursor", "waiting")


def has(*words):
    return lambda screen: all(any(word in line for line in screen) for word in words)


def sessions(screen):
    """The names in the list of sessions."""
    titles = [i for i, line in enumerate(screen) if line.lstrip().startswith("session") and "rate" in line]
    return [line.split()[0] for line in screen[titles[-1] + 1:] if line.startswith(" actor-")] if titles else []


def check_frame(screen, columns, rows):
    """A whole frame, and nothing else."""
    lines = [line for line in screen if line]
    equal(sum("replay-broker" in line for line in lines), 1, "heads")
    check(lines[0].startswith(" replay-broker ") and lines[-1].startswith(" q quits"), screen)
    check(all(len(line) < columns for line in lines), "a line as wide as the terminal", screen)
    check(len(lines) <= rows, screen)
    labels = [line.split()[0] for line in lines if line.strip() and len(line) - len(line.lstrip()) < 5]  # not a sentence's second line
    for label in LABELS:
        equal(labels.count(label), 1, label)


def test_top():
    with Place() as place, Terminal(place, 120, 40) as terminal:
        run = place.running("--folder", "run", *sets("actors.count=8", *ENDLESS))
        endpoint = eventually(lambda: run.endpoints().get("service"), PATIENCE, "the endpoint")
        terminal.type("clear; %s -e %s top --interval 200ms; echo status=$?" % (shlex.quote(program("ctl")), endpoint))
        terminal.await_screen(lambda screen: has("q quits", "/s")(screen) and len(sessions(screen)) == 8, "eight sessions")
        screen = terminal.await_check(check_frame, 120, 40)
        contains("\n".join(screen), "uniform / fifo", "items", " in ", "SPI 4", "session▾")
        equal(sessions(screen), ["actor-%d" % i for i in range(8)], "sessions by name")
        for title in ("rate▾", "waiting▾", "memory▾", "session▾"):
            terminal.press("s")
            terminal.await_screen(has(title), title)

        # Narrower, lower, and back: each time a whole frame, and nothing of the one before.
        for columns, rows in ((60, 20), (80, 24), (61, 30), (120, 40)):
            terminal.resize(columns, rows)
            terminal.await_check(check_frame, columns, rows)
        terminal.resize(80, 20)
        terminal.await_screen(has("rows 1 to "), "a part of the sessions")
        def last(screen):  # how long a page is changes with those who wait
            terminal.press("NPage")
            return has(" of 8", "actor-7")(screen)
        terminal.await_screen(last, "the last sessions")

        terminal.press("Space")
        terminal.await_screen(has("[paused]"), "a pause")
        held, second = terminal.await_still(), int(time.time())
        terminal.press("h")
        terminal.await_screen(has("sort the sessions"), "help")
        eventually(lambda: int(time.time()) > second, what="the next second: the clock on the screen stands still")
        terminal.press("h")
        terminal.await_screen(lambda now: now == held, "the same frame as before")
        terminal.press("p")
        terminal.await_screen(lambda now: now != held and not has("[paused]")(now), "figures that move")

        # Ctrl-Z gives the terminal back, fg takes it again.
        terminal.press("C-z")
        terminal.await_screen(lambda now: any("Stopped" in line for line in now), "a shell")
        terminal.is_restored()
        terminal.type("fg; echo status=$?")
        terminal.await_screen(has("q quits", "actor-"), "top again")

        terminal.press("q")
        terminal.await_screen(lambda now: "status=0" in now, "the end")
        terminal.type("echo typed")
        terminal.await_screen(lambda now: PROMPT + "echo typed" in now, "a shell with echo")
        terminal.is_restored()
        run.stop()


if not shutil.which("tmux"):
    print("no tmux: skipped")
    sys.exit(77)
