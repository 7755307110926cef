"""The ledger: what was acknowledged to each client, and what must therefore be in the broker. It knows nothing of the
broker's code; its input are the clients' logs and a snapshot of what the broker says that it holds.

An item is *accepted* when a Credit resolved it and it was not one that must be rejected; *in doubt* when its writer was
killed before it knew. One in doubt may be there once, or not at all. Everybody else repeats a request until it is
answered, so nothing else is in doubt once all have settled."""

from scene import TABLES

SHOWN = 8


class Item:
    __slots__ = ("uid", "number", "key", "priority", "step", "length", "bad", "accepted", "seen", "picked",
                 "policy")

    def __init__(self, uid, policy, number, key, priority, step, length, bad):
        self.uid, self.number, self.key, self.priority = uid, number, key, priority
        self.step, self.length = step, length
        self.bad = bad           # why it must be rejected
        self.accepted = False
        self.seen = False        # in doubt, but found in its table, or in a sample
        self.policy = policy     # the number of its message
        self.picked = 0          # samples that clients were told of


class Book:
    """One table's part."""

    def __init__(self, table):
        self.table, self.name = table, table.name
        self.items = {}       # key -> Item; without those that repeat a key
        self.sent = {}        # uid -> [Item], in order of their numbers
        self.resolved = {}    # uid -> how many of them
        self.order = []       # accepted ones, as acknowledged
        self.deleted = set()
        self.samples = 0
        self.repeated = 0     # what samples that were asked again may have been counted more, where items leave
        self.rejected = 0


