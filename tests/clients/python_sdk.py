"""Performs a scenario with the Python SDK's client, and prints the text that it receives."""

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path

import acp
from acp import schema

from driver import PROJECT, SCENARIO, until_started

AGENT = os.environ["AGENT"]
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

    # Nobody reads a question in less than a second. A faster answer to a plan does not count.
    async def request_permission(self, session_id, tool_call, options, **kwargs):
        self.asked.set()
        if SCENARIO == "mode-under-permission":
            await self.answer.wait()
        await asyncio.sleep(1)
        choice = CHOICES.get(SCENARIO, "allow_once")
        return acp.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=choice))

    async def create_elicitation(self, message, mode, **kwargs):
        print(message, flush=True)
        await asyncio.sleep(1)
        required = mode.requested_schema.required or []
        return schema.AcceptElicitationResponse(action="accept", content={name: "code" for name in required})

    async def read_text_file(self, session_id, path, line=None, limit=None, **kwargs):
        try:
            return acp.ReadTextFileResponse(content=Path(path).read_text())
        except FileNotFoundError:
            raise acp.RequestError.resource_not_found(path) from None

    async def write_text_file(self, session_id, path, content, **kwargs):
        Path(path).write_text(content)


def image_block():
    return acp.image_block(base64.b64encode(Path(PROJECT, "picture.png").read_bytes()).decode(), "image/png")


async def connect(connection):
    """Returns Modegate's answer."""
    forms = schema.ElicitationCapabilities(form=schema.ElicitationFormCapabilities())
    files = schema.FileSystemCapabilities(read_text_file=True, write_text_file=True)
    capabilities = schema.ClientCapabilities(
        fs=files, terminal=True, elicitation=forms if SCENARIO == "plan-exit-form" else None,
        auth=schema.AuthCapabilities(terminal=True))
    return await connection.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=capabilities)


async def log_in(connection, methods):
    """Logs in as Modegate offers it, and prints the model of a session that begins afterwards."""
    method = next(method for method in methods if getattr(method, "type", None) == "terminal")
    login = [sys.executable, Path(__file__).with_name("login.py"), AGENT, *method.args]
    subprocess.run(login, check=True, env=os.environ | (method.env or {}))
    session = await connection.new_session(cwd=PROJECT, mcp_servers=[])
    model = next(option for option in session.config_options if option.id == "model")
    print(f"The session has the model {model.current_value}.")


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
    if SCENARIO in ("image", "image-unsupported"):
        blocks.append(image_block())
    prompt = asyncio.ensure_future(connection.prompt(session_id=session, prompt=blocks))
    if SCENARIO == "mode-mid-turn":
        await asyncio.to_thread(until_started)
        await set_plan()
    elif SCENARIO == "cancel":
        await asyncio.to_thread(until_started)
        await connection.cancel(session_id=session)
    elif SCENARIO == "mode-under-permission":
        await client.asked.wait()
        await set_plan()
        client.answer.set()
    try:
        await prompt
    except acp.RequestError as error:
        print(error)
    return session


async def main():
    client = Client()
    async with acp.spawn_agent_process(client, AGENT, use_unstable_protocol=True) as (connection, _):
        answer = await connect(connection)
        if SCENARIO == "login":
            return await log_in(connection, answer.auth_methods)
        session = await steps(client, connection)
    if SCENARIO == "load":
        print("\f", flush=True)
        async with acp.spawn_agent_process(client, AGENT) as (connection, _):
            await connect(connection)
            await connection.load_session(cwd=PROJECT, session_id=session, mcp_servers=[])


asyncio.run(main())
