"""Writing: every call of a writer, and what it refuses. Structures come out as they went in, bit by bit."""
import collections
import contextlib
import functools
import random
import re
import time

import numpy as np
import pytest

import replaybus
from conftest import run_threads, served
from replaybus import Field, Last, nest


def sample(client, table="replay", n=1):
    with client.sampler(table, n) as sampler:
        return sampler.next(60)


def test_item_over_last_steps(client):
    with client.writer(keep_alive=3) as writer:
        for t in range(5):
            writer.append({"x": np.float32(t), "y": np.full((2, 3), t, "uint8")})
        key = writer.item("replay", 2.5, 3)
    batch = sample(client)
    assert batch.key.tolist() == [key]
    assert batch.priority.tolist() == [2.5]
    assert batch.data["x"].tolist() == [[2, 3, 4]] and batch.data["x"].dtype == np.float32
    assert batch.data["y"].shape == (1, 3, 2, 3) and batch.data["y"][0, :, 0, 0].tolist() == [2, 3, 4]


def test_item_over_slices(client):
    with client.writer({"x": 0.0, "sub": {"y": Field("int32", (2,))}}, keep_alive=9) as writer:
        for t in range(9):
            writer.append({"x": t, "sub": {"y": np.array([t, -t], "int32")}})
        columns = writer.columns
        writer.item("replay", 1.0, {"last": columns["x"][-1], "some": (columns["x"][-9::4], columns["sub"]["y"][-3:-1])})
    batch = sample(client)
    data = batch.data
    assert batch.lengths["last"] is None and batch.lengths["some"][0].tolist() == [3]
    assert data["last"].tolist() == [8]
    assert data["some"][0].tolist() == [[0, 4, 8]]
    assert data["some"][1].tolist() == [[[6, -6], [7, -7]]]


def test_vector_writer_of_one_environment(client):
    with client.vector_writer(1, {"x": 0.0}) as writer:
        with pytest.raises(ValueError, match="one per writer"):
            writer.append({"x": np.zeros(5)})
        assert writer.append({"x": np.zeros(1)}, item=Last(1, "uniform")) == 1
        assert writer.info()[0]["steps"] == 1


def test_the_same_writer_twice(client):
    with client.writer({"x": 0.0}) as a, client.writer({"x": 0.0}) as b:
        with pytest.raises(ValueError, match="same"):
            replaybus._core.append_rows((a, b, a), False, {"x": np.zeros(3)}, None, 1, 1.0, None, 1.0)
        with pytest.raises(ValueError, match="one writer"):
            replaybus._core.append_rows((a, b), True, {"x": np.zeros(3)}, None, 1, 1.0, None, 1.0)
        a.append({"x": 1.0})
        b.append({"x": 1.0})


@pytest.mark.parametrize("other", [Field("float64", (1000,)), Field("int64"), Field("float32", (2,))])
def test_writers_of_other_columns(client, other):
    with client.writer({"x": 0.0}) as a, client.writer({"x": other}) as b:
        with pytest.raises(replaybus.FailedPrecondition, match="columns"):
            replaybus._core.append_rows((a, b), False, {"x": np.zeros(2)}, None, 1, 1.0, None, 1.0)
        assert a.info()["steps"] == b.info()["steps"] == 0


