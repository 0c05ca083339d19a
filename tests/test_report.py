"""Reports: what they say, that foreign text stays text, and what is said where one cannot be made."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import polars as pl
import pytest
from PIL import Image

from analyzer import browser
from analyzer.__main__ import main
from analyzer.report import CARD_PX, CARD_SCALE, _first_height, card, html, make
from analyzer.report_contents import Ask, check_range, gather, parse_range
from analyzer.report_evidence import evidence
from analyzer.report_figures import (
    _round_time,
    _round_times,
    as_json,
    light,
    timeline_picture,
)
from analyzer.report_tables import cards, preempted_tables
from analyzer.report_words import clip, tidy
from analyzer.run import Run
from analyzer.vllm_defaults import changed_settings
from tests.builders import make_meta, make_requests, make_steps, record
from tests.report_builders import MARKUP, pair, pair_paths
from traces.errors import CompareError, SettingsError
from traces.recording import Meta, open_recording, zip_recording
from traces.schema import STEPS

PLOTLY = re.compile(r"<script>/\*\*\s*\* plotly\.js.*?</script>", re.S)


def own_part(document: str) -> str:
    """A report without plotly.js, which holds addresses and markup of its own."""
    return PLOTLY.sub("", document)


def words_of(document: str) -> str:
    """What a reader sees of it: no scripts, no styles, no tags, white space closed up."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", document, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


# ---- what a report says ---------------------------------------------------------------------------


def test_a_report_of_a_pair_holds_what_readers_ask_for(tmp_path: Path) -> None:
    a, b = pair(tmp_path)

    document = html(gather(a, b))

    words = words_of(document)
    assert "A recompute against B swap" in words
    assert "At 10 blocks" in words  # the verdict with its condition
    assert "10 blocks of 4 tokens: 40 tokens, 10.0 KiB" in words or "40 tokens" in words
    assert "simulator of KV Replay 0" in words
    assert "preemption_mode swap (default recompute)" in words
    assert "hand: 2 requests in 500 ms (2.00 per s)" in words
    assert "prompt median 4, p99 4, most 4 tokens" in words
    assert "all of it: 0 to 9.00 s, 8 steps" in words
    assert (
        "modelled: computed from the shape of the model and the device, not measured" in words
    )
    assert "A (recompute): its only preemption." in words
    assert "dddddddddddddddddddddddddddddddd" in words  # the workload's digest
    assert evidence(a.recording).digest in words
    for title in ("Latencies", "All figures", "Method and limits", "Evidence"):
        assert title in words


