import assert from "node:assert/strict";
import { test } from "node:test";

import { LONGEST_LINE, Stream, wholeCharacters } from "../../static/jobs/stream.js";

const encode = (text) => new TextEncoder().encode(text);

/** Feeds the bytes in pieces cut at the given places. */
function feed(bytes, cuts = [], stream = new Stream(1)) {
  const lines = [];
  const borders = [0, ...cuts, bytes.length];
  for (let i = 0; i + 1 < borders.length; i++) lines.push(...stream.push(bytes.subarray(borders[i], borders[i + 1]), borders[i]));
  return lines;
}
const texts = (lines) => lines.map((line) => line.text);

test("lines come out whole, the unfinished one too", () => {
  assert.deepEqual(texts(feed(encode("one\ntwo\n\nthree"))), ["one", "two", "", "three"]);
});

test("every way of cutting gives the same lines", () => {
  const bytes = encode("Übung 🎉 \x1b[31mrot\x1b[0m\r\n10%\r50%\r100% 猫\nnaïve\n");
  const whole = feed(bytes).map(({ text, spans }) => ({ text, spans }));
  assert.deepEqual(whole.map(({ text }) => text), ["Übung 🎉 rot", "100% 猫", "naïve"]);
  for (let first = 0; first <= bytes.length; first++) {
    for (let second = first; second <= bytes.length; second += 3) {
      assert.deepEqual(feed(bytes, [first, second]).map(({ text, spans }) => ({ text, spans })), whole);
    }
  }
});

test("a progress bar is one line that changes", () => {
  const stream = new Stream(1);
  const [line] = stream.push(encode("\r10%"), 0);
  assert.equal(line.text, "10%");
  assert.deepEqual(stream.push(encode("\r20%"), 4), []);
  assert.equal(line.text, "20%");
  assert.equal(line.edition, 1);
  assert.deepEqual(texts(stream.push(encode("\r30%\nnext"), 8)), ["next"]);
  assert.equal(line.text, "30%");
});

test("half a character waits for its other half", () => {
  const stream = new Stream(1);
  const cat = encode("猫");
  const [line] = stream.push(cat.subarray(0, 2), 0);
  assert.equal(line.text, "");
  stream.push(cat.subarray(2), 2);
  assert.equal(line.text, "猫");
});

test("bytes that are no UTF-8 are shown as such and end nothing", () => {
  assert.deepEqual(texts(feed(new Uint8Array([0x61, 0xff, 0xfe, 0x0a, 0x62]))), ["a\ufffd\ufffd", "b"]);
});

test("what comes twice is taken once, and what is missing is noticed", () => {
  const stream = new Stream(1);
  const bytes = encode("one\ntwo\n");
  stream.push(bytes.subarray(0, 5), 0);
  assert.deepEqual(texts(stream.push(bytes, 0)), []);
  assert.equal(stream.cursor, 8);
  assert.equal(stream.push(encode("x"), 9), false);
});

test("a line without end is cut into pieces, between characters", () => {
  const lines = feed(encode("é".repeat(LONGEST_LINE)));
  assert.equal(lines.length, 2);
  assert.equal(texts(lines).join(""), "é".repeat(LONGEST_LINE));
  assert.deepEqual(texts(feed(encode(`${"a".repeat(LONGEST_LINE)}\nb\n`))), ["a".repeat(LONGEST_LINE), "b"]);
  const garbage = feed(new Uint8Array(5 * LONGEST_LINE).fill(0x80));
  assert.ok(garbage.every((line) => line.text.length <= 2 * LONGEST_LINE));
});

test("marks of lines that are over are not kept", () => {
  const stream = new Stream(1);
  const times = [];
  for (let number = 0; number < 20_000; number++) {
    stream.addMarks([[2 * number, 1_000 + number]]);
    for (const line of stream.push(encode("x\n"), 2 * number)) times.push(line.time);
  }
  assert.deepEqual(times, Array.from({ length: 20_000 }, (_, number) => 1_000 + number));
  assert.ok(stream.marks.length < 2_000);
});

test("a line has the time of the last mark before it", () => {
  const stream = new Stream(1);
  stream.addMarks([[0, 1000], [8, 2000]]);
  stream.addMarks([[8, 2000], [12, 3000]]);
  const lines = stream.push(encode("one\ntwo\nthree\nfour\n"), 0);
  assert.deepEqual(lines.map((line) => line.time), [1000, 1000, 2000, 3000]);
});

test("begun in the middle, the first broken line is left out", () => {
  const stream = new Stream(1, "", 100);
  assert.deepEqual(texts(stream.push(encode("oken\nwhole\n"), 100)), ["whole"]);
});

test("whole characters are counted at any cut", () => {
  assert.equal(wholeCharacters(encode("aé").subarray(0, 2)), 1);
  assert.equal(wholeCharacters(encode("🎉").subarray(0, 3)), 0);
  assert.equal(wholeCharacters(encode("🎉")), 4);
  assert.equal(wholeCharacters(new Uint8Array([0x80, 0x80, 0x80, 0x80])), 4);
});
