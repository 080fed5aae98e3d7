"""What drivers in Python share: the scenario, where it runs, and waiting."""

import os
import sys
import time
from pathlib import Path

from scenarios import DONE, GREETING

SCENARIO, PROJECT, CLIENT = os.environ["SCENARIO"], os.environ["PROJECT"], os.environ["CLIENT"]
# The last text of the turn.
LAST_TEXT = {"prompt": GREETING, "load": GREETING, "question": "2. German"}.get(SCENARIO, DONE)


def wait(what, is_met, seen=lambda: "", seconds=30):
    """Waits for so many seconds at most; returns the first true value of `is_met`. `seen` is for the message."""
    end = time.monotonic() + seconds
    while not (value := is_met()):
        if time.monotonic() > end:
            sys.exit(f"{seen()}\nwaited in vain: {what}")
        time.sleep(0.05)
    return value


def read():
    """Takes the time that a person takes at least to read a question. A faster answer to a plan does not count."""
    time.sleep(1)


def until_started():
    wait("started", lambda: Path(PROJECT, "started").exists())
