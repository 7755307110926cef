"""Figures for other tools: --log-json makes every log line of a run one JSON object, in the launcher and in all of its processes;
status --openmetrics gives the figures of a status."""

import json
import os
import re
import subprocess

from launches import Place, check, equal, program, sets
from metrics_text import Metrics

TEXT_LINE = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z (debug|info|warn|error)\b")


def objects(text):
    """The log lines of a text, as objects; what a program prints besides is left out."""
    check(not any(TEXT_LINE.match(line) for line in text.splitlines()), "a line that is not JSON", text)
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    for line in found:
        check(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line)
        check(line["level"] in ("debug", "info", "warn", "error") and re.fullmatch(r"[A-Z]\d{4}", line["id"]) and line["text"],
              line)
    return found


def check_metrics(place, status):
    """The figures of status.json, in a text that a strict reader accepts."""
    text = place.call("status", "run", "--openmetrics")[0]
    units = re.findall(r"^# UNIT (\S+) (\S+)$", text, re.M)
    check(units and all(name.endswith("_" + unit) for name, unit in units), units)
    metrics = Metrics(text, openmetrics=True)
    run = {"run": "small"}
    for name, member in (("environment_steps_total", "steps"), ("learner_steps_total", "learner_steps"), ("restarts_total", "restarts"),
                         ("elapsed_seconds", "elapsed_s"), ("return", "value"), ("best_return", "best"), ("actors_wanted",) * 2,
                         ("table_items", "size"), ("inserts_per_second", "inserts_rate"), ("memory_bytes", "memory")):
        equal(metrics.get("replay_run_" + name, **run), status[member], name)
    equal([one.labels["phase"] for one in metrics.families["replay_run_phase"].samples if one.value], ["done"], "phase")
    for process in status["processes"]:
        equal(metrics.get("replay_run_process_restarts_total", process=process["name"], **run), process["restarts"], process)
    equal(sum(process["name"] == "actor-1" for process in status["processes"]), 1, "processes")
    place.call("status", "run", "--openmetrics", "--json", status=2)


def by_id(found, name):
    return [line for line in found if line["id"] == name]


def test_run():
    """The launcher passes it on."""
    with Place() as place:
        run = place.launch("--log-json", "--folder", "run", *sets("stop.steps=600", "evaluator.every=300"))
        run.ends()
        logs = {path.stem: objects(path.read_text()) for path in (run.folder / "logs").glob("*.log")}
        check({"launch", "broker", "actor-0", "actor-1", "learner-0", "evaluator-0"} <= set(logs), sorted(logs))
        started, = by_id(logs["broker"], "B0001")
        check(isinstance(started["tables"], int) and started["service"].startswith("tcp://"), started)
        results = by_id(logs["evaluator-0"], "A0303")
        check(results and all(isinstance(line["episodes"], int) for line in results), logs["evaluator-0"])
        check_metrics(place, run.read("status.json"))
        check(logs["launch"] and any("text_" in line for line in logs["launch"]), logs["launch"])


def test_programs():
    """The option and the variable do the same; without them lines are text."""
    with Place() as place:
        words = [program("single"), "-c", str(place.config), "--log-level", "debug", *sets("stop.steps=300", "folder=")]
        for more, variable in ((["--log-json"], "0"), ([], "1"), ([], "0")):
            done = subprocess.run(words + more, capture_output=True, text=True, cwd=place.base, check=True,
                                  env=dict(os.environ, REPLAY_LOG_JSON=variable))
            if more or variable == "1":
                check(objects(done.stderr), done.stderr)
            else:
                check(any(TEXT_LINE.match(line) for line in done.stderr.splitlines()), done.stderr)
        for name in ("broker", "actor", "learner", "single"):
            text = subprocess.run([program(name), "--help"], capture_output=True, text=True, check=True).stdout
            equal(text.count("--log-json"), 1, name)
