// A list of any number of lines of which only those in sight are in the page.
//
// Scrolling is proportional: at the fraction p of the way, the line number p * n stands at the height p of the window.
// Lines of one height scroll as always; wrapped ones of unknown height need no measuring, and at both ends it is exact.

import { levelOf } from "./levels.js";
import { pieces } from "./search.js";

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** The part of an address that names a line: by its place in its rank's output, which never changes. */
export const anchorOf = (line) => `#line-${line.stream.id}-${line.at}`;

export class List {
  constructor(scroller, { onFollow }) {
    this.scroller = scroller;
    this.spacer = scroller.querySelector("[data-spacer]");
    this.window = scroller.querySelector("[data-window]"); // sticky: scrolling alone never shows a blank
    this.body = this.window.firstElementChild;
    this.lines = [];
    this.query = "";
    this.current = null;
    this.follow = true;
    this.onFollow = onFollow;
    this.rows = new Map();
    this.middle = 0;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.update()).observe(scroller);
  }

  setFollow(follow) {
    if (this.follow !== follow) {
      this.follow = follow;
      this.onFollow(follow);
    }
    if (follow) this.update();
  }

  #scrolled() {
    const atEnd = this.scroller.scrollTop >= this.#range() - 4;
    if (this.ours !== Math.round(this.scroller.scrollTop)) this.setFollow(atEnd);
    this.ours = -1;
    this.draw();
  }

  #range() {
    return Math.max(0, this.scroller.scrollHeight - this.scroller.clientHeight);
  }

  #scrollTo(position) {
    this.scroller.scrollTop = position;
    this.ours = Math.round(this.scroller.scrollTop);
  }

  /** Draws in the next frame, however often it is asked in this one. */
  update() {
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => {
      this.planned = 0;
      this.#resize();
      if (this.follow) this.#scrollTo(this.#range());
      this.draw();
    });
  }

  #resize() {
    this.lineHeight ??= parseFloat(getComputedStyle(this.body).lineHeight) || 20;
    const { clientHeight } = this.scroller;
    this.window.style.height = `${clientHeight}px`;
    this.spacer.style.height = `${Math.max(0, this.lines.length * this.lineHeight - clientHeight)}px`;
  }

  /** No more lines will come: a short log takes no more room than it needs. */
  settle() {
    const needed = Math.max(8, this.lines.length + 1) * (this.lineHeight ?? 20);
    if (needed < this.scroller.clientHeight) this.scroller.style.height = `${needed}px`;
  }

  /** Lines before the first were given up: what is in sight stays in sight. */
  shift(count) {
    if (!this.follow) this.#scrollTo(Math.max(0, this.scroller.scrollTop - count * this.lineHeight));
  }

  /** Scrolls so that line `index` is in sight, near the middle unless told otherwise. */
  show(index) {
    this.#resize();
    this.#scrollTo((index / Math.max(1, this.lines.length)) * this.#range());
    this.setFollow(false);
    this.draw();
  }

  draw() {
    const { clientHeight } = this.scroller;
    const count = this.lines.length;
    if (!this.lineHeight) return;
    const part = this.#range() ? Math.min(1, this.scroller.scrollTop / this.#range()) : 0;
    const position = Math.min(part * count, count);
    const anchor = Math.min(Math.floor(position), Math.max(0, count - 1));
    const screenful = Math.ceil(clientHeight / this.lineHeight) + 2;
    const first = Math.max(0, anchor - Math.ceil(screenful * part) - 1);
    const last = Math.min(count, anchor + Math.ceil(screenful * (1 - part)) + 1);
    this.#fill(first, last);
    // where the anchor really is, now that wrapped lines have their height
    const row = this.rows.get(this.lines[anchor]);
    const inside = row ? row.element.offsetTop + (position - anchor) * row.element.offsetHeight : 0;
    const place = this.#range() ? part * clientHeight - inside : 0;
    this.body.style.transform = `translateY(${place}px)`;
    this.middle = anchor;
  }

  #fill(first, last) {
    const wanted = new Map();
    let next = this.body.firstChild;
    for (let i = first; i < last; i++) {
      const line = this.lines[i];
      const section = this.#section(line, this.lines[i - 1]);
      const key = `${line.edition}|${this.query}|${line === this.current}|${section}`;
      let row = this.rows.get(line);
      if (!row || row.key !== key) {
        const element = this.#render(line, section);
        if (row) {
          if (row.element === next) next = next.nextSibling;
          row.element.remove();
        }
        row = { element, key };
      }
      if (row.element === next) next = next.nextSibling;
      else this.body.insertBefore(row.element, next);
      wanted.set(line, row);
    }
    for (const [line, row] of this.rows) if (!wanted.has(line)) row.element.remove();
    this.rows = wanted;
  }

  /** The title of what begins with this line: a later attempt. */
  #section(line, before) {
    return before && before.stream.attempt !== line.stream.attempt ? `Attempt ${line.stream.attempt}` : "";
  }

  #render(line, section) {
    const element = document.createElement("div");
    const level = line.spans ? "" : levelOf(line.text);
    element.className = `log-line${line === this.current ? " current" : ""}${level ? ` ${level}` : ""}`;
    if (section) element.dataset.section = section;
    const time = document.createElement("time");
    if (line.time) {
      const date = new Date(line.time);
      time.dateTime = date.toISOString();
      time.textContent = clock.format(date);
      time.title = full.format(date);
    }
    const label = document.createElement("span");
    label.className = `log-label tone${line.stream.tone ?? 0}`;
    label.textContent = line.stream.label;
    const text = document.createElement("span");
    text.className = "log-text";
    for (const [part, css, marked] of pieces(line.text, line.spans, this.query)) {
      const piece = marked || css ? document.createElement(marked ? "mark" : "span") : document.createTextNode(part);
      if (marked || css) {
        piece.textContent = part;
        if (css) piece.className = css;
      }
      text.append(piece);
    }
    const link = document.createElement("a");
    link.className = "log-link";
    link.href = anchorOf(line);
    link.tabIndex = -1; // the keyboard's way is the key l
    link.title = "Link to this line";
    link.append(time);
    element.append(link, label, text);
    return element;
  }
}
