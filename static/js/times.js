// Writes every <time data-when> in the reader's own clock: relative in the text, absolute in the title. <time data-clock>
// shows the time of day, with the day where it is another one; <time data-exact> day, time and zone.

const UNITS = [["year", 31_536_000], ["month", 2_592_000], ["day", 86_400], ["hour", 3_600], ["minute", 60]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit" });
const later = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const WEEK = 6 * 86_400_000; // days of the week are unambiguous so far
const exact = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short",
});
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function ago(date, now = Date.now()) {
  const seconds = (date.getTime() - now) / 1000;
  for (const [unit, length] of UNITS) {
    if (Math.abs(seconds) >= length) return relative.format(Math.round(seconds / length), unit);
  }
  return Math.abs(seconds) < 10 ? "just now" : relative.format(Math.round(seconds), "second");
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [Math.floor(whole / 86_400), Math.floor(whole / 3_600) % 24, Math.floor(whole / 60) % 60];
  const two = (large, unit, small, smallUnit) => `${large} ${unit}${small ? ` ${small} ${smallUnit}` : ""}`;
  if (days) return two(days, "d", hours, "h");
  if (hours) return two(hours, "h", minutes, "min");
  return minutes ? two(minutes, "min", whole % 60, "s") : `${whole} s`;
}

export function localise(root = document) {
  for (const element of root.querySelectorAll("time[data-when]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    element.title = absolute.format(date);
    element.textContent = ago(date);
  }
  for (const element of root.querySelectorAll("time[data-exact]")) {
    const date = new Date(element.dateTime);
    if (!Number.isNaN(date.getTime())) element.textContent = exact.format(date);
  }
  for (const element of root.querySelectorAll("time[data-clock]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    element.title = absolute.format(date);
    const near = Math.abs(date.getTime() - Date.now()) < WEEK ? day : later;
    element.textContent = (date.toDateString() === new Date().toDateString() ? hours : near).format(date);
  }
  for (const element of root.querySelectorAll("time[data-since]")) {
    const start = new Date(element.dataset.since);
    if (!Number.isNaN(start.getTime())) element.textContent = duration((Date.now() - start.getTime()) / 1000);
  }
}
