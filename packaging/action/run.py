#!/usr/bin/env python3
"""The step of the composite action that runs Modegate: options from the action's inputs, a job summary, outputs.

Reads $MODEGATE_ACTION_*, which action.yml sets. Inputs never become part of a command line for a shell. Exits with
Modegate's code. Only Python's standard library is needed.
"""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

MAX_SUMMARY = 900_000  # Bytes; GitHub refuses a summary of more than 1 MiB.
USAGE = 2


def option(name):
    return os.environ.get(f"MODEGATE_ACTION_{name}", "").strip()


def command_line(temporary):
    binary = option("BINARY") or str(temporary / "modegate-bin/modegate")
    command = [binary, "--output", "json", "--mode", option("MODE") or "plan"]
    for name in ("MODEL", "MAX_STEPS", "MAX_TOKENS", "MAX_COST", "TIMEOUT"):
        if option(name):
            command += [f"--{name.lower().replace('_', '-')}", option(name)]
    if option("CHECKS") == "true":
        command.append("--require-checks")
    if option("PLAN"):
        plan = temporary / "modegate-plan.md"
        plan.write_text(option("PLAN") + "\n")
        return command + ["--from-plan", str(plan)]
    return command + ["-p", "-"]


def prompt():
    """The prompt and the diff, as piped text: neither is a slash command, whoever wrote the title of a pull request."""
    parts = [option("PROMPT")]
    if option("DIFF"):
        command = ["git", "diff", "--no-ext-diff", "--no-textconv", "--end-of-options", f"{option('DIFF')}...HEAD"]
        diff = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if diff.returncode:
            sys.exit(f"the diff to {option('DIFF')} cannot be made; check out with fetch-depth: 0\n{diff.stderr}")
        parts.append(diff.stdout)
    return "\n\n".join(part for part in parts if part)


def run(command, text, result):
    """Runs Modegate. Its progress goes to the log of the job, in which no line is a command to GitHub's runner."""
    token = uuid.uuid4().hex
    print(f"::stop-commands::{token}", flush=True)
    with open(result, "w") as output:
        code = subprocess.run(command, input=text, text=True, stdout=output).returncode
    print(f"::{token}::", flush=True)
    return code


def summary(result, code):
    """The job summary, in Markdown."""
    usage, cost = result.get("usage") or {}, result.get("cost")
    title = "plan" if result.get("plan") else "answer"
    lines = [f"## Modegate: {title} in {result.get('mode') or option('MODE')} mode", ""]
    if code:
        lines += [f"**Exit code {code}:** {result.get('error') or 'no result'}", ""]
    lines += [plan_of(result), "", "| | |", "| --- | --- |"]
    rows = {"model": result.get("model"), "session": result.get("sessionId"), "model requests": result.get("steps"),
            "tokens": f"{usage.get('inputTokens', 0)} in, {usage.get('outputTokens', 0)} out",
            "cost": f"{cost['amount']} {cost['currency']}" if cost else None,
            "changed files": ", ".join(f"`{name}`" for name in result.get("changedFiles") or []),
            "denied": ", ".join(call["title"] for call in result.get("denied") or []),
            "failed checks": ", ".join(map(str, result.get("failedChecks") or []))}
    lines += [f"| {name} | {cell(value)} |" for name, value in rows.items() if value]
    return shortened("\n".join(lines) + "\n")


def plan_of(result):
    """The same text as `modegate --from-plan` takes from a result."""
    return (result.get("plan") or result.get("lastMessage") or "").strip()


def cell(value):
    return str(value).replace("|", "\\|").replace("\n", " ")


def shortened(text):
    data = text.encode()
    if len(data) <= MAX_SUMMARY:
        return text
    return data[:MAX_SUMMARY].decode(errors="ignore") + "\n\n… shortened: the result has all of it\n"


def write_outputs(values):
    """Appends to $GITHUB_OUTPUT. The delimiter is random, so no text of a model can end a value."""
    with open(os.environ["GITHUB_OUTPUT"], "a") as file:
        for name, value in values.items():
            delimiter = uuid.uuid4().hex
            file.write(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")


def main():
    if not (option("PROMPT") or option("PLAN")):
        print("the action needs a prompt or a plan", file=sys.stderr)
        return USAGE
    temporary = Path(os.environ["RUNNER_TEMP"])
    path = temporary / "modegate-result.json"
    code = run(command_line(temporary), prompt(), path)
    try:
        result = json.loads(path.read_text())
    except ValueError:
        result = {}
    with open(os.environ["GITHUB_STEP_SUMMARY"], "a") as file:
        file.write(summary(result, code))
    write_outputs({"plan": plan_of(result), "session": result.get("sessionId") or "", "exit-code": code, "result": path})
    return code


if __name__ == "__main__":
    sys.exit(main())
