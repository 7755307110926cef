"""A Service for a process of a run: it outlives restarts of the broker, and it ends when asked to."""

import signal
import time

from service import AGAIN, NoAnswer, ReplayError, Service

SESSION_UNKNOWN = 9
TRY = 1.0             # seconds that an answer may take before the request is sent again


class Stopped(Exception):
    """SIGTERM or SIGINT. It is raised where a message is waited for or looked for and nowhere else, so whoever
    catches it finds everything in order."""


class NoBroker(Exception):
    """Nobody answered for longer than `patience`."""


class PatientService(Service):
    stopping = False   # of the process: a signal stops the services of all shards

    def __init__(self, endpoint, patience=30.0):
        self.patience = patience
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        super().__init__(endpoint)

    @staticmethod
    def _stop(*_):
        PatientService.stopping = True

    def last_words(self, patience):
        """After Stopped: requests are possible again, for a short time. A second signal ends that too."""
        self.patience, PatientService.stopping = patience, False

    def receive(self, timeout):
        end = time.monotonic() + timeout
        while not self.stopping:
            left = end - time.monotonic()
            got = super().receive(min(left, 0.1))
            if got is not None or left <= 0:
                return got
        raise Stopped

    def ask(self, name, body, payload=(), timeout=TRY, check=True):
        """Sends the request again, with its id, until it is answered: it is done once all the same."""
        id, end = self.send(name, body, payload), time.monotonic() + self.patience
        while True:
            try:
                return self.wait(id, min(timeout, TRY, max(0.1, end - time.monotonic())), check)
            except NoAnswer:
                pass
            except ReplayError as error:
                if error.status not in AGAIN:
                    raise
                time.sleep(0.1)
            if time.monotonic() >= end:
                self.give_up(id)
                raise NoBroker("no broker has answered at %s for %g s" % (self.endpoint, self.patience))
            self.reopen()
            self.send(name, body, payload, id)
