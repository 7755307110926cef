"""The page of a run and of a broker in a real browser: what people see, and what they do with it."""

import gzip
import json
import os
import pathlib
import pty
import signal
import subprocess
import time

from browser import Browser, fetch, required
from launches import CONFIG, ENDLESS, PATIENCE, Place, check, equal, eventually, program, sets
from harness import PORTS, Broker, children, free_ports, json_lines
from keyrings import COLUMNS, KeyBroker, send
from actor import Actor
from generated import pb
from learner import Learner
from metrics_text import Metrics
from service import Service

PACKAGE = pathlib.Path(program("launch")).resolve().parent / "lib" / "python"
required()

VIEWS = ["now", "tables", "learning", "play", "processes", "broker", "items", "runs"]
SHOTS = pathlib.Path(os.environ.get("RP_SCREENSHOTS", "screenshots"))
SHOTS.mkdir(parents=True, exist_ok=True)


def page_of(launcher):
    """With its token, which the output of a launcher without a terminal does not have."""
    launcher.await_alive(lambda: "page: http" in launcher.text(), "the address of the page")
    check("token=" not in launcher.text(), "the token is in the output")
    return (launcher.folder / "page").read_text()


def look(browser, url, view="now"):
    """Opens a view and waits until it is drawn from a live state."""
    browser.open(url + "#" + view)
    browser.wait("view " + view, "return document.querySelector('main').dataset.view === arguments[0]", view)


def go(browser, view):
    browser.run("location.hash = arguments[0]", view)
    browser.wait("view " + view, "return document.querySelector('main').dataset.view === arguments[0]", view)


def fits(browser):
    """Nothing is wider than the window, once charts have taken its new size."""
    return browser.wait("nothing wider than the window", "return document.documentElement.scrollWidth <= innerWidth") or True


def quiet(browser, url, but="nothing"):
    """No error in the console but those about one address, and no request to anywhere else."""
    problems = [one for one in browser.problems() if but not in one]
    check(not problems, "the console says", problems)
    origin = url.split("?")[0]
    elsewhere = [one for one in browser.requests() if not one.startswith((origin, "blob:"))]
    check(not elsewhere, "requests to", elsewhere)


def change_ratio(browser):
    """Sets the ratio of the table by its button, and awaits the answer."""
    browser.press("Limiter of replay")
    browser.wait("the question", "return document.querySelector('dialog').open")
    browser.run("document.querySelector('[name=samples_per_insert]').value = '2'")
    browser.press("Yes")
    browser.wait("the answer", "return document.querySelector('dialog').open && /changed/.test(document.querySelector('dialog').textContent)")
    browser.press("Close")


def test_a_live_run():
    """Numbers move, a blocked table is explained, every view is drawn at every size, in dark and in light, without an error."""
    with Place(CONFIG) as place, Browser() as browser:
        # Each learner step takes long, so actors wait for samples.
        launcher = place.running(*sets(*ENDLESS, "environment.delay=0s", "learners.delay=20ms"))
        url = page_of(launcher)
        look(browser, url)
        browser.wait("the blocked arrow", "return !!document.querySelector('.flow .blocked')", seconds=3 * PATIENCE)
        browser.wait("the cause: others if this machine is busy with something else",
                     "return fetch('api/state').then((r) => r.json()).then((s) => ['learners', 'others'].includes(s.verdict.cause))")
        browser.wait("a sentence, and life", "return document.querySelector('#verdict').textContent && document.querySelector('#link').textContent === '✓ live'")
        first = browser.run("return performance.getEntriesByType('paint').map((one) => one.startTime)")
        print("first paint after %.0f ms" % min(first))
        before = browser.run("return fetch('api/state').then((r) => r.json())")["run"]["steps"]
        browser.wait("more steps", "return fetch('api/state').then((r) => r.json()).then((s) => s.run.steps > arguments[0])".replace(
            "arguments[0]", str(before)))
        metrics = Metrics(fetch(url.split("?")[0] + "metrics")[1].decode(), openmetrics=True)
        library, packed = (fetch(url.split("?")[0] + "dygraph.js", {"Accept-Encoding": how})[1] for how in ("identity", "gzip"))
        equal(gzip.decompress(packed), library, "a file that was sent compressed")
        check(len(packed) < len(library) / 2, "compressed to", len(packed), "of", len(library))
        equal(metrics.get("replay_run_actors_wanted", run="small"), 2, "actors in the metrics of the run")
        check(metrics.get("replay_run_environment_steps_total", run="small") >= before, "steps in the metrics of the run")
        go(browser, "tables")
        browser.wait("priorities and ages", "return document.querySelectorAll('main svg rect.f0').length >= 21")
        for view in VIEWS:
            go(browser, view)
            for width, height in ((360, 800), (768, 1000), (1920, 1080)):
                browser.size(width, height)
                check(fits(browser), view, "is wider than", width)
                if width != 768:
                    browser.screenshot(str(SHOTS / ("%s-%d.png" % (view, width))))
        browser.size(1280, 1000)
        go(browser, "now")
        colours = set()
        for dark in (True, False):
            browser.dark(dark)
            colours.add(browser.run("return getComputedStyle(document.documentElement).backgroundColor"))
            browser.screenshot(str(SHOTS / ("now-%s.png" % ("dark" if dark else "light"))))
        equal(len(colours), 2, "colours of the page")
        quiet(browser, url)


