"""Runs the command line of a terminal login as a client does, in a terminal, answers its questions, and prints what
the terminal showed."""

import os
import pty
import sys
import termios
import time

from scenarios import SECRET

# Each question of docs/guides/models.md, and the user's answer: provider, key, model, and no trial of the key.
DIALOG = [
    ("Provider [1]: ", "anthropic"),
    ("Key of Anthropic: ", SECRET),
    ("Model [claude-opus-5-5]: ", ""),
    ("y/n [n]: ", ""),
]


def read(terminal):
    try:
        return os.read(terminal, 4096).decode()
    except OSError:
        return ""


def until_silent(terminal):
    """Waits until the terminal does not echo. The question comes a moment earlier."""
    deadline = time.monotonic() + 10
    while termios.tcgetattr(terminal)[3] & termios.ECHO:
        if time.monotonic() > deadline:
            sys.exit("the terminal echoes the key")
        time.sleep(0.01)


def log_in(command):
    process, terminal = pty.fork()
    if process == 0:
        os.execvp(command[0], command)
    shown, seen = "", 0
    for question, answer in DIALOG:
        while question not in shown[seen:]:
            text = read(terminal)
            if not text:
                sys.exit(f"it did not ask {question!r}: {shown}")
            shown += text
        seen = len(shown)
        if answer == SECRET:
            until_silent(terminal)
        os.write(terminal, f"{answer}\n".encode())
    while text := read(terminal):
        shown += text
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return shown if code == 0 else sys.exit(f"exit code {code}: {shown}")


print(log_in(sys.argv[1:]))
