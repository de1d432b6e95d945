// One rank's bytes become lines, whatever the borders of the pieces they arrive in.
//
// Lines are cut at the byte 10, which is never inside a UTF-8 character, so each line decodes by itself. A carriage
// return starts the line anew, as on a terminal: of a progress bar only its latest state is kept.

import { PLAIN, parse } from "./ansi.js";

const NEWLINE = 10;
const RETURN = 13;
export const LONGEST_LINE = 16 * 1024;
const PAST_MARKS = 1_000; // that are kept before they go, all at once
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

export class Stream {
  constructor(id, label = "", start = 0) {
    this.id = id;
    this.label = label;
    this.cursor = start;
    this.lineStart = start;
    this.marks = []; // [offset, Unix milliseconds], ascending
    this.mark = 0; // the one in force where the present line began
    this.skipping = start > 0; // begun in the middle: the first, broken line is left out
    this.style = PLAIN;
    this.segment = []; // byte pieces since the last newline or return
    this.length = 0;
    this.open = null; // the line not ended yet, already shown
  }

  addMarks(marks) {
    for (const mark of marks) {
      const last = this.marks.at(-1);
      if (!last || mark[0] > last[0]) this.marks.push(mark);
    }
  }

  /** Takes the bytes that begin at `offset`; gives the lines begun by them. False when bytes before them are missing. */
  push(bytes, offset) {
    if (offset > this.cursor) return false;
    const fresh = bytes.subarray(Math.min(this.cursor - offset, bytes.length));
    const begun = [];
    let from = 0;
    for (let i = 0; i < fresh.length; i++) {
      const byte = fresh[i];
      if (byte === NEWLINE || byte === RETURN) {
        this.#keep(fresh.subarray(from, i));
        if (this.length) this.#flush(begun);
        if (byte === NEWLINE) this.#end(begun, this.cursor + i + 1);
        from = i + 1;
      } else if (this.length + i - from >= LONGEST_LINE && this.#mayCut(byte, this.length + i - from)) {
        this.#keep(fresh.subarray(from, i));
        this.#flush(begun);
        this.#end(begun, this.cursor + i, true);
        from = i;
      }
    }
    this.#keep(fresh.subarray(from));
    this.cursor += fresh.length;
    if (this.length) this.#peek(begun);
    return begun;
  }

  /** Before the first byte of a character, or anywhere when this is no UTF-8 at all. */
  #mayCut(byte, length) {
    return (byte & 0xc0) !== 0x80 || length >= 2 * LONGEST_LINE;
  }

  #keep(piece) {
    if (!piece.length) return;
    this.segment.push(piece.slice()); // a copy: the view would keep its whole frame alive
    this.length += piece.length;
  }

  #bytes() {
    if (this.segment.length === 1) return this.segment[0];
    const all = new Uint8Array(this.length);
    let at = 0;
    for (const piece of this.segment) {
      all.set(piece, at);
      at += piece.length;
    }
    this.segment = [all];
    return all;
  }

  /** A whole segment: its text replaces what a return left behind. */
  #flush(begun) {
    const { text, spans, style } = parse(decoder.decode(this.#bytes()), this.style);
    this.style = style;
    this.#show(begun, text, spans);
    this.segment = [];
    this.length = 0;
  }

  /** The unfinished end of the stream, shown without its half characters. */
  #peek(begun) {
    const bytes = this.#bytes();
    const { text, spans } = parse(decoder.decode(bytes.subarray(0, wholeCharacters(bytes))), this.style);
    this.#show(begun, text, spans);
  }

  #show(begun, text, spans) {
    if (this.skipping) return;
    if (!this.open) {
      this.open = { stream: this, at: this.lineStart, time: this.#time(), text, spans, edition: 0 };
      begun.push(this.open);
    } else if (text !== this.open.text || spans || this.open.spans) {
      this.open.text = text;
      this.open.spans = spans;
      this.open.edition += 1;
    }
  }

  /** The line is over; the next one begins at `offset`, as a new one or as the rest of one that was too long. */
  #end(begun, offset, goesOn = false) {
    if (this.skipping) this.skipping = goesOn;
    else if (!this.open) this.#show(begun, "", null);
    this.open = null;
    this.lineStart = offset;
  }

  /** When the present line began: the last mark at or before its first byte. */
  #time() {
    while (this.mark + 1 < this.marks.length && this.marks[this.mark + 1][0] <= this.lineStart) this.mark += 1;
    if (this.mark > PAST_MARKS) {
      this.marks.splice(0, this.mark);
      this.mark = 0;
    }
    return this.marks[this.mark]?.[1] ?? 0;
  }
}

/** How many of the bytes are whole UTF-8 characters. */
export function wholeCharacters(bytes) {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) === 0x80) continue;
    const needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return needs > back ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}
