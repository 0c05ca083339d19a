// Snapshots of the pool, one after the other, in the browser: no run of the page while it plays.
// data = {view, reelKey, reel: {x: [...], sides: {A: packed frames, ...}}, close: the same of the steps around `at`,
//   at: {x, step}, lead: side whose steps are counted, names: {A: "..."}, colours: 128 colours, by,
//   words: a word a state, unit, marks: [x of each preemption], ground, text, target: key of the map's chart};
// state "at" = {view, x, step, turn}; state "pick" = {view, code, turn}.
const NOT_THERE = 7, IN_USE = 3, OWNERS = 8, NUM_OWNERS = 21;
const REPORT_MS = 250;
const MOST_PX = 34, LEAST_PX = 2, HEIGHT_PX = 270, NAMED_PX = 24;
const number = new Intl.NumberFormat("en-US");

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function pool(packed) {
  const owners = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[packed.ownerBytes];
  const [state, owner, block, codes, index] = await Promise.all(
    [packed.state, packed.owner, packed.block, packed.codes, packed.index].map((text) => (text === null ? null : unpacked(text))));
  return {
    ...packed, state: new Uint8Array(state), owner: new owners(owner), block: new Int32Array(block),
    codes: new Int32Array(codes), index: index && new Uint8Array(index),
  };
}

async function reel(packed) {
  const sides = {};
  for (const [side, frames] of Object.entries(packed.sides)) sides[side] = await pool(frames);
  return { x: packed.x, sides };
}

// The last place at or before x in sorted places, at least 0.
function placeOf(places, x) {
  let low = 0, high = places.length;
  while (low < high) { const middle = (low + high) >> 1; if (places[middle] <= x) low = middle + 1; else high = middle; }
  return Math.max(0, low - 1);
}

function rgbOf(colour) { const n = parseInt(colour.slice(1), 16); return [n >> 16, (n >> 8) & 255, n & 255]; }

// ---- drawing ----------------------------------------------------------------------------------

function paletteIndex(state, frames, cell, f) {
  const at = cell * state.now.x.length + f;
  if (frames.index) return frames.index[at];
  const is = frames.state[at];
  if (is < IN_USE || is === NOT_THERE || state.data.by !== "owner") return is;
  return OWNERS + frames.codes[frames.owner[at] - 1] % NUM_OWNERS;
}

// Size of a cell and how many lie in a row, for a canvas of that width.
function gridOf(width, cells) {
  const px = Math.max(LEAST_PX, Math.min(MOST_PX, Math.floor(Math.sqrt((width * HEIGHT_PX) / cells))));
  const columns = Math.max(1, Math.min(cells, Math.floor(width / px)));
  return { px, columns, rows: Math.ceil(cells / columns) };
}

function drawPool(state, side, f) {
  const frames = state.now.sides[side], { canvas } = state.pools[side];
  const width = canvas.parentElement.clientWidth || 600, scale = window.devicePixelRatio || 1;
  const grid = (state.grids[side] = gridOf(width, frames.cells));
  const high = grid.rows * grid.px;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(high * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(high * scale);
    canvas.style.height = high + "px";
  }
  const pixels = new ImageData(grid.columns, grid.rows);
  for (let cell = 0; cell < frames.cells; cell++) {
    const [r, g, b] = state.rgb[paletteIndex(state, frames, cell, f)];
    pixels.data.set([r, g, b, 255], cell * 4);
  }
  const small = state.small || (state.small = document.createElement("canvas"));
  small.width = grid.columns;
  small.height = grid.rows;
  small.getContext("2d").putImageData(pixels, 0, 0);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.clearRect(0, 0, width, high);
  pen.drawImage(small, 0, 0, grid.columns * grid.px, high);
  if (grid.px >= 5) drawLines(pen, grid, state.data.ground);
  if (grid.px >= NAMED_PX) drawNames(pen, state, frames, grid, f);
}

function drawLines(pen, grid, ground) {
  pen.fillStyle = ground;
  for (let i = 1; i <= grid.columns; i++) pen.fillRect(i * grid.px - 1, 0, 1, grid.rows * grid.px);
  for (let i = 1; i <= grid.rows; i++) pen.fillRect(0, i * grid.px - 1, grid.columns * grid.px, 1);
}

// In large cells the owner's name, so that colour is not alone.
function drawNames(pen, state, frames, grid, f) {
  pen.font = "600 10.5px sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (let cell = 0; cell < frames.cells; cell++) {
    const at = cell * state.now.x.length + f;
    if (frames.state[at] < IN_USE || frames.state[at] === NOT_THERE) continue;
    const name = frames.labels[frames.owner[at] - 1];
    if (!name || name.length > 4) continue;
    const [r, g, b] = state.rgb[paletteIndex(state, frames, cell, f)];
    pen.fillStyle = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000000" : "#ffffff";
    pen.fillText(name, ((cell % grid.columns) + 0.5) * grid.px, (Math.floor(cell / grid.columns) + 0.5) * grid.px);
  }
}

