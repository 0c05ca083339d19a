// Tells Python that "?" was pressed outside of any field.
const TYPED_INTO = new Set(["textbox", "searchbox", "combobox", "listbox", "spinbutton", "slider", "grid"]);

export default function (component) {
  const { setTriggerValue, parentElement } = component;
  const host = parentElement.host || parentElement;
  const state = host.__kvKeys || (host.__kvKeys = { generation: 0, turn: 0 });
  state.tell = setTriggerValue;
  state.onKey = state.onKey || ((event) => {
    if (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = event.target;
    if (at && (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT|CANVAS)$/.test(at.tagName) || TYPED_INTO.has(at.getAttribute("role")))) return;
    if (document.querySelector("[role=dialog]")) return; // it is open
    event.preventDefault();
    state.tell("asked", Date.now() + ++state.turn);
  });
  if (!state.listening) {
    document.addEventListener("keydown", state.onKey);
    state.listening = true;
  }
  const mine = ++state.generation;
  return () => {
    if (state.generation !== mine) return; // a newer run of this function already took over
    document.removeEventListener("keydown", state.onKey);
    state.listening = false;
  };
}