def test_by_keyboard():
    """Every view, the help and the log of a process without a mouse; the focus stays where it is when figures change."""
    with Place(CONFIG) as place, Browser() as browser:
        launcher = place.running(*sets(*ENDLESS))
        look(browser, page_of(launcher))
        for number, view in enumerate(VIEWS, 1):
            browser.keys(str(number))
            browser.wait("view " + view, "return document.querySelector('main').dataset.view === arguments[0]", view)
            equal(browser.run("return document.querySelectorAll('nav a[aria-current=page]').length"), 1, "marked views")
        browser.keys("?")
        browser.wait("the help", "return document.querySelector('dialog').open")
        browser.keys("\ue00c")  # Esc
        browser.wait("the end of the help", "return !document.querySelector('dialog').open")
        browser.keys("5")
        browser.wait("processes", "return document.querySelectorAll('main td button').length > 2")
        for _ in range(40):  # Tab
            browser.keys("\ue004")
            if browser.run("return document.activeElement.textContent") == "learner-0":
                break
        equal(browser.run("return document.activeElement.textContent"), "learner-0", "the focus")
        browser.keys("\ue007")  # Enter
        browser.wait("the log", "return document.querySelector('#log h2').textContent.includes('learner-0')")
        # New figures change only what differs: the focus, elements and selected text stay.
        browser.run("""const main = document.querySelector('main');
            window.old = main.querySelector('table');
            window.changes = 0;
            new MutationObserver(() => window.changes++).observe(main, {subtree: true, childList: true, characterData: true});
            getSelection().selectAllChildren(main.querySelector('td'))""")
        browser.wait("later figures", "return window.changes >= 3")
        equal(browser.run("return document.activeElement.textContent"), "learner-0", "the focus after new figures")
        check(browser.run("return document.querySelector('main table') === window.old"), "the table was made anew")
        check(browser.run("return getSelection().toString().trim() === document.querySelector('main td').textContent"), "the selection is lost")
        # Everything that can be clicked has a name, and every picture a description.
        unnamed = browser.run("""return [...document.querySelectorAll('button, a, input, select, svg[role=img], canvas.image, figure.chart')]
            .filter((one) => !(one.textContent.trim() || one.closest('label') || one.getAttribute('aria-label') || one.id && document.querySelector(`label[for=${one.id}]`)))
            .map((one) => one.outerHTML.slice(0, 80))""")
        equal(unnamed, [], "elements without a name")


def test_a_killed_broker():
    """The page says that the broker is gone, and that it is back."""
    with Place(CONFIG) as place, Browser() as browser:
        launcher = place.running(*sets(*ENDLESS, "launch.backoff=15s"))
        url = page_of(launcher)
        look(browser, url)
        browser.wait("life", "return document.querySelector('#link').textContent.includes('live')")
        os.kill(launcher.pid("broker"), signal.SIGKILL)
        browser.wait("the loss", "return document.querySelector('#link').textContent.includes('broker does not answer') && document.querySelector('#verdict').className === 'bad'")
        browser.screenshot(str(SHOTS / "broker-gone.png"))
        browser.wait("the return", "return document.querySelector('#link').textContent.includes('live')", seconds=3 * PATIENCE)
        # The launcher itself goes, and with it the page.
        launcher.popen.kill()
        launcher.popen.wait()
        browser.wait("the end", "return document.querySelector('#verdict').className === 'bad' && !!document.querySelector('#link.bad')")


