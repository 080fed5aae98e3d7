"""Performs a scenario with agent-shell in a batch Emacs, and prints the shell."""

import os
import subprocess
import sys

EMACS = ["emacs", "--quick", "--batch", "-l", os.path.join(os.path.dirname(os.path.abspath(__file__)), "emacs.el")]


def emacs(**extra):
    done = subprocess.run(EMACS, env=os.environ | extra, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(done.returncode)


emacs()
if os.environ["SCENARIO"] == "load":
    print("\f")
    emacs(SECOND="1")
