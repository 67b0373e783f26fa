// Runs the firmware as WebAssembly, and is its board: a byte stream, a clock, an exit status.
//
// Usage: node wasm-runner.mjs FIRMWARE.wasm

import { readFileSync, readSync, writeSync } from "node:fs";

const STDIN = 0;
const STDOUT = 1;

// A stream that does not block answers EAGAIN until there is a byte, or room for one.
function untilReady(action) {
  for (;;) {
    try {
      return action();
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10);
    }
  }
}

const memoryAt = (start, length) => new Uint8Array(instance.exports.memory.buffer, start, length);

const host = {
  read: (start, length) => untilReady(() => readSync(STDIN, memoryAt(start, length))),
  write: (start, length) => untilReady(() => writeSync(STDOUT, memoryAt(start, length))),
  end: (status) => process.exit(status),
  nanoseconds: () => process.hrtime.bigint(),
};

const { instance } = await WebAssembly.instantiate(readFileSync(process.argv[2]), { host });
// A trap is an exception here, which Node reports before it ends with status 1.
instance.exports.run();
