"""KV blocks and host pools: layouts, bytes, what fits, and the sentences where it does not."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.gpu import host_memory, kv_cache
from engine.gpu.kv_cache import KV_DTYPES, HostPool, KVCache
from traces.errors import SettingsError

torch.set_num_threads(1)


def make_kv(num_blocks: int = 4, layout: str = "block", dtype: Any = torch.float32) -> KVCache:
    """Blocks of 4 tokens, 3 layers, 2 KV heads of 8: 1,536 bytes a block in fp32."""
    return KVCache(num_blocks, 3, 4, 2, 8, dtype=dtype, layout=layout)


@pytest.mark.parametrize("layout", ["block", "layer"])
def test_layer_gives_views_of_keys_and_values_of_every_block(layout: str) -> None:
    kv = make_kv(layout=layout)

    key, value = kv.layer(1)
    key[2, 3, 1] = 5.0
    value[2, 3, 1] = 7.0

    assert tuple(key.shape) == tuple(value.shape) == (4, 4, 2, 8)
    assert kv.blocks[2, 1, 0, 3, 1].tolist() == [5.0] * 8
    assert kv.blocks[2, 1, 1, 3, 1].tolist() == [7.0] * 8
    assert int((kv.blocks != 0).sum()) == 16
    assert kv.layer(1)[0] is key


def test_a_block_is_contiguous_over_layers_in_layout_block_only() -> None:
    by_block, by_layer = make_kv(layout="block"), make_kv(layout="layer")

    assert by_block.blocks[1:3].is_contiguous()
    assert not by_layer.blocks[1:3].is_contiguous()
    assert by_layer.layer(2)[0].is_contiguous()
    assert not by_block.layer(2)[0].is_contiguous()
    assert all(by_layer.blocks[1:3, i, j].is_contiguous() for i in range(3) for j in range(2))


@pytest.mark.parametrize(
    ("dtype", "num_bytes"),
    [("bfloat16", 768), ("float16", 768), ("float32", 1536), ("float64", 3072)],
)
def test_block_bytes_count_keys_and_values_of_all_layers(dtype: str, num_bytes: int) -> None:
    kv = make_kv(dtype=dtype)

    assert kv.block_bytes == num_bytes
    assert kv.blocks.nbytes == 4 * num_bytes
    assert kv.words.nbytes == 4 * num_bytes
    assert kv.dtype == KV_DTYPES[dtype]


@pytest.mark.parametrize("layout", ["block", "layer"])
@pytest.mark.parametrize("dtype", sorted(KV_DTYPES))
def test_words_are_the_same_bytes_as_the_blocks(layout: str, dtype: str) -> None:
    kv = make_kv(layout=layout, dtype=dtype)

    kv.blocks[3, 2, 1] = 1.0  # value of the last layer: the last of the six fragments

    touched = (kv.words != 0).any(dim=2).nonzero().tolist()
    assert touched == [[3, 5]]


def test_odd_shapes_fall_back_to_narrower_words() -> None:
    kv = KVCache(2, 1, 1, 1, 3, dtype="bfloat16")

    assert kv.words.dtype == torch.int16
    assert tuple(kv.words.shape) == (2, 2, 3)


@pytest.mark.parametrize("layout", ["block", "layer"])
@pytest.mark.parametrize("dtype", sorted(KV_DTYPES))
def test_poison_fills_those_blocks_with_nan_and_no_others(layout: str, dtype: str) -> None:
    kv = make_kv(layout=layout, dtype=dtype)

    kv.poison([0, 3])

    assert torch.isnan(kv.blocks[[0, 3]]).all()
    assert (kv.blocks[1:3] == 0).all()


def test_a_host_pool_has_the_shape_layout_and_dtype_of_the_cache() -> None:
    host = HostPool(make_kv(layout="layer", dtype="float16"), 7)

    assert (host.num_blocks, host.layout, host.dtype) == (7, "layer", torch.float16)
    assert tuple(host.blocks.shape) == (7, 3, 2, 4, 2, 8)
    assert not host.pinned


def test_a_host_pool_on_a_cpu_takes_only_the_memory_that_is_written() -> None:
    kv = KVCache(2, 32, 16, 8, 128, dtype="bfloat16")  # 2 MiB a block
    before = resident_bytes()

    host = HostPool(kv, 2048)  # 4 GiB
    host.blocks[5] = 1.0

    assert resident_bytes() - before < 64 * 2**20
    assert float(host.blocks[5].float().mean()) == 1.0
    assert float(host.blocks[2047].float().sum()) == 0.0


@pytest.mark.skipif(
    not sys.platform.startswith("linux")
    or Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2",
    reason="this system accounts for memory before it is written",
)
def test_a_host_pool_on_a_cpu_may_be_larger_than_the_machine() -> None:
    kv = KVCache(2, 32, 16, 8, 128, dtype="bfloat16")

    host = HostPool(kv, 2**20)  # 2 TiB
    host.blocks[2**20 - 1] = 1.0

    assert float(host.blocks[2**20 - 1].float().mean()) == 1.0


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_layers": 0}, "num_layers 0 of the KV cache must be 1 or more"),
        ({"head_dim": -1}, "head_dim -1 of the KV cache must be 1 or more"),
        ({"num_blocks": 0}, "num_gpu_blocks 0 must be 1 or more"),
        ({"layout": "token"}, "KV layout 'token' is not known. Choose one of block, layer"),
        ({"dtype": "int8"}, "Choose one of bfloat16, float16, float32, float64"),
        ({"dtype": torch.float8_e4m3fn}, "keeps no scales for 8-bit KV"),
        ({"device": "meta"}, "device meta is not supported. Use cuda or cpu"),
        ({"device": "gpu"}, "device 'gpu' is not known. Use cuda or cpu"),
        ({"device": "cuda:64"}, "device cuda:64 is not there: torch"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(change: dict, sentence: str) -> None:
    settings = {
        "num_blocks": 2,
        "num_layers": 1,
        "block_size": 4,
        "num_kv_heads": 1,
        "head_dim": 8,
        "dtype": "float32",
    } | change

    with pytest.raises(SettingsError, match=re.escape(sentence)):
        KVCache(**settings)


def test_too_many_blocks_are_refused_with_the_number_that_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_cache, "available_host_bytes", lambda: 10_000)

    with pytest.raises(SettingsError, match=r"6 blocks would fit\. Set --num-gpu-blocks to 6"):
        make_kv(num_blocks=7)
    make_kv(num_blocks=6)


def test_memory_for_less_than_two_blocks_is_said_to_be_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is the null block: nobody can ask for a pool of one."""
    monkeypatch.setattr(kv_cache, "available_host_bytes", lambda: 2 * 1536 - 1)

    with pytest.raises(SettingsError, match="not enough for two blocks, which is the least"):
        make_kv(num_blocks=2)


