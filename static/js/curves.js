// Makes the line charts of a page interactive. Without this script they are pictures with a table, made by portal/charts.py.
//
// <figure data-plot> brings its values as JSON beside its picture. <section data-curves="..." data-live="job-5"> fetches them
// from there, and what came since whenever live.js hints at the job, into the plots that are there: nothing is replaced, so
// zoom and choices stay. htmx may replace figures: what the reader chose is carried over by title, and plots of figures that
// are gone are destroyed.

import { Plot, plots } from "./plot.js";

const MAX_POINTS = 4_000; // of a curve, until the server is asked for fewer
const MAX_ROWS = 200;
const MAX_TITLES = 24;
const AXES = { step: "Step", time: "Time", relative: "Time since start" };

// --- figures with their values

function embedded(figure) {
  const given = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
  if (given.kind === "day" || given.x.length < 2) return null;
  const axis = given.kind;
  return {
    title: figure.dataset.plot,
    unit: given.unit,
    range: given.range,
    step: given.step,
    bridge: given.bridge,
    axes: [axis],
    series: given.series.map((one) => ({ name: one.name, tone: one.tone, values: one.values, xs: { [axis]: given.x } })),
    marks: given.marks.map((mark) => ({ x: mark.x, time: mark.x, text: mark.text })),
  };
}

function enhance(root = document) {
  const gone = [...plots].filter((plot) => !plot.figure.isConnected);
  for (const figure of root.querySelectorAll("figure[data-plot]:not(.plotted)")) {
    if (figure.closest("[data-curves]")) continue;
    const model = embedded(figure);
    const before = gone.find((plot) => plot.model.title === figure.dataset.plot);
    if (model) new Plot(figure, model, before ? { ...before.state(), hasFocus: before === focused } : {});
  }
  gone.forEach((plot) => plot.destroy());
}

let focused = null;
document.addEventListener("htmx:beforeSwap", () => (focused = [...plots].find((plot) => plot.hasFocus) ?? null));
document.addEventListener("htmx:afterSwap", () => enhance());

// --- sections that fetch

class Section {
  constructor(root) {
    this.root = root;
    this.body = root.querySelector(".plots");
    this.jobs = new Map(); // by number: label, start, lastPoint, lines by name
    this.figures = new Map(); // by title
    this.choices = { axis: "step", weight: Number(root.dataset.smoothing ?? 0) };
    this.isFetching = false;
    this.isOutdated = false;
    this.topics = root.dataset.live?.split(" ") ?? [];
    this.hinted = () => this.fetch();
    for (const topic of this.topics) document.addEventListener(`live-${topic}`, this.hinted);
    for (const figure of this.body.querySelectorAll("figure[data-plot]")) this.figures.set(figure.dataset.plot, { figure });
    this.addTools();
    this.fetch();
  }

