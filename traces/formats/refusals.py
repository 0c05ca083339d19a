"""Files that are understood and are no request trace: what they are and what to use instead.

Knows telemetry (series that a replay is compared with) and the files that people take for traces:
profiles, aggregates, lengths, conversations, archives, pickles. Looks at the head of the file only;
nothing is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from traces.errors import NotAWorkloadError
from traces.formats.packed import ZIP_DAMAGE
from traces.formats.source import Source, reading

TELEMETRY, REFUSED = "telemetry", "refused"
_SERIES = (
    "It is what a server reported, to compare a replay with, and holds no requests to replay: "
    "give a request trace as well."
)


@dataclass(frozen=True)
class Recognised:
    """kind: TELEMETRY or REFUSED; format: its name; reason, remedy: sentences for the user."""

    kind: str
    format: str
    reason: str
    remedy: str

    def error(self, source: Source) -> NotAWorkloadError:
        return NotAWorkloadError(source.name, "", self.reason, self.remedy)


def _telemetry(name: str) -> Recognised:
    return Recognised(TELEMETRY, name, f"it is telemetry: {name}", _SERIES)


def _refused(name: str, reason: str, remedy: str) -> Recognised:
    return Recognised(REFUSED, name, reason, remedy)


def recognise(source: Source) -> Recognised | None:
    """What the file is, if it is known and no request trace; else None."""
    tests: tuple[Callable[[Source], Iterator[Recognised]], ...]
    if source.shape in ("binary", "zip"):
        tests = (_containers,)
    elif source.shape == "json":
        tests = (_json_series, _json_reports, _json_texts)
    elif source.shape == "parquet":
        tests = (_tables, _conversations)
    else:
        tests = (_texts, _tables, _headerless)
    return next((r for test in tests for r in test(source)), None)


def _containers(source: Source) -> Iterator[Recognised]:
    head, low = source.magic, source.name.lower()
    if source.shape == "zip":
        yield _zip(source)
    packed = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"Rar!": "RAR", b"7z\xbc\xaf": "7-Zip"}
    for magic, name in packed.items():
        if head.startswith(magic):
            yield _refused(
                name, f"it is packed with {name}", "Unpack it, or pack it as .gz or .zst."
            )
    if re.match(rb"\x80[\x02-\x05]", head) or low.endswith((".pkl", ".pickle", ".pt", ".pth")):
        yield _refused(
            "pickle",
            "it is a Python pickle, and opening one can run any code",
            "Convert it to CSV or JSON lines.",
        )
    if head.startswith(b"\x00\x05\x16\x07"):
        yield _refused(
            "AppleDouble",
            "it is macOS's hidden companion of a file",
            "Give the file without ._ before its name.",
        )
    kinds = {
        b"SQLite format 3": "an SQLite database",
        b"\xd0\xcf\x11\xe0": "an old Excel workbook",
        b"\x89HDF": "an HDF5 file",
        b"ARROW1": "an Arrow IPC (Feather) file",
        b"\x93NUMPY": "a NumPy array",
        b"%PDF": "a PDF",
        b"Obj\x01": "an Avro file",
    }
    for magic, name in kinds.items():
        if head.startswith(magic):
            yield _refused(
                name, f"it is {name}", "Export the table as CSV, JSON lines or Parquet."
            )
    if low.endswith((".tar", ".tar.gz", ".tgz")) or b"ustar" in head:
        yield _refused(
            "tar", "it is a tar archive", "Unpack it and give the trace file inside."
        )
    yield _refused("binary", "it is a binary file of a kind that is not known", _WHAT_IS_READ)


_WHAT_IS_READ = "Give a CSV, TSV, JSON, JSON lines or Parquet file, plain or as .gz or .zst."


def _zip(source: Source) -> Recognised:
    import zipfile

    try:
        with zipfile.ZipFile(source.path) as z:
            members = [
                m for m in z.namelist() if not m.endswith("/") and not m.startswith("__MACOSX")
            ]
    except ZIP_DAMAGE:
        return _refused(
            "zip", "the zip archive is damaged or cut off", "Copy or download it again."
        )
    if any(m.startswith("xl/") for m in members):
        return _refused("Excel", "it is an Excel workbook", "Save the sheet as CSV.")
    inside = ", ".join(members[:3]) + (
        f" and {len(members) - 3} more" if len(members) > 3 else ""
    )
    return _refused(
        "zip",
        f"it is a zip archive ({inside or 'empty'}) and no recording",
        "Unpack it and give the trace file inside.",
    )


_VLLM_LOG = r"Avg prompt throughput|GPU KV cache (?:size|usage)|Running: \d+ reqs"
_LOG_CHARS = 4 << 20  # start-up lines of a server may fill more than the head


def _more_of_log(source: Source) -> str:
    if not source.name.lower().endswith((".log", ".txt", ".out")):
        return ""
    with source.open_text() as f, reading(source):
        return f.read(_LOG_CHARS)


def _texts(source: Source) -> Iterator[Recognised]:
    head = source.head
    if head.startswith("version https://git-lfs.github.com"):
        yield _refused(
            "Git LFS pointer",
            "it is a Git LFS pointer, not the file itself",
            "Fetch the file with git lfs pull.",
        )
    if re.match(r"\s*<(?:!doctype html|html|\?xml)", head, re.IGNORECASE):
        yield _refused(
            "web page",
            "it is a web page or XML",
            "Download the raw file behind the page's download link.",
        )
    if re.search(_VLLM_LOG, head) or re.search(_VLLM_LOG, _more_of_log(source)):
        yield _telemetry("vLLM engine log")
    if re.search(r"Decode batch.*#running-req|#queue-req", head):
        yield _telemetry("SGLang engine log")
    if re.search(r"^# (?:HELP|TYPE) ", head, re.MULTILINE):
        yield _telemetry("Prometheus text metrics")
    if re.search(r'"(?:GET|POST|PUT) [^"]* HTTP/\d', head):
        yield _refused(
            "access log",
            "it is an access log: it tells that requests came, not how long they were",
            "Give a request log with token counts (LiteLLM, OpenTelemetry, vllm bench serve --save-detailed).",
        )


def _tables(source: Source) -> Iterator[Recognised]:
    low = {c.lower() for c in source.columns}
    if {"running", "waiting", "kv_cache_pct"} <= low:
        yield _telemetry("time series of running, waiting and KV cache use")
    if (
        any(re.match(r"(?:vllm|sglang|trtllm|tgi)[:_]", c) for c in low)
        or {"metric_name", "timestamp_ns"} <= low
    ):
        yield _telemetry("metrics of a serving engine")
    if {"gmt_create", "predict_type"} & low and "num_inference_steps" in low:
        yield _refused(
            "GenTD26",
            "its requests make images and have no output tokens",
            "Give a trace of a language model.",
        )
    if source.columns[:2] == ("Run Info", "Run Info"):
        yield _refused(
            "guidellm CSV",
            "it holds guidellm's aggregates, one row a benchmark",
            "Give guidellm's JSON output: it lists the requests.",
        )


def _headerless(source: Source) -> Iterator[Recognised]:
    """A table whose first line is data. ServeGen's client profiles are one of that kind."""
    if source.shape != "csv":
        return
    cells = source.columns
    if (
        len(cells) == 6
        and cells[3] in ("", "Gamma", "Weibull")
        and all(map(_is_number, cells[:3]))
    ):
        yield _refused(
            "ServeGen client profile",
            "it is a ServeGen client profile: rates and burstiness per window, not requests",
            "Generate requests from it with ServeGen and give those, or make a synthetic workload.",
        )
    if len(cells) > 1 and all(_is_number(c) or not c for c in cells):
        yield _refused(
            "table without a header",
            "its first line is data, not column names",
            "Add a header line with the names.",
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _json_series(source: Source) -> Iterator[Recognised]:
    first = source.first if isinstance(source.first, dict) else {}
    data = first.get("data")
    if isinstance(data, dict) and "resultType" in data:
        yield _telemetry("Prometheus query answer")
    if {"endpoint_url", "metrics"} <= set(first) or {"metric_name", "value"} <= set(first):
        yield _telemetry("metrics of a serving engine")
    if "events" in first and ("ts" in first or "data_parallel_rank" in first):
        yield _refused(
            "KV events",
            "KV cache events carry no request ids",
            "Give a request trace of the same time.",
        )
    if "schedule_state" in first:
        yield _refused(
            "scheduler probes",
            "it holds probes of a scheduler's state, not a complete list of requests",
            "Give the request log of the run.",
        )
    if {"running", "waiting", "scheduled"} <= set(first):
        yield _refused(
            "scheduler decisions",
            "it holds what a scheduler decided step by step, not the requests",
            "Give the request trace that was run.",
        )


_RUN_DETAILED = "Give a per-request file: vllm bench serve --save-result --save-detailed, aiperf's profile_export.jsonl or guidellm's JSON."


def _json_reports(source: Source) -> Iterator[Recognised]:
    first = source.first if isinstance(source.first, dict) else {}
    keys = set(first)
    values = list(first.values())
    if keys and all(_is_number(k) for k in keys) and isinstance(values[0], dict):
        yield _refused(
            "ServeGen client data set",
            "it is a ServeGen client data set: distributions of lengths, not requests",
            "Generate requests from it with ServeGen and give those, or make a synthetic workload.",
        )
    if {"successes", "failures"} <= keys:
        yield _refused(
            "inference-perf summary",
            "it holds inference-perf's aggregates",
            "Give per_request_lifecycle_metrics.json of the run, or the trace it replayed.",
        )
    if "aiperf_version" in keys or ({"request_count", "request_throughput"} <= keys):
        yield _refused(
            "aiperf summary",
            "it holds aiperf's aggregates",
            "Give profile_export.jsonl of the same run: it lists the requests.",
        )
    if {"input_lens", "output_lens"} <= keys and "start_times" not in keys:
        yield _refused(
            "benchmark lengths",
            "its requests have lengths but no start times (SGLang's bench_serving writes none)",
            _RUN_DETAILED,
        )
    if "experiments" in keys and "service_kind" in keys | {"service_kind"}:
        yield _refused(
            "genai-perf", "its requests are texts without token counts", _RUN_DETAILED
        )
    if "token_length" in keys and len(keys) == 2:
        yield _refused(
            "RAGPulse segment map",
            "it maps RAGPulse's segment ids to lengths and holds no requests",
            "Open 0_trace.jsonl; the maps are found when they lie beside it.",
        )
    if {"engine_kwargs", "vllm_version"} & keys and "requests" not in keys:
        yield _refused(
            "run description",
            "it describes a run and lists no requests",
            "Give the requests file of the run.",
        )
    if "architectures" in keys or "num_hidden_layers" in keys:
        yield _refused(
            "model configuration",
            "it is a model's config.json",
            "Choose it as the model; give a request trace here.",
        )


def _json_texts(source: Source) -> Iterator[Recognised]:
    keys = set(source.first) if isinstance(source.first, dict) else set()
    if {"custom_id", "body"} <= keys:
        yield _refused(
            "OpenAI batch",
            "a batch file has neither arrival times nor token counts",
            _RUN_DETAILED,
        )
    yield from _conversations(source)
    if source.first is not None and not isinstance(source.first, dict):
        yield _refused(
            "JSON without records",
            "its records are not objects with named fields",
            "Give one JSON object a request, with arrival, prompt and output tokens.",
        )


def _conversations(source: Source) -> Iterator[Recognised]:
    keys = set(source.columns)
    texts = {"conversations", "conversation", "messages", "trajectory"} & keys
    if texts and not {"prompt_tokens", "input_tokens", "input_length"} & keys:
        yield _refused(
            "conversations",
            "it holds texts of conversations, without token counts",
            "Tokenise it and add arrival times, or draw a synthetic workload of the same lengths.",
        )


def refusal(source: Source) -> NotAWorkloadError | None:
    """Why this file is no request trace and what to use instead, or None."""
    found = recognise(source)
    return None if found is None else found.error(source)
