#!/usr/bin/env python3
"""Runs a fleet on two Ray nodes of this machine, and kills one of them.

    tests/fleet/ray_two_nodes.py [--tasks N] [--slots 1,2,4] [--json FILE] [BINARY]

BINARY is target/debug/modegate by default. Ray is installed from PyPI into a virtual environment below $FLEET_DIR
(default: a temporary folder). Afterwards nothing needs the network. First the tasks run on one node, once for each
number of slots, with the times; then on two nodes with two slots each, one of which is killed in the middle, while its
Modegates run. Each task has to have one result, equal to that of the first run, and no process may be left. Then
plans are made, two of three are accepted, and the accepted ones are carried out; all tables are Parquet. Exits with 1
if anything is not as it has to be.

    tests/fleet/ray_two_nodes.py --scheduler N

This times N tasks that do nothing: the load of Ray and of the loop that submits tasks.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True

import fixture

RAY = ["ray==2.60.0", "pyarrow==26.0.1"]
OBJECT_STORE = 80 * 1024 * 1024  # The least that Ray accepts is 75 MiB.


def do_nothing(_task, _call):
    return 0, ""


def time_scheduler(count):
    """Times tasks that do nothing, in the loop of fleet.py, on one node with two slots."""
    import resource
    sys.path.insert(0, str(fixture.FLEET))
    import fleet
    fleet.run_on_worker = do_nothing
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    options = argparse.Namespace(address=None, cpus=1, memory=None, retries=3, in_flight=2000, out="/", binary="x",
                                 lease=1, work=None, retry_failed=False, no_store=False, allow_temporary=False)
    task = fleet.run_task.Task(id="x", repository="/", commit="0" * 40, prompt="p" * 1000)
    outcomes = fleet.outcomes([task] * count, options)
    next(outcomes)
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    for _ in outcomes:
        pass
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - started
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"tasks": count, "seconds": round(seconds, 1), "per_second": round(count / seconds),
            "driver_processor_seconds": round(used, 1), "driver_memory_mb": after.ru_maxrss // 1024,
            "load": os.getloadavg()[0]}


def python_with_ray(folder):
    """A Python that has Ray."""
    python = folder / "ray/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "ray"], check=True)
    if subprocess.run([python, "-c", "import pyarrow, ray"], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *RAY], check=True)
    return python


class Trial:
    """The folders of this call, below one that is neither temporary nor a cache."""

    def __init__(self, options):
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-", dir=options.folder))
        self.tasks = fixture.make_tasks(self.folder, options.tasks, 20)
        self.log, self.real_binary = self.folder / "starts.txt", options.binary
        self.binary = fixture.logging_binary(self.folder / "modegate", options.binary, self.log)

    def start(self, cluster, name):
        """Starts fleet.py on a cluster, with empty folders."""
        self.log.unlink(missing_ok=True)
        arguments = ["run", self.folder / "tasks.jsonl", "--out", self.folder / name, "--work", self.folder / "work",
                     "--binary", self.binary, "--address", cluster.address, "--allow-temporary"]
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        # Without this variable, Ray takes the address 127.0.0.1 for that of this machine in its network.
        environment = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        return subprocess.Popen([sys.executable, fixture.FLEET / "fleet.py", *map(str, arguments)], env=environment,
                                stdout=subprocess.PIPE, stderr=open(self.folder / f"{name}.txt", "w"), text=True)

    def results(self, name):
        return {task["id"]: fixture.comparable(self.folder / name / task["id"], self.real_binary) for task in self.tasks}

    def step(self, cluster, step, *arguments):
        """Runs a step of fleet.py on a cluster. Returns its end."""
        command = [sys.executable, fixture.FLEET / "fleet.py", step, *arguments]
        if step != "review":
            command += ["--work", self.folder / "work", "--binary", self.binary, "--address", cluster.address]
        environment = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)

    def runs_below(self, raylet):
        """The Modegates that a node runs now."""
        return [pid for _, pid in fixture.starts(self.log) if is_running(pid, self) and raylet in ancestors(pid)]

    def ended(self, name):
        return len(list((self.folder / name).glob("task-*")))


def make_cluster(*slots):
    """One node for each number of slots. Returns the cluster and the nodes after the first."""
    from ray.cluster_utils import Cluster
    node = {"node_ip_address": "127.0.0.1", "object_store_memory": OBJECT_STORE}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": slots[0], "include_dashboard": False})
    others = [cluster.add_node(**node, num_cpus=count) for count in slots[1:]]
    return cluster, others


def time_one_node(trial, slots):
    """Returns the seconds of all tasks on one node, with the load of the machine before and after."""
    cluster, _ = make_cluster(slots)
    before, started = os.getloadavg()[0], time.monotonic()
    fleet = trial.start(cluster, f"one-node-{slots}")
    summary = fleet.communicate()[0]
    seconds = time.monotonic() - started
    cluster.shutdown()
    check(fleet.returncode == 0, f"{slots} slots: all tasks ended with 0", summary)
    size = [sum(path.stat().st_size for path in trial.folder.glob(f"one-node-{slots}/*/{name}"))
            for name in ("store.db.gz", "*")]
    return {"slots": slots, "tasks": len(trial.tasks), "seconds": round(seconds, 1), "load_before": before,
            "load_after": os.getloadavg()[0], "store_bytes_per_task": size[0] // len(trial.tasks),
            "bytes_per_task": size[1] // len(trial.tasks)}


def kill_a_node(trial):
    """Kills one of two nodes while it runs Modegate. Returns the figures."""
    # Slower scripts give the same results, and the kill a time at which Modegate runs.
    for task in trial.tasks:
        if task["mode"] == "code":
            fixture.changing_script(Path(task["model"].partition(":")[2]), task["id"], delay_ms=1_000)
    cluster, (victim,) = make_cluster(2, 2)
    raylet = victim.all_processes["raylet"][0].process.pid
    started = time.monotonic()
    fleet = trial.start(cluster, "two-nodes")
    while fleet.poll() is None and (trial.ended("two-nodes") < len(trial.tasks) * 2 // 5 or not trial.runs_below(raylet)):
        time.sleep(0.02)
    at, interrupted = trial.ended("two-nodes"), trial.runs_below(raylet)
    killed = time.monotonic()
    cluster.remove_node(victim, allow_graceful=False)
    while any(is_running(pid, trial) for pid in interrupted):
        time.sleep(0.02)
    ended = time.monotonic() - killed
    summary = fleet.communicate()[0]
    seconds = time.monotonic() - started
    cluster.shutdown()
    check(fleet.returncode == 0, "two nodes, one killed: all tasks ended with 0", summary)
    return {"ended_before_the_kill": at, "interrupted": len(interrupted), "seconds_until_they_ended": round(ended, 2),
            "seconds": round(seconds, 1), "seconds_after_the_kill": round(started + seconds - killed, 1)}


def plan_review_code(trial):
    """Plans three tasks, accepts two, and carries them out. The tables are Parquet."""
    import pyarrow.parquet
    folder = trial.folder
    tasks = []
    for name in ("first", "second", "third"):
        replies = [[fixture.call("switch_mode", mode="code", plan=f"1. Write {name}.txt.")], [{"text": "No."}]]
        tasks.append(trial.tasks[0] | {"id": name, "mode": "plan", "prompt": f"write {name}.txt",
                                       "model": fixture.write_script(folder / f"scripts/{name}.jsonl", *replies)})
    table, review = folder / "plan.parquet", folder / "review"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(tasks), table)
    cluster, _ = make_cluster(2)
    done = trial.step(cluster, "plan", table, "--out", folder / "plans", "--allow-temporary")
    check(done.returncode == 0, "plans are made", done.stderr)
    done = trial.step(cluster, "review", table, "--out", folder / "plans", review)
    check("3 plans to accept" in done.stdout, "plans are written for review", done.stderr)
    rows = (review / "review.csv").read_text()
    (review / "review.csv").write_text(rows.replace("first,,", "first,yes,").replace("third,,", "third,yes,"))
    for name in ("first", "third"):
        fixture.write_script(folder / f"scripts/{name}.jsonl",
                             [fixture.call("write_file", path=f"{name}.txt", content="x")], [{"text": "Done."}])
    done = trial.step(cluster, "code", table, "--review", review, "--out", folder / "coded", "--results",
                      folder / "results.parquet", "--allow-temporary")
    cluster.shutdown()
    check(done.returncode == 0, "accepted plans are carried out", done.stderr)
    rows = pyarrow.parquet.read_table(folder / "results.parquet").to_pylist()
    results = [(row["id"], row["mode"], row["exit_code"], row["changed_files"], row["audit_valid"]) for row in rows]
    check(results == [("first", "code", 0, 1, True), ("third", "code", 0, 1, True)], "and no others", results)


failures = []


def check(is_true, name, details=""):
    print(name, "ok" if is_true else f"FAILED {details}", flush=True)
    failures.extend([] if is_true else [name])


def check_once(trial, expected):
    """Each task has one result, and only the tasks of the killed node have a second attempt."""
    started = fixture.starts(trial.log)
    counts = {task["id"]: sum(id == task["id"] for id, _ in started) for task in trial.tasks}
    repeated = {id: count for id, count in counts.items() if count > 1}
    check(min(counts.values()) == 1, "each task was started")
    check(0 < len(repeated) <= 2, "tasks of the killed node were started again, and no others", repeated)
    results = trial.results("two-nodes")
    different = [id for id in expected if results[id] != expected[id]]
    check(not different, "results equal those of one node", different[:3])
    check(not fixture.leftovers(trial.folder / "two-nodes"), "no lease, stage or replaced result is left")
    alive = [pid for _, pid in started if is_running(pid, trial)]
    check(not alive, "no Modegate is left", alive)
    return {"repeated": len(repeated)}


def ancestors(pid):
    found = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return found
        found.append(pid)
    return found


def is_running(pid, trial):
    try:
        return str(trial.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--slots", default="1,2,4", help="numbers of slots to time (default: 1,2,4)")
    parser.add_argument("--scheduler", type=int, metavar="N", help="time N tasks that do nothing, instead")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    parser.add_argument("binary", nargs="?", type=Path, default=fixture.ROOT / "target/debug/modegate")
    options = parser.parse_args()
    options.binary = options.binary.resolve()
    temporary = None if "FLEET_DIR" in os.environ else tempfile.TemporaryDirectory(prefix="modegate-fleet-")
    options.folder = Path(os.environ.get("FLEET_DIR") or temporary.name).resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    python = python_with_ray(options.folder)
    if Path(sys.executable) != python:
        # This program again, with Ray. Its workers read the same variables.
        home = options.folder / "home"
        home.mkdir(exist_ok=True)
        environment = os.environ | {"FLEET_DIR": str(options.folder), "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
        sys.exit(subprocess.run([python, *sys.argv], env=environment).returncode)
    if options.scheduler:
        print(json.dumps(time_scheduler(options.scheduler)))
        return

    trial = Trial(options)
    figures = [time_one_node(trial, int(slots)) for slots in options.slots.split(",")]
    expected = trial.results(f"one-node-{figures[0]['slots']}")
    killed = kill_a_node(trial)
    killed |= check_once(trial, expected)
    plan_review_code(trial)
    for figure in [*figures, killed]:
        print(json.dumps(figure))
    if options.json:
        options.json.write_text(json.dumps({"one_node": figures, "killed": killed}, indent=1) + "\n")
    if not options.keep:
        shutil.rmtree(trial.folder, ignore_errors=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
