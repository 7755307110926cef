#!/usr/bin/env python3
"""Checks the includes between rooms against cmake/rooms.txt.

A room is a folder of the list. A file may include headers of its own room, of the rooms that its line names, and of
include/replay. A line may name only rooms that stand above it, so the arrows between rooms form no circle. The files of a
room also compile as one (RP_UNITY), so what a file keeps to itself has a name of its own there.

  cmake/rooms.py           exit status 1 and a line for each include that is not allowed, arrow that nothing uses, and name
                           that two files of a room have
  cmake/rooms.py --arrows  prints how many includes make up each arrow
"""
import collections
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = "cmake/rooms.txt"
INCLUDE = re.compile(r'\s*#\s*include\s+(?:"([^"]+)"|<((?:proto|broker|agent)/[^>]+)>)')
# What a file keeps to itself: functions and data, and types.
OWN = re.compile(r"static (?:inline )?(?:(?:__attribute__|RP_PRINTF)\([^)]*\)+ )?[^(=;[]*?(\w+)(?:\(| = |\[|;)|"
                 r"(?:struct|enum|union) (\w+) \{")
APART = ("agent/env/", "agent/python/")  # their files compile one by one
OTHERS = re.compile(r"replay/\w+\.h$|\w+\.pb-c\.h$")  # the public interface, and what protoc-c makes


def read_list():
    """The rooms in order, each with the rooms that it may use; and what is wrong with the list."""
    rooms, wrong = {}, []
    with open(os.path.join(ROOT, LIST)) as file:
        for number, line in enumerate(file, 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            name, _, used = line.partition(":")
            for other in used.split():
                if other not in rooms:
                    wrong.append(f"{LIST}:{number}: {name} may not use {other}: it does not stand above {name}")
            rooms[name.strip()] = set(used.split())
    return rooms, wrong


def lines():
    """(file, line number, line) of every source file in proto/, broker/ and agent/."""
    for top in ("proto", "broker", "agent"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    path = os.path.relpath(os.path.join(folder, name), ROOT)
                    with open(os.path.join(ROOT, path)) as file:
                        for number, line in enumerate(file, 1):
                            yield path, number, line


def main():
    rooms, wrong = read_list()
    arrows, owners = collections.Counter(), {}
    for path, number, line in lines():
        own = OWN.match(line) if path.endswith(".c") and not path.startswith(APART) else None
        owner = owners.setdefault((os.path.dirname(path), own.groups()), path) if own else path
        if owner != path:
            wrong.append(f"{path}:{number}: {owner} has a {own[1] or own[2]} of its own too: rename one of them")
        found = INCLUDE.match(line)
        header = found and (found[1] or found[2])
        if not header or OTHERS.match(header):
            continue
        here, there = os.path.dirname(path), os.path.dirname(header)
        if here not in rooms:
            wrong.append(f"{path}: {here} is no room: add it to {LIST}")
        elif there not in rooms:
            wrong.append(f"{path}:{number}: {header} is in no room of {LIST}; includes start at the repository's root")
        elif here != there:
            arrows[here, there] += 1
            if there not in rooms[here]:
                wrong.append(f"{path}:{number}: {here} may not use {there} (includes {header}): turn the arrow round, or "
                             f"allow it in {LIST} with a reason in the commit")
    for room, used in rooms.items():
        wrong += [f"{LIST}: {room} does not use {other}: take it out" for other in sorted(used)
                  if (room, other) not in arrows]
    if "--arrows" in sys.argv[1:]:
        for (here, there), count in sorted(arrows.items()):
            print(f"{count:4} {here} -> {there}")
        print(f"{sum(arrows.values())} includes make up {len(arrows)} arrows between {len(rooms)} rooms")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