def test_a_report_loads_nothing_and_holds_plotly_once(tmp_path: Path) -> None:
    document = html(gather(*pair(tmp_path)))

    assert len(PLOTLY.findall(document)) == 1
    rest = own_part(document)
    assert "default-src 'none'" in rest
    assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*(?!#)""", rest)
    assert "http" not in re.sub(r"<meta[^>]*>", "", rest)


def test_a_permalink_is_a_link_where_it_is_an_address_and_nothing_else(tmp_path: Path) -> None:
    a, b = pair(tmp_path)

    good = html(gather(a, b, Ask(permalink="https://host/report?a=x&b=y")))
    bad = html(gather(a, b, Ask(permalink="javascript:alert(1)")))

    assert 'href="https://host/report?a=x&amp;b=y"' in good
    assert "javascript:" not in own_part(bad)


def test_a_report_of_one_recording_judges_nothing(tmp_path: Path) -> None:
    a, _ = pair(tmp_path)

    words = words_of(html(gather(a)))

    assert "recompute finishes 2 of 2 requests in 9.00 s" in words
    assert "with 1 preemption of 1 request" in words
    assert "It preempts once" in words
    assert "B is" not in words
    assert "Difference B" not in words
    assert [dict(c.changes) for c in cards(gather(a))] == [{}] * 6


def test_a_run_without_preemption_gives_the_good_news(tmp_path: Path) -> None:
    request = {"request_id": "r", "first_token_s": 1.0, "finish_s": 3.0, "output_tokens": 3}
    calm = Run(
        "", record(tmp_path, steps=make_steps([1, 4, 2]), requests=make_requests([request]))
    )

    contents = gather(calm)

    (table,) = preempted_tables(contents)
    assert table.good_news == "recompute: no preemption; peak use 40.0 % of 10 blocks."
    assert "No preemption; peak use 40.0 % of 10 blocks." in contents.verdict


def test_the_preemption_of_the_small_world_reads_as_typed(tmp_path: Path) -> None:
    table, _ = preempted_tables(gather(*pair(tmp_path)))

    assert table.header == ["Victim", "Evicted for", "As", "When", "Step", "Free", "Blocks", "Tokens", "Again", "Cost", "Away", "Others lost", "In B"]  # fmt: skip
    (line,) = table.lines
    assert line.cells[:10] == [
        "b",
        "a",
        "recompute",
        "3.00 s",
        "3",
        "0",
        "2",
        "6",
        "4",
        "267 ms",
    ]
    assert line.cells[10] == "3.00 s"
    assert line.cells[12] == "1 ×"


def test_title_and_notes_are_the_users_own(tmp_path: Path) -> None:
    ask = Ask(title="Why p99 doubled on Tuesday", notes="First line\nSecond line")

    document = html(gather(*pair(tmp_path), ask))

    assert "<title>Why p99 doubled on Tuesday</title>" in document
    assert "<h1>Why p99 doubled on Tuesday</h1>" in document
    assert "First line\nSecond line" in document


def test_a_title_without_end_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"title of a report may have 200 characters, not 201"
    ):
        Ask(title="x" * 201)


def test_a_range_cuts_timeline_and_preemptions_and_says_so(tmp_path: Path) -> None:
    contents = gather(*pair(tmp_path), Ask(shown=(4.0, 8.0)))

    words = words_of(html(contents))
    assert contents.shown == (4.0, 8.0)
    assert "4.00 to 8.00 s of 9.00 s (8 steps in all)" in words
    assert "A (recompute): no preemption in the reported range." in words
    figure = timeline_picture(contents).figure
    assert list(figure.layout.xaxis.range) == [4.0, 8.0]


def test_a_range_after_the_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"begins at 9 s, and the last step ends at 9.000 s"
    ):
        gather(*pair(tmp_path), Ask(shown=(9.0, 12.0)))


@pytest.mark.parametrize(
    "text", ["100", "a:b", "100-130", "130:100", "-5:3", "1:inf", "nan:2", ":"]
)
def test_what_is_no_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match="100:130"):
        parse_range(text)


def test_a_range_is_two_seconds_with_a_colon() -> None:
    assert parse_range("100:130.5") == (100.0, 130.5)
    assert parse_range(None) is None
    assert check_range(None) is None


def test_unlike_workloads_are_not_reported_together(tmp_path: Path) -> None:
    a, _ = pair(tmp_path / "x")
    request = {"request_id": "other", "first_token_s": 1.0, "finish_s": 3.0, "output_tokens": 3}
    meta = make_meta(workload={"name": "w", "digest": "e" * 32})
    other = record(
        tmp_path / "y", steps=make_steps([1]), requests=make_requests([request]), meta=meta
    )

    with pytest.raises(CompareError, match="different workloads"):
        gather(a, Run("", other))


def test_settings_that_differ_from_vllms_defaults_read_as_flags() -> None:
    meta = Meta(
        settings={
            "block_size": 32,
            "enable_prefix_caching": False,
            "async_scheduling": True,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 4096,
            "watermark": 0.01,
            "max_model_len": 8192,
            "preemption_mode": "swap",
            "copy_mode": "async",
            "host_gib": 16.0,
            "num_host_blocks": 100,
        },
        device={"name": "rtx-4090", "memory_bytes": 25e9},
        model={"max_model_len": 8192},
    )

    assert [str(c) for c in changed_settings(meta)] == [
        "--block-size 32 (default 16)",
        "--max-num-batched-tokens 4096 (default 2048)",
        "--no-enable-prefix-caching (default on)",
        "--watermark 0.01 (default 0)",
        "preemption_mode swap (default recompute)",
        "copy_mode async",
        "num_host_blocks 100",
    ]