def test_threads_with_the_same_writers_in_another_order():
    """Flushes that wait hold one writer each, so that the other threads find some writers free and some in use."""
    with replaybus.Server([replaybus.Table.queue("full", 1)], mode="thread") as server, server.client() as client:
        writers = [client.writer({"x": 0.0}) for _ in range(3)]
        for writer in writers:
            writer.append({"x": 0.0})
            writer.item("full")
            writer.item("full")
        end, counts = time.monotonic() + 1, [0, 0, 0]

        def append(i):
            while time.monotonic() < end:
                some = tuple(writers[j] for j in ((0, 1, 2), (2, 1, 0), (1, 2, 0))[i])
                replaybus._core.append_rows(some, False, {"x": np.zeros(3)}, None, 1, 1.0, None, None)
                counts[i] += 1

        def flush(i):
            while time.monotonic() < end:
                try:
                    writers[i].flush(timeout=0.005)
                except replaybus.DeadlineExceeded:
                    time.sleep(0.003)

        assert not run_threads(6, lambda i: (append, flush)[i // 3](i % 3))
        assert [writer.info()["steps"] for writer in writers] == [1 + sum(counts)] * 3 and sum(counts) > 0
        for writer in writers:
            with pytest.raises(replaybus.DeadlineExceeded):
                writer.close(0)
            writer._give_up()


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 2)), np.zeros(4, "float32"), np.zeros(())])
def test_a_conversion_to_another_shape(client, wrong):
    core = replaybus._core
    with client.writer({"x": np.zeros(4)}) as writer:
        core.setup(replaybus.errors.BY_STATUS, lambda *_: wrong)
        try:
            with pytest.raises(ValueError, match="another type or shape"):
                writer.append({"x": [1, 2, 3, 4]})
            with pytest.raises(ValueError, match="another type or shape"):
                writer.append_block({"x": [[1, 2, 3, 4]]})
        finally:
            core.setup(replaybus.errors.BY_STATUS, replaybus.convert)
        writer.append({"x": [1, 2, 3, 4]})
        assert writer.info()["steps"] == 1


def test_selection_is_reused(client):
    with client.writer({"x": 0.0}, keep_alive=2) as writer:
        selection = writer.select({"now": writer.columns["x"][-1], "before": writer.columns["x"][-2]})
        for t in range(4):
            writer.append({"x": float(t)})
            if t:
                writer.item("queue", 1.0, selection)
    data = sample(client, "queue", 3).data
    assert data["now"].tolist() == [1, 2, 3] and data["before"].tolist() == [0, 1, 2]


def test_slices_of_mixed_signs(client):
    with client.writer({"x": 0.0}, keep_alive=5) as writer:
        for t in range(5):
            writer.append({"x": float(t)})
        writer.item("replay", 1.0, {"x": writer.columns["x"][1:-1]})
        with pytest.raises(ValueError, match="empty"):
            writer.columns["x"][3:3]
        with pytest.raises(ValueError, match="forward"):
            writer.columns["x"][::-1]
        with pytest.raises(TypeError):
            writer.item("replay", 1.0, {"x": 3})
    assert sample(client).data["x"].tolist() == [[1, 2, 3]]


def test_values_are_converted_or_refused(client):
    with client.writer({"f": Field("float32"), "i": Field("int32", (2,)), "b": Field("bool"), "u": Field("uint8")}) as writer:
        good = {"f": 1.5, "i": [1, 2], "b": True, "u": 255}
        writer.append(good)
        writer.append({**good, "f": np.float64(2), "i": np.arange(4, dtype="int32")[::2], "b": np.bool_(False)})
        for wrong in ({"u": 256}, {"u": -1}, {"u": np.uint16(256)}, {"i": np.array([1, 2**40])}, {"f": 1j}, {"i": [1.5, 2]},
                      {"i": np.zeros(2, "float32")}, {"i": [1, 2, 3]}, {"f": "text"}, {"f": None}, {"b": 2}):
            with pytest.raises((ValueError, TypeError)):
                writer.append({**good, **wrong})
        with pytest.raises(ValueError, match="'i' is int32, which cannot hold numbers from 0 to 1099511627776"):
            writer.append_block({**{name: [value] * 2 for name, value in good.items()}, "i": np.array([[0, 1], [0, 2**40]])})
        for wrong in (3, {"f": 1.0}, {**good, "more": 1}, (1, 2, 3, 4)):
            with pytest.raises(ValueError):
                writer.append(wrong)
        assert writer.info()["steps"] == 2
        writer.item("queue", 1.0, 1)
    with client.writer({"b": Field("bfloat16"), "n": 0}) as writer:
        for wrong, why in (({"b": np.float32(1)}, "to uint16 with the same bits"), ({"b": 1.0}, "same bits"), ({"n": 2**70}, "'n' is int64")):
            with pytest.raises(ValueError, match=why):
                writer.append({"b": np.uint16(1), "n": 1, **wrong})
    assert sample(client, "queue").data["i"].tolist() == [[[0, 2]]]


