"""A real browser, without a screen: Debian's chromium, driven by chromedriver over the W3C WebDriver protocol."""

import base64
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def required():
    """For a file whose tests need a browser. Where it may, it goes on in a network of its own, which has nothing but loopback: when the
    interface of another test comes or goes, Chromium gives up what it is loading (ERR_NETWORK_CHANGED)."""
    for program in ("chromedriver", "chromium"):
        if not shutil.which(program):
            print(f"skipped: there is no {program}: ./dev install browser")
            sys.exit(77)
    if ctypes.CDLL(None).unshare(0x40000000) == 0:  # CLONE_NEWNET
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def fetch(url, headers=None, body=None, method=None):
    """Status and bytes of an answer. A body is posted as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class BrowserError(Exception):
    """The driver or the page says that something is wrong."""


class Browser:
    """One window. Use it with `with`."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="replay-browser-")
        self.base = f"http://127.0.0.1:{self._start_driver()}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--user-data-dir={self.folder}/profile", "--window-size=1280,1000",
                     # no service of the browser's own may ask the network: the tests count requests
                     "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
                     "--disable-default-apps", "--disable-features=OptimizationHints,MediaRouter,Translate"]
        wanted = {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "timeouts": {"script": 240000}, "goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}}
        self.session = self._call("POST", "/session", wanted)["sessionId"]

    def _start_driver(self):
        """Starts chromedriver and returns its port. It ends at once if another program takes the port that it has found free."""
        said = []
        for _ in range(3):
            self.driver = subprocess.Popen(["chromedriver", "--port=0", f"--log-path={self.folder}/driver.log"],
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
            for line in self.driver.stdout:
                said.append(line)
                if "successfully on port" in line:
                    return int(line.rstrip().rstrip(".").split()[-1])
            said.append(f"chromedriver: exit status {self.driver.wait()}\n")
        raise BrowserError("chromedriver did not start:\n" + "".join(said))

    def _call(self, method, path, body=None):
        status, answer = fetch(self.base + path, body=(body or {}) if method == "POST" else None, method=method)
        value = json.loads(answer)["value"]
        if status >= 400:
            raise BrowserError(value["message"].split("\n")[0])
        return value

    def call(self, method, path, body=None):
        return self._call(method, f"/session/{self.session}{path}", body)

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """Runs a function's body in the page and returns its value."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        return self.run("const e = document.querySelector(arguments[0]); return e ? e.textContent : null;", selector)

    def wait(self, what, script, *arguments, seconds=60):
        """Waits until the script returns something true, and returns it."""
        end = time.monotonic() + seconds
        while True:
            value = self.run(script, *arguments)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {what}; the page says: {self.text('#verdict')!r} "
                                     f"{(self.text('main') or '')[:300]!r}")
            time.sleep(0.05)

    def press(self, label):
        """Presses a button once it is there. Returns what it says beforehand, in the same moment: numbers change."""
        return self.wait(label, """const one = [...document.querySelectorAll('button')].find((one) => one.textContent === arguments[0]);
            const tip = one && [one.title];
            if (one) one.click();
            return tip""", label)[0]

    def answer(self, label):
        """Answers a question."""
        self.wait("the question", "return document.querySelector('dialog').open")
        self.press(label)

    def keys(self, text):
        """Types into whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def size(self, width, height):
        """Sets the size of the page itself, down to widths that no window has."""
        self.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}})

    def dark(self, on):
        self.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]}})

    def block(self, *patterns):
        """What matches these does not arrive from now on."""
        self.call("POST", "/goog/cdp/execute", {"cmd": "Network.enable", "params": {}})
        self.call("POST", "/goog/cdp/execute", {"cmd": "Network.setBlockedURLs", "params": {"urls": patterns}})

    def memory(self):
        """Bytes of the page's JavaScript after a collection."""
        self.call("POST", "/goog/cdp/execute", {"cmd": "HeapProfiler.collectGarbage", "params": {}})
        return self.run("return performance.memory.usedJSHeapSize;")

    def screenshot(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("GET", "/screenshot")))

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def requests(self):
        """Addresses that the page has asked for since the last call."""
        found = []
        for entry in self.log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return [url for url in found if not url.startswith(("chrome:", "data:"))]

    def problems(self):
        """What the console has said as an error or a warning since the last call."""
        return [entry["message"] for entry in self.log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def close(self):
        try:
            self._call("DELETE", f"/session/{self.session}")
        except (BrowserError, OSError, AttributeError):
            pass
        os.killpg(self.driver.pid, 15)
        self.driver.wait(60)
        self.driver.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
