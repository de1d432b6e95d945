import assert from "node:assert/strict";
import { test } from "node:test";

import { Lines } from "../../static/jobs/merge.js";
import { Search, pieces } from "../../static/jobs/search.js";

const line = (stream, time, text = `${stream.name}${time}`) => ({ stream, time, text, spans: null });
const order = (lines) => lines.map(({ text }) => text).join(" ");

test("lines of several ranks are ordered by time, those of one rank as they came", () => {
  const [a, b] = [{ name: "a" }, { name: "b" }];
  const lines = new Lines();
  assert.equal(lines.add([line(a, 1), line(a, 4), line(a, 2, "a-late")]), true);
  assert.equal(lines.add([line(b, 2), line(b, 5)]), false);
  assert.equal(order(lines.all), "a1 b2 a4 a-late b5");
});

test("any order of arrival gives the same order in the end", () => {
  let seed = 3;
  const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
  for (let round = 0; round < 200; round++) {
    const streams = [0, 1, 2].map((name) => ({ name, waiting: [] }));
    for (const stream of streams) {
      let time = 0;
      for (let i = 0; i < 20; i++) stream.waiting.push(line(stream, (time += random(5)), `${stream.name}.${i}`));
    }
    const lines = new Lines();
    while (streams.some((stream) => stream.waiting.length)) {
      const stream = streams[random(3)];
      lines.add(stream.waiting.splice(0, 1 + random(6)));
    }
    assert.equal(lines.all.length, 60);
    for (let i = 1; i < 60; i++) assert.ok(lines.all[i - 1].time <= lines.all[i].time);
    for (const { name } of streams) {
      assert.deepEqual(lines.all.filter((each) => each.stream.name === name).map(({ text }) => text), Array.from({ length: 20 }, (_, i) => `${name}.${i}`));
    }
  }
});

test("a filter shows one rank, and goes on to do so", () => {
  const [a, b] = [{ name: "a" }, { name: "b" }];
  const lines = new Lines();
  lines.add([line(a, 1), line(a, 3)]);
  lines.keep((each) => each.stream === b);
  lines.add([line(b, 2), line(b, 4)]);
  lines.add([line(a, 5), line(b, 6)]);
  assert.equal(order(lines.shown), "b2 b4 b6");
  lines.keep(null);
  assert.equal(order(lines.shown), "a1 b2 a3 b4 a5 b6");
});

test("the oldest lines are given up beyond the limit, and counted", () => {
  const a = { name: "a" };
  const lines = new Lines(100);
  for (let i = 0; i < 500; i++) lines.add([line(a, i)]);
  assert.ok(lines.all.length <= 110);
  assert.equal(lines.all.length + lines.dropped, 500);
  assert.equal(lines.shown.at(-1).text, "a499");
});

test("search counts, steps in a circle and keeps its place when lines come before it", () => {
  const a = { name: "a" };
  const shown = ["Loss 1", "x", "loss 2", "y", "LOSS 3"].map((text, i) => line(a, i, text));
  const search = new Search();
  search.start("loss", shown);
  assert.deepEqual(search.hits, [0, 2, 4]);
  assert.equal(search.go(1, 1, shown), 2);
  assert.equal(search.go(1, 1, shown), 4);
  assert.equal(search.go(1, 1, shown), 0);
  assert.equal(search.go(-1, 1, shown), 4);
  shown.unshift(line(a, 0, "loss 0"));
  search.restart(shown);
  assert.deepEqual([search.hits.length, search.current], [4, 3]);
  shown.push(line(a, 9, "loss 9"));
  search.extend(shown);
  assert.equal(search.hits.length, 5);
});

test("a line that goes on is looked at again", () => {
  const a = { name: "a" };
  const shown = [line(a, 1, "los"), line(a, 2, "loss")];
  a.open = shown[0];
  const search = new Search();
  search.start("loss", shown);
  assert.deepEqual(search.hits, [1]);
  shown[0].text = "loss 0.5";
  search.extend(shown);
  search.extend(shown);
  assert.deepEqual(search.hits, [0, 1]);
});

test("pieces cut the text at styles and marks and lose nothing", () => {
  assert.deepEqual(pieces("plain", null, ""), [["plain", "", false]]);
  assert.deepEqual(pieces("a loss b", [[0, 4, "fg1"]], "loss"), [
    ["a ", "fg1", false],
    ["lo", "fg1", true],
    ["ss", "", true],
    [" b", "", false],
  ]);
  assert.deepEqual(pieces("aaa", null, "a"), [["a", "", true], ["a", "", true], ["a", "", true]]);
  assert.equal(pieces("İx", null, "x").map(([text]) => text).join(""), "İx");
});