function draw(state) {
  const f = state.f, x = state.now.x[f];
  for (const side of Object.keys(state.now.sides)) {
    drawPool(state, side, f);
    say(state, side, f);
  }
  const unit = state.data.unit ? " " + state.data.unit : "";
  const step = state.now.sides[state.data.lead].steps[f];
  const place = state.data.unit ? number.format(Number(x.toPrecision(6))) + unit + " · " : "";
  state.where.textContent = place + (step < 0 ? "no step of " + state.data.lead : "step " + number.format(step) + " of " + state.data.lead);
  state.slider.value = state.now === state.reel ? f : placeOf(state.reel.x, x);
  state.slider.setAttribute("aria-valuetext", state.where.textContent);
  cursor(state, x);
}

function say(state, side, f) {
  const frames = state.now.sides[side], step = frames.steps[f], { said, canvas } = state.pools[side];
  const sample = frames.perCell > 1 ? ` · 1 of ${frames.perCell.toFixed(1)} blocks drawn` : "";
  said.textContent = step < 0
    ? "not running"
    : `step ${number.format(step)} · ${number.format(frames.used[f])} of ${number.format(frames.blocks)} blocks in use (${Math.round((frames.used[f] / Math.max(1, frames.blocks)) * 100)} %) · ${number.format(frames.running[f])} running${sample}`;
  canvas.setAttribute("aria-label", `Blocks of run ${side} at one step: ${said.textContent}`);
}

// A line over the map's chart, where the snapshot is.
function cursor(state, x) {
  const chart = document.querySelector(".st-key-" + state.data.target + " .js-plotly-plot");
  if (!chart || !chart._fullLayout || !chart._fullLayout.xaxis) return;
  const axis = chart._fullLayout.xaxis;
  if (!state.line) {
    state.line = document.createElement("div");
    state.line.className = "kv-snapshot";
    state.line.style.cssText = "position:absolute;width:0;pointer-events:none;border-left:2px solid;opacity:.85";
  }
  state.line.style.color = state.data.text;
  const at = axis.d2p(x), size = chart._fullLayout._size;
  chart.style.position = "relative";
  if (state.line.parentElement !== chart) chart.appendChild(state.line);
  state.line.style.display = at >= 0 && at <= axis._length ? "" : "none";
  state.line.style.left = axis._offset + at - 1 + "px";
  state.line.style.top = size.t + "px";
  state.line.style.height = size.h + "px";
}

// ---- moving -----------------------------------------------------------------------------------

function stop(state) {
  clearInterval(state.timer);
  state.timer = null;
  state.play.textContent = "▶ Play";
  state.play.setAttribute("aria-pressed", "false");
}

function report(state, x, step) {
  clearTimeout(state.reporting);
  const view = state.data.view;
  state.reporting = setTimeout(() => state.set("at", { view, x, step, turn: Date.now() + ++state.turn }), REPORT_MS);
}

function show(state, set, f) {
  state.now = set;
  state.f = Math.max(0, Math.min(set.x.length - 1, f));
  draw(state);
}

function reportShown(state) {
  report(state, state.now.x[state.f], state.now.sides[state.data.lead].steps[state.f]);
}

function play(state) {
  if (state.timer) { stop(state); reportShown(state); return; }
  let f = state.now === state.reel ? state.f : placeOf(state.reel.x, state.now.x[state.f]);
  if (f >= state.reel.x.length - 1) f = -1;
  state.play.textContent = "⏸ Pause";
  state.play.setAttribute("aria-pressed", "true");
  const tick = () => {
    if (f >= state.reel.x.length - 1) { stop(state); reportShown(state); return; }
    show(state, state.reel, ++f);
  };
  state.timer = setInterval(tick, 1000 / Number(state.speed.value));
  tick();
}

// One step on (1) or back (-1): from the steps that are here, else asked for.
function walk(state, by) {
  stop(state);
  const steps = state.close.sides[state.data.lead].steps;
  const now = state.now.sides[state.data.lead].steps[state.f];
  const next = steps.findIndex((step) => step === now + by);
  if (next >= 0) { show(state, state.close, next); reportShown(state); }
  else if (now + by >= 0) report(state, null, now + by);
}

function jump(state, by) {
  stop(state);
  const x = state.now.x[state.f], marks = state.data.marks;
  const slack = Math.abs(x) * 1e-9 + 1e-9;
  const to = by > 0 ? marks.find((mark) => mark > x + slack) : [...marks].reverse().find((mark) => mark < x - slack);
  if (to === undefined) return;
  report(state, to, null);
}

// ---- pointing ---------------------------------------------------------------------------------

