"""What drivers in Python share: the scenario, where it runs, and waiting."""

import os
import sys
import time
from pathlib import Path

import scenarios
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


def conversation():
    """What passed between the client and Modegate so far."""
    return scenarios.read(sorted(Path(PROJECT).parent.glob("wire-*.jsonl")))


def until_prompted():
    """Until Modegate has the prompt: what the client shows of a turn can be gone before anybody looks."""
    wait("the prompt", lambda: conversation().prompts)


def until_mode(mode):
    """Until Modegate has changed the mode: clients show it earlier."""
    wait(f"{mode} mode", lambda: conversation().mode == mode)


def until_ended():
    wait("the end of the turn", lambda: conversation().stops)


def until_started():
    wait("started", lambda: Path(PROJECT, "started").exists())
