"""Actors and learners of one's own, by the examples in tests/foreign: with our programs, through signals and deaths of
the broker, and started by replay-launch."""

import os
import pathlib
import re
import signal
import time

from launches import Place
from runs import PATIENCE, RATIO, Process, Run, check, configuration, equal, eventually

ROOT = pathlib.Path(__file__).resolve().parents[2]
import env_models
import weights
from learner import Learner
from service import Service

FOREIGN = ROOT / "tests" / "foreign"
EXAMPLE = ROOT / "configs" / "custom-actor.yaml"


class CustomRun(Run):
    def __init__(self, steps=0, expiry="30s", limiter=RATIO):
        super().__init__(configuration(
            "  session: {expiry: %s}\n" % expiry, limiter, adder="{table: replay, n_step: 3}", actors="{count: 2}",
            learners="{publish_every: 5}", stop="{steps: %d}" % steps))

    def python(self, name, script, *more):
        return Process(self, name, ["/usr/bin/python3", str(FOREIGN / script), "--endpoint", self.endpoint, *more])

    def custom_actor(self, index=0, *more, n_step=3):
        return self.python("actor-%d" % index, "cartpole_actor.py", "--index", str(index), "--n-step",
                           str(n_step), "--folder", str(self.folder), *more)

    def inserts(self):
        info = self.info()
        return info["tables"][0]["limiter"]["inserts"] if info else 0

    def waiting_writers(self):
        return {wait["who"] for wait in (self.ctl("why") or {}).get("waits", ()) if wait["kind"] == "insert"}

    def await_inserts(self, more=100):
        """So many more items than now, or than 0 after the broker has started again."""
        before = self.inserts()
        eventually(lambda: self.inserts() >= before + more, PATIENCE, "%d more inserts than %d" % (more, before))

    def fixed_policy(self, steps=7):
        """What counting_learner publishes, without a learner."""
        import counting_learner
        service = Service(self.endpoint)
        service.put("policy", counting_learner.parameters(steps))
        service.close()


def stop_quickly(process):
    """Ends with status 0, and does not wait for anything: a time-out is longer than this bound."""
    process.ask()
    start = time.monotonic()
    process.ends(what="to end after SIGTERM")
    check(time.monotonic() - start < PATIENCE / 2, process.name, "took", time.monotonic() - start, "s to end")


def test_our_learner_learns_from_it():
    steps = 3007  # not a multiple of what an actor claims at once
    with CustomRun(steps) as run:
        run.broker()
        run.fixed_policy(0)
        actors = [run.custom_actor(i, "--steps", str(steps)) for i in range(2)]
        # Without samples both actors come to wait: neither can take all steps before the other has begun.
        eventually(lambda: len(run.waiting_writers()) == 2, PATIENCE, "both actors")
        for process in [run.learner(), *actors]:
            process.ends()
        equal(run.counter("environment_steps"), steps, "environment_steps")
        last = [run.reports("actor-%d" % i)[-1] for i in range(2)]
        equal(sum(report["actor_steps"] for report in last), steps, "steps of both actors")
        check(all(report["actor_steps"] > 0 for report in last), "one actor did nothing:", last)
        info = run.info()
        table = info["tables"][0]
        equal(table["limiter"]["inserts"], sum(report["items"] for report in last), "inserts")
        equal(table["rejected"], 0, "rejected items")
        equal(info["server"]["session_count"], 0, "sessions after BYE")
        # The learner took all that the limiter allows, and the actors acted on what it published.
        learned = run.reports("learner-0")[-1]
        allowed = (table["limiter"]["inserts"] * 4 - (200 * 4 - 100)) / 16
        check(allowed - 2 <= learned["learner_steps"] <= allowed, learned, "of", allowed, "learner steps")
        check(all(report["learner_steps"] > 0 for report in last), "an actor never saw new parameters:", last)
        check(0 <= learned["policy_staleness"] < learned["learner_steps"], learned)


def test_weights_are_those_of_the_format():
    with CustomRun() as run:
        run.broker()
        learner = run.learner()
        service = Service(run.endpoint)
        (slot, block), = service.get(["policy"], timeout_ms=PATIENCE * 1000)
        tensors = weights.read(block)
        equal({name: shape for name, (shape, _) in tensors.items()},
              {"q/layer0/weight": [4, 16], "q/layer0/bias": [16], "q/layer1/weight": [16, 2], "q/layer1/bias": [2],
               "steps": [1]}, "tensors")
        check(max(map(abs, tensors["q/layer0/weight"][1])) > 0.01, "all weights are 0")
        # There is exactly one block for a list of tensors.
        again = weights.write([(name, weights.UINT64 if name == "steps" else weights.FLOAT32, shape, values)
                               for name, (shape, values) in tensors.items()])
        equal(again, block, "the block, read and written again")
        service.close()
        learner.stop()


