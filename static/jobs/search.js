// Which shown lines contain the words searched for.

export class Search {
  constructor() {
    this.query = "";
    this.hits = []; // indexes into the shown lines
    this.seen = 0; // shown lines looked at so far
    this.growing = []; // indexes of lines that had no hit yet but were not at their end
    this.current = -1; // index into hits
  }

  start(query, lines) {
    this.query = query.toLowerCase();
    this.restart(lines);
    this.current = -1;
  }

  /** After a filter changed or lines moved. */
  restart(lines) {
    const line = this.current >= 0 ? this.line : null;
    this.hits = [];
    this.seen = 0;
    this.growing = [];
    this.extend(lines);
    this.current = line ? this.hits.findIndex((hit) => lines[hit] === line) : -1;
  }

  /** Looks at the lines added since. */
  extend(lines) {
    if (this.query) {
      const again = this.growing;
      this.growing = [];
      for (const i of again) if (this.#test(lines[i], i)) this.#insert(i);
      for (let i = this.seen; i < lines.length; i++) if (this.#test(lines[i], i)) this.hits.push(i);
    }
    this.seen = lines.length;
  }

  #test(line, i) {
    if (line.text.toLowerCase().includes(this.query)) return true;
    if (line.stream.open === line) this.growing.push(i);
    return false;
  }

  #insert(i) {
    const at = this.hits.findIndex((hit) => hit > i);
    this.hits.splice(at < 0 ? this.hits.length : at, 0, i);
    if (at >= 0 && at <= this.current) this.current += 1;
  }

  /** Moves to the next hit (step 1) or the one before (step -1), from the line seen at `near` at first. */
  go(step, near, lines) {
    if (!this.hits.length) return -1;
    if (this.current < 0) {
      const after = this.hits.findIndex((hit) => hit >= near);
      this.current = after < 0 ? 0 : after;
    } else {
      this.current = (this.current + step + this.hits.length) % this.hits.length;
    }
    this.line = lines[this.hits[this.current]];
    return this.hits[this.current];
  }
}

/** Cuts text into [text, class, marked] pieces from its styled spans and the places where the query is. */
export function pieces(text, spans, query) {
  const cuts = [];
  for (const [start, end, css] of spans ?? []) cuts.push([start, end, css]);
  const marks = [];
  if (query) {
    const lower = text.toLowerCase();
    // a few letters change their length in lower case; then there is no way to say where they are
    if (lower.length === text.length) {
      for (let at = lower.indexOf(query); at >= 0; at = lower.indexOf(query, at + query.length)) marks.push([at, at + query.length]);
    }
  }
  if (!cuts.length && !marks.length) return [[text, "", false]];
  const borders = new Set([0, text.length]);
  for (const [start, end] of [...cuts, ...marks]) borders.add(start).add(end);
  const sorted = [...borders].sort((a, b) => a - b);
  const result = [];
  let cut = 0;
  let mark = 0;
  for (let i = 0; i + 1 < sorted.length; i++) {
    const [start, end] = [sorted[i], sorted[i + 1]];
    while (cut < cuts.length && cuts[cut][1] <= start) cut += 1;
    while (mark < marks.length && marks[mark][1] <= start) mark += 1;
    const css = cut < cuts.length && cuts[cut][0] <= start ? cuts[cut][2] : "";
    const marked = mark < marks.length && marks[mark][0] <= start;
    result.push([text.slice(start, end), css, marked]);
  }
  return result;
}