def test_defaults_of_large_devices_are_larger_and_unknown_ones_allow_both() -> None:
    settings = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}

    def changed(name: str, memory: float) -> list[str]:
        device = {"name": name, "memory_bytes": memory}
        return [str(c) for c in changed_settings(Meta(settings=settings, device=device))]

    assert changed("h100-sxm", 80 * 2**30) == ["--max-num-seqs 256 (default 1024)"]
    assert changed("a100-80g", 80 * 2**30) == ["--max-num-batched-tokens 8192 (default 2048)"]
    assert changed_settings(Meta(settings=settings)) == []


def test_the_hash_is_that_of_the_content_in_a_folder_and_in_a_zip(tmp_path: Path) -> None:
    folder, other = pair_paths(tmp_path)
    archive = zip_recording(folder, tmp_path / "run.zip")

    with open_recording(archive) as unpacked:
        zipped = evidence(unpacked)
    whole = evidence(open_recording(folder))

    assert zipped.digest == whole.digest
    assert [f.name for f in whole.files] == [
        "closed.json", "events/part-00000.parquet", "requests/part-00000.parquet", "steps/part-00000.parquet",
    ]  # fmt: skip
    assert whole.num_bytes == sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    assert evidence(open_recording(other)).digest != whole.digest


def test_a_report_is_of_one_size_for_any_number_of_steps(tmp_path: Path) -> None:
    few = pl.DataFrame(pl.from_arrow(make_steps([2, 9, 5, 10])))
    sizes = []
    for num in (2_000, 200_000):
        steps = few[np.arange(num) % 4].with_columns(
            step=pl.int_range(num),
            t_start_s=pl.int_range(num) * 0.01,
            duration_s=pl.lit(0.01),
            num_running=pl.int_range(num) % 7,
        )
        table = steps.to_arrow().cast(STEPS.arrow)
        run = Run("", record(tmp_path / str(num), steps=table, requests=make_requests([])))
        sizes.append(len(own_part(html(gather(run)))))

    assert abs(sizes[1] - sizes[0]) < 0.1 * sizes[0]


# ---- foreign text ---------------------------------------------------------------------------------


def test_markup_of_a_recording_stays_text_everywhere(tmp_path: Path) -> None:
    workload = {"name": MARKUP, "digest": MARKUP, "notes": [MARKUP]}
    a, b = pair(
        tmp_path, MARKUP, workload=workload, model={"name": MARKUP}, device={"name": MARKUP},
        software={"kv_replay": MARKUP}, executor=MARKUP, vllm_baseline=MARKUP, seed=MARKUP,
    )  # fmt: skip
    contents = gather(a, b, Ask(title=MARKUP, notes=MARKUP, permalink=f"https://h/{MARKUP}"))

    for document in (html(contents), card(contents)):
        rest = own_part(document)
        assert "<script>alert(1)" not in rest
        assert "<b>&amp;" not in rest
        assert "{{7*7}}" in rest
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in rest


def test_markup_of_a_label_cannot_end_the_script_that_holds_a_figure() -> None:
    figure = light(go.Figure({"data": [{"type": "scatter", "name": "</script><!--<script>"}]}))

    text = as_json(figure)

    assert "</script" not in text
    assert "<!--" not in text
    assert json.loads(text)["data"][0]["name"] == "</script><!--<script>"


def test_an_id_of_ten_megabytes_does_not_fill_the_report(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "i" * 10_000_000)

    document = html(gather(a, b))

    assert len(document) < 8_000_000
    assert "i" * 35 + "…" in document


