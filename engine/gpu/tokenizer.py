"""Text to token ids and back, for a Hugging Face directory or a GGUF file.

It knows where each keeps its vocabulary, special tokens, end-of-text ids and chat template; splitting
and merging is done by the `tokenizers` package, templates run in Jinja's sandbox. It does not know
models or prompts' files. Byte-level BPE of GGUF files is rebuilt; their SentencePiece, WordPiece and
other vocabularies are refused, as a near miss would change token counts without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from engine.gguf_header import GGUFHeader, read_gguf_header
from engine.gpu.model_files import downloadable, model_file
from traces.errors import SettingsError

Message = Mapping[str, str]
_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types

# How text is cut before bytes are merged, by GGUF's tokenizer.ggml.pre. Each is the published pattern
# of the tokenizer.json it stands for; a text only fits the vocabulary if it is cut the same way.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2 = ""  # the one that `tokenizers` has built in
PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "smollm": _GPT2,  # each digit is cut off by itself first
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
}


@dataclass(frozen=True)
class TextTokenizer:
    """Encodes and decodes; eos_ids: ids that end a text; template: Jinja source, None: no chat.

    bos, eos: the special tokens as text, "" where there is none; name: for errors.
    """

    name: str
    inner: Tokenizer
    eos_ids: tuple[int, ...]
    bos: str = ""
    eos: str = ""
    template: str | None = None

    @property
    def vocab_size(self) -> int:
        return int(self.inner.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of text; special tokens in it count as such.

        A model that wants a beginning-of-text token gets one, but not a second one in front of a
        text that begins with it, as chat templates write it.

        Raises: SettingsError for text that the vocabulary has no token for.
        """
        begins = bool(self.bos) and text.startswith(self.bos)
        try:
            return list(self.inner.encode(text, add_special_tokens=not begins).ids)
        except Exception as e:  # the package raises plain Exception, and TypeError
            raise SettingsError(
                f"the tokenizer of {self.name} cannot encode this text ({e}). Check its characters."
            ) from e

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; special tokens are left out unless asked for."""
        return str(
            self.inner.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)
        )

    def chat(self, messages: str | Sequence[Message]) -> str:
        """The prompt that asks the model for the assistant's next message.

        messages: [{"role": ..., "content": ...}, ...], or the text of one user message.

        Raises: SettingsError if the model has no chat template, or its template refuses the messages.
        """
        if self.template is None:
            raise SettingsError(
                f"{self.name} has no chat template. Give its prompts as plain text, or use an instruct model."
            )
        turns = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        )
        try:
            template = _environment().from_string(self.template)
            return str(
                template.render(
                    messages=[dict(m) for m in turns],
                    add_generation_prompt=True,
                    bos_token=self.bos,
                    eos_token=self.eos,
                )
            )
        except (
            Exception
        ) as e:  # a template is a program: it may divide by zero, or index nothing
            why = str(e) or type(e).__name__
            raise SettingsError(
                f"the chat template of {self.name} cannot write these messages ({why}). Check their roles and contents."
            ) from e


def load_tokenizer(name_or_path: str | Path) -> TextTokenizer:
    """The tokenizer of a Hugging Face directory, a .gguf file or a name that model_files knows.

    Raises: SettingsError that names what is missing or not supported.
    """
    if downloadable(str(name_or_path)) and not Path(name_or_path).exists():
        name_or_path = model_file(str(name_or_path))
    path = Path(name_or_path)
    if path.is_dir():
        return _from_directory(path)
    if path.suffix.lower() == ".gguf":
        return _from_gguf(read_gguf_header(path))
    raise SettingsError(
        f"no tokenizer belongs to {str(name_or_path)!r}. Give a Hugging Face directory or a GGUF file, or leave out --prompts: "
        "then token ids are drawn by the seed."
    )


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: they come with the model and are not trusted."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _from_directory(path: Path) -> TextTokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        old = (
            " (tokenizer.model alone is not read)"
            if (path / "tokenizer.model").exists()
            else ""
        )
        raise SettingsError(
            f"the directory {path.name} holds no tokenizer.json{old}. Download it too, or leave out --prompts."
        )
    try:
        inner = Tokenizer.from_file(str(file))
    except Exception as e:  # the package raises plain Exception
        raise SettingsError(
            f"{file.name}: no tokenizer can be read in it ({e}). Download it again."
        ) from e
    settings = _json(path / "tokenizer_config.json")
    bos, eos = _special(settings, "bos_token"), _special(settings, "eos_token")
    ids = [
        _json(path / f).get("eos_token_id") for f in ("generation_config.json", "config.json")
    ]
    return TextTokenizer(
        name=path.absolute().name,
        inner=inner,
        eos_ids=_eos_ids(inner, ids, eos),
        bos=bos,
        eos=eos,
        template=_template(path, settings),
    )


def _json(path: Path) -> dict[str, Any]:
    """The object in an optional file. Raises: SettingsError if there is something else in it."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise SettingsError(f"{path.name}: this is not JSON ({e}). Download it again.") from e
    if not isinstance(found, dict):
        raise SettingsError(f"{path.name}: the file holds no JSON object. Download it again.")
    return found


