"""The decoder against transformers' models, on tiny random weights of each family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.gpu.model import CausalLM, model_bytes
from engine.gpu.model_config import RopeConfig, model_config
from engine.gpu.rope import inverse_frequencies
from engine.gpu.weights import load_model
from tests.gpu import tiny
from tests.gpu.dense import DenseCache, side_by_side
from traces.errors import SettingsError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
LLAMA3 = tiny.LLAMA3_ROPE
NUM_TOKENS = 100  # past the windows of 8 and the 64 tokens that llama3 and yarn stretch


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def ids(count: int = NUM_TOKENS, seed: int = 5) -> torch.Tensor:
    return torch.randint(0, 250, (count,), generator=torch.Generator().manual_seed(seed))


def logits_in_chunks(model: CausalLM, tokens: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    """Logits (T, vocab) of the tokens, computed in chunks of those sizes over one cache."""
    cache, start, rows = DenseCache(model), 0, []
    for size in chunks:
        positions = torch.arange(start, start + size)
        hidden = model(tokens[start : start + size], positions, cache.attend)
        rows.append(model.logits(hidden))
        start += size
    assert start == len(tokens)
    return torch.cat(rows)


def their_logits(directory: Path, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    return model(tokens[None]).logits[0]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_logits_are_those_of_transformers_in_prefill_and_in_chunks_with_decode(
    family: str, tmp_path: Path
) -> None:
    directory = tiny.llama_dir(tmp_path, family)
    model = load_model(directory, dtype="float32")

    whole = logits_in_chunks(model, ids(), [100])
    parts = logits_in_chunks(model, ids(), [37, 1, 42, *[1] * 20])

    expected = their_logits(directory, ids(), torch.float32)
    assert expected.abs().max() > 1
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(parts, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_only_the_layers_that_qwen_names_have_a_window(family: str, tmp_path: Path) -> None:
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    directory = tiny.llama_dir(tmp_path, family, **window)
    model = load_model(directory, dtype="float32")

    assert model.config.windows == (0, 8)
    expected = their_logits(directory, ids(), torch.float32)
    torch.testing.assert_close(
        logits_in_chunks(model, ids(), [60, 40]), expected, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-5), (torch.bfloat16, 0.25), (torch.float16, 0.04)]
)
def test_other_types_stay_close_to_transformers(
    dtype: torch.dtype, bound: float, tmp_path: Path
) -> None:
    """float64: theirs norms and turns in float32 (seen: 2e-6); 16 bits: we round less often (seen: 0.14, 0.013)."""
    directory = tiny.llama_dir(tmp_path, "qwen3")

    model = load_model(directory, dtype=dtype)
    logits = logits_in_chunks(model, ids(40), [40])

    assert logits.dtype == dtype
    expected = their_logits(directory, ids(40), torch.float64)
    torch.testing.assert_close(logits.double(), expected, atol=bound, rtol=0)


def test_chunks_and_whole_agree_to_the_last_digits_in_float64(tmp_path: Path) -> None:
    model = tiny.tiny_model(tmp_path, "mistral", "float64")

    whole = logits_in_chunks(model, ids(), [100])

    parts = logits_in_chunks(model, ids(), [1] * 100)
    torch.testing.assert_close(parts, whole, atol=1e-12, rtol=0)


def test_sequences_of_a_flat_batch_do_not_see_each_other(tmp_path: Path) -> None:
    model = tiny.tiny_model(tmp_path, "llama3", "float64")
    first, second = ids(9, seed=1), ids(4, seed=2)
    attend = side_by_side([DenseCache(model), DenseCache(model)], [9, 4])

    both = model(torch.cat((first, second)), torch.tensor([*range(9), *range(4)]), attend)

    alone = model(second, torch.arange(4), DenseCache(model).attend)
    torch.testing.assert_close(both[9:], alone, atol=1e-12, rtol=0)


def test_attend_is_called_once_a_layer_with_contiguous_heads(tmp_path: Path) -> None:
    model = tiny.tiny_model(tmp_path, "qwen3", num_hidden_layers=3)
    calls: list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]] = []

    def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
        contiguous = all(t.is_contiguous() for t in (q, k, v))
        calls.append((layer, tuple(q.shape), tuple(k.shape), tuple(v.shape), contiguous))
        return q

    model(ids(5), torch.arange(5), attend)

    shapes = ((5, 4, 16), (5, 2, 16), (5, 2, 16), True)
    assert calls == [(0, *shapes), (1, *shapes), (2, *shapes)]


def test_position_and_not_place_in_the_batch_turns_a_key(tmp_path: Path) -> None:
    model = tiny.tiny_model(tmp_path, "llama2", "float64")
    seen: list[torch.Tensor] = []

    def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
        seen.append(k)
        return q

    model(torch.tensor([7, 7]), torch.tensor([3, 90]), attend)
    model(torch.tensor([7]), torch.tensor([90]), attend)

    first_layer, later = seen[0], seen[2]
    torch.testing.assert_close(first_layer[1], later[0], atol=1e-12, rtol=0)
    assert not torch.allclose(first_layer[0], first_layer[1], atol=1e-3)


def test_llama3_keeps_short_waves_and_stretches_long_ones() -> None:
    rope = RopeConfig(
        theta=500000.0, kind="llama3", factor=8.0, original_len=8192, low_freq_factor=1.0, high_freq_factor=4.0,
    )  # fmt: skip

    ratio = inverse_frequencies(rope, 128) / inverse_frequencies(RopeConfig(500000.0), 128)

    # A wave of more than 8192 tokens is stretched, one of less than 2048 kept: pairs 35 and 28.
    assert ratio[:29].tolist() == [1.0] * 29
    assert ratio[35:].tolist() == [0.125] * 29
    assert 0.125 < ratio[30].item() < 1


def test_model_bytes_count_a_shared_table_once(tmp_path: Path) -> None:
    model = tiny.tiny_model(tmp_path, "smollm2", "bfloat16")

    # Two layers of 2 norms (48), qkv 80 x 48, out 48 x 48, gate and up 96 x 48, down 48 x 48, in 16
    # bits; embedding 256 x 48, norm; 8 frequencies in 32 bits.
    layer = 2 * 48 + 80 * 48 + 48 * 48 + 96 * 48 + 48 * 48
    assert model_bytes(model) == 2 * (2 * layer + 256 * 48 + 48) + 4 * 8
    assert model.config.num_parameters == 2 * layer + 256 * 48 + 48


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_config_counts_the_parameters_that_the_model_holds(
    family: str, tmp_path: Path
) -> None:
    model = tiny.tiny_model(tmp_path, family)

    assert model.config.num_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not known. It runs Llama 2 and 3, SmolLM2 (llama), Mistral"),
        ({"model_type": "mixtral"}, "'mixtral' is a mixture of experts (MoE), which is not supported by the torch engine"),
        ({"model_type": "qwen3_moe"}, "'qwen3_moe' is a mixture of experts (MoE), which is not supported"),
        ({"model_type": "deepseek_v3"}, "'deepseek_v3' has latent attention (MLA), which is not supported"),
        ({"model_type": "gemma2"}, "'gemma2' can be simulated but is not supported by the torch engine"),
        ({"model_type": None}, "config.json: the key model_type is missing"),
        ({"hidden_act": "gelu"}, "config.json, hidden_act: 'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: 'dynamic' is not supported by the torch engine. Supported: default, linear, llama3, yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "keys of rope_type 'llama3' are missing: low_freq_factor, high_freq_factor"),
        ({"rope_scaling": "yarn"}, "rope_parameters must be an object, not 'yarn'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0}}, "mscale and mscale_all_dim of yarn are not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: rotating a part of each head is not supported"),
        ({"rope_theta": -1}, "config.json, rope_theta: -1 is not a positive number"),
        ({"rope_theta": 1}, "config.json, rope_theta: 1.0 is not above 1"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor 4.0 is not below high_freq_factor 4.0"),
        ({"rms_norm_eps": "small"}, "config.json, rms_norm_eps: 'small' is not a positive number"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads evenly"),
        ({"head_dim": 15}, "head_dim: 15 is odd"),
    ],
)  # fmt: skip
def test_a_config_that_the_decoder_would_compute_wrongly_is_refused(
    keys: dict[str, Any], message: str
) -> None:
    config = {k: v for k, v in (tiny.config_of("llama2") | keys).items() if v is not None}

    with pytest.raises(SettingsError) as e:
        model_config(config, "tiny", "config.json")

    assert message in str(e.value)