def test_changes_need_a_token():
    with Place(CONFIG) as place, Browser() as browser:
        launcher = place.running(*sets(*ENDLESS))
        url = page_of(launcher)
        base = url.split("?")[0]
        equal(fetch(base + "api/do", {}, {"action": "stop"})[0], 401, "status without a token")
        token = {"Authorization": "Bearer " + url.split("token=")[1]}
        equal(fetch(base + "api/do", {**token, "Origin": "http://evil.example"}, {"action": "stop"})[0], 403, "from another site")
        equal(fetch(base + "api/do", token, {"action": "fly"})[0], 400, "an unknown action")
        equal((launcher.folder / "page").stat().st_mode & 0o777, 0o600, "mode of the file with the address")
        equal(place.call("open")[0].strip(), url, "the address that open prints")
        look(browser, base, "broker")  # without the token there is nothing to press
        browser.wait("figures", "return document.querySelectorAll('main td').length > 5")
        equal(browser.run("return document.querySelectorAll('button.danger').length"), 0, "buttons without a token")
        look(browser, url, "broker")
        change_ratio(browser)
        browser.wait("the change", "return fetch('api/state').then((r) => r.json()).then((s) => s.broker.tables[0].limiter.samples_per_insert === 2)")
        launcher.stop()
        check(not (launcher.folder / "page").exists(), "the address is still there")


def test_a_run_with_keys():
    """Who may not ask the broker may not ask the page either."""
    with Place(CONFIG) as place:
        launcher = place.running(*sets(*ENDLESS, "broker.security={mode: curve}"))
        url = page_of(launcher)
        base, token = url.split("?token=")
        for path in ("api/state", "api/items?table=replay", "api/writers", "api/log?process=broker", "api/history"):
            equal(fetch(base + path)[0], 401, "status of %s without a token" % path)
            equal(fetch(base + path, {"Authorization": "Bearer " + token})[0], 200, "status of %s with the token" % path)
        equal(fetch(base)[0], 200, "the page itself")
        for text in ("The run ends.", "The run ends already."):
            status, answer = fetch(base + "api/do", {"Authorization": "Bearer " + token}, {"action": "stop"})
            equal((status, json.loads(answer)["text"]), (200, text), "the answer")
        launcher.ends(seconds=3 * PATIENCE)  # and not 130: asking twice is no order to kill


def test_a_finished_run_and_others():
    """The same page from a run's folder, two runs in one chart, and what remains of them as files."""
    with Place(CONFIG) as place, Browser() as browser:
        for seed in (1, 2):
            place.call(str(place.config), "--quiet", "--seed", str(seed), *sets("launch.http=", "report.every=200ms"), status=0)
        viewer = place.start("open")
        eventually(lambda: "http://" in viewer.text(), PATIENCE, "the address")
        url = viewer.text().split()[0]
        look(browser, url, "learning")
        browser.wait("the curve", "return document.querySelectorAll('main figure.chart canvas').length >= 2")
        equal(browser.text("#link"), "finished", "the link")
        check(browser.text("#verdict").startswith("done, return "), browser.text("#verdict"))
        browser.screenshot(str(SHOTS / "finished.png"))
        go(browser, "runs")
        browser.wait("two runs", "return document.querySelectorAll('main td input[type=checkbox]').length === 2")
        for index in (0, 1):
            browser.run("document.querySelectorAll('main td input[type=checkbox]')[arguments[0]].click()", index)
            browser.wait("the choice", "return document.querySelectorAll('main td input[type=checkbox]:checked').length === arguments[0]", index + 1)
        charts = "[...document.querySelectorAll('main figure.chart')].filter((one) => one.dataset.key === 'Return').map((one) => one.chart)"
        browser.wait("a band over both seeds", "return %s.some((one) => one.list.length === 1 && one.list[0].band)" % charts)
        check("seed" in browser.text("main section:last-child"), "the seeds differ, and the page does not say so")
        browser.run("document.querySelector('main label input[type=checkbox]').click()")
        browser.wait("both curves", "return %s.some((one) => one.list.length === 2)" % charts)
        browser.run("[...document.querySelectorAll('main th button')].find((one) => one.textContent === 'seed').click()")
        seeds = "return [...document.querySelectorAll('main td a')].map((one) => one.closest('tr').children[5].textContent)"
        equal(browser.run(seeds), ["2", "1"], "seeds, sorted")
        browser.run("const filter = document.querySelector('main input[type=search]'); filter.value = ' 1 nobody'; filter.oninput({target: filter})")
        equal(browser.run(seeds), [], "runs by that name")
        browser.run("const filter = document.querySelector('main input[type=search]'); filter.value = ''; filter.oninput({target: filter})")
        browser.screenshot(str(SHOTS / "runs-compared.png"))
        older = browser.run("return [...document.querySelectorAll('main td a')].at(-1).textContent")
        browser.run("[...document.querySelectorAll('main td a')].at(-1).click()")
        browser.wait("the older run", "return location.pathname === `/1/${arguments[0]}/`", older)
        browser.wait("its state", "return document.querySelector('#link')?.textContent === 'finished'")
        shown = browser.run("return fetch('api/state').then((r) => r.json())")["run"]["folder"]
        check(shown.endswith(older), shown, "is shown, and not", older)
        for odd in ("1/..%2fruns%2f" + older, "1/.", "2/" + older, "1/%2e%2e/runs/" + older):
            equal(fetch(url.split("?")[0] + odd + "/api/state")[0], 404, "status of " + odd)
        quiet(browser, url)
        go(browser, "report")
        browser.wait("the report", "return document.querySelectorAll('main figure').length >= 5")
        viewer.stop()
        with Browser() as other:
            read_report(other, place)