def test_structures_that_are_refused(client):
    with client.writer() as writer:
        for step, error in (({}, "a dict without"), ({"a": [{"b": ()}]}, "('a/0/b')"), ({1: 2.0}, "not 1"), ({"": 2.0}, "not ''"),
                            ({"a": np.zeros((1,) * 9)}, "9 dimensions"), ({"a": Field("int8", (None, 4))}, "'a': the shape (None, 4)"),
                            ({"a": np.array(["text"])}, "'a': ndarray")):
            with pytest.raises((ValueError, TypeError), match=re.escape(error)):
                writer.append(step)
        assert not writer.is_open
        writer.append({"a": 1.0})


def test_append_block(client):
    with client.writer(keep_alive=2) as writer:
        made = writer.append_block({"x": np.arange(64.0)}, Last(2, "queue", np.arange(64.0)))
        assert made == 63
        assert writer.append_block({"x": np.arange(2.0)}, Last(2, "queue", 1)) == 2
        assert writer.append_block({"x": np.arange(3.0)}) == 0
        for wrong in (np.zeros(0), np.float64(1), np.zeros((2, 2))):
            with pytest.raises((ValueError, TypeError)):
                writer.append_block({"x": wrong})
        with pytest.raises(ValueError):
            writer.append_block({"x": np.arange(3.0)}, Last(2, "queue", np.zeros(2)))
        assert writer.info()["steps"] == 69
    batch = sample(client, "queue", 65)
    assert batch.data["x"][:63, 1].tolist() == list(range(1, 64))
    assert batch.priority[:63].tolist() == list(range(1, 64))


def test_vector_writer(client):
    with client.vector_writer(4, keep_alive=2) as writer:
        made = [writer.append({"x": np.arange(4.0) + 10 * t}, done=[False, t == 1, False, False], item=Last(2, "queue"))
                for t in range(3)]
        assert made == [0, 4, 3]
        assert [info["episode"] for info in writer.info()] == [0, 1, 0, 0]
        with pytest.raises(ValueError):
            writer.append({"x": np.arange(3.0)})
        for wrong, why in ((Last(1, "queue", np.array([1, 1, np.nan, 1])), "row 2 is nan"), (Last(1, "queue", -1), "row 0 is -1"),
                           (Last(1, "nowhere"), "no table 'nowhere'"), (Last(1, "strict"), "wants a field 'x'|'strict'"), (Last(3, "queue"), "1 to 2"),
                           (Last(0, "queue"), "1 to 2")):
            with pytest.raises(replaybus.Error, match=why):
                writer.append({"x": np.arange(4.0)}, item=wrong)
        assert [info["steps"] for info in writer.info()] == [3] * 4
        writer.flush(timeout=60)
    rows = sample(client, "queue", 7).data["x"].tolist()
    assert sorted(rows) == sorted([[i, i + 10] for i in range(4)] + [[i + 10, i + 20] for i in (0, 2, 3)])
    assert len(writer) == 4


def test_episodes(client):
    with client.writer(keep_alive=4) as writer:
        writer.end_episode()
        writer.append({"x": 1.0})
        writer.append({"x": 2.0})
        assert writer.episode_steps == 2
        writer.end_episode()
        assert writer.episode_steps == 0
        writer.append({"x": 3.0})
        with pytest.raises(replaybus.Error):
            writer.item("replay", 1.0, 2)
        writer.end_episode(wait=False, timeout=60)
        info = writer.info()
        assert (info["episode"], info["steps"]) == (2, 3)