DISCOUNT = 0.9


def all_items(n_step):
    """What the example inserts in 3000 steps, in the order of its stream: (observation, action, reward, discount, next
    observation). The actions and the environment depend on the seed alone, not on n_step."""
    with CustomRun(limiter="min_size, min_size: 1") as run:
        run.broker()
        run.fixed_policy()
        run.custom_actor(0, "--steps", "3000", "--discount", str(DISCOUNT), "--epsilon-steps", "1500", "--epsilon", "0",
                         "--batch-items", "2", n_step=n_step).ends()
        service = Service(run.endpoint)
        _, items, _ = Learner(service).sample("replay", run.inserts(), distinct=True)
        service.close()
        equal(len(items), run.inserts(), "items")
    equal({item.policy for item in items}, {7}, "policy of the items")
    items.sort(key=lambda item: item.key)
    return [(f["observation"], f["action"][0], f["reward"][0], f["discount"][0], f["next_observation"])
            for f in (item.fields for item in items)]


def windows(episode, n, ended, terminal):
    """The transitions over up to n steps of an episode's single steps, in the order of their ends."""
    total = len(episode)
    ends = [(max(0, t - n), t) for t in range(1, total)]
    ends += [(first, total) for first in (range(max(0, total - n), total) if ended else [max(0, total - n)])]
    for first, last in ends:
        reward = sum(DISCOUNT ** i * step[2] for i, step in enumerate(episode[first:last]))
        remains = 0.0 if terminal and last == total else DISCOUNT ** (last - first - 1)
        yield episode[first][0], episode[first][1], reward, remains, episode[last - 1][4]


def test_items_are_what_happened():
    """Single steps against the model from the equations, and those of 3 steps against the single ones."""
    model, steps, episodes = env_models.CartPole(), all_items(1), [[]]
    for i, (before, action, reward, remains, after) in enumerate(steps):
        state, expected, terminal = model.step(tuple(before), [action])
        check(all(abs(a - b) < 1e-5 for a, b in zip(after, state)), before, action, "gave", after, "and not", state)
        equal((reward, remains), (expected, 0.0 if terminal else 1.0), "reward and discount")
        episodes[-1].append(steps[i])
        if terminal or len(episodes[-1]) == 500:
            episodes.append([])
        elif i + 1 < len(steps):
            equal(after, steps[i + 1][0], "the next observation")
    equal(len(steps), 2999 if episodes[-1] else 3000, "steps; what comes after the last one is not known yet")
    falls, limits = sum(e[-1][3] == 0 for e in episodes if e), sum(len(e) == 500 for e in episodes)
    check(falls > 20 and limits > 0, falls, "episodes ended by a fall,", limits, "by their length")

    wanted = [w for e in episodes if e for w in windows(e, 3, e is not episodes[-1], e[-1][3] == 0)]
    got = all_items(3)
    equal(len(got), len(wanted), "items of 3 steps")
    for item, other in zip(got, wanted):
        equal((item[0], item[1], item[4]), (other[0], other[1], other[4]), "observations and action")
        check(abs(item[2] - other[2]) < 1e-6 and abs(item[3] - other[3]) < 1e-6, item, "is not", other)


def test_sigterm():
    with CustomRun() as run:
        broker = run.broker()
        learner, actor = run.learner(), run.custom_actor()
        run.await_inserts(400)
        stop_quickly(actor)
        report = run.reports("actor-0")[-1]
        equal(run.counter("environment_steps"), report["actor_steps"], "environment_steps, the untaken ones given back")
        check(report["items"] - 30 <= run.inserts() <= report["items"], run.inserts(), "inserts of", report["items"])
        equal(run.info()["server"]["session_count"], 0, "sessions after BYE")
        learner.stop()
        # It waits for parameters; the limiter holds its items back; the broker is away.
        run.custom_actor(1).stop()
        waiting = run.custom_actor(2)
        eventually(lambda: run.table()["limiter"]["inserts_wait"], PATIENCE, "an actor that waits")
        stop_quickly(waiting)
        check(run.last("actor-2", "blocked_share") > 0 and "in doubt" in waiting.text(), waiting.text())
        lonely = run.custom_actor(3)
        eventually(lambda: run.info()["server"]["session_count"] > 1, PATIENCE, "a session of actor-3")
        broker.kill()
        stop_quickly(lonely)


def test_sigterm_at_any_moment():
    """From its first line to its last an actor that is asked to end does so with status 0, however often it is asked."""
    with CustomRun() as run:
        run.broker()
        run.fixed_policy()
        for index in range(3):  # each is done by itself after a few steps: one that has ended is asked too
            actor = run.custom_actor(index, "--steps", str(20 * (index + 1)), "--pull-every", "10")
            if index > 0:
                eventually(lambda: "steps=" in actor.text() or not actor.alive(), PATIENCE, "the last report")
            else:
                eventually(lambda: actor.stopped_by_handler() or not actor.alive(), PATIENCE, "the first handler")
            while actor.alive():
                actor.popen.send_signal(signal.SIGTERM)
                time.sleep(0.0005)
            actor.ends()