def zoom(browser):
    """A range that is chosen in one chart holds for all over the same axis, and values are shown in all of them."""
    browser.run("""const [first, ...others] = [...document.querySelectorAll('main figure.chart')].map((one) => one.chart).filter((one) => one.graph && one.axis === 'seconds');
        window.others = others;
        const [from, to] = first.graph.xAxisExtremes();
        first.zoom([from, (from + to) / 2]);
        first.show(from);""")
    check(browser.run("return window.others.length >= 1 && window.others.every((one) => one.graph.isZoomed('x') && !one.tip.hidden)"), "charts differ")
    browser.run("window.others[0].zoom(null)")
    check(browser.run("return window.others.every((one) => !one.graph.isZoomed('x'))"), "charts are still zoomed")


# The colours on the canvas of an episode, which is all that its pixels are good for here.
COLOURS = """const canvas = document.querySelector('canvas.play');
    if (!canvas || canvas.width < 2) return 0;
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
    return new Set(Array.from({length: data.length / 4}, (_, i) => data.slice(4 * i, 4 * i + 4).join())).size"""
PICTURE = "return document.querySelector('canvas.play').toDataURL()"


def play(browser):
    """The environment moves, stands still, and goes where it is dragged."""
    browser.wait("the environment", COLOURS + " >= 3")
    first = browser.run(PICTURE)
    browser.wait("the next steps", "return document.querySelector('canvas.play').toDataURL() !== arguments[0]", first)
    browser.press("❚❚ Pause")
    browser.run("const bar = document.querySelector('.scrub'); bar.value = bar.max; bar.oninput()")
    last = browser.run(PICTURE)
    check("step " + browser.run("return document.querySelector('.scrub').max") in browser.text("main").replace(",", ""), "the last step")
    browser.run("const bar = document.querySelector('.scrub'); bar.value = 0; bar.oninput()")
    check(browser.run(PICTURE) != last, "the first frame looks like the last")
    browser.press("▶ Play")
    browser.wait("playing", "return Number(document.querySelector('.scrub').value) > 2")


HOLD = """const real = window.fetch;
    window.held = [];
    window.fetch = (url, ...rest) => {
        const asked = () => real(url, ...rest);
        return String(url).includes('api/play?at=') ? new Promise((go) => window.held.push(go)).then(asked) : asked();
    }"""
# Lets the held requests go, the last one first, and returns once the page has had the replies.
RELEASE = """const wait = () => new Promise((done) => setTimeout(done, 300));
    return (async () => { while (window.held.length) { window.held.pop()(); await wait(); } })()"""


def late_episodes(browser, choose):
    """An episode that comes late is not shown: the other one was chosen meanwhile, or the person has stopped at a step."""
    first = browser.run("return [...document.querySelector('main label select').options].at(-1).value")
    shown = "return document.querySelector('main p.small').textContent.replace(/,/g, '').includes(`at ${arguments[0]} steps`)"
    browser.run(HOLD)
    browser.run("for (const at of [0, -1]) { %s }" % choose.replace("arguments[0]", "0").replace("arguments[1]", "at"))
    equal(browser.run("return window.held.length"), 2, "requests that are held")
    browser.run(RELEASE)
    check(browser.run(shown, first), "the newest episode is shown, and the first was chosen after it")
    browser.run(choose, 0, 0)
    browser.run(RELEASE)
    browser.wait("the next recording, at the end of this one", "return window.held.length >= 1", seconds=3 * PATIENCE)
    browser.run("const bar = document.querySelector('.scrub'); bar.value = bar.max; bar.oninput()")
    before = browser.run(PICTURE)
    browser.run(RELEASE)
    equal(browser.run(PICTURE), before, "the step at which somebody has stopped")


