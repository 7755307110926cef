"""A strict reader of the text format for Prometheus (0.0.4) and of OpenMetrics 1.0, as far as the broker uses them: what it does
not accept is an error. Prometheus' own promtool is asked as well where it is installed."""

import math
import re
import shutil
import subprocess

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"(,|})')


class Wrong(Exception):
    """The text breaks a rule."""


def number(text):
    if text in ("+Inf", "-Inf", "NaN"):
        return float(text.replace("Inf", "inf"))
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-][0-9]+)?", text):
        raise Wrong("no number: " + text)
    return float(text)


def unescape(text):
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m.group(1), m.group(1)), text)


class Family:
    def __init__(self, name, kind, help_text):
        self.name, self.kind, self.help = name, kind, help_text
        self.samples = {}  # (name, ((label, value), ...)) -> number

    def allowed(self, openmetrics):
        if self.kind == "histogram":
            return [self.name + suffix for suffix in ("_bucket", "_sum", "_count")]
        return [self.name + "_total" if self.kind == "counter" and openmetrics else self.name]

    def check(self):
        if self.kind == "counter" and any(not 0 <= v < math.inf for v in self.samples.values()):
            raise Wrong("%s: a counter below 0, or not finite" % self.name)
        if self.kind == "histogram":
            self.check_histogram()

    def check_histogram(self):
        series = {}
        for (name, labels), value in self.samples.items():
            rest = tuple(pair for pair in labels if pair[0] != "le")
            found = series.setdefault(rest, {"buckets": []})
            if name.endswith("_bucket"):
                found["buckets"].append((number(dict(labels)["le"]), value))
            else:
                found[name[len(self.name):]] = value
        for labels, found in series.items():
            bounds, counts = zip(*found["buckets"])
            if list(bounds) != sorted(set(bounds)) or bounds[-1] != math.inf:
                raise Wrong("%s%r: bounds %r" % (self.name, labels, bounds))
            if list(counts) != sorted(counts) or counts[-1] != found["_count"]:
                raise Wrong("%s%r: counts %r" % (self.name, labels, counts))
            if found["_sum"] < 0 or (found["_count"] == 0) > (found["_sum"] == 0):
                raise Wrong("%s%r: sum %r" % (self.name, labels, found["_sum"]))


class Metrics:
    """families: by name; get() finds a sample."""

    def __init__(self, text, openmetrics=False):
        self.families, self.openmetrics = {}, openmetrics
        if not text.endswith("\n"):
            raise Wrong("the last line does not end")
        lines = text[:-1].split("\n")
        if openmetrics and lines.pop() != "# EOF":
            raise Wrong("no # EOF")
        helped = family = None
        for line in lines:
            words = line.split(" ", 3)
            if line.startswith("# HELP "):
                helped = (words[2], words[3])
            elif line.startswith("# TYPE "):
                family = self.begin(words, helped)
            elif openmetrics and line.startswith("# UNIT "):
                if not family or words[2] != family.name or not family.name.endswith("_" + words[3]):
                    raise Wrong("unit: " + line)
            else:
                self.sample(line, family)
        for family in self.families.values():
            family.check()

    def begin(self, words, helped):
        name, kind = words[2], words[3]
        if kind not in ("counter", "gauge", "histogram") or not NAME.fullmatch(name):
            raise Wrong("TYPE " + name + " " + kind)
        if not helped or helped[0] != name or not helped[1]:
            raise Wrong("no HELP before TYPE " + name)
        if name in self.families:
            raise Wrong(name + " occurs twice")
        if name.endswith("_total") != (kind == "counter" and not self.openmetrics):
            raise Wrong("only counters end in _total: " + name)
        self.families[name] = Family(name, kind, helped[1])
        return self.families[name]

    def sample(self, line, family):
        match = NAME.match(line)
        if not match or not family:
            raise Wrong("no sample: " + line)
        name, at, labels = match.group(), match.end(), []
        if line[at:at + 1] == "{":
            at += 1
            while True:
                match = LABEL.match(line, at)
                if not match:
                    raise Wrong("labels: " + line)
                labels.append((match.group(1), unescape(match.group(2))))
                at = match.end()
                if match.group(3) == "}":
                    break
        if line[at:at + 1] != " " or name not in family.allowed(self.openmetrics):
            raise Wrong("sample of %s: %s" % (family.name, line))
        if len(set(label for label, _ in labels)) != len(labels):
            raise Wrong("a label twice: " + line)
        key = (name, tuple(labels))
        if key in family.samples:
            raise Wrong("a series twice: " + line)
        family.samples[key] = number(line[at + 1:])

    def samples(self):
        return {key: value for family in self.families.values() for key, value in family.samples.items()}

    def get(self, name, /, **labels):
        wanted = set(labels.items())
        found = [value for (n, have), value in self.samples().items() if n == name and set(have) == wanted]
        if len(found) != 1:
            raise KeyError("%s%r: %d series" % (name, labels, len(found)))
        return found[0]

    def names(self):
        """Every name that a query may use."""
        return {name for name, _ in self.samples()}


def promtool(text):
    """True: promtool finds nothing. None: there is no promtool."""
    program = shutil.which("promtool")
    if not program:
        return None
    done = subprocess.run([program, "check", "metrics"], input=text.encode(), capture_output=True, timeout=60)
    if done.returncode or done.stderr.strip():
        raise Wrong(done.stderr.decode())
    return True
