"""From logits to the next token: greedy, or drawn from noise that only (seed, request, position) fix.

A draw is an exponential race: token i wins if p_i / E_i is largest, E_i exponential noise. The noise
is a hash of (seed, request key, position, token id), no generator's state: neither the batch that a
request is in, nor preemption, nor the order of steps changes what it draws. It knows nothing of
requests or steps; rows come with their two seed words.

Legend: M rows of logits, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from traces.errors import SettingsError

# Increment and multipliers of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
# Generators, OOPSLA 2014) and of MurmurHash3's 32-bit finaliser (Appleby, public domain).
_GAMMA = 0x9E3779B97F4A7C15
_MUL64 = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MUL32 = (0x85EBCA6B, 0xC2B2AE35)
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24  # in float32
_SCORES_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 24}
_FEW = 512  # the most probable tokens, among which a CPU looks for top_p before it sorts all


@dataclass(frozen=True)
class Sampling:
    """How a run picks tokens.

    temperature: 0 is greedy (the largest logit, ties the lowest id); top_k: only the k largest logits
    (and what ties with the k-th) can be drawn, 0: all; top_p: only the most probable tokens that
    together reach this share, applied after top_k; seed: any 64-bit number.

    Raises: SettingsError for values that cannot be.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise SettingsError(
                f"temperature is {self.temperature}. Give 0 (greedy) or a positive number, say 0.7."
            )
        if not 0.0 < self.top_p <= 1.0:
            raise SettingsError(
                f"top_p is {self.top_p}. Give a share above 0 and up to 1 (1: all tokens)."
            )
        if self.top_k < 0:
            raise SettingsError(f"top_k is {self.top_k}. Give 0 (all tokens) or more.")
        if not -(1 << 63) <= self.seed < 1 << 64:
            raise SettingsError(
                f"seed {self.seed} does not fit in 64 bits. Give a smaller one."
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def row_seeds(seed: int, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Seed words (M, 2) int32 of rows: keys (M,) uint64, positions (M,) of the tokens to draw.

    Each of the three is added to the state before one SplitMix64 step, so that rows whose keys or
    positions are neighbours have unrelated words.
    """
    state = _mix64(np.full(keys.shape, seed & (2**64 - 1), np.uint64))
    state = _mix64(state + keys)
    state = _mix64(state + positions.astype(np.uint64))
    return state.view(np.int32).reshape(-1, 2)


def _mix64(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(_GAMMA)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MUL64[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MUL64[1])
    return x ^ (x >> np.uint64(31))


def sample(
    logits: torch.Tensor, sampling: Sampling, seeds: torch.Tensor | None
) -> torch.Tensor:
    """The next token of each row: (M,) int64 from logits (M, V); not altered. Computed in float32.

    seeds (M, 2) int32: from row_seeds; None for greedy.
    """
    if sampling.greedy:
        return _largest(logits.float())
    assert seeds is not None, "a draw needs seed words"
    # Rows do not look at each other. Few at a time stay in a CPU's cache, and bound a GPU's memory.
    at_once = max(1, _SCORES_AT_ONCE[logits.device.type] // logits.shape[1])
    parts = zip(logits.split(at_once), seeds.split(at_once), strict=True)
    mixed = mixed_ids(logits.shape[1], logits.device)
    return torch.cat([_draw(rows.float(), sampling, mixed, words) for rows, words in parts])


def marked_ids(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """ids (M,), or ~id (negative) where the logit (M, V) that was taken is not finite. No sync.

    One NaN or infinity in a row is taken wherever it stands, and -inf only if all are.
    """
    taken = logits.gather(1, ids.unsqueeze(1)).squeeze(1)
    return torch.where(taken.isfinite(), ids, ~ids)


def _draw(
    logits: torch.Tensor, sampling: Sampling, mixed: torch.Tensor, seeds: torch.Tensor
) -> torch.Tensor:
    scores = logits / sampling.temperature
    bound = smallest_kept(scores, sampling)
    noise = exponential_noise(hash_words(mixed, seeds))
    race = torch.sub(scores, noise.log_(), out=noise)
    if bound is not None:
        race.masked_fill_(scores < bound, -math.inf)
    return _largest(race)


def _largest(scores: torch.Tensor) -> torch.Tensor:
    """The lowest id of the largest score of each row. NumPy's is the same search, 19 times faster."""
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmax(axis=-1))
    return scores.argmax(dim=-1)


def smallest_kept(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor | None:
    """(M, 1): the smallest of scores (M, V) that top_k and top_p leave; None: they leave all.

    A bound, not a set of ids: what ties with the last token kept is kept too, so that no order
    among equals decides. top_p takes the k largest for all there is.
    """
    k = sampling.top_k if 0 < sampling.top_k < scores.shape[1] else 0
    if sampling.top_p >= 1.0:
        return scores.topk(k, dim=-1).values[:, -1:] if k else None
    if k:
        best = scores.topk(k, dim=-1).values
        share = best.softmax(dim=-1)
    else:
        best, share = _most_probable(scores, sampling.top_p)
    before = share.cumsum(dim=-1) - share  # what the more probable ones have together
    kept = (before < sampling.top_p).sum(dim=-1, keepdim=True).clamp_(min=1)
    return best.gather(1, kept - 1)


def _most_probable(scores: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest scores (M, n) of each row, descending, and their shares, together top_p or more."""
    whole = scores.logsumexp(dim=-1, keepdim=True)
    if scores.device.type == "cpu":  # elsewhere the question below would stop the host
        best = scores.topk(min(_FEW, scores.shape[1]), dim=-1).values
        share = (best - whole).exp_()
        if bool((share.sum(dim=-1) >= top_p).all()):
            return best, share
    best = scores.sort(dim=-1, descending=True).values
    return best, (best - whole).exp_()


def exponential_noise(words: torch.Tensor) -> torch.Tensor:
    """Exponential noise of mean 1, float32, above 0 and finite, one for each of `words` (int32)."""
    # 31 bits: a small number becomes an exact float, and it is small noise that wins a race.
    negative = (words & 0x7FFFFFFF).float().add_(0.5).mul_(-(2.0**-31))
    return negative.clamp_(min=-_LARGEST_BELOW_ONE).log1p_().neg_()


def hash_words(mixed: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """32 hashed bits (M, V) int32 for each row with seeds (M, 2) and token, from mixed_ids(V).

    The row's first word is added before the first multiply, its second between the two. Integer
    products wrap, as on every device that torch has.
    """
    x = mixed[None, :] + seeds[:, :1]
    room = torch.empty_like(x)
    _xorshift(x, 16, room).mul_(_signed(_MUL32[0])).bitwise_xor_(seeds[:, 1:])
    _xorshift(x, 13, room).mul_(_signed(_MUL32[1]))
    return _xorshift(x, 16, room)


def mixed_ids(vocab: int, device: torch.device) -> torch.Tensor:
    """Token ids hashed once for all rows, (vocab,) int32."""
    x = torch.arange(vocab, dtype=torch.int32, device=device)
    room = torch.empty_like(x)
    _xorshift(x, 16, room).mul_(_signed(_MUL32[0]))
    _xorshift(x, 13, room).mul_(_signed(_MUL32[1]))
    return _xorshift(x, 16, room)


def _xorshift(x: torch.Tensor, bits: int, room: torch.Tensor) -> torch.Tensor:
    """x ^= x >> bits with zeros shifted in (torch shifts in an int32's sign); room is overwritten."""
    torch.bitwise_right_shift(x, bits, out=room)
    return x.bitwise_xor_(room.bitwise_and_((1 << (32 - bits)) - 1))


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