def _special(settings: Mapping[str, Any], key: str) -> str:
    """A special token's text, given as text or as an object with content."""
    token = settings.get(key)
    return str(token.get("content") or "") if isinstance(token, dict) else str(token or "")


def _eos_ids(inner: Tokenizer, given: Sequence[Any], eos: str) -> tuple[int, ...]:
    """Every id that ends a text: those of the configs (one or a list each) and the eos token's."""
    ids: list[int] = []
    for value in given:
        values = value if isinstance(value, list) else [value]
        ids += [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
    last = inner.token_to_id(eos) if eos else None
    return tuple(dict.fromkeys([*ids, *([] if last is None else [last])]))


def _template(path: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or a key with one, or with several of which "default" is meant."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as e:
            raise SettingsError(
                f"{file.name}: this is not UTF-8 text ({e}). Download it again."
            ) from e
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _from_gguf(header: GGUFHeader) -> TextTokenizer:
    meta = header.metadata
    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "")
    if kind != "gpt2":
        names = {"llama": "SentencePiece", "bert": "WordPiece", "t5": "Unigram"}
        header.refuse(
            "tokenizer.ggml.model",
            f"a {names.get(str(kind), repr(kind))} vocabulary is not supported in GGUF files",
            "Give the model's Hugging Face directory with tokenizer.json, or leave out --prompts.",
        )
    if pre not in PRE_TOKENIZERS:
        header.refuse(
            "tokenizer.ggml.pre",
            f"{pre!r} is not supported",
            f"Supported: {', '.join(PRE_TOKENIZERS)}. Give the model's Hugging Face directory with tokenizer.json, or leave out --prompts.",
        )
    tokens = meta.get("tokenizer.ggml.tokens")
    merges = meta.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        header.refuse(
            "", "tokenizer.ggml.tokens or tokenizer.ggml.merges is missing", "Convert it again."
        )
    bos, eos = (_token(meta, tokens, key) for key in ("bos", "eos"))
    inner = _byte_level(header, tokens, merges, str(pre))
    if bos and meta.get("tokenizer.ggml.add_bos_token", pre in ("llama-bpe", "llama3")):
        _add_bos(inner, bos, tokens.index(bos))
    ids = [meta.get(f"tokenizer.ggml.{k}_token_id") for k in ("eos", "eot")]
    return TextTokenizer(
        name=header.path.stem,
        inner=inner,
        eos_ids=_eos_ids(inner, ids, eos),
        bos=bos,
        eos=eos,
        template=meta.get("tokenizer.chat_template"),
    )


def _token(meta: Mapping[str, Any], tokens: list[str], key: str) -> str:
    index = meta.get(f"tokenizer.ggml.{key}_token_id")
    return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else ""


def _byte_level(
    header: GGUFHeader, tokens: list[str], merges: list[str], pre: str
) -> Tokenizer:
    """Byte-level BPE of the file's tokens and merges."""
    try:
        "".join(tokens).encode()
        bpe = models.BPE(
            vocab={t: i for i, t in enumerate(tokens)},
            merges=[(a, b) for a, _, b in (m.partition(" ") for m in merges)],
            ignore_merges=pre in ("llama-bpe", "llama3"),
        )
    except Exception as e:  # the package raises plain Exception
        header.refuse("tokenizer.ggml.merges", f"they do not fit the tokens ({e})")
    inner = Tokenizer(bpe)
    steps: list[Any] = (
        [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    )
    if PRE_TOKENIZERS[pre] == _GPT2:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    else:
        steps.append(pre_tokenizers.Split(Regex(PRE_TOKENIZERS[pre]), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    inner.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre == "qwen2":
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    types = header.metadata.get("tokenizer.ggml.token_type", ())
    pairs = list(zip(tokens, types, strict=False))
    inner.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in pairs if kind == _CONTROL]
    )
    inner.add_tokens([AddedToken(t, normalized=False) for t, k in pairs if k == _USER_DEFINED])
    return inner


def _add_bos(inner: Tokenizer, bos: str, index: int) -> None:
    from tokenizers.processors import TemplateProcessing

    inner.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, index)]
    )
