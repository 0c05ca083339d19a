// Tells Python which part of the x axis a native Plotly chart shows, and moves it by keys.
// data = {target: key of the chart, full: [lo, hi], view: what it shows, heights: y axes to tell of too,
// drawn: where to say that the chart is drawn, "" for nowhere, shown: the part that it then shows, null for any};
// state "range" = {view, range: [lo, hi] or [null, null] for all, height: the same of a y axis, null where it was
// not touched, turn: a new number each time}. Both in one report: two would start two reruns that race.
const KEYS = new Set(["w", "a", "s", "d", "0"]);
const TYPED_INTO = new Set(["textbox", "searchbox", "combobox", "listbox", "spinbutton", "slider", "grid"]);
const WHEEL_MS = 100; // a turn of the wheel is many events: told when it rests
const NOTCH = 100; // of deltaY

// The shown range of an axis as numbers: milliseconds since 1970 where it shows dates, as Plotly counts them.
function shownRange(axis) {
  return axis.range.map((end) => (axis.r2l ? axis.r2l(end) : Number(end)));
}

function shows(chart, [lo, hi]) {
  const [from, to] = shownRange(chart._fullLayout.xaxis);
  return Math.abs(from - lo) + Math.abs(to - hi) <= (hi - lo) * 1e-6;
}

function within([lo, hi], [first, last]) {
  const width = Math.min(hi - lo, last - first);
  const start = Math.max(first, Math.min(lo, last - width));
  return [start, start + width];
}

// The range after a turn of the wheel: with Ctrl (or Cmd, or a pinch) about the pointer, with Shift along the axis.
function wheeled(event, [lo, hi], full, at) {
  const turns = (event.deltaY || event.deltaX) * (event.deltaMode ? 33 : 1) / NOTCH;
  if (event.shiftKey) return within([lo + (hi - lo) * 0.15 * turns, hi + (hi - lo) * 0.15 * turns], full);
  const factor = Math.min(4, Math.max(0.25, Math.pow(1.25, turns)));
  const middle = lo + (hi - lo) * at;
  return within([middle - (middle - lo) * factor, middle + (hi - middle) * factor], full);
}

// A frame over the part of the chart that will be shown, until it is.
function frame(state, [lo, hi]) {
  const area = state.chart.querySelector(".nsewdrag").getBoundingClientRect();
  const outer = state.chart.getBoundingClientRect();
  const [from, to] = shownRange(state.chart._fullLayout.xaxis);
  const place = (x) => Math.min(1, Math.max(0, (x - from) / (to - from))) * area.width + area.left - outer.left;
  if (!state.frame) {
    state.frame = document.createElement("div");
    state.frame.style.cssText = "position:absolute;top:0;bottom:0;pointer-events:none;background:rgba(128,128,128,.16);outline:1px solid rgba(128,128,128,.7)";
  }
  state.chart.style.position = "relative";
  state.chart.appendChild(state.frame);
  state.frame.style.left = place(lo) + "px";
  state.frame.style.width = Math.max(2, place(hi) - place(lo)) + "px";
}

function unframe(state) {
  if (state.frame) state.frame.remove();
  state.wheel = null;
}

function moved(key, [lo, hi], [first, last]) {
  const width = hi - lo, middle = (lo + hi) / 2;
  const range = {
    w: [middle - width * 0.3, middle + width * 0.3],
    s: [middle - width * 0.8, middle + width * 0.8],
    a: [lo - width * 0.25, hi - width * 0.25],
    d: [lo + width * 0.25, hi + width * 0.25],
  }[key];
  return within(range, [first, last]);
}

