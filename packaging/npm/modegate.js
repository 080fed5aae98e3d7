#!/usr/bin/env node
// Runs the binary of this platform's package, with the same arguments and streams.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const name = `@modegate/${process.platform}-${process.arch}`;
const program = process.platform === "win32" ? "modegate.exe" : "modegate";

let binary;
try {
  binary = require.resolve(`${name}/bin/${program}`);
} catch {
  console.error(
    `modegate: the package ${name} is missing. Either there is no binary for this platform, or the ` +
      "installation left out optional dependencies (npm install --include=optional)."
  );
  process.exit(1);
}

const child = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
// The binary decides about signals. Without one, it ends when the client closes its input.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`modegate: ${binary} cannot be started: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code));
