// One interactive chart: uPlot in a figure of portal/charts.py, with a legend that toggles, zoom, a log scale and the keyboard.
// uPlot comes as a script of its own (static/vendor/), loaded before this module.

import { colour, onChange } from "./colours.js";
import { at, duration, needsLog, number, ranges, smooth, table, tickLabels, timeLabel } from "./curve_math.js";

const HEIGHT = 260; // pixels
const DASHES = [[], [7, 4], [2, 4], [10, 4, 2, 4]]; // as in charts.css
const FONT = "12px Inter, system-ui, sans-serif";
const SVG = "http://www.w3.org/2000/svg";
const AXES = { step: "Step", time: "Time", relative: "Time since start", number: "" };
const SECONDS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
const NEAR = 40; // pixels from the cursor to a point whose value is shown

const exact = new Intl.DateTimeFormat(undefined, {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
});
const zone = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts().find((part) => part.type === "timeZoneName").value;

export const plots = new Set();

onChange(() => plots.forEach((plot) => plot.repaint()));

// --- small parts of the page

function element(name, css, text = "") {
  const made = document.createElement(name);
  made.className = css;
  if (text) made.textContent = text;
  return made;
}

function button(text, css = "button small quiet") {
  const made = element("button", css, text);
  made.type = "button";
  return made;
}

function swatch(tone, dash) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", "0 0 28 12");
  picture.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("class", `line tone-${tone} dash-${dash}`);
  line.setAttribute("d", "M1 6H27");
  picture.append(line);
  return picture;
}

/**
 * `model` has title, unit, axes (which of AXES), series [{name, tone, xs: {axis: [...]}, values, breaks}], marks
 * [{time, text}], range (or null), step. `state` is what the reader chose; see `state()`.
 */
export class Plot {
  constructor(figure, model, state = {}) {
    Object.assign(this, { figure, model });
    this.axis = model.axes.includes(state.axis) ? state.axis : model.axes[0];
    this.weight = state.weight ?? 0;
    this.hidden = new Set(state.hidden ?? []);
    this.isLog = state.isLog ?? (!model.range && needsLog(model.series.map((one) => one.values)));
    this.showsAll = state.showsAll ?? false;
    this.window = state.window ?? null;
    this.build();
    this.observer = new ResizeObserver(([entry]) => this.resize(entry.contentRect.width));
    this.observer.observe(this.root);
    figure.classList.add("plotted");
    plots.add(this);
    this.draw();
    if (state.hasFocus) this.root.focus({ preventScroll: true });
  }

  /** What the reader chose, for the plot that replaces this one. */
  state() {
    const { axis, weight, isLog, showsAll, window } = this;
    return { axis, weight, isLog, showsAll, window, hidden: [...this.hidden], hasFocus: this.hasFocus };
  }