def test_errors_of_items(client):
    with client.writer() as writer:
        with pytest.raises(replaybus.FailedPrecondition):
            writer.item("replay")
        with pytest.raises(replaybus.FailedPrecondition):
            writer.columns
        writer.append({"x": np.float32(1)})
        for wrong, error in ((("reply",), replaybus.NotFound), (("replay", -1), replaybus.InvalidArgument),
                             (("replay", float("nan")), replaybus.InvalidArgument), (("replay", 1, 0), replaybus.InvalidArgument),
                             (("replay", 1, 2), replaybus.Error), ((3,), TypeError), ((), TypeError),
                             (("replay", "x"), TypeError), (("replay", 1, 1, -1), ValueError), (("replay", 1, 1, "x"), TypeError),
                             (("replay", 1, 1, None, 5, 6), TypeError)):
            with pytest.raises(error):
                writer.item(*wrong)
        with pytest.raises(TypeError, match="twice"):
            writer.item("replay", table="replay")
        with pytest.raises(TypeError, match="no argument"):
            writer.item("replay", prio=1)
        assert writer.item(table="strict", priority=1, slices=1, timeout=60) > 0
        writer.append({"x": np.float32(2)}, timeout=60)
        with pytest.raises(KeyError):
            writer.item("reply")


def test_item_waits_for_room(client):
    with client.writer(max_in_flight=5) as writer:
        for _ in range(5):
            writer.append({"x": 1.0})
        with pytest.raises(replaybus.DeadlineExceeded) as failure:
            for _ in range(200):  # nobody samples: the limiter stops the table
                writer.item("ratio", timeout=0.15)
        assert isinstance(failure.value, TimeoutError) and failure.value.status == 4
        with pytest.raises(replaybus.DeadlineExceeded, match="steps were appended"):
            writer.append_block({"x": np.zeros(9)}, Last(1, "ratio"), timeout=0)
        with pytest.raises(TimeoutError):
            writer.flush(timeout=0.05)
        assert [wait["kind"] for wait in client.why()["waits"]] == ["insert"]
        client.reset("ratio")
        writer.flush(timeout=60)


@pytest.mark.parametrize("kind, n, last", [("block", 1, 1), ("vector", 2, 2), ("sequences", 2, 3)])
def test_a_time_out_loses_and_repeats_nothing(kind, n, last):
    """A table takes two items, and each time-out is followed by the sample of one: the call that is repeated goes on from there."""
    got, k, item = [], 0, Last(last, "queue")
    with served(replaybus.Table.queue("queue", 2)) as client:
        if kind == "sequences":
            writer = client.sequence_adder(n, "queue", length=last, period=1, max_in_flight=1)
            add = writer.add
        elif kind == "vector":
            writer = client.vector_writer(n, keep_alive=last, max_in_flight=1)
            add = functools.partial(writer.append, item=item)
        else:
            writer = client.writer(max_in_flight=1)
            add = functools.partial(writer.append_block, item=item)
        while k < 6:
            try:
                add({"observation": np.arange(k, 6) if kind == "block" else np.array([k, 10 + k])}, timeout=0.1)
                k = 6 if kind == "block" else k + 1
            except replaybus.DeadlineExceeded as error:
                k += int(re.search(r"after [\d.e-]+ s, .*; (\d) of \d steps were appended in [\d.e-]+ s", str(error))[1])
                with contextlib.suppress(replaybus.DeadlineExceeded):  # a busy machine may have been late
                    got.append(client.sample("queue", 1, timeout=1)["observation"][0].tolist())
        got += [client.sample("queue", 1, timeout=60)["observation"][0].tolist() for _ in range(n * (7 - last) - len(got))]
        writer.close()
    assert sorted(got) == [list(range(first, first + last)) for i in range(n) for first in range(10 * i, 10 * i + 7 - last)]


def test_rejections(client):
    with client.writer() as writer:
        writer.append({"x": np.float32(1)})
        writer.set_policy(7)
        writer.item("replay")
        writer.flush()
        assert list(writer.rejections()) == []
    assert sample(client).policy.tolist() == [7]


