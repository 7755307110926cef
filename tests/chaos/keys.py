"""Keys for a run with --curve: one for writers, one for everybody else, made before any client is forked. Without it,
secure() does nothing."""

import zmq

HELD = {}   # name -> (public, secret); "broker" is the broker's


def write(path, text):
    path.touch(0o600)
    path.write_text(text)


def make(folder):
    """The broker's folder of keys."""
    folder.mkdir(0o700)
    for name in ("broker", "writers", "others"):
        HELD[name] = zmq.curve_keypair()
    public, secret = (half.decode() for half in HELD["broker"])
    write(folder / "broker.key", "name broker\npublic %s\nsecret %s\n" % (public, secret))
    roles = {"writers": "actor", "others": "admin"}
    write(folder / "clients", "".join("%s %s %s\n" % (name, role, HELD[name][0].decode()) for name, role in roles.items()))


def secure(socket, name="others"):
    if HELD:
        socket.curve_publickey, socket.curve_secretkey = HELD[name]
        socket.curve_serverkey = HELD["broker"][0]
