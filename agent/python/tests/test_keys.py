"""Brokers that use keys."""
import os
import pickle
import subprocess

import pytest

import replaybus

CTL = os.environ.get("RP_CTL") or os.path.join(os.path.dirname(replaybus.__file__), "..", "..", "..", "replay-ctl")


@pytest.fixture
def keys(tmp_path):
    """A folder of keys with one key for each role."""
    if not os.path.exists(CTL):
        pytest.skip("replay-ctl, which makes keys, is not there")
    for role in ("actor", "learner", "admin"):
        subprocess.run([CTL, "key", "new", str(tmp_path / f"{role}.key"), "--role", role, "--keys", str(tmp_path / "keys")],
                       check=True, stdout=subprocess.DEVNULL)
    return tmp_path


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_roles(keys, mode):
    config = {"security": {"mode": "curve", "keys": str(keys / "keys")}}
    server = replaybus.Server([replaybus.Table("replay")], mode=mode, config=config)
    with server, \
            replaybus.Client(server.endpoint, key_file=keys / "actor.key") as actor, \
            replaybus.Client(server.endpoint, key_file=str(keys / "learner.key"), timeout=60) as learner:
        with actor.writer() as writer:
            writer.append({"x": 1.0})
            writer.item("replay", 1.0)
            writer.flush(timeout=60)
        again = pickle.loads(pickle.dumps(learner))
        with again.sampler("replay", batch_size=1, timeout=60) as sampler:
            assert next(sampler).data["x"].tolist() == [[1.0]]
        with pytest.raises(replaybus.PermissionDenied):
            actor.params["policy"] = b"weights"
        with pytest.raises(PermissionError):
            learner.reset("replay")
        with pytest.raises(replaybus.PermissionDenied):
            replaybus.Client(server.endpoint, timeout=60, key_file="").tables


def test_key_files(keys):
    with pytest.raises(replaybus.NotFound):
        replaybus.Client("tcp://127.0.0.1:1", key_file=str(keys / "nobody.key"), timeout=1).connect()
    os.chmod(keys / "actor.key", 0o644)
    with pytest.raises(replaybus.PermissionDenied):
        replaybus.Client("tcp://127.0.0.1:1", key_file=keys / "actor.key", timeout=1).connect()