def test_steps_without_compression(client):
    stored = []
    for compress in (True, False):
        with client.writer(keep_alive=4, chunk_length=4, compress=compress) as writer:
            for t in range(4):
                writer.append({"x": np.full(1000, t, "uint8")})
            writer.item("replay", 1.0, 4)
        stored.append(client.info()["tables"][0]["bytes"])
        assert sample(client).data["x"][0, :, 0].tolist() == [0, 1, 2, 3]
    assert stored[0] < 1000 and stored[1] - stored[0] >= 4000


def test_values_of_numpy_are_read_in_place():
    assert all(replaybus.writer.learn_numpy().values())
    array = np.zeros((2, 3), "float32")
    try:
        assert not replaybus._core.numpy_learn(array, array.T, 0.0)  # not a scalar of numpy
        assert not replaybus._core.numpy_learn(array, np.zeros((2, 3)), np.float32(0))
        with pytest.raises(AttributeError):
            replaybus._core.numpy_learn(memoryview(array), array.T, np.float32(0))
    finally:
        replaybus.writer.learn_numpy()


def test_values_of_numpy_that_are_not_read_in_place(client):
    array = np.arange(6, dtype="float32").reshape(2, 3)
    try:
        assert not replaybus._core.numpy_learn(array, array.T, 0.0)
        with client.writer() as writer:
            writer.append((array, array[1, 2]))
            key = writer.item("uniform")
        matrix, number = client.fetch("uniform", [key]).data
        assert (matrix[0, 0] == array).all() and number[0, 0] == 5
    finally:
        replaybus.writer.learn_numpy()


@pytest.mark.parametrize("dtype", replaybus.writer._ELEMENTS)
def test_every_way_to_give_a_value(client, dtype):
    """In place, by the buffer protocol, and converted: whatever the value's memory looks like, the same numbers arrive."""
    want = np.arange(1, 7).reshape(2, 3).astype(dtype)
    wide = np.zeros((2, 6), dtype)
    wide[:, ::2] = want
    swapped = want.astype(want.dtype.newbyteorder())
    values = [want, np.asfortranarray(want), wide[:, ::2], want.tolist(), swapped, want.view(type("Sub", (np.ndarray,), {}))]
    if dtype not in ("bool", "float16"):
        values.append(memoryview(want))
    scalars = [want[1, 2], want[1, 2].item(), want[1:, 2:].reshape(()), swapped[1, 2]]
    scalars += [scalars[0]] * (len(values) - len(scalars))
    with client.writer(keep_alive=10) as writer:
        for value, scalar in zip(values, scalars):
            writer.append((value, scalar))
        key = writer.item("uniform", slices=len(values))
    matrix, number = client.fetch("uniform", [key]).data
    assert matrix.dtype == number.dtype == dtype
    assert (matrix[0] == want).all() and (number[0] == want[1, 2]).all()


def test_named_tuples_of_other_classes(client):
    step, renamed, turned = (collections.namedtuple(name, fields) for name, fields in (("A", "x y"), ("B", "x y"), ("A", "y x")))
    with client.writer(keep_alive=3) as writer:
        for same in (step(1, 2), renamed(x=1, y=2), (1, 2)):
            writer.append({"a": same})
        key = writer.item("uniform", slices=3)
        with pytest.raises(ValueError, match=r"A'> with the fields \('y', 'x'\), and the first step had <class 'test_write.A'> with \('x', 'y'\)"):
            writer.append({"a": turned(x=1, y=2)})
    assert client.fetch("uniform", [key]).data["a"] == step(*(pytest.approx(np.full((1, 3), number)) for number in (1, 2)))
    with pytest.raises(ValueError, match="wanted the fields"):
        nest.flatten(nest.node_of(step(1, 2)), turned(1, 2))


