"""Numbers that nobody can mean, and text that no terminal should be sent, are missing values and no errors."""

from __future__ import annotations

import json

import pytest

from analyzer.diagnosis import diagnose
from tests.evidence_log_builders import v1_line
from traces.evidence.evidence import Evidence
from traces.evidence.meant import is_meant, rows_that_are_meant, whole
from traces.evidence.reading import read_evidence

ABSURD = ("NaN", "+Inf", "-Inf", "1e308", "1e999", "9" * 30, "9" * 400, "-5", "1e-320", "0x10")
HEAD = "--max-num-seqs 8 --max-model-len 4096"


def told(text: str) -> Evidence:
    """The evidence of a paste; its diagnosis must be JSON without NaN."""
    evidence = read_evidence([], pasted=text)
    json.dumps(diagnose(evidence).as_json(), allow_nan=False)
    return evidence


@pytest.mark.parametrize("value", ABSURD)
def test_an_absurd_value_in_a_scrape_is_missing(value: str) -> None:
    lines = [
        f'vllm:{name}{{engine="0"}} {value}'
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    ]
    lines.append(f'vllm:cache_config_info{{block_size="{value}",num_gpu_blocks="{value}"}} 1.0')

    evidence = told("\n".join([*lines, 'vllm:num_preemptions_total{engine="0"} 3']))

    samples = evidence.telemetry.samples if evidence.telemetry is not None else None
    assert samples is not None
    assert samples["preemptions_total"].to_list() == [3]
    if value not in ("1e-320", "0x10"):
        assert samples["num_running"].to_list() == [None]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e308", "1e999", "9" * 400])
def test_an_absurd_value_in_json_statistics_is_missing(value: str) -> None:
    lines = [
        f'{{"iter":{i},"numActiveRequests":{value},"numScheduledRequests":2,'
        f'"kvCacheStats":{{"maxNumBlocks":{value},"usedNumBlocks":{value},"freeNumBlocks":7}}}}'
        for i in range(4)
    ]

    evidence = told("\n".join(lines))

    assert evidence.telemetry is not None
    assert evidence.telemetry.samples["num_running"].to_list() == [2, 2, 2, 2]
    assert evidence.fact("pool_blocks") is None


@pytest.mark.parametrize("digits", [12, 30, 400, 5000])
def test_an_absurd_rank_is_none(digits: int) -> None:
    line = v1_line(0).replace("Engine 000", f"Engine {'9' * digits}")
    process = f"(EngineCore_DP{'9' * digits} pid=3) {v1_line(1)}"

    evidence = told("\n".join([line, process]))

    assert evidence.telemetry is not None
    assert 36 in evidence.telemetry.samples["num_running"].to_list()


def test_an_endless_throughput_in_a_log_is_missing() -> None:
    line = v1_line(1)
    spoilt = line.replace("generation throughput: ", "generation throughput: " + "9" * 400)
    assert spoilt != line

    evidence = told("\n".join([v1_line(0), spoilt, v1_line(2)]))

    assert evidence.telemetry is not None
    rates = evidence.telemetry.samples["generation_tokens_per_s"].to_list()
    assert [r is None for r in rates] == [False, True, False]


def test_digits_of_other_scripts_are_no_rank() -> None:
    told('vllm:num_requests_running{engine="²"} 3\nvllm:kv_cache_usage_perc{engine="٣"} 0.5')


def test_a_line_of_nested_braces_is_passed_over() -> None:
    evidence = told('{"log":' * 5000 + "\n" + v1_line(0))

    assert evidence.telemetry is not None


@pytest.mark.parametrize("filler", ["9", "9,", "1.", " ", "a", "9 ", "tokens "])
def test_long_runs_do_not_hold_up_the_reading_of_notes(filler: str) -> None:
    """The patterns of notes try again from each character: twenty seconds for 400 digits, once."""
    evidence = told(f"python -m server {HEAD} --seed {filler * 3000}\n")

    assert {f.name for f in evidence.facts} >= {"max_num_seqs", "max_model_len"}


def test_titles_of_windows_are_taken_off_like_colours() -> None:
    line = v1_line(0)

    evidence = told("\n".join(f"\x1b]0;x\x07\x1b[32m{x}\x1b[0m" for x in (line, v1_line(1))))

    assert evidence.telemetry is not None
    assert evidence.telemetry.samples["t_s"].null_count() == 0
    assert evidence.telemetry.samples.height == 2


def test_what_can_be_meant_is_finite_and_below_a_petabyte() -> None:
    assert is_meant(80 * 2**40)
    assert not is_meant(float("nan"))
    assert not is_meant(-float("inf"))
    assert whole(2.6) == 3
    assert [whole(x) for x in (True, "3", None, -1, float("inf"))] == [None] * 5
    rows, lost = rows_that_are_meant(
        [{"num_running": 10**20, "num_waiting": 2, "inferred": ["num_running"]}]
    )
    assert (rows, lost) == ([{"num_waiting": 2, "inferred": []}], 1)


def test_digits_and_dots_without_sense_are_missing() -> None:
    spoilt = v1_line(1).replace("usage: 51.1%", "usage: 51...06%").replace("700.", "7.0.0.")

    evidence = told("\n".join([v1_line(0), spoilt, v1_line(2)]))

    assert evidence.telemetry is not None
    assert evidence.telemetry.samples.height >= 2


def test_a_usage_of_sglang_without_sense_is_missing() -> None:
    line = "[2025-10-01 00:00:{:02}] Decode batch, #running-req: 3, #token: 40, token usage: {}, #queue-req: 0"

    evidence = told(
        "\n".join(line.format(5 * i, u) for i, u in enumerate(["0.20", "0..2.1", "."]))
    )

    assert evidence.telemetry is not None
    assert evidence.telemetry.samples["kv_usage_frac"].to_list() == [0.2, None, None]


def test_one_negative_value_does_not_refuse_a_whole_trace() -> None:
    lines = [
        f"step={i} running=4 waiting=0 used={10 * i} free={100 - 10 * i}" for i in range(6)
    ]
    lines[3] = lines[3].replace("running=4", "running=-4")

    evidence = told("\n".join(lines))

    assert evidence.telemetry is not None
    assert evidence.telemetry.samples["num_running"].to_list() == [4, 4, 4, None, 4, 4]


def test_a_share_that_is_none_is_not_called_inferred() -> None:
    lines = [
        f'{{"iter":{i},"numActiveRequests":5,"numScheduledRequests":2,'
        f'"kvCacheStats":{{"maxNumBlocks":{2 if i == 2 else 100},"usedNumBlocks":70}}}}'
        for i in range(4)
    ]

    evidence = told("\n".join(lines))

    assert evidence.telemetry is not None
    samples = evidence.telemetry.samples
    assert samples["kv_usage_frac"].to_list() == [0.7, 0.7, None, 0.7]
    assert "kv_usage_frac" not in samples["inferred"].to_list()[2]
