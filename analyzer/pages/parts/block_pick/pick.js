// Tells Python where a native Plotly chart of block maps was clicked.
// data = {target: key of the chart, maps: {side: name of its y axis in the layout}, view: what it shows};
// state "pick" = {view, side, x, block, turn: a new number each time}.

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
  const state = host.__kvPick || (host.__kvPick = { chart: null, generation: 0, turn: 0 });
  state.set = setStateValue;
  state.target = data.target;
  state.maps = data.maps;
  state.view = data.view;

  state.onClick = state.onClick || ((click) => {
    const at = found(state, click);
    if (at) state.set("pick", { view: state.view, ...at, turn: Date.now() + ++state.turn });
  });
  const detach = () => {
    if (!state.chart || !state.chart.removeListener) return;
    state.chart.removeListener("plotly_click", state.onClick);
  };
  const attach = () => {
    const chart = document.querySelector(".st-key-" + state.target + " .js-plotly-plot");
    if (!chart || !chart.on || chart === state.chart) return;
    detach();
    state.chart = chart;
    chart.on("plotly_click", state.onClick);
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
