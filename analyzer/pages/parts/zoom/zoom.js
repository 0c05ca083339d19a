// Tells Python which part of the x axis a native Plotly chart shows, and moves it by keys.
// data = {target: key of the chart, full: [lo, hi], view: what it shows};
// state "range" = {view, range: [lo, hi] or [null, null] for all, turn: a new number each time}.
const KEYS = new Set(["w", "a", "s", "d", "0"]);
const TYPED_INTO = new Set(["textbox", "searchbox", "combobox", "listbox", "spinbutton", "slider", "grid"]);
const DEBOUNCE_MS = 100;

function moved(key, [lo, hi], [first, last]) {
  const width = hi - lo, middle = (lo + hi) / 2;
  let range = {
    w: [middle - width * 0.3, middle + width * 0.3],
    s: [middle - width * 0.8, middle + width * 0.8],
    a: [lo - width * 0.25, hi - width * 0.25],
    d: [lo + width * 0.25, hi + width * 0.25],
  }[key];
  if (range[0] < first) range = [first, Math.min(last, first + range[1] - range[0])];
  if (range[1] > last) range = [Math.max(first, last - (range[1] - range[0])), last];
  return range;
}

export default function (component) {
  const { data, setStateValue, parentElement } = component;
  const host = parentElement.host || parentElement;
  const state = host.__kvZoom || (host.__kvZoom = { chart: null, timer: null, generation: 0, turn: 0 });
  state.set = setStateValue;
  state.target = data.target;
  state.full = data.full;
  if (state.view !== data.view) clearTimeout(state.timer); // what was about to be told is of the last view
  state.view = data.view;

  const send = (range, wait) => {
    const view = state.view;
    clearTimeout(state.timer);
    state.timer = setTimeout(() => state.set("range", { view, range, turn: Date.now() + ++state.turn }), wait);
  };
  state.onRelayout = state.onRelayout || ((change) => {
    const names = Object.keys(change || {});
    if (names.some((n) => /^xaxis\.autorange$/.test(n) && change[n])) send([null, null], 60);
    else if (names.some((n) => /^xaxis\.range/.test(n)))
      send([...state.chart._fullLayout.xaxis.range].map(Number), DEBOUNCE_MS);
  });
  state.onDoubleClick = state.onDoubleClick || (() => send([null, null], 0));
  state.onKey = state.onKey || ((event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !state.chart || !state.chart._fullLayout) return;
    const at = event.target;
    if (at && (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT|CANVAS)$/.test(at.tagName) || TYPED_INTO.has(at.getAttribute("role")))) return;
    const key = event.key.toLowerCase();
    if (!KEYS.has(key)) return;
    event.preventDefault();
    if (key === "0") send([null, null], 0);
    else send(moved(key, state.chart._fullLayout.xaxis.range.map(Number), state.full), 80);
  });

  const detach = () => {
    if (!state.chart || !state.chart.removeListener) return;
    state.chart.removeListener("plotly_relayout", state.onRelayout);
    state.chart.removeListener("plotly_doubleclick", state.onDoubleClick);
  };
  const attach = () => {
    const found = document.querySelector(".st-key-" + state.target + " .js-plotly-plot");
    if (!found || !found.on || found === state.chart) return;
    detach();
    state.chart = found;
    found.on("plotly_relayout", state.onRelayout);
    found.on("plotly_doubleclick", state.onDoubleClick);
  };
  attach();
  if (!state.interval) {
    state.interval = setInterval(attach, 250);
    document.addEventListener("keydown", state.onKey);
  }
  const mine = ++state.generation;
  return () => {
    if (state.generation !== mine) return; // a newer run of this function already took over
    clearInterval(state.interval);
    state.interval = null;
    document.removeEventListener("keydown", state.onKey);
    detach();
    state.chart = null;
  };
}
