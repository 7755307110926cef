"""Metrics as Prometheus' own library reads them. It reads OpenMetrics 1.0 strictly: what breaks a rule is an error. Its promtool is
asked about the older text where it is installed."""

import shutil
import subprocess

import prometheus_client.openmetrics.parser
import prometheus_client.parser

from harness import check, equal


class Metrics:
    """families: by name; samples: (name, ((label, value), ...)) -> number; get() finds a sample."""

    def __init__(self, text, openmetrics=False):
        parser = prometheus_client.openmetrics.parser if openmetrics else prometheus_client.parser
        self.families = {family.name: family for family in parser.text_string_to_metric_families(text)}
        self.samples = {}
        for family in self.families.values():
            check(family.documentation and family.type != "unknown", family)
            equal(text.count("# HELP " + family.name), text.count("# TYPE " + family.name), family)
            for one in family.samples:
                key = (one.name, tuple(one.labels.items()))
                check(key not in self.samples, "a series twice", key)
                self.samples[key] = one.value

    def get(self, name, /, **labels):
        found = [value for (n, have), value in self.samples.items() if n == name and dict(have) == labels]
        equal(len(found), 1, "series of %s%s" % (name, labels))
        return found[0]

    def names(self):
        """Every name that a query may use."""
        return {name for name, _ in self.samples}


def promtool(text):
    """True: promtool finds nothing. None: there is no promtool."""
    program = shutil.which("promtool")
    if not program:
        return None
    done = subprocess.run([program, "check", "metrics"], input=text.encode(), capture_output=True, timeout=60)
    equal((done.returncode, done.stderr.strip()), (0, b""), "promtool")
    return True