def test_an_agent_plays():
    """Recorded episodes of a run that goes on: play, pause, drag, speed, and an earlier evaluation; and the last one in the report."""
    with Place(CONFIG) as place, Browser() as browser:
        launcher = place.running(*sets(*ENDLESS, "evaluator.every=300"))
        url = page_of(launcher)
        look(browser, url, "play")
        play(browser)
        browser.wait("two evaluations", "return document.querySelector('main label select').options.length >= 3")
        choose = "const choice = document.querySelectorAll('main label select')[arguments[0]]; choice.value = [...choice.options].at(arguments[1]).value; choice.dispatchEvent(new Event('change'))"
        browser.run(choose, 0, -1)  # the first one, which is always kept
        at = browser.run("return document.querySelector('main label select').value")
        browser.wait("the first one", "return document.querySelector('main p.small').textContent.replace(/,/g, '').includes(`at ${arguments[0]} steps`)", at)
        browser.run(choose, 1, 4)
        for width, height in ((390, 800), (1280, 1000)):
            browser.size(width, height)
            check(fits(browser), "play is wider than", width)
            browser.screenshot(str(SHOTS / ("playing-%d.png" % width)))
        equal(fetch(url.split("?")[0] + "api/play?at=7")[0], 404, "status of an episode that does not exist")
        late_episodes(browser, choose)
        quiet(browser, url, "/api/play?at=")  # some episodes are dropped, maybe after the page has read the list
        browser.open("about:blank")
        launcher.stop()
        browser.requests()
        report = (launcher.folder / "report.html").resolve().as_uri()
        browser.open(report + "#play")
        play(browser)
        quiet(browser, report)


def test_a_run_that_ends():
    """Whoever looks when a run ends sees its result and its report, and no alarm; and goes on to see it without the launcher."""
    with Place(CONFIG) as place, Browser() as browser:
        launcher = place.running(*sets("stop.steps=20000", "environment.delay=1ms"))
        place.call("ask", "pause")  # a browser may need longer than the run
        look(browser, page_of(launcher))
        place.call("ask", "go")
        launcher.ends(seconds=3 * PATIENCE)
        browser.wait("the end", "return document.querySelector('#link').textContent === 'finished'")
        check(browser.text("#verdict").startswith("done, return "), browser.text("#verdict"))
        equal(browser.run("return document.querySelectorAll('.bad').length"), 0, "alarms")
        go(browser, "report")
        browser.wait("the report", "return document.querySelectorAll('main figure.chart canvas').length >= 8")
        browser.screenshot(str(SHOTS / "ended.png"))
        # A view that is opened at the end asks a second time: its question may come after the launcher has left.
        kept = browser.run("""return import('./report.js').then(async ({loadReport}) => {
            const fetched = window.fetch, page = {}, store = {over: true, state: {run: null}};
            let asked = 0;
            window.fetch = async () => {
                if (!asked++) return new Response('{"summary": "once"}');
                await new Promise((done) => setTimeout(done, 100));
                throw new TypeError("refused");
            };
            await Promise.all([loadReport(page, store), loadReport(page, store)]);
            window.fetch = fetched;
            return page.report && page.report.summary;
        })""")
        equal(kept, "once", "the report after a second question that failed")


def test_a_run_that_ends_in_the_background():
    """A browser in the background asks every four seconds, and gets the end and the report as well."""
    with Place(CONFIG) as place:
        launcher = place.running(*sets("stop.steps=20000", "environment.delay=1ms"))
        url, _, query = page_of(launcher).strip().partition("?")
        ask = lambda what: json.loads(fetch("%sapi/%s?%s" % (url, what, query))[1])
        eventually(lambda: ask("state") and (launcher.folder / "report.html").exists(), 3 * PATIENCE, "the report")
        time.sleep(4)
        equal(ask("state")["run_alive"], False, "the run goes on")
        check(ask("report")["summary"], "no summary")
        launcher.ends(seconds=PATIENCE)


CHOOSE = "const choice = document.querySelector('main select'); choice.value = arguments[0]; choice.dispatchEvent(new Event('change'))"


