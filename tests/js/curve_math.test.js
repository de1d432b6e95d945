import assert from "node:assert/strict";
import { test } from "node:test";

import { at, duration, needsLog, number, ranges, smooth, table, tickLabels } from "../../static/js/curve_math.js";

test("smoothing begins at the first value, and leaves gaps", () => {
  assert.deepEqual(smooth([4, null, 4], 0.9).map((value) => value && Math.round(value * 1e9) / 1e9), [4, null, 4]);
  assert.deepEqual(smooth([3, 5, undefined], 0), [3, 5, undefined]);
  assert.equal(smooth([0, 1], 0.5)[1], 2 / 3);
});

test("a single outlier does not widen the axis, but values that merely fall do", () => {
  const flat = Array.from({ length: 200 }, (_, step) => 1 + 0.1 * Math.sin(step));
  const found = ranges([...flat, 1e6]);
  assert.equal(found.hasOutliers, true);
  assert.ok(found.bulk[1] < 1.3 && found.all[1] === 1e6);
  assert.equal(ranges(flat).hasOutliers, false);
  const falling = Array.from({ length: 200 }, (_, step) => 2.3 * 0.99 ** step);
  assert.equal(ranges(falling).hasOutliers, false);
  assert.deepEqual(ranges([1, 2, 1e9]).bulk, [1, 1e9], "too few to tell");
  assert.deepEqual(ranges([null, undefined, NaN]).all, [0, 1]);
});

test("curves a hundredfold apart get a log axis, unless one reaches zero", () => {
  assert.equal(needsLog([[1, 2], [500, 600]]), true);
  assert.equal(needsLog([[1, 2], [50, 60]]), false);
  assert.equal(needsLog([[0, 2], [500, 600]]), false);
  assert.equal(needsLog([[1e-9, 1e9]]), false, "one curve");
  assert.equal(needsLog([]), false);
});

test("a table ascends, and has a gap where another attempt begins", () => {
  assert.deepEqual(table([1, 2, 10], [5, 6, 7], [2], true), [[1, 2, 6, 10], [5, 6, null, 7]]);
  assert.deepEqual(table([1, 2, 10], [5, 6, 7], [2], false), [[1, 2, 10], [5, 6, 7]]);
  assert.deepEqual(table([3, 4, 1, 2, 2], [5, 6, 7, 8, 9], [], true), [[1, 2, 3, 4], [7, 9, 5, 6]]);
});

test("a moment lies between the steps around it", () => {
  assert.equal(at(15, [10, 20, 30], [100, 200, 300]), 150);
  assert.equal(at(9, [10, 20], [1, 2]), null);
  assert.equal(at(30, [10, 20, 30], [100, 200, 300]), 300);
  assert.equal(at(1, [], []), null);
});

test("numbers have four digits, and powers of ten where they must", () => {
  assert.deepEqual([0, 0.12345, 1234.5678, 12_345.6, 3e-7, 1e12, null].map((value) => number(value)), ["0", "0.1235", "1,235", "12,345.6", "3e-7", "1e12", "–"]);
});

test("labels of ticks are as fine as their distance", () => {
  assert.deepEqual(tickLabels([0, 0.5, 1], 0.5), ["0", "0.5", "1"]);
  assert.deepEqual(tickLabels([0, 0.025, 0.05], 0.025), ["0", "0.025", "0.05"]);
  assert.deepEqual(tickLabels([0, 1000], 1000), ["0", "1,000"]);
  assert.deepEqual(tickLabels([0, 2e-7], 2e-7), ["0", "2e-7"]);
  assert.equal(new Set(tickLabels([0.51, 0.512, 0.514], 0.002)).size, 3);
});

test("durations have two units", () => {
  assert.deepEqual([0, 59, 60, 3_660, 90_000, 7_200].map(duration), ["0 s", "59 s", "1 min", "1 h 1 min", "1 d 1 h", "2 h"]);
});
