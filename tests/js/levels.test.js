import assert from "node:assert/strict";
import test from "node:test";

import { levelOf } from "../../static/jobs/levels.js";

test("the words of loggers, Python and launchers make a level", () => {
  const lines = {
    "2026-11-29 10:00:00 ERROR data: no such shard": "error",
    "[rank3]: Traceback (most recent call last):": "error",
    "torch.OutOfMemoryError: CUDA out of memory.": "error",
    "KeyboardInterrupt": "error",
    "CRITICAL: disk is full": "error",
    "WARNING:root:slow data loader": "warning",
    "/env/x.py:12: UserWarning: lr is 0": "warning",
    "W1129 [WARN] retrying": "warning",
    "DEBUG shapes (3, 4)": "debug",
  };
  for (const [line, level] of Object.entries(lines)) assert.equal(levelOf(line), level, line);
});

test("results that only mention an error have none", () => {
  for (const line of ["epoch 3 error 0.12", "errors=0", "no errors", "mean squared error: 3.1", "warn_after=3", "terror: 3", ""]) {
    assert.equal(levelOf(line), "", line);
  }
});

test("a long line is judged by its start", () => {
  assert.equal(levelOf(`${"x".repeat(10_000)} ERROR`), "");
  const began = performance.now();
  for (const sign of [".", "a", " ", "[rank"]) for (let i = 0; i < 20_000; i++) levelOf(sign.repeat(400) + i);
  assert.ok(performance.now() - began < 4000);
});
