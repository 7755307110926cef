"""replay-ctl checkpoint, with a broker and without: what it prints, what it finds, what it refuses."""

import errno
import json
import os
import pathlib
import resource
import shutil
import subprocess

import struct

from actor import Actor
from generated import pb
from harness import CTL, Broker, check, contains, ctl, equal
from service import Service

COLUMNS = [pb.Column(name="observation", dtype="float32", shape=[2]), pb.Column(name="action", dtype="int32")]
FIELDS = [pb.Field(name="x", column=0, count=2), pb.Field(name="a", column=1, start=1, count=1, squeeze=True)]
CONFIG = """
folder: %s
journal: off
checkpoint: {every: 0s}
tables:
  - {name: replay, max_size: 100, sampler: {kind: fifo}, limiter: {kind: none}}
  - {name: other, max_size: 100, limiter: {kind: none}}
"""


class Scene:
    """A broker with 30 items in `replay`, each over two steps of chunks of four."""

    def __init__(self, config=CONFIG):
        self.folder = pathlib.Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
        self.disk = self.folder / "disk"
        self.broker = Broker(config % self.disk)
        self.service = Service(self.broker.endpoints["service"])
        self.actor = Actor(self.service, COLUMNS, "writer")
        self.layout = self.actor.layout("replay", FIELDS)
        self.keys = self.insert(30)

    def insert(self, n):
        keys = []
        for _ in range(n // 3):
            observations = struct.pack("<8f", *[v for i in range(4) for v in (i + 0.5, -i)])
            chunk = self.actor.chunk([observations, struct.pack("<4i", 10, 11, 12, 13)], 4)
            keys += [self.actor.item(self.layout, chunk, offset, 2, priority=1.0 + offset) for offset in range(3)]
        check(self.actor.send() and self.actor.flush(), "not resolved")
        return keys

    def checkpoint(self, *options):
        return ctl("-e", self.broker.endpoints["service"], "checkpoint", *options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.service.close()
        self.broker.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


def test_one_is_made_and_told_of():
    with Scene() as scene:
        rc, out, err = scene.checkpoint()
        equal(rc, 0, err)
        contains(out, "checkpoint 1 in", "whole", "30 items")
        scene.insert(3)
        rc, out, err = scene.checkpoint("--json")
        made = json.loads(out)
        equal((made["number"], made["items"]), (2, 33))
        check(made["written_bytes"] > 0 and made["took_ns"] > 0, out)


def test_a_broker_without_a_folder_says_what_to_do():
    with Broker("tables: [{name: t}]\n") as broker:
        rc, out, err = ctl("-e", broker.endpoints["service"], "checkpoint")
        equal(rc, 1)
        contains(err, "write folder")


def test_what_cannot_be_written_and_what_cannot_be_had_is_told():
    with Broker("memory_limit: 1TiB\nshared_memory: false\ntables: [{name: t}]\n") as broker, open("/dev/full", "w") as full:
        check("B0010" not in broker.text(), broker.text())
        done = subprocess.run([CTL, "-e", broker.endpoints["service"], "info"], stdout=full, stderr=subprocess.PIPE, text=True)
        equal(done.returncode, 1)
        contains(done.stderr, "the output could not be written: " + os.strerror(errno.ENOSPC))
        broker.stop()
        if os.environ.get("RP_SANITIZE"):
            return  # it needs more addresses
        broker.launch(["prlimit", "--as=%d" % (1 << 36)])
        broker.ready()
        contains(broker.text(), "B0010")


def test_files_are_listed_verified_and_shown_offline():
    with Scene() as scene:
        equal(scene.checkpoint()[0], 0)
        scene.insert(3)
        equal(scene.checkpoint()[0], 0)
        scene.broker.stop()
        rc, out, err = ctl("checkpoint", "ls", scene.disk)
        equal(rc, 0, err)
        contains(out, "whole", "change of 1", "segment", "30 items", "33 items")
        rc, out, err = ctl("checkpoint", "verify", scene.disk)
        equal(rc, 0, out + err)
        contains(out, "sound", "start with 33 items")
        rc, out, err = ctl("checkpoint", "show", scene.disk, "--json")
        shown = json.loads(out)
        table = [t for t in shown["tables"] if t["name"] == "replay"][0]
        equal((shown["checkpoint"], table["size"], table["inserts"]), (2, 33, 33))
        rc, out, err = ctl("checkpoint", "show", scene.disk, "1")
        equal(rc, 0, err)
        contains(out, "checkpoint 1", "replay", "30", "sessions 1")
        all_shards = scene.folder / "shards"   # each shard has a folder of its own below that of all
        for i in (0, 2):
            shutil.copytree(scene.disk, all_shards / ("shard-%d" % i))
        rc, out, err = ctl("checkpoint", "verify", all_shards)
        equal((rc, out.count("start with 33 items")), (0, 2), out + err)
        contains(out, "shard 0", "shard 2")
        equal(ctl("checkpoint", "export", all_shards)[0], 2)


def test_items_are_exported_with_their_values():
    with Scene() as scene:
        equal(scene.checkpoint()[0], 0)
        saved = scene.folder / "items.jsonl"
        rc, out, err = ctl("checkpoint", "export", scene.disk, "--table", "replay", "--save", saved)
        equal(rc, 0, err)
        items = [json.loads(line) for line in saved.read_text().splitlines()]
        equal([i["key"] for i in items], scene.keys, "keys in the order of insertion")
        for i, item in enumerate(items):
            at = i % 3
            equal(item["priority"], 1.0 + at)
            text = json.dumps(item)
            contains(text, "%.1f" % (at + 0.5), "%.1f" % (at + 1.5), str(11 + at))
        rc, out, err = ctl("checkpoint", "export", scene.disk, "--table", "replay", "--limit", "2")
        equal(len(out.splitlines()), 2)


def test_mistakes_are_told():
    with Scene() as scene:
        equal(scene.checkpoint()[0], 0)
        cases = [(["sohw", str(scene.disk)], 2, "did you mean show"), (["ls"], 2, "needs the folder"),
                 (["ls", "/nowhere/at/all"], 1, "/nowhere/at/all"),
                 (["show", str(scene.disk), "seven"], 2, "not the number"), (["show", str(scene.disk), "7"], 1, "7"),
                 (["export", str(scene.disk), "--table", "nope"], 1, "'replay'"),
                 (["export", str(scene.disk)], 1, "--table")]
        for arguments, status, part in cases:
            rc, out, err = ctl("checkpoint", *arguments)
            equal(rc, status, "%s: %s%s" % (arguments, out, err))
            contains(err, part)


def test_damage_is_found_and_the_one_before_is_named():
    with Scene() as scene:
        equal(scene.checkpoint()[0], 0)
        scene.insert(3)
        equal(scene.checkpoint()[0], 0)
        scene.broker.stop()
        newest = scene.disk / "checkpoint-00000002.replay"
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 0x40
        newest.write_bytes(data)
        rc, out, err = ctl("checkpoint", "verify", scene.disk)
        equal(rc, 1, out + err)
        contains(err + out, "checkpoint-00000002.replay", "start with 30 items")
        rc, out, err = ctl("checkpoint", "show", scene.disk, "--json")
        equal(json.loads(out)["checkpoint"], 1, err)


def test_a_segment_that_is_missing_or_cut_is_found():
    with Scene() as scene:
        equal(scene.checkpoint()[0], 0)
        scene.broker.stop()
        segment = scene.disk / "segment-00000001.replay"
        data = segment.read_bytes()
        # what is left of the last one begins and ends with whole records, or is nothing at all
        for left in (data[:32], None):
            if left is None:
                segment.unlink()
            else:
                segment.write_bytes(left)
            rc, out, err = ctl("checkpoint", "verify", scene.disk)
            equal(rc, 1, out + err)
            contains(err, "would not start", "segment-00000001.replay" if left is None else "segment 1")
        for torn, note in ((b"", "sound"), (b"RPLY" * 3, "torn end of 12 bytes")):  # as a broker that is killed leaves it
            segment.write_bytes(data + torn)
            rc, out, err = ctl("checkpoint", "verify", scene.disk)
            equal(rc, 0, out + err)
            contains(out, note, "start with 30 items")


def test_a_last_checkpoint_that_fails_is_no_clean_end():
    """Without a journal it is all that is kept; with one nothing is lost, and the log tells of it."""
    for journal, status in (("off", 1), ("1s", 0)):
        with Scene("folder: %%s\njournal: %s\ntables: [{name: replay, max_size: 100}]\n" % journal) as scene:
            names = [b"checkpoint-%08d.replay" % number for number in range(1, 4)]
            for name in names:  # in the way of the file
                (scene.disk / name.decode()).mkdir()
            equal(scene.broker.stop(), status, scene.broker.text())
            contains(scene.broker.text(), "B0523", "B0526")
            check("B0508" not in scene.broker.text(), "every message was sent")


def test_a_backup_of_a_busy_broker_is_complete():
    busy = CONFIG.replace("journal: off", "journal: 0s\njournal_max: 1MiB").replace("{every: 0s}", "{every: 100ms, keep: 1}")
    with Scene(busy) as scene:
        for i in range(3):
            copy, before = scene.folder / ("copy-%d" % i), len(scene.keys)
            backup = subprocess.Popen([CTL, "--json", "--endpoint", scene.broker.endpoints["service"], "checkpoint", "backup", str(copy)],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while backup.poll() is None:
                scene.keys += scene.insert(30)
            out, err = backup.communicate()
            equal(backup.returncode, 0, err)
            made = json.loads(out)
            check(made["files"] >= 2 and made["items"] == 100 or made["items"] >= before, out)
            equal(ctl("checkpoint", "verify", copy)[0], 0)
            contains(ctl("checkpoint", "show", copy)[1], "replay")
        link = scene.folder / "link"
        link.symlink_to(scene.folder / "elsewhere")  # which is not there: a backup goes to no place that somebody else has named
        for there in (copy, link):
            equal(scene.checkpoint("backup", there)[0], 2)
        equal(scene.checkpoint("backup", str(scene.folder / "copy-3") + "//")[0], 0)
        equal(ctl("checkpoint", "verify", str(scene.folder / "copy-3"))[0], 0)
        check(not any(name.name.endswith(".part") for name in scene.folder.iterdir()), "a part is left")
        rc, out, err = ctl("checkpoint", "export", copy, "--table", "replay")
        keys = [json.loads(line)["key"] for line in out.splitlines()]
        with Broker(CONFIG % copy) as other:  # a restore: the folder is what a broker starts with
            listed = ctl("-e", other.endpoints["service"], "items", "replay", "--limit", "0", "--json")[1]
            check(keys and all(str(key) in listed for key in keys), listed)
            contains(ctl("-e", other.endpoints["service"], "info", "--json")[1], '"size": %d' % len(keys))


def test_a_backup_that_does_not_fit_says_so():
    """A disk that is full takes a part of a write: no copy gets a name, and the reason is the disk's."""
    with Scene() as scene:
        copy = scene.folder / "copy"
        rc, out, err = ctl("-e", scene.broker.endpoints["service"], "checkpoint", "backup", copy, restore_signals=False,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
        equal(rc, 1, out + err)
        contains(err, os.strerror(errno.EFBIG), "copy.part")
        check(not copy.exists(), "a copy that is not complete")
