// Tells Python where a native Plotly chart of block maps was clicked, and which blocks it shows.
// data = {target: key of the chart, maps: {side: name of its y axis in the layout}, view: what it shows};
// state "pick" = {view, side, x, block, turn}; state "blocks" = {view, range: [first, last] or [null, null], turn}.
const DEBOUNCE_MS = 100;

// The cell under the pointer, as the hover box names it.
function found(state, click) {
  const point = click.points.find((p) => p.data.type === "heatmap");
  if (!point) return null;
  const axis = (point.data.yaxis || "y").replace("y", "yaxis");
  const side = Object.keys(state.maps).find((name) => state.maps[name] === axis);
  return side ? { side, x: Number(point.x), block: Math.round(Number(point.y)) } : null;
}

export default function (component) {
  const { data, setStateValue, parentElement } = component;
  const host = parentElement.host || parentElement;
  const state = host.__kvPick || (host.__kvPick = { chart: null, timer: null, generation: 0, turn: 0 });
  state.set = setStateValue;
  state.target = data.target;
  state.maps = data.maps;
  if (state.view !== data.view) clearTimeout(state.timer);
  state.view = data.view;

  const tell = (name, what, wait) => {
    const view = state.view;
    clearTimeout(state.timer);
    state.timer = setTimeout(() => state.set(name, { view, ...what, turn: Date.now() + ++state.turn }), wait);
  };
  state.onClick = state.onClick || ((click) => {
    const at = found(state, click);
    if (at) tell("pick", at, 0);
  });
  state.onRelayout = state.onRelayout || ((change) => {
    const axis = Object.values(state.maps).find((name) => Object.keys(change || {}).some((key) => key.startsWith(name + ".range")));
    if (!axis) return;
    const [low, high] = [...state.chart._fullLayout[axis].range].map(Number).sort((a, b) => a - b);
    tell("blocks", { range: [Math.ceil(low), Math.floor(high)] }, DEBOUNCE_MS);
  });
  state.onDoubleClick = state.onDoubleClick || (() => tell("blocks", { range: [null, null] }, 0));

  const detach = () => {
    if (!state.chart || !state.chart.removeListener) return;
    state.chart.removeListener("plotly_click", state.onClick);
    state.chart.removeListener("plotly_relayout", state.onRelayout);
    state.chart.removeListener("plotly_doubleclick", state.onDoubleClick);
  };
  const attach = () => {
    const chart = document.querySelector(".st-key-" + state.target + " .js-plotly-plot");
    if (!chart || !chart.on || chart === state.chart) return;
    detach();
    state.chart = chart;
    chart.on("plotly_click", state.onClick);
    chart.on("plotly_relayout", state.onRelayout);
    chart.on("plotly_doubleclick", state.onDoubleClick);
  };
  attach();
  if (!state.interval) state.interval = setInterval(attach, 250);
  const mine = ++state.generation;
  return () => {
    if (state.generation !== mine) return; // a newer run of this function already took over
    clearInterval(state.interval);
    state.interval = null;
    detach();
    state.chart = null;
  };
}