  addTools() {
    const tools = document.createElement("div");
    tools.className = "plot-choices";
    const axes = document.createElement("select");
    for (const [value, text] of Object.entries(AXES)) axes.add(new Option(text, value));
    axes.addEventListener("change", () => this.choose({ axis: axes.value }));
    const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: 0.99, step: 0.01 });
    slider.value = this.choices.weight;
    const amount = document.createElement("output");
    const show = () => (amount.textContent = slider.value === "0" ? "off" : Number(slider.value).toFixed(2));
    slider.addEventListener("input", () => {
      show();
      this.choose({ weight: Number(slider.value) });
    });
    show();
    tools.append(labelled("Horizontal axis", axes), labelled("Smoothing", slider, amount));
    this.body.before(tools);
  }

  choose(changes) {
    Object.assign(this.choices, changes);
    for (const { plot } of this.figures.values()) plot?.set(changes);
  }

  /** Fetch what came; a hint meanwhile is followed by another look. After an error, the next hint tries again. */
  async fetch() {
    this.isOutdated = this.isFetching;
    if (this.isFetching) return;
    this.isFetching = true;
    try {
      if (!(await this.load())) this.stop();
    } catch {
      // the portal may be restarting
    }
    this.isFetching = false;
    if (this.isOutdated) this.fetch();
  }

  stop() {
    for (const topic of this.topics) document.removeEventListener(`live-${topic}`, this.hinted);
    delete this.root.dataset.live;
    this.isOutdated = false;
  }

  /** Load what came since the last time; false when no more will come. */
  async load() {
    const address = new URL(this.root.dataset.curves, location.href);
    for (const [job, { lastPoint }] of this.jobs) address.searchParams.append("after", `${job}:${lastPoint}`);
    const response = await fetch(address, { headers: { Accept: "application/json" } });
    if (response.redirected || response.status === 403 || response.status === 404) return false; // signed out, or no longer theirs
    if (!response.ok) throw new Error(`status ${response.status}`);
    const answer = await response.json();
    if (!this.root.isConnected) return false;
    if (this.take(answer)) return answer.live;
    this.jobs.clear();
    return this.load();
  }

  /** Take an answer; false when everything has to be fetched: a curve went back to earlier steps, or has become long. */
  take(answer) {
    const about = new Map(answer.jobs.map((each) => [each.job, each]));
    if (answer.complete) this.jobs = new Map(answer.jobs.map((each) => [each.job, { ...each, lastPoint: 0, lines: new Map() }]));
    let isWhole = true;
    const changed = new Set();
    for (const { job, last_point: lastPoint, lines } of answer.curves) {
      const held = this.jobs.get(job);
      held.lastPoint = lastPoint;
      held.start = about.get(job)?.start ?? held.start;
      for (const [name, line] of Object.entries(lines)) {
        changed.add(name);
        const before = held.lines.get(name);
        if (!before || answer.complete) held.lines.set(name, line);
        else isWhole = append(before, line) && isWhole;
      }
    }
    if (isWhole) this.show(answer.complete ? this.names() : [...changed], answer.marks);
    return isWhole;
  }

  names() {
    return [...new Set([...this.jobs.values()].flatMap((job) => [...job.lines.keys()]))];
  }

  show(names, marks) {
    for (const name of names) {
      const model = this.model(name, marks);
      const held = this.figures.get(name) ?? this.addFigure(name);
      if (!held || !model.series.length) continue;
      if (held.plot) {
        held.plot.update(model);
        held.figure.querySelectorAll(":scope > .chart-picture").forEach((picture) => picture.remove()); // it is outdated
        if (held.table.open) fillTable(held.table, held.plot);
      } else {
        this.root.hidden = false;
        held.figure.querySelector("figcaption > p")?.remove(); // about the points of the picture
        held.plot = new Plot(held.figure, model, this.choices);
        held.table = held.figure.querySelector("details");
        held.table.addEventListener("toggle", () => held.table.open && fillTable(held.table, held.plot));
      }
    }
  }

  model(name, marks) {
    const series = [...this.jobs.values()].flatMap((job, index) => {
      const line = job.lines.get(name);
      if (!line?.values.length) return [];
      const start = startOf(job);
      const xs = { step: line.steps, time: line.times, relative: line.times.map((time) => time - start) };
      return [{ name: job.label, tone: `data-${(index % 8) + 1}`, dash: index, values: line.values, breaks: line.breaks, xs }];
    });
    return { title: name, unit: "", range: null, step: false, bridge: false, axes: Object.keys(AXES), series, marks, isNamed: this.jobs.size > 1 };
  }

  /** A figure for a metric that came after the page. */
  addFigure(name) {
    if (this.figures.size >= MAX_TITLES) return null;
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    const title = document.createElement("h3");
    title.textContent = name;
    caption.append(title);
    const table = document.createElement("details");
    table.className = "chart-numbers";
    const summary = document.createElement("summary");
    summary.textContent = "Numbers";
    table.append(summary);
    figure.append(caption, table);
    this.body.append(figure);
    const held = { figure };
    this.figures.set(name, held);
    return held;
  }
}

/** When a job started, in seconds; its first point if that is earlier: the clocks of two machines differ. */
function startOf(job) {
  const started = Date.parse(job.start) / 1000;
  return Math.min(...(Number.isNaN(started) ? [] : [started]), ...[...job.lines.values()].map((line) => line.times[0]));
}

function labelled(text, control, ...more) {
  const label = document.createElement("label");
  const words = document.createElement("span");
  words.textContent = text;
  label.append(words, control, ...more);
  return label;
}

function append(line, more) {
  const last = line.steps[line.steps.length - 1];
  if (more.steps[0] <= last || line.steps.length + more.steps.length > MAX_POINTS) return false;
  line.steps.push(...more.steps);
  line.times.push(...more.times);
  line.values.push(...more.values);
  return true;
}

/** Write the points of a plot as a table, at most so many rows of them. */
function fillTable(details, plot) {
  const [xs, ...columns] = plot.data;
  const every = Math.ceil(xs.length / MAX_ROWS);
  const wrap = document.createElement("div");
  wrap.className = "table-wrap";
  wrap.tabIndex = 0;
  wrap.setAttribute("role", "region");
  wrap.setAttribute("aria-label", `Numbers of ${plot.model.title}`);
  const table = wrap.appendChild(document.createElement("table"));
  const head = table.createTHead().insertRow();
  for (const text of [AXES[plot.axis], ...plot.model.series.map((one) => one.name)]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = text;
    head.append(cell);
  }
  const body = table.createTBody();
  const smoothed = plot.perSeries;
  for (let place = 0; place < xs.length; place += 1) {
    if (place % every && place !== xs.length - 1) continue;
    const row = body.insertRow();
    const cell = document.createElement("th");
    cell.scope = "row";
    cell.textContent = plot.positionAt(xs[place]);
    row.append(cell);
    for (let index = smoothed - 1; index < columns.length; index += smoothed) {
      row.insertCell().textContent = plot.valueText(columns[index][place]);
    }
  }
  details.querySelector(".table-wrap")?.remove();
  details.append(wrap);
}

enhance();
for (const root of document.querySelectorAll("[data-curves]")) new Section(root);