def test_text_is_cut_where_nobody_reads_on() -> None:
    assert clip("one\ntwo\tthree") == "one two three"
    assert clip("abcdef", 4) == "abc…"
    assert clip("x" * 5_000_000, 3) == "xx…"


def test_a_number_keeps_its_unit_on_the_line() -> None:
    assert tidy("by 1.18 % (32.2 -> 32.6 ms) over a 24.8 GB/s link") == (
        "by 1.18\u00a0% (32.2\u00a0→\u00a032.6\u00a0ms) over a 24.8\u00a0GB/s link"
    )


def test_figures_are_light_and_their_colours_are_said_outright(tmp_path: Path) -> None:
    import streamlit  # noqa: F401  # swaps Plotly's default template

    figure = timeline_picture(gather(*pair(tmp_path))).figure

    assert figure.layout.paper_bgcolor == "#ffffff"
    assert (
        figure.layout.template.layout.colorway[0] == "#636efa"
    )  # plotly_white's, not a placeholder
    drawn = [t for t in figure.data if t.type == "scatter" and t.line.width]
    assert {t.line.color for t in drawn if t.name and t.name.startswith("KV blocks")} == {
        "#0072B2",
        "#E69F00",
    }


@pytest.mark.parametrize(
    ("low", "high", "places"),
    [
        (0.03, 17.0, ["100 ms", "1 s", "10 s"]),
        (0.02, 0.08, ["20 ms", "50 ms"]),
        (1.0, 1.4, ["1 s", "1.5 s"]),
        (3e-6, 4e-4, ["10 µs", "100 µs"]),
    ],
)
def test_an_axis_of_times_has_round_places(low: float, high: float, places: list[str]) -> None:
    found = [_round_time(t) for t in _round_times(np.array([low, high]))]

    assert set(places) <= set(found)
    assert 2 <= len(found) <= 8


def test_the_timeline_of_a_pdf_leaves_room_for_a_long_head(tmp_path: Path) -> None:
    a, b = pair(tmp_path)

    short = _first_height(gather(a, b, Ask(title="T")))
    long = _first_height(
        gather(a, b, Ask(title="T " * 60, notes="one\ntwo\nthree\nfour\nfive"))
    )
    too_long = _first_height(gather(a, b, Ask(notes="line\n" * 60)))

    assert 360 <= long < short <= 600
    assert too_long == 600, "it begins the second page, where there is room"


# ---- files ----------------------------------------------------------------------------------------


def test_the_command_writes_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = pair_paths(tmp_path)
    out = tmp_path / "r.html"

    code = main(["report", str(a), str(b), "--out", str(out), "--title", "T", "--range", "1:5"])

    assert code == 0
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "r.html" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["r.html"]


def fake_browser(folder: Path, script: str) -> Path:
    """A program in the place of a browser: Python that sees its arguments as `sys.argv`."""
    path = folder / "browser"
    path.write_text(f"#!{sys.executable}\nimport sys, time, pathlib\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that cannot be done says on stderr."""
    code = main([str(a) for a in arguments])

    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("r.docx", "'.docx' is no kind of file"),
        ("r", "no suffix is no kind of file"),
        ("missing/r.html", "there is no folder 'missing'"),
    ],
)
def test_a_place_or_kind_that_cannot_be_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    a, b = pair_paths(tmp_path)

    assert said in failure(capsys, "report", a, b, "--out", tmp_path / name)


def test_a_folder_is_no_place_for_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, _ = pair_paths(tmp_path)
    (tmp_path / "f.html").mkdir()

    assert "f.html is a folder" in failure(capsys, "report", a, "--out", tmp_path / "f.html")


def test_a_recording_that_is_not_there_is_said_as_for_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, _ = pair_paths(tmp_path)
    gone = tmp_path / "gone"

    ours = failure(capsys, "report", a, gone, "--out", tmp_path / "r.html")

    assert ours == failure(capsys, "compare", a, gone)
    assert not (tmp_path / "r.html").exists()