class Ledger:
    def __init__(self, tables=TABLES):
        self.books = {table.name: Book(table) for table in tables}
        self.faults = []      # what is wrong whatever the broker holds
        self.counters, self.slots, self.acknowledged, self.operations = {}, {}, 0, {}
        self.puts = {}        # slot -> version -> (seed, size)
        self.ended = set()    # names of sessions
        self.last = {}        # log -> uid -> number: a queue's order as one sampler sees it

    def fault(self, text, *args):
        self.faults.append(text % args)

    def read(self, source, state, record):
        """One line of a log. state: a dict of this log's own."""
        getattr(self, "on_" + record[0])(source, state, *record[1:])

    def on_s(self, source, state, uid, ordinal, key_base, _):
        state["uid"] = uid

    def on_b(self, source, state):
        """Bye was answered."""
        self.ended.add("chaos-%x" % state["uid"])

    def on_m(self, source, state, number, tables, placed=0):
        """A message is about to be sent; placed: the broker reads its chunks from the writer's memory."""
        uid = state["uid"]
        self.operations["placed message"] = self.operations.get("placed message", 0) + placed
        for name, rows in tables:
            book = self.books[name]
            sent = book.sent.setdefault(uid, [])
            for row in rows:
                item = Item(uid, number, *row)
                sent.append(item)
                if item.number != len(sent):
                    self.fault("%s: item %d of %s has number %d", source, len(sent), name, item.number)
                if item.bad == "key":
                    continue
                if item.key in book.items:
                    self.fault("%s: key %d of %s was given out twice", source, item.key, name)
                book.items[item.key] = item

    def on_r(self, source, state, tables):
        """Items were resolved: in their table, or rejected."""
        uid = state["uid"]
        for name, (resolved, rejected) in tables.items():
            book = self.books[name]
            sent, before = book.sent.get(uid, []), book.resolved.get(uid, 0)
            bad = 0
            for item in sent[before:resolved]:
                if item.bad:
                    bad += 1
                    continue
                item.accepted = True
                book.order.append(item)
                self.acknowledged += 1
            book.rejected += bad
            book.resolved[uid] = max(before, resolved)
            total = state["bad", name] = state.get(("bad", name), 0) + bad
            if total != rejected:
                self.fault("%s: of the first %d items of %s %d are rejected, %d should be", source, resolved, name,
                           rejected, total)

    def on_j(self, source, state, name, number, key, status, text):
        """A rejection was read."""
        sent = self.books[name].sent.get(state["uid"], []) if name in self.books else []
        item = sent[number - 1] if 0 < number <= len(sent) else None
        if item is None or not item.bad or item.key != key:
            self.fault("%s: item %d of %s (key %d) was rejected: %s", source, number, name, key, text)

    def on_c(self, source, state, client):
        state.setdefault("asked", {})

    def on_k(self, source, state, kind, depth):
        state["depth"] = depth

    def on_q(self, source, state, id, name, args):
        state.setdefault("asked", {})[id] = (name, args)

    def on_a(self, source, state, id, status=0, *rest):
        """An answer was read."""
        asked = state["asked"].pop(id, None)
        if asked is None:
            self.fault("%s: request %d was answered twice", source, id)
            return
        name, args = asked
        self.operations[name] = self.operations.get(name, 0) + 1
        handler = getattr(self, "did_" + name, None)
        if handler and status == 0:
            handler(source, state, args, *rest)

    def did_sample(self, source, state, args, counted, rows, again=0, shared=0, overtaken=0):
        book = self.books[args["table"]]
        self.operations["shared chunk"] = self.operations.get("shared chunk", 0) + shared
        self.operations["overtaken"] = self.operations.get("overtaken", 0) + overtaken
        book.samples += counted
        book.repeated += again if book.table.whole else 0
        for key, uid, step, length, times in rows:
            item = book.items.get(key)
            if item is None:
                self.fault("%s: %s gave key %d, which nobody wrote", source, book.name, key)
                continue
            item.picked += 1
            item.seen = True
            if (item.uid, item.step, item.length) != (uid, step, length):
                self.fault("%s: item %d of %s is steps %d+%d of writer %#x, was written as %d+%d of %#x", source, key,
                           book.name, step, length, uid, item.step, item.length, item.uid)
            if item.bad:
                self.fault("%s: %s gave item %d, which must be rejected (%s)", source, book.name, key, item.bad)
            if book.table.times and item.picked > book.table.times:
                self.fault("%s: %s gave item %d for the %dth time", source, book.name, key, item.picked)
            if book.table.times == 1 and state.get("depth") == 1:
                self.in_order(source, item)

    def in_order(self, source, item):
        last = self.last.setdefault(source, {})
        if item.number <= last.get(item.uid, 0):
            self.fault("%s: the queue gave item %d of writer %#x after %d", source, item.number, item.uid,
                       last[item.uid])
        last[item.uid] = item.number

    def did_update(self, source, state, args):
        for key, priority in zip(args["key"], args["priority"]):
            item = self.books[args["table"]].items.get(key)
            if item:
                item.priority = priority

    def did_delete(self, source, state, args):
        self.books[args["table"]].deleted.update(args["key"])

    def did_counter(self, source, state, args, value):
        self.counters[args["name"]] = self.counters.get(args["name"], 0) + args["add"]

    def did_params_put(self, source, state, args, version):
        versions = self.puts.setdefault(args["name"], {})
        if version in versions:
            self.fault("%s: version %d of %s was given out twice", source, version, args["name"])
        versions[version] = tuple(args["value"])

    def reset(self, name):
        """The table was emptied while nothing was under way."""
        table = self.books[name].table
        fresh = Book(table)
        fresh.sent, fresh.resolved = self.books[name].sent, self.books[name].resolved
        fresh.rejected = self.books[name].rejected
        fresh.items = {key: item for key, item in self.books[name].items.items() if not item.accepted and not item.seen}
        self.books[name] = fresh

    def check(self, snapshot):
        """Differences as sentences; an empty list: the ledger holds."""
        found, self.faults = self.faults, []
        for name, book in self.books.items():
            found += ["table %s: %s" % (name, text) for text in check_book(book, snapshot["tables"][name])]
        for name in self.ended & set(snapshot["sessions"]):
            found.append("session %s said bye, and is there" % name)
        for name, total in self.counters.items():
            if snapshot["counters"].get(name, 0) != total:
                found.append("counter %s is %s, the ledger says %d" % (name, snapshot["counters"].get(name), total))
        for name, versions in self.puts.items():
            version, seed, size = max(versions), *versions[max(versions)]
            if version != len(versions):
                found.append("slot %s: %d puts were answered, the last with version %d"
                             % (name, len(versions), version))
            if snapshot["slots"].get(name) != (version, seed, size):
                found.append("slot %s is (version, value, size) %s, the ledger says %s"
                             % (name, snapshot["slots"].get(name), (version, seed, size)))
        return found


