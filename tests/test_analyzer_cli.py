"""`python -m analyzer`: exact keys, one sentence for what is wrong, nothing heavy imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.__main__ import main
from analyzer.words import show_delta
from tests.builders import make_meta, make_requests, make_steps, write
from tests.worlds import chunked_return

ROOT = Path(__file__).parents[1]
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "itl_s")
KEYS = {
    "num_requests", "num_finished", "num_refused", "num_steps", "duration_s", "num_preemptions", "num_preempted_requests",
    "preemption_cost_s",    "recomputed_tokens", "recomputed_frac", "prefix_cached_tokens", "restored_tokens", "swap_out_bytes", "swap_in_bytes", "stall_s",
    "peak_used_frac", "full_steps_frac", "output_tokens_per_s", *LATENCIES,
}  # fmt: skip


def test_summary_prints_these_figures_under_these_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "run", **chunked_return())

    code = main(["summary", str(run), "--json"])

    figures = json.loads(capsys.readouterr().out)
    assert code == 0
    assert set(figures) == KEYS
    assert {k: v for k, v in figures.items() if k not in LATENCIES} == {
        "num_requests": 2,
        "num_finished": 2,
        "num_refused": 0,
        "num_steps": 8,
        "duration_s": 9.0,
        "num_preemptions": 1,
        "num_preempted_requests": 1,
        "preemption_cost_s": pytest.approx(0.4 * 4 / 6),
        "restored_tokens": 0,
        "recomputed_tokens": 4,
        "recomputed_frac": pytest.approx(4 / 19),
        "prefix_cached_tokens": 2,
        "swap_out_bytes": 0,
        "swap_in_bytes": 0,
        "stall_s": 0.0,
        "peak_used_frac": 1.0,
        "full_steps_frac": 0.125,
        "output_tokens_per_s": 1.0,
    }
    assert figures["ttft_s"] == {
        "mean": 1.25,
        "p50": 1.25,
        "p90": 1.45,
        "p99": pytest.approx(1.495),
    }
    assert figures["itl_s"]["mean"] == pytest.approx(12 / 7)
    assert figures["queue_s"]["p50"] == 0.25
    assert figures["e2e_s"]["p90"] == pytest.approx(8.25)
    assert figures["tpot_s"]["mean"] == pytest.approx((5 / 4 + 7 / 3) / 2)


def test_figures_that_nothing_supports_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = make_requests([{"request_id": "a", "status": "refused"}])

    main(["summary", str(write(tmp_path / "run", requests=requests)), "--json"])

    figures = json.loads(capsys.readouterr().out)
    assert (figures["num_requests"], figures["num_refused"], figures["num_steps"]) == (1, 1, 0)
    assert figures["duration_s"] == 0.0
    for key in ("recomputed_frac", "peak_used_frac", "full_steps_frac", "output_tokens_per_s"):
        assert figures[key] is None
    for key in LATENCIES:
        assert figures[key] == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_compare_prints_both_sides_their_difference_and_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (write(tmp_path / side, **chunked_return()) for side in "ab")

    code = main(["compare", str(a), str(b), "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert set(found) == {"a", "b", "delta", "verdict", "estimated", "notes"}
    assert found["estimated"] == {"A": [], "B": []}
    assert set(found["a"]) == set(found["b"]) == set(found["delta"]) == KEYS
    assert found["delta"]["duration_s"] == 0.0
    assert found["delta"]["e2e_s"] == {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}
    assert "no difference" in found["verdict"]


def test_tables_are_printed_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (write(tmp_path / side, **chunked_return()) for side in "ab")

    main(["summary", str(a)])
    main(["compare", str(a), str(b)])

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "Preemptions num_preemptions 1" in lines
    assert "Recomputed, of all computed recomputed_frac 21.1 %" in lines
    assert "Duration duration_s 9.00 s 9.00 s 0 s 0 % no difference" in lines


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("swap_out_bytes", 26_384_269_312, "+24.6 GiB"),
        ("num_steps", -1234, "−1,234"),
        ("itl_s p90", 0.000381, "+381 µs"),
        ("duration_s", 0.0, "0 s"),
        ("recomputed_frac", -0.01347, "−1.35 points"),
        ("duration_s", None, "—"),
    ],
)
def test_differences_are_shown_with_sign_unit_and_three_digits(
    metric: str, value: float | None, shown: str
) -> None:
    assert show_delta(metric, value) == shown


def test_a_recording_that_cannot_be_read_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["summary", str(tmp_path / "nothing"), "--json"])

    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err == "error: nothing: there is no such file or folder. Check the path.\n"


def test_different_workloads_are_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write(tmp_path / "a", **chunked_return())
    b = write(
        tmp_path / "b", steps=make_steps([1]), meta=make_meta(workload={"digest": "other"})
    )

    code = main(["compare", str(a), str(b)])

    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith(
        "error: a and b come from different workloads: 0 % of request ids"
    )


def test_notes_go_to_stderr_where_json_goes_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["summary", str(write(tmp_path / "run", **chunked_return(), closed=False)), "--json"])

    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err.startswith("note: The recording was not closed")


def test_request_ids_with_markup_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["summary", str(write(tmp_path / "[bold]run", **chunked_return()))])

    assert "[bold]run" in capsys.readouterr().out


def test_the_command_imports_neither_the_page_nor_the_engine(tmp_path: Path) -> None:
    run = write(tmp_path / "run", **chunked_return())
    heavy = "streamlit", "plotly", "torch", "numba", "pandas", "engine"
    script = (
        "import sys; from analyzer.__main__ import main; "
        f"main(['compare', {str(run)!r}, {str(run)!r}, '--json']); "
        f"sys.exit(','.join(m for m in {heavy!r} if m in sys.modules) or 0)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
