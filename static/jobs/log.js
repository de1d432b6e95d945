// The live log of a job: the whole history first, then each line as it comes.
//
// The server sends pieces of bytes with their offsets and waits for acknowledgements; after a break the same cursors
// go on where they were, so nothing is missing and nothing comes twice.

import { levelOf } from "./levels.js";
import { List, anchorOf } from "./list.js";
import { Lines } from "./merge.js";
import { Search } from "./search.js";
import { Stream } from "./stream.js";

const FIRST_PAUSE = 500;
const SILENT_MS = 10_000; // until the first answer
const DEAD_MS = 40_000; // after it: the portal sends something every 15 s
const LONGEST_PAUSE = 15_000;
const HISTORY_LIMIT = 48 * 1024 * 1024; // of one stream; of longer ones the end is shown, the whole can be downloaded. data-history is less
const CURSORS_AT_ONCE = 100; // the server takes small messages only
const ACK_BYTES = 32 * 1024; // the server sends at most 256 KiB that are not acknowledged
const REFUSED = { 4403: "You may not see this log any more.", 4404: "This job is not there any more.", 4401: "You are signed out. Sign in and reload the page." };
const header = new TextDecoder();

class LogView {
  constructor(element) {
    this.element = element;
    this.history = Number(element.dataset.history ?? HISTORY_LIMIT);
    this.streams = new Map();
    this.lines = new Lines();
    this.search = new Search();
    this.pause = FIRST_PAUSE;
    this.received = 0;
    this.ended = false;
    const find = (name) => element.querySelector(`[data-log="${name}"]`);
    this.ui = Object.fromEntries(
      ["scroller", "status", "empty", "filter", "query", "count", "previous", "next", "follow", "wrap", "times", "end", "lines", "cut", "errors"].map((name) => [name, find(name)]),
    );
    const [, stream, at] = /^#line-(\d+)-(\d+)$/.exec(location.hash) ?? [];
    this.linked = stream === undefined ? null : { stream: Number(stream), at: Number(at), line: null };
    this.list = new List(this.ui.scroller, { onFollow: (follow) => this.#showFollow(follow) });
    this.list.lines = this.lines.shown;
    this.#listen();
    this.connect();
    setInterval(() => this.#check(), 2_000);
  }

  connect() {
    this.received = 0;
    this.acked = 0;
    const url = new URL(this.element.dataset.url, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url);
    this.socket = socket;
    this.heardAt = performance.now();
    this.patience = SILENT_MS;
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => {
      if (socket !== this.socket) return;
      this.heardAt = performance.now();
      if (typeof data === "string") this.#told(JSON.parse(data));
      else this.#bytes(data);
    };
    socket.onclose = ({ code }) => socket === this.socket && this.#closed(code);
  }

  /** Gives up a connection that is never answered, or that has died unnoticed; the browser alone would take minutes. */
  #check() {
    if (!this.socket || performance.now() - this.heardAt < this.patience) return;
    const dead = this.socket;
    this.#closed(0);
    dead.close();
  }

  #closed(code) {
    this.socket = null;
    if (this.ended) return;
    if (REFUSED[code]) {
      this.#status(REFUSED[code], "alert");
      return;
    }
    const wait = code === 4429 ? LONGEST_PAUSE : this.pause * (0.75 + Math.random() / 2);
    this.pause = Math.min(LONGEST_PAUSE, this.pause * 2);
    this.#status(code === 4429 ? "Too many logs are open. Close some tabs; trying again…" : "Connection lost. Reconnecting…", "wait");
    setTimeout(() => this.connect(), wait);
  }

  #told(message) {
    if (message.type === "streams") this.#know(message.streams);
    if (message.type === "idle") {
      this.#showLinked();
      this.#showEmpty(message.finished);
      if (message.finished) {
        this.#status("Job ended", "done");
        this.list.settle();
      }
    }
    if (message.type === "end") {
      this.ended = true;
      this.#status("Complete", "done");
      this.#showEmpty(true);
      this.socket.close(1000);
    }
  }

