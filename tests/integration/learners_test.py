"""Parallel learners as real processes: bit-identical, whoever of them dies and comes back."""

from runs import PATIENCE, Run, check, configuration, equal, eventually

LEARNERS = 3


def make_run(steps=0):
    return Run(configuration(
        adder="{table: replay}", actors="{count: 1, epsilon: 0.4}", report="{every: 10ms}",
        learners="{count: 3, publish_every: 5, save_every: 100ms}", stop="{learner_steps: %d}" % steps,
        limiter="sample_to_insert_ratio, samples_per_insert: 16, min_size: 200, error_buffer: 400"))


def prints(run, index, since):
    """Fingerprints by learner step, of steps beyond `since`."""
    out = {}
    for report in run.reports("learner-%d" % index):
        step, value = report["learner_steps"], report["fingerprint"]
        if step <= since:
            continue
        check(out.setdefault(step, value) == value, "learner", index, "has two states at step", step)
    return out


def check_equal_prints(run, a, b, since=0):
    """The steps at which both have reported, after `since`: all equal. Gives how many."""
    one, other = prints(run, a, since), prints(run, b, since)
    common = [step for step in one if step in other]
    for step in common:
        equal(one[step], other[step], "fingerprints of learners %d and %d at step %d" % (a, b, step))
    return len(common)


def step_of(run, index):
    return run.last("learner-%d" % index, "learner_steps")


def await_steps(run, indices, more=30):
    """Until each of them is that much further than the furthest is now."""
    goal = max(step_of(run, i) for i in indices) + more
    eventually(lambda: all(step_of(run, i) >= goal for i in indices), PATIENCE, "step %d of learners %s" %
               (goal, indices))
    return goal


def await_joined(run, process, since=0):
    """Until it has taken the state of the others, and reported at a step at which another one has, too."""
    eventually(lambda: "A0201" in process.text()[since:], PATIENCE, "joined the other learners: " + process.name)
    line = [line for line in process.text()[since:].splitlines() if "A0201" in line][-1]
    return int(line.split("step=")[1].split()[0])


def test_same_end():
    """All end at the same step with the same bits, the priorities of all are written back, and one counts."""
    steps = 300
    with make_run(steps) as run:
        run.broker()
        learners, actor = [run.learner(i) for i in range(LEARNERS)], run.actor()
        for learner in learners:
            learner.ends()
        last = [run.reports("learner-%d" % i)[-1] for i in range(LEARNERS)]
        equal([r["learner_steps"] for r in last], [steps] * LEARNERS, "last learner_steps")
        equal(len({r["fingerprint"] for r in last}), 1, "different last fingerprints")
        equal(run.counter("learner_steps"), steps, "counter learner_steps")
        table = run.table()
        check(table["limiter"]["samples"] >= steps * 16 * 2, "the learners shared", table["limiter"]["samples"],
              "samples")
        check((run.folder / "learner.weights").exists(), "no learner.weights")
        actor.stop()


def test_deaths():
    with make_run() as run:
        run.broker()
        learners, actor = [run.learner(i) for i in range(LEARNERS)], run.actor()
        everyone = range(LEARNERS)
        await_steps(run, everyone)
        eventually(lambda: check_equal_prints(run, 0, 2) and check_equal_prints(run, 1, 2), PATIENCE,
                   "a step at which learners have reported")

        # One dies: the others go on, and take it in again.
        learners[2].kill()
        await_steps(run, [0, 1])
        mark = len(learners[2].text())
        learners[2] = run.learner(2)
        joined = await_joined(run, learners[2], mark)
        await_steps(run, everyone)
        eventually(lambda: check_equal_prints(run, 0, 2, joined), PATIENCE, "a step at which 0 and 2 have reported")

        # The first one dies: another one leads, and publishes for it.
        learners[0].kill()
        policy, acting = run.policy(), run.last("actor-0", "learner_steps")
        await_steps(run, [1, 2])
        eventually(lambda: run.policy() >= policy + 3, PATIENCE, "parameters of another learner")
        eventually(lambda: run.last("actor-0", "learner_steps") > acting, PATIENCE, "an actor that takes them")

        # It comes back with what it had saved, which is behind: it takes the others' state, and nothing is lost.
        furthest, mark = max(step_of(run, 1), step_of(run, 2)), len(learners[0].text())
        learners[0] = run.learner(0, "--resume")
        joined = await_joined(run, learners[0], mark)
        check(joined >= furthest, "learner 0 joined at step", joined, "and the others were at", furthest)
        await_steps(run, everyone)
        eventually(lambda: check_equal_prints(run, 0, 1, joined) and check_equal_prints(run, 0, 2, joined), PATIENCE,
                   "a step at which learners have reported")

        # What actors got never went back, and what the leaders counted are steps of one sequence.
        versions = [r["learner_steps"] for r in run.reports("actor-0")]
        equal(versions, sorted(versions), "steps of the parameters that acted")
        run.stop(*learners, actor)
        counted = run.counter("learner_steps")
        check(counted <= max(step_of(run, i) for i in everyone) + 5, "counted", counted, "learner steps")
