"""The faults. Each is a function of the conductor and a random generator; it leaves the broker running."""

import os
import signal
import time


def pause(rng, low, high):
    """Also very short ones: half of them below a tenth of the longest."""
    time.sleep(rng.uniform(low, high) if rng.random() < 0.5 else rng.uniform(low, low + (high - low) / 10))


def kill_broker(c, rng):
    pause(rng, 0, 0.03)
    c.restart(c.broker.kill)


def kill_after_burst(c, rng):
    c.scene.shared.burst += 1
    time.sleep(rng.choice([rng.uniform(0, 0.002), rng.uniform(0.005, 0.03)]))
    c.restart(c.broker.kill)


def kill_while_restoring(c, rng):
    c.broker.kill()
    for _ in range(rng.randint(1, 2)):
        c.broker.launch()
        pause(rng, 0.0, 0.06)
        c.broker.kill()
    c.restart(lambda: None)


def kill_in_checkpoint(c, rng):
    c.broker.signal(signal.SIGUSR1)
    c.checkpoints += 1
    pause(rng, 0, 0.03)
    c.restart(c.broker.kill)


def stop_broker(c, rng):
    c.broker.signal(signal.SIGSTOP)
    pause(rng, 0.05, c.longest)
    if rng.random() < 0.3:
        c.restart(c.broker.kill)   # it dies without having woken up
    else:
        c.broker.signal(signal.SIGCONT)


def terminate_broker(c, rng):
    def end():
        status = c.broker.stop()
        if status != 0:
            c.scene.complain("SIGTERM ended the broker with status %s" % status)
    c.restart(end)


def terminate_and_kill(c, rng):
    c.broker.signal(signal.SIGTERM)
    pause(rng, 0, 0.05)
    c.restart(c.broker.kill)


def torn_tail(c, rng):
    """What a crash can leave behind the last whole record: nothing that was acknowledged is touched."""
    def end():
        c.broker.kill()
        path = c.broker.newest("segment")
        if path is None:
            return
        garbage = rng.choice([bytes(rng.randint(1, 5000)), rng.randbytes(rng.randint(1, 300)),
                              path.read_bytes()[-64:][:rng.randint(1, 20)]])
        with open(path, "ab") as file:
            file.write(garbage)
    c.restart(end)


def was_short(c):
    """Whether the newest checkpoint was made while the disk was short of space: then it alone can be loaded."""
    log = (c.folder / "broker.log").read_bytes()
    short = log.rfind(b"B0528")
    over = [at for at in (log.find(b"B0529", short), log.find(b"== start", short)) if at >= 0]
    return short >= 0 and (not over or log.rfind(b"B0522") < min(over))


def damaged_checkpoint(c, rng):
    """The newest one rots while nobody looks; there is one before it, and the journal since."""
    def end():
        c.broker.kill()
        if was_short(c):
            return
        folder = c.broker.ground.path(c.broker.journal)
        files = sorted(folder.glob("checkpoint-*.replay"))
        sound = [path for path in files if path.name not in c.damaged]
        if len(sound) < 2 or sound[-1] != files[-1]:
            return
        c.damaged.add(files[-1].name)
        size = files[-1].stat().st_size
        if rng.random() < 0.5:
            os.truncate(files[-1], rng.randrange(size))
        else:
            with open(files[-1], "r+b") as file:
                file.seek(rng.randrange(size))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))
    c.restart(end)


def power_failure(c, rng):
    """Everything that was not synced is gone, or some of it. Only where all that is acknowledged is synced before."""
    pause(rng, 0, 0.03)

    def end():
        c.broker.kill()
        c.lost_bytes += c.broker.power.fail(c.broker.ground.path(c.broker.journal), rng)
    c.restart(end)