def test_broker_restarts():
    with CustomRun() as run:
        broker = run.broker()
        learner, actors = run.learner(), [run.custom_actor(i) for i in range(2)]
        eventually(lambda: run.info()["server"]["session_count"] == 2, PATIENCE, "the sessions of both actors")
        run.await_inserts(500)
        broker.kill()
        before = [run.last("actor-%d" % i, "actor_steps") for i in range(2)]
        run.broker()
        run.await_inserts(500)
        for i, actor in enumerate(actors):
            eventually(lambda: run.last(actor.name, "actor_steps") > before[i], PATIENCE, "steps of " + actor.name)
            eventually(lambda: "new session; items in doubt" in actor.text(), PATIENCE, "a new session of " + actor.name)
            stop_quickly(actor)
        learner.stop()
        equal(run.table()["rejected"], 0, "rejected items")
        equal(run.info()["server"]["session_count"], 0, "sessions after BYE")


def test_session_expires():
    """An actor that was silent for too long takes its session up again, and every item is there once."""
    with CustomRun(expiry="600ms") as run:
        run.broker()
        learner, actor = run.learner(), run.custom_actor()
        run.await_inserts(300)
        os.kill(actor.popen.pid, signal.SIGSTOP)
        eventually(lambda: run.info()["server"]["session_count"] == 0, PATIENCE, "the end of the session")
        os.kill(actor.popen.pid, signal.SIGCONT)
        eventually(lambda: "session taken up again" in actor.text(), PATIENCE, "the session's second life")
        run.await_inserts(300)
        stop_quickly(actor)
        items = run.last("actor-0", "items")
        check(items - 30 <= run.inserts() <= items, run.inserts(), "inserts of", items)
        equal(run.table()["rejected"], 0, "rejected items")
        learner.stop()


def test_no_broker():
    with CustomRun() as run:
        actor = run.custom_actor(0, "--timeout", "0.5")
        equal(actor.popen.wait(PATIENCE), 3, "status without a broker")
        check("no broker has answered" in actor.text(), actor.text())


def test_custom_learner():
    with CustomRun() as run:
        broker = run.broker()
        learner = run.python("learner-0", "counting_learner.py", "--batch", "16")
        actor = run.custom_actor(0, "--epsilon", "0")
        run.await_inserts(600)
        broker.kill()
        run.broker()
        run.await_inserts(600)
        # Its policy balances for a while, so the actor does follow what it reads.
        eventually(lambda: (run.last("actor-0", "return") or 0) > 60, PATIENCE, "a good return")
        stop_quickly(actor)
        eventually(lambda: run.counter("learner_steps") > 10, PATIENCE, "learner steps")
        stop_quickly(learner)
        table = run.table()
        check(table["updates"] > 0 and table["rejected"] == 0, table)


def launched(config):
    """Runs the configuration to its end. Gives the report, and the log of the first actor."""
    with Place(config.replace("{here}/..", str(ROOT))) as place:
        launcher = place.launch()
        launcher.ends()
        for name in ("actor-0", "actor-1"):
            check(launcher.log(name).strip(), name, "has no log")
        return launcher.read("report.json"), launcher.log("actor-0")


def test_launch_example():
    text = EXAMPLE.read_text()
    check("20000" in text, "the example's number of steps has changed")
    equal(launched(text.replace("20000", "4000"))[0]["steps"], 4000, "steps of the report")


def test_launch_both():
    text = EXAMPLE.read_text().replace("20000", "4000")
    own = 'learners: {command: [/usr/bin/python3, "%s/counting_learner.py", --endpoint, "{service}"]}' % FOREIGN
    text = text.replace("learners: {publish_every: 5}", own)
    text = text.replace("evaluator: {every: 2500, episodes: 10}", "evaluator: {episodes: 0}")
    # Plain Python decodes some ten thousand items a second.
    text = text.replace("samples_per_insert: 32, min_size: 1000, error_buffer: 640",
                        "samples_per_insert: 2, min_size: 500, error_buffer: 500")
    # Both work with all shards of a broker.
    text = text.replace("\n  # shards: 2 ", "\n  shards: 2 ")
    check(own in text and "episodes: 0}" in text and "insert: 2," in text and "\n  shards: 2" in text, "the example has changed")
    report, log = launched(text)
    equal((report["steps"], report["shards"]), (4000, 2), "steps and shards of the report")
    items = [int(n) for n in re.search(r"items at each shard: (.*)", log).group(1).split()]
    check(len(items) == 2 and min(items) > 100, "items at each shard:", items)
