#!/usr/bin/env python3
"""Runs a table of Modegate tasks on a Ray cluster.

    fleet.py plan TASKS --out PLANS             make a plan for each task, in plan mode
    fleet.py review TASKS --out PLANS REVIEW    write the plans and a table in which a person accepts them
    fleet.py code TASKS --review REVIEW --out OUT
                                                carry out the accepted plans
    fleet.py run TASKS --out OUT                run each task as its row says
    fleet.py summary TASKS --out OUT            summarise the results so far; needs no Ray
    fleet.py tasks TASKS                        print the tasks as JSON lines, for run_task; needs no Ray

TASKS is a table: .csv, .jsonl, or .parquet (with pyarrow). docs/guides/fleets.md has its columns. Ray places the tasks,
repeats those whose worker or node is lost, and limits what runs at a time; `run_task` runs one task, and makes
repeating safe. A second call with the same folder runs only what has not ended.

Exits with 0 if all tasks ended with 0, with 1 if not, and with 2 if the call or a task has to be changed.
"""

import argparse
import csv
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path

sys.dont_write_bytecode = True

HERE = Path(__file__).resolve().parent
NOT_ENDED = (75, 143)  # Exit codes of run_task after an attempt that may be repeated.
ACCEPTED = ("yes", "y", "true", "1", "x")
REFUSED = ("", "no", "n", "false", "0")