def test_dict_in_another_order_or_of_another_class(client):
    class Step(dict):
        pass

    with client.writer(keep_alive=10) as writer:
        writer.append({"a": 1, "b": {"c": 2, "d": 3}})
        writer.append({"b": {"d": 3, "c": 2}, "a": 1})
        writer.append(Step(a=1, b=Step(c=2, d=3)))
        writer.append({"".join("a"): 1, "".join("b"): {"".join(["c"]): 2, "".join(["d"]): 3}})
        key = writer.item("uniform", slices=4)
        for wrong in ({"a": 1}, {"a": 1, "c": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "e": 3}}, {"b": 1, "a": 1}, [1, 2]):
            with pytest.raises(ValueError):
                writer.append(wrong)
    data = client.fetch("uniform", [key]).data
    assert [data["a"].tolist(), data["b"]["c"].tolist(), data["b"]["d"].tolist()] == [[[1] * 4], [[2] * 4], [[3] * 4]]


def test_patterns(client):
    """One for each operator and keyword: at which steps it makes an item, whose priority names the pattern."""
    with client.writer() as writer, pytest.raises(replaybus.FailedPrecondition, match="columns"):
        writer.pattern("uniform", {})
    with client.writer({"x": 0.0, "t": np.int64(0), "flag": False, "image": np.zeros((2, 2), "uint8")}, keep_alive=2) as writer:
        x, t, flag, image = (writer.columns[name] for name in ("x", "t", "flag", "image"))
        patterns = [({"when": [x > 0]}, [1, 3, 4]), ({"when": [x != 2]}, [0, 1, 2, 5, 6]), ({"when": [t == 2**53]}, [0]),
                    ({"when": [t >= 2**53 + 4, flag == 1]}, [5]), ({"when": [t < 2**53 + 2]}, [0, 1]), ({"when": [x <= 0.5]}, [0, 1, 5, 6]),
                    ({"when": [writer.steps == 4]}, [3]), ({"every": 2}, [0, 2, 4, 6]), ({"min_steps": 4}, [3, 4, 5, 6]),
                    ({"modulo": (3, 0)}, [2, 5]), ({"at_end": True}, [6]), ({}, list(range(7)))]
        for i, (options, _) in enumerate(patterns):
            writer.pattern("uniform", {"t": t[-1]}, 1.0 + i, **options)
        for step, value in enumerate((-1.5, 0.5, float("nan"), 2.0, 2.0, 0.0, 0.0)):
            writer.append({"x": value, "t": 2**53 + step, "flag": step in (2, 5), "image": np.zeros((2, 2), "uint8")})
        writer.end_episode()
        for start, when, error in ((-1, [image == 1], "image"), (-1, [x == float("nan")], "NaN"), (-9, [], "keep_alive")):
            with pytest.raises(replaybus.InvalidArgument, match=error):
                writer.pattern("uniform", {"t": t[start]}, when=when)
        with pytest.raises(replaybus.NotFound):
            writer.pattern("reply", {"t": t[-1]})
    batch = client.fetch("uniform", [item["key"] for item in client.items("uniform")])
    made = [(batch.data["t"][batch.priority == 1 + i] - 2**53).tolist() for i in range(len(patterns))]
    assert made == [steps for _, steps in patterns]


def test_rows_of_the_history(client):
    spec = {"obs": np.zeros(3, "float32"), "done": False}
    with client.writer(spec, keep_alive=4, chunk_length=3, history=True) as writer:
        for t in range(10):
            writer.append({"obs": np.full(3, t, "float32"), "done": t == 9})
        assert [writer.row(k)["obs"].tolist() for k in (-4, 7)] == [[6.0] * 3, [7.0] * 3] and writer.row()["done"].item() is True
        with pytest.raises(replaybus.NotFound):
            writer.row(-5)
    with client.writer(spec) as writer:
        writer.append({"obs": np.zeros(3, "float32"), "done": False})
        with pytest.raises(replaybus.FailedPrecondition, match="history"):
            writer.row()


