"""The ledger itself: a small world that is right, and every way in which it can be wrong."""

import copy

from ledger import Ledger
from scene import TABLES, Table

SMALL = [Table("all", "all", ""), Table("newest", "newest", "", max_size=3), Table("top", "top", "", max_size=2),
         Table("queue", "times", "", times=1), Table("cut", "all", "", deletes=True, whole=True)]

W, W2, S, C = "writer-1", "writer-2", "sampler", "clerk"


def rows(first, n, base, priority=0.5):
    return [[first + i, base + first + i, priority + i / 16, 10 * i, 2, ""] for i in range(n)]


def history():
    """(log, record) in the order in which an auditor would read them."""
    bad = [5, 105, -1, 0, 2, "priority"]
    return [
        (W, ["s", 1, 0, 0, []]),
        (W, ["m", 1, [["all", rows(1, 4, 100) + [bad]], ["newest", rows(1, 5, 200)], ["top", rows(1, 4, 300)],
                      ["queue", rows(1, 3, 400)], ["cut", rows(1, 3, 500)]]]),
        (W, ["j", "all", 5, 105, 1, "no"]),
        (W, ["r", {"all": [5, 1], "newest": [5, 0], "top": [4, 0], "queue": [3, 0], "cut": [3, 0]}]),
        (W2, ["s", 2, 1, 0, []]),   # killed before it knew: two items in doubt
        (W2, ["m", 1, [["all", rows(1, 2, 600)]]]),
        (S, ["c", 7]), (S, ["k", "REQ", 1]),
        (S, ["q", 1, "sample", {"table": "queue", "count": 2}]),
        (S, ["a", 1, 0, 2, [[401, 1, 0, 2, 1], [402, 1, 10, 2, 1]]]),
        (S, ["q", 2, "sample", {"table": "all", "count": 1}]), (S, ["a", 2, 0, 1, [[102, 1, 10, 2, 1]]]),
        (S, ["q", 3, "sample", {"table": "all", "count": 1}]), (S, ["a", 3, 4]),
        (S, ["q", 4, "update", {"table": "all", "key": [103], "priority": [0.25]}]), (S, ["a", 4, 0]),
        (C, ["c", 8]), (C, ["k", "DEALER", 1]),
        (C, ["q", 1, "delete", {"table": "cut", "key": [502]}]), (C, ["a", 1, 0]),
        (C, ["q", 2, "counter", {"name": "n", "add": 5}]), (C, ["a", 2, 0, 5]),
        (C, ["q", 3, "counter", {"name": "n", "add": -2}]), (C, ["a", 3, 0, 3]),
        (C, ["q", 4, "params_put", {"name": "p", "value": [77, 8]}]), (C, ["a", 4, 0, 1]),
        (C, ["q", 5, "params_put", {"name": "p", "value": [78, 8]}]), (C, ["a", 5, 0, 2]),
    ]


def present(keys, priorities=None, times=None):
    return [[k, (priorities or {}).get(k, 0.5 + (k % 100 - 1) / 16), (times or {}).get(k, 0), 10 * (k % 100 - 1), 2, 1]
            for k in keys]


def table(items, inserts, samples):
    return {"items": items, "size": len(items), "inserts": inserts, "samples": samples, "deletes": inserts - len(items)}


def snapshot():
    return {"tables": {
        "all": table(present([101, 102, 103, 104, 601], {103: 0.25}, {102: 1}), 5, 1),
        "newest": table(present([203, 204, 205]), 5, 0), "top": table(present([303, 304]), 4, 0),
        "queue": table(present([403]), 3, 2), "cut": table(present([501, 503]), 3, 0)},
        "sessions": ["chaos-2"], "counters": {"n": 3}, "slots": {"p": (2, 78, 8)}}


def differences(records, state):
    ledger, states = Ledger(SMALL), {}
    for source, record in records:
        ledger.read(source, states.setdefault(source, {}), copy.deepcopy(record))
    return ledger.check(state)


def change(path, value):
    def edit(records, state):
        at = state
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value
    return edit


def drop(name, key, quietly):
    """An item is gone; quietly: the counters hide it."""
    def edit(records, state):
        t = state["tables"][name]
        t["items"] = [row for row in t["items"] if row[0] != key]
        t["size"] -= 1
        if quietly:
            t["inserts"] -= 1
        else:
            t["deletes"] += 1
    return edit


def add(name, key):
    def edit(records, state):
        t = state["tables"][name]
        t["items"] = t["items"] + present([key])
        t["size"] += 1
        t["inserts"] += 1
    return edit


def append(*new):
    return lambda records, state: records.extend(new)


def swap(name, out, key):
    """Another item than the one that should have stayed."""
    def edit(records, state):
        t = state["tables"][name]
        t["items"] = [row for row in t["items"] if row[0] != out] + present([key])
    return edit


WRONG = {
    "an accepted item is missing": drop("all", 101, False),
    "... and was never counted": drop("all", 101, True),
    "an item of a queue is lost": drop("queue", 403, False),
    "a deleted item is back": add("cut", 502),
    "a delivered item is back in the queue": add("queue", 401),
    "a rejected item is there": add("all", 105),
    "a key that nobody wrote": add("all", 999),
    "an item is there twice": add("all", 104),
    "an older item survived in its place": swap("newest", 203, 202),
    "a smaller one survived": swap("top", 303, 302),
    "a priority is older than acknowledged": change(["tables", "all", "items", 2, 1], 0.5 + 2 / 16),
    "a sample was not counted for its item": change(["tables", "all", "items", 1, 2], 0),
    "an item of other steps": change(["tables", "all", "items", 0, 3], 50),
    "an item of another message": change(["tables", "all", "items", 0, 5], 2),
    "inserts": change(["tables", "top", "inserts"], 5),
    "samples": change(["tables", "queue", "samples"], 3),
    "deletes": change(["tables", "newest", "deletes"], 1),
    "size": change(["tables", "newest", "size"], 4),
    "a session is back": append((W2, ["b"])),
    "a counter lost an add": change(["counters", "n"], 5),
    "a slot has an old version": change(["slots", "p"], (1, 77, 8)),
    "a slot has another value": change(["slots", "p"], (2, 77, 8)),
    "a queue's item came twice": append((S, ["q", 9, "sample", {"table": "queue", "count": 1}]),
                                        (S, ["a", 9, 0, 1, [[402, 1, 10, 2, 1]]])),
    "a queue's items came in another order": lambda records, state: records[9][1].__setitem__(
        4, [[402, 1, 10, 2, 1], [401, 1, 0, 2, 1]]),
    "a good item was rejected": append((W, ["j", "all", 3, 103, 3, "exists"])),
    "a bad one was not": lambda records, state: records[3][1][1].__setitem__("all", [5, 0]),
    "a version was given out twice": append((C, ["q", 9, "params_put", {"name": "p", "value": [79, 8]}]), (C, ["a", 9, 0, 2])),
    "a sample of another writer's steps": lambda records, state: records[11][1][4].__setitem__(0, [102, 2, 10, 2, 1]),
}


def main():
    assert len(TABLES) == 6
    right = differences(history(), snapshot())
    assert not right, right
    without_doubt = snapshot()   # the one in doubt may as well not be there
    drop("all", 601, True)(None, without_doubt)
    assert not differences(history(), without_doubt)
    for name, edit in WRONG.items():
        records, state = history(), snapshot()
        edit(records, state)
        found = differences(records, state)
        assert found, "not noticed: " + name
    print("ledger: %d kinds of error are noticed" % len(WRONG))


if __name__ == "__main__":
    main()
