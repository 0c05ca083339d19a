"""What a live recording says of its server, from configurations made up for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.live.metadata import data_parallel_rank, preemption_mode, run_metadata, server_name
from engine.live.settings import LiveSettings
from engine.live.writer import Writer
from traces.fleet import Fleet
from traces.open import open_any


def make_config(**changes: Any) -> Any:
    """vLLM's VllmConfig as far as the recorder looks at it."""
    parallel = SimpleNamespace(
        data_parallel_size=2,
        data_parallel_index=changes.pop("rank", 0),
        tensor_parallel_size=2,
        pipeline_parallel_size=1,
    )
    text = SimpleNamespace(model_type="llama", num_hidden_layers=4, hidden_size=64, secret="x")
    model = changes.pop("model", "org/model")
    base = {
        "instance_id": "77",
        "parallel_config": parallel,
        "scheduler_config": SimpleNamespace(
            max_num_seqs=8, enable_chunked_prefill=True, policy="fcfs", async_scheduling=True
        ),
        "cache_config": SimpleNamespace(
            num_gpu_blocks=101,
            block_size=16,
            gpu_memory_utilization=0.9,
            enable_prefix_caching=True,
            cache_dtype="auto",
            prefix_caching_hash_algo="sha256",
        ),
        "model_config": SimpleNamespace(
            model=model, max_model_len=4096, hf_text_config=text, dtype="torch.bfloat16"
        ),
        "kv_transfer_config": None,
    }
    return SimpleNamespace(**{**base, **changes})


def make_group(layers: int, page_bytes: int, **more: Any) -> Any:
    spec = SimpleNamespace(page_size_bytes=page_bytes, **more)
    return SimpleNamespace(layer_names=["l"] * layers, kv_cache_spec=spec)


def metadata_of(config: Any, *groups: Any, **changes: Any) -> dict[str, Any]:
    cache = SimpleNamespace(kv_cache_groups=groups or (make_group(4, 1_000),))
    return run_metadata(
        config,
        cache,
        **{
            "settings": LiveSettings(),
            "vllm_version": "0.26.0+cpu",
            "token_budget": 2048,
            "hash_block": 16,
            "blind": ("events.cause_request_id",),
            "unix_s": 1_764_590_400.0,
            **changes,
        },
    )


def test_settings_have_our_names_and_vllms_values() -> None:
    meta = metadata_of(make_config())

    assert meta["settings"]["num_gpu_blocks"] == 101
    assert meta["settings"]["max_num_batched_tokens"] == 2048
    assert meta["settings"]["async_scheduling"] is True
    assert meta["pool_blocks"] == 100
    assert meta["vllm_baseline"] == "0.26.0"
    assert meta["live"]["started_utc"] == "20251201T120000Z"


def test_a_block_is_counted_over_layers_and_gpus() -> None:
    together = make_group(4, 9_000, kv_cache_specs={})

    assert metadata_of(make_config(), make_group(4, 1_000))["block_bytes"] == 8_000
    assert metadata_of(make_config(), make_group(2, 1_000), make_group(3, 1_000))["block_bytes"] == 6_000  # fmt: skip
    assert metadata_of(make_config(), together)["block_bytes"] == 18_000


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/mnt/secret-customer/qwen3", "qwen3"),
        ("a/b/c/", "c"),
        ("./here", "here"),
    ],
)
def test_of_a_models_path_only_the_last_part_is_kept(model: str, name: str) -> None:
    meta = metadata_of(make_config(model=model))

    assert meta["settings"]["model"] == meta["model"]["name"] == name
    assert "secret" not in str(meta)


def test_what_cannot_be_seen_is_listed() -> None:
    listed = metadata_of(make_config(), hash_block=None)["not_recorded"]

    assert {"requests.swapped_bytes", "events.cause_request_id", "requests.prefix_ids"} <= set(
        listed
    )


def test_ranks_of_one_server_share_its_name() -> None:
    names = {server_name(make_config(instance_id=i)) for i in ("77", "77_dp0", "77_dp1")}

    assert len(names) == 1
    assert server_name(make_config(instance_id="78")) not in names
    assert data_parallel_rank(make_config(rank=3)) == 3


def test_a_storing_connector_makes_preemption_an_offload() -> None:
    storing = SimpleNamespace(
        kv_connector="OffloadingConnector",
        kv_connector_extra_config={"cpu_bytes_to_use": 80_000},
    )
    config = make_config(kv_transfer_config=storing)

    assert preemption_mode(make_config()) == "recompute"
    assert preemption_mode(config) == "offload"
    assert metadata_of(config)["host_pool_blocks"] == 10
    assert metadata_of(config)["settings"]["offload_connector"] == "native"
    assert metadata_of(config)["settings"]["offload_prompt_only"] is True  # vLLM's default
    assert "offload_connector" not in metadata_of(make_config())["settings"]


def test_hashes_that_could_be_guessed_are_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    config = make_config()
    assert metadata_of(config)["live"]["prefix_ids_rekeyed"] is False

    config.cache_config.prefix_caching_hash_algo = "xxhash"
    assert metadata_of(config)["live"]["prefix_ids_rekeyed"] is True

    config.cache_config.prefix_caching_hash_algo = "sha256"
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert metadata_of(config)["live"]["prefix_ids_rekeyed"] is True


def test_the_ranks_of_a_server_open_as_one_fleet(tmp_path: Path) -> None:
    for rank in (0, 1):
        config = make_config(rank=rank)
        writer = Writer(
            LiveSettings(out=tmp_path),
            metadata_of(config),
            data_parallel_rank(config),
            server_name(config),
            1_764_590_400.0,
        )
        writer.start()
        writer.inbox.step((0, 0.0, 0.1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 4, 0, 2, 96, 0))
        writer.close("completed")

    fleet = open_any(tmp_path)

    assert isinstance(fleet, Fleet)
    assert len(fleet.recordings) == 2
    assert [m.open_recording().meta["live"]["data_parallel_rank"] for m in fleet.recordings] == [0, 1]  # fmt: skip
