"""Performs a scenario with a plugin in a headless Neovim, by the Lua file that is the argument; prints the chat."""

import os
import subprocess
import sys

NVIM = [sys.executable, os.environ["CLIENT"] + "/bin/nvim", "--headless", "--clean", "-c",
        "luafile " + sys.argv[1]]


def nvim(**extra):
    done = subprocess.run(NVIM, env=os.environ | extra, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(done.returncode)


nvim()
if os.environ["SCENARIO"] == "load":
    print("\f")
    nvim(SECOND="1")
