"""Runs as real processes: to their end, and through signals, deaths and restarts of each part."""

import subprocess
import signal
import time

from runs import PATIENCE, Run, check, configuration, equal, eventually, program
from event_files import records
from service import Service


def make_run(steps=0, broker=""):
    return Run(configuration(broker, evaluator="{episodes: 2, every: 1000}", stop="{steps: %d}" % steps))


def check_files(run, process):
    """Both logs hold the same reports."""
    reports = run.reports(process)
    check(reports, process, "has no reports")
    for report in reports:
        equal(report["process"], process, "process")
    for name in ("time", "environment_steps", "learner_steps"):
        values = [report[name] for report in reports]
        equal(values, sorted(values), "%s of %s never falls" % (name, process))
    files = list((run.folder / "tb" / process).iterdir())
    equal(len(files), 1, "event files of %s" % process)
    equal(len(list(records(files[0].read_bytes()))), len(reports) + 1, "events of %s" % process)
    return reports


def test_whole_run():
    steps = 3007  # not a multiple of what an actor claims at once
    with make_run(steps) as run:
        broker = run.broker()
        processes = [run.learner(), run.actor(0), run.actor(1), run.evaluator()]
        for process in processes:
            process.ends()
        equal(run.counter("environment_steps"), steps, "environment_steps")
        reports = {name: check_files(run, name) for name in ("learner-0", "actor-0", "actor-1", "evaluator-0")}
        equal(sum(reports[a][-1]["actor_steps"] for a in ("actor-0", "actor-1")), steps, "steps of both actors")
        check_provenance(reports["learner-0"])

        # The evaluator inserts nothing: the actors' items are all there are. The learner takes what the limiter allows.
        table = run.table()
        inserts = table["limiter"]["inserts"]
        equal(inserts, sum(reports[a][-1]["items"] for a in ("actor-0", "actor-1")), "inserts")
        equal(table["rejected"], 0, "rejected items")
        final = reports["learner-0"][-1]
        equal(run.counter("learner_steps"), final["learner_steps"], "learner_steps")
        allowed = (inserts * 4 - (200 * 4 - 100)) / 16
        check(allowed - 2 <= final["learner_steps"] <= allowed, final["learner_steps"], "of", allowed, "learner steps")
        equal(table["updates"] + table["updates_missing"], final["learner_steps"] * 16, "priorities written back")

        # Evaluations on the way and one of the last parameters.
        evaluations = reports["evaluator-0"]
        check(1 <= len(evaluations) <= 4, len(evaluations), "evaluations")
        for report in evaluations:
            check(8 <= report["return"] <= 500 and report["episodes"] == 2, report)
        equal(evaluations[-1]["environment_steps"], steps, "environment_steps of the last evaluation")
        equal(evaluations[-1]["learner_steps"], final["learner_steps"], "learner_steps of the last evaluation")

        broker.stop()
        weights = run.folder / "learner.weights"
        check(weights.exists(), "no learner.weights")
        done = subprocess.run([program("actor"), "-c", str(run.config), "--evaluate", "--weights", str(weights),
                               "--episodes", "3", "--folder", ""], capture_output=True, text=True)
        check(done.returncode == 0 and "mean return of 3 episodes: " in done.stdout, done.stdout, done.stderr)


def check_causes(reports, total):
    """The idle share is the sum of its causes."""
    for r in reports:
        causes = [v for k, v in r.items() if k.startswith("idle_")]
        check(len(causes) >= 3 and abs(sum(causes) - r[total]) < 1e-3, r)


def check_provenance(reports):
    check_causes(reports, "wait_share")
    learned = [r for r in reports if r["samples_per_second"] > 0]
    check(learned, "no report with samples")
    for r in learned:
        check(0 < r["item_age_seconds"] <= r["item_age_seconds_max"] < 2 * PATIENCE, r)
        check(0 <= r["policy_staleness"] <= r["policy_staleness_max"] <= r["learner_steps"], r)
        check(0 < r["importance_weight"] <= 1, r)
        check(r["updates_per_second"] > 0 and 0 <= r["wait_share"] <= 1.05 and r["loss"] >= 0, r)
    check(any(r["policy_staleness"] > 0 for r in learned), "every item is of the newest policy")
    first, last = learned[0], learned[-1]
    check(last["item_age_seconds_max"] > first["item_age_seconds"], "items do not age")


def test_sigterm():
    with make_run() as run:
        broker = run.broker()
        learner, actors, evaluator = run.learner(), [run.actor(0), run.actor(1)], run.evaluator()
        run.await_more("learner-0", "learner_steps", 20)
        for process in (actors[0], evaluator, learner):
            process.stop()
        # The last report and the saved state are of the same step.
        step = run.last("learner-0", "learner_steps")
        again = run.learner(0, "--resume")
        eventually(lambda: "A0205" in again.text(), PATIENCE, "the resumed learner's line")
        check("step=%d" % step in again.text(), "not step", step, again.text())
        again.stop()
        # The learner is away, and the table takes no more: the last actor waits.
        eventually(lambda: run.table()["limiter"]["inserts_wait"], PATIENCE, "a full table")
        actors[1].stop()
        broker.stop()


