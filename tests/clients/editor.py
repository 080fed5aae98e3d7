"""Performs a scenario with the editor that is the command line, and prints its chat. To load a session, the editor
runs twice."""

import os
import subprocess
import sys

from driver import SCENARIO


def edit(**extra):
    done = subprocess.run(sys.argv[1:], env=os.environ | extra, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(done.returncode)


edit()
if SCENARIO == "load":
    print("\f")
    edit(SECOND="1")
