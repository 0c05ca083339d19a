"""The Triton kernels: store KV by slot, attend by block table for decode and for prefill, reduce.

All of them take cache views with any stride over blocks, tokens and heads and a contiguous last
dimension, and compute offsets over blocks in 64 bits: pools hold more than 2**31 elements. Scores,
sums and outputs are fp32 until the last store; with 16-bit caches the weights are rounded to the
cache's dtype before they meet the values, as tensor cores want it. Places outside a request are
never loaded (masked loads give 0), so what lies there, NaN included, cannot reach a result.

What a request gets depends on its own length alone: tiles and splits begin at fixed multiples of
TILE and SPLIT tokens of the request, whatever else is in the batch.

Legend: R requests, T query tokens, H query heads, Hkv key/value heads, GROUP = H / Hkv, D = HEAD_DIM
padded to DIM, ROWS query rows of a tile (token-major, GROUP heads a token), TILE tokens of KV.
The choice of sizes and all launching is triton_paged's. How it works: docs/attention.md.
"""

# Arguments of kernels are pointers and scalars of the compiler's own, which Python's types do not name.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

# Where these begin differs from step to step; no kernel is compiled anew for that.
_MOVING = ["block_table", "seq_lens", "query_start", "slot_mapping"]


@triton.jit(do_not_specialize_on_alignment=_MOVING)
def store_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    key_token,
    key_head,
    value_token,
    value_head,
    kc_block,
    kc_token,
    kc_head,
    vc_block,
    vc_token,
    vc_head,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
):
    """Program (token): key and value of all heads of one token go to its slot; slot -1: nowhere.

    key, value [T, Hkv, D]; caches [blocks, BLOCK_SIZE, Hkv, D]; slot_mapping (T,) int64.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        heads = tl.arange(0, PADDED_HEADS)[:, None]
        dims = tl.arange(0, DIM)[None, :]
        ok = (heads < HEADS) & (dims < HEAD_DIM)
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        k = tl.load(key + token * key_token + heads * key_head + dims, mask=ok)
        k_at = key_cache + block * kc_block + offset * kc_token + heads * kc_head + dims
        tl.store(k_at, k, mask=ok)
        v = tl.load(value + token * value_token + heads * value_head + dims, mask=ok)
        v_at = value_cache + block * vc_block + offset * vc_token + heads * vc_head + dims
        tl.store(v_at, v, mask=ok)


@triton.jit
def _attend_tile(
    q,
    peak,
    total,
    acc,
    at,
    seq_len,
    query_place,
    window,
    table,
    key_head,
    value_head,
    kc_block,
    kc_token,
    vc_block,
    vc_token,
    scale_log2,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One step of the online softmax: rows q [ROWS, DIM] meet the tokens at to at + TILE.

    peak, total (ROWS,): largest score so far (in powers of two) and sum of weights; acc [ROWS, DIM].
    table: the request's row; key_head, value_head: the caches at block 0 of this head. MASKED: some
    of the tile may be past seq_len or past a row's query_place; unmasked tiles skip all tests. WIDEN is
    for Triton's interpreter, which cannot multiply bfloat16: the same products, taken in fp32.
    """
    places = at + tl.arange(0, TILE)
    dims = tl.arange(0, DIM)
    inside = places < seq_len
    if MASKED:
        blocks = tl.load(table + places // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    else:
        blocks = tl.load(table + places // BLOCK_SIZE).to(tl.int64)
    offsets = places % BLOCK_SIZE
    k_at = (key_head + blocks * kc_block + offsets * kc_token)[:, None] + dims[None, :]
    v_at = (value_head + blocks * vc_block + offsets * vc_token)[:, None] + dims[None, :]
    if MASKED or DIM != HEAD_DIM:
        ok = (dims < HEAD_DIM)[None, :]
        if MASKED:
            ok = ok & inside[:, None]
        k = tl.load(k_at, mask=ok, other=0.0)
        v = tl.load(v_at, mask=ok, other=0.0)
    else:
        k = tl.load(k_at)
        v = tl.load(v_at)
    rounded = v.dtype
    if WIDEN:
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    if MASKED:
        seen = places[None, :] <= query_place[:, None]
        if WINDOWED:
            seen = seen & (places[None, :] > query_place[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen nothing yet keeps peak -inf; subtract 0 then, since -inf - -inf is NaN.
    finite = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - finite[:, None])
    shrink = tl.exp2(peak - finite)
    total = total * shrink + tl.sum(weights, 1)
    weights = weights.to(rounded)
    if WIDEN:
        weights = weights.to(tl.float32)
    acc = tl.dot(weights, v, acc * shrink[:, None], input_precision="ieee")
    return new_peak, total, acc


@triton.jit(do_not_specialize=["table_row", "window"], do_not_specialize_on_alignment=_MOVING)
def decode_kernel(
    query,
    key_cache,
    value_cache,
    block_table,
    seq_lens,
    out,
    part_acc,
    part_stats,
    scale_log2,
    window,
    query_token,
    query_head,
    out_token,
    out_head,
    kc_block,
    kc_token,
    kc_head,
    vc_block,
    vc_token,
    vc_head,
    table_row,
    WINDOWED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (key/value head, share, request): one query token against some of its splits.

    The splits of SPLIT tokens are dealt to the shares in turn. A request of one split is written to
    `out`; of more, each split leaves its sum in part_acc [R, H, MAX_SPLITS, D] and its peak and
    total in part_stats [R, H, MAX_SPLITS, 2] for reduce_kernel. Splits are numbered from the first
    that the window reaches.
    """
    kv_head = tl.program_id(0)
    share = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    seq_len = tl.load(seq_lens + request)
    low = seq_len * 0
    if WINDOWED:
        low = tl.maximum(seq_len - window, 0)
    first = low // SPLIT
    num_splits = (seq_len + SPLIT - 1) // SPLIT - first
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    head = kv_head * GROUP + rows
    ok = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_at = request * query_token + head[:, None] * query_head + dims[None, :]
    out_at = request * out_token + head[:, None] * out_head + dims[None, :]
    q = tl.load(query + q_at, mask=ok, other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    if (num_splits <= 0) & (share == 0):
        tl.store(out + out_at, tl.full([ROWS, DIM], 0, out.dtype.element_ty), mask=ok)
    query_place = tl.full([ROWS], 0, tl.int32) + (seq_len - 1)
    key_head = key_cache + kv_head.to(tl.int64) * kc_head
    value_head = value_cache + kv_head.to(tl.int64) * vc_head
    table = block_table + request * table_row
    for split in range(share, num_splits, tl.num_programs(1)):
        begin = (first + split) * SPLIT
        end = tl.minimum(begin + SPLIT, seq_len)
        if WINDOWED:
            begin = tl.maximum(begin, low // TILE * TILE)
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.full([ROWS], 0.0, tl.float32)
        acc = tl.full([ROWS, DIM], 0.0, tl.float32)
        for at in range(begin, end, TILE):
            peak, total, acc = _attend_tile(
                q, peak, total, acc, at, seq_len, query_place, window, table,
                key_head, value_head, kc_block, kc_token, vc_block, vc_token, scale_log2,
                True, WINDOWED, BLOCK_SIZE, HEAD_DIM, DIM, TILE, WIDEN,
            )  # fmt: skip
        if num_splits == 1:
            tl.store(out + out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=ok)
        else:
            part = (request * tl.num_programs(0) * GROUP + head) * MAX_SPLITS + split
            tl.store(part_acc + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=ok)
            tl.store(part_stats + part * 2, peak, mask=rows < GROUP)
            tl.store(part_stats + part * 2 + 1, total, mask=rows < GROUP)


@triton.jit(do_not_specialize=["window"], do_not_specialize_on_alignment=_MOVING)
def reduce_kernel(
    part_acc,
    part_stats,
    seq_lens,
    out,
    window,
    out_token,
    out_head,
    WINDOWED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program (query head, request): merge the splits of a decode, in order, CHUNK at a time."""
    head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens + request)
    low = seq_len * 0
    if WINDOWED:
        low = tl.maximum(seq_len - window, 0)
    num_splits = (seq_len + SPLIT - 1) // SPLIT - low // SPLIT
    if num_splits > 1:
        dims = tl.arange(0, DIM)
        part = (request * tl.num_programs(0) + head) * MAX_SPLITS
        peak = num_splits * 0.0 - float("inf")
        total = num_splits * 0.0
        acc = tl.full([DIM], 0.0, tl.float32)
        for at in range(0, num_splits, CHUNK):
            splits = at + tl.arange(0, CHUNK)
            there = splits < num_splits
            stats = part_stats + (part + splits) * 2
            peaks = tl.load(stats, mask=there, other=float("-inf"))
            totals = tl.load(stats + 1, mask=there, other=0.0)
            sums = tl.load(
                part_acc + (part + splits)[:, None] * HEAD_DIM + dims[None, :],
                mask=there[:, None] & (dims < HEAD_DIM)[None, :],
                other=0.0,
            )
            new_peak = tl.maximum(peak, tl.max(peaks, 0))
            weights = tl.exp2(peaks - new_peak)
            shrink = tl.exp2(peak - new_peak)
            total = total * shrink + tl.sum(weights * totals, 0)
            acc = acc * shrink + tl.sum(weights[:, None] * sums, 0)
            peak = new_peak
        out_at = out + request * out_token + head * out_head + dims
        tl.store(out_at, (acc / total).to(out.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit(
    do_not_specialize=["table_row", "window", "first_request"],
    do_not_specialize_on_alignment=_MOVING,
)
def prefill_kernel(
    query,
    key_cache,
    value_cache,
    block_table,
    query_start,
    seq_lens,
    out,
    scale_log2,
    window,
    first_request,
    query_token,
    query_head,
    out_token,
    out_head,
    kc_block,
    kc_token,
    kc_head,
    vc_block,
    vc_token,
    vc_head,
    table_row,
    WINDOWED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (key/value head, query tile, request): ROWS // GROUP query tokens of one request.

    Later tiles, which see more tokens, come first, so that the last wave is made of short ones.
    """
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    request = first_request + tl.program_id(2).to(tl.int64)
    start = tl.load(query_start + request)
    num_tokens = tl.load(query_start + request + 1) - start
    first = tile * (ROWS // GROUP)
    if first < num_tokens:
        seq_len = tl.load(seq_lens + request)
        rows = tl.arange(0, ROWS)
        dims = tl.arange(0, DIM)
        token = first + rows // GROUP
        head = kv_head * GROUP + rows % GROUP
        row_ok = (rows < ROWS // GROUP * GROUP) & (token < num_tokens)
        ok = row_ok[:, None] & (dims < HEAD_DIM)[None, :]
        flat = (start + token).to(tl.int64)
        q_at = flat[:, None] * query_token + head[:, None] * query_head + dims[None, :]
        q = tl.load(query + q_at, mask=ok, other=0.0)
        if WIDEN:
            q = q.to(tl.float32)
        query_place = seq_len - num_tokens + token
        first_place = seq_len - num_tokens + first
        end = tl.minimum(first_place + ROWS // GROUP, seq_len)
        begin = seq_len * 0
        # Tiles up to `clear` are seen whole by every row: no tests there.
        clear = tl.maximum(first_place + 1, 0) // TILE * TILE
        if WINDOWED:
            begin = tl.maximum(first_place - window + 1, 0) // TILE * TILE
            clear = begin
        key_head = key_cache + kv_head.to(tl.int64) * kc_head
        value_head = value_cache + kv_head.to(tl.int64) * vc_head
        table = block_table + request * table_row
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.full([ROWS], 0.0, tl.float32)
        acc = tl.full([ROWS, DIM], 0.0, tl.float32)
        for at in range(begin, clear, TILE):
            peak, total, acc = _attend_tile(
                q, peak, total, acc, at, seq_len, query_place, window, table,
                key_head, value_head, kc_block, kc_token, vc_block, vc_token, scale_log2,
                False, WINDOWED, BLOCK_SIZE, HEAD_DIM, DIM, TILE, WIDEN,
            )  # fmt: skip
        for at in range(clear, end, TILE):
            peak, total, acc = _attend_tile(
                q, peak, total, acc, at, seq_len, query_place, window, table,
                key_head, value_head, kc_block, kc_token, vc_block, vc_token, scale_log2,
                True, WINDOWED, BLOCK_SIZE, HEAD_DIM, DIM, TILE, WIDEN,
            )  # fmt: skip
        # Padding (seq_len 0) has seen nothing: 0 / 1.
        total = tl.where(total == 0.0, 1.0, total)
        out_at = flat[:, None] * out_token + head[:, None] * out_head + dims[None, :]
        tl.store(out + out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=ok)
