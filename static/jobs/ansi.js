// What a terminal would colour, and nothing else it would do. Output of jobs is hostile: links (OSC 8), clipboard
// (OSC 52), titles, cursor moves and direction overrides are dropped; what is left is text and a few class names.

const SUSPECT = /[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/;
const DEFAULT = Object.freeze({ fg: -1, bg: -1, bold: false, dim: false, italic: false, underline: false, inverse: false });
const BASIC = [
  [0, 0, 0], [170, 0, 0], [0, 170, 0], [170, 100, 0], [0, 0, 190], [170, 0, 170], [0, 160, 170], [170, 170, 170],
  [85, 85, 85], [255, 85, 85], [85, 255, 85], [255, 255, 85], [85, 85, 255], [255, 85, 255], [85, 255, 255], [255, 255, 255],
];

export const PLAIN = DEFAULT;

/** Text without control characters, its styled spans [start, end, class], and the style that goes on after it. */
export function parse(raw, style = DEFAULT) {
  if (style === DEFAULT && !SUSPECT.test(raw)) return { text: raw, spans: null, style };
  let text = "";
  const spans = [];
  let from = 0;
  const close = () => {
    const css = classes(style);
    if (css && text.length > from) spans.push([from, text.length, css]);
    from = text.length;
  };
  for (let i = 0; i < raw.length; i++) {
    const code = raw.charCodeAt(i);
    if (code === 0x1b || (code >= 0x80 && code <= 0x9f)) {
      const sequence = escape(raw, i, code);
      i = sequence.last;
      if (sequence.sgr !== undefined) {
        const next = restyle(style, sequence.sgr);
        if (next !== style) {
          close();
          style = next;
        }
      }
    } else if (!isControl(code)) {
      text += raw[i];
    }
  }
  close();
  return { text, spans: spans.length ? spans : null, style };
}

function isControl(code) {
  return (
    (code < 0x20 && code !== 0x09) || code === 0x7f || code === 0x200e || code === 0x200f ||
    (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)
  );
}

/** Where the escape sequence that begins at `i` ends; `sgr` has its parameters when it sets a style. */
function escape(raw, i, code) {
  let kind = code;
  if (code === 0x1b) {
    kind = raw.charCodeAt(++i);
    if (Number.isNaN(kind)) return { last: raw.length };
    if (kind >= 0x40 && kind <= 0x5f) kind += 0x40; // ESC [ is the two-byte form of 0x9b, and so on
  }
  if (kind === 0x9b) return control(raw, i + 1);
  if (kind === 0x90 || kind === 0x98 || (kind >= 0x9d && kind <= 0x9f)) return { last: stringEnd(raw, i + 1) };
  while (kind >= 0x20 && kind <= 0x2f && code === 0x1b) kind = raw.charCodeAt(++i); // e.g. ESC ( B
  return { last: i };
}

function control(raw, start) {
  for (let i = start; i < raw.length; i++) {
    const code = raw.charCodeAt(i);
    if (code >= 0x40 && code <= 0x7e) return { last: i, sgr: code === 0x6d ? raw.slice(start, i) : undefined };
    if (code < 0x20 || code > 0x3f) return { last: i - 1 }; // broken: the rest is text again
  }
  return { last: raw.length };
}

function stringEnd(raw, start) {
  for (let i = start; i < raw.length; i++) {
    const code = raw.charCodeAt(i);
    if (code === 0x07 || code === 0x9c) return i;
    if (code === 0x1b && raw[i + 1] === "\\") return i + 1;
  }
  return raw.length;
}

function restyle(style, parameters) {
  if (/[^0-9;:]/.test(parameters)) return style; // private sequences such as ESC [ > 4 m
  const codes = parameters.replaceAll(":", ";").split(";").map((part) => (part === "" ? 0 : Number(part)));
  let next = { ...style };
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 0) next = { ...DEFAULT };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 7) next.inverse = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code === 27) next.inverse = false;
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 39) next.fg = -1;
    else if (code === 49) next.bg = -1;
    else if (code === 38 || code === 48) {
      const [colour, used] = extended(codes, i + 1);
      if (colour >= 0) next[code === 38 ? "fg" : "bg"] = colour;
      i += used;
    }
  }
  return Object.keys(DEFAULT).every((key) => next[key] === DEFAULT[key]) ? DEFAULT : next;
}

/** 256 and true colours become the nearest of the sixteen, which are legible in both themes. */
function extended(codes, i) {
  if (codes[i] === 2) return [nearest(codes.slice(i + 1, i + 4)), 4];
  if (codes[i] !== 5) return [-1, 1];
  const index = codes[i + 1];
  if (!(index >= 0 && index <= 255)) return [-1, 2];
  if (index < 16) return [index, 2];
  if (index >= 232) return [nearest(Array(3).fill(8 + 10 * (index - 232))), 2];
  const level = (n) => (n ? 55 + 40 * n : 0);
  const cube = index - 16;
  return [nearest([level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6)]), 2];
}

function nearest(colour) {
  if (colour.length < 3 || colour.some((part) => !(part >= 0 && part <= 255))) return -1;
  const distance = (other) => other.reduce((sum, part, n) => sum + (part - colour[n]) ** 2, 0);
  let best = 0;
  for (let n = 1; n < BASIC.length; n++) if (distance(BASIC[n]) < distance(BASIC[best])) best = n;
  return best;
}

function classes(style) {
  if (style === DEFAULT) return "";
  const names = [];
  if (style.fg >= 0) names.push(`fg${style.fg}`);
  if (style.bg >= 0) names.push(`bg${style.bg}`);
  for (const flag of ["bold", "dim", "italic", "underline", "inverse"]) if (style[flag]) names.push(flag);
  return names.join(" ");
}
