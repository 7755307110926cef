#!/usr/bin/env python3
"""tidy.py BUILD FILES...: clang-tidy over the files, as many at a time as there are processors; warnings are errors.

A file that was clean is not looked at again while nothing changes that clang-tidy sees: the preprocessed text with its macros and
comments, the options, the checks and clang-tidy itself. What was clean is remembered by its hash in the user's cache
(XDG_CACHE_HOME/replay-lint), for 30 days after its last use. RP_LINT_CACHE=off looks at every file.

RP_LINT_NODES bounds how far the analyzer follows one function. A fifth of its own 225000 takes a quarter of the time; ./dev full
goes all the way."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

ANALYZER = ["-Xclang", "-analyzer-config", "-Xclang", "max-nodes=" + os.environ.get("RP_LINT_NODES", "50000")]
OPTIONS = ["--quiet", "--warnings-as-errors=*", *("--extra-arg=" + word for word in ["-Wno-unknown-warning-option", *ANALYZER])]
ROOT = os.getcwd()
KEPT_SECONDS = 30 * 24 * 3600


def cache_folder():
    if os.environ.get("RP_LINT_CACHE") == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(base) / "replay-lint"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    for entry in folder.iterdir():
        if time.time() - entry.stat().st_mtime > KEPT_SECONDS:
            entry.unlink(missing_ok=True)
    return folder


def commands(build):
    """{file: [(folder, words of a compilation)]}"""
    found = {}
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
        found.setdefault(path, []).append((entry["directory"], words))
    return found


def preprocessed(folder, words):
    """What clang-tidy gets to see of one compilation, whatever the checkout is called; None if that is not known."""
    at = words.index("-o")
    words = [word for word in words[:at] + words[at + 2:] if word not in ("-c", "ccache")]
    done = subprocess.run(["clang", *words[1:], "-Wno-unknown-warning-option", "-E", "-C", "-dD"], cwd=folder, capture_output=True,
                          check=False)
    if done.returncode != 0:
        return None
    return (shlex.join(words[1:]).encode() + b"\n" + done.stdout).replace(ROOT.encode(), b"")


def hash_of(common, compilations):
    """Hash of all that decides about a file's warnings; None if it cannot be had."""
    texts = [preprocessed(*one) for one in compilations]
    if not texts or None in texts:
        return None
    digest = hashlib.sha256(common)
    for text in texts:
        digest.update(hashlib.sha256(text).digest())
    return digest.hexdigest()


def look_at(path, build, cache, common, compilations):
    """Returns (clean, remembered, text)."""
    name = hash_of(common, compilations) if cache else None
    mark = cache / name if name else None
    if mark and mark.exists():
        os.utime(mark)
        return True, True, ""
    done = subprocess.run(["clang-tidy", "-p", build, *OPTIONS, path], capture_output=True, text=True, check=False)
    if done.returncode == 0 and mark:
        mark.touch()
    return done.returncode == 0, False, done.stdout


def main():
    build, files = sys.argv[1], sys.argv[2:]
    cache, known = cache_folder(), commands(build)
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    common = b"\0".join([version, pathlib.Path(".clang-tidy").read_bytes(), " ".join(OPTIONS).encode()])
    files.sort(key=os.path.getsize, reverse=True)  # the longest first, so that no processor waits at the end
    failed = remembered = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        work = [pool.submit(look_at, path, build, cache, common, known.get(path, [])) for path in files]
        for one in work:
            clean, old, text = one.result()
            remembered += old
            failed += not clean
            print(text, end="", flush=True)
    print("%d files, of which %d have not changed since they were clean; %d with warnings" % (len(files), remembered, failed))
    return 1 if failed else 0


sys.exit(main())
