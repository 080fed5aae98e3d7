#!/usr/bin/env python3
"""Runs a job array of packaging/fleet/slurm.sbatch in a Slurm of its own, with one node on 127.0.0.1.

    tests/fleet/slurm_array.py [--tasks N] [BINARY]

BINARY is target/debug/modegate by default. Needs Debian's `slurm-wlm` and `munge`, and root, because slurmd does.
Keys, sockets, logs and spool folders are below $FLEET_DIR (default: target/fleet). One task is stopped by the
scheduler while it runs; the array has to run it again. Exits with 1 if a result is missing or differs.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True

import fixture
from fixture import check_equal

CONFIGURATION = """
ClusterName=fleet
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=16000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """munged, slurmctld and slurmd, with all their files in one folder."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        for name in ("state", "spool"):
            (folder / name).mkdir()
        configuration = CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=free_ports(2))
        (folder / "slurm.conf").write_text(configuration)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        munge = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in
                 ("key-file", "socket", "pid-file", "log-file", "seed-file")]
        self.start(["munged", "--foreground", "--force", *munge])
        self.wait(lambda: (folder / "munge.socket").exists())
        self.start(["slurmctld", "-D", "-i"])
        self.start(["slurmd", "-D", "-N", socket.gethostname()])
        self.wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t"))

    def start(self, command):
        log = open(self.folder / f"{command[0]}.log", "w")
        self.processes.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def run(self, *command):
        done = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True)
        return done.stdout + done.stderr

    def wait(self, is_met, seconds=60):
        end = time.monotonic() + seconds
        while not is_met():
            if time.monotonic() > end or any(process.poll() is not None for process in self.processes):
                raise AssertionError(f"Slurm does not work: see the logs in {self.folder}")
            time.sleep(0.1)

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run_array(slurm, folder, tasks, binary):
    """Submits the array, stops the first task while it runs, and waits for the end. Returns the seconds."""
    log = folder / "starts.txt"
    (folder / "home").mkdir()
    variables = {"HOME": str(folder / "home"), "RUN_TASK": str(fixture.FLEET / "run_task"), "XDG_STATE_HOME": str(folder / "node"),
                 "MODEGATE": str(fixture.logging_binary(folder / "modegate", binary, log))}
    slurm.environment |= variables
    started = time.monotonic()
    print(slurm.run("sbatch", f"--array=1-{len(tasks)}", "--mem=0", f"--output={folder}/slurm-%a.out",
                    fixture.FLEET / "slurm.sbatch", folder / "tasks.jsonl", folder / "out").strip())
    slurm.wait(lambda: list(folder.glob("node/modegate-fleet/attempts/*/task-0000/*/checkout/new.txt")))
    print("stops the first task", slurm.run("scancel", "--batch", "--signal=TERM", "1_1").strip())
    # Slurm lets a requeued job wait for two minutes.
    slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), 300)
    return time.monotonic() - started, [id for id, _ in fixture.starts(log)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    parser.add_argument("binary", nargs="?", type=Path, default=fixture.ROOT / "target/debug/modegate")
    options = parser.parse_args()
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name, path=PATH)]
    if missing or os.geteuid():
        sys.exit(f"{', '.join(missing) or 'root'} is needed")
    base = Path(os.environ.get("FLEET_DIR") or fixture.ROOT / "target/fleet").resolve()
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=base))
    tasks = fixture.make_tasks(folder, options.tasks, 5)
    # Slow enough to be stopped, on the first run and the next.
    fixture.changing_script(folder / "scripts/0.jsonl", "task-0000", delay_ms=3_000)
    (folder / "slurm").mkdir()
    slurm = Slurm(folder / "slurm")
    try:
        seconds, started = run_array(slurm, folder, tasks, options.binary.resolve())
    finally:
        slurm.end()
    for task in tasks:
        state = json.loads((folder / "out" / task["id"] / "state.json").read_text())
        check_equal((state["exit_code"], state["audit_valid"]), (0, True), task["id"])
        count = 2 if task["id"] == "task-0000" else 1
        check_equal((started.count(task["id"]), state["attempt"]), (count, count), task["id"])
    check_equal(fixture.leftovers(folder / "out"), [])
    print(f"{len(tasks)} tasks ok, the first in two attempts ({seconds:.1f} s, load {os.getloadavg()[0]:.1f})")
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)


PATH = os.environ["PATH"] + ":/usr/sbin"

if __name__ == "__main__":
    os.environ["PATH"] = PATH
    main()
