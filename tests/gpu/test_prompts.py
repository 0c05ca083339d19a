"""Files of prompts: what they may hold, and what is said of those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from engine.gpu.prompts import read_prompts, with_prompts
from engine.gpu.tokenizer import TextTokenizer, load_tokenizer
from tests.gpu import runs, tiny
from traces.errors import KVReplayError

BOM = b"\xef\xbb\xbf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.llama_dir(tmp_path)


def tokenizer_with(folder: Path, template: str) -> TextTokenizer:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return load_tokenizer(folder)


def said_of(file: Path | str, tokenizer: TextTokenizer) -> str:
    """The sentence with which the file is refused."""
    with pytest.raises(KVReplayError) as caught:
        read_prompts(file, tokenizer, tiny.VOCAB)
    return str(caught.value)


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder)
    file = tmp_path / "windows.txt"
    for line in (b"hello\r\n", b'{"prompt": "hello"}\r\n'):
        file.write_bytes(BOM + line)

        found = read_prompts(file, tokenizer, tiny.VOCAB)

        assert [ids.tolist() for ids in found.ids] == [tokenizer.encode("hello")]


def test_prompts_remember_their_lines(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("\none\n\n\ntwo\n")

    assert read_prompts(file, load_tokenizer(folder), tiny.VOCAB).lines == [2, 5]


@pytest.mark.parametrize(
    "line",
    [r'{"prompt": "\ud800x"}', r'{"messages": [{"role": "user", "content": "\ud800x"}]}'],
)
def test_half_a_character_is_refused_with_its_line(
    line: str, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("fine\n" + line + "\n")

    said = said_of(file, load_tokenizer(folder))

    assert said.startswith(f"{file}, line 2: the prompt holds '\\ud800', which is half a char")


def test_a_token_that_the_model_does_not_know_is_refused(folder: Path, tmp_path: Path) -> None:
    """The embedding has no row for it: a crash in mid-run on a CPU, a dead context on CUDA."""
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens([AddedToken("<|tool|>", special=True)])
    inner.save(str(folder / "tokenizer.json"))
    file = tmp_path / "p.txt"
    file.write_text("fine\nuse <|tool|>\n")

    assert said_of(file, load_tokenizer(folder)) == (
        f"{file}, line 2: the tokenizer of tiny-llama3 makes token 256 of it, and the model has 256 (0 to 255). "
        "Give the tokenizer files that belong to these weights."
    )


def test_a_template_that_writes_nothing_leaves_no_prompt(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')

    said = said_of(file, tokenizer_with(folder, "{% if false %}x{% endif %}"))

    assert said == f"{file}, line 1: the prompt has no token. Remove the line."


def test_a_template_that_fails_is_told_with_file_and_line(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('\n{"messages": [{"role": "user", "content": "Hi"}]}\n')

    said = said_of(file, tokenizer_with(folder, "{{ 1 / 0 }}"))

    assert said.startswith(f"{file}, line 2: the chat template of tiny-llama3 cannot write")
    assert "division by zero" in said


def test_a_file_is_named_as_it_was_typed(folder: Path) -> None:
    said = said_of("some/where/none.txt", load_tokenizer(folder))

    assert said.startswith("some/where/none.txt: cannot be read (No such file or directory)")


def test_a_prompt_that_is_too_long_is_named_by_its_file_and_line(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "p.txt"
    file.write_text("Hi\n\n" + "x" * 40 + "\n")
    prompts = read_prompts(file, load_tokenizer(folder), tiny.VOCAB)

    with pytest.raises(KVReplayError) as caught:
        with_prompts(runs.workload(n=2), prompts, 4, 40)

    assert str(caught.value).startswith(
        f"{file}, line 3: the prompt has 40 tokens and max_model"
    )


def test_prompts_are_used_in_turn(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("eight ch\nfour\n")
    prompts = read_prompts(file, load_tokenizer(folder), tiny.VOCAB)

    load, ids = with_prompts(runs.workload(n=3), prompts, 4, 40)

    assert load.table["prompt_tokens"].to_list() == [8, 4, 8]
    assert np.array_equal(ids[0], ids[2])
    first, second, third = load.table["prefix_ids"].to_list()
    assert first == third
    assert len(first) == 2
    assert first[0] != second[0]