def test_bfloat16_is_refused_on_a_card_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")

    with pytest.raises(SettingsError, match=r"8\.0, Tesla T4 has 7\.5\. Use --dtype float16"):
        kv_cache.check_dtype("bfloat16", "cuda")
    assert kv_cache.check_dtype("float16", "cuda") == torch.float16


def test_a_host_pool_that_cannot_be_pinned_names_the_limit_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    class Cudart:
        def cudaHostRegister(self, pointer: int, num_bytes: int, flags: int) -> int:
            calls.append((num_bytes, flags))
            return 2

    launched: list[str] = []

    def zeros(n: int, device: str) -> Any:
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "cudart", Cudart)
    monkeypatch.setattr(torch, "zeros", zeros)

    with pytest.raises(SettingsError) as fault:
        host_memory.HostBuffer(8192, pin=True, what="host pool", remedy="Give less --host-gib.")

    assert calls == [(8192, 1)]
    assert launched == ["cuda"]  # so that the refusal does not stay pending
    for part in ("CUDA error 2", "`ulimit -l`", "memlock=-1", "give less --host-gib"):
        assert part in str(fault.value)


def test_a_large_pool_that_cannot_be_pinned_hears_of_drivers_limits() -> None:
    said = host_memory.pin_error("host pool", 600 * 2**30, 2, "Give less --host-gib.")

    assert "600 GiB" in said
    assert "no more than about 100 GiB in one piece" in said
    assert "in one piece" not in host_memory.pin_error("host pool", 2**30, 2, "Give less.")


def test_a_pinned_buffer_is_unpinned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Cudart:
        def cudaHostRegister(self, pointer: int, num_bytes: int, flags: int) -> int:
            calls.append(("pin", pointer))
            return 0

        def cudaHostUnregister(self, pointer: int) -> int:
            calls.append(("unpin", pointer))
            return 0

    monkeypatch.setattr(torch.cuda, "cudart", Cudart)
    buffer = host_memory.HostBuffer(8192, pin=True, what="host pool", remedy="")
    pointer = buffer.bytes.data_ptr()
    assert buffer.pinned

    buffer.close()
    buffer.close()

    assert calls == [("pin", pointer), ("unpin", pointer)]
    assert pointer % 4096 == 0


def test_host_memory_that_the_system_refuses_is_a_sentence() -> None:
    with pytest.raises(SettingsError, match="which the system refused"):
        host_memory.HostBuffer(2**62, pin=False, what="host pool", remedy="Give less.")


def test_a_host_pool_needs_a_block() -> None:
    with pytest.raises(SettingsError, match=r"at least one block\. Give more --host-gib"):
        HostPool(make_kv(), 0)


def test_available_memory_is_the_smaller_of_machine_and_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    group = tmp_path / "group"
    group.mkdir()
    assert host_memory.available_host_bytes(tmp_path, group) == 512_000

    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("100000\n")
    assert host_memory.available_host_bytes(tmp_path, group) == 512_000

    (group / "memory.max").write_text("300000\n")
    (group / "memory.stat").write_text("anon 7\ninactive_file 25000\n")
    assert host_memory.available_host_bytes(tmp_path, group) == 225_000

    assert host_memory.available_host_bytes(group, group) is None