function cellAt(state, side, event) {
  const grid = state.grids[side], box = state.pools[side].canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / grid.px), row = Math.floor((event.clientY - box.top) / grid.px);
  const cell = row * grid.columns + column, frames = state.now.sides[side];
  if (column < 0 || column >= grid.columns || cell < 0 || cell >= frames.cells) return null;
  const at = cell * state.now.x.length + state.f;
  return { block: frames.block[cell], is: frames.state[at], owner: frames.owner[at], frames };
}

function point(state, side, event) {
  const at = cellAt(state, side, event);
  state.tip.hidden = at === null || at.is === NOT_THERE;
  if (state.tip.hidden) return;
  const name = at.owner ? at.frames.labels[at.owner - 1] : null;
  const head = document.createElement("b");
  head.textContent = at.is >= IN_USE && at.is !== NOT_THERE ? `request ${name}` : state.data.words[at.is];
  const rest = at.is >= IN_USE ? state.data.words[at.is] : name ? `last of request ${name}` : "";
  state.tip.replaceChildren(head, `block ${number.format(at.block)}${rest ? ": " + rest : ""}`);
  const box = state.root.getBoundingClientRect();
  const left = event.clientX - box.left + 14;
  state.tip.style.left = Math.min(left, box.width - 200) + "px";
  state.tip.style.top = event.clientY - box.top + 16 + "px";
}

function pick(state, side, event) {
  const at = cellAt(state, side, event);
  if (at && at.owner) state.set("pick", { view: state.data.view, code: at.frames.codes[at.owner - 1], side, turn: Date.now() + ++state.turn });
}

// ---- setting up -------------------------------------------------------------------------------

function build(state, root) {
  state.root = root;
  const get = (name) => root.querySelector(name);
  Object.assign(state, { play: get(".play"), slider: get(".slider"), speed: get("select"), where: get(".where"), tip: get(".tip") });
  const act = { play: () => play(state), back: () => walk(state, -1), on: () => walk(state, 1), before: () => jump(state, -1), after: () => jump(state, 1) };
  for (const button of root.querySelectorAll("button")) button.onclick = () => state.now && act[button.dataset.do]();
  state.slider.oninput = () => { stop(state); show(state, state.reel, Number(state.slider.value)); };
  state.slider.onchange = () => reportShown(state);
  state.speed.onchange = () => { if (state.timer) { stop(state); play(state); } };
}

function buildPools(state) {
  const sides = Object.keys(state.reel.sides);
  const holder = state.root.querySelector(".pools");
  if (holder.dataset.sides !== sides.join()) {
    holder.dataset.sides = sides.join();
    state.pools = {};
    holder.replaceChildren(...sides.map((side) => {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption");
      const name = document.createElement("b"), said = document.createElement("span"), canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.dataset.side = side;
      canvas.onmousemove = (event) => state.now && point(state, side, event);
      canvas.onmouseleave = () => (state.tip.hidden = true);
      canvas.onclick = (event) => state.now && pick(state, side, event);
      caption.append(name, document.createElement("br"), said);
      figure.append(caption, canvas);
      state.pools[side] = { name, said, canvas };
      return figure;
    }));
  }
  for (const side of sides) state.pools[side].name.textContent = `${side} · ${state.data.names[side]}`;
}

async function load(state, data) {
  const mine = (state.loading = (state.loading || 0) + 1);
  const [all, close] = await Promise.all([state.reelKey === data.reelKey ? state.reel : reel(data.reel), reel(data.close)]);
  if (state.loading !== mine) return; // newer data came meanwhile
  Object.assign(state, { data, reel: all, reelKey: data.reelKey, close, rgb: data.colours.map(rgbOf) });
  state.slider.max = all.x.length - 1;
  for (const button of state.root.querySelectorAll("[data-do=before], [data-do=after]")) button.disabled = !data.marks.length;
  buildPools(state);
  const wasPlaying = state.timer !== null && state.timer !== undefined;
  if (wasPlaying && state.now) { show(state, all, placeOf(all.x, state.now.x[state.f])); return; }
  show(state, close, placeOf(close.x, data.at.x));
}

export default function (component) {
  const { data, setStateValue, parentElement } = component;
  const host = parentElement.host || parentElement;
  const state = host.__kvPlayer || (host.__kvPlayer = { turn: 0, generation: 0, grids: {} });
  state.set = setStateValue;
  const root = parentElement.querySelector(".player");
  if (state.root !== root) build(state, root);
  load(state, data);
  if (!state.observer) {
    state.observer = new ResizeObserver(() => state.now && draw(state));
    state.observer.observe(root);
    state.watch = setInterval(() => { if (state.now) cursor(state, state.now.x[state.f]); }, 400); // the chart may be drawn anew
  }
  const mine = ++state.generation;
  return () => setTimeout(() => { // a newer run of this function may be about to take over
    if (state.generation !== mine) return;
    stop(state);
    clearTimeout(state.reporting);
    clearInterval(state.watch);
    state.observer.disconnect();
    if (state.line) state.line.remove();
    delete host.__kvPlayer;
  }, 300);
}