def load_run_task():
    """The module of run_task, for its rules about tasks and results."""
    loader = importlib.machinery.SourceFileLoader("run_task", str(HERE / "run_task"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_task", loader))
    sys.modules["run_task"] = module
    loader.exec_module(module)
    return module


run_task = load_run_task()


# Tables


def read_rows(path):
    if path.suffix == ".csv":
        with open(path, newline="") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".parquet":
        return parquet().read_table(path).to_pylist()
    if path.suffix in (".jsonl", ".ndjson"):
        with open(path) as file:
            return [json.loads(line) for line in file if line.strip()]
    raise run_task.UsageError(f"{path}: a table is .csv, .jsonl or .parquet")


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        return parquet().write_table(pyarrow.Table.from_pylist(rows), path)
    with open(path, "w", newline="") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def parquet():
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise run_task.UsageError("tables in .parquet need pyarrow: pip install pyarrow") from error
    return pyarrow.parquet


def read_tasks(path):
    """Checks all tasks before the first one runs."""
    tasks, ids = [], set()
    for number, row in enumerate(read_rows(path), 1):
        try:
            task = run_task.parse_task(row)
            if task.id in ids:
                raise run_task.UsageError(f"the id {task.id} occurs twice")
        except run_task.UsageError as error:
            raise run_task.UsageError(f"{path}, task {number}: {error}") from error
        ids.add(task.id)
        tasks.append(task)
    return tasks


# Running tasks with Ray


class NotEnded(Exception):
    """The attempt did not end. Ray repeats the task."""


def run_on_worker(task, call):
    """Runs on a node of the cluster. Returns the exit code of one task. `call` has the text of `run_task` and its
    arguments. The text is in no file, because commands of other tasks could change a temporary one."""
    command = [sys.executable, "-c", call["program"], *call["arguments"], "--parent", str(os.getpid()), "-"]
    done = subprocess.run(command, input=task, stderr=subprocess.PIPE, text=True)
    if done.returncode in NOT_ENDED:
        raise NotEnded(f"exit code {done.returncode}: {done.stderr.strip()}")
    return done.returncode, done.stderr.strip()


def outcomes(tasks, options, may_start=lambda: True):
    """Yields each task with its exit code and an error, in the order in which they end. Starts no more tasks once
    `may_start` returns false."""
    try:
        import ray
    except ModuleNotFoundError:
        sys.exit("fleet.py: ray is missing: pip install ray; without it, packaging/fleet/run_task runs one task")
    ray.init(address=options.address, include_dashboard=False, log_to_driver=False, logging_level="warning")
    call = ray.put({"program": (HERE / "run_task").read_text(), "arguments": task_arguments(options)})
    remote = ray.remote(run_on_worker).options(
        num_cpus=options.cpus, memory=options.memory, max_retries=options.retries, retry_exceptions=[NotEnded])
    waiting, running = iter(tasks), {}
    most = options.in_flight
    if options.total_cost or options.total_tokens:
        # A submitted task will run, so none waits in Ray's queue.
        most = max(1, int(ray.cluster_resources().get("CPU", 1) / options.cpus))
    while True:
        # Ray keeps a record of each submitted task, so not all of a long table are submitted together.
        while len(running) < most and may_start() and (task := next(waiting, None)):
            running[remote.remote(json.dumps(asdict(task)), call)] = task
        if not running:
            return
        for reference in ray.wait(list(running), num_returns=1, timeout=1)[0]:
            task = running.pop(reference)
            try:
                yield task, *ray.get(reference)
            except ray.exceptions.RayError as error:
                yield task, None, str(error).strip().splitlines()[-1]


def task_arguments(options):
    arguments = ["--out", options.out, "--binary", options.binary, "--lease", options.lease]
    arguments += ["--work", options.work] if options.work else []
    for name in ("retry_failed", "no_store", "allow_temporary"):
        arguments += [f"--{name.replace('_', '-')}"] if getattr(options, name) else []
    return [str(argument) for argument in arguments]


def run_tasks(tasks, options):
    """Runs what has not ended yet, and shows the progress on stderr. Returns the errors of tasks without a result."""
    places = run_task.Places(options.out, options.out)
    pending = [task for task in tasks if not run_task.published(task, places, options.retry_failed)]
    errors, codes, started = {}, Counter(), time.monotonic()
    print(f"{len(tasks)} tasks, {len(tasks) - len(pending)} of them ended before", file=sys.stderr)
    total = Total(tasks, options)
    # Ray reports lost nodes on stdout, which is for the summary.
    with redirect_stdout(sys.stderr):
        shown = 0
        for task, code, message in outcomes(pending, options, total.allows_more) if pending else ():
            codes[code] += 1
            total.add(task)
            if code is None or code == run_task.USAGE:
                errors[task.id] = message
            now, ended = time.monotonic(), sum(codes.values())
            if now - shown >= 1 or ended == len(pending):
                shown = now
                print(f"{ended}/{len(pending)} ended, {ended - codes[0]} of them not with 0, "
                      f"{ended / (now - started):.1f} a second", file=sys.stderr)
    if not total.allows_more():
        print(f"a limit of the fleet is used up: {total}", file=sys.stderr)
    return errors


class Total:
    """What the tasks of this table have used, over all calls, and the limits of the fleet."""

    def __init__(self, tasks, options):
        self.options, self.cost, self.tokens = options, 0.0, 0
        if options.total_cost or options.total_tokens:
            for task in tasks:
                self.add(task)

    def __str__(self):
        return f"{self.cost:.2f} dollars, {self.tokens} tokens"

    def add(self, task):
        row = result_row(task, self.options.out, {})
        self.cost += row["cost"] or 0
        self.tokens += (row["input_tokens"] or 0) + (row["output_tokens"] or 0)

    def allows_more(self):
        limits = (self.options.total_cost, self.cost), (self.options.total_tokens, self.tokens)
        return all(used < limit for limit, used in limits if limit)


# Results


def result_row(task, out, errors):
    """One row of the results. Without a result, `exit_code` is null and `error` says why."""
    folder = out / task.id
    state = run_task.published_state(folder)
    if state.get("key") != task.key():
        return row_of(task, {}, {}, errors.get(task.id, "not run yet"))
    result = json.loads((folder / "result.json").read_text())
    return row_of(task, state, result, result.get("error"), (folder / "diff.patch").stat().st_size)


def row_of(task, state, result, error, diff_bytes=0):
    usage = result.get("usage") or {}
    return {
        "id": task.id, "repository": task.repository, "commit": task.commit, "mode": task.mode,
        "exit_code": state.get("exit_code"), "error": error, "session": state.get("session"),
        "audit_valid": state.get("audit_valid"), "model": result.get("model"), "steps": result.get("steps"),
        "input_tokens": usage.get("inputTokens"), "output_tokens": usage.get("outputTokens"),
        "cost": cost_of(result), "seconds": state.get("seconds"),
        "changed_files": len(result.get("changedFiles") or []), "diff_bytes": diff_bytes,
        "attempt": state.get("attempt"), "host": state.get("host"), "ended": state.get("ended"), "key": task.key(),
    }


def cost_of(result):
    """Dollars: what the provider reported, or else the list price, as `modegate` counts for budgets."""
    cost = result.get("cost") or {}
    return cost.get("amount") if cost.get("currency") == "USD" else (result.get("budget") or {}).get("costUsd")


def report(tasks, options, errors):
    """Writes the table of results and prints the summary. Returns the exit code."""
    rows = [result_row(task, options.out, errors) for task in tasks]
    path = options.results or options.out / "results.jsonl"
    write_rows(path, rows)
    codes = Counter(row["exit_code"] for row in rows)
    total = lambda name: sum(row[name] or 0 for row in rows)
    print(f"tasks          {len(rows)}")
    for code in sorted(codes, key=str):
        print(f"{'no result' if code is None else f'exit code {code}':<15}{codes[code]}")
    print(f"tokens         {total('input_tokens')} in, {total('output_tokens')} out")
    unknown = sum(row["cost"] is None for row in rows)
    print(f"cost           {total('cost'):.2f} dollars" + (f"; unknown for {unknown} tasks" if unknown else ""))
    print(f"changed files  {total('changed_files')}")
    print(f"repeated       {sum((row['attempt'] or 1) > 1 for row in rows)}")
    print(f"time of runs   {total('seconds'):.0f} s")
    print(f"results        {path}")
    failed = [row for row in rows if row["exit_code"] != 0]
    for row in failed[:options.show]:
        print(f"  {row['id']}: {row['error']}")
    if len(failed) > options.show:
        print(f"  and {len(failed) - options.show} more")
    return 1 if failed or any(row["audit_valid"] is False for row in rows) else 0


# Plans and their review


def plan_of(result):
    """The same text as `modegate --from-plan` takes from a result."""
    return (result.get("plan") or result.get("lastMessage") or "").strip()


def write_review(tasks, options):
    """Writes REVIEW/plans/ID.md and REVIEW/review.csv."""
    plans, table = options.folder / "plans", options.folder / "review.csv"
    if table.exists():
        raise run_task.UsageError(f"{table} exists: it may have decisions; choose another folder")
    plans.mkdir(parents=True, exist_ok=True)
    rows = []
    for task in tasks:
        task = as_plan(task)
        folder = options.out / task.id
        row = {"id": task.id, "accept": "", "repository": task.repository, "commit": task.commit, "title": "", "plan": ""}
        if run_task.published_state(folder).get("key") == task.key():
            plan = plan_of(json.loads((folder / "result.json").read_text()))
            if plan:
                (plans / f"{task.id}.md").write_text(plan + "\n")
                row |= {"title": cell(plan.splitlines()[0]), "plan": f"plans/{task.id}.md"}
        rows.append(row)
    write_rows(table, rows)
    missing = sum(not row["plan"] for row in rows)
    print(f"{table}: {len(rows) - missing} plans to accept, {missing} tasks without a plan")
    print("write yes into the column accept of each plan that you accept; you may edit the plans")
    return 0


def cell(text):
    """Text of a model, for a spreadsheet: not a formula."""
    return text[:200] if text[:1] not in tuple("=+-@\t\r") else " " + text[:199]


def as_plan(task):
    """The task that makes the plan."""
    if not task.prompt.strip():
        raise run_task.UsageError(f"{task.id} has no prompt to plan for")
    return replace(task, mode="plan", plan="", require_checks=False)


def accepted_tasks(tasks, options):
    """The tasks whose plans were accepted, each with the text that lies in the folder of the review now."""
    with open(options.review / "review.csv", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    accepted = []
    for task in tasks:
        row = rows.get(task.id, {"accept": ""})
        answer = row["accept"].strip().lower()
        if answer not in ACCEPTED + REFUSED:
            raise run_task.UsageError(f"{task.id}: {row['accept']!r} is no decision: write yes or no")
        if answer in ACCEPTED:
            if row["commit"] != task.commit or row["repository"] != task.repository:
                raise run_task.UsageError(f"{task.id}: the accepted plan is for another commit; plan it again")
            if not row["plan"]:
                raise run_task.UsageError(f"{task.id} is accepted and has no plan")
            mode = "code" if task.mode == "plan" else task.mode
            plan = run_task.read_plan(options.review / "plans" / f"{task.id}.md")
            accepted.append(replace(task, mode=mode, plan=plan, prompt=""))
    print(f"{len(accepted)} of {len(tasks)} plans are accepted", file=sys.stderr)
    return accepted


# The command line


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("plan", "review", "code", "run", "summary", "tasks"):
        step = steps.add_parser(name)
        step.add_argument("tasks", type=Path, metavar="TASKS")
        if name != "tasks":
            step.add_argument("--out", type=absolute, required=True, help="folder of the results, shared by all nodes")
        if name in ("plan", "code", "run", "summary"):
            step.add_argument("--results", type=Path, help="table of the results: .jsonl, .csv or .parquet "
                                                           "(default: OUT/results.jsonl)")
            step.add_argument("--show", type=int, default=20, help="failed tasks to print (default: 20)")
        if name in ("plan", "code", "run"):
            add_run_arguments(step)
        if name == "code":
            step.add_argument("--review", type=Path, required=True, help="folder of the review")
        if name == "review":
            step.add_argument("folder", type=Path, metavar="REVIEW")
    return parser.parse_args()


def absolute(path):
    return Path(os.path.realpath(path))


def add_run_arguments(step):
    step.add_argument("--address", help="address of the cluster (default: $RAY_ADDRESS, else Ray on this machine)")
    step.add_argument("--cpus", type=float, default=1, help="processors of one task (default: 1)")
    step.add_argument("--memory", type=int, help="memory of one task in bytes, as Ray plans with it")
    step.add_argument("--retries", type=int, default=3, help="repetitions of a lost attempt (default: 3)")
    step.add_argument("--in-flight", type=int, default=2000, help="most tasks submitted to Ray at a time (default: 2000)")
    step.add_argument("--total-cost", type=float, help="start no more tasks once all have cost this many dollars")
    step.add_argument("--total-tokens", type=int, help="start no more tasks once all have used this many tokens")
    step.add_argument("--binary", default="modegate", help="Modegate on the nodes (default: modegate)")
    step.add_argument("--work", type=absolute, help="folder on a disk of each node (default: that of run_task)")
    step.add_argument("--lease", type=float, default=120, help="seconds until a silent attempt counts as dead")
    step.add_argument("--retry-failed", action="store_true", help="run tasks again whose exit code was not 0")
    step.add_argument("--no-store", action="store_true", help="leave the session stores out of the results")
    step.add_argument("--allow-temporary", action="store_true", help="accept folders in which tasks can write")


def perform(options):
    tasks = read_tasks(options.tasks)
    if options.step == "tasks":
        for task in tasks:
            print(json.dumps({name: value for name, value in asdict(task).items() if value}, ensure_ascii=False))
        return 0
    if options.step == "review":
        return write_review(tasks, options)
    if options.step == "plan":
        tasks = [as_plan(task) for task in tasks]
    if options.step == "code":
        tasks = accepted_tasks(tasks, options)
    errors = {} if options.step == "summary" else run_tasks(tasks, options)
    return report(tasks, options, errors)


def main():
    options = parse_arguments()
    try:
        return perform(options)
    except run_task.UsageError as error:
        print(f"fleet.py: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"fleet.py: {options.tasks}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
