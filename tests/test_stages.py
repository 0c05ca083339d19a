"""Pipeline stages: how layers and weights are dealt out, and what step, pool and copies make of it."""

from __future__ import annotations

import pytest

from engine.config import EngineSettings, resolve
from engine.cost_model import (
    CostParams,
    copy_time_s,
    make_cost_params,
    pool_blocks,
    recompute_time_s,
    step_time_s,
    tiled_tokens,
)
from engine.devices import load_device
from engine.models import load_model
from engine.stages import stage_layers, stage_shapes, stage_weights_bytes
from traces.errors import SettingsError


def params(model: str = "llama-3.1-8b", pp: int = 2, tp: int = 1) -> CostParams:
    return make_cost_params(load_model(model), load_device("h100-sxm"), tp=tp, pp=pp)


def decode_step_s(p: CostParams, num: int, context: int) -> float:
    return float(step_time_s(p, num, float(num * context), 0.0, 0, 0.0, 0.0, 0, num))


# ---- layers and weights ----


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (32, 1, (32,)),
        (32, 4, (8, 8, 8, 8)),
        (61, 4, (15, 15, 16, 15)),
        (36, 8, (4, 4, 4, 5, 5, 5, 5, 4)),
        (62, 4, (15, 16, 16, 15)),
        (31, 2, (16, 15)),
        (80, 3, (27, 27, 26)),  # two are left over: for the middle stage and the first
    ],
)
def test_layers_are_dealt_out_as_vllm_does(
    layers: int, pp: int, expected: tuple[int, ...]
) -> None:
    assert stage_layers(layers, pp) == expected


def test_the_first_stage_holds_the_embedding_and_the_last_the_head() -> None:
    # Llama-3.1-8B: 6.98 billion in 32 layers, and two tables of 128,256 x 4,096.
    first, second, third, last = stage_weights_bytes(load_model("llama-3.1-8b"), 4)

    assert second == third
    assert first - second == last - third == 128_256 * 4_096 * 2
    assert second == pytest.approx(6.98e9 * 2 / 4, rel=1e-3)


def test_a_shared_table_lies_on_the_first_and_the_last_stage() -> None:
    model = load_model("llama-3.2-1b")
    (alone,) = stage_weights_bytes(model, 1)
    stages = stage_weights_bytes(model, 2)

    assert model.tied_embeddings
    assert alone == model.weights_bytes()
    assert sum(stages) - alone == 128_256 * 2_048 * 2


def test_the_dense_layers_of_an_expert_model_come_first() -> None:
    shapes = stage_shapes(load_model("deepseek-v3"), 4)

    assert [(s.num_layers, s.num_moe_layers) for s in shapes] == [
        (15, 12),
        (15, 15),
        (16, 16),
        (15, 15),
    ]


# ---- the pool ----


def test_the_pool_is_that_of_the_tightest_stage() -> None:
    # H100 SXM, 0.92 of 79.18 GiB is 78.22e9 B. The last of two stages holds half of 13.96e9 B of layers
    # and the head's 1.05e9 B, the sampler's 1,024 x 128,256 x 24 B, 0.8 GiB of graphs and libraries;
    # the rest in blocks of 16 tokens in 16 layers, 1 MiB.
    device = load_device("h100-sxm")
    room = 0.92 * device.memory_bytes - 6.98e9 - 1.0507e9 - 3.152e9 - 0.8 * 2**30

    blocks = pool_blocks(load_model("llama-3.1-8b"), device, max_num_seqs=1024, pp=2)

    assert blocks == pytest.approx(room / 2**20, rel=1e-3)
    assert blocks == pytest.approx(63_035, rel=1e-3)


def test_the_sampler_counts_on_the_last_stage_only() -> None:
    # Without the sampler's 3.15 GB the last stage has as much room as the first.
    model, device = load_model("llama-3.1-8b"), load_device("h100-sxm")
    many = pool_blocks(model, device, max_num_seqs=1024, max_num_batched_tokens=2048, pp=2)
    few = pool_blocks(model, device, max_num_seqs=8, max_num_batched_tokens=2048, pp=2)

    # MLP's peak: 2,048 x (3 x 14,336 + 3 x 4,096) x 2 B = 226 MB
    assert few - many == pytest.approx((3.152e9 - 0.2265e9) / 2**20, abs=2)


def test_a_block_has_the_same_bytes_over_all_gpus() -> None:
    one, four = (
        resolve(EngineSettings(num_gpu_blocks=9, pipeline_parallel_size=pp)) for pp in (1, 4)
    )

    assert one.block_bytes == four.block_bytes == 2 * 2**20
    assert (one.cost.kv_block_bytes, four.cost.kv_block_bytes) == (2 * 2**20, 2**19)
    assert four.cost.kv_block_total_bytes == 2 * 2**20


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(SettingsError, match="pp 33 leaves a stage without a layer"):
        resolve(EngineSettings(num_gpu_blocks=9, pipeline_parallel_size=33))


