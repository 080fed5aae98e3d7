// Holds a conversation in version 2 of the protocol with the TypeScript SDK's client, and prints what holds.
//
//     CLIENT=FOLDER node tests/clients/version_2.mjs BINARY
//
// FOLDER has `node_modules` with @agentclientprotocol/sdk 2.4.0.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { fileURLToPath, pathToFileURL } from "node:url";

const { CLIENT } = process.env;
const sdk = createRequire(`${CLIENT}/package.json`).resolve("@agentclientprotocol/sdk/experimental/v2");
const acp = await import(pathToFileURL(sdk));
const script = fileURLToPath(new URL("version_2_script.jsonl", import.meta.url));

/** Nobody reads a plan faster. A faster answer does not count. */
const read = () => new Promise((resolve) => setTimeout(resolve, 1000));

const folder = () => mkdtempSync(join(tmpdir(), "version-2-"));
const seen = [];
let waiting = [];
let onQuestion = async () => "allow_once";

const client = new acp.ClientApp({ name: "modegate-tests" })
  .onNotification("session/update", (context) => {
    const { update } = context.params ?? context;
    seen.push(update.state ?? update.sessionUpdate);
    waiting = waiting.filter((wait) => !wait(update));
  })
  .onRequest("session/request_permission", async (context) => {
    const optionId = await onQuestion(context.params ?? context);
    return optionId ? { outcome: { outcome: "selected", optionId } } : { outcome: { outcome: "cancelled" } };
  });

/** Resolves with the next update that `matches`. The SDK handles updates after the answers that follow them. */
const next = (matches) => new Promise((resolve) => waiting.push((update) => {
  const isMatch = matches(update);
  if (isMatch) resolve(update);
  return isMatch;
}));

/** Resolves with the update that ends the turn. */
const idle = () => next((update) => update.state === "idle" && Boolean(update.stopReason));

function check(holds, what) {
  console.log(holds ? "ok" : "FAILED", what);
  if (!holds) process.exitCode = 1;
}

const store = join(folder(), "store.db");
const agent = spawn(process.argv[2], ["--model", `scripted:${script}`, "--store", store], {
  stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, HOME: folder() },
});
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));

await client.connectWith(stream, async (connection) => {
  const info = { name: "modegate-tests", version: "1" };
  const answer = await connection.request("initialize", { protocolVersion: 2, info, capabilities: {} });
  check(answer.protocolVersion === 2, "version 2");
  const open = async () => {
    const cwd = folder();
    const { sessionId } = await connection.request("session/new", { cwd, mcpServers: [] });
    return { cwd, sessionId };
  };
  const prompt = async ({ sessionId }, idempotencyKey) => {
    const end = idle();
    const content = [{ type: "text", text: "go on" }];
    const { messageId } = await connection.request("session/prompt", { sessionId, prompt: content, idempotencyKey });
    return { messageId, ...(await end) };
  };
  const setMode = ({ sessionId }, value) =>
    connection.request("session/set_config_option", { sessionId, configId: "mode", type: "id", value });

  const first = await open();
  const turn = await prompt(first, "key");
  check(turn.stopReason === "end_turn" && existsSync(join(first.cwd, "a.txt")), "prompt, tool and permission");
  const text = [{ type: "text", text: "go on" }];
  const repeated = { sessionId: first.sessionId, prompt: text, idempotencyKey: "key" };
  check((await connection.request("session/prompt", repeated)).messageId === turn.messageId, "repeated key");
  const { configOptions } = await setMode(first, "plan");
  check(configOptions.find(({ configId }) => configId === "mode").currentValue === "plan", "idle mode change");
  await prompt(first);
  check(!existsSync(join(first.cwd, "b.txt")), "plan mode holds");
  onQuestion = async () => (await read(), "code");
  await prompt(first);
  check(seen.includes("plan_update") && existsSync(join(first.cwd, "c.txt")), "plan exit");

  const second = await open();
  onQuestion = async () => (await setMode(second, "plan"), "allow_once");
  await prompt(second);
  check(!existsSync(join(second.cwd, "a.txt")), "mode change in mid-turn");
  const third = await open();
  onQuestion = async () => {
    await connection.notify("session/cancel", { sessionId: third.sessionId });
    return null;
  };
  const cancelled = await prompt(third);
  check(cancelled.stopReason === "cancelled" && !existsSync(join(third.cwd, "a.txt")), "cancel");

  const { sessionId, cwd } = first;
  await connection.request("session/close", { sessionId });
  seen.length = 0;
  const snapshot = next((update) => update.state === "idle");
  await connection.request("session/resume", { sessionId, cwd, replayFrom: { type: "start" } });
  await snapshot;
  const marks = seen.filter((kind) => kind === "replay_complete");
  check(marks.length === 1 && seen.includes("user_message_chunk"), "resume with replay");
  await connection.request("session/close", { sessionId });
  await connection.request("session/delete", { sessionId });
  const { sessions } = await connection.request("session/list", {});
  check(!sessions.some((session) => session.sessionId === sessionId), "close and delete");
});
agent.stdin.end();
agent.kill();
