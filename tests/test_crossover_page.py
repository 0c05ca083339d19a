"""The Crossover page without a browser: defaults of the run, controls, URL, and runs that say little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts.crossover_state import Names, parse
from analyzer.pages.parts.store import Store
from engine.config import EngineSettings, resolve
from engine.models import load_model
from engine.simulator import run_metadata
from tests.engine_builders import make_request, make_trace
from tests.preemption_worlds import run_of

TIMEOUT_S = 120


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def page_alone() -> None:
    """The page in the frame, as the app would show it."""
    import streamlit as st

    from analyzer.pages import crossover
    from analyzer.pages.parts import shell

    chosen = st.Page(crossover.page, title="Crossover", url_path="crossover", default=True)
    shell.run(st.navigation([chosen], position="hidden"), {"crossover": chosen})


def open_page(store: Store, *folders: Path, **query: str) -> AppTest:
    """The page, run once on these recordings (none: the sample) with these query parameters."""
    app = AppTest.from_function(page_alone, default_timeout=TIMEOUT_S)
    refs = [f"file:{store.link(p).id}" for p in folders]
    given = {**dict(zip("ab", refs, strict=False)), "source": "Recordings"} if folders else {}
    for name, value in {**given, **query}.items():
        app.query_params[name] = value
    return app.run()


def meta_of(**settings: Any) -> dict[str, Any]:
    """Metadata as the simulator writes it for these settings."""
    resolved = resolve(EngineSettings(num_gpu_blocks=100, **settings))
    return run_metadata(make_trace(make_request("a", 4, 2)), resolved)


def recorded(folder: Path, mode: str = "recompute", **settings: Any) -> Path:
    """A small run with three victims that says it ran so."""
    meta = meta_of(preemption_mode=mode, **settings)
    run_of(folder, mode, **{k: meta[k] for k in ("settings", "model", "device")})
    return folder


def value(app: AppTest, label: str) -> Any:
    found = next(w for kind in (app.selectbox, app.number_input) for w in kind if w.label == label and w.key.startswith("cx_"))  # fmt: skip
    return found.value


def put(app: AppTest, label: str, new: Any) -> AppTest:
    found: Any = next(w for kind in (app.selectbox, app.number_input) for w in kind if w.label == label and w.key.startswith("cx_"))  # fmt: skip
    return found.set_value(new).run()


def said(app: AppTest) -> str:
    """The verdict, without the marks that keep it plain."""
    return next(m.value for m in app.markdown if "tokens" in m.value).replace("\\", "")


def captions(app: AppTest) -> str:
    return "\n".join(c.value for c in app.caption).replace("\\", "")


def query(app: AppTest, name: str) -> str | None:
    """A parameter of the URL: AppTest holds a list of what the page wrote."""
    found = app.query_params.get(name)
    return found[0] if isinstance(found, list) else found


def charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(c.proto.spec) for c in app.get("plotly_chart")]


def trace_of(app: AppTest, name: str) -> dict[str, Any] | None:
    return next((t for t in charts(app)[0]["data"] if t.get("name") == name), None)


def test_without_a_recording_it_opens_on_the_sample(store: Store) -> None:
    app = open_page(store)

    assert not app.exception
    assert not app.error
    assert app.title[0].value.startswith("Crossover · A recompute against B swap")
    assert "For llama-3.1-8b on rtx-4090, coalesced blocking copies over 24.8 GB/s" in said(app)
    assert "A (recompute): of 176 victims (176 by recompute" in captions(app)
    assert "55 were cheaper by recompute, by their own cached share" in captions(app)
    assert "the victims' median cached share of 79 %" in captions(app)
    judged = [trace_of(app, f"A: {way} was cheaper") for way in ("recompute", "swap")]
    assert [len(t["x"]) for t in judged if t] == [55, 121]
    assert len(charts(app)) == 3
    assert all(c.proto.alt for c in app.get("plotly_chart"))
    assert query(app, "cx_model") is None


def test_it_starts_from_the_run_that_copies(store: Store, tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", model="qwen3-8b", device="l4")
    b = recorded(tmp_path / "b", "swap", model="qwen3-8b", device="l4", copy_path="loop", copy_mode="async", kv_cache_dtype="fp8", tensor_parallel_size=2, link_gb_per_s=11.0)  # fmt: skip

    app = open_page(store, a, b)

    assert not app.error
    labels = ("Model", "Device", "GPUs (TP)", "KV type", "Copy path", "Copies")
    shown = [value(app, n) for n in labels]
    assert shown == ["qwen3-8b", "l4", 2, "fp8", "loop", "async"]
    # victims lost 6, 4 and 8 tokens beside 2, 1 and 1 running requests; none was found again
    assert [value(app, n) for n in ("Tokens lost", "Running beside", "Still cached (%)")] == [6, 1, 0]  # fmt: skip
    assert "loop asynchronous copies over 11.0 GB/s" in said(app)


def test_victims_stand_at_their_costs_in_their_own_set_up_only(
    store: Store, tmp_path: Path
) -> None:
    app = open_page(store, recorded(tmp_path / "a"))

    # recompute cost 0.1 s a token, and swap was estimated at 0.25 s each way
    swap = trace_of(app, "A: swap was cheaper")
    recompute = trace_of(app, "A: recompute was cheaper")
    assert swap is not None
    assert recompute is not None
    assert (swap["x"], recompute["x"]) == ([6, 8], [4])
    assert swap["y"] == pytest.approx([0.6, 0.8])
    assert recompute["y"] == pytest.approx([0.4])
    assert "1 was cheaper by recompute, by their own cached share; in sum recompute 1.80 s, swap 1.50 s" in captions(app)  # fmt: skip

    app = put(app, "Device", "b200")

    assert trace_of(app, "A: swap was cheaper") is None
    rug = trace_of(app, "lengths of A's victims")
    assert rug is not None
    assert rug["x"] == [4, 4, None, 6, 6, None, 8, 8, None]
    assert "Their costs are of another set-up" in captions(app)


def test_a_control_changes_verdict_and_url_and_goes_back(store: Store) -> None:
    app = open_page(store)
    before = said(app)

    app = put(put(app, "Copy path", "loop"), "Still cached (%)", 0)

    assert said(app) != before
    assert "loop blocking copies" in said(app)
    assert "nothing of the victim still cached" in said(app)
    assert (query(app, "cx_path"), query(app, "cx_cached")) == ("loop", "0")

    app = app.button(key="cx_back").click().run()

    assert said(app) == before
    assert query(app, "cx_path") is None
    assert value(app, "Copy path") == "coalesced"


def test_a_link_holds_the_whole_set_up(store: Store) -> None:
    app = open_page(
        store, cx_model="opt-13b", cx_device="a100-40", cx_link="12.5", cx_cached="0", cx_beside="0", cx_tokens="2048"
    )  # fmt: skip

    # the published table: 430 to 10,000 tokens, of which the model takes 2,048
    assert said(app).startswith("**Recompute is cheaper from 464 tokens on, and swap at every other length up to 2,048 tokens: at 2,048 tokens recompute costs 241 ms")  # fmt: skip
    assert "recomputed in steps of its own" in said(app)
    assert value(app, "Link (GB/s)") == 12.5


def test_values_that_cannot_be_are_said_and_the_runs_own_shown(store: Store) -> None:
    app = open_page(store, cx_model="gpt-9", cx_device="tpu", cx_tp="many", cx_tokens="-3")

    warned = "\n".join(w.value for w in app.warning).replace("\\", "")
    assert not app.exception
    assert "cx_model in the link is 'gpt-9', which is not one of deepseek-v3" in warned
    assert "cx_device in the link is 'tpu'" in warned
    assert "cx_tp in the link is 'many', which is not one of 1, 2, 4, 8, 16" in warned
    assert "cx_tokens in the link is '-3'" in warned
    assert value(app, "Model") == "llama-3.1-8b"
    assert query(app, "cx_model") is None


def test_pipeline_stages_are_set_and_stand_in_the_link(store: Store) -> None:
    app = put(open_page(store), "Stages (PP)", 2)

    assert not app.error
    assert "For llama-3.1-8b on 2 x rtx-4090" in said(app)
    assert query(app, "cx_pp") == "2"
    assert "only their lengths are drawn" in captions(app)


def test_a_split_that_cannot_be_is_a_sentence(store: Store) -> None:
    app = open_page(store, cx_model="qwen2.5-7b", cx_tp="8")

    (error,) = app.error
    assert not app.exception
    assert "tp 8 does not divide the 28 heads" in error.value.replace("\\", "")
    assert value(app, "GPUs (TP)") == 8  # and can be mended


def test_a_model_without_kv_has_nothing_to_swap(store: Store, tmp_path: Path) -> None:
    shape = {**load_model("qwen3-8b").__dict__, "name": "linear-1b", "head_dim": 0, "v_head_dim": 0}  # fmt: skip
    run_of(tmp_path / "a", model=shape)

    app = open_page(store, tmp_path / "a")

    assert not app.exception
    assert "linear-1b has no KV that grows with its tokens" in app.info[0].value.replace("\\", "")  # fmt: skip
    assert value(app, "Model") == "linear-1b"


def test_a_recording_that_says_little_gets_the_usual_set_up(
    store: Store, tmp_path: Path
) -> None:
    run_of(tmp_path / "a", costs=False, evicted=())

    app = open_page(store, tmp_path / "a")

    assert not app.exception
    assert not app.error
    assert "For llama-3.1-8b on h100-sxm" in said(app)
    assert "preempted nobody who had computed anything" in captions(app)


def test_a_link_to_a_run_that_is_gone_is_said_and_the_page_stays(store: Store) -> None:
    app = open_page(store, a="run:" + "0" * 32)

    assert "not on this machine" in app.error[0].value
    assert "For llama-3.1-8b on h100-sxm" in said(app)
    assert len(charts(app)) == 3


def test_data_tables_stand_under_every_chart(store: Store) -> None:
    app = open_page(store)

    for key in ("cx_curves_data", "cx_map_data", "cx_intensity_data"):
        app = app.toggle(key=key).set_value(True).run()

    columns = [list(d.value.columns) for d in app.dataframe]
    assert ["Tokens", "Recompute (ms)", "Swap (ms)", "Copy out (ms)", "Copy in (ms)", "Recompute / swap"] in columns  # fmt: skip
    assert ["Model", "Device", "Recompute (ms)", "Swap (ms)", "Recompute / swap", "Cheaper", "Fits"] in columns  # fmt: skip
    assert any(c[0] == "Device" for c in columns)
    assert any("Request" in c for c in columns)


def test_costs_of_a_measured_run_are_told_from_modelled_lines(store: Store) -> None:
    app = open_page(store, a="sample:smollm2-recompute", b="sample:smollm2-swap")

    assert "For smollm2-135m on cpu, KV cache in float32" in said(app)
    assert "Costs of A and B were measured, the lines are modelled." in captions(app)
    assert value(app, "Device") == "cpu"
    # one victim of A was wholly in the cache, and a recompute of nothing has no place on a logarithm
    assert "Without a dot, since nothing of them had to be computed or copied or their cost is not known: 1 of A" in captions(app)  # fmt: skip


# ---- the URL, read ------------------------------------------------------------------------------

NAMES = Names(["llama-3.1-8b", "opt-13b"], ["h100-sxm", "l4"])


def test_the_url_is_read() -> None:
    found, wrong = parse(
        {"cx_model": "opt-13b", "cx_tp": "2", "cx_link": "12.5", "cx_cached": "40", "t": "1-2"},
        NAMES,
    )

    assert found == {
        "model": "opt-13b",
        "tp": 2,
        "link_gb_per_s": 12.5,
        "cached_pct": 40,
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("model", "gpt-9", "one of llama-3.1-8b, opt-13b"),
        ("device", "", "one of h100-sxm, l4"),
        ("tp", "3", "one of 1, 2, 4, 8, 16"),
        ("kv", "<b>", "one of auto, fp8"),
        ("path", "Loop", "one of loop, batch, coalesced"),
        ("copies", "1", "one of blocking, async"),
        ("link", "nan", "a number from 0.1 to 10,000"),
        ("link", "1e999", "a number from 0.1 to 10,000"),
        ("cached", "101", "a whole number from 0 to 100"),
        ("cached", "0.5", "a whole number from 0 to 100"),
        ("beside", "-1", "a whole number from 0 to 8,192"),
        ("tokens", "9" * 5000, "a whole number from 1 to 4,194,304"),
    ],
)
def test_a_value_that_cannot_be_is_said_and_not_taken(name: str, text: str, why: str) -> None:
    found, (sentence,) = (lambda f, w: (f, list(w.values())))(
        *parse({f"cx_{name}": text}, NAMES)
    )

    assert found == {}
    assert sentence.startswith(f"cx_{name} in the link is ")
    assert f"which is not {why}. The run's own is shown instead." in sentence
    assert len(sentence) < 220