def test_mistakes_have_sentences(client):
    with client.writer(keep_alive=2) as writer:
        writer.append({"obs": np.zeros(2, "float32"), "a": 1})
        assert writer.item("uniform", np.float32(2), np.int64(1)) > 0
        for steps in (0, -1, np.int64(-1)):
            with pytest.raises(ValueError, match="at least one step"):
                writer.item("uniform", 1.0, steps)
        with pytest.raises(ValueError, match="0 or more"):
            writer.flush(-1)
        for step in ({"obs": np.zeros(2, "float32")}, {"obs": np.zeros(2, "float32"), "b": 1}, {"obs": 0, "a": 1, "b": 2}):
            with pytest.raises(ValueError, match="'obs', 'a'"):
                writer.append(step)
    for value in (None, "text", object(), [None]):
        with pytest.raises(ValueError, match="column 'x.*numbers"):
            client.writer().append({"x": value})
    for block in (1.0, [], np.zeros((0, 3))):
        with pytest.raises(ValueError, match="column 'x'.*first dimension"):
            client.writer().append_block({"x": block})
    with pytest.raises(ValueError, match="chunk_length is -1"):
        client.writer({"x": 1.0}, chunk_length=-1)
    with pytest.raises(ValueError, match="keep_alive is -1"):
        client.writer(keep_alive=-1)
    for name in ("batch_size", "in_flight", "max_samples"):
        with pytest.raises(ValueError, match=f"{name} is -1"):
            client.sampler("uniform", **{name: -1})


Pair = collections.namedtuple("Pair", "left right")
KEYS = ["a", "obs", "a/b", "%", "%2F", "(0)", "[1]", "<Pair>left", ".", "ä ö", "a.b", " "]
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
          "complex64", "complex128"]


def random_structure(rng, depth):
    kind = rng.choice(["leaf", "leaf", "dict", "tuple", "list", "named"]) if depth else "leaf"
    if kind == "leaf":
        dtype = np.dtype(rng.choice(DTYPES))
        shape = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 3)))
        size = int(np.prod(shape)) * dtype.itemsize
        bits = bytes(rng.randrange(2 if dtype.kind == "b" else 256) for _ in range(size))
        return np.frombuffer(bits, dtype).reshape(shape)
    if kind == "named":
        return Pair(random_structure(rng, depth - 1), random_structure(rng, depth - 1))
    parts = [random_structure(rng, depth - 1) for _ in range(rng.randint(1, 4))]
    if kind == "dict":
        return dict(zip(rng.sample(KEYS, len(parts)), parts))
    return tuple(parts) if kind == "tuple" else parts


def same(a, b):
    """Whether b is a batch of one item of one step a."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and b.shape == (1, 1, *a.shape) and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("seed", range(60))
def test_round_trip(client, seed):
    step = random_structure(random.Random(seed), 4)
    with client.writer(chunk_length=1 + seed % 3) as writer:
        writer.append(step)
        writer.append(step)
        writer.item("queue")
    with client.sampler("queue", 1) as sampler:
        assert same(step, sampler.next(60).data), f"seed {seed}: {step}"


def test_named_tuples_of_other_processes():
    node = nest.node_of_names(["<Elsewhere>x", "<Elsewhere>y"])
    value = nest.pack(node, iter([1, 2]))
    assert type(value).__name__ == "Elsewhere" and value._fields == ("x", "y") and tuple(value) == (1, 2)


@pytest.mark.parametrize("fields", [["a", "a/b"], ["(0)", "(2)"], ["a", "(0)"], ["a//b"], ["<A>x", "<B>y"], ["(0)", "[1]"],
                                    ["/"], ["a/b", "c", "a/d"], ["observation", "action", "next_observation"]])
def test_names_without_structure_are_a_flat_dict(fields):
    assert nest.pack(nest.node_of_names(fields), iter(range(len(fields)))) == dict(zip(fields, range(len(fields))))
