"""Tokenizers of directories and GGUF files: text to ids and back, ends of text, chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import AddedToken, Tokenizer, models

from engine.gpu.tokenizer import load_tokenizer
from tests.gpu import tiny
from traces.errors import SettingsError


def message_of(call: Any, *args: Any) -> str:
    with pytest.raises(SettingsError) as e:
        call(*args)
    return str(e.value)


def change_settings(directory: Path, **keys: Any) -> None:
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def write_gguf(
    path: Path, pre: str, merges: list[str], model: str = "gpt2", **ids: int
) -> Path:
    """A GGUF file of nothing but a byte-level vocabulary; the merged tokens come after tiny's."""
    file = path / f"{pre}.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    tokens = [*tiny.byte_tokens(), *(m.replace(" ", "") for m in merges)]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 250 + [3] * 6 + [1] * len(merges))
    writer.add_token_merges(merges)
    for name, value in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_text_comes_back_from_its_ids(tmp_path: Path) -> None:
    for tokenizer in (
        load_tokenizer(tiny.llama_dir(tmp_path)),
        load_tokenizer(tiny.gguf_file(tmp_path)),
    ):
        assert tokenizer.decode(tokenizer.encode("Hi there, 42!\n")) == "Hi there, 42!\n"
        assert len(tokenizer.encode("Hi there")) == 8  # bytes: nothing is merged
        assert tokenizer.vocab_size == 256


def test_special_tokens_in_text_count_as_such_and_are_left_out_of_it(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny.llama_dir(tmp_path))

    ids = tokenizer.encode("a<|end|>")

    assert ids[1:] == [255]
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|end|>"


def test_every_id_that_ends_a_text_is_collected(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, eos_token_id=255)
    assert load_tokenizer(directory).eos_ids == (255,)

    (directory / "generation_config.json").write_text('{"eos_token_id": [254, 253]}')
    assert load_tokenizer(directory).eos_ids == (254, 253, 255)


def test_a_model_without_eos_has_none(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, eos_token_id=None)
    change_settings(directory, eos_token=None)

    assert load_tokenizer(directory).eos_ids == ()


def test_a_beginning_of_text_is_added_once(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path, "llama-bpe", ["1 2"], bos=250, eos=255))

    assert tokenizer.encode("a")[0] == 250
    assert tokenizer.encode("<|special_0|>a") == tokenizer.encode("a")


def test_a_chat_template_writes_the_prompt_of_the_next_answer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny.llama_dir(tmp_path))

    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]

    assert tokenizer.chat(turns) == "[system] Be brief.\n[user] Hi\n[assistant]"
    assert tokenizer.chat("Hi") == "[user] Hi\n[assistant]"


def test_a_template_is_found_in_its_file_and_in_a_list_of_named_ones(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path)
    change_settings(directory, chat_template=[{"name": "tool", "template": "no"}, {"name": "default", "template": "yes"}])  # fmt: skip
    assert load_tokenizer(directory).chat("Hi") == "yes"

    (directory / "chat_template.jinja").write_text("{{ eos_token }}{{ messages | tojson }}")
    assert load_tokenizer(directory).chat("Hi") == '<|end|>[{"role": "user", "content": "Hi"}]'


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('only two roles') }}", "only two roles"),
        ("{% for %}", "Expected an expression"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ range(10 ** 30) }}", "too large"),
        ("{{ 'a' * 10 ** 18 }}", "MemoryError"),
    ],
)
def test_a_template_that_fails_or_reaches_out_of_its_sandbox_is_an_error(
    template: str, words: str, tmp_path: Path
) -> None:
    directory = tiny.llama_dir(tmp_path)
    change_settings(directory, chat_template=template)

    message = message_of(load_tokenizer(directory).chat, "Hi")

    assert message.startswith("the chat template of tiny-llama3 cannot write these messages")
    assert words in message


