"""Every role against every request and ingest: what is allowed, and that docs/OPERATE.md says the same."""

import os
import pathlib
import re

from keyrings import COLUMNS, PERMISSION_DENIED, KeyWorld, status, write
from generated import pb
from harness import check, equal, eventually

SOURCE = pathlib.Path(os.environ.get("RP_SOURCE_DIR", pathlib.Path(__file__).parents[2]))

EVERYBODY = {"actor", "learner", "observer"}
ACTOR, LEARNER, NOBODY = {"actor"}, {"learner"}, set()
SESSION = bytes(16)

# Request: who may send it (an admin always may), and a body that changes nothing that another row needs.
ROWS = {
    "hello": (EVERYBODY, pb.Hello(name="plain")),
    "heartbeat": (ACTOR, pb.Heartbeat(session=SESSION, epoch=1)),
    "bye": (ACTOR, pb.Bye(session=SESSION)),
    "sample": (LEARNER, pb.Sample(table="t", count=1, timeout_ms=0)),
    "lease": (LEARNER, pb.Lease(table="t", key=[1])),
    "permit": (LEARNER, pb.Permit(table="t", count=1, timeout_ms=0)),
    "update": (LEARNER, pb.Update(table="t", key=[1], priority=[2.0])),
    "delete": (LEARNER, pb.Delete(table="t", key=[1])),
    "cancel": (EVERYBODY, pb.Cancel(id=[12345])),
    "fetch": (LEARNER | {"observer"}, pb.Fetch(table="t", key=[1])),
    "list": (LEARNER | {"observer"}, pb.List(table="t")),
    "reset": (NOBODY, pb.Reset(table="t")),
    "set_limiter": (NOBODY, pb.SetLimiter(table="t")),
    "info": (EVERYBODY, pb.Info()),
    "why": (EVERYBODY, pb.Why()),
    "params_put": (LEARNER, pb.ParamsPut(name="p")),
    "params_get": (EVERYBODY, pb.ParamsGet(name=["p"], have=[0], timeout_ms=0)),
    "counter": (ACTOR | LEARNER, pb.Counter(name="c", add=1)),
    "reduce": (LEARNER, pb.Reduce()),
    "checkpoint": (NOBODY, pb.Checkpoint()),
    "trace": (NOBODY, pb.Trace()),
    "trace_spans": (EVERYBODY, pb.TraceSpans()),
}
PAYLOADS = {"params_put": [b"weights"]}

# How docs/OPERATE.md names them.
DOCUMENTED = {
    "connect, info, why, cancel, spans of a trace": ("hello", "info", "why", "cancel", "trace_spans"),
    "write (sessions, heartbeats, everything on `ingest`)": ("heartbeat", "bye", "ingest"),
    "counters": ("counter",),
    "read parameters": ("params_get",),
    "sample, permits, leases, update, delete, publish parameters, reduce": ("sample", "permit", "lease", "update", "delete",
                                                                            "params_put", "reduce"),
    "list and fetch items": ("list", "fetch"),
    "reset, limiter, checkpoint, trace": ("reset", "set_limiter", "checkpoint", "trace"),
}

HOLDERS = ["actor", "learner", "observer", "admin", "actor+learner", "learner+observer"]


def may(roles, allowed):
    return bool(allowed & set(roles.split("+"))) or "admin" in roles


class World(KeyWorld):
    def __init__(self):
        super().__init__()
        self.keys = {roles: self.broker.new("of-" + roles.replace("+", "-"), roles) for roles in HOLDERS}
        self.services = {roles: self.broker.service(key) for roles, key in self.keys.items()}


def test_the_table_has_every_request(world):
    """A new request without a row here fails: the broker lists what it dispatches."""
    commands = {command.name for command in world.services["observer"].info().server.commands}
    equal(set(ROWS), commands)
    equal(set(ROWS), {field.name for field in pb.Request.DESCRIPTOR.oneofs_by_name["body"].fields})


def try_all(service, roles, revoked=False):
    wrong = []
    for name, (allowed, body) in ROWS.items():
        got = status(service, name, body, PAYLOADS.get(name, ()))
        if (got == PERMISSION_DENIED) == (may(roles, allowed) and not revoked):
            wrong.append("%s as %s: status %d" % (name, roles, got))
    equal(wrong, [])


def test_every_role_and_every_request(world):
    for roles, service in world.services.items():
        try_all(service, roles)


def test_an_admin_is_served(world):
    """Not refused is not enough: what an admin asks is done."""
    admin = world.services["admin"]
    for name in ("hello", "info", "why", "reset", "set_limiter", "params_put", "params_get", "counter", "list"):
        equal(status(admin, name, ROWS[name][1], PAYLOADS.get(name, ())), 0, name)


