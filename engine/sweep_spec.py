"""What a sweep is: traces x settings x seeds, from a TOML file or from flags, checked and counted.

It knows names, values and how they multiply. It opens no trace and runs nothing. Settings are fields of
`EngineSettings`, or what a cell may do to its trace (`sweep_traces.SHAPE`).
"""

from __future__ import annotations

import difflib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from engine.config import EngineSettings
from engine.sweep_traces import SHAPE, TraceSpec
from traces.errors import SettingsError
from traces.open import SAMPLE_PREFIX
from traces.sweep_schema import KNOWN

# Names of flags that differ from the setting's.
ALIASES = {
    "preemption": "preemption_mode",
    "tp": "tensor_parallel_size",
    "kv_dtype": "kv_cache_dtype",
    "prefix_caching": "enable_prefix_caching",
    "chunked_prefill": "enable_chunked_prefill",
    "reserve_full_isl": "scheduler_reserve_full_isl",
}
BOUNDS = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "max_itl_s")
MAX_CELLS = 10_000
MAX_SEEDS = 100_000
_LARGEST_SEED = 2**63 - 1  # that a column of the table holds
_SECTIONS = ("name", "seeds", "traces", "settings", "grid", "zip", "bounds")
_TRACE_KEYS = ("path", "synthetic", "map", "time_unit")
# Not a setting of a cell: seeds vary it, and a sweep's clock is never read from a recording.
_NOT_SETTINGS = {"seed": "Give seeds = [0, 1, 2], or --seeds 0,1,2, instead."}


@dataclass(frozen=True)
class Axis:
    """Settings that vary together. names: (k,); rows: the values that they take, each (k,)."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Choice:
    """What makes one cell but for the engine: a trace, values of the varied settings, a seed."""

    trace: TraceSpec
    values: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class SweepSpec:
    """traces x axes x seeds. settings: of every cell; bounds: metric -> most seconds, for goodput."""

    traces: tuple[TraceSpec, ...]
    axes: tuple[Axis, ...] = ()
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)
    name: str = "sweep"

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of all varied settings, in the order given."""
        return tuple(name for axis in self.axes for name in axis.names)

    def seeds_of(self, trace: TraceSpec) -> tuple[int, ...]:
        """The seeds that matter to a trace: the first alone where none of its cells draws anything."""
        return self.seeds if trace.is_drawn or self._draws() else self.seeds[:1]

    def _draws(self) -> bool:
        values = [self.settings] + [
            dict(zip(a.names, row, strict=True)) for a in self.axes for row in a.rows
        ]
        return any(v.get("spread_ticks") or v.get("arrivals") == "poisson" for v in values)

    @property
    def num_settings(self) -> int:
        """How many choices of settings there are."""
        product = 1
        for axis in self.axes:
            product *= len(axis.rows)
        return product

    @property
    def num_cells(self) -> int:
        return self.num_settings * sum(len(self.seeds_of(t)) for t in self.traces)

    def choices(self) -> Iterator[Choice]:
        """All cells, in the order of the table: by trace, then settings, seeds last."""
        for trace in self.traces:
            for rows in itertools.product(*(axis.rows for axis in self.axes)):
                flat = dict(zip(self.varied, (v for row in rows for v in row), strict=True))
                for seed in self.seeds_of(trace):
                    yield Choice(trace, flat, seed)

    def document(self) -> dict[str, Any]:
        """JSON-able; equal for equal sweeps."""
        return {
            "name": self.name,
            "traces": [json.loads(t.key) for t in self.traces],
            "axes": [{"names": list(a.names), "rows": [list(r) for r in a.rows]} for a in self.axes],
            "seeds": list(self.seeds),
            "settings": dict(self.settings),
            "bounds": dict(self.bounds),
        }  # fmt: skip

    def say_count(self) -> str:
        """'2 traces x 6 settings x 3 seeds = 36 cells'."""
        cells = f"{self.num_cells:,} cell{'' if self.num_cells == 1 else 's'}"
        seeds = sum(len(self.seeds_of(t)) for t in self.traces)
        of = [(len(self.traces), "trace"), (self.num_settings, "setting")]
        if seeds == len(self.traces) * len(self.seeds):
            of.append((len(self.seeds), "seed"))
            parts = [f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in of]
            return f"{' x '.join(parts)} = {cells}"
        return f"{seeds:,} draws of {len(self.traces):,} traces x {self.num_settings:,} settings = {cells}"