  build() {
    const caption = this.figure.querySelector("figcaption");
    caption.querySelector(".chart-legend")?.remove();
    this.readout = element("p", "plot-readout");
    this.legend = element("ul", "chart-legend");
    this.tools = element("div", "plot-tools");
    this.logButton = button("Log scale");
    this.allButton = button("Show all values");
    this.resetButton = button("Reset zoom");
    this.logButton.addEventListener("click", () => this.set({ isLog: !this.isLog }));
    this.allButton.addEventListener("click", () => this.set({ showsAll: !this.showsAll }));
    this.resetButton.addEventListener("click", () => this.zoom(null));
    this.allButton.title = "A few values lie far from all others. The axis leaves them out, so that the rest is not flattened.";
    this.tools.append(this.resetButton, this.allButton, this.logButton);
    this.logButton.hidden = Boolean(this.model.range);
    this.resetButton.hidden = this.allButton.hidden = true;
    this.root = element("div", "plot");
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "application");
    this.root.setAttribute("aria-roledescription", "chart");
    this.root.setAttribute(
      "aria-label",
      `${this.model.title}. The arrow keys read the values, plus and minus zoom, Escape shows everything. The same numbers are in the table below.`,
    );
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.spoken = element("p", "visually-hidden");
    this.spoken.setAttribute("aria-live", "polite");
    caption.querySelector("h3").after(this.tools);
    caption.append(this.readout, this.legend);
    caption.after(this.root, this.spoken);
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.plot = null;
    plots.delete(this);
  }

  get hasFocus() {
    return this.root === document.activeElement;
  }

  /** Change what the reader chose: axis, weight of the smoothing, isLog, showsAll. */
  set(changes) {
    if ("axis" in changes && changes.axis !== this.axis) this.window = null;
    Object.assign(this, changes);
    this.draw();
  }

  /** Draw other values of the same series, or other series; zoom and choices stay. */
  update(model) {
    const names = (one) => one.series.map((series) => series.name).join("\n");
    const isSame = names(model) === names(this.model) && this.plot;
    this.model = model;
    if (!isSame) return this.draw();
    this.data = this.tables();
    this.plot.setData(this.data, false);
    const [first, last] = this.ends();
    this.plot.setScale("x", this.window ?? { min: first, max: last });
    this.showValues();
  }

  resize(width) {
    if (this.plot && width > 0 && Math.abs(width - this.plot.width) > 0.5) this.plot.setSize({ width, height: HEIGHT });
  }

  repaint() {
    this.plot?.redraw(false);
    this.showLegend();
  }

  ends() {
    const xs = this.data[0];
    const [first, last] = xs.length ? [xs[0], xs[xs.length - 1]] : [0, 1];
    return last > first ? [first, last] : [first - 0.5, last + 0.5];
  }

  zoom(window) {
    const [first, last] = this.ends();
    const { min, max } = window ?? { min: first, max: last };
    this.plot.setScale("x", { min: Math.max(first, min), max: Math.min(last, max) });
  }

  /** For each series its values, and the smoothed ones if they are; all over one x. */
  tables() {
    const gaps = this.axis !== "step";
    const found = this.model.series.map((one) => {
      const [xs, values] = table(one.xs[this.axis], one.values, one.breaks ?? [], gaps);
      const shown = this.isLog ? values.map((value) => (value > 0 ? value : null)) : values;
      return this.weight ? [xs, shown, smooth(shown, this.weight)] : [xs, shown];
    });
    return found.length === 1 ? found[0] : uPlot.join(found);
  }

  get perSeries() {
    return this.weight ? 2 : 1;
  }

  draw() {
    const { model } = this;
    const { window } = this;
    this.plot?.destroy();
    this.plot = null;
    this.data = this.tables();
    const isTime = this.axis === "time";
    const series = model.series.flatMap((one, index) => this.lines(one, index));
    const width = this.root.clientWidth || 600;
    const options = {
      width,
      height: HEIGHT,
      padding: [8, null, null, 0],
      legend: { show: false },
      scales: {
        x: { time: isTime, range: (_, min, max) => (max > min ? [min, max] : [min - 0.5, max + 0.5]) },
        y: { distr: this.isLog ? 3 : 1, range: (plot) => this.valueRange(plot) },
      },
      axes: [this.xAxis(isTime), this.yAxis()],
      series: [{}, ...series],
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: true },
        hover: { prox: (plot, index) => this.reach(plot, index) },
        points: {
          size: (_, index) => (this.isRaw(index) ? 0 : 7),
          width: (_, index) => (this.isRaw(index) ? 0 : 2),
          stroke: (_, index) => this.colourOf(index),
          fill: () => colour("plot-surface"),
        },
        sync: { key: `curves-${this.axis}`, scales: ["x", null], setSeries: false },
      },
      hooks: {
        draw: [(plot) => this.drawMarks(plot), () => this.showTools()],
        setCursor: [() => this.showValues()],
        setScale: [(plot, key) => key === "x" && this.onZoom(plot)],
      },
    };
    this.plot = new uPlot(options, this.data, this.root);
    if (window) this.zoom(window);
    this.showLegend();
  }

  lines(one, index) {
    const dash = DASHES[(one.dash ?? index) % DASHES.length];
    const show = !this.hidden.has(one.name);
    const paths = this.model.step ? uPlot.paths.stepped({ align: 1 }) : undefined;
    const line = { show, stroke: () => colour(`tone-${one.tone}`), width: 2, dash, paths, spanGaps: Boolean(this.model.bridge) };
    if (!this.weight) return [line];
    return [{ ...line, alpha: 0.25, width: 1, dash: [], points: { show: false } }, line];
  }

  seriesOf(index) {
    return this.model.series[Math.floor((index - 1) / this.perSeries)];
  }

  /** Whether it is the faint line behind a smoothed one. */
  isRaw(index) {
    return this.weight > 0 && index % 2 === 1;
  }

  colourOf(index) {
    return colour(`tone-${this.seriesOf(index).tone}`);
  }

  /** How many pixels a point may be from the cursor to be shown: as many as points are apart, and not few. */
  reach(plot, index) {
    const xs = this.seriesOf(index).xs[this.axis];
    const apart = (plot.valToPos(xs[xs.length - 1], "x") - plot.valToPos(xs[0], "x")) / (xs.length - 1 || 1);
    return Math.max(NEAR, Math.abs(apart));
  }

  xAxis(isTime) {
    const name = isTime ? `Time (${zone})` : AXES[this.axis];
    const labels = {
      time: (_, ticks, __, ___, step) => ticks.map((tick) => timeLabel(tick, step)),
      relative: (_, ticks) => ticks.map((tick) => duration(tick)),
    };
    return {
      ...this.look(),
      label: name || undefined,
      labelSize: name ? 18 : 0,
      size: 28,
      space: this.axis === "step" ? 60 : 72,
      incrs: this.axis === "relative" ? SECONDS : undefined,
      values: labels[this.axis] ?? ((_, ticks, __, ___, step) => tickLabels(ticks, step)),
    };
  }

  yAxis() {
    const isDuration = this.model.unit === "seconds";
    return {
      ...this.look(),
      label: isDuration ? undefined : this.model.unit || undefined,
      labelSize: this.model.unit && !isDuration ? 20 : 0,
      size: (_, labels) => 18 + 7 * Math.max(1, ...(labels ?? []).map((label) => label.length)),
      values: (_, ticks, __, ___, step) => (isDuration ? ticks.map(duration) : this.isLog ? ticks.map((tick) => (tick === null ? "" : number(tick, 2))) : tickLabels(ticks, step)),
    };
  }

  look() {
    const line = { stroke: () => colour("plot-line"), width: 1 };
    return { stroke: () => colour("plot-ink"), font: FONT, labelFont: FONT, labelGap: 2, grid: line, ticks: { ...line, size: 5 } };
  }

  /** The range of what is shown, without outliers unless all are asked for. */
  valueRange(plot) {
    if (this.model.range) return this.model.range;
    const [from, to] = plot.series[0].idxs ?? [0, this.data[0].length - 1];
    const shown = [];
    for (let index = 1; index < this.data.length; index += 1) {
      if (!this.hidden.has(this.seriesOf(index).name)) for (let place = from; place <= to; place += 1) shown.push(this.data[index][place]);
    }
    const found = ranges(shown);
    this.hasOutliers = found.hasOutliers && !this.isLog;
    const [low, high] = this.hasOutliers && !this.showsAll ? found.bulk : found.all;
    if (this.isLog) return uPlot.rangeLog(low > 0 ? low : 1e-3, high > 0 ? high : 1, 10, false);
    return high > low ? uPlot.rangeNum(low, high, 0.08, true) : uPlot.rangeNum(low, low + (Math.abs(low) || 1) * 0.1, 0.5, true);
  }

  onZoom(plot) {
    const { min, max } = plot.scales.x;
    const [first, last] = this.ends();
    this.window = min > first || max < last ? { min, max } : null;
  }

  showTools() {
    const hadFocus = document.activeElement === this.resetButton;
    this.resetButton.hidden = !this.window;
    if (hadFocus && this.resetButton.hidden) this.root.focus();
    this.allButton.hidden = !this.hasOutliers;
    this.allButton.setAttribute("aria-pressed", String(this.showsAll));
    this.logButton.setAttribute("aria-pressed", String(this.isLog));
  }

  // --- legend and values

  showLegend() {
    const { series } = this.model;
    this.legend.hidden = !this.hasLegend;
    if (this.legend.childElementCount !== series.length || this.keys.some((key, index) => key.name !== series[index].name)) {
      this.keys = series.map((one, index) => this.legendKey(one, index));
      this.legend.replaceChildren(...this.keys.map((key) => key.item));
    }
    this.showValues();
  }

  legendKey(one, index) {
    const item = element("li", "");
    const toggle = button("", "plot-key");
    toggle.setAttribute("aria-pressed", String(!this.hidden.has(one.name)));
    const value = element("span", "num plot-value");
    toggle.append(swatch(one.tone, (one.dash ?? index) % DASHES.length), element("span", "", one.name), value);
    toggle.addEventListener("click", () => {
      if (!this.hidden.delete(one.name)) this.hidden.add(one.name);
      toggle.setAttribute("aria-pressed", String(!this.hidden.has(one.name)));
      this.draw();
    });
    item.append(toggle);
    return { name: one.name, item, value };
  }

  get hasLegend() {
    return this.model.series.length > 1 || Boolean(this.model.isNamed);
  }

  /** The place in the data under the cursor; null while there is none. That of another chart may be beyond this one's data. */
  get place() {
    const { idx, left } = this.plot.cursor;
    const width = this.plot.bbox.width / uPlot.pxRatio;
    return isPlace(idx) && left >= 0 && left <= width ? idx : null;
  }

  /** The values at the cursor as text, of each series; the last ones while there is no cursor. */
  values() {
    const { idxs } = this.plot.cursor;
    const isOver = isPlace(this.place);
    return this.model.series.map((_, index) => {
      const place = (index + 1) * this.perSeries;
      return this.valueText(isOver ? this.data[place][idxs[place]] : lastOf(this.data[place]));
    });
  }

  valueText(value) {
    if (value === null || value === undefined) return "–";
    if (this.model.unit === "seconds") return duration(value);
    return `${number(value)}${this.model.unit ? ` ${this.model.unit}` : ""}`;
  }

  positionText() {
    const { place } = this;
    const xs = this.data[0];
    return isPlace(place) ? this.positionAt(xs[place]) : xs.length ? `Last, ${this.positionAt(xs[xs.length - 1])}` : "";
  }

  positionAt(x) {
    if (this.axis === "time") return exact.format(x * 1000);
    if (this.axis === "relative") return `after ${duration(x)}`;
    return this.axis === "step" ? `step ${number(x, 9)}` : number(x, 9);
  }

  showValues() {
    if (!this.plot) return;
    const values = this.values();
    this.readout.textContent = this.hasLegend ? this.positionText() : `${this.positionText()}: ${values[0]}`;
    if (this.hasLegend) this.keys?.forEach((key, index) => (key.value.textContent = values[index]));
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const ratio = uPlot.pxRatio;
    let free = -Infinity;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("plot-ink");
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.font = FONT.replace("12", String(12 * ratio));
    for (const mark of this.model.marks ?? []) {
      const x = this.markPosition(mark);
      if (x === null) continue;
      const place = plot.valToPos(x, "x", true);
      if (place < bbox.left || place > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(place, bbox.top);
      ctx.lineTo(place, bbox.top + bbox.height);
      ctx.stroke();
      if (place < free) continue;
      const width = ctx.measureText(mark.text).width + 8 * ratio;
      const isLeft = place + width > bbox.left + bbox.width;
      ctx.textAlign = isLeft ? "right" : "left";
      ctx.fillText(mark.text, place + (isLeft ? -4 : 4) * ratio, bbox.top + 12 * ratio);
      free = place + width;
    }
    ctx.restore();
  }

  markPosition(mark) {
    const [one] = this.model.series;
    if (this.axis === "time") return mark.time;
    if (!one?.xs.time) return mark.x ?? null;
    return at(mark.time, one.xs.time, one.xs[this.axis]);
  }

  // --- keyboard

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const [from, to] = this.plot.series[0].idxs;
    const now = this.plot.cursor.idx;
    const far = event.shiftKey ? 10 : 1;
    const places = {
      ArrowRight: (now ?? from - 1) + far, ArrowLeft: (now ?? to + 1) - far, PageDown: (now ?? from) + 10, PageUp: (now ?? to) - 10,
      Home: from, End: to,
    };
    if (event.key in places) this.moveTo(Math.max(from, Math.min(to, places[event.key])));
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    else if (event.key === "-") this.zoomBy(2);
    else if (event.key === "Escape" && (this.window || isPlace(now))) this.leave();
    else return;
    event.preventDefault();
  }

  moveTo(place) {
    this.plot.setCursor({ left: this.plot.valToPos(this.data[0][place], "x"), top: 10 });
    const { series } = this.model;
    const values = this.values().map((value, index) => (series.length > 1 ? `${series[index].name}: ${value}` : value));
    const text = `${this.positionText()}: ${values.join(", ")}`;
    clearTimeout(this.speaking); // a key that is held down is not read point by point
    this.speaking = setTimeout(() => (this.spoken.textContent = text), 150);
  }

  zoomBy(factor) {
    const { min, max } = this.plot.scales.x;
    const { idx } = this.plot.cursor;
    const middle = isPlace(idx) ? this.data[0][idx] : (min + max) / 2;
    this.zoom({ min: middle - (middle - min) * factor, max: middle + (max - middle) * factor });
  }

  leave() {
    this.zoom(null);
    this.plot.setCursor({ left: -10, top: -10 });
  }
}

const isPlace = (index) => index !== null && index !== undefined;

function lastOf(values) {
  for (let place = values.length - 1; place >= 0; place -= 1) if (values[place] !== null && values[place] !== undefined) return values[place];
  return null;
}
