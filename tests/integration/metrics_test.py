"""/metrics and /api of a real broker: what they say after known work, and what bad requests get while a writer works."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import socket
import tempfile
import time
import urllib.parse

from keyrings import COLUMNS, FIELDS, KeyBroker, send, write
from actor import Actor
from generated import pb
from harness import Broker, check, contains, ctl, equal, eventually
from hostile_test import Neighbour
from learner import Learner
from metrics_text import Metrics, promtool
from service import Service

SOURCE = pathlib.Path(os.environ.get("RP_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
SLOW = 10 if os.environ.get("RP_SANITIZE") else 1  # a sanitizer's factor
TABLES = r"""
tables:
  - {name: replay, max_size: 50, sampler: {kind: prioritized, exponent: 1.0}, limiter: {kind: min_size, min_size: 5}}
  - {name: queue, max_size: 4, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}
  - {name: 'a "b"/\c', max_size: 10, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, error_buffer: 10}}
"""
ODD = 'a "b"/\\c'
PATHS = ("/", "/metrics", "/api", "/api/info", "/api/tables", "/api/tables/replay", "/api/sessions", "/api/why",
         "/api/params", "/api/latency", "/healthz")


class Web:
    """What one client gets from a broker's http address."""

    def __init__(self, url):
        self.host, self.port = re.fullmatch(r"http://(.*):(\d+)/", url.strip()).groups()
        self.port = int(self.port)

    def ask(self, path, method="GET", headers=None, body=None):
        """(status, headers, text)"""
        connection = http.client.HTTPConnection(self.host.strip("[]"), self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read().decode()
        finally:
            connection.close()

    def json(self, path):
        status, headers, text = self.ask(path)
        equal((status, headers["Content-Type"]), (200, "application/json; charset=utf-8"), path)
        return json.loads(text, parse_constant=lambda word: check(False, word, "is no JSON"))

    def metrics(self, openmetrics=False):
        status, headers, text = self.ask("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
                                         if openmetrics else {})
        equal((status, headers["Content-Type"]), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                                  if openmetrics else "text/plain; version=0.0.4; charset=utf-8"))
        return Metrics(text, openmetrics)