def split_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of the engine, what is done to the trace)."""
    shape = {k: v for k, v in values.items() if k in SHAPE}
    return {k: v for k, v in values.items() if k not in SHAPE}, shape


def known_names() -> list[str]:
    """All settings that a sweep can fix or vary."""
    names = {f.name for f in fields(EngineSettings)} - set(_NOT_SETTINGS)
    return sorted(names | set(SHAPE))


# ---- from a file -----------------------------------------------------------------------------------


def read_spec(path: str | Path) -> SweepSpec:
    """The sweep that a TOML file describes (docs/sweeps.md). Raises SettingsError with line or key."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"{path.name}: there is no such file. Give the path of a sweep's TOML, or --grid."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path.name}: cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path.name}: not TOML: {error}.") from None
    except (RecursionError, ValueError):  # what tomllib leaves to Python
        raise SettingsError(
            f"{path.name}: not a sweep: it holds a number of thousands of digits, or tables in tables without end. docs/sweeps.md shows one."
        ) from None
    try:
        return _from_document(document, path)
    except SettingsError as error:
        raise SettingsError(f"{path.name}: {error}") from None


def _from_document(document: Mapping[str, Any], path: Path) -> SweepSpec:
    for key in document:
        if key not in _SECTIONS:
            raise SettingsError(
                f"unknown key {key!r}.{_near(key, _SECTIONS)} Known are {', '.join(_SECTIONS)}."
            )
    axes = [
        Axis((_setting(name, "[grid]"),), tuple((v,) for v in _values(name, values, "[grid]")))
        for name, values in _table(document, "grid").items()
    ]
    groups = document.get("zip", [])
    if not isinstance(groups, list):
        groups = [groups]
    axes += [_zipped(group, f"[[zip]] {i}") for i, group in enumerate(groups, start=1)]
    settings = {
        _setting(k, "[settings]"): _plain(v, f"[settings] {k}")
        for k, v in _table(document, "settings").items()
    }
    return make_spec(
        _traces(document.get("traces"), path),
        axes,
        _seeds(document.get("seeds", [0])),
        settings,
        _bounds(_table(document, "bounds")),
        str(document.get("name") or path.stem),
    )


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, Mapping):
        raise SettingsError(f"{key} must be a table, [{key}], not {found!r}.")
    return found


def _traces(given: Any, path: Path) -> tuple[TraceSpec, ...]:
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list):
        return tuple(trace_of(_string(t, "traces"), path.parent) for t in given)
    if not isinstance(given, Mapping) or not given:
        raise SettingsError(
            'no trace is given: traces = ["sample:chat", "my-trace.csv"], or a table [traces] of names.'
        )
    return tuple(_named_trace(name, value, path.parent) for name, value in given.items())


def _named_trace(name: str, value: Any, folder: Path) -> TraceSpec:
    where = f"[traces] {name}"
    if isinstance(value, str):
        return replace(trace_of(value, folder), name=name)
    if not isinstance(value, Mapping):
        raise SettingsError(f"{where} must be a path, or a table, not {value!r}.")
    if unknown := [k for k in value if k not in _TRACE_KEYS]:
        raise SettingsError(
            f"{where}: unknown key {unknown[0]!r}.{_near(unknown[0], _TRACE_KEYS)} Known are {', '.join(_TRACE_KEYS)}."
        )
    if ("path" in value) == ("synthetic" in value):
        raise SettingsError(f"{where}: give either path or synthetic.")
    if "synthetic" in value:
        if not isinstance(value["synthetic"], Mapping) or not value["synthetic"]:
            raise SettingsError(
                f"{where}.synthetic must be a table such as {{num_requests = 500, rate_per_s = 4, prompt = 800, output = 200}}."
            )
        return TraceSpec(name, synthetic=dict(value["synthetic"]))
    paths = value["path"] if isinstance(value["path"], list) else [value["path"]]
    if not paths:
        raise SettingsError(f"{where}.path is an empty list. Give the path of a trace.")
    mapping = value.get("map", {})
    if not isinstance(mapping, Mapping):
        raise SettingsError(f"{where}.map must be a table of role = column.")
    return TraceSpec(
        name,
        tuple(_at(_string(p, where), folder) for p in paths),
        mapping={str(k): str(v) for k, v in mapping.items()},
        time_unit=value.get("time_unit"),
    )


def trace_of(text: str, folder: Path | None = None) -> TraceSpec:
    """The trace that a path or sample:NAME names; folder: what relative paths start from."""
    name = text.removeprefix(SAMPLE_PREFIX)
    if name == text:
        name = Path(text).name or text
    return TraceSpec(name, (_at(text, folder or Path()),))


