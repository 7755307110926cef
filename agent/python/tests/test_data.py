"""replaybus.data and replaybus.open: files into tables, tables and checkpoints into files."""
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import replaybus
from conftest import fetched, fill, rss_bytes
from replaybus import data
from replaybus.spaces import Box, Discrete

FORMATS = ["npz", "csv", "jsonl"]
try:
    import h5py  # noqa: F401
    FORMATS.append("h5")
except ImportError:
    pass


def random_episodes(rng, n=5):
    """[(observations [T + 1], actions, rewards, whether it is terminal)]"""
    for _ in range(n):
        t = int(rng.integers(1, 9))
        yield rng.normal(size=(t + 1, 3)).astype("f4"), rng.integers(0, 4, t), rng.normal(size=t).astype("f4"), bool(rng.integers(2))


def write_groups(path, episodes):
    arrays = {}
    for i, (observations, actions, rewards, terminal) in enumerate(episodes):
        ends = np.arange(len(actions)) == len(actions) - 1
        arrays |= {f"episode_{i}/observations": observations, f"episode_{i}/actions": actions, f"episode_{i}/rewards": rewards,
                   f"episode_{i}/terminations": ends & terminal, f"episode_{i}/truncations": ends & (not terminal)}
    np.savez(path, **arrays)


def stored(client, table):
    """The items as sorted tuples of bytes and numbers, whatever keys and sessions they have."""
    keys = [item["key"] for item in client.items(table)]
    out = []
    for key in keys:
        batch = client.fetch(table, [key])
        out.append(tuple((name, str(field.dtype), field.shape, field.tobytes()) for name, field in zip(batch.names(), batch.fields())))
    return sorted(out)


def naive_transitions(episode, n, g):
    observations, actions, rewards, terminal = episode
    T = len(actions)
    windows = [(max(0, t - n), t) for t in range(1, T)] + [(first, T) for first in range(max(0, T - n), T)]
    for first, last in windows:
        total = sum(g ** i * float(r) for i, r in enumerate(rewards[first:last]))
        yield observations[first], actions[first], total, 0.0 if terminal and last == T else g ** (last - first - 1), observations[last]


@pytest.mark.parametrize("n", [1, 3])
def test_transitions_are_those_of_a_naive_model(client, tmp_path, n):
    episodes = list(random_episodes(np.random.default_rng(n), 12))
    write_groups(tmp_path / "a.npz", episodes)
    counts = data.load(client, tmp_path / "a.npz", "uniform", n_step=n, discount=0.9)
    want = [step for episode in episodes for step in naive_transitions(episode, n, 0.9)]
    assert counts == (sum(len(e[1]) for e in episodes), 12, len(want), 0)
    got = fetched(client, "uniform")
    for i, (observation, action, reward, discount, following) in enumerate(want):
        assert (got["observation"][i] == observation).all() and got["action"][i] == action
        assert (got["next_observation"][i] == following).all()
        assert got["reward"][i] == pytest.approx(reward, rel=1e-5) and got["discount"][i] == pytest.approx(discount)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"length": 4, "period": 2}, {"whole": 20}])
def test_an_export_imports_to_the_same_items(client, tmp_path, form, options):
    write_groups(tmp_path / "a.npz", random_episodes(np.random.default_rng(7)))
    data.load(client, tmp_path / "a.npz", "uniform", **options)
    before = stored(client, "uniform")
    made = data.save(client, tmp_path / f"b.{form}", "uniform")
    assert made.items == len(before)
    client.reset("uniform")
    again = {} if "n_step" in options else options  # several steps come back as transitions of their own
    assert data.load(client, tmp_path / f"b.{form}", "uniform", **again).dropped == 0
    assert stored(client, "uniform") == before
    assert not (tmp_path / f"b.{form}.part").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_dict_observations_and_element_types(client, tmp_path, form):
    with client.writer(keep_alive=6) as writer:
        for t in range(6):
            observation = {"image": np.full((2, 2), t, "uint8"), "speed": np.float32(t / 3)}
            writer.append({"observation": observation, "action": np.array([t, -t], "f4"), "reward": np.float32(t), "discount": np.float32(t != 5),
                           "step_type": np.uint8(0 if t == 0 else 1)})
        writer.item("uniform", 1.0, 6)
    before = stored(client, "uniform")
    data.save(client, tmp_path / f"a.{form}", "uniform")
    client.reset("uniform")
    with replaybus.Server([replaybus.Table("fresh")], mode="thread") as server, server.client(timeout=60) as fresh:
        data.load(fresh, tmp_path / f"a.{form}", "fresh", whole=10, dtypes={"observation/image": "uint8"})
        got = fetched(fresh, "fresh")
    assert got["observation"]["image"].dtype == np.uint8 and got["observation"]["image"].shape == (1, 7, 2, 2)  # with s_T
    fields = dict((name, value) for name, *_, value in before[0])
    assert got["action"].tobytes()[:40] == fields["action"][:40]


