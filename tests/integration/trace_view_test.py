"""A trace in a real viewer: the Performance panel of chromium's developer tools reads what replay-ctl has written."""

import collections

from browser import ELEMENT, Browser, required
from runs import PATIENCE, Run, check, equal, eventually
from trace_test import CONFIG, take, windows

required()

PANEL = "devtools://devtools/bundled/devtools_app.html"
# The panel's own parser reads the file and says what it has found.
LOAD = """
const Trace = await import('./models/trace/trace.js');
const model = Trace.TraceModel.Model.createWithAllHandlers();
await model.parse(JSON.parse(await document.querySelector('#file').files[0].text()), {});
const data = model.parsedTrace(0).data;
return {
  processes: [...data.Meta.processNames].map(([pid, event]) => [pid, event.args.name]),
  threads: [...data.Renderer.processes].flatMap(([pid, process]) =>
    [...process.threads].map(([tid, thread]) => [pid, tid, thread.name, thread.entries.length])),
  flows: data.Flows.flows.map(flow => flow.map(event => event.pid)),
};
"""


def load(browser, path):
    """Returns what the panel knows of the file."""
    browser.open(PANEL)
    browser.run("const input = document.createElement('input'); input.type = 'file'; input.id = 'file'; document.body.append(input);")
    element = browser.call("POST", "/element", {"using": "css selector", "value": "#file"})[ELEMENT]
    browser.call("POST", "/element/%s/value" % element, {"text": str(path)})
    script = "const done = arguments[0]; (async () => {%s})().then(done, error => done('' + error));" % LOAD
    found = browser.call("POST", "/execute/async", {"script": script, "args": []})
    check(isinstance(found, dict), "the panel says:", found)
    return found


@windows
def test_the_performance_panel_reads_a_trace(seconds):
    with Run(CONFIG) as run:
        run.broker()
        run.learner()
        run.actor(0)
        eventually(lambda: run.policy() > 2, PATIENCE, "published parameters")
        trace = take(run.base, 0.3 * seconds)
        with Browser() as browser:
            found = load(browser, run.base / "out.json")
            equal([line for line in browser.problems() if "WebGL" not in line], [], "the console")
        processes = {event["pid"]: event["args"]["name"] for event in trace.processes.values()}
        equal(dict(found["processes"]), processes, "processes")
        spans = collections.Counter((e["pid"], e["tid"]) for e in trace.events if e["ph"] == "X")
        equal({(pid, tid): n for pid, tid, _, n in found["threads"]}, dict(spans), "spans of each thread")
        equal({(pid, tid): name for pid, tid, name, _ in found["threads"]}, trace.threads, "names of threads")
        # The panel finds the ends of an arrow by their times: it draws none whose ends are at the same time.
        arrows = [id for id, start in trace.flows["s"].items() if start["ts"] != trace.flows["f"][id]["ts"]]
        equal(len(found["flows"]), len(arrows), "arrows")
        check(len(arrows) > 10, "arrows", len(arrows))
        check(all(len(flow) == 2 and flow[0] != 1 and flow[1] == 1 for flow in found["flows"]), "from clients to the broker")