def _at(text: str, folder: Path) -> str:
    if text.startswith(SAMPLE_PREFIX):
        return text
    try:
        return str((folder / Path(text).expanduser()).resolve())
    except (
        RuntimeError,
        OSError,
        ValueError,
    ) as error:  # ~ of nobody, links in a circle, a NUL
        said = str(error).rstrip(".")
        raise SettingsError(
            f"the trace {text[:60]!r} cannot be looked for ({said[:200]}). Give a path that exists, or sample:NAME."
        ) from None


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{where}: {value!r} is not a path or sample:NAME.")
    return value


def _zipped(group: Any, where: str) -> Axis:
    """Settings whose i-th values go together."""
    if not isinstance(group, Mapping) or not group:
        raise SettingsError(f"{where} must be a table of settings with equally long lists.")
    names = tuple(_setting(name, where) for name in group)
    columns = [_list(name, values, where) for name, values in group.items()]
    lengths = {name: len(c) for name, c in zip(group, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {n:,}" for name, n in lengths.items())
        raise SettingsError(
            f"{where}: lists that go together must be equally long, and {said}."
        )
    return Axis(names, tuple(zip(*columns, strict=True)))


def _values(name: str, given: Any, where: str) -> list[Any]:
    """The values of one setting, no two alike."""
    values = _list(name, given, where)
    if (again := _first_again(values)) is not None:
        raise SettingsError(f"{where} {name}: {values[again]!r} is given twice. Leave one out.")
    return values


def _list(name: str, given: Any, where: str) -> list[Any]:
    if not isinstance(given, list):
        raise SettingsError(
            f"{where} {name} must be a list of values, not {given!r}. One value for all cells belongs in [settings]."
        )
    if not given:
        raise SettingsError(f"{where} {name}: the list is empty, so there is no cell to run.")
    return [_plain(v, f"{where} {name}") for v in given]


def _plain(value: Any, where: str) -> Any:
    """A value as EngineSettings takes it: lists as tuples, "none" as None."""
    if isinstance(value, list) and not any(isinstance(v, (list, Mapping)) for v in value):
        return tuple(value)
    if isinstance(value, str) and value.lower() == "none":
        return None
    if isinstance(value, (str, int, float, bool, Mapping)):
        return value
    raise SettingsError(f"{where}: {value!r} is no value of a setting.")


def _first_again(values: Sequence[Any]) -> int | None:
    """Place of the first value that stood there before; 1 and 1.0 are one value, 1 and true are two."""
    seen = set()
    for i, value in enumerate(values):
        key = (isinstance(value, bool), repr(value) if isinstance(value, Mapping) else value)
        if key in seen:
            return i
        seen.add(key)
    return None


def _setting(name: str, where: str) -> str:
    """The setting of that name, with - or _, or a flag's. Raises SettingsError with what is near."""
    plain = name.strip().lstrip("-").replace("-", "_")
    plain = ALIASES.get(plain, plain)
    if plain in _NOT_SETTINGS:
        raise SettingsError(
            f"{where}: {name!r} is not varied like a setting. {_NOT_SETTINGS[plain]}"
        )
    names = known_names()
    if plain not in names:
        raise SettingsError(
            f"{where}: unknown setting {name!r}.{_near(plain, names)} Known are {', '.join(names)}."
        )
    return plain


def _near(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1, 0.6)
    return f" Did you mean {close[0]}?" if close else ""


def _seeds(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not given:
        raise SettingsError(f"seeds must be a list of whole numbers, not {given!r}.")
    _check_num_seeds(len(given))
    for seed in given:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SettingsError(f"seeds: {seed!r} is not a whole number of at least 0.")
        if seed > _LARGEST_SEED:
            raise SettingsError(f"seeds: one is too large. Give at most {_LARGEST_SEED:,}.")
    if (again := _first_again(given)) is not None:
        raise SettingsError(f"seeds: {given[again]} is given twice. Leave one out.")
    return tuple(given)


def _check_num_seeds(num: int) -> None:
    if num > MAX_SEEDS:
        raise SettingsError(f"seeds: more than {MAX_SEEDS:,} are given. Give fewer.")


def _bounds(given: Mapping[str, Any], where: str = "[bounds]") -> dict[str, float]:
    for name, value in given.items():
        if name not in BOUNDS:
            raise SettingsError(
                f"{where}: unknown bound {name!r}.{_near(name, BOUNDS)} Known are {', '.join(BOUNDS)}, in seconds."
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):  # fmt: skip
            raise SettingsError(f"{where}: {name} must be a number of seconds, not {value!r}.")
    return {name: float(value) for name, value in given.items()}


# ---- from flags ------------------------------------------------------------------------------------


def parse_value(text: str) -> Any:
    """A value as a flag gives it: 64, 0.9, true, none, 5/0.05/0.1 (a list), or a word."""
    plain = text.strip()
    lower = plain.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower == "none":
        return None
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    parts = plain.split("/")
    if len(parts) == 3:
        try:
            return tuple(float(p) for p in parts)
        except ValueError:
            return plain
    return plain


def parse_grid(text: str) -> Axis:
    """'name=v1,v2,...' as an axis; 'a+b=1+2,3+4' varies a and b together. Raises SettingsError."""
    name, equals, listed = text.partition("=")
    if not equals:
        raise SettingsError(
            f"--grid {text!r} is not NAME=VALUE,VALUE,... such as kv_tokens=24000,41408."
        )
    names, items = name.split("+"), [v for v in listed.split(",") if v.strip()]
    if len(names) == 1:
        values = _values(name, [parse_value(v) for v in items], "--grid") if items else _list(name, [], "--grid")  # fmt: skip
        return Axis((_setting(name, "--grid"),), tuple((v,) for v in values))
    rows = [tuple(parse_value(v) for v in item.split("+")) for item in items]
    if wrong := [item for item, row in zip(items, rows, strict=True) if len(row) != len(names)]:
        raise SettingsError(
            f"--grid {name}: {wrong[0]!r} does not give {len(names)} values, joined by +."
        )
    columns = {n: [row[i] for row in rows] for i, n in enumerate(names)}
    return _zipped(columns, "--grid")


def parse_setting(text: str) -> tuple[str, Any]:
    """'name=value' of every cell. Raises SettingsError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingsError(f"--set {text!r} is not NAME=VALUE such as device=rtx-4090.")
    return _setting(name, "--set"), parse_value(value)


def parse_bound(text: str) -> tuple[str, float]:
    """'ttft_s=2'. Raises SettingsError."""
    name, _, value = text.partition("=")
    return next(iter(_bounds({name: parse_value(value)}, "--bound").items()))


def parse_seeds(text: str) -> tuple[int, ...]:
    """'0,1,2', or '0-9'. Raises SettingsError."""
    first, dash, last = text.partition("-")
    if dash and first.strip().isdecimal() and last.strip().isdecimal():
        if max(len(first), len(last)) > len(str(_LARGEST_SEED)) + 1:
            raise SettingsError(f"seeds: give at most {_LARGEST_SEED:,}.")
        _check_num_seeds(int(last) - int(first) + 1)
        return _seeds(list(range(int(first), int(last) + 1)))
    return _seeds([parse_value(v) for v in text.split(",")])


# ---- the whole -------------------------------------------------------------------------------------


def make_spec(
    traces: Sequence[TraceSpec],
    axes: Sequence[Axis],
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Any] | None = None,
    bounds: Mapping[str, float] | None = None,
    name: str = "sweep",
) -> SweepSpec:
    """A checked sweep. Raises SettingsError where parts contradict each other."""
    settings = dict(settings or {})
    if not traces:
        raise SettingsError("no trace is given: name one, or sample:NAME.")
    for i, trace in enumerate(traces):
        if any(trace.name == other.name for other in traces[:i]):
            raise SettingsError(
                f"two traces are called {trace.name!r}. Name them in a table: [traces] first = ..., second = ..."
            )
    seen: set[str] = set()
    for axis in axes:
        if not axis.rows:
            raise SettingsError(
                f"{'+'.join(axis.names)}: no values, so there is no cell to run."
            )
        for n in axis.names:
            if n in seen:
                raise SettingsError(f"{n} is varied twice. Put all its values in one list.")
            if n in settings:
                raise SettingsError(
                    f"{n} is varied, and fixed at {settings[n]!r} too. Leave one out."
                )
            if n in KNOWN:
                raise SettingsError(f"{n} is the name of a column of results.")
            seen.add(n)
        if (again := _first_again([repr(row) for row in axis.rows])) is not None:
            raise SettingsError(
                f"{'+'.join(axis.names)}: {axis.rows[again]!r} is given twice. Leave one out."
            )
    if settings.get("clock") == "measured":
        raise SettingsError(
            "clock measured takes its times from one recording, so it cannot be swept. Use the modelled clock."
        )
    return SweepSpec(
        tuple(traces), tuple(axes), tuple(seeds), settings, dict(bounds or {}), name
    )