def read_report(browser, place):
    """The page as one file, opened from the disk: the report of the first of two runs, and both compared."""
    charts = ["Return", "Loss", "Mean Q", "Norm of the gradient", "Length of episodes", "Exploration", "Inserts per second",
              "Samples per second", "Samples per insert", "Idle share", "Memory of all processes"]
    folders = sorted(path.parent for path in (place.base / "runs").glob("*-*/report.html"))
    report = folders[0] / "report.html"
    browser.open(report.as_uri())
    browser.wait("the charts", "return document.querySelectorAll('main figure').length >= 5")  # a short run may lack some figures
    browser.wait("all of them", "const shown = [...document.querySelectorAll('main section h2')].map((one) => one.textContent);"
                 "return arguments[0].every((one) => shown.includes(one))", charts)
    missing = [part for part in ("final return", "Achieved", "samples per insert", "replay-launch ") if part not in browser.text("main")]
    check(not missing, "the report does not tell", missing)
    check(browser.text("#verdict").startswith("done, return "), browser.text("#verdict"))
    names = "return [...document.querySelectorAll('main .dygraph-xlabel')].map((one) => one.textContent)"
    equal(set(browser.run(names)), {"environment steps", "seconds"}, "names of axes")
    browser.run(CHOOSE, "learner_steps")
    equal(set(browser.run(names)), {"learner steps", "seconds"}, "names of axes after another choice")
    zoom(browser)
    browser.size(390, 800)
    check(fits(browser), "the report is wider than a telephone")
    browser.screenshot(str(SHOTS / "report-390.png"))
    browser.size(1280, 1000)
    browser.screenshot(str(SHOTS / "report.png"))
    go(browser, "processes")
    browser.wait("processes", "return document.querySelectorAll('main tbody tr').length >= 4")
    quiet(browser, report.as_uri())
    log = folders[1] / "learner-0.jsonl"  # curves of two seeds that never overlap are drawn as well
    log.write_text("".join(json.dumps(dict(line, time=line["time"] + 1000)) + "\n" for line in json_lines(log)))
    place.call("runs", *(folder.name for folder in folders), "--html", "both.html")
    browser.open((place.base / "both.html").as_uri())
    browser.wait("the choice", "return document.querySelector('main select')")
    browser.run(CHOOSE, "time")
    browser.wait("both curves", "return [...document.querySelectorAll('main figure.chart')].some((one) => one.dataset.key === 'Loss' && "
                 "one.querySelector('canvas') && one.chart.list.length === 2)")
    quiet(browser, (place.base / "both.html").as_uri())