def some(keys):
    keys = sorted(keys)
    return "%d: %s%s" % (len(keys), ", ".join(map(str, keys[:SHOWN])), " ..." if len(keys) > SHOWN else "")


def expected_keys(book, present):
    """The keys that must be there, given those in doubt that are."""
    doubt = {k for k in present if k in book.items and not book.items[k].accepted and not book.items[k].bad}
    table = book.table
    if table.keeps == "newest":
        room = table.max_size - len(doubt)
        return doubt | {item.key for item in (book.order[-room:] if room > 0 else [])}
    accepted = [item for item in book.items.values() if item.accepted or item.key in doubt]
    if table.keeps == "top":
        accepted.sort(key=lambda item: item.priority)
        return {item.key for item in accepted[-table.max_size:]}
    if table.keeps == "times":
        return {item.key for item in accepted if item.picked < table.times}
    return {item.key for item in accepted} - book.deleted


def check_book(book, got):
    """got: items [(key, priority, times_sampled, step, length, policy)], size, inserts, samples, deletes."""
    found = []
    present = {}
    for row in got["items"]:
        if row[0] in present:
            found.append("key %d is listed twice" % row[0])
        present[row[0]] = row
    strange = [k for k in present if k not in book.items]
    if strange:
        found.append("keys that nobody wrote, " + some(strange))
    bad = [k for k in present if k in book.items and book.items[k].bad]
    if bad:
        found.append("items that were rejected, " + some(bad))
    wanted = expected_keys(book, present)
    missing = [k for k in wanted if k not in present]
    if missing:
        found.append("accepted items are missing, " + some(missing))
    extra = [k for k in present if k not in wanted and k in book.items and not book.items[k].bad]
    if extra:
        found.append("items that should have left, " + some(extra))
    found += check_items(book, present)
    for key in present:
        if key in book.items:
            book.items[key].seen = True
    return found + check_counts(book, got, len(present))


def check_items(book, present):
    found = {"priority": [], "times_sampled": [], "place": []}
    for key, priority, times, step, length, policy in present.values():
        item = book.items.get(key)
        if item is None:
            continue
        if priority != item.priority:
            found["priority"].append("%d has %r, acknowledged is %r" % (key, priority, item.priority))
        if times != item.picked:
            found["times_sampled"].append("%d has %d, clients got %d" % (key, times, item.picked))
        if (step, length, policy) != (item.step, item.length, item.policy):
            found["place"].append("%d is steps %d+%d of policy %d, was written as %d+%d of %d"
                                  % (key, step, length, policy, item.step, item.length, item.policy))
    return ["%s of %d items: %s" % (what, len(texts), "; ".join(texts[:SHOWN]))
            for what, texts in found.items() if texts]


def check_counts(book, got, listed):
    """Inserts are known but for those in doubt that could come and go unseen."""
    found = []
    known = unseen = 0
    for item in book.items.values():
        if item.accepted or (item.seen and not item.bad):
            known += 1
        elif not item.bad and (book.table.keeps in ("newest", "top") or item.key in book.deleted):
            unseen += 1
    if not known <= got["inserts"] <= known + unseen:
        found.append("the limiter counts %d inserts, the ledger %d%s"
                     % (got["inserts"], known, " and up to %d in doubt" % unseen if unseen else ""))
    if not book.samples <= got["samples"] <= book.samples + book.repeated:
        found.append("the limiter counts %d samples, clients got %d%s"
                     % (got["samples"], book.samples, " and up to %d twice" % book.repeated if book.repeated else ""))
    if got["size"] != listed:
        found.append("its size is %d, %d are listed" % (got["size"], listed))
    if got["deletes"] != got["inserts"] - listed:
        found.append("the limiter counts %d deletes, %d inserts less %d present is %d"
                     % (got["deletes"], got["inserts"], listed, got["inserts"] - listed))
    return found
