// Performs a scenario with the TypeScript SDK's client, and prints the text that it receives.

import { execFileSync, spawn } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { Readable, Writable } from "node:stream";
import { fileURLToPath, pathToFileURL } from "node:url";

const { SCENARIO, AGENT, PROJECT, CLIENT } = process.env;
const sdk = createRequire(`${CLIENT}/package.json`).resolve("@agentclientprotocol/sdk");
const acp = await import(pathToFileURL(sdk));
const { agent: agentMethods, client: clientMethods } = acp.methods;
const choices = {
  "permission-allowed": "allow_once", "permission-refused": "reject_once",
  "plan-exit-accepted": "code", "plan-exit-refused": "reject",
};

let asked, answer;
const wasAsked = new Promise((resolve) => (asked = resolve));
const mayAnswer = new Promise((resolve) => (answer = resolve));

/** Nobody reads a question faster. A faster answer to a plan does not count. */
const read = () => new Promise((resolve) => setTimeout(resolve, 1000));

const client = acp.client({ name: "modegate-tests" })
  .onNotification(clientMethods.session.update, ({ params: { update } }) => {
    if (update.sessionUpdate === "agent_message_chunk") console.log(update.content.text);
  })
  .onRequest(clientMethods.session.requestPermission, async () => {
    asked();
    if (SCENARIO === "mode-under-permission") await mayAnswer;
    await read();
    return { outcome: { outcome: "selected", optionId: choices[SCENARIO] ?? "allow_once" } };
  })
  .onRequest(clientMethods.elicitation.create, async ({ params }) => {
    console.log(params.message);
    await read();
    const names = params.requestedSchema.required ?? [];
    return { action: "accept", content: Object.fromEntries(names.map((name) => [name, "code"])) };
  })
  .onRequest(clientMethods.fs.readTextFile, ({ params: { path } }) => {
    if (!existsSync(path)) throw acp.RequestError.resourceNotFound(path);
    return { content: readFileSync(path, "utf8") };
  })
  .onRequest(clientMethods.fs.writeTextFile, ({ params: { path, content } }) => {
    writeFileSync(path, content);
    return {};
  });

/** Starts Modegate and calls `op` with an initialized connection and the login methods; ends the process afterwards. */
async function withAgent(op) {
  const agent = spawn(AGENT, [], { stdio: ["pipe", "pipe", "inherit"] });
  const exited = new Promise((resolve) => agent.once("exit", resolve));
  const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
  const result = await client.connectWith(stream, async (context) => {
    const fs = { readTextFile: true, writeTextFile: true };
    const clientCapabilities = { fs, terminal: true, auth: { terminal: true } };
    if (SCENARIO === "plan-exit-form") clientCapabilities.elicitation = { form: {} };
    const params = { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities };
    const { authMethods } = await context.request(agentMethods.initialize, params);
    return op(context, authMethods);
  });
  agent.stdin.end();
  await exited;
  return result;
}

async function untilStarted() {
  while (!existsSync(`${PROJECT}/started`)) await new Promise((resolve) => setTimeout(resolve, 20));
}

/** Logs in as Modegate offers it, and prints the model of a session that begins afterwards. */
async function logIn(context, authMethods) {
  const { args, env } = authMethods.find((method) => method.type === "terminal");
  const login = fileURLToPath(new URL("login.py", import.meta.url));
  execFileSync("python3", [login, AGENT, ...args], { stdio: "inherit", env: { ...process.env, ...env } });
  const { configOptions } = await context.request(agentMethods.session.new, { cwd: PROJECT, mcpServers: [] });
  console.log(`The session has the model ${configOptions.find(({ id }) => id === "model").currentValue}.`);
}

/** Performs the steps; returns the session's id. */
async function steps(context) {
  const { sessionId } = await context.request(agentMethods.session.new, { cwd: PROJECT, mcpServers: [] });
  const setPlan = () => context.request(agentMethods.session.setMode, { sessionId, modeId: "plan" });
  if (SCENARIO === "mode-idle") await setPlan();
  const link = { type: "resource_link", name: "notes.md", uri: pathToFileURL(`${PROJECT}/notes.md`).href };
  const blocks = SCENARIO === "slash-behind-context"
    ? [link, { type: "text", text: "/plan write it" }]
    : [{ type: "text", text: "write it" }];
  if (SCENARIO === "image" || SCENARIO === "image-unsupported") {
    blocks.push({ type: "image", mimeType: "image/png", data: readFileSync(`${PROJECT}/picture.png`, "base64") });
  }
  const prompt = context.request(agentMethods.session.prompt, { sessionId, prompt: blocks });
  if (SCENARIO === "mode-mid-turn") {
    await untilStarted();
    await setPlan();
  } else if (SCENARIO === "cancel") {
    await untilStarted();
    await context.notify(agentMethods.session.cancel, { sessionId });
  } else if (SCENARIO === "mode-under-permission") {
    await wasAsked;
    await setPlan();
    answer();
  }
  await prompt.catch((error) => console.log(error.message));
  return sessionId;
}

const sessionId = await withAgent(SCENARIO === "login" ? logIn : steps);
if (SCENARIO === "load") {
  console.log("\f");
  await withAgent((context) =>
    context.request(agentMethods.session.load, { sessionId, cwd: PROJECT, mcpServers: [] }));
}
