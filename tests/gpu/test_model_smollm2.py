"""SmolLM2-135M-Instruct, the real model, against transformers' LlamaForCausalLM with the same weights.

The other side shares nothing with ours: gguf's own reader, transformers' model and cache, and a config
typed here from the model's card. Skipped, with the reason, where the file cannot be fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.gpu.model import CausalLM
from engine.gpu.model_files import model_file
from engine.gpu.tokenizer import TextTokenizer, load_tokenizer
from engine.gpu.weights import load_model
from tests.gpu.dense import DenseCache, side_by_side
from traces.errors import SettingsError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three prime numbers.",
    "Why is the sky blue?",
    "Translate 'good morning' into Spanish.",
)
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def file() -> Path:
    try:
        return model_file("smollm2-135m-instruct")
    except SettingsError as e:
        pytest.skip(f"SmolLM2 is not there: {e}")


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> TextTokenizer:
    return load_tokenizer(file)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference_model(file: Path) -> Any:
    """transformers' model, filled from the file with gguf's reader."""
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, bos_token_id=1, eos_token_id=2,
        pad_token_id=2,
    )  # fmt: skip
    with torch.device("meta"):  # drawing weights that are replaced anyway takes seconds
        model = transformers.LlamaForCausalLM(config).eval()
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are in no file
    state = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])
        if heads:  # rows 0, 32, 1, 33, ... of a head of 64 back into 0, 1, 2, ...
            values = values.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(-1, 576)
        state[hugging_face_name(tensor.name)] = torch.from_numpy(values)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def hugging_face_name(name: str) -> str:
    top = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    parts = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    if name in top:
        return top[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{parts[part]}.weight"


def greedy(model: CausalLM, prompts: list[list[int]], eos: tuple[int, ...]) -> list[list[int]]:
    """Our greedy continuations: all prompts in one flat batch, then one token of each at a time."""
    caches = [DenseCache(model) for _ in prompts]
    made: list[list[int]] = [[] for _ in prompts]
    step = {i: (0, prompt) for i, prompt in enumerate(prompts)}  # row: first position, tokens
    while step:
        tokens = torch.tensor([t for _, ids in step.values() for t in ids])
        positions = torch.tensor([s + j for s, ids in step.values() for j in range(len(ids))])
        lengths = [len(ids) for _, ids in step.values()]
        hidden = model(tokens, positions, side_by_side([caches[i] for i in step], lengths))
        last = torch.tensor(lengths).cumsum(0) - 1
        for i, token in zip(step, model.logits(hidden[last]).argmax(-1).tolist(), strict=True):
            made[i].append(token)
        step = {
            i: (start + len(ids), made[i][-1:])
            for i, (start, ids) in step.items()
            if len(made[i]) < NUM_TOKENS and made[i][-1] not in eos
        }
    return made


def reference_choices(
    model: Any, prompts: list[list[int]], made: list[list[int]]
) -> list[list[int]]:
    """What transformers would choose at each place of our continuations, which it is given.

    Equal to ours everywhere, they are its greedy continuations too: each token follows from the same
    ones before it.
    """
    chosen = []
    for prompt, tokens in zip(prompts, made, strict=True):
        logits = model(torch.tensor([prompt + tokens])).logits[0]
        chosen.append(logits[len(prompt) - 1 : -1].argmax(-1).tolist())
    return chosen


def test_greedy_text_of_smollm2_is_that_of_transformers(
    file: Path, tokenizer: TextTokenizer
) -> None:
    prompts = [tokenizer.encode(tokenizer.chat(p)) for p in PROMPTS]
    ours = load_model(file, dtype="float32")
    theirs = reference_model(file)

    with torch.inference_mode():
        made = greedy(ours, prompts, tokenizer.eos_ids)
        expected = reference_choices(theirs, prompts, made)

    texts = [tokenizer.decode(ids) for ids in made]
    assert made == expected
    assert all(2 not in ids[:-1] for ids in made)
    assert all(len(ids) == NUM_TOKENS or ids[-1] == 2 for ids in made)
    assert "Paris" in texts[0]
    assert max(map(len, made)) == NUM_TOKENS
    assert min(map(len, texts)) > 10


def test_smollm2_cuts_text_as_its_tokenizer_does(tokenizer: TextTokenizer) -> None:
    text = "Hello, world! 12345 it's a tab\t\n\n  naïve 東京 🎉 <|im_start|>user"

    ids = tokenizer.encode(text)

    # Source: transformers 5.24's AutoTokenizer of the same file.
    assert ids == [
        19556, 28, 905, 17, 216, 33, 34, 35, 36, 37, 357, 506, 253, 10147, 197, 8866, 15486, 46494, 17097, 247, 126,
        16736, 122, 15107, 232, 227, 216, 1, 4093,
    ]  # fmt: skip
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.eos_ids == (2,)


def test_the_chat_template_of_smollm2_adds_its_system_message(tokenizer: TextTokenizer) -> None:
    assert tokenizer.chat("hi") == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
