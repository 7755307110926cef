"""cmake/rooms.py finds includes against the list of rooms."""
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ["RP_SOURCE_DIR"]


def ignore(_, names):
    return [name for name in names if name == "__pycache__" or name.endswith((".md", ".so", ".o"))]


def check(root):
    return subprocess.run([sys.executable, os.path.join(root, "cmake", "rooms.py")], capture_output=True, text=True)


def change(root, path, text):
    """Writes text in front of a file; gives back what undoes that."""
    path = os.path.join(root, path)
    before = open(path).read() if os.path.exists(path) else None
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text + (before or ""))

    def undo():
        if before is None:
            shutil.rmtree(os.path.dirname(path))
        else:
            with open(path, "w") as file:
                file.write(before)
    return undo


CASES = [
    ("an arrow up", "broker/table/table.c", '#include "broker/session/session.h"\n'),
    ("an arrow up, with a relative path", "broker/table/table.c", '#include "../session/session.h"\n'),
    ("an arrow up, in angle brackets", "broker/table/table.c", "#include <broker/session/session.h>\n"),
    ("the broker's header in a room", "broker/store/store.h", '#include "broker/broker.h"\n'),
    ("a folder that is no room", "broker/attic/box.c", '#include "broker/broker.h"\n'),
    ("a name that two files of a room have", "broker/table/table.c", "static void end_wait(void);\n"),
    ("a list that allows an arrow up", "cmake/rooms.txt", "proto/base: broker/table\n"),
]


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        for folder in ("proto", "broker", "agent", "cmake"):
            shutil.copytree(os.path.join(SOURCE, folder), os.path.join(root, folder), ignore=ignore)
        result = check(root)
        if result.returncode != 0:
            failed += 1
            print(f"the tree as it is: status {result.returncode}\n{result.stderr}")
        for what, path, text in CASES:
            undo = change(root, path, text)
            result = check(root)
            undo()
            print(f"{what}: {result.stderr.strip() or 'nothing was found'}")
            failed += result.returncode != 1 or path.split("/")[-1] not in result.stderr
        failed += check(root).returncode != 0
    return 1 if failed else 0