export default function (component) {
  const { data, setStateValue, parentElement } = component;
  const host = parentElement.host || parentElement;
  const state = host.__kvZoom || (host.__kvZoom = { chart: null, timer: null, generation: 0, turn: 0 });
  state.set = setStateValue;
  state.target = data.target;
  state.full = data.full;
  state.heights = data.heights;
  state.drawn = data.drawn;
  state.shown = data.shown;
  if (state.view !== data.view) clearTimeout(state.timer); // what was about to be told is of the last view
  state.view = data.view;
  unframe(state);

  const send = (range, wait) => {
    const view = state.view;
    clearTimeout(state.timer);
    state.timer = setTimeout(() => {
      state.set("range", { view, range, height: state.height || null, turn: Date.now() + ++state.turn });
      state.height = null;
    }, wait);
  };
  const sendAll = (wait) => {
    state.height = state.heights.length ? [null, null] : null;
    send([null, null], wait);
  };
  state.onRelayout = state.onRelayout || ((change) => {
    const names = Object.keys(change || {});
    const touched = state.heights.find((axis) => names.some((n) => n.startsWith(axis + ".range")));
    if (touched) state.height = shownRange(state.chart._fullLayout[touched]).sort((a, b) => a - b);
    if (names.some((n) => /^xaxis\.autorange$/.test(n) && change[n])) sendAll(60);
    else if (touched || names.some((n) => /^xaxis\.range/.test(n)))
      send(shownRange(state.chart._fullLayout.xaxis), 0); // a drag says so once, when it has ended
  });
  state.onDoubleClick = state.onDoubleClick || (() => sendAll(0));
  state.onKey = state.onKey || ((event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !state.chart || !state.chart._fullLayout) return;
    const at = event.target;
    if (at && (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT|CANVAS)$/.test(at.tagName) || TYPED_INTO.has(at.getAttribute("role")))) return;
    const key = event.key.toLowerCase();
    if (!KEYS.has(key)) return;
    event.preventDefault();
    if (key === "0") sendAll(0);
    else send(moved(key, shownRange(state.chart._fullLayout.xaxis), state.full), 80);
  });

  state.onWheel = state.onWheel || ((event) => {
    if (!(event.ctrlKey || event.metaKey || event.shiftKey) || !state.chart._fullLayout) return; // the page scrolls
    const area = state.chart.querySelector(".nsewdrag");
    if (!area) return;
    event.preventDefault();
    const box = area.getBoundingClientRect();
    const shown = shownRange(state.chart._fullLayout.xaxis);
    const from = state.wheel || shown;
    const pointer = shown[0] + (shown[1] - shown[0]) * (event.clientX - box.left) / box.width;
    const at = Math.min(1, Math.max(0, (pointer - from[0]) / (from[1] - from[0])));
    state.wheel = wheeled(event, from, state.full, at);
    frame(state, state.wheel);
    const all = state.wheel[1] - state.wheel[0] >= (state.full[1] - state.full[0]) * 0.999;
    send(all ? [null, null] : state.wheel, WHEEL_MS);
  });

  const detach = () => {
    if (state.chart) state.chart.removeEventListener("wheel", state.onWheel);
    if (!state.chart || !state.chart.removeListener) return;
    state.chart.removeListener("plotly_relayout", state.onRelayout);
    state.chart.removeListener("plotly_doubleclick", state.onDoubleClick);
  };
  const attach = () => {
    const found = document.querySelector(".st-key-" + state.target + " .js-plotly-plot");
    if (!found || !found.on || found === state.chart) return;
    detach();
    unframe(state);
    state.chart = found;
    found.addEventListener("wheel", state.onWheel, { passive: false });
    found.on("plotly_relayout", state.onRelayout);
    found.on("plotly_doubleclick", state.onDoubleClick);
  };
  // Told when it has been shown and the browser rests: what comes then keeps it busy for a while.
  const tellDrawn = () => {
    if (!state.drawn || !state.chart || !state.chart.querySelector(".xaxislayer-above text")) return;
    if (state.shown && !shows(state.chart, state.shown)) return; // still what was there before
    const path = "./" + state.drawn;
    state.drawn = "";
    const tell = () => fetch(path, { method: "POST" }).catch(() => {}); // without an answer the server waits no longer
    const rest = window.requestIdleCallback || ((done) => setTimeout(done, 100));
    requestAnimationFrame(() => setTimeout(() => rest(tell, { timeout: 400 }), 60));
  };
  const look = () => { attach(); tellDrawn(); };
  look();
  if (!state.interval) {
    state.interval = setInterval(look, 100);
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