def test_a_model_that_does_not_fit_names_the_stages() -> None:
    with pytest.raises(SettingsError, match=r"does not fit on 2 x a10 in 2 stages: .* need 47\.0 GiB more"):  # fmt: skip
        resolve(EngineSettings(model="llama-3.1-70b", device="a10", pipeline_parallel_size=2))


# ---- the step ----


def test_stages_do_not_shorten_the_weight_read_of_a_decode_step() -> None:
    # 7.02 ms on one GPU (test_cost_model.py); two batches read the head, 0.37 ms, twice; a hop 5 us.
    assert decode_step_s(params(), 1, 0) * 1e3 == pytest.approx(7.02 + 0.37 + 0.005, abs=0.03)


def test_stages_share_the_attention_of_the_batch() -> None:
    # 64 x 2,048 tokens cost 5.83 ms on one GPU.
    p = params(pp=4)

    more = decode_step_s(p, 64, 2048) - decode_step_s(p, 64, 0)

    assert more * 1e3 == pytest.approx(5.83 / 4, abs=0.01)


def test_stages_share_the_arithmetic_of_a_prefill() -> None:
    # 25.4 us a token on one GPU; a hop moves half of 2 x 4,096 x 2 B a token at 330 GB/s: 25 ns.
    p = params()

    def prefill(n: int) -> float:
        return float(step_time_s(p, 0, 0.0, 0.0, n, n * n / 2, 0.0, 1, 1))

    per_token = (prefill(8192) - prefill(4096)) / 4096

    assert per_token * 1e6 == pytest.approx(25.4 / 2 + 0.025, abs=0.3)


def test_a_recompute_is_shared_by_the_stages() -> None:
    one, two = recompute_time_s(params(pp=1), 2048, 0), recompute_time_s(params(pp=2), 2048, 0)

    # all but the 32 launches of prefill attention, 10 us each, and the hop
    assert one * 1e3 == pytest.approx(45.0, rel=0.05)
    assert (two - 320e-6) * 2 == pytest.approx(one - 320e-6, rel=0.005)


def test_a_batch_touches_the_experts_of_its_own_tokens() -> None:
    # 8 of 128 experts a token; 32 tokens in 2 batches of 16: 1 - (120/128)^16 = 0.6439 of them.
    p = params("qwen3-30b-a3b")

    assert 1 - p.expert_skip_frac**32 == pytest.approx(0.6439, abs=1e-4)


def test_each_batch_fills_tiles_of_its_own() -> None:
    # 800 tokens in 2 batches of 400: 2 x 512 rows of tiles of 128; on one stage 896.
    assert tiled_tokens(params(pp=1), 800) == 896
    assert tiled_tokens(params(pp=2), 800) == 1024


def test_the_largest_stage_sets_the_pace() -> None:
    # 36 layers on 8 stages: 5 on the largest, 5 x 8 / 36 = 1.111 of an even share.
    one, eight = params("qwen3-8b", pp=1), params("qwen3-8b", pp=8)

    assert eight.always_read_s / one.always_read_s == pytest.approx(1.1111, abs=1e-4)
    assert eight.token_compute_s / one.token_compute_s == pytest.approx(5 / 36, abs=1e-4)


def test_a_stage_copies_its_own_layers() -> None:
    # 128 blocks of 1 MiB at 53 GB/s = 2.53 ms, + 60 us + 3 us a run.
    assert copy_time_s(params(), 128, 1, True) * 1e3 == pytest.approx(2.53 + 0.063, abs=0.01)


def test_one_stage_changes_nothing() -> None:
    model, device = load_model("qwen3-8b"), load_device("h100-sxm")

    assert make_cost_params(model, device, pp=1) == make_cost_params(model, device)


# ---- the link ----


def test_the_link_can_be_set_both_ways() -> None:
    resolved = resolve(
        EngineSettings(device="gh200", num_gpu_blocks=9, preemption_mode="swap", link_gb_per_s=12.5)
    )  # fmt: skip

    assert resolved.cost.link_in_bytes_per_s == resolved.cost.link_out_bytes_per_s == 12.5e9
    assert resolved.device.link_out_bytes_per_s == 12.5e9
    assert resolved.device.sources["link_in_bytes_per_s"].startswith("given")


def test_a_cost_parameter_of_one_way_comes_on_top_of_the_link() -> None:
    cost = resolve(
        EngineSettings(
            num_gpu_blocks=9, link_gb_per_s=12.5, cost_overrides={"link_in_bytes_per_s": 5e9}
        )
    ).cost

    assert (cost.link_in_bytes_per_s, cost.link_out_bytes_per_s) == (5e9, 12.5e9)


@pytest.mark.parametrize("link", [0, -1.0, float("nan"), "fast", True, 1e9])
def test_a_link_that_cannot_be_is_refused(link: object) -> None:
    with pytest.raises(SettingsError, match="link_gb_per_s must lie between"):
        EngineSettings(link_gb_per_s=link)  # type: ignore[arg-type]
