"""Performs a scenario with codecompanion.nvim in a headless Neovim, and prints the chat."""

import os
import subprocess
import sys

NVIM = [sys.executable, os.environ["CLIENT"] + "/bin/nvim", "--headless", "--clean", "-c",
        "luafile " + os.path.join(os.path.dirname(os.path.abspath(__file__)), "neovim.lua")]


def nvim(**extra):
    done = subprocess.run(NVIM, env=os.environ | extra, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(done.returncode)


nvim()
if os.environ["SCENARIO"] == "load":
    print("\f")
    nvim(SECOND="1")