class Site:
    """A broker that serves HTTP, a writer and a learner."""

    def __init__(self, tables=TABLES, more=""):
        self.broker = Broker("http: 127.0.0.1:0\n" + more + tables)
        self.web = Web(self.broker.endpoints["http"])
        self.endpoint = self.broker.endpoints["service"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        equal(self.broker.stop(), 0, "exit status")
        self.broker.remove()

    def actor(self, name="writer"):
        return Actor(Service(self.endpoint), COLUMNS, name)

    def ctl(self, *words):
        status, text, error = ctl("-e", self.endpoint, "--json", *words)
        equal(status, 0, error)
        return json.loads(text)


def work(site):
    """Known work: 20 inserts, 2 batches of 8, 3 updates, one of them in vain, 2 versions of a policy."""
    service = Service(site.endpoint)
    service.ask("params_put", pb.ParamsPut(name="policy"), [b"weights"])
    check(write(site.actor(), "replay", 20, policy=1))
    service.ask("params_put", pb.ParamsPut(name="policy"), [b"better weights"])
    learner = Learner(Service(site.endpoint))
    keys = []
    for _ in range(2):
        keys = [item.key for item in learner.sample("replay", 8)[1]]
    learner.service.update("replay", keys[:2] + [4711], [2.0, 3.0, 4.0])
    equal(service.ask("fetch", pb.Fetch(table="nowhere", key=[1]), check=False)[0].status, 2)
    service.ask("counter", pb.Counter(name="steps", add=5))
    return learner


def test_figures_are_those_of_replay_ctl():
    with Site() as site:
        work(site)
        metrics, info = site.web.metrics(), site.ctl("info")
        table = next(t for t in info["tables"] if t["name"] == "replay")
        shown = lambda name: metrics.get("replay_table_" + name, table="replay")
        equal([shown("inserts_total"), shown("samples_total"), shown("updates_total"), shown("updates_missing_total")],
              [20, 16, 2, 1])
        for name, key in (("items", "size"), ("max_items", "max_size"), ("bytes", "bytes"), ("updates_total", "updates"),
                          ("updates_missing_total", "updates_missing"), ("evicted_total", "evicted"),
                          ("unique_samples", "unique_samples"), ("episodes", "episodes"),
                          ("waiting_inserts", "waiting_inserts"), ("total_priority", "total_priority")):
            equal(shown(name), table[key], name)
        for name, key in (("cursor", "cursor"), ("samples_per_insert", "samples_per_insert"), ("min_items", "min_size")):
            equal(metrics.get("replay_limiter_" + name, table="replay"), table["limiter"][key], name)
        server = info["server"]
        equal(metrics.get("replay_memory_counted_bytes"), server["memory_bytes"])
        equal(metrics.get("replay_memory_limit_bytes"), server["memory_limit"])
        equal(metrics.get("replay_chunks"), server["chunk_count"])
        equal(metrics.get("replay_stored_bytes"), server["chunk_bytes"])
        equal(metrics.get("replay_sessions"), server["session_count"])
        equal(metrics.get("replay_credit_granted_bytes"), server["granted_bytes"])
        for command in server["commands"]:
            if command["name"] != "info":  # replay-ctl has asked since; it also says hello
                more = command["name"] == "hello"
                equal(metrics.get("replay_requests_total", command=command["name"]), command["calls"] - more, command)
        equal(metrics.get("replay_replies_failed_total", status="NOT_FOUND"), 1)
        equal(metrics.get("replay_params_version", slot="policy"), 2)
        equal(metrics.get("replay_shared_value", name="steps"), 5)


def test_times_and_ages_are_counted():
    with Site() as site:
        learner = work(site)
        metrics = site.web.metrics()
        equal(metrics.get("replay_insert_duration_seconds_count"), 20)
        check(0 < metrics.get("replay_insert_duration_seconds_sum") < 20 * SLOW)
        equal(metrics.get("replay_request_duration_seconds_count", command="sample"), 2)
        equal(metrics.get("replay_request_duration_seconds_count", command="update"), 1)
        equal(metrics.get("replay_request_duration_seconds_count", command="params_put"), 2)
        equal(metrics.get("replay_sampled_age_seconds_count", table="replay"), 16)
        # All items were made by version 1, when 2 was the newest.
        equal(metrics.get("replay_sampled_staleness_versions_sum", table="replay"), 16)
        equal(metrics.get("replay_sampled_staleness_versions_bucket", table="replay", le="0"), 0)
        equal(metrics.get("replay_sampled_staleness_versions_bucket", table="replay", le="1"), 16)
        # A sample that waits, and an insert that waits for it. The time begins when the broker says that they wait.
        waiting = lambda: [(line["kind"], line["table"], line["who"], line["count"]) for line in site.web.json("/api/why")["waits"]]
        id = learner.service.send("sample", pb.Sample(table="queue", count=2))
        eventually(lambda: site.web.json("/api/tables/queue")["waiting_samplers"] == 1, 20, "the sample to wait")
        time.sleep(0.3)
        writer = site.actor("waiting")
        check(send(writer, "queue", 7) and not writer.flush(0.1), "the queue takes four, and two that were sampled")
        learner.service.wait(id)
        eventually(lambda: waiting() == [("insert", "queue", "waiting", 1)], 20, "one item to wait")
        time.sleep(0.3)
        contains(site.web.json("/api/why")["waits"][0]["text"], "queue")
        equal(site.web.json("/api/tables/queue")["waiting_inserts"], 1)
        learner.sample("queue", 4)
        check(writer.flush(10))
        metrics = site.web.metrics()
        equal(metrics.get("replay_request_wait_seconds_count", command="sample"), 1)
        check(0.3 <= metrics.get("replay_request_wait_seconds_sum", command="sample") < 30 * SLOW)
        equal(metrics.get("replay_insert_duration_seconds_count"), 27)
        check(metrics.get("replay_insert_wait_seconds_count") >= 1)
        check(0.3 <= metrics.get("replay_insert_wait_seconds_sum") < 30 * SLOW)


def test_json_and_openmetrics_say_the_same():
    with Site() as site:
        work(site)
        time.sleep(0.15)  # a later snapshot
        info, metrics, other = site.web.json("/api/info"), site.web.metrics(), site.web.metrics(True)
        check(promtool(site.web.ask("/metrics")[2]) in (True, None))
        equal(other.names(), metrics.names())
        equal(info["server"]["release"], os.environ.get("RP_VERSION", info["server"]["release"]))
        equal([f["count"] for f in info["server"]["failed"] if f["status"] == "NOT_FOUND"], [1])
        check("disk" not in info)
        threads = {thread["name"]: thread for thread in info["process"]["threads"]}
        for name in ("core", "io/0", "http"):
            check(threads[name]["cpu_s"] > 0, name)
            # The same snapshot or a later one; the text has fewer digits.
            check(metrics.get("replay_thread_cpu_seconds_total", thread=name) >= threads[name]["cpu_s"] * (1 - 1e-6), name)
        check(metrics.get("process_resident_memory_bytes") > 1e6)
        check(abs(metrics.get("process_start_time_seconds") - time.time()) < 60 * SLOW)
        tables = site.web.json("/api/tables")["tables"]
        equal([t["name"] for t in tables], ["replay", "queue", ODD])
        equal(site.web.json("/api/tables/" + urllib.parse.quote(ODD, safe=""))["name"], ODD)
        equal(metrics.get("replay_limiter_cursor_min", table=ODD), tables[2]["limiter"]["min_diff"])
        equal(metrics.get("replay_limiter_cursor_max", table="replay"), float("inf"))
        equal(sum(tables[0]["ages"]), 16)
        session = site.web.json("/api/sessions")["sessions"][0]
        equal((session["name"], session["items"], session["tables"][0]["table"]), ("writer", 20, "replay"))
        equal(metrics.get("replay_session_items_total", session="writer", ordinal=str(session["ordinal"])), 20)
        equal(metrics.get("replay_session_credit_granted_bytes", session="writer", ordinal=str(session["ordinal"])),
              session["granted_bytes"])
        params = site.web.json("/api/params")
        equal([(s["name"], s["version"], s["bytes"]) for s in params["slots"]], [("policy", 2, 14)])
        equal(params["counters"], [{"name": "steps", "value": 5}])
        latency = site.web.json("/api/latency")
        equal(latency["insert_times"]["count"], 20)
        equal(latency["requests"]["sample"]["times"]["count"], 2)
        check(latency["insert_times"]["p50"] <= latency["insert_times"]["p99"])
        equal(latency["tables"]["replay"]["ages"]["count"], 16)
        server = site.ctl("info")["server"]  # clients see the same histograms
        times = next(one["times"] for one in server["commands"] if one["name"] == "sample")
        equal((sum(server["insert_times"]), sum(times)), (20, 2))
        bounds = [((2 ** b - 1) / 1e9, count) for b, count in enumerate(times) if count]
        equal(latency["requests"]["sample"]["times"]["buckets"], [list(one) for one in bounds])
        for (name, labels), value in metrics.samples.items():
            if name == "replay_request_duration_seconds_bucket" and ("command", "sample") in labels:
                equal(value, sum(n for bound, n in bounds if bound <= float(dict(labels)["le"]) * (1 + 1e-9)), labels)


def test_a_shard_labels_all_its_metrics():
    with Site(more="shards: 2\n") as site:
        for shard, name in enumerate(("http", "shard.1.http")):
            samples = Web(site.broker.endpoints[name]).metrics().samples
            equal({labels[0] for _, labels in samples}, {("shard", str(shard))}, name)


def test_the_journal_has_figures():
    with tempfile.TemporaryDirectory(prefix="replay-metrics-") as folder:
        with Site(more="folder: %s\njournal: 0s\n" % folder) as site:
            work(site)
            metrics, disk = site.web.metrics(), site.web.json("/api/info")["disk"]
            check(disk["journal"] and disk["fsync"] == "always" and disk["bytes"] > 0)
            check(metrics.get("replay_disk_written_bytes_total") > 0)
            space = os.statvfs(folder)
            check(0 < metrics.get("replay_disk_reserve_bytes") < metrics.get("replay_disk_free_bytes"), "free space")
            check(metrics.get("replay_disk_free_bytes") <= space.f_blocks * space.f_frsize, "free space")
            check(metrics.get("replay_journal_wait_seconds_count") > 0)
            check({"disk-writer", "syncer"} <= {t["name"] for t in site.web.json("/api/info")["process"]["threads"]})
        # Counters of a table that is restored begin at 0 like all others: a counter must not go back to another number.
        with Site(more="folder: %s\n" % folder) as site:
            metrics = site.web.metrics()
            equal([metrics.get("replay_table_" + name, table="replay") for name in ("items", "inserts_total", "samples_total")],
                  [20, 0, 0])
            equal(metrics.get("replay_limiter_cursor", table="replay"), site.ctl("info")["tables"][0]["limiter"]["cursor"])
            check(write(site.actor(), "replay", 3))
            eventually(lambda: site.web.metrics().get("replay_table_inserts_total", table="replay") == 3, 20, "new inserts")


def described(family):
    """The row of docs/METRICS.md, made from what the broker says: from the rows of proto/wire/figures.c."""
    labels = dict.fromkeys(name for sample in family.samples for name in sample.labels if name != "le")
    name = family.name + "_total" * (family.type == "counter")
    return "| `%s` | %s | %s | %s |" % (name, family.type, ", ".join("`%s`" % name for name in labels), family.documentation)


def test_documents_name_what_there_is():
    with tempfile.TemporaryDirectory(prefix="replay-metrics-") as folder, Site(more="folder: %s\n" % folder) as site:
        work(site)
        metrics = site.web.metrics()
    page = SOURCE / "docs" / "METRICS.md"
    rows = {row.split("`")[1]: row for row in map(described, metrics.families.values())}
    if os.environ.get("RP_WRITE_METRICS"):  # a metric that is new needs a row with its name before
        page.write_text(re.sub(r"^\| `([a-z_]+)` \| (?:counter|gauge|histogram) \|.*$", lambda row: rows[row[1]], page.read_text(), flags=re.M))
    equal(dict(re.findall(r"^(?=\| `([a-z_]+)` \| (?:counter|gauge|histogram) \|)(.*)$", page.read_text(), re.M)), rows, "docs/METRICS.md")
    board = json.loads((SOURCE / "docs" / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    check(len(queries) >= 20, "queries")
    used = {name for query in queries for name in re.findall(r"\b(?:replay|process)_[a-z_]+", query)}
    equal(used - metrics.names(), set(), "names in docs/grafana.json")
    equal([panel["title"] for panel in board["panels"] if not panel.get("description")], [], "panels without a description")
    rules = (SOURCE / "docs" / "alerts.yaml").read_text()
    alarmed = {name for line in re.findall(r"expr: (.*)", rules) for name in re.findall(r"\breplay_[a-z_]+", line)}
    check(len(alarmed) >= 8, "metrics of docs/alerts.yaml")
    equal(alarmed - metrics.names(), set(), "names in docs/alerts.yaml")
    check(len({panel["id"] for panel in board["panels"]}) == len(board["panels"]), "ids of panels")
    # All panels but those of each shard add shards up: as many lines for four shards as for one.
    apart = [t["expr"] for p in board["panels"] if "each shard" not in p["title"] for t in p["targets"]
             if not re.search(r"(sum|min|max) ?(by|without)? ?\(", t["expr"])]
    equal(apart, [], "queries of docs/grafana.json with a line for each shard")


def test_a_full_memory_raises_its_alarm():
    rules = (SOURCE / "docs" / "alerts.yaml").read_text()
    rule = re.search(r"alert: ReplayMemoryNearlyFull\n +expr: (.*)", rules)[1]
    with Site("tables: [{name: t, max_size: 1000000}]\n", "memory_limit: 4MiB\n") as site:
        def alarmed():
            metrics = site.web.metrics()
            return (eval(re.sub(r"replay_\w+", lambda name: repr(metrics.get(name[0])), rule)),
                    metrics.get("replay_table_evicted_for_memory_total", table="t") > 0)
        actor = Actor(Service(site.endpoint), [pb.Column(name="x", dtype="float32", shape=[4096])], "writer")
        layout = actor.layout("t", FIELDS)
        equal(alarmed(), (False, False), rule)
        while not alarmed()[1]:
            actor.oldest_chunk = actor.chunk([bytes(16384)], 1)
            actor.item(layout, actor.oldest_chunk, 0, 1)
            check(actor.send(60.0) and actor.flush(60.0), "not written")
        equal(alarmed(), (True, True), rule)


def crowd(web):
    """A thousand connections that say nothing, or little."""
    held = []
    for i in range(1000):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((web.host, web.port))
        held.append(s)
    for s in held[::3]:
        try:
            s.send(b"GET /metr")
        except OSError:
            pass
    return held


def test_bad_requests_disturb_nobody():
    with Site() as site:
        web, busy = site.web, Neighbour(site.endpoint, "replay", 10)
        busy.start()
        eventually(lambda: busy.rounds > 3, 20, "the writer")
        for path in ("/%2e%2e/%2e%2e/etc/passwd", "/metrics%00", "//metrics", "/api/tables/%00", "/api/tables/none", "/api/tables/"):
            status, _, text = web.ask(path)
            equal((status, "error" in json.loads(text)), (404, True), path)
        with concurrent.futures.ThreadPoolExecutor(8) as others:
            asked = [others.submit(web.ask, PATHS[i % len(PATHS)]) for i in range(200)]
            equal({future.result()[0] for future in asked}, {200})
        held = crowd(web)
        before = busy.rounds
        eventually(lambda: busy.trouble or busy.rounds > before + 20, 20 * SLOW, "rounds beside a thousand connections")
        equal(web.ask("/healthz")[0], 200, "a request beside the crowd")
        for s in held:
            s.close()
        eventually(lambda: web.ask("/healthz")[0] == 200, 20, "health after the crowd")
        busy.stopping.set()
        busy.join(60)
        equal((busy.trouble, busy.rejections), ([], []))
        # Figures may be a tenth of a second old.
        eventually(lambda: site.web.metrics().get("replay_table_inserts_total", table="replay") == 10 * busy.rounds, 20,
                   "all inserts of the writer")
        print("      %d rounds of a writer, the longest %.0f ms" % (busy.rounds, busy.longest * 1e3))


def test_a_token_is_needed_with_keys():
    with KeyBroker("http: 127.0.0.1:0\n") as broker:
        web = Web(broker.endpoints["http"])
        equal([web.ask(path)[0] for path in ("/healthz", "/nowhere", "/metrics", "/api/info")], [200, 404, 401, 401])
        for name, status in (("http.token", 403), ("http.admin.token", 200)):  # one only reads, the other one changes
            token = (broker.keys / name).read_text().strip()
            header, wish = {"Authorization": "Bearer " + token}, json.dumps({"action": "reset", "table": "t"})
            equal([web.ask(path, headers=header)[0] for path in ("/metrics", "/api/info")], [200, 200])
            equal(web.ask("/api/do", "POST", header, wish)[0], status, "a reset")
            check(token not in broker.text(), "the log tells the token")


class Crowded(Actor):
    """A writer that shares its sockets with others."""

    push_of_all = None

    def connect_ingest(self, endpoint):
        if not Crowded.push_of_all:
            super().connect_ingest(endpoint)
            Crowded.push_of_all = self.push
        self.push = Crowded.push_of_all


def test_a_thousand_sessions_and_a_hundred_tables():
    tables = "tables:\n" + "".join("  - {name: table-%d, max_size: 1000}\n" % i for i in range(100))
    with Site(tables, "session: {expiry: 600s}\n") as site:
        service = Service(site.endpoint)
        for i in range(1000):
            actor = Crowded(service, COLUMNS, "actor-%d" % i, notices=False)
            check(send(actor, "table-%d" % (i % 100), 1 + i % 3), "not sent")
        items = sum(1 + i % 3 for i in range(1000))
        counted = lambda: sum(t["size"] for t in site.web.json("/api/tables")["tables"])
        eventually(lambda: counted() == items, 30 * SLOW, "all items")
        took, cpu = [], []
        for _ in range(20):
            time.sleep(0.11)  # no snapshot is shared
            start = time.monotonic()
            status, _, text = site.web.ask("/metrics")
            took.append(time.monotonic() - start)
            equal(status, 200)
            server = site.web.json("/api/info")["server"]  # of this snapshot or the next
            cpu.append(server["snapshot_cpu_ns"] / server["snapshots"] / 1e9)
        metrics = Metrics(text)
        check(promtool(text) in (True, None))
        equal(metrics.get("replay_sessions"), 1000)
        shown = [value for (name, _), value in metrics.samples.items() if name == "replay_session_items_total"]
        equal(shown, [3] * 100, "the sessions that have sent most")
        sessions = site.web.json("/api/sessions")["sessions"]
        equal((len(sessions), sum(s["items"] for s in sessions)), (1000, items))
        took.sort(), cpu.sort()
        print("      a scrape of %d kB: median %.1f ms, best %.1f ms; core thread: median %.0f us" % (
            len(text) / 1000, took[10] * 1e3, took[0] * 1e3, cpu[10] * 1e6))
        check(took[0] < 0.1 * SLOW, "a scrape took", took)  # the best: other programs make the median late
        check(cpu[10] < 0.01 * SLOW, "the core thread took", cpu)
