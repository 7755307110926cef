"""One address for all runs: who serves it, what it shows, what its buttons do, and whom it refuses."""

import contextlib
import json
import socket

from browser import Browser, fetch, required
from launches import ENDLESS, PATIENCE, Place, check, equal, eventually, sets
from harness import contains, free_ports

required()


class Home(Place):
    """A place whose runs have one page, at an address that no other test uses."""

    def __init__(self):
        super().__init__()
        self.address = "127.0.0.1:%d" % free_ports(1)[0]
        self.environment["REPLAY_PAGE"] = self.address
        self.root = "http://%s/" % self.address

    def url(self, name="run"):
        """The address of a run that goes on, with its token."""
        return (self.base / name / "page").read_text()


def ask(url, headers=None, body=None):
    """Status and JSON of an answer; None: nobody answers."""
    with contextlib.suppress(OSError):
        status, text = fetch(url, headers, body)
        return status, json.loads(text)


def press(browser, label):
    """Presses a button that asks a question, and gives what it says beforehand."""
    tip = browser.press(label)
    browser.wait("the question", "return document.querySelector('dialog').open")
    contains(browser.text("dialog"), tip)
    return tip


def agree(browser):
    """Answers Yes, and gives the text of the reply."""
    browser.answer("Yes")
    browser.wait("the reply", "const box = document.querySelector('dialog'); return box.open && box.textContent.endsWith('Close')", seconds=PATIENCE)
    text = browser.text("dialog p")
    browser.press("Close")
    return text


def test_every_button():
    """Each control of the page, at the address of all runs: it says what it will do, does it, and shows the answer or the refusal."""
    with Home() as place, Browser() as browser:
        run = place.running("--folder", "run", *sets(*ENDLESS, "learners.save_every=1h", "evaluator.every=1000000000"))
        browser.open(place.url())
        contains(press(browser, "Stop the run"), "Ends the run in order")
        browser.answer("No")
        contains(press(browser, "Pause the run"), "2 actors and 1 learner wait")
        contains(agree(browser), "paused: actors and learners wait")
        browser.wait("the sentence", "return document.querySelector('#verdict').textContent.includes('is paused')")
        press(browser, "Evaluate now")
        contains(agree(browser), "over 2 episodes")
        run.await_alive(lambda: run.status().get("n_values", 0) >= 1, "the evaluation")
        press(browser, "Checkpoint now")
        contains(agree(browser), "the learner saves its state")
        run.await_alive((run.folder / "learner.weights").exists, "the learner's state")
        press(browser, "Let the run go on")
        contains(agree(browser), "goes on")
        contains(press(browser, "Actors +"), "Actors 2 → 3: starts one more process on this host")
        contains(agree(browser), "actors: 2 -> 3")
        browser.wait("three actors", "return [...document.querySelectorAll('#controls button')].some((one) => one.title.startsWith('Actors 3 → 2'))")
        press(browser, "Actors −")
        contains(agree(browser), "actors: 3 -> 2")
        press(browser, "Ratio")
        browser.run("document.querySelector('[name=ratio]').value = '2'")
        contains(agree(browser), "ratio: 4 -> 2")
        press(browser, "Ratio")
        browser.run("document.querySelector('[name=ratio]').value = '100000'")
        contains(agree(browser), "That did not work", "error_buffer")
        press(browser, "Stop the run")
        equal([one for one in browser.problems() if "(Bad Request)" not in one], [], "the console")  # the refusal
        contains(agree(browser), "The run ends")
        run.ends(0, 3 * PATIENCE)


def test_one_address_for_all():
    """Two runs of different folders under one address; the one that serves ends, and the address goes on; then replay-launch open serves it."""
    with Home() as place, Browser() as browser:
        first = place.running("--folder", "one/run", *sets(*ENDLESS))
        second = place.running("--folder", "two/run", *sets(*ENDLESS))
        base, other = place.url("one/run"), place.url("two/run")
        equal([base.split("?")[0], other.split("?")[0]], [place.root + "1/run/", place.root + "2/run/"], "addresses")
        check(other.split("token=")[1] == base.split("token=")[1], "the tokens differ")
        equal(place.call("open", "two/run")[0].strip(), other, "what open prints")
        browser.open(place.root)
        browser.wait("both runs", "return [...document.querySelectorAll('main td a')].map((one) => one.textContent).join() === 'run,run'")
        browser.open(other)
        browser.wait("figures of the run that another process serves", "return document.querySelector('#link').textContent === '✓ live' && document.querySelectorAll('#controls button').length === 7")
        place.call("stop", "one/run")
        first.ends(0, 3 * PATIENCE)
        eventually(lambda: ask(place.root + "2/run/api/state"), PATIENCE, "somebody who takes over")
        equal(ask(place.root + "1/run/api/state")[1]["run_alive"], False, "the run that has ended")
        browser.wait("life goes on", "return document.querySelector('#link').textContent === '✓ live'")
        contains(ask(other.replace("?", "api/ask?"), {}, {"order": "actors=1"})[1]["text"], "actors: 2 -> 1")
        place.call("stop", "two/run")
        second.ends(0, 3 * PATIENCE)
        eventually(lambda: ask(place.root + "healthz") is None, PATIENCE, "the end of the last server")
        viewer = place.start("open", "one/run")
        eventually(lambda: "Ctrl-C" in viewer.text(), PATIENCE, "a server")
        contains(viewer.text(), base)
        equal(sorted(run["result"] for run in ask(place.root + "api/runs")[1]["runs"]), ["stopped", "stopped"], "runs")
        equal(place.call("open", "two/run")[0].strip(), other, "what another open prints")
        third = place.running("--folder", "two/third", *sets(*ENDLESS))
        viewer.stop()
        eventually(lambda: ask(place.root + "2/third/api/state"), PATIENCE, "a run that takes over from open")
        third.stop(3 * PATIENCE)


def test_an_address_of_somebody_else():
    """A program has the address: open says so, and a run shows itself elsewhere and says so."""
    with Home() as place:
        host, port = place.address.split(":")
        with socket.create_server((host, int(port))):
            contains(place.call("open", status=1)[1], "Another program or another user has this address", "REPLAY_PAGE")
            run = place.running("--folder", "run", *sets(*ENDLESS))
            contains(run.text(), "Another program or another user has this address", "a page of its own")
            url = place.url()
            check(not url.startswith(place.root), "the address is", url)
            equal(ask(url.replace("?", "api/state?"))[0], 200, "its own page")
            equal(place.call("open", "run")[0].strip(), url, "what open prints")
            run.stop(3 * PATIENCE)


def test_a_run_with_keys():
    """Among runs that everybody on this machine may look at, one with keys shows nothing without the token, not even its name."""
    with Home() as place:
        place.running("--folder", "open", *sets(*ENDLESS))
        place.running("--folder", "keys", *sets(*ENDLESS, "broker.security={mode: curve}"))
        token = {"Authorization": "Bearer " + place.url("keys").split("token=")[1]}
        equal([run["name"] for run in ask(place.root + "api/runs")[1]["runs"]], ["open"], "runs without the token")
        equal(len(ask(place.root + "api/runs", token)[1]["runs"]), 2, "runs with the token")
        equal([ask(place.root + "1/%s/api/state" % name)[0] for name in ("open", "keys")], [200, 401], "states without the token")
        equal(ask(place.root + "1/keys/api/state", token)[0], 200, "its state with the token")
