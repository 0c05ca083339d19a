"""The Diagnose page without a browser: giving evidence, verdict, proofs, lines, links, faults."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analyzer.evidence_figure import alt_text, evidence_figure
from analyzer.evidence_series import Curve, Panel, draw_series, extent, from_clock_ms
from analyzer.look import LIGHT
from analyzer.pages.parts.evidence_reading import evidence_store, raw_lines, read
from analyzer.pages.parts.evidence_state import EvidenceRef, parse
from analyzer.pages.parts.store import Store
from tests import evidence_samples
from tests.evidence_texts import scrape, v1, v1_pool

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("KV_REPLAY_SHARED", ROOT / ".." / "shared")).resolve() / "cases"
TIMEOUT_S = 120
SLOTS = "\n".join(
    [
        "vllm serve /models/a --max-num-seqs 32",
        *v1_pool(400_000),
        *(v1(10 * i, 32, 8 + i, 41.0 + i % 3, generation=900.0) for i in range(8)),
    ]
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store of the page's evidence."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return evidence_store()


def open_page(**query: str) -> AppTest:
    """The page alone, run once with these query parameters."""

    def script() -> None:
        from analyzer.pages import diagnose

        diagnose.page()

    app = AppTest.from_function(script, default_timeout=TIMEOUT_S)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def give(app: AppTest, pasted: str = "", path: str = "", add: bool = False) -> AppTest:
    """Fill the boxes and press the button."""
    if pasted:
        app.text_area[0].set_value(pasted)
    if path:
        app.text_input[0].set_value(path)
    button = "Add to what is shown" if add else "Read and diagnose"
    next(b for b in app.button if b.label == button).click()
    return app.run()


def text_of(app: AppTest) -> str:
    """All text of the page, markup of ours taken out."""
    parts = [
        str(e.value)
        for kind in ("title", "markdown", "caption", "info", "error", "warning", "code")
        for e in app.get(kind)
    ]
    parts += [html.unescape(re.sub(r"<[^>]+>", " ", h)) for h in markup_of(app)]
    return " ".join("\n".join(parts).replace("\\", "").split())


def markup_of(app: AppTest) -> list[str]:
    return [str(e.proto.body) for e in app.get("html")]


def charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def url_of(app: AppTest, name: str) -> str:
    value = app.query_params[name]
    return str(value[0] if isinstance(value, list) else value)


def keep(store: Store, path: Path) -> str:
    return store.link(path).id


def test_a_paste_gives_the_verdict_first_with_its_word_meaning_and_number() -> None:
    app = give(open_page(), SLOTS)

    assert not app.exception
    assert not app.error
    said = text_of(app)
    assert "SLOT_LIMIT" in said
    assert "the limit on running requests binds, not KV" in said
    assert "Running stays at 32" in said
    assert [e.value for e in app.title] == ["Diagnosis of paste"]
    card = next(h for h in markup_of(app) if 'aria-label="Verdict"' in h)
    assert card.index("SLOT_LIMIT") < card.index("Running stays at 32")


def test_key_facts_say_how_they_are_known() -> None:
    app = give(open_page(), SLOTS)

    cards = next(h for h in markup_of(app) if 'aria-label="Key facts"' in h)
    assert "400,000 tokens" in cards
    assert ">known<" in cards
    assert "Fit at what they held" in cards  # no length is stated
    assert "Preemptions" in cards
    assert ">unknown<" in cards


def test_the_flag_of_the_next_step_stands_alone_to_be_copied() -> None:
    app = give(open_page(), SLOTS)

    flags = [e.value for e in app.get("code")]
    assert any(re.fullmatch(r"--max-num-seqs \d+", f) for f in flags)


def test_series_are_drawn_beside_the_proofs_with_their_moments_numbered() -> None:
    app = give(open_page(), SLOTS)

    figure = charts(app)[0]
    titles = " ".join(a["text"] for a in figure["layout"]["annotations"])
    assert "KV pool in use" in titles
    assert "Running" in titles
    assert "Waiting" in titles
    assert "1" in [a["text"] for a in figure["layout"]["annotations"]]
    assert "Proofs" in text_of(app)


def test_raw_lines_of_a_proof_come_on_demand(store: Store) -> None:
    app = give(open_page(), SLOTS)
    before = text_of(app)

    app.toggle(key="evidence_lines_1").set_value(True).run()

    assert "[loggers.py:259] Engine 000" not in before
    assert "Engine 000: Avg prompt throughput" in text_of(app)


def test_text_of_a_log_is_never_markup() -> None:
    evil = SLOTS.replace("/models/a", "<script>alert(1)</script>")
    app = give(open_page(), evil)
    app.toggle(key="evidence_lines_1").set_value(True).run()

    assert not any("<script>" in h for h in markup_of(app))
    assert not app.exception


def test_two_files_by_path_are_read_as_one_server(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("\n".join(SLOTS.split("\n")[1:]))
    (tmp_path / "two.txt").write_text(SLOTS.split("\n")[0])

    app = give(open_page(), path=str(tmp_path / "*.*"))

    assert [e.value.replace("\\", "") for e in app.title] == ["Diagnosis of one.log, two.txt"]
    assert "2 recognised" not in [e.value for e in app.error]
    assert "90 % sure" in text_of(app)


def test_of_several_servers_the_heading_names_the_one_that_is_shown(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(SLOTS)
    (tmp_path / "two.log").write_text(SLOTS.replace("400,000", "900,000"))

    app = give(open_page(), path=str(tmp_path / "*.log"))

    assert [e.value.replace("\\", "") for e in app.title] == ["Diagnosis of one.log"]


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(SLOTS.encode()))

    app = give(open_page(), path=str(path))

    assert "SLOT_LIMIT" in text_of(app)


def test_a_line_can_be_added_to_what_is_shown() -> None:
    app = give(open_page(), "\n".join(SLOTS.split("\n")[1:]))
    assert "the limit" in text_of(app)

    give(app, "vllm serve /models/a --max-num-seqs 32", add=True)

    assert "max_num_seqs 32" in text_of(app)
    assert len(url_of(app, "e").split(".")) == 2


def test_the_url_holds_what_is_shown_and_opens_it_again() -> None:
    app = give(open_page(), SLOTS)
    link = url_of(app, "e")

    again = open_page(e=link)

    assert "SLOT_LIMIT" in text_of(again)
    assert url_of(again, "e") == link


def test_a_link_to_evidence_that_is_gone_says_so() -> None:
    app = open_page(e="0" * 32)

    assert [e.value.replace("\\", "") for e in app.error] == [
        "this link: its file is not on this machine (any more). Paste or give the evidence again."
    ]
    assert "Is the KV cache to blame?" in text_of(app)


@pytest.mark.parametrize("e", ["../../etc/passwd", "sample:../x", "zz", "0" * 31, "sample:"])
def test_a_damaged_link_shows_the_empty_page(e: str) -> None:
    app = open_page(e=e)

    assert not app.exception
    assert "Is the KV cache to blame?" in text_of(app)


def test_a_binary_file_is_refused_in_a_sentence_and_the_diagnosis_stays(tmp_path: Path) -> None:
    app = give(open_page(), SLOTS)
    (tmp_path / "core.bin").write_bytes(bytes(range(256)) * 64)

    give(app, path=str(tmp_path / "core.bin"))

    assert "it is a binary file, not text" in app.error[0].value
    assert "SLOT_LIMIT" in text_of(app)


def test_a_binary_file_among_others_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(SLOTS)
    (tmp_path / "b.bin").write_bytes(bytes(range(256)) * 64)

    app = give(open_page(), path=str(tmp_path / "*"))

    assert not app.error
    assert "it is a binary file, not text" in text_of(app)
    assert "SLOT_LIMIT" in text_of(app)


def test_a_log_of_other_software_is_no_verdict_and_says_so() -> None:
    lines = "\n".join(
        f'192.0.2.{i} - - [04/Mar/2026:10:00:{i:02} +0000] "GET / HTTP/1.1" 200 612'
        for i in range(40)
    )

    app = give(open_page(), lines)

    said = text_of(app)
    assert not app.exception
    assert "INSUFFICIENT_EVIDENCE" in said
    assert "it may be of other software" in said


def test_nothing_given_is_said() -> None:
    app = give(open_page())

    assert "nothing was given" in app.error[0].value


def test_a_path_without_a_file_is_said() -> None:
    app = give(open_page(), path="/no/such/dir/*.log")

    assert "no file matches it" in app.error[0].value


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("v0-preemptions", "CAPACITY_PREEMPTION"),
        ("v1-thrash", "THRASH_PREFILL_READMIT"),
        ("one-rank-full", "DP_IMBALANCE"),
        ("slots-not-kv", "SLOT_LIMIT"),
    ],
)
def test_a_sample_opens_in_one_click(name: str, word: str) -> None:
    app = open_page()

    app.button(key=f"evidence_sample_{name}").click().run()

    assert not app.exception
    card = next(h for h in markup_of(app) if 'aria-label="Verdict"' in h)
    assert f'<span class="kv-word">{word}</span>' in card
    assert url_of(app, "e") == f"sample:{name}"


def test_samples_are_those_that_our_script_makes() -> None:
    for name, files in evidence_samples.texts().items():
        folder = evidence_samples.ROOT / "evidence" / name
        assert {p.name for p in folder.iterdir()} == set(files)
        for file, text in files.items():
            assert (folder / file).read_text("utf-8") == text


def test_ranks_have_a_line_each_and_can_be_chosen() -> None:
    app = open_page(e="sample:one-rank-full")
    names = {t["name"] for t in charts(app)[0]["data"]}

    app.pills(key="evidence_ranks").set_value([2]).run()

    assert names == {"rank 0", "rank 1", "rank 2", "rank 3"}
    assert {t["name"] for t in charts(app)[0]["data"]} == {"rank 2"}
    assert url_of(app, "ranks") == "2"


def test_chosen_ranks_of_a_link_are_drawn_and_nonsense_draws_all() -> None:
    app = open_page(e="sample:one-rank-full", ranks="1,3")
    odd = open_page(e="sample:one-rank-full", ranks="9,x,")

    assert {t["name"] for t in charts(app)[0]["data"]} == {"rank 1", "rank 3"}
    assert len({t["name"] for t in charts(odd)[0]["data"]}) == 4


def test_servers_with_other_pools_are_chosen_by_name_and_kept_in_the_link(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.log").write_text("\n".join(v1_pool(400_000, 8_192)))
    (tmp_path / "b.log").write_text("\n".join(v1_pool(90_000, 8_192)))
    app = give(open_page(), path=str(tmp_path / "*.log"))
    first = url_of(app, "e")

    app = open_page(e=first, part="1")

    assert not app.exception
    assert "90,000 tokens" in next(h for h in markup_of(app) if 'aria-label="Key facts"' in h)
    assert url_of(app, "part") == "1"


def test_evidence_without_samples_says_that_there_is_nothing_to_draw() -> None:
    app = give(open_page(), "\n".join(v1_pool(400_000, 8_192)))

    assert not app.exception
    assert charts(app) == []
    assert "nothing to draw" in text_of(app)


def test_where_no_workload_follows_the_reason_is_said() -> None:
    app = open_page(e="sample:one-rank-full")

    assert "Not from this evidence: nothing says how many prompt tokens came" in text_of(app)


def simulated(app: AppTest) -> AppTest:
    """The page once its estimated workload was simulated."""
    app.button(key="evidence_sim").click().run()
    while any(b.key == "evidence_sim_cancel" for b in app.button):
        time.sleep(0.2)
        app.run()
    assert not app.exception
    return app


def test_an_estimated_workload_shows_its_assumptions_and_goes_to_compare(store: Store) -> None:
    app = open_page(e="sample:v0-preemptions")
    assert "Within an interval between two samples, arrivals are spread at random" in text_of(
        app
    )
    assert not [b for b in app.button if b.key == "evidence_what_if"]  # without a badge

    app = simulated(app)  # on the device that is chosen at first, which is far too fast
    assert "No what-ifs on these requests" in text_of(app)
    assert not [b for b in app.button if b.key == "evidence_what_if"]

    app = simulated(app.selectbox(key="evidence_device").select("rtx-4090").run())
    assert "Estimated requests" in text_of(app)
    app.button(key="evidence_what_if").click().run()

    assert not app.exception
    ref = app.session_state["trace_ref"]
    entry = Store(store.root.parent).get(ref.id)
    assert entry is not None
    first = json.loads(Path(entry.path).read_text().split("\n")[0])
    assert set(first) == {"request_id", "arrival_s", "prompt_tokens", "output_tokens"}
    assert app.session_state["source"] == "trace"


def test_a_recording_of_compare_is_diagnosed_with_everything_known() -> None:
    app = open_page(side="A")

    said = text_of(app)
    assert not app.exception
    assert "CAPACITY_PREEMPTION" in said
    assert "grammar recording" in said
    assert url_of(app, "side") == "A"


@pytest.mark.parametrize(
    ("query", "places"),
    [
        ({"side": "A"}, {}),
        ({"side": "B"}, {}),  # no pair is named: What-if opens the same one
    ],
)
def test_the_next_step_of_a_recording_leads_to_what_if(
    query: dict[str, str], places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    links: list[tuple[str, str, dict[str, str]]] = []

    def link(path: str, label: str, icon: str | None = None, **query: str) -> None:
        links.append((path, label, query))

    monkeypatch.setattr("analyzer.pages.parts.shell.link_to", link)

    app = open_page(**query)

    assert not app.exception
    assert "Find the smallest change that is enough, by simulation" in text_of(app)
    assert ("what-if", "Find it on What-if", places) in links


def test_a_paste_has_no_link_to_what_if(monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[str] = []
    monkeypatch.setattr(
        "analyzer.pages.parts.shell.link_to", lambda path, *a, **k: links.append(path)
    )

    give(open_page(), SLOTS)

    assert "what-if" not in links


def test_a_reference_is_read_from_the_url_only_where_it_is_one() -> None:
    assert parse("", "B") == EvidenceRef("side", ("B",))
    assert parse("sample:v1-thrash", "") == EvidenceRef("sample", ("v1-thrash",))
    assert parse(f"{'a' * 32}.{'b' * 32}", "") == EvidenceRef("files", ("a" * 32, "b" * 32))
    assert parse("", "D") is None


def test_lines_without_kept_text_are_read_again_from_the_file(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.prom"
    rows = [(0, 4, 2, 0.999, 3, 100.0), (1, 1, 0, 0.02, 0, 10.0)]
    path.write_text(scrape(rows, "2026-03-04 10:00:00"))
    reading = read(EvidenceRef("files", (keep(store, path),)), "key")
    place = reading.diagnosis.proofs[0].lines[0]

    found = raw_lines(reading, [place])

    assert found[place][0][0] == place.number
    assert "vllm:" in found[place][0][1]


def test_a_gap_in_time_breaks_the_curve_and_is_grey(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    times = [*range(0, 80, 10), *range(400, 450, 10)]
    path.write_text("\n".join(v1(t, 4, 0, 50.0, generation=100.0) for t in times))
    reading = read(EvidenceRef("files", (keep(store, path),)), "key")

    drawing = draw_series(reading.parts[0].quantities, reading.diagnosis)

    assert drawing is not None
    assert [round(b - a) for a, b in drawing.silences] == [330]
    usage = drawing.panels[0].curves[0]
    assert int((usage.y != usage.y).sum()) == 1
    shapes = evidence_figure(drawing, LIGHT).to_plotly_json()["layout"]["shapes"]
    assert [s["xref"] for s in shapes if s["type"] == "rect"] == ["paper", "x"]
    assert "1 stretches without samples" in alt_text(drawing)


def test_a_part_of_the_axis_is_drawn_with_every_sample_in_it(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        "\n".join(v1(10 * i, i % 7, 0, float(i % 90), generation=100.0) for i in range(6_000))
    )
    reading = read(EvidenceRef("files", (keep(store, path),)), "key")
    part = reading.parts[0]

    whole = draw_series(part.quantities, reading.diagnosis)
    drawing = draw_series(part.quantities, reading.diagnosis, part=(20_000.0, 21_000.0))

    assert whole is not None
    assert drawing is not None
    x = drawing.panels[0].curves[0].x
    assert x.tolist() == [19_990.0 + 10 * i for i in range(103)], "and the neighbours"
    assert int(((whole.panels[0].curves[0].x > 20_000) & (whole.panels[0].curves[0].x < 21_000)).sum()) < 40  # fmt: skip
    figures = [evidence_figure(d, LIGHT).to_plotly_json()["layout"] for d in (whole, drawing)]
    start, end = figures[1]["xaxis"]["range"]
    assert end - start == 1_000_000.0, "milliseconds"
    assert from_clock_ms(drawing, start) == pytest.approx(20_000.0)
    assert figures[0]["yaxis"]["range"] == figures[1]["yaxis"]["range"]
    assert figures[0]["height"] == figures[1]["height"]
    assert "a part of it" in alt_text(drawing)


def test_a_part_without_samples_says_so(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    times = [*range(0, 80, 10), *range(400, 450, 10)]
    path.write_text("\n".join(v1(t, 4, 0, 50.0, generation=100.0) for t in times))
    reading = read(EvidenceRef("files", (keep(store, path),)), "key")

    drawing = draw_series(reading.parts[0].quantities, reading.diagnosis, part=(200.0, 300.0))

    assert drawing is not None
    assert evidence_figure(drawing, LIGHT).data
    assert "no value in this part" in alt_text(drawing)


@pytest.mark.parametrize("zoom", ["10_30", "nonsense", "30_10", "10_nan", "9e99_1e100"])
def test_a_part_in_the_link_is_shown_and_nonsense_shows_all(
    store: Store, tmp_path: Path, zoom: str
) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(v1(10 * i, 4, 0, 50.0, generation=100.0) for i in range(9)))

    app = open_page(e=keep(store, path), zoom=zoom)

    assert not app.exception
    (chart,) = charts(app)
    low, high = chart["layout"]["xaxis"]["range"]
    if zoom == "10_30":
        assert high - low == 20_000.0
        assert url_of(app, "zoom") == "10_30"
        app.button(key="evidence_show_all").click().run()
    else:
        assert high - low > 80_000.0
    assert "zoom" not in app.query_params


def test_hours_in_which_there_is_nothing_are_left_out_of_the_axis() -> None:
    samples = Curve("", np.array([0.0, 10.0, 20.0]), np.array([1.0, 2.0, 3.0]))
    events = Panel("events", "Reported events", "", ticks={"retract": np.array([20_020.0])})

    ends, skips = extent([Panel("usage", "", "%", [samples]), events], [], [])

    assert skips == [(22.0, 20_018.0)]
    assert ends[0] < 0.0
    assert ends[1] > 20_020.0


def test_a_silence_that_tells_is_never_left_out() -> None:
    samples = Curve("", np.array([0.0, 10.0, 20.0]), np.array([1.0, 2.0, 3.0]))

    _, skips = extent([Panel("usage", "", "%", [samples])], [(20.0, 900.0)], [])

    assert skips == []


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared cases beside the project")
@pytest.mark.parametrize(
    "case", sorted(p.name for p in SHARED.iterdir() if p.is_dir()) if SHARED.is_dir() else []
)
def test_every_shared_case_is_shown_with_the_verdict_that_it_expects(
    store: Store, case: str
) -> None:
    files = [p for p in sorted((SHARED / case).iterdir()) if p.name != "expected.md"]
    ids = ".".join(store.link(p).id for p in files)

    app = open_page(e=ids)

    assert not app.exception
    assert not app.error
    reading = read(EvidenceRef("files", tuple(ids.split("."))), "key")
    card = next(h for h in markup_of(app) if 'aria-label="Verdict"' in h)
    assert reading.diagnosis.verdict.word in card
