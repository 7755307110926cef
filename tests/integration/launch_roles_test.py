"""What the key of one role, or a program that can connect, may do to a run."""

import json
import shutil
import stat

from launches import ENDLESS, Place, check, equal, sets
from actor import Actor
from generated import pb
from service import Service


def test_items_with_other_fields_are_rejected():
    """The launcher prescribes what the items of the run's table are."""
    with Place() as place:
        run = place.running(*sets(*ENDLESS))
        service = Service(run.endpoints()["service"])
        actor = Actor(service, [pb.Column(name="x", dtype="uint8")], "stranger")
        layout = actor.layout("replay", [pb.Field(name="x", column=0, count=1, squeeze=True)])
        for _ in range(20):
            actor.item(layout, actor.chunk([b"x"], 1), 0, 1, priority=100.0)
        check(actor.send() and actor.flush(), "not resolved")
        equal({rejection.status for rejection in actor.rejections}, {1}, "rejections")
        steps = run.read("status.json")["learner_steps"]
        run.await_alive(lambda: run.read("status.json")["learner_steps"] > steps + 50, "more learner steps")
        equal(run.read("status.json")["restarts"], 0, "restarts")
        service.close()
        run.stop()


def test_signatures_of_all_kinds():
    """Every kind of items fits the signature that is prescribed for it."""
    sequences = ("agent.algorithm=impala", "agent.batch=4", "broker.tables[0].limiter=queue", "broker.tables[0].max_size=50",
                 "broker.tables[0].max_times_sampled=1", "broker.tables[0].sampler={kind: fifo}",
                 "evaluator.episodes=0", "stop.steps=600")
    for kind in ("{kind: sequence, length: 6, period: 5, end: pad}", "{kind: sequence, length: 6, period: 5, end: truncate}",
                 "{kind: sequence, length: 6, period: 5, end: continue}", "{kind: episode, length: 500}"):
        with Place() as place:
            run = place.launch(*sets(*sequences, "adder=" + kind))
            run.ends()
            equal(run.read("status.json")["restarts"], 0, kind + ": restarts")
            check("step_type: \"[uint8" in (run.folder / "config.yaml").read_text(), kind, "has no signature")


def test_a_signature_that_does_not_fit():
    """It is a mistake of the file, found before anything starts; one that fits is kept."""
    fields = {"observation": ["float32", 4], "action": "int32", "reward": "float32", "discount": "float32",
              "next_observation": ["float32", 4]}
    less = {name: fields[name] for name in list(fields)[:4]}
    with Place() as place:
        for wrong, status in ((fields, 0), (less, 2), (dict(fields, more="float32"), 2), (dict(fields, observation=["float32", 5]), 2)):
            place.call("check", "run.yaml", *sets("broker.tables[0].signature=" + json.dumps(wrong)), status=status)


def test_a_new_run_goes_on_from_nothing():
    """Weights that somebody has put into its folder are set aside, and tables of another run bring no counts along, not even to a
    later leg. Nobody else reads the folder."""
    with Place() as place:
        brief = ("stop.steps=0", "stop.learner_steps=100", "evaluator.episodes=0", "broker.folder=./shared", "broker.journal=off")
        run = place.launch("--folder", "one", *sets(*brief))
        run.ends()
        equal(stat.S_IMODE(run.folder.stat().st_mode), 0o700, "mode of the folder")
        (place.base / "two").mkdir(mode=0o750)
        shutil.copy(run.folder / "learner.weights", place.base / "two")
        (place.base / "two" / "actor-0.obs.npy").touch()
        again = place.launch("--folder", "two", *sets(*brief, "stop.learner_steps=50", "broker.checkpoint.every=0s"))
        again.ends()
        check(" A0205 " not in again.log("learner-0"), "it went on from the weights of another run")
        for name in ("learner.weights", "actor-0.obs.npy"):
            check((again.folder / (name + ".before")).exists(), name + " of the other run is gone")
        equal(stat.S_IMODE(again.folder.stat().st_mode), 0o750, "mode of a folder of the user's")
        shutil.rmtree(place.base / "one" / "logs")  # somebody makes room
        for name, steps in (("two", 150), ("one", 120)):  # one goes on with the checkpoint that two has made by then
            place.start("resume", name, *sets("stop.learner_steps=%d" % steps, "broker.checkpoint.every=10min")).ends()
            equal(json.loads((place.base / name / "report.json").read_text())["learner_steps"], steps, "learner steps of all legs")
        # Two comes back, and its learner does not: whoever resumes it then still waits for the first parameters of its own.
        (place.base / "two" / "learner.weights").write_bytes(b"")
        (place.base / "two" / "endpoints").unlink(missing_ok=True)
        run = place.start("resume", "two", *sets("launch.backoff=60s", "stop.learner_steps=200"))
        run.given = "two"
        run.await_alive(lambda: (run.folder / "endpoints").exists(), "a broker")
        service = Service(run.endpoints()["service"])
        run.await_alive(lambda: service.counter("run_folder") < 0, "tables that are not its own yet")
        service.close()
        run.stop()