def test_an_items_image():
    """A broker without a run: an item's image is shown with the right pixels, keys of 64 bits are kept, a curve is drawn."""
    if not PACKAGE.exists():
        print("      an_items_image is left out: this build has no Python package")
        return
    script = """
import sys, numpy as np, replaybus
server = replaybus.Server([replaybus.Table("frames", max_size=100)])
client = server.client()
spec = {"image": replaybus.Field("uint8", (24, 32)), "speed": replaybus.Field("float32"), "planes": replaybus.Field("uint8", (8, 8, 2))}
writer = client.writer(spec, keep_alive=8)
for t in range(6):
    image = np.zeros((24, 32), "uint8"); image[5, 7] = 200; image[t, 0] = 90
    planes = np.zeros((8, 8, 2), "uint8"); planes[1, 2, 0] = 1; planes[3, 4, 1] = 1
    writer.append({"image": image, "speed": float(t), "planes": planes})
writer.item("frames", priority=3.0, slices=4)
writer.end_episode()
print(server.endpoint, flush=True)
sys.stdin.read()
"""
    with Place(CONFIG) as place, Browser() as browser:
        environment = dict(place.environment, PYTHONPATH=str(PACKAGE))
        holder = subprocess.Popen(["/usr/bin/python3", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env=environment)
        viewer = place.start("open", holder.stdout.readline().strip())
        eventually(lambda: "http://" in viewer.text(), PATIENCE, "the address")
        url = viewer.text().split()[0]
        look(browser, url, "items")
        browser.wait("an item", "return document.querySelectorAll('main td button').length === 1")
        browser.run("document.querySelector('main td button').click()")
        browser.wait("four images and four of planes", "return document.querySelectorAll('canvas.image').length === 8")
        pixel = browser.run("""const c = document.querySelectorAll('canvas.image')[3];
            return [c.width, c.height, ...c.getContext('2d').getImageData(7, 5, 1, 1).data]""")
        equal(pixel, [32, 24, 200, 200, 200, 255], "the pixel")
        planes = browser.run("""const image = document.querySelectorAll('canvas.image')[4].getContext('2d').getImageData(0, 0, 8, 8).data;
            return [[2, 1], [4, 3], [0, 0]].map(([x, y]) => [...image.slice(4 * (8 * y + x), 4 * (8 * y + x) + 3)].join())""")
        equal((len(set(planes)), planes[2]), (3, "0,0,0"), "colours of two planes of ones, and of nothing")
        browser.wait("the curve", "return !!document.querySelector('.field figure.chart canvas')")
        browser.screenshot(str(SHOTS / "item.png"))
        quiet(browser, url)
        viewer.stop()
        holder.stdin.close()
        holder.wait(PATIENCE)
        holder.stdout.close()


RATIO = """
tables:
  - {name: replay, max_size: 1000, sampler: {kind: prioritized},
     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 1, min_size: 5, error_buffer: 20}}
"""


def write_until_blocked(endpoint):
    """Inserts more items than the limiter of RATIO lets in without samples; returns the writer."""
    actor = Actor(Service(endpoint), COLUMNS, "writer-7")
    check(send(actor, "replay", 40, PATIENCE), "not sent")
    return actor


def latency(browser, learner):
    """Samples and updates show up over time with p50 and p99, as the broker measured them, and as a histogram when asked for."""
    go(browser, "broker")
    keys = [item.key for item in learner.sample("replay", 4)[1]]
    learner.service.update("replay", keys, [2.0] * len(keys))
    shown = "return [...document.querySelectorAll('.latency h3')].map((one) => one.textContent)"
    browser.wait("latencies", shown + ".filter((one) => ['insert', 'insert wait', 'sample', 'update'].includes(one)).length === 4")
    browser.wait("what is drawn", "return document.querySelectorAll('.latency figure.chart canvas').length >= 8")
    equal(browser.run("return import('./util.js').then(({percent, number}) => [percent(0.997), percent(1.234), percent(0.00008), number(1234567)])"),
          ["100%", "123%", "0%", "1.23M"], "numbers for people")
    browser.press("Histogram of sample")
    browser.wait("a histogram", "return document.querySelectorAll('.latency rect.f0').length >= 1")
    measured = browser.run("return fetch('api/latency').then((r) => r.json())")["requests"]["sample"]["times"]
    p99 = browser.run("""return Promise.all([import('./latency.js'), fetch('api/state').then((r) => r.json())]).then(([{quantile}, {broker}]) =>
        quantile(broker.server.commands.find((one) => one.name === 'sample').times, 0.99))""")
    check(measured["p99"] / 2 <= p99 <= measured["p99"] * 1.001, "p99 is", p99, "and not", measured)


def test_a_broker_shows_itself():
    """The page at the broker's own address: why it waits, tables, writers, parameters, items; a killed broker comes back."""
    with Broker("http: 127.0.0.1:%d\n" % free_ports(1)[0] + RATIO) as broker, Browser() as browser:
        url = broker.endpoints["http"].strip()
        writer = write_until_blocked(broker.endpoints["service"])
        Service(broker.endpoints["service"]).ask("params_put", pb.ParamsPut(name="policy"), [b"weights"])
        browser.block("*chart.js")
        browser.open(url)
        browser.wait("the sentence that a part is missing", "return document.querySelector('#verdict').innerText.includes('load the page again')")
        browser.block()
        browser.open("about:blank")
        look(browser, url)
        browser.wait("the blocked arrow", "return !!document.querySelector('.flow .blocked')")
        check("wait" in browser.text("#verdict"), "the sentence is", browser.text("#verdict"))
        equal(browser.run("return document.querySelectorAll('button.danger').length"), 0, "buttons without a token")
        latency(browser, Learner(Service(broker.endpoints["service"])))
        go(browser, "tables")
        browser.wait("priorities and ages", "return document.querySelectorAll('main svg rect.f0').length >= 2")
        go(browser, "broker")
        browser.wait("the writer and the parameters", "return ['writer-7', 'policy'].every((one) => document.querySelector('main').textContent.includes(one))")
        go(browser, "items")
        browser.wait("an item", "return document.querySelectorAll('main td button').length > 4")
        browser.run("document.querySelector('main td button').click()")
        browser.wait("its field", "return !!document.querySelector('.field')")
        for view in ("learning", "processes", "runs"):
            go(browser, view)
            check("broker alone" in browser.text("main"), view, "says", browser.text("main"))
        quiet(browser, url)
        for dark, width in ((True, 360), (False, 1920)):
            browser.dark(dark)
            browser.size(width, 1000)
            for view in ("now", "tables", "broker"):
                go(browser, view)
                check(fits(browser), view, "is wider than", width)
                browser.screenshot(str(SHOTS / ("alone-%s-%d.png" % (view, width))))
        os.kill(broker.process.pid, signal.SIGKILL)
        broker.process.wait()
        browser.wait("the loss", "return !!document.querySelector('#link.bad')")
        equal(browser.run("return document.querySelector('#verdict').className"), "bad", "the sentence's kind")
        broker.start()
        browser.wait("the return", "return !!document.querySelector('#link.good')")
        del writer
        equal(broker.stop(), 0, "exit status")


def test_a_broker_of_shards_shows_itself():
    """The page of one of several shards, all with keys, shows them as one broker, each in a row, and says which one is away."""
    with KeyBroker("http: 127.0.0.1:0\nshards: 2\n", tables=RATIO) as broker, Browser() as browser:
        token = (broker.keys / "http.token").read_text().strip()
        shards = children(broker.process.pid)
        look(browser, broker.endpoints["shard.1.http"].strip() + "?token=" + token, "broker")
        title = "return [...document.querySelectorAll('main h2')].some((one) => one.textContent === arguments[0])"
        browser.wait("two shards", title.replace("arguments[0]", "'Shards (2 of 2 answer)'"))
        os.kill(shards[0], signal.SIGSTOP)
        browser.wait("one shard", title.replace("arguments[0]", "'Shards (1 of 2 answer)'"))
        check("1 of 2 shards answer" in browser.text("#verdict"), "the sentence is", browser.text("#verdict"))
        browser.size(360, 1000)
        check(fits(browser), "the shards are wider than a telephone")
        browser.screenshot(str(SHOTS / "shards-360.png"))
        os.kill(shards[0], signal.SIGCONT)
        equal(broker.stop(), 0, "exit status")


def test_a_broker_with_keys_shows_itself():
    """Everything needs the token; with it, the page asks before it changes something; the list of keys has no say in it."""
    with KeyBroker("http: 127.0.0.1:0\n", tables=RATIO) as broker, Browser() as browser:
        url, token = broker.endpoints["http"].strip(), (broker.keys / "http.admin.token").read_text().strip()
        for path in ("api/state", "api/items?table=replay", "api/writers", "api/histogram?table=replay"):
            equal(fetch(url + path)[0], 401, "status of %s without a token" % path)
            equal(fetch(url + path, {"Authorization": "Bearer " + token})[0], 200, "status of %s with the token" % path)
        broker.new("somebody", "actor")  # a list that is read again does not shut the page out
        broker.ctl("rotate", broker.keys)
        broker.ctl("rotate", broker.keys, "finish")
        eventually(lambda: broker.lines("B0607"), PATIENCE, "the broker's new key")
        look(browser, url + "?token=" + token, "broker")
        change_ratio(browser)
        browser.press("Stop the broker")
        browser.answer("Yes")
        equal(broker.process.wait(PATIENCE), 0, "exit status")


def test_a_broker_on_a_terminal():
    """It prints the address with the token for changes, which nothing else shows."""
    ours, theirs = pty.openpty()
    broker = subprocess.Popen([program("broker"), "--set", "http=127.0.0.1:0"] + sets(*PORTS.replace(": ", "=").split()), stdout=theirs,
                              stderr=subprocess.DEVNULL)
    os.close(theirs)
    with open(ours, encoding="utf-8") as terminal:
        url = next(line for line in terminal if line.startswith("http ")).split()[1]
        base, token = url.split("?token=")
        equal(fetch(base + "api/state")[0], 200, "status without a token")
        equal(fetch(base + "api/do", {}, {"action": "stop"})[0], 401, "a change without a token")
        equal(fetch(base + "api/do", {"Authorization": "Bearer " + token}, {"action": "stop"})[0], 200, "a change with the token")
        equal(broker.wait(PATIENCE), 0, "exit status")


def test_a_day():
    """The history of 24 hours costs little memory: the page keeps fewer points of what is long ago."""
    with Place(CONFIG) as place, Browser() as browser:
        launcher = place.running(*sets(*ENDLESS))
        look(browser, page_of(launcher))
        browser.run("""return import('./store.js').then(({Store}) => fetch('api/state').then((r) => r.json()).then((state) => {
            const store = new Store();
            for (let second = 0; second < 86400; second++) {
                const tables = state.broker.tables.map((one) => ({...one, limiter: {...one.limiter, inserts: one.limiter.inserts + 1000}}));
                const times = () => new Array(30).fill(second);
                const commands = ['sample', 'update'].map((name) => ({name, times: times(), wait_times: times()}));
                const server = {...state.broker.server, commands, insert_times: times(), insert_wait_times: times()};
                state = {...state, unix_s: state.unix_s + 1, run: {...state.run}, broker: {...state.broker, tables, server}};
                store.take(state);
            }
            window.day = store;
        }))""")
        points = browser.run("return window.day.history.points")
        megabytes = browser.memory() / 1e6
        print("24 hours: %d points, %.1f MB of JavaScript" % (points, megabytes))
        check(points < 10000, "points", points)
        check(megabytes < 50, "MB of memory", megabytes)