def test_flat_arrays_of_other_names(client, tmp_path):
    """Without next observations, the last step of a cut episode is left out, and a terminal one has none to need."""
    np.savez(tmp_path / "a.npz", observations=np.arange(6.0), actions=np.arange(6), rewards=np.ones(6), terminals=[0, 1, 0, 0, 0, 0],
             timeouts=[0, 0, 0, 1, 0, 0])
    assert data.load(client, tmp_path / "a.npz", "uniform") == (4, 3, 4, 2)
    np.savez(tmp_path / "b.npz", obs=np.arange(4.0), next_obs=np.arange(4.0) + 1, act=np.arange(4), rew=np.ones(4), dones=[0, 1, 0, 0])
    assert data.load(client, tmp_path / "b.npz", "uniform") == (4, 2, 4, 0)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_was_cut_says_where(client, tmp_path, form):
    write_groups(tmp_path / "a.npz", random_episodes(np.random.default_rng(3), 30))
    data.load(client, tmp_path / "a.npz", "uniform")
    path = tmp_path / f"b.{form}"
    data.save(client, path, "uniform")
    whole = path.read_bytes()
    for part in (len(whole) * 2 // 3, 30):
        path.write_bytes(whole[:part])
        with pytest.raises(replaybus.InvalidArgument, match=f"{path}.*(line [0-9]+|cut off|not a)"):
            data.load(client, path, "uniform")


def test_damage_inside_an_npz_names_the_episode(client, tmp_path):
    path = tmp_path / "a.npz"
    write_groups(path, random_episodes(np.random.default_rng(3), 4))
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("episode_2/rewards.npy").header_offset
    damaged = bytearray(path.read_bytes())
    damaged[at + 170] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(replaybus.InvalidArgument, match="episode_2.*damaged.*items of what stands before"):
        data.load(client, path, "uniform")


@pytest.mark.parametrize("text, where", [
    ("observation,action\n0.5,1\n0.5,x\n", "line 3"), ("observation,action\n0.5,1\n0.5\n", "line 3"), ("a,b\n", "line 1"),
    ("observation[0],observation[2],action\n", "line 1"), ("observation,action\n1,1\n2,0.5\n3,1\n", "line 3.*int64.*--dtype action"),
    ("observation,action,reward\n1,1,nan\n2,,\n", "line 2.*finite"), (b"\xff\xfe", "UTF-8"),
    ("observation,action\n1,1\n" + "1" * 200_000 + ",1\n", "line 3.*limit"),
    *(('{"observation": [1], "action": 0}\n{"observation": [1], "action": 0, %s}\n{"observation": [1], "action": 0}\n' % wrong, "line 2")
      for wrong in ('"reward": "x"', '"reward": [1, 2]', '"terminated": "false"', '"truncated": [0, 1]', '"next_observation": {"a": 1}')),
    ('{"observation": [1], "action": 99999999999999999999999}\n', "line 1.*element type")])
def test_mistakes_in_text_name_their_line(client, tmp_path, text, where):
    path = tmp_path / ("a.jsonl" if text[:1] == "{" else "a.csv")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(replaybus.InvalidArgument, match=f"{path.name}.*{where}"):
        data.load(client, path, "uniform")


def test_a_mark_at_the_start_of_a_text(client, tmp_path):
    """Spreadsheets write one; the first column keeps its name."""
    (tmp_path / "a.csv").write_text("episode,observation,action\n0,1,0\n0,2,0\n1,7,0\n1,8,0\n", encoding="utf-8-sig")
    assert data.load(client, tmp_path / "a.csv", "uniform").episodes == 2


def test_the_table_of_a_buffer(tmp_path):
    box = Box(-9, 9, (2,))
    pair = type("Tuple", (), {"spaces": (box, Box(-9, 9, (3,)))})()
    for n_step, space in ((1, pair), (3, box)):
        with replaybus.ReplayBuffer(99, space, Discrete(2), n_step=n_step, optimize_memory_usage=True) as buffer:
            for t in range(10):
                now, following = ((np.full(2, i), np.full(3, i)) if space is pair else np.full(2, i) for i in (t, t + 1))
                buffer.add(now, following, 0, 1.0, False, truncated=t in (4, 9))
            buffer.flush()
            if n_step == 1:
                assert data.save(buffer.client, tmp_path / "a.npz", "replay")[:2] == (10, 2)
            else:
                with pytest.raises(replaybus.InvalidArgument, match="3 rewards"):
                    data.save(buffer.client, tmp_path / "b.npz", "replay")


def test_items_that_leave_during_an_export(client, tmp_path):
    fill(client, "uniform", 600, size=2)

    def report(_):
        client.reset("uniform")

    items = data._of_table(client, "uniform", report)
    assert len(list(items)) == 256


def test_the_element_type_of_the_table_counts(tmp_path):
    signature = {"observation": ["uint8", 2], "action": ["int64"], "reward": ["float32"], "discount": ["float32"],
                 "next_observation": ["uint8", 2]}
    with replaybus.Server([replaybus.Table("t", signature=signature)], mode="thread") as server, server.client(timeout=60) as client:
        (tmp_path / "a.jsonl").write_text('{"observation": [1, 255], "action": 1}\n{"observation": [2.0, 3]}\n')
        assert data.load(client, tmp_path / "a.jsonl", "t").items == 1
        assert client.fetch("t", [next(client.items("t"))["key"]]).data["observation"].dtype == np.uint8
        for wrong in ("[1, 256]", "[1, 0.5]", "[1]", '{"x": 1}'):
            (tmp_path / "a.jsonl").write_text('{"observation": %s, "action": 1}\n{"observation": [2.0, 3]}\n' % wrong)
            with pytest.raises(replaybus.Error):
                data.load(client, tmp_path / "a.jsonl", "t")


def test_memory_is_bounded(tmp_path):
    frames, path = 12_000, tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("observations.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (frames, 100, 100)})
            for _ in range(frames):
                member.write(bytes(10_000))
        for name in ("actions", "rewards"):
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.zeros(frames, "i4"))
    with replaybus.Server([replaybus.Table("t", max_size=100)]) as server, server.client(timeout=60) as client:
        before = rss_bytes()
        assert data.load(client, path, "t").steps == frames - 1
    assert rss_bytes() - before < 60e6  # the frames are 120 MB


def test_the_command_and_a_checkpoint(tmp_path):
    write_groups(tmp_path / "a.npz", random_episodes(np.random.default_rng(5), 20))

    def command(*arguments):
        return subprocess.run([sys.executable, "-m", "replaybus.data", *map(str, arguments)], capture_output=True, text=True, timeout=120)

    folder = tmp_path / "broker"
    with replaybus.Server([replaybus.Table("replay")], journal=folder) as server, server.client(timeout=60) as client:
        done = command("import", tmp_path / "a.npz", "--broker", server.endpoint)
        assert done.returncode == 0, done.stderr
        client.checkpoint()
        before = stored(client, "replay")
        for source, name in ((server.endpoint, "live.jsonl"), (folder, "saved.jsonl")):
            done = command("export", source, tmp_path / name)
            assert done.returncode == 0, done.stderr
        refused = command("import", tmp_path / "none.npz", "--broker", server.endpoint)
        assert refused.returncode == 1 and "none.npz" in refused.stderr and "Traceback" not in refused.stderr
    assert (tmp_path / "live.jsonl").read_text() == (tmp_path / "saved.jsonl").read_text()
    files = {name: (folder / name).stat().st_mtime_ns for name in os.listdir(folder)}
    saved = replaybus.open(folder)
    assert saved.tables == {"replay": len(before)}
    got = [item.data for item in saved.items("replay")]
    assert sorted(tuple((name, str(value.dtype), (1, *value.shape), value.tobytes()) for name, value in item.items()) for item in got) == before
    with pytest.raises(replaybus.NotFound, match="replay"):
        next(saved.items("reply"))
    with pytest.raises(replaybus.NotFound):
        replaybus.open(tmp_path / "nowhere")
    (tmp_path / "shard-old").mkdir()
    with pytest.raises(replaybus.NotFound, match="nothing to load"):
        replaybus.open(tmp_path)
    with pytest.raises(replaybus.NotFound, match="00000099"):
        replaybus.open(folder, 99)
    with replaybus.Client("tcp://127.0.0.1:1", timeout=0.2) as away, pytest.raises(replaybus.Error, match="^(?!cannot write)"):
        data.save(away, tmp_path / "b.npz", "replay")
    assert files == {name: (folder / name).stat().st_mtime_ns for name in os.listdir(folder)}


def test_an_import_says_what_it_waits_for(tmp_path):
    write_groups(tmp_path / "a.npz", random_episodes(np.random.default_rng(5), 20))
    with replaybus.Server([replaybus.Table.queue("replay", 5)]) as server:
        with subprocess.Popen([sys.executable, "-m", "replaybus.data", "import", tmp_path / "a.npz", "--broker", server.endpoint],
                              stderr=subprocess.PIPE, text=True) as importer:
            line = importer.stderr.readline()
            importer.kill()
    assert "the import waits: table 'replay': " in line and "needs 1 more sample" in line


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk(tmp_path, form):
    """A file that does not fit is refused with a sentence, and nothing of it stays. In a process of its own: HDF5 could crash it."""
    program = f"""if True:
        import os, resource, sys, numpy as np
        from replaybus.data import files
        episodes = ({{"observation": np.random.random((20, 10)), "reward": np.zeros(20)}} for _ in range(1000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
        try:
            files.write_file("a.{form}", files.format_of("a.{form}"), episodes)
        except files.Unavailable as error:
            print(error, os.listdir("."), flush=True)
            sys.exit(7)"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7 and done.stdout.startswith(f"cannot write a.{form}") and done.stdout.endswith(" []\n"), done
