// Colours for canvases, which no stylesheet reaches: CSS decides, a hidden element is asked. They change with the theme.

const known = new Map();
const listeners = new Set();
let probes = null;

/** The colour of an element with this class, which charts.css gives it. */
export function colour(css) {
  if (!known.has(css)) {
    if (!probes?.isConnected) {
      probes = document.createElement("div");
      probes.hidden = true;
      document.body.append(probes);
    }
    const probe = document.createElement("span");
    probe.className = `plot-probe ${css}`;
    probes.append(probe);
    known.set(css, getComputedStyle(probe).color);
    probe.remove();
  }
  return known.get(css);
}

/** Call `listener` whenever colours have changed. */
export function onChange(listener) {
  listeners.add(listener);
}

function changed() {
  known.clear();
  listeners.forEach((listener) => listener());
}

new MutationObserver(changed).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", changed);
