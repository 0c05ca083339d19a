"""`python -m traces describe`: its keys, its exit status, its table, and what importing costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import make_requests, record
from traces import open_any
from traces.__main__ import main
from traces.description import FIGURES, describe
from traces.recording import Recording, zip_recording

FIXTURES = Path(__file__).parent / "fixtures" / "formats"
SUMMARY = {"min", "p50", "p90", "p99", "max", "mean", "sum"}


def test_one_file_gives_one_object_with_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["describe", str(FIXTURES / "azure-2023.csv"), "--json"])

    one = json.loads(capsys.readouterr().out)
    assert status == 0
    assert {"kind", "format", "notes", *FIGURES} <= set(one)
    assert set(one["prompt_tokens"]) == SUMMARY
    assert one["prompt_tokens"] == {
        "min": 100,
        "p50": 250,
        "p90": 370,
        "p99": 397,
        "max": 400,
        "mean": 250,
        "sum": 750,
    }
    assert one["output_tokens"]["p90"] == pytest.approx(28.0)


def test_a_bad_file_among_many_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"arrival_s,prompt_tokens,output_tokens\n0,x,1\n")

    status = main(
        ["describe", str(bad), str(FIXTURES / "vidur.csv"), str(tmp_path / "none"), "--json"]
    )

    found = json.loads(capsys.readouterr().out)
    assert status == 1
    assert [f["kind"] for f in found] == ["refused", "workload", "refused"]
    assert found[0]["reason"] == "row 1, column prompt_tokens: 'x' is not a number of tokens"
    assert found[2]["what_to_do"] == "Check the path."


def test_telemetry_and_workloads_exit_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["describe", str(FIXTURES / "prometheus.json"), str(FIXTURES / "weka-a.json")])
        == 0
    )
    out = capsys.readouterr().out

    assert "telemetry: Prometheus query answer" in out
    assert "3 requests in 20.000 s" in out
    assert "set aside: 1 zero output tokens; 4 can be replayed" in out


def test_the_table_shows_figures_columns_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["describe", str(FIXTURES / "mooncake-conversation.jsonl")])
    out = capsys.readouterr().out

    assert "5 requests in 3.000 s, the first at 0.000000 s (ms), 3 share a time" in out
    assert "prompt             512.0" in out
    assert "prefixes: 5 distinct" in out
    assert "columns: arrival_s = timestamp" in out
    assert "note: The clock ticks about every 3 s" in out


def test_a_mapping_and_a_unit_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(
        [
            "describe",
            str(FIXTURES / "columns.tsv"),
            "--json",
            "--time-unit",
            "s",
            "--map",
            "arrival_s=when_ms",
            "--map",
            "prompt_tokens=n_prompt",
            "--map",
            "output_tokens=n_gen",
        ]
    )

    one = json.loads(capsys.readouterr().out)
    assert status == 0
    assert one["span_s"] == 500.0


@pytest.mark.parametrize(
    "argv", [[], ["describe"], ["describe", "x", "--map", "nonsense"], ["dance"]]
)
def test_a_wrong_command_line_exits_with_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as e:
        main(argv)

    assert e.value.code == 2
    assert "usage: python -m traces" in capsys.readouterr().err


def test_names_and_cells_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "t\x1b[31m.csv"
    path.write_bytes(b"arrival_s,prompt_tokens,output_tokens\n0,\x1b[2J,1\n")

    main(["describe", str(path)])

    assert "\x1b" not in capsys.readouterr().out


def test_a_trace_of_which_nothing_is_left_is_refused_with_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"arrival_s,prompt_tokens,output_tokens\n0,7,0\n1,9,0\n")

    found = describe(path)

    assert found["kind"] == "refused"
    assert found["requests"] == 2
    assert found["reason"] == "none of its 2 records can be replayed (2 zero output tokens)"


def test_lengths_without_arrivals_are_refused_with_their_percentiles() -> None:
    found = describe(FIXTURES / "vidur-lengths.csv")

    assert found["kind"] == "refused"
    assert found["requests"] == 2
    assert found["prompt_tokens"]["sum"] == 80
    assert found["first_s"] is None


def test_prefix_sharing_is_summed_up() -> None:
    # prompts 1100, 600, 1024, 512, 1500: the hits are 0, 512, 1024, 512, 1024 of 4,736 tokens
    assert describe(FIXTURES / "mooncake-conversation.jsonl")["prefix"] == {
        "block_size": 512,
        "hash_blocks": 11,
        "distinct_blocks": 5,
        "ideal_prefix_hit_token_ratio": pytest.approx(3072 / 4736),
    }


def test_importing_traces_imports_no_reader() -> None:
    code = "import sys, traces; print([m for m in sys.modules if m.split('.')[0] in ('polars', 'pyarrow', 'numpy')])"

    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert out.stdout.strip() == "[]"


def test_a_name_with_wildcards_is_one_file(tmp_path: Path) -> None:
    row = b'{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n'
    table = b"arrival_s,prompt_tokens,output_tokens\n0,1,1\n"
    for name, data in (
        ("a*.jsonl", row),
        ("ab.jsonl", row),
        ("a[b].csv", table),
        ("a?.csv", table),
        ("ac.csv", table),
    ):
        (tmp_path / name).write_bytes(data)

    for name in ("a*.jsonl", "a[b].csv", "a?.csv"):
        assert describe(tmp_path / name)["requests"] == 1


def test_the_names_of_the_package_are_found_lazily() -> None:
    import traces

    assert traces.describe(FIXTURES / "vidur.csv")["kind"] == "workload"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = traces.nothing


def test_a_recording_is_described_by_its_requests(tmp_path: Path) -> None:
    root = make_recording(tmp_path / "run")

    for path in (root, root.with_suffix(".zip")):
        if path.suffix:
            zip_recording(root, path)
        found = describe(path)
        assert (found["kind"], found["format"]) == ("recording", "KV Replay recording")
        assert found["requests"] == 2
        assert found["prompt_tokens"]["sum"] == 30
        assert isinstance(open_any(path), Recording)


def test_a_damaged_recording_is_refused_with_the_remedy(tmp_path: Path) -> None:
    root = make_recording(tmp_path / "run")
    (root / "steps" / "part-00000.parquet").write_bytes(b"PAR1 and no more")

    found = describe(root)

    assert found["kind"] == "refused"
    assert found["what_to_do"]


def make_recording(root: Path) -> Path:
    """A recording of two requests of 10 and 20 prompt tokens."""
    rows = [
        {"request_id": "a", "arrival_s": 0.0, "prompt_tokens": 10, "output_tokens": 1},
        {"request_id": "b", "arrival_s": 0.5, "prompt_tokens": 20, "output_tokens": 1},
    ]
    record(root, requests=make_requests(rows)).close()
    return root


def test_a_bundled_sample_is_described_by_its_name() -> None:
    found = describe("sample:chat")

    assert (found["kind"], found["requests"], found["first_s"]) == ("workload", 2000, 0.0)


def test_an_unknown_sample_lists_the_known_ones() -> None:
    found = describe("sample:nothing")

    assert found["kind"] == "refused"
    assert "chat" in found["reason"]