  /** Which streams there are. Known ones go on at their cursors, new ones begin, very long ones near their end. */
  #know(streams) {
    this.pause = FIRST_PAUSE;
    this.patience = DEAD_MS;
    this.#status("Live", "live");
    const cursors = {};
    for (const { id, label, attempt, size } of streams) {
      let stream = this.streams.get(id);
      if (!stream) {
        const start = this.#startOf(id, size);
        stream = Object.assign(new Stream(id, label, start), { attempt, tone: this.streams.size % 6 });
        this.streams.set(id, stream);
        this.ui.cut.hidden &&= start === 0;
      }
      cursors[id] = stream.cursor;
    }
    this.#showFilter();
    const begun = Object.entries(cursors).filter(([, cursor]) => cursor > 0);
    for (let i = 0; i === 0 || i < begun.length; i += CURSORS_AT_ONCE) {
      const some = Object.fromEntries(begun.slice(i, i + CURSORS_AT_ONCE));
      this.socket.send(JSON.stringify({ type: "read", cursors: some, more: i + CURSORS_AT_ONCE < begun.length }));
    }
  }

  #bytes(data) {
    const view = new DataView(data);
    const length = view.getUint32(0);
    const { s: id, o: offset, m: marks } = JSON.parse(header.decode(new Uint8Array(data, 4, length)));
    const bytes = new Uint8Array(data, 4 + length);
    const stream = this.streams.get(id);
    this.received += bytes.length;
    if (this.received - this.acked >= ACK_BYTES) {
      this.acked = this.received;
      this.socket.send(JSON.stringify({ type: "ack", bytes: this.received }));
    }
    if (!stream) return;
    stream.addMarks(marks);
    const begun = stream.push(bytes, offset);
    if (begun === false) {
      this.socket.close(4000); // bytes are missing: ask again from the cursor
      return;
    }
    this.#add(begun);
  }

  /** Where a stream begins here: near its end, but not after a line to which the address links (one byte earlier: a
      stream that begins in the middle leaves out its first line). */
  #startOf(id, size) {
    const start = Math.max(0, size - this.history);
    const { stream, at } = this.linked ?? {};
    return stream === id && at < start && size - at <= 4 * HISTORY_LIMIT ? Math.max(0, at - 1) : start;
  }

  #showLinked() {
    if (!this.linked) return;
    const index = this.linked.line ? this.lines.shown.indexOf(this.linked.line) : -1;
    this.linked = null;
    if (index >= 0) this.#show(index);
  }

  #show(index) {
    this.list.current = this.lines.shown[index];
    this.list.show(index);
    this.#changed();
  }

  /** Shows the next line (step 1) or the one before (step -1) that is an error. */
  #findError(step) {
    const lines = this.lines.shown;
    const from = lines.indexOf(this.list.current);
    const near = from >= 0 ? from : step > 0 ? -1 : lines.length;
    for (let i = near + step; i >= 0 && i < lines.length; i += step) {
      if (levelOf(lines[i].text) === "error") return this.#show(i);
    }
    return undefined;
  }

  /** Puts the address of the line that is marked, or of the one in the middle, into the address bar. */
  #link() {
    const line = this.list.current ?? this.lines.shown[this.list.middle];
    if (!line) return;
    history.replaceState(history.state, "", anchorOf(line));
    this.list.current = line;
    this.#changed();
  }

  #add(begun) {
    if (this.linked) this.linked.line ??= begun.find((line) => line.at === this.linked.at && line.stream.id === this.linked.stream) ?? null;
    const before = this.lines.dropped;
    const whole = this.lines.add(begun);
    if (this.lines.dropped > before) {
      this.list.shift(this.lines.dropped - before);
      this.ui.cut.hidden = false;
    }
    if (this.ui.errors.hidden) this.ui.errors.hidden = !begun.some((line) => levelOf(line.text) === "error");
    this.list.lines = this.lines.shown;
    if (whole) this.search.extend(this.lines.shown);
    else this.search.restart(this.lines.shown);
    this.#changed();
  }

  #changed() {
    this.ui.empty.hidden = this.lines.shown.length > 0;
    this.ui.lines.textContent = `${this.lines.shown.length.toLocaleString("en")} ${this.lines.shown.length === 1 ? "line" : "lines"}`;
    if (this.search.query) {
      const { hits, current } = this.search;
      this.ui.count.textContent = hits.length ? `${current < 0 ? "" : `${current + 1} of `}${hits.length.toLocaleString("en")}` : "none";
    } else {
      this.ui.count.textContent = "";
    }
    this.ui.previous.disabled = this.ui.next.disabled = !this.search.hits.length;
    this.list.update();
  }

  #status(text, kind) {
    if (this.ui.status.textContent !== text) this.ui.status.textContent = text;
    this.ui.status.dataset.kind = kind;
  }

  #showEmpty(finished) {
    const none = "removed" in this.element.dataset ? "A rule has removed this log." : "This job printed nothing.";
    this.ui.empty.textContent = finished ? none : "Nothing written yet. Lines appear here as they come.";
    this.#changed();
  }

  #showFollow(follow) {
    this.ui.follow.setAttribute("aria-pressed", String(follow));
    this.ui.end.hidden = follow;
  }

  #showFilter() {
    const several = new Set([...this.streams.values()].map((stream) => stream.attempt)).size > 1;
    this.element.classList.toggle("one-stream", this.streams.size < 2);
    this.ui.filter.hidden = this.streams.size < 2;
    if (this.ui.filter.options.length === this.streams.size + (several ? 1 : 0) + 1) return;
    const chosen = this.ui.filter.value;
    const option = (value, text) => new Option(text, value, false, value === chosen);
    const latest = Math.max(...[...this.streams.values()].map((stream) => stream.attempt));
    const options = [option("", "Everything")];
    if (several) options.push(option(`attempt ${latest}`, `Attempt ${latest} only`));
    for (const stream of this.streams.values()) {
      options.push(option(String(stream.id), several ? `Attempt ${stream.attempt}: ${stream.label}` : stream.label));
    }
    this.ui.filter.replaceChildren(...options);
  }

  #filter(value) {
    const attempt = value.startsWith("attempt ") ? Number(value.slice(8)) : 0;
    if (attempt) this.lines.keep((line) => line.stream.attempt === attempt);
    else this.lines.keep(value ? (line) => String(line.stream.id) === value : null);
    this.list.lines = this.lines.shown;
    this.search.restart(this.lines.shown);
    this.#changed();
  }

  #find(step) {
    const hit = this.search.go(step, this.list.follow ? this.lines.shown.length : this.list.middle, this.lines.shown);
    if (hit >= 0) this.#show(hit);
  }

  #listen() {
    const { ui } = this;
    let typing = 0;
    ui.query.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => {
        this.search.start(ui.query.value, this.lines.shown);
        this.list.query = this.search.query;
        this.list.current = null;
        this.#changed();
      }, 120);
    });
    ui.query.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        this.#find(event.shiftKey ? -1 : 1);
      }
      if (event.key === "Escape") {
        ui.query.value = "";
        ui.query.dispatchEvent(new Event("input"));
        ui.scroller.focus();
      }
    });
    ui.scroller.addEventListener("click", (event) => {
      const link = event.target.closest(".log-link");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.list.current = this.lines.shown.find((line) => anchorOf(line) === link.hash) ?? null;
      history.replaceState(history.state, "", link.hash);
      this.list.setFollow(false);
      this.#changed();
    });
    ui.errors.addEventListener("click", () => this.#findError(1));
    ui.previous.addEventListener("click", () => this.#find(-1));
    ui.next.addEventListener("click", () => this.#find(1));
    ui.filter.addEventListener("change", () => this.#filter(ui.filter.value));
    ui.follow.addEventListener("click", () => this.list.setFollow(!this.list.follow));
    ui.end.addEventListener("click", () => this.list.setFollow(true));
    for (const [button, name] of [[ui.wrap, "wrapped"], [ui.times, "timed"]]) {
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", String(this.element.classList.toggle(name)));
        this.list.update();
      });
    }
    ui.scroller.addEventListener("keydown", (event) => {
      const act = { "/": () => ui.query.focus(), End: () => this.list.setFollow(true), n: () => this.#find(1), N: () => this.#find(-1), w: () => ui.wrap.click(), t: () => ui.times.click(), f: () => ui.follow.click(), e: () => this.#findError(1), E: () => this.#findError(-1), l: () => this.#link() }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
  }
}

for (const element of document.querySelectorAll("[data-log-view]")) new LogView(element);
