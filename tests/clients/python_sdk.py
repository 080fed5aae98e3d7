"""Performs a scenario with the Python SDK's client, and prints the text that it receives."""

import asyncio
import os
from pathlib import Path

import acp
from acp import schema

SCENARIO, AGENT, PROJECT = os.environ["SCENARIO"], os.environ["AGENT"], os.environ["PROJECT"]
CHOICES = {"permission-allowed": "allow_once", "permission-refused": "reject_once",
           "plan-exit-accepted": "code", "plan-exit-refused": "reject"}


class Client:
    """Answers Modegate's requests. `asked` is set by a permission request, `answer` releases the answer."""

    def __init__(self):
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    def on_connect(self, conn):
        pass

    async def session_update(self, session_id, update, **kwargs):
        if isinstance(update, schema.AgentMessageChunk):
            print(update.content.text, flush=True)

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        self.asked.set()
        if SCENARIO == "mode-under-permission":
            await self.answer.wait()
        choice = CHOICES.get(SCENARIO, "allow_once")
        return acp.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=choice))

    async def create_elicitation(self, message, mode, **kwargs):
        required = mode.requested_schema.required or []
        return schema.AcceptElicitationResponse(action="accept", content={name: "code" for name in required})

    async def read_text_file(self, session_id, path, line=None, limit=None, **kwargs):
        try:
            return acp.ReadTextFileResponse(content=Path(path).read_text())
        except FileNotFoundError:
            raise acp.RequestError.resource_not_found(path) from None

    async def write_text_file(self, session_id, path, content, **kwargs):
        Path(path).write_text(content)


async def connect(connection):
    forms = schema.ElicitationCapabilities(form=schema.ElicitationFormCapabilities())
    files = schema.FileSystemCapabilities(read_text_file=True, write_text_file=True)
    capabilities = schema.ClientCapabilities(
        fs=files, terminal=True, elicitation=forms if SCENARIO == "plan-exit-form" else None)
    await connection.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=capabilities)


async def until_started():
    while not Path(PROJECT, "started").exists():
        await asyncio.sleep(0.02)


async def steps(client, connection):
    """Performs the steps; returns the session."""
    session = (await connection.new_session(cwd=PROJECT, mcp_servers=[])).session_id

    async def set_plan():
        await connection.set_session_mode(session_id=session, mode_id="plan")

    blocks = [acp.text_block("write it")]
    if SCENARIO == "mode-idle":
        await set_plan()
    if SCENARIO == "slash-behind-context":
        link = acp.resource_link_block("notes.md", f"file://{PROJECT}/notes.md")
        blocks = [link, acp.text_block("/plan write it")]
    prompt = asyncio.ensure_future(connection.prompt(session_id=session, prompt=blocks))
    if SCENARIO == "mode-mid-turn":
        await until_started()
        await set_plan()
    elif SCENARIO == "cancel":
        await until_started()
        await connection.cancel(session_id=session)
    elif SCENARIO == "mode-under-permission":
        await client.asked.wait()
        await set_plan()
        client.answer.set()
    await prompt
    return session


async def main():
    client = Client()
    async with acp.spawn_agent_process(client, AGENT, use_unstable_protocol=True) as (connection, _):
        await connect(connection)
        session = await steps(client, connection)
    if SCENARIO == "load":
        print("\f", flush=True)
        async with acp.spawn_agent_process(client, AGENT) as (connection, _):
            await connect(connection)
            await connection.load_session(cwd=PROJECT, session_id=session, mcp_servers=[])


asyncio.run(main())
