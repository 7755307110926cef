"""Traces: replay-ctl trace of real runs, checked against the rules of Chrome's trace format."""

import contextlib
import functools
import json
import pathlib
import subprocess
import threading

from runs import PATIENCE, SLOW, Process, Run, check, configuration, equal, eventually, program
from generated import pb
from service import ReplayError, Service

CONFIG = configuration(
    broker="  folder: BASE/journal\n  journal: 50ms\n  checkpoint: {every: 300ms}\n", stop="{steps: 0}",
    learners="{save_every: 100ms, publish_every: 5}",
    limiter="sample_to_insert_ratio, samples_per_insert: 4, min_size: 100, error_buffer: 100")


def is_time(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def is_id(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_fields(event):
    """Required fields of every phase that is used, and their types:
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""
    check(isinstance(event, dict), "an event is an object:", event)
    check(event.get("ph") in ("X", "M", "s", "f"), "phase", event)
    check(isinstance(event.get("name"), str) and event["name"], "name", event)
    check(is_id(event.get("pid")) and is_id(event.get("tid")), "pid and tid", event)
    if event["ph"] == "M":
        check(event["name"] in ("process_name", "thread_name", "process_sort_index"), "metadata", event)
        wanted = ("sort_index", int) if event["name"] == "process_sort_index" else ("name", str)
        check(isinstance(event["args"].get(wanted[0]), wanted[1]), "arguments of metadata", event)
        return
    check(is_time(event.get("ts")), "ts", event)
    check(isinstance(event.get("cat"), str), "cat", event)
    if event["ph"] == "X":
        check(is_time(event.get("dur")), "dur", event)
        check(isinstance(event.get("args"), dict), "args", event)
    else:
        check(is_id(event.get("id")), "id of a flow", event)
        check(event["ph"] == "s" or event.get("bp") == "e", "binding point", event)


def nanoseconds(us):
    return round(us * 1000)


def check_nesting(events):
    """Complete events of one thread contain each other or are apart."""
    threads = {}
    for event in events:
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            threads.setdefault((event["pid"], event["tid"]), []).append((start, -(start + nanoseconds(event["dur"]))))
    for thread, spans in threads.items():
        open_ends = []
        for start, minus_end in sorted(spans):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            check(not open_ends or -minus_end <= open_ends[-1], "partial overlap in thread", thread, start)
            open_ends.append(-minus_end)
    return threads


def check_flows(events):
    """Every arrow has both ends, the first in the file at a client, each at a complete event of its thread and category."""
    starts = {(e["pid"], e["tid"], e["ts"], e["cat"]) for e in events if e["ph"] == "X"}
    ends = {"s": {}, "f": {}}
    for event in events:
        if event["ph"] in ends:
            check(event["id"] not in ends[event["ph"]], "two ends of one arrow", event)
            check((event["pid"], event["tid"], event["ts"], event["cat"]) in starts, "an arrow's end outside of all spans", event)
            check(event["ph"] == "s" or event["id"] in ends["s"], "an arrow's end before its start", event)
            ends[event["ph"]][event["id"]] = event
    equal(set(ends["s"]), set(ends["f"]), "ids of arrows")
    for id, start in ends["s"].items():
        check(start["pid"] != 1 and ends["f"][id]["pid"] == 1, "from a client to the broker", start)
    return ends


class Trace:
    """A trace that was read and found to be sound."""

    def __init__(self, text):
        self.events = json.loads(text)
        check(isinstance(self.events, list), "an array of events")
        for event in self.events:
            check_fields(event)
        self.threads = check_nesting(self.events)
        self.flows = check_flows(self.events)
        named = {(e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["name"] == "thread_name"}
        equal(set(named), set(self.threads), "threads with a name, and threads with events")
        self.threads = named
        self.processes = {e["args"]["name"].split(" (pid")[0]: e for e in self.events if e["name"] == "process_name"}
        equal({e["pid"] for e in self.events}, {e["pid"] for e in self.processes.values()}, "processes with a name")

    def spans(self, process, name=None, thread=None):
        check(process in self.processes, "the trace has nothing of", process)
        pid = self.processes[process]["pid"]
        return [e for e in self.events if e["ph"] == "X" and e["pid"] == pid and name in (None, e["name"]) and
                (thread is None or self.threads[pid, e["tid"]].split(" (")[0] == thread)]

    def about(self, process, what):
        check(process in self.processes, "the trace has nothing of", process)
        return self.processes[process]["args"][what]


def words(endpoint, seconds, out):
    return [program("ctl"), "-e", endpoint, "trace", "--seconds", str(seconds), str(out)]


def take(base, seconds=1.0):
    out = pathlib.Path(base) / "out.json"
    done = subprocess.run(words("ipc://%s/service" % base, seconds, out), capture_output=True, text=True,
                          timeout=seconds + 2 * PATIENCE)
    equal(done.returncode, 0, done.stderr)
    trace = Trace(out.read_text())
    trace.said = done.stdout
    return trace


def names(trace, process):
    return {event["name"] for event in trace.spans(process)}


def windows(function):
    """Traces for a second, and for ten if something was not seen in the first: a machine that stalls is slow, and a fault stays."""
    @functools.wraps(function)
    def both():
        try:
            function(1)
        except (AssertionError, ReplayError) as error:
            print("      again, for longer:", error)
            function(10)
    return both


@windows
def test_a_run_of_actors_and_a_learner(seconds):
    with Run(CONFIG) as run:
        run.broker()
        run.learner()
        run.actor(0)
        run.actor(1)
        eventually(lambda: run.policy() > 2, PATIENCE, "published parameters")
        trace = take(run.base, 1.5 * seconds * SLOW)
        check({"broker", "learner-0", "actor-0", "actor-1"} <= set(trace.processes), set(trace.processes))
        check({"insert", "sample", "fill", "reply", "update", "params_put", "checkpoint"} <= names(trace, "broker"),
              names(trace, "broker"))
        check(trace.spans("broker", thread="waits") and trace.spans("broker", thread="disk writer") and
              trace.spans("broker", thread="syncer"), set(trace.threads.values()))
        check({"environment step", "choose actions", "append", "pack items", "send"} <= names(trace, "actor-0"),
              names(trace, "actor-0"))
        check({"learner step", "gradient", "wait for a sample", "decode", "sample", "update", "params_put"} <=
              names(trace, "learner-0"), names(trace, "learner-0"))
        equal(trace.about("broker", "clients_missing"), 0)
        samples_lie_inside_their_requests(trace)
        kinds = {event["name"] for event in trace.flows["s"].values()}
        equal(kinds, {"request", "ingest"}, "kinds of arrows")


def samples_lie_inside_their_requests(trace, offset=0):
    """What the broker did for a sample happened between its request and its reply, as far as the clocks are known."""
    margin = trace.about("learner-0", "clock_uncertainty_ns") / 1e3
    apart = trace.about("learner-0", "clock_offset_ns") - offset
    check(apart == 0 if offset == 0 else abs(apart) / 1e3 <= margin, "the clocks differ by", apart, "ns; uncertainty", margin)
    check(0 < margin < 1e5, "uncertainty of the clock in us", margin)
    asked = {e["args"]["id"]: e for e in trace.spans("learner-0", "sample", "requests")}
    client = {e["args"]["client"] for e in asked.values()}
    equal(len(client), 1, "clients of one process")
    found = 0
    for event in trace.spans("broker", "sample") + trace.spans("broker", "reply"):
        request = asked.get(event["args"]["id"])
        if not request or event["args"]["client"] not in client:
            continue
        found += 1
        check(request["ts"] - margin <= event["ts"] and
              event["ts"] + event["dur"] <= request["ts"] + request["dur"] + margin, "outside", request, event, margin)
    check(found > 10, "samples with both ends:", found)


AHEAD_S = 500
ELSEWHERE = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(AHEAD_S)]


@windows
def test_a_learner_with_another_clock(seconds):
    """A time namespace stands for another machine: its clock is 500 s ahead, and the trace puts its spans right."""
    if subprocess.run(ELSEWHERE + ["true"], capture_output=True).returncode != 0:
        print("      skipped: no time namespaces here")
        return
    with Run(CONFIG) as run:
        run.broker()
        Process(run, "learner-0", ELSEWHERE + [program("learner"), "-c", str(run.config), "--index", "0"])
        run.actor()
        eventually(lambda: run.policy() > 2, PATIENCE, "published parameters")
        trace = take(run.base, seconds * SLOW)
        samples_lie_inside_their_requests(trace, -AHEAD_S * 10**9)
        equal(trace.about("actor-0", "clock_offset_ns"), 0, "the actor has the broker's clock")
        check(all(e["ts"] < 60e6 for e in trace.spans("learner-0")), "spans far off the trace")


@contextlib.contextmanager
def bare():
    """A broker alone."""
    with Run(configuration(limiter="min_size, min_size: 1")) as run:
        run.broker()
        yield run


@windows
def test_a_thousand_requests_lose_nothing(seconds):
    """All are answered, and all are in the trace; a wait that does not end is there, too."""
    with bare() as run:
        service, traces = Service(run.endpoint), []
        waiting = service.send("sample", pb.Sample(table="replay", count=1))
        eventually(lambda: service.table("replay").waiting_samplers == 1, PATIENCE, "the sample to wait")
        thread = threading.Thread(target=lambda: traces.append(take(run.base, 2 * seconds * SLOW)))
        thread.start()
        eventually(lambda: service.ask("info", pb.Info())[0].HasField("tracing"), PATIENCE, "the trace's start")
        ids = [service.send("counter", pb.Counter(name="c", add=1)) for _ in range(1000)]
        replies = [service.wait(id)[0] for id in ids]
        check(all(reply.HasField("tracing") and reply.tracing.end_ns > reply.tracing.now_ns for reply in replies),
              "replies that do not tell of the trace")
        thread.join()
        check(not service.ask("info", pb.Info())[0].HasField("tracing"), "a reply after the end tells of the trace")
        equal(service.ask("counter", pb.Counter(name="c"))[0].counter.value, 1000, "additions")
        trace = traces[0]
        seen = [e["args"]["id"] for e in trace.spans("broker", "counter") if e["args"]["client"] == str(service.client)]
        equal(seen, ids, "requests in the trace")
        equal(trace.about("broker", "dropped_spans"), 0)
        open_waits = [e for e in trace.spans("broker", "sample", "waits") if e["args"]["id"] == waiting]
        equal(len(open_waits), 1, "the wait that goes on")
        equal((open_waits[0]["ts"], open_waits[0]["args"]["note"]), (0, "began before the trace"))


def test_one_trace_at_a_time():
    with bare() as run:
        first, second = Service(run.endpoint), Service(run.endpoint)
        id = first.send("trace", pb.Trace(duration_ms=60000))
        eventually(lambda: second.ask("info", pb.Info())[0].HasField("tracing"), PATIENCE, "the trace's start")
        refused = second.ask("trace", pb.Trace(duration_ms=10), check=False)[0]
        equal(refused.status, 6, "a second trace")  # FAILED_PRECONDITION
        check(refused.text, "a refusal has a sentence")
        done = subprocess.run(words(run.endpoint, 1, run.base / "no.json"), capture_output=True, text=True)
        equal(done.returncode, 1, "replay-ctl")
        check(not (run.base / "no.json").exists(), "a refused trace leaves no file")
        first.ask("cancel", pb.Cancel(id=[id]))
        check(not second.ask("info", pb.Info())[0].HasField("tracing"), "the cancelled trace goes on")
        reply, frames = second.ask("trace", pb.Trace(duration_ms=10))
        equal([p.name for p in reply.trace.processes], ["broker"])
        equal(len(frames), 1)


def record(name=0, track=0, link=0, start=1 << 40, duration=5, id=7):
    return b"".join(n.to_bytes(size, "little") for n, size in
                    ((start, 8), (duration, 8), (0, 8), (id, 8), (3, 4), (name, 2), (track, 1), (link, 1)))


@windows
def test_clients_share_the_room(seconds):
    """All clients together send more than the broker keeps: each shows its beginning, and one that has little leaves its rest."""
    with bare() as run:
        admin, clients = Service(run.endpoint), [Service(run.endpoint) for _ in range(9)]
        large = b"".join(record(id=i) for i in range(16384))
        id = admin.send("trace", pb.Trace(duration_ms=1000 * seconds * SLOW))
        number = eventually(lambda: clients[0].ask("info", pb.Info())[0].tracing.trace, PATIENCE, "the trace's start")
        for client in clients:
            client.ask("trace_spans", pb.TraceSpans(trace=number, text=["a"]))
        for client, frame in zip(clients, [large[:4000 * 40]] + 8 * [large]):
            client.ask("trace_spans", pb.TraceSpans(trace=number, text=["a"], last=True), [frame])
        reply, frames = admin.wait(id)
        found = {p.client: (len(frame) // 40, p.dropped, frame) for p, frame in zip(reply.trace.processes, frames)}
        equal(found[clients[0].client][:2], (4000, 0), "the small client")
        for client in clients[1:]:
            equal(found[client.client][:2], (12000, 4384), "a large client")
            equal(found[client.client][2][-40:], record(id=11999), "the last of the first spans")


@windows
def test_odd_spans_make_a_sound_file(seconds):
    """Spans that all overlap fill a bounded number of rows, and a clock that cannot be puts a client out of the trace."""
    with bare() as run:
        service, odd, traces = Service(run.endpoint), Service(run.endpoint), []
        thread = threading.Thread(target=lambda: traces.append(take(run.base, seconds * SLOW)))
        thread.start()
        told = eventually(lambda: (lambda r: r.HasField("tracing") and r.tracing)(service.ask("info", pb.Info())[0]), PATIENCE,
                          "the trace's start")
        frame = b"".join(record(start=told.now_ns + i, duration=10**6) for i in range(4000))
        service.ask("trace_spans", pb.TraceSpans(trace=told.trace, name="many", text=["a"], last=True), [frame])
        odd.ask("trace_spans", pb.TraceSpans(trace=told.trace, name="odd", text=["a"], offset_ns=2**63 - 1 - told.now_ns,
                                             last=True), [frame])
        thread.join()
        equal(len(traces[0].spans("many")), 1024, "spans that are shown")
        equal(traces[0].spans("odd"), [], "spans of a client with an odd clock")
        equal(traces[0].about("broker", "dropped_spans"), 4000 - 1024)
        check("\n2976 " in traces[0].said, "replay-ctl does not tell of dropped spans:", traces[0].said)


def test_a_file_that_cannot_be_written():
    """A wrong path is known before the trace; a full disk leaves the file as it was; a killed replay-ctl ends its trace."""
    with bare() as run:
        out = run.base / "out.json"
        for path in (run.base / "none" / "out.json", run.base):
            done = subprocess.run(words(run.endpoint, 60, path), capture_output=True, text=True, timeout=120)
            equal(done.returncode, 1, path)
        out.write_text("old")
        limited = "ulimit -f 1; trap '' XFSZ; exec \"$@\""
        service = Service(run.endpoint)
        command = ["bash", "-c", limited, "-"] + words(run.endpoint, 0.2, out)
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while writer.poll() is None:  # enough spans for more than the limit
            service.ask("info", pb.Info())
        writer.communicate()
        equal((writer.returncode, out.read_text()), (1, "old"), "after a full disk")
        equal([path.name for path in run.base.glob("out.json*")], ["out.json"], "files that are left")
        killed = subprocess.Popen(words(run.endpoint, 60, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        eventually(lambda: service.ask("info", pb.Info())[0].HasField("tracing"), PATIENCE, "the trace's start")
        killed.kill()
        killed.communicate()
        eventually(lambda: not service.ask("info", pb.Info())[0].HasField("tracing"), PATIENCE, "the end of the trace")
        equal(out.read_text(), "old", "after a kill")


@windows
def test_wrong_spans_are_refused(seconds):
    with bare() as run:
        admin, client = Service(run.endpoint), Service(run.endpoint)
        for duration in (0, 60001, 1 << 63):
            equal(admin.ask("trace", pb.Trace(duration_ms=duration), check=False)[0].status, 1, duration)  # INVALID_ARGUMENT
        id = admin.send("trace", pb.Trace(duration_ms=1000 * seconds * SLOW))
        number = eventually(lambda: client.ask("info", pb.Info())[0].tracing.trace, PATIENCE, "the trace's start")

        def send(payload=(), trace=number, **said):
            return client.ask("trace_spans", pb.TraceSpans(trace=trace, **said), payload, check=False)[0].status

        equal(send(trace=number ^ 2), 2, "another trace")  # NOT_FOUND
        for payload in ([b"x"], [record(), record()], [record(name=1)], [record(track=9)], [record(link=3)],
                        [record(start=1 << 63)], [record(duration=1 << 63)]):
            check(send(payload, text=["a"]) != 0, "taken:", payload)
        check(send(text=["n"] * 1000) != 0, "too many names")
        check(send(text=["n" * 48]) != 0, "a long name of a span")
        check(send(name="n" * 256) != 0, "a long name of a client")
        equal(send([record()], name="odd \"\\\n name", pid=5, text=["\u00fc\"<"], last=True), 0, "good spans")
        check(send([record()], text=["a"]) != 0, "spans after the last")
        reply, frames = admin.wait(id)
        equal([p.name for p in reply.trace.processes], ["broker", "odd \"\\\n name"])
        equal(frames[1], record())