def test_a_session_needs_an_actor(world):
    for roles, service in world.services.items():
        got = status(service, "hello", pb.Hello(name=roles, columns=COLUMNS))
        equal(got == PERMISSION_DENIED, not may(roles, {"actor"}), roles)


def test_ingest_needs_an_actor(world):
    """The key that opened a session loses its role: its messages are refused, and taken again when it has the role back."""
    broker = world.broker
    for roles in HOLDERS:
        key = broker.new("w-" + roles.replace("+", "-"), "actor")
        actor = broker.actor(key, "writer-" + roles)
        check(write(actor))
        before = broker_table(world).size
        broker.edit(key, roles)
        chunk = actor.chunk([bytes(16)], 1)
        actor.item(0, chunk, 0, 1)
        actor.push_message(actor.build())
        if may(roles, {"actor"}):
            eventually(lambda: broker_table(world).size == before + 1, 5, "an item of " + roles)
        else:
            eventually(lambda: "B0213" in broker.text(), 5, "a line in the log")
            equal(broker_table(world).size, before, roles)
            equal(status(actor.service, "heartbeat", pb.Heartbeat(session=actor.session, epoch=actor.epoch)), 19)
        actor.close()


def broker_table(world):
    return world.services["observer"].table("t")


def test_a_revoked_key_may_nothing(world):
    key = world.broker.new("revoked", "admin")
    service = world.broker.service(key)
    try_all(service, "admin")
    world.broker.revoke(key)
    eventually(lambda: status(service, "info", pb.Info()) == PERMISSION_DENIED, 1, "the revocation")
    try_all(service, "admin", revoked=True)


def test_changes_are_logged_with_the_key(world):
    broker, admin = world.broker, world.services["admin"]
    writer = broker.actor(broker.new("someone", "actor"))
    check(write(writer))
    item = admin.ask("list", pb.List(table="t"))[0].list.items[0]
    for name, body, line in (("delete", pb.Delete(table="t", key=[item.key]), "B0214"), ("reset", pb.Reset(table="t"), "B0201"),
                             ("set_limiter", pb.SetLimiter(table="q", min_size=1000), "B0202")):
        before = len(broker.lines(line))
        equal(status(admin, name, body), 0, name)
        eventually(lambda: len(broker.lines(line)) > before, 5, "a line about " + name)
        check(' key="of-admin"' in broker.lines(line)[-1], broker.lines(line)[-1])
    writer.close()


def test_a_key_is_changed_by_a_command(world):
    broker = world.broker
    key = broker.new("changing", "observer")
    service = broker.service(key)
    equal(status(service, "counter", ROWS["counter"][1]), PERMISSION_DENIED)
    broker.ctl("change", broker.keys, "changing", "--role", "learner", "waiting=3")
    eventually(lambda: status(service, "counter", ROWS["counter"][1]) == 0, 2, "the new role")
    lines = broker.lines('B0609 key changed key="changing"')
    check(len(lines) == 1 and "roles=learner" in lines[0], lines)
    check("waiting=3" in (broker.keys / "clients").read_text())
    broker.revoke(key)
    eventually(lambda: broker.lines('B0609 key revoked key="changing"'), 2, "a line about the end of the key")
    for words in (("nobody", "sessions=1"), ("changing",), ("changing", "--role", "king"), ("changing", "size=3")):
        check(broker.ctl("change", broker.keys, *words, check=False).returncode in (1, 2), words)


def test_names_of_sessions_forge_no_line(world):
    broker = world.broker
    name = 'x" ordinal=9\n2026-01-31T12:00:00.123Z info  B0201 table reset'
    actor = broker.actor(broker.new("forger", "actor"), name)
    layout = actor.layout("t", [pb.Field(name="nothing", column=0, count=1)])
    actor.item(layout, actor.chunk([bytes(16)], 1), 0, 1, priority=-1.0)
    check(actor.send() and actor.flush() and actor.rejections, "the item was taken")
    line, = broker.lines('B0203 item rejected session="x\\" ordinal=9')
    check("\\n2026" in line, line)
    actor.close()


def test_the_document_says_the_same(world):
    text = (SOURCE / "docs" / "OPERATE.md").read_text()
    table = text.partition("## Roles")[2].partition("\n\nAn admin")[0]
    rows = {}
    for line in table.strip().splitlines()[2:]:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[name] = {role for role, cell in zip(("actor", "learner", "observer"), cells) if cell == "yes"}
    check(re.search(r"\| request \| actor \| learner \| observer \|", table), "the head of the table")
    equal(set(rows), set(DOCUMENTED))
    for name, requests in DOCUMENTED.items():
        for request in requests:
            equal(rows[name], ACTOR if request == "ingest" else ROWS[request][0], request)
    equal({r for names in DOCUMENTED.values() for r in names}, set(ROWS) | {"ingest"})
