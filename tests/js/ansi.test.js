import assert from "node:assert/strict";
import { test } from "node:test";

import { PLAIN, parse } from "../../static/jobs/ansi.js";

test("plain text stays as it is and costs no spans", () => {
  assert.deepEqual(parse("loss 0.5\tacc 0.9"), { text: "loss 0.5\tacc 0.9", spans: null, style: PLAIN });
});

test("colours and bold become spans, and end where they are reset", () => {
  const { text, spans, style } = parse("a \x1b[1;31mred\x1b[0m b");
  assert.equal(text, "a red b");
  assert.deepEqual(spans, [[2, 5, "fg1 bold"]]);
  assert.equal(style, PLAIN);
});

test("a style goes on in the next line", () => {
  const first = parse("\x1b[92mbegin");
  assert.deepEqual(parse("end", first.style).spans, [[0, 3, "fg10"]]);
});

test("256 and true colours become the nearest of the sixteen", () => {
  assert.deepEqual(parse("\x1b[38;5;196mx").spans, [[0, 1, "fg1"]]);
  assert.deepEqual(parse("\x1b[48;2;250;250;90mx").spans, [[0, 1, "bg11"]]);
  assert.deepEqual(parse("\x1b[38:5:9mx").spans, [[0, 1, "fg9"]]);
});

test("links, clipboard, titles, cursor moves and direction overrides leave only their text", () => {
  const attacks = {
    "\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07": "click",
    "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\": "click",
    "\x1b]52;c;ZXZpbA==\x07after": "after",
    "\x1b]0;title\x07after": "after",
    "\x1b[2J\x1b[Hclear": "clear",
    "\x1b[10A\x1b[Kup": "up",
    "\x1bPdevice\x1b\\after": "after",
    "\x1b^private\x1b\\after": "after",
    "\x1b_app\x07after": "after",
    "\x1b(Bafter": "after",
    "\x1bcafter": "after",
    "\x9b31mred": "red",
    "\x9d0;title\x9cafter": "after",
    "nul\x00 bell\x07 del\x7f": "nul bell del",
    "abc\u202edef\u2066ghi": "abcdefghi",
    "\x1b[>4;2mkeys": "keys",
  };
  for (const [raw, expected] of Object.entries(attacks)) assert.equal(parse(raw).text, expected, JSON.stringify(raw));
});

test("sequences that never end or are broken do not hide what follows for ever", () => {
  assert.equal(parse("before\x1b[31").text, "before");
  assert.equal(parse("before\x1b").text, "before");
  assert.equal(parse("a\x1b[3\x1b[1mb").text, "ab");
  assert.equal(parse("a\x1b[3éb").text, "aéb");
});

test("no input makes a control character, or a class that is not known", () => {
  let seed = 7;
  const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
  const alphabet = ["\x1b", "[", "]", "m", ";", "1", "38", "5", "\x07", "\\", "<script>", "\x9b", "x", "é", "\u202e", "P", ":", "\x00"];
  let style = PLAIN;
  for (let round = 0; round < 5000; round++) {
    const raw = Array.from({ length: random(20) }, () => alphabet[random(alphabet.length)]).join("");
    const result = parse(raw, style);
    style = result.style;
    assert.doesNotMatch(result.text, /[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e]/);
    for (const [start, end, css] of result.spans ?? []) {
      assert.ok(0 <= start && start < end && end <= result.text.length);
      assert.match(css, /^((fg|bg)\d+|bold|dim|italic|underline|inverse)( ((fg|bg)\d+|bold|dim|italic|underline|inverse))*$/);
    }
  }
});