def test_a_report_that_fails_leaves_the_old_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair_paths(tmp_path)
    out = tmp_path / "r.pdf"
    out.write_bytes(b"old")
    crash = "print('[1:2:FATAL] no usable sandbox', file=sys.stderr); sys.exit(1)"
    monkeypatch.setenv(browser.VARIABLE, str(fake_browser(tmp_path, crash)))

    said = failure(capsys, "report", a, b, "--out", out)

    assert "browser made no PDF (no usable sandbox)" in said
    assert "Write .html" in said
    assert out.read_bytes() == b"old"


def test_without_a_browser_png_and_pdf_say_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair_paths(tmp_path)
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "PLACES", ())

    assert "apt-get install chromium" in failure(
        capsys, "report", a, "--out", tmp_path / "r.png"
    )
    assert main(["report", str(a), str(b), "--out", str(tmp_path / "r.html")]) == 0


def test_a_browser_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = pair_paths(tmp_path)
    monkeypatch.setenv(browser.VARIABLE, "no-such-browser")

    said = failure(capsys, "report", a, "--out", tmp_path / "r.pdf")

    assert "KV_REPLAY_BROWSER is 'no-such-browser', which is no program" in said


def test_a_browser_that_hangs_is_stopped_with_its_helpers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "helper"
    hang = (
        f"import subprocess; h = subprocess.Popen(['sleep', '60'])\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(h.pid)); time.sleep(60)"
    )
    monkeypatch.setenv(browser.VARIABLE, str(fake_browser(tmp_path, hang)))
    monkeypatch.setattr(browser, "TIMEOUT_S", 3.0)

    with pytest.raises(SettingsError, match="did not finish within 3 s and was stopped"):
        browser.to_pdf("<p>x</p>")

    helper = int(mark.read_text())
    assert (
        not Path(f"/proc/{helper}/cmdline").is_file()
        or not Path(f"/proc/{helper}/cmdline").read_bytes()
    )  # gone, or dead and not yet fetched


def test_a_picture_ends_at_the_line_below_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser's picture is cut above the end line; its width is what the card is drawn at."""
    taken = tmp_path / "taken.png"
    image = Image.new("RGB", (CARD_PX * CARD_SCALE, 900), "white")
    image.paste(browser.END_COLOUR, (0, 700, CARD_PX * CARD_SCALE, 708))
    image.save(taken)
    copy = (
        "out = next(a for a in sys.argv if a.startswith('--screenshot='))[13:]\n"
        f"pathlib.Path(out).write_bytes(pathlib.Path({str(taken)!r}).read_bytes())"
    )
    monkeypatch.setenv(browser.VARIABLE, str(fake_browser(tmp_path, copy)))

    with Image.open(io.BytesIO(browser.to_png("<p>x</p>", CARD_PX, CARD_SCALE))) as found:
        assert found.size == (1200, 700)


def test_the_browser_is_asked_to_reach_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = tmp_path / "heard"
    listen = (
        f"pathlib.Path({str(heard)!r}).write_text('\\n'.join(sys.argv))\n"
        "out = next(a for a in sys.argv if a.startswith('--print-to-pdf='))[15:]\n"
        "pathlib.Path(out).write_bytes(b'%PDF-1.4')"
    )
    monkeypatch.setenv(browser.VARIABLE, str(fake_browser(tmp_path, listen)))

    assert make(gather(*pair(tmp_path)), ".pdf") == b"%PDF-1.4"

    arguments = heard.read_text().split("\n")
    assert "--host-resolver-rules=MAP * ~NOTFOUND" in arguments
    assert any(a.startswith("--user-data-dir=") for a in arguments)
    assert ("--no-sandbox" in arguments) == (os.geteuid() == 0)
    assert arguments[-1].startswith("file://")