def test_sigterm_without_others():
    """Whoever waits for somebody else ends at once, too: for the broker at first, for it to come back, for a learner."""
    with make_run() as run:
        run.stop(run.learner(), run.actor(0), run.evaluator(), what="to end before there is a broker")
        broker = run.broker()
        waiting = [run.actor(0), run.evaluator()]
        eventually(lambda: run.info()["server"]["session_count"] >= 1, PATIENCE, "the actor's session")
        run.stop(*waiting, what="to end before there is a learner")
        processes = [run.learner(), run.actor(0), run.evaluator()]
        run.await_more("learner-0", "learner_steps", 20)
        broker.kill()
        run.stop(*processes, seconds=PATIENCE + 10, what="to end without a broker")  # a claim of steps may be under way


def test_learner_killed():
    with make_run() as run:
        run.broker()
        learner, actor = run.learner(), run.actor(0)
        eventually(lambda: (run.folder / "learner.weights").exists(), PATIENCE, "a saved state")
        run.await_more("learner-0", "learner_steps", 40)
        learner.kill()
        # The table takes no more, and the actor waits as soon as its own buffers are full. It tells afterwards for how long.
        eventually(lambda: run.longest_wait("insert") >= 2, PATIENCE, "an actor that waits")
        policy, before = run.policy(), run.last("learner-0", "learner_steps")
        lines, acted = len(run.reports("learner-0")), len(run.reports("actor-0"))
        learner = run.learner(0, "--resume")
        eventually(lambda: len(run.reports("learner-0")) >= lines + 3, PATIENCE, "reports of the resumed learner")
        saved = [line for line in learner.text().splitlines() if "A0205" in line]
        equal(len(saved), 1, "lines that tell of saved state")
        step = int(saved[0].split("step=")[1].split()[0])
        check(0 < step <= before + 100, "resumed at", step, "after", before)
        check(run.reports("learner-0")[lines]["learner_steps"] >= step, run.reports("learner-0")[lines])
        eventually(lambda: run.policy() > policy, PATIENCE, "new parameters")
        eventually(lambda: len(run.reports("actor-0")) > acted, PATIENCE, "a report of the actor")
        check_causes(run.reports("actor-0"), "blocked_share")
        earlier, report = run.reports("actor-0")[acted - 1:][:2]
        blocked = report["blocked_share"] * (report["time"] - earlier["time"])
        check(report["blocked_share"] <= 1.01 and blocked >= 1, "the actor was blocked for", blocked, "s, and an insert waited for 2 s")
        for process in (learner, actor):
            process.stop()


def test_actor_paused():
    """Who gets no time of the processor hears no answers, and must not take that for silence."""
    with make_run(broker="  session: {expiry: 12s}\n") as run:
        broker, learner, actor = run.broker(), run.learner(), run.actor(0)
        run.await_more("actor-0", "actor_steps", 100)
        actor.popen.send_signal(signal.SIGSTOP)
        time.sleep(6.5)  # more than half of the expiry: a broker that is silent for so long is given up
        actor.popen.send_signal(signal.SIGCONT)
        run.await_more("actor-0", "actor_steps", 100)
        check("C0103" not in actor.text(), actor.text())
        for process in (actor, learner, broker):
            process.stop()


def test_broker_killed():
    """Without a journal the new broker's table is empty: everybody goes on as soon as it has min_size items."""
    with make_run() as run:
        broker = run.broker()
        learner, actors = run.learner(), [run.actor(0), run.actor(1)]
        run.await_more("learner-0", "learner_steps", 40)
        taken = run.last("learner-0", "environment_steps")
        check(taken > 0, "environment steps before the broker is killed")
        learner.popen.send_signal(signal.SIGSTOP)
        broker.kill()
        time.sleep(0.2)
        broker = run.broker()
        # Actors that are faster than the learner have taken more steps than before when it comes.
        counted = Service(run.endpoint).counter("environment_steps", taken + 1000)
        learner.popen.send_signal(signal.SIGCONT)
        run.await_more("learner-0", "learner_steps", 40)
        eventually(lambda: "A0207" in learner.text(), PATIENCE, "the learner to tell how many steps were taken")
        check(run.counter("environment_steps") >= counted + taken, "the count goes on where it was")
        eventually(lambda: run.table()["limiter"]["inserts"] >= 200, PATIENCE, "as many items as min_size at the new broker")
        eventually(run.policy, PATIENCE, "parameters at the new broker")
        run.await_more("actor-1", "learner_steps", 10)  # and the actors take them
        equal([p.alive() for p in (learner, *actors)], [True] * 3, "who lives")
        for process in (*actors, learner):
            process.stop()
