"""The machinery of the diagnosis: order, exclusion, tables, parts, recordings, the command, the page of rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.__main__ import main
from analyzer.diagnosis import RULES, WORDS, diagnose
from analyzer.diagnosis.describe import MARK, as_markdown
from analyzer.diagnosis.findings import Finding
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.recording import diagnose_recording
from analyzer.diagnosis.rule import Rule
from analyzer.diagnosis.traps import TRAPS
from tests.evidence_texts import diagnosis, v1, v1_pool, words
from traces.evidence.evidence import Evidence, Fact, Line, SourceReport
from traces.recording import open_recording

ROOT = Path(__file__).resolve().parent.parent


def evidence(
    facts: dict[str, object] | None = None,
    sweeps: tuple[dict[str, object], ...] = (),
    engine: str | None = "vllm",
) -> Evidence:
    at = Line("notes.txt", 1, 1, "notes")
    found = tuple(Fact(k, v, at) for k, v in (facts or {}).items())  # type: ignore[arg-type]
    report = SourceReport("notes.txt", "notes", "config-only", engine, 1, 1, 0)
    return Evidence(
        "notes.txt", engine, "config-only", None, found, (), (report,), sweeps=sweeps
    )  # type: ignore[arg-type]


def test_every_word_has_a_rule_and_every_rule_a_reason_and_a_source() -> None:
    assert {r.word for r in RULES} == set(WORDS)
    assert all(r.reason and r.source for r in RULES)
    assert len({r.name for r in RULES}) == len(RULES)


def test_the_page_lists_all_rules_and_traps() -> None:
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")

    assert page[page.index(MARK) :] == as_markdown(), (
        "run python -m analyzer.diagnosis.describe"
    )
    assert len(TRAPS) >= 10


def test_a_rule_is_not_asked_without_what_it_needs() -> None:
    def never(q: Quantities) -> Finding | None:
        raise AssertionError("asked")

    rule = Rule("mine", "NOT_KV", 1, ("usage",), never, "reason", "source")

    found = diagnose(evidence({"pool_tokens": 1000}), [*RULES, rule])

    assert found.verdict.word == "INSUFFICIENT_EVIDENCE"


def test_a_finding_that_another_explains_is_excluded_with_the_reason() -> None:
    def rule(name: str, word: str, order: int, overrules: tuple[str, ...] = ()) -> Rule:
        return Rule(
            name,
            word,
            order,
            (),
            lambda q: Finding(word, "low", f"{word}."),
            f"why {name}",
            "source",
            None,
            overrules,
        )

    rules = [
        rule("b", "CAPACITY_QUEUE", 2),
        rule("a", "DP_IMBALANCE", 1, ("CAPACITY_QUEUE",)),
        rule("c", "SLOT_LIMIT", 3),
    ]
    found = diagnose(evidence(), rules)

    assert words(found) == ["DP_IMBALANCE", "SLOT_LIMIT"]
    assert "why a" in found.excluded["CAPACITY_QUEUE"]


def test_nothing_at_all_is_insufficient_and_says_what_to_add() -> None:
    found = diagnose(evidence(engine=None))

    assert words(found) == ["INSUFFICIENT_EVIDENCE"]
    assert "/metrics" in found.next_step.first.change


def test_the_runs_of_a_table_that_preempt_give_what_one_request_holds() -> None:
    row = {
        "pool_tokens": 60_000,
        "clients": 200,
        "num_running": 40,
        "num_waiting": 160,
        "preemptions": 90,
        "num_requests": 1000,
    }

    found = diagnose(evidence(sweeps=(row,)))

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert found.facts["held_tokens_per_running"] == 1500
    assert found.facts["fired_over_fit"] == 5.0
    assert found.facts["preemptions_per_1000_requests"] == 90.0


def test_a_sweep_of_memory_gives_the_smallest_share_that_carries_the_batch() -> None:
    rows = tuple(
        {
            "gpu_memory_utilization": u,
            "pool_tokens": t,
            "max_model_len": 256,
            "max_num_seqs": 16,
            "preemptions": p,
        }
        for u, t, p in ((0.1, 2000, 12), (0.3, 10_000, 0))
    )

    found = diagnose(evidence(sweeps=rows))

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert found.facts["tokens_needed"] == 4096
    assert found.facts["min_gmu_for_zero_preemption"] == 0.152  # 0.1 + (4,096 - 2,000) / 40,000


@pytest.mark.parametrize(
    ("usage", "running", "word"),
    [
        ((0.5, 0.8, 0.99, 1.0), (8, 16, 20, 20), "CAPACITY_QUEUE"),
        ((0.2, 0.4, 0.4, 0.4), (8, 16, 16, 16), "SLOT_LIMIT"),
        ((0.1, 0.2, 0.3, 0.5), (8, 16, 32, 64), "NOT_KV"),
    ],
)
def test_the_knee_of_a_sweep_says_what_binds(
    usage: tuple[float, ...], running: tuple[int, ...], word: str
) -> None:
    rows = tuple(
        {"clients": c, "generation_tokens_per_s": g, "kv_usage_frac": u, "num_running": r}
        for c, g, u, r in zip(
            (8, 16, 32, 64), (400.0, 780.0, 800.0, 805.0), usage, running, strict=True
        )
    )

    found = diagnose(evidence(sweeps=rows))

    assert words(found)[0] == word
    assert found.facts["knee_clients"] == 16


@pytest.mark.parametrize(
    ("caps", "prompt", "fit", "over"),
    [((8, 8, 4), (10_000, 20_000), 10, [1.0, 2.0]), ((3,), (50_000, 90_000), 2, [0.75, 1.35])],
)
def test_caps_of_several_proxies_add_up(
    caps: tuple[int, ...], prompt: tuple[int, int], fit: int, over: list[float]
) -> None:
    found = diagnose(
        evidence(
            {"pool_tokens": 200_000, "client_caps": caps, "prompt_tokens": prompt}, engine=None
        )
    )

    assert words(found) == ["NO_PRESSURE_YET"]
    assert found.facts["recommended_total_cap"] == fit
    assert found.facts["oversubscription_at_cap"] == over
    assert found.verdict.severity == "medium"


def test_sources_of_two_pools_are_judged_one_by_one() -> None:
    a, b = Line("a.log", 1, 1, ""), Line("b.log", 1, 1, "")
    facts = (
        Fact("pool_blocks", 1000, a),
        Fact("pool_blocks", 400, b),
        Fact("max_model_len", 9000, b),
        Fact("pool_tokens", 6400, b),
        Fact("starts", False, b),
        Fact("model", "m", Line("config.txt", 1, 1, "")),
    )
    reports = tuple(
        SourceReport(n, "log", "v0-startup", "vllm", 3, 3, 0)
        for n in ("a.log", "b.log", "config.txt")
    )

    found = diagnose(Evidence("all", "vllm", "v0-startup", None, facts, (), reports))

    assert [p.label for p in found.parts] == ["a.log", "b.log"]
    assert words(found)[0] == "OVERSIZE_REQUEST"
    assert {p.facts["pool_blocks"] for p in found.parts} == {1000, 400}
    assert all(p.facts["model"] == "m" for p in found.parts)


def test_a_recording_is_diagnosed_with_everything_known() -> None:
    folder = ROOT / "traces" / "samples" / "recordings" / "chat-recompute"
    with open_recording(folder) as recording:
        found = diagnose_recording(recording)
        counted = int(recording.steps["num_preempted"].sum())
        recomputed = int(recording.steps["recomputed_tokens"].sum())

    assert words(found)[0] == "CAPACITY_PREEMPTION"
    assert found.facts["preemptions"]["value"] == counted
    assert found.facts["recomputed_tokens"] == {
        "low": recomputed,
        "high": recomputed,
        "kind": "known",
    }
    assert found.facts["pool_blocks"] == 2588


def test_the_command_prints_json_that_carries_every_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(v1(10 * i, 33, 18 + i, 99.0, generation=700.0) for i in range(4)))

    code = main(["diagnose", str(path), "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["verdict"] == "CAPACITY_QUEUE"
    assert {
        "verdicts",
        "facts",
        "proofs",
        "excluded",
        "inferred",
        "missing",
        "next_step",
        "notes",
    } <= set(found)
    assert found["proofs"][0]["lines"][0]["text"].startswith("INFO 03-04 10:00:00")
    needed = {
        "engine",
        "log_family",
        "version",
        "samples",
        "pool_blocks",
        "pool_tokens",
        "preemptions",
        "safe_concurrency",
        "first_full_at",
    }
    assert needed <= set(found["facts"])


def test_the_command_takes_a_paste_and_prints_the_verdict_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = "\n".join(v1(10 * i, 12, 0, 30.0, generation=700.0) for i in range(4))

    assert main(["diagnose", "--paste", lines]) == 0

    assert capsys.readouterr().out.startswith("NO_PRESSURE_YET (low): ")


def test_the_command_without_anything_says_how_to_use_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["diagnose"]) == 2

    assert "server.log" in capsys.readouterr().err


def test_a_pool_and_its_slope_that_disagree_are_said() -> None:
    lines = [v1(10 * i, 4, 0, 50.0 + 2.0 * i, generation=100.0) for i in range(6)]

    found = diagnosis(*v1_pool(200_000), lines)

    assert any("Sources disagree on the pool" in n for n in found.notes)