def full_disk(c, rng):
    if not c.broker.ground.room(rng.choice([0, rng.randint(0, 100000)])):
        return
    pause(rng, 0.05, c.longest)
    what = rng.random()
    if what < 0.4:
        c.broker.kill()
    elif what < 0.46:
        # It would wait for the disk for a while; told again a second later it does not.
        c.broker.signal(signal.SIGTERM)
        time.sleep(1.1)
        if c.broker.stop(30) == -signal.SIGKILL:  # by itself it would wait up to 42 s
            c.scene.complain("two SIGTERM do not end a broker whose disk is full")
    if c.broker.alive() or rng.random() < 0.7:
        c.broker.ground.room(None)
    else:   # it is started on a full disk, and there is room later
        c.broker.launch()
        pause(rng, 0.02, 0.15)
        c.broker.ground.room(None)
        deadline = time.monotonic() + 0.5
        while c.broker.alive() and not c.broker.where.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        if c.broker.alive() and c.broker.where.exists():
            c.scene.shared.generation += 1
            return
        c.broker.kill()
    if not c.broker.alive():
        c.restart(lambda: None)


def link_down(c, rng):
    c.broker.ground.link(False)
    pause(rng, 0.05, c.longest)
    if rng.random() < 0.3:
        c.restart(c.broker.kill)
    c.broker.ground.link(True)


def cut_connections(c, rng):
    """Some clients close their sockets with whatever is in them."""
    for index in rng.sample(range(len(c.cast)), rng.randint(1, len(c.cast))):
        c.scene.shared.cut[index] = 1
    pause(rng, 0.01, 0.1)


def cut_relay(c, rng):
    """The relay resets its connections, in the middle of a message too."""
    c.relay.send_signal(signal.SIGUSR1)
    pause(rng, 0.01, 0.1)


def kill_client(c, rng):
    index = rng.randrange(len(c.cast))
    c.kill_client(index)
    pause(rng, 0, 0.05)
    c.start_client(index)


def kill_writer(c, rng):
    index = rng.randrange(c.writers)
    if rng.random() < 0.5:
        c.scene.shared.burst += 1
        pause(rng, 0, 0.03)
    c.kill_client(index)
    pause(rng, 0, 0.05)
    c.start_client(index)


def kill_at_a_file(c, rng):
    """The instant at which a file of the folder is made, renamed or removed."""
    folder = c.broker.ground.path(c.broker.journal)
    before, left, end = set(os.listdir(folder)), rng.randint(1, 4), time.monotonic() + 0.1
    c.broker.signal(signal.SIGUSR1)
    c.checkpoints += 1
    while left and time.monotonic() < end:
        now = set(os.listdir(folder))
        if now != before:
            before, left = now, left - 1
    c.restart(c.broker.kill)


def retire_writer(c, rng):
    """It says bye; the next one takes its place."""
    c.scene.shared.retire[rng.randrange(c.writers)] = 1


def stop_client(c, rng):
    pids = [c.cast[i].pid for i in rng.sample(range(len(c.cast)), rng.randint(1, 3))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    pause(rng, 0.05, c.longest)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


# name, function, weight, what it needs
ALL = [
    ("kill -9 of the broker", kill_broker, 5, ""),
    ("kill -9 right after a burst", kill_after_burst, 4, ""),
    ("kill -9 while it restores", kill_while_restoring, 2, ""),
    ("kill -9 in a checkpoint", kill_in_checkpoint, 3, ""),
    ("kill -9 as a file comes or goes", kill_at_a_file, 2, ""),
    ("a writer leaves", retire_writer, 1, ""),
    ("broker stopped for a while", stop_broker, 1, ""),
    ("SIGTERM and restart", terminate_broker, 2, ""),
    ("SIGTERM and then kill -9", terminate_and_kill, 1, ""),
    ("torn tail", torn_tail, 2, ""),
    ("damaged checkpoint", damaged_checkpoint, 1, "older"),
    ("failure of power", power_failure, 5, "power"),
    ("full disk", full_disk, 2, "disk"),
    ("link down", link_down, 2, "link"),
    ("sockets closed unread", cut_connections, 3, ""),
    ("connections cut by a relay", cut_relay, 3, ""),
    ("kill -9 of a client", kill_client, 3, ""),
    ("kill -9 of a writer", kill_writer, 3, ""),
    ("clients stopped for a while", stop_client, 1, ""),
]
