"""The What-if page without a browser: levers, the URL, figures of both policies, refusals, bad links."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts import store as store_module
from analyzer.pages.parts import what_if_bench, what_if_run, what_if_state
from analyzer.pages.parts.store import Store
from engine.simulator import simulate
from tests.engine_builders import make_request, make_settings, make_trace

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120
ONLY_PAGE = """
import streamlit as st
from analyzer.pages import what_if
from analyzer.pages.parts import shell
PAGES = {"what-if": st.Page(what_if.page, title="What-if", url_path="what-if", default=True)}
shell.run(st.navigation(list(PAGES.values())), PAGES)
"""
EVIL = "<img src=x onerror=alert(1)> **bold** $x$"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


@pytest.fixture
def small(store: Store, tmp_path: Path) -> str:
    """A run of the small world: 12 requests of 3 blocks each in 4 blocks of 4 tokens."""
    return recorded(store, tmp_path, 4)


def recorded(store: Store, folder: Path, blocks: int, **changes: Any) -> str:
    """A reference to a kept recording of the small world on a modelled clock."""
    trace = make_trace(*(make_request(f"r{i}", 6, 6, arrival=i * 1e-4) for i in range(12)))
    settings = make_settings(blocks, clock="modelled", num_host_blocks=64, **changes)
    simulate(trace, settings, folder / "recording")
    return f"file:{store.link(folder / 'recording').id}"


def opened(ref: str = "", with_curve: bool = False, **query: str) -> AppTest:
    app = AppTest.from_string(ONLY_PAGE, default_timeout=TIMEOUT_S)
    if ref:
        app.query_params["a"] = ref
        app.query_params["source"] = "Recordings"
    for name, value in query.items():
        app.query_params[name] = value
    return settled(app.run(), with_curve)


def settled(app: AppTest, with_curve: bool = False) -> AppTest:
    """Run it until the operating point, or the curve too, is done: in a browser a fragment would say so."""
    for _ in range(60):
        state = app.session_state
        curve = state["what_if_curve_job"] if "what_if_curve_job" in state else None  # noqa: SIM401
        if curve is not None and not with_curve:
            curve.cancel()
        is_running = any(b.key == "cancel_what_if" for b in app.button)
        if not is_running and (curve is None or curve.wait(1.0)):
            return app.run() if with_curve else app
        app.run()
    raise AssertionError("the page does not come to rest")


def cards(app: AppTest) -> dict[str, list[str]]:
    """Title of a card -> its lines of text."""
    for element in app.get("html"):
        found = re.findall(r"<article.*?</article>", element.proto.body, re.S)
        if found and "kv-pair" in found[0]:
            told = [[t for t in re.split(r"<[^>]+>", c) if t.strip()] for c in found]
            return {lines[0]: [line.strip() for line in lines[1:]] for lines in told}
    return {}


def texts(app: AppTest) -> str:
    kinds = (app.markdown, app.caption, app.warning, app.error, app.info)
    return "\n".join(str(e.value) for kind in kinds for e in kind).replace("\\", "")


def no_fault(app: AppTest) -> None:
    assert not app.exception
    assert not [e for e in app.error if "Internal error" in e.value]


def test_the_base_is_a_line_of_facts_and_nothing_is_changed(small: str) -> None:
    app = opened(small)

    no_fault(app)
    assert "12 requests" in texts(app)
    assert "pool 4 blocks of 4 tokens (5 with vLLM's null block" in texts(app)
    assert "Nothing is changed" in texts(app)
    found = cards(app)
    assert len(found) == 9
    assert found["Preemptions"][1:] != []
    assert not any("better" in line for lines in found.values() for line in lines)
    assert set(what_if_state.LEVERS) & set(dict(app.query_params)) == set()


def test_a_lever_is_simulated_at_once_and_stands_in_the_url(small: str) -> None:
    app = opened(small)

    app.select_slider(key="wi_num_gpu_blocks").set_value(40)
    settled(app.run())

    no_fault(app)
    assert dict(app.query_params)["num_gpu_blocks"] == "40"
    found = cards(app)["Preemptions"]
    assert found[0] == "0"
    assert "▼ 100 % (only 12 requests)" in found
    assert any("vllm serve MODEL --num-gpu-blocks-override 40" in c.value for c in app.code)


def test_offload_is_pasted_without_asynchronous_scheduling(small: str) -> None:
    app = opened(small, max_num_seqs="8", policies="recompute,offload")

    no_fault(app)
    assert [c.value for c in app.code] == [
        "vllm serve MODEL --max-num-seqs 8",
        "vllm serve MODEL --max-num-seqs 8 --kv-offloading-size 16 --no-async-scheduling",
    ]
    assert "For offload:" in texts(app)
    assert "--no-async-scheduling is part of the answer" in texts(app)


def test_offload_alone_is_a_change_with_flags(small: str) -> None:
    app = opened(small, policies="offload,recompute")

    no_fault(app)
    assert [c.value for c in app.code] == [
        "vllm serve MODEL --kv-offloading-size 16 --no-async-scheduling"
    ]


def test_a_chip_takes_its_change_back_and_reset_takes_all(small: str) -> None:
    app = opened(small, num_gpu_blocks="40", watermark="0.1")

    app.button(key="wi_reset_watermark").click()
    settled(app.run())
    assert "watermark" not in dict(app.query_params)
    assert "num_gpu_blocks" in dict(app.query_params)

    app.button(key="wi_reset_all").click()
    settled(app.run())
    assert "num_gpu_blocks" not in dict(app.query_params)
    no_fault(app)


def test_a_link_brings_changes_policies_group_and_curve(small: str) -> None:
    app = opened(
        small, max_num_seqs="2", enable_prefix_caching="on", policies="swap,cheapest",
        levers="Batch limits", over="max_num_seqs", shows="ttft_s p99",
    )  # fmt: skip

    no_fault(app)
    assert app.select_slider(key="wi_max_num_seqs").value == 2
    assert app.selectbox(key="over").value == "max_num_seqs"
    assert app.selectbox(key="shows").value == "ttft_s p99"
    assert {"swap", "cheapest"} <= set(cards(app)["Preemptions"])
    query = dict(app.query_params)
    assert query["policies"] == "swap,cheapest"
    assert query["levers"] == "Batch limits"


def test_a_link_without_a_group_opens_the_first_that_has_a_change(small: str) -> None:
    app = opened(small, replicas="2", async_scheduling="on")

    no_fault(app)
    assert app.toggle(key="wi_async_scheduling").value is True
    assert dict(app.query_params)["levers"] == "Admission and scheduling"


def test_asynchronous_scheduling_and_trust_are_said(small: str) -> None:
    said = texts(opened(small))

    assert "asynchronous scheduling off" in said
    assert "181 preemptions" in said
    assert "it needs no validation" not in said
    assert "throughput +0 to +6 %" in said


def test_settings_that_cannot_be_are_a_sentence_in_place_of_cards(small: str) -> None:
    app = opened(small, max_num_seqs="9999999")

    no_fault(app)
    assert cards(app) == {}
    said = [e.value for e in app.error]
    assert len(said) == 1
    assert "recompute and swap cannot run so" in said[0]
    assert "at most 65,536, not 9,999,999" in said[0].replace("\\", "")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_num_seqs", "many", "give a whole number"),
        ("max_num_seqs", "9" * 40, "give a whole number of at most 15 digits"),
        ("watermark", "nan", "give a number"),
        ("enable_prefix_caching", "perhaps", "give on or off"),
        ("policies", "swap", "give two of"),
        ("max_num_seqs", EVIL, "give a whole number"),
    ],
)
def test_nonsense_in_a_link_is_left_out_and_said(
    name: str, value: str, said: str, small: str
) -> None:
    app = opened(small, **{name: value})

    no_fault(app)
    assert "Nothing is changed" in texts(app)
    assert "<img" not in "".join(e.value for e in app.warning).replace("\\<", "")


def test_a_first_run_says_what_the_link_asked_for(small: str) -> None:
    app = AppTest.from_string(ONLY_PAGE, default_timeout=TIMEOUT_S)
    app.query_params.update({"a": small, "source": "Recordings", "watermark": "nan"})

    app.run()

    assert "watermark=nan: give a number. Left out." in texts(app)


def test_a_pool_smaller_than_one_request_counts_the_refused(small: str) -> None:
    app = opened(small, num_gpu_blocks="3")

    no_fault(app)
    assert "12 of 12 requests are refused" in texts(app)


def test_a_trace_without_pressure_says_so_and_stays_usable(
    store: Store, tmp_path: Path
) -> None:
    app = opened(recorded(store, tmp_path, 400))

    no_fault(app)
    assert "Nothing was preempted; the pool is at most" in texts(app)
    assert len(cards(app)) == 9


def test_two_replicas_share_the_load(small: str) -> None:
    app = opened(small, replicas="2", levers="Load")

    no_fault(app)
    assert cards(app)["Preemptions"]
    assert any("--data-parallel-size 2" in c.value for c in app.code)
    assert any("replica 2 of 2" in b.proto.label for b in app.get("link_button"))


def test_changes_of_another_base_are_forgotten(store: Store, tmp_path: Path) -> None:
    first = recorded(store, tmp_path / "one", 4)
    second = recorded(store, tmp_path / "two", 5)
    app = opened(first, num_gpu_blocks="40")

    app.session_state["pair"] = type(app.session_state["pair"])(second)
    settled(app.run())

    no_fault(app)
    assert "Nothing is changed" in texts(app)
    assert "num_gpu_blocks" not in dict(app.query_params)


def test_type_values_takes_any_number(small: str) -> None:
    app = opened(small)

    app.toggle(key="exact_levers").set_value(True)
    app.run()
    app.number_input(key="wi_num_gpu_blocks_exact").set_value(13)
    settled(app.run())

    no_fault(app)
    assert dict(app.query_params)["num_gpu_blocks"] == "13"


def test_choosing_the_other_policy_exchanges_the_two(small: str) -> None:
    app = opened(small, levers="Preemption and host")

    app.selectbox(key="wi_policy_A").set_value("swap")
    settled(app.run())

    no_fault(app)
    assert dict(app.query_params)["policies"] == "swap,recompute"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_num_seqs", " 128 ", 128),
        ("watermark", "0.05", 0.05),
        ("enable_prefix_caching", "off", False),
        ("enable_prefix_caching", "TRUE", True),
        ("kv_cache_dtype", "fp8", "fp8"),
    ],
)
def test_the_url_s_text_is_read_as_the_lever_s_kind(name: str, text: str, value: Any) -> None:
    found = what_if_state.parse(name, text)

    assert found == value
    assert type(found) is type(value)
    assert what_if_state.parse(name, what_if_state.text_of(found)) == value


def test_a_long_run_shows_how_far_it_is_and_can_be_cancelled(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(small)
    before = cards(app)

    def endless(
        bench: Any, changes: Any, mode: str, bounds: Any, say: Any, cancelled: Any
    ) -> None:
        say(0.4, "10 steps")
        while not cancelled():
            time.sleep(0.01)

    real = what_if_bench.Bench._run
    monkeypatch.setattr(what_if_bench.Bench, "_run", endless)
    monkeypatch.setattr(what_if_run, "FIRST_WAIT_S", 0.3)
    app.select_slider(key="wi_num_gpu_blocks").set_value(40)
    app.run()
    no_fault(app)
    assert "What is shown below is still the last result" in texts(app)
    assert cards(app) == before

    app.button(key="cancel_what_if").click()
    app.run()

    no_fault(app)
    assert "Cancelled. What is shown below is the last result." in texts(app)
    assert cards(app) == before
    assert dict(app.query_params)["num_gpu_blocks"] == "40"
    monkeypatch.setattr(what_if_bench.Bench, "_run", real)
    app.button(key="what_if_again").click()
    settled(app.run())
    assert "▼ 100 % (only 12 requests)" in cards(app)["Preemptions"]


def test_the_curve_marks_where_preemption_ends_and_has_its_data(small: str) -> None:
    app = opened(small, with_curve=True, over="num_gpu_blocks")

    app.toggle(key="show_curve_data").set_value(True)
    settled(app.run(), with_curve=True)

    no_fault(app)
    ends = re.findall(
        r"(recompute|swap): none of the values tried from (\d+) on has any", texts(app)
    )
    assert [mode for mode, _ in ends] == ["recompute", "swap"]
    table = next(d.value for d in app.dataframe if "Policy" in d.value.columns)
    free_of_it = table[table["Value"] == ends[0][1]]
    assert free_of_it["Preemptions"].tolist() == ["0", "0"]
    assert (table["Preemptions"] != "0").any()


def test_the_bundled_sample_opens_with_both_policies(store: Store) -> None:
    app = opened()

    no_fault(app)
    found = cards(app)
    assert found["Preemptions"][0] == "176"
    assert found["Preemptions"][3] == "167"
    assert "Base:** sample: chat: 2,000 requests" in texts(app)


# ---- runs that are kept --------------------------------------------------------------------------


def kept_run(store: Store, number: int, num_bytes: int, used_at_s: float) -> Path:
    folder = store.run_dir(f"{number:032x}")
    folder.mkdir()
    (folder / "steps.parquet").write_bytes(b"x" * num_bytes)
    os.utime(folder, (used_at_s, used_at_s))
    return folder


def test_runs_go_by_number_and_by_bytes_the_longest_unused_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "KEEP_RUNS", 3)
    monkeypatch.setattr(store_module, "KEEP_RUN_BYTES", 250)
    runs = [kept_run(store, n, 100, 1_000.0 - n) for n in range(5)]

    store.forget_old_runs()

    assert [r.exists() for r in runs] == [True, True, False, False, False]


def test_the_run_used_last_stays_however_large(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "KEEP_RUN_BYTES", 250)
    large, old = kept_run(store, 1, 900, 1_000.0), kept_run(store, 2, 1, 900.0)

    store.forget_old_runs()

    assert [large.exists(), old.exists()] == [True, False]


def test_a_run_in_the_making_is_left_alone_until_it_is_a_day_old(store: Store) -> None:
    young, old = (store.run_dir("0" * 32).with_name(f".part-{n}") for n in ("young", "old"))
    for part in (young, old):
        part.mkdir()
    os.utime(old, (1_000.0, 1_000.0))

    store.forget_old_runs()

    assert [young.exists(), old.exists()] == [True, False]
