"""Runs whose actors and learners are small scripts: nothing but a broker takes part."""

from launches import CONFIG, Place
from service import Service

FOREIGN = CONFIG.replace("actors: {count: 2, epsilon: 0.4}", "actors: {count: COUNT, command: [ACTOR, \"{index}\"]}") \
    .replace("learners: {count: 1, save_every: 200ms}", "learners: {count: 1, command: [sleep, \"1000\"]}") \
    .replace("evaluator: {episodes: 2, every: 1000}", "evaluator: {episodes: 0}").replace("3000", "0")
# Says so once it does not mind SIGTERM, and starts a child like that.
STUBBORN = """#!/bin/sh
trap '' TERM
( trap '' TERM; echo child; while :; do sleep 0.1; done ) &
echo stubborn
while :; do sleep 0.1; done
"""


def foreign(actor, count=1):
    """A place whose actors are this script."""
    place = Place()
    path = place.write("actor.sh", actor)
    place.config.write_text(FOREIGN.replace("ACTOR", path).replace("COUNT", str(count)))
    return place


def counted(launcher, add=0):
    """Environment steps that were claimed, as the broker has them. What is added counts as taken, too."""
    service = Service(launcher.endpoints()["service"])
    try:
        service.counter("environment_steps_taken", add)
        return service.counter("environment_steps", add)
    finally:
        service.close()


__all__ = ["FOREIGN", "STUBBORN", "counted", "foreign"]
