// What curves need of arithmetic, without a page: smoothing, axis ranges, tables for uPlot, and numbers as text. Tested by node.

/** The exponential moving average with `weight` (0 to 1) on what came before, corrected for its bias to zero at the beginning. */
export function smooth(values, weight) {
  let mean = 0;
  let known = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = weight * mean + (1 - weight) * value;
    known = weight * known + (1 - weight);
    return mean / known;
  });
}

function quantile(sorted, part) {
  const place = (sorted.length - 1) * part;
  const low = Math.floor(place);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

const FEW = 20; // of fewer values none is an outlier
const FAR = 4; // so many times as far as the bulk of the values reaches

/** The range of all values, that of the bulk of them, and whether the first is so wide that it would flatten the rest. */
export function ranges(values) {
  const sorted = Float64Array.from(values.filter((value) => Number.isFinite(value))).sort();
  if (!sorted.length) return { all: [0, 1], bulk: [0, 1], hasOutliers: false };
  const all = [sorted[0], sorted[sorted.length - 1]];
  if (sorted.length < FEW) return { all, bulk: all, hasOutliers: false };
  const [low, high] = [quantile(sorted, 0.02), quantile(sorted, 0.98)];
  const span = high - low;
  const hasOutliers = span > 0 && all[1] - all[0] > FAR * span;
  const bulk = [Math.max(all[0], low - 0.25 * span), Math.min(all[1], high + 0.25 * span)];
  return { all, bulk: hasOutliers ? bulk : all, hasOutliers };
}

/** Whether curves are so far apart that a linear axis would show only the largest: medians more than a hundredfold. */
export function needsLog(curves) {
  const medians = [];
  for (const values of curves) {
    const sorted = values.filter((value) => Number.isFinite(value)).sort((one, other) => one - other);
    if (!sorted.length) continue;
    if (sorted[0] <= 0) return false;
    medians.push(quantile(sorted, 0.5));
  }
  return medians.length > 1 && Math.max(...medians) > 100 * Math.min(...medians);
}

/** A table for uPlot: x ascending, then the values; a gap (null) where another attempt begins, if `gaps`. */
export function table(xs, values, breaks, gaps) {
  const x = [...xs];
  const y = [...values];
  if (gaps) {
    for (const at of [...breaks].reverse()) {
      if (at <= 0 || at >= xs.length) continue;
      x.splice(at, 0, (xs[at - 1] + xs[at]) / 2);
      y.splice(at, 0, null);
    }
  }
  if (x.every((each, at) => at === 0 || x[at - 1] < each)) return [x, y];
  const order = x.map((_, at) => at).sort((one, other) => x[one] - x[other] || one - other);
  const kept = order.filter((at, place) => place === order.length - 1 || x[order[place + 1]] !== x[at]); // the last of equals
  return [kept.map((at) => x[at]), kept.map((at) => y[at])];
}

/** The x in `xs` at which `times` reaches `time`; null outside of it. Both ascend. */
export function at(time, times, xs) {
  if (!times.length || time < times[0] || time > times[times.length - 1]) return null;
  let low = 0;
  let high = times.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle;
    else high = middle;
  }
  const span = times[high] - times[low];
  return span > 0 ? xs[low] + ((xs[high] - xs[low]) * (time - times[low])) / span : xs[low];
}

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e\+?/, "e");
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 10 ** digits ? 15 : digits, maximumFractionDigits: 6 });
}

/** Labels of ticks that are `step` apart. */
export function tickLabels(ticks, step) {
  const largest = Math.max(...ticks.map((tick) => Math.abs(tick ?? 0)));
  const fraction = Math.max(0, Math.min(12, Math.ceil(-Math.log10(step || 1) - 1e-9) + (String(step).includes("25") ? 1 : 0)));
  if (largest >= 1e9 || fraction > 5) return ticks.map((tick) => (tick === null ? "" : tick === 0 ? "0" : number(tick, 4)));
  return ticks.map((tick) => (tick === null ? "" : tick.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: fraction })));
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [[Math.floor(whole / 86_400), "d"], [Math.floor(whole / 3_600) % 24, "h"], [Math.floor(whole / 60) % 60, "min"], [whole % 60, "s"]];
  const first = parts.findIndex(([count]) => count > 0);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** The label of a tick of an axis of times, in the reader's zone: the day where it begins, else the time of day. */
export function timeLabel(tick, step) {
  const moment = new Date(tick * 1000);
  if (step >= 86_400 || moment.getHours() + moment.getMinutes() + moment.getSeconds() === 0) return day.format(moment);
  return (step < 60 ? seconds : clock).format(moment);
}