def test_a_model_without_template_says_so(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path)
    change_settings(directory, chat_template=None)

    assert "tiny-llama3 has no chat template" in message_of(
        load_tokenizer(directory).chat, "Hi"
    )


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["12", "3", " a", "'", "S"]),
        ("smollm", ["1", "2", "3", " a", "'", "S"]),
        ("llama-bpe", ["12", "3", " a", "'S"]),
        ("qwen2", ["1", "2", "3", " a", "'S"]),
    ],
)
def test_each_kind_of_cutting_lets_other_letters_merge(
    pre: str, expected: list[str], tmp_path: Path
) -> None:
    """Digits may merge within a run, one by one, by threes; 'S is one word where case is ignored."""
    tokenizer = load_tokenizer(write_gguf(tmp_path, pre, ["1 2", "Ġ a", "' S"]))

    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("123 a'S")]

    assert pieces == expected


def test_a_vocabulary_is_cut_as_the_tokenizer_json_of_transformers_cuts_it(
    tmp_path: Path,
) -> None:
    file = write_gguf(tmp_path, "qwen2", ["t h", "th e", "Ġ t"])
    tokenizer = load_tokenizer(file)
    tokenizer.inner.save(str(tmp_path / "tokenizer.json"))

    again = load_tokenizer(tmp_path)

    assert again.encode("the théâtre") == tokenizer.encode("the théâtre")


@pytest.mark.parametrize(
    ("model", "pre", "words"),
    [
        ("llama", "default", "a SentencePiece vocabulary is not supported in GGUF files. Give the model's Hugging Face"),
        ("bert", "default", "a WordPiece vocabulary is not supported"),
        ("gpt2", "deepseek-llm", "'deepseek-llm' is not supported. Supported: gpt-2, smollm, llama-bpe, llama3, qwen2"),
    ],
)  # fmt: skip
def test_kinds_that_are_not_rebuilt_are_named(
    model: str, pre: str, words: str, tmp_path: Path
) -> None:
    assert words in message_of(load_tokenizer, write_gguf(tmp_path, pre, [], model))


def test_merges_that_do_not_fit_the_tokens_are_an_error(tmp_path: Path) -> None:
    broken = write_gguf(tmp_path, "smollm", ["a b"])
    broken.write_bytes(broken.read_bytes().replace(b"\x03\x00\x00\x00\x00\x00\x00\x00a b", b"\x03\x00\x00\x00\x00\x00\x00\x00a \x7f"))  # fmt: skip

    assert "tokenizer.ggml.merges: they do not fit the tokens" in message_of(load_tokenizer, broken)  # fmt: skip


def test_tokens_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    file = write_gguf(tmp_path, "smollm", ["a b"])
    file.write_bytes(file.read_bytes().replace(b"<|special_3|>", b"<|special\xff3|>"))

    assert "they do not fit the tokens ('utf-8' codec can't encode" in message_of(load_tokenizer, file)  # fmt: skip


def test_a_gguf_file_without_merges_is_refused(tmp_path: Path) -> None:
    """Without them every word would be cut into bytes."""
    file = write_gguf(tmp_path, "smollm", [])

    assert "tokenizer.ggml.tokens or tokenizer.ggml.merges is missing" in message_of(load_tokenizer, file)  # fmt: skip


def test_a_directory_without_tokenizer_json_says_what_is_not_read(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path)
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.model").touch()

    assert message_of(load_tokenizer, directory) == (
        "the directory tiny-llama3 holds no tokenizer.json (tokenizer.model alone is not read). "
        "Download it too, or leave out --prompts."
    )


def test_a_template_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path)
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")

    message = message_of(load_tokenizer, directory)

    assert message.startswith("chat_template.jinja: this is not UTF-8 text")


def test_text_without_a_token_in_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="?")).save(str(directory / "tokenizer.json"))

    message = message_of(load_tokenizer(directory).encode, "b")

    assert message.startswith("the tokenizer of tiny-llama3 cannot encode this text (")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path)
    (directory / name).write_text("{ no")

    assert message_of(load_tokenizer, directory).startswith(f"{name}: ")


def test_a_name_without_files_has_no_tokenizer() -> None:
    assert "no tokenizer belongs to 'llama-3.1-8b'" in message_of(load_tokenizer, "llama-3.1-8b")  # fmt: skip


def test_added_tokens_of_a_directory_are_kept(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path)
    inner = Tokenizer.from_file(str(directory / "tokenizer.json"))
    inner.add_special_tokens([AddedToken("<|tool|>", special=True)])
    inner.save(str(directory / "tokenizer.json"))

    assert load_tokenizer(directory).encode("<|tool|>") == [256]
