"""Evidence that was cut, spoilt or seen once: no crash, and no more said than it carries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analyzer.__main__ import main
from analyzer.diagnosis import diagnose
from analyzer.diagnosis.wording import singular
from tests.evidence_log_builders import v1_line
from traces.evidence.reading import read_evidence

STALLED = (
    'vllm:num_requests_running{engine="0"} 0\n'
    'vllm:num_requests_waiting{engine="0"} 184\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.02\n'
)


@pytest.mark.parametrize(("num", "severity"), [(1, "medium"), (3, "high")])
def test_one_scrape_of_a_queue_before_an_empty_pool_is_no_certainty(
    num: int, severity: str
) -> None:
    text = "".join(f"2025-10-01T00:00:{15 * i:02}Z\n{STALLED}" for i in range(num))

    found = diagnose(read_evidence([], pasted=text))

    assert found.verdicts[0].word == "OVERSIZE_REQUEST"
    assert found.verdicts[0].severity == severity
    asked = any("takes steps" in m.what for m in found.missing)
    assert asked == (num == 1)


def test_a_line_of_a_rank_that_nobody_else_names_is_no_idle_rank() -> None:
    full = [re.sub(r"usage: [\d.]+", "usage: 98.1", v1_line(i)) for i in range(30)]
    spoilt = re.sub(r"Waiting: \d+", "Waiting: 0", v1_line(0)).replace(
        "Engine 000", "Engine 008"
    )

    assert "DP_IMBALANCE" not in {
        v.word for v in diagnose(read_evidence([], pasted="\n".join([*full, spoilt]))).verdicts
    }


def test_a_step_line_without_counts_between_others_is_no_crash() -> None:
    def line(i: int, counts: str, usage: float) -> str:
        return (
            f"INFO 10-15 00:04:{i:02} [core.py:1] Iteration({i}): {counts} "
            f"iteration elapsed time: 9.1 ms, KV cache usage: {usage}%"
        )

    counts = "0 context requests, 0 context tokens, 9 generation requests, 9 generation tokens,"
    lines = [line(1, counts, 99.9), line(2, "", 98.0), line(3, counts, 99.9), line(4, "", 90.0)]

    assert diagnose(read_evidence([], pasted="\n".join(lines))).verdicts


def test_one_of_a_thing_is_no_plural() -> None:
    assert (
        singular("fell 1 times; 1 requests wait outside")
        == "fell 1 time; 1 request waits outside"
    )
    kept = "21 requests wait, 0 to 1 requests, x 1 blocks, 1,1 requests, 1.1 requests, 3 x 1 tokens"
    assert singular(kept) == kept


def test_a_name_that_is_too_long_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "x" * 5000]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert "it cannot be opened" in said.err


def test_an_empty_folder_is_said_to_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path), "--json"]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert "is an empty folder. Give a log" in said.err


def test_a_pool_that_was_full_is_not_called_calm_without_saying_so() -> None:
    lines = [
        re.sub(
            r"Waiting: \d+", "Waiting: 0", re.sub(r"usage: [\d.]+", f"usage: {u}", v1_line(i))
        )
        for i, u in enumerate([60.0, 99.8, 40.0])
    ]

    found = diagnose(read_evidence([], pasted="\n".join(lines)))

    assert found.verdicts[0].word == "NO_PRESSURE_YET"
    assert "reached 99.8 %, is 40.0 % now" in found.verdicts[0].statement
    assert any("evicted at the top" in m.what for m in found.missing)


def test_a_running_count_that_stands_still_may_be_at_a_limit_that_nobody_states() -> None:
    line = (
        "[2025-10-01 00:00:{:02}] Decode batch, #running-req: 37, #token: 4000, token usage: 0.20, "
        "cuda graph: True, gen throughput (token/s): 900.00, #queue-req: 90"
    )
    text = "\n".join(line.format(i) for i in range(0, 50, 5))

    found = diagnose(read_evidence([], pasted=text))

    assert found.verdicts[0].word == "RESERVATION_BLOCKED"
    assert found.verdicts[0].severity == "medium"
    assert any("limit on running requests" in m.what for m in found.missing)
