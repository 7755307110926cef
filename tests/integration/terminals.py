"""A shell in a real terminal, by tmux."""

import subprocess
import time

from launches import PATIENCE, equal, eventually

PROMPT = "ready> "


class Terminal:
    """A shell in a terminal of so many columns and rows, on a tmux server of its own."""

    def __init__(self, place, columns, rows):
        self.server = str(place.base / ("tmux-%d" % columns))
        shell = place.write("shell-%d" % columns, "#!/bin/sh\nPS1='%s' exec /bin/sh -i\n" % PROMPT)
        environment = dict(place.environment, TERM="screen-256color")
        for name in ("TMUX", place.mark.split("=")[0]):  # the terminal itself is none of those that must end
            environment.pop(name, None)
        subprocess.run(self.command("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c",
                                    str(place.base), shell, ";", "set", "-g", "status", "off", ";", "set", "-g",
                                    "window-size", "manual", ";", "resize-window", "-x", str(columns), "-y", str(rows)),
                       check=True, env=environment)

    def __enter__(self):
        eventually(lambda: self.screen()[0].startswith(PROMPT.strip()), PATIENCE, "the prompt")
        return self

    def __exit__(self, kind, error, trace):
        if kind:
            print("---- the screen\n%s" % "\n".join(self.screen()))
        subprocess.run(self.command("kill-server"))

    def command(self, *words):
        return ["tmux", "-S", self.server, *words]

    def tmux(self, *words):
        return subprocess.run(self.command(*words), check=True, capture_output=True, text=True).stdout

    def type(self, text):
        self.tmux("send-keys", "-l", text)
        self.tmux("send-keys", "Enter")

    def screen(self, history=False):
        """The lines as they are seen, without blanks at their ends. A line that was wrapped is two."""
        return [line.rstrip() for line in self.tmux("capture-pane", "-p", *(["-S", "-"] if history else [])).split("\n")]

    def await_screen(self, condition, what, seconds=PATIENCE):
        return eventually(lambda: condition(self.screen()), seconds, what)

    def await_check(self, check, *arguments):
        """Waits until the screen passes the check, and returns it: a frame may be read while it is being drawn."""
        end = time.monotonic() + PATIENCE
        while True:
            screen = self.screen()
            try:
                check(screen, *arguments)
                return screen
            except AssertionError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def await_still(self):
        """Returns the screen once it does not change any more: a frame may be read while it is being drawn."""
        def still():
            before = self.screen()
            time.sleep(0.5)
            return before if self.screen() == before else None
        return eventually(still, PATIENCE, "a screen that stands still")

    def is_restored(self):
        """The cursor is shown, lines are wrapped, and the screen is the usual one."""
        equal(self.tmux("display-message", "-p", "#{cursor_flag} #{wrap_flag} #{alternate_on}").strip(), "1 1 0", "the terminal")

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def resize(self, columns, rows):
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))
