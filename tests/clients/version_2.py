#!/usr/bin/env python3
"""Holds a conversation in version 2 of the protocol with the Python SDK's client, and prints what holds.

    PYTHON tests/clients/version_2.py BINARY

PYTHON has agent-client-protocol 1.0.0rc3.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from acp.experimental.v2 import connect_to_agent, schema

SCRIPT = Path(__file__).with_name("version_2_script.jsonl")

has_failed = False


def check(holds, what):
    global has_failed
    has_failed |= not holds
    print("ok" if holds else "FAILED", what, flush=True)


class Client:
    def __init__(self):
        self.seen, self.idle, self.stop_reason = [], asyncio.Event(), None
        self.on_question = self.allow

    async def allow(self):
        return "allow_once"

    async def session_update(self, session_id, update, **_):
        kind = getattr(update, "state", None) or update.session_update
        self.seen.append(kind)
        if kind == "idle" and getattr(update, "stop_reason", None):
            self.stop_reason = update.stop_reason
            self.idle.set()

    update_session = session_update

    async def request_permission(self, *_, **__):
        option = await self.on_question()
        outcome = {"outcome": "selected", "optionId": option} if option else {"outcome": "cancelled"}
        return schema.RequestPermissionResponse.model_validate({"outcome": outcome})


async def converse(agent, client):
    info = schema.Implementation(name="modegate-tests", version="1")
    answer = await agent.initialize(2, info=info, capabilities=schema.ClientCapabilities())
    check(answer.protocol_version == 2, "version 2")

    async def open_session():
        cwd = tempfile.mkdtemp()
        return (await agent.new_session(cwd=cwd)).session_id, Path(cwd)

    async def prompt(session):
        client.idle.clear()
        content = [schema.TextContentBlock(type="text", text="go on")]
        await agent.prompt(session_id=session, prompt=content)
        await asyncio.wait_for(client.idle.wait(), 20)
        return client.stop_reason

    async def set_mode(session, mode):
        return await agent.set_config_option(session_id=session, config_id="mode", value=mode, type="id")

    first, cwd = await open_session()
    end = await prompt(first)
    check(end == "end_turn" and (cwd / "a.txt").exists(), "prompt, tool and permission")
    await set_mode(first, "plan")
    await prompt(first)
    check(not (cwd / "b.txt").exists(), "idle mode change: plan mode holds")

    async def accept():
        # Nobody reads a plan faster. A faster answer does not count.
        await asyncio.sleep(1)
        return "code"

    client.on_question = accept
    await prompt(first)
    check((cwd / "c.txt").exists(), "plan exit")

    second, second_cwd = await open_session()

    async def tighten():
        await set_mode(second, "plan")
        return "allow_once"

    client.on_question = tighten
    await prompt(second)
    check(not (second_cwd / "a.txt").exists(), "mode change in mid-turn")

    third, third_cwd = await open_session()

    async def cancel():
        await agent.cancel_session(third)

    client.on_question = cancel
    end = await prompt(third)
    check(end == "cancelled" and not (third_cwd / "a.txt").exists(), "cancel")

    await agent.close_session(first)
    client.seen.clear()
    start = schema.ReplayFromStartVariant(type="start")
    await agent.resume_session(session_id=first, cwd=str(cwd), replay_from=start)
    check(client.seen.count("replay_complete") == 1, "resume with replay")
    await agent.close_session(first)
    await agent.delete_session(first)
    check(True, "close and delete")


async def main():
    home = tempfile.mkdtemp()
    arguments = ["--model", f"scripted:{SCRIPT}", "--store", f"{home}/store.db"]
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.argv[1]).resolve()), *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"HOME": home}, cwd=home,
    )
    client = Client()
    await converse(connect_to_agent(client, process.stdin, process.stdout), client)
    process.stdin.close()
    sys.exit(has_failed)


asyncio.run(main())
