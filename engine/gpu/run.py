"""A workload and a model to a recording: puts model, KV cache, copies, scheduler and recorder together.

It knows what belongs to a run and in which order it is made. The rounds themselves are loop.py's.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.config import EngineSettings, Resolved, resolve
from engine.core.loop import Code, run_chunk
from engine.core.state import Reason, State, Status, make_state
from engine.gpu.answers import AnswersFile
from engine.gpu.attention import get_backend
from engine.gpu.executor import Executor, profile_step
from engine.gpu.kv_cache import HostPool, KVCache
from engine.gpu.loop import Loop, LoopOptions
from engine.gpu.memory_profile import CudaMemory, profile_memory, start_profile
from engine.gpu.model import CausalLM
from engine.gpu.prompts import read_prompts, with_prompts
from engine.gpu.sampling import Sampling
from engine.gpu.stop import Stop
from engine.gpu.swap import Copier
from engine.gpu.tokens import Tokens
from engine.gpu.transfers import Transfers
from engine.gpu.weights import load_model, resolve_device
from engine.models import kv_bytes_per_block
from engine.models import load_model as load_shape
from engine.ownership import Ownership
from engine.progress import before_recording, stopped_line
from engine.recorder import Recorder, prepare_directory
from engine.simulator import END_STATUS, Progress, core_columns, prefix_lists, run_metadata
from traces.errors import SettingsError
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.gpu.tokenizer import TextTokenizer

_MOST_THREADS = 1_024
_GRAPH_BYTES = 1 << 30  # kept for CUDA graphs when the pool is sized
_END_REASONS = {Status.ABORTED: "aborted", Status.REFUSED: "refused"}


@dataclass(frozen=True)
class RunOptions:
    """What a run needs beyond EngineSettings.

    torch_device: cpu or cuda; dtype: of weights and KV, auto: bfloat16 on CUDA, float32 on a CPU;
    random_weights: a seed, for weights that are drawn instead of read; attention, kv_layout: see
    attention/ and kv_cache.py; prompts: file of real text; outputs: file for the answers (JSON
    lines); stop_at_eos: an answer may end before its length; blocks: record ownership. check, poison:
    hold every step against the laws, and fill blocks that change hands with NaN (for tests).
    """

    torch_device: str = "cpu"
    dtype: str = "auto"
    random_weights: int | None = None
    attention: str = "auto"
    kv_layout: str = "block"
    prompts: str | Path | None = None
    outputs: str | Path | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop_at_eos: bool = False
    blocks: bool = False
    cuda_graphs: bool = True
    check: bool = False
    poison: bool = False


@dataclass(frozen=True)
class RunResult:
    """What a run came to. status: completed, stopped, cancelled, stalled, livelock or max_steps.

    duration_s: the run's clock at its end; wall_s: host time, preparation left out; recording_s: of
    it, spent on recording; load_s: spent on weights, memory and compiling before; why_refused: the
    limits that refused requests met.
    """

    path: Path
    status: str
    num_steps: int
    num_requests: int
    num_unfinished: int
    num_preemptions: int
    duration_s: float
    wall_s: float
    recording_s: float
    load_s: float
    num_refused: int
    why_refused: str


def pick_device(asked: str, threads: int | None = None) -> tuple[str, str]:
    """The torch device to run on ("auto": cuda where there is one) and what the card is called.

    threads: CPU threads for torch, None: its own choice. Raises: SettingsError.
    """
    if threads is not None:
        if not 1 <= threads <= _MOST_THREADS:
            raise SettingsError(
                f"--threads must lie between 1 and {_MOST_THREADS:,}, not {threads:,}."
            )
        torch.set_num_threads(threads)
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    return asked, _device_name(resolve_device(asked))


def run(
    workload: Workload,
    settings: EngineSettings,
    out_dir: str | Path,
    options: RunOptions,
    *,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    overwrite: bool = False,
    on_end: Callable[[str, np.ndarray], None] | None = None,
    started: Callable[[str], None] | None = None,
) -> RunResult:
    """Run `workload` through the model that settings.model names, and record it in out_dir.

    settings.clock: measured, or modelled for the simulator's decisions with real tokens. on_end is
    given each request's id and generated tokens when it ends; started a line on what runs, once it
    is loaded. Ctrl-C, SIGTERM and an exception close the recording before they go on; the first two
    then say what is in it.

    Raises: SettingsError, WorkloadError before anything is written.
    """
    began = time.perf_counter()
    with before_recording(), _memory():
        setup = _prepare(workload, settings, options)
    with ExitStack() as stack:
        file = None
        if options.outputs is not None:
            file = AnswersFile(options.outputs, setup.tokenizer)
            stack.callback(file.close)
        directory = _directory(out_dir, overwrite, file)
        stop = Stop()
        stop_ids = _stop_ids(setup, options)
        answer = _taker(setup, stop_ids, file, on_end)
        loop = _make_loop(setup, directory, options, answer, stop, stop_ids)
        if started is not None:
            started(_what_runs(setup))
        load_s = time.perf_counter() - began
        status, stopped = "failed", None
        try:
            with stop.listening():
                status = _drive(loop, setup, stop, progress, cancelled)
        except KeyboardInterrupt as came:
            status, stopped = "stopped", came
        finally:
            try:
                loop.close(status)
            finally:
                setup.close()
    result = _result(loop, setup, directory, status, load_s)
    if stopped is not None:
        said = stopped_line(
            result.path, result.num_steps, result.num_requests, result.num_unfinished
        )
        raise type(stopped)(said) from stopped
    return result


def _result(
    loop: Loop, setup: _Setup, directory: Path, status: str, load_s: float
) -> RunResult:
    c, q = setup.state.c[0], setup.state.requests.view(np.ndarray)[:-1]
    refused = q[q["status"] == Status.REFUSED]
    return RunResult(
        directory,
        status,
        loop.steps,
        len(setup.workload),
        len(setup.workload) - int(c.num_ended),
        loop.preemptions,
        float(c.gpu_free_s),
        loop.wall_s,
        loop.recording_s,
        load_s,
        len(refused),
        _why_refused(setup.resolved, refused["reason"]),
    )


def _why_refused(resolved: Resolved, reasons: np.ndarray) -> str:
    """Which limits the refused requests met; empty: none was refused."""
    limits = []
    if (reasons == Reason.PROMPT_OVER_MODEL_LEN).any():
        limits.append(f"max_model_len is {resolved.rules.max_model_len:,}")
    if (reasons != Reason.PROMPT_OVER_MODEL_LEN).any():
        tokens = resolved.pool_blocks * resolved.rules.block_size
        limits.append(f"the pool holds {tokens:,} tokens")
    return " and ".join(limits)


# --- making what a run needs -----------------------------------------------------------------------


@contextmanager
def _memory() -> Iterator[None]:
    """Turn memory that is not there into a sentence; torch has no error of its own for it on a CPU."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _no_memory(error) from error
    except RuntimeError as error:
        if "alloc" not in str(error):
            raise
        raise _no_memory(error) from error


def _no_memory(error: BaseException) -> SettingsError:
    what = (str(error) or "out of memory").splitlines()[0][:200]
    return SettingsError(
        f"there is not enough memory for the run ({what}). Give a smaller --num-gpu-blocks, --max-num-batched-tokens, --max-num-seqs or --max-model-len, or a smaller model."
    )


def _directory(out_dir: str | Path, overwrite: bool, file: AnswersFile | None) -> Path:
    """The recording's directory; where it is refused, the answers' file that was just made goes again."""
    try:
        return prepare_directory(out_dir, overwrite=overwrite)
    except SettingsError:
        if file is not None:
            file.remove()
        raise


@dataclass
class _Setup:
    """Everything of a run but its recorder."""

    workload: Workload
    resolved: Resolved
    state: State
    executor: Executor
    transfers: Transfers
    tokens: Tokens
    tokenizer: TextTokenizer | None
    kv: KVCache
    host: HostPool | None
    attention: str

    @property
    def ids(self) -> np.ndarray:
        return self.workload.table["request_id"].to_numpy()

    def close(self) -> None:
        if self.host is not None:
            self.host.close()


def _prepare(workload: Workload, settings: EngineSettings, options: RunOptions) -> _Setup:
    _check(settings)
    device = resolve_device(options.torch_device)
    on_cuda = device.type == "cuda"
    sized = settings.num_gpu_blocks is not None or settings.kv_tokens is not None
    if not on_cuda and not sized:
        raise SettingsError(
            "on a CPU the pool's size has to be given: --num-gpu-blocks N or --kv-tokens N."
        )
    memory = CudaMemory(device) if on_cuda else None
    before = (
        start_profile(memory, settings.gpu_memory_utilization) if memory and not sized else None
    )
    model = load_model(
        settings.model,
        dtype=options.dtype,
        device=device,
        random_seed=options.random_weights,
    )
    settings = _with_model(settings, model)
    tokenizer, prompts = None, None
    if options.prompts is not None or options.outputs is not None or options.stop_at_eos:
        tokenizer = _tokenizer(settings.model, options)
    if options.prompts is not None and tokenizer is not None:
        longest = min(settings.max_model_len or model.config.max_model_len, 1 << 30)
        texts = read_prompts(options.prompts, tokenizer, model.config.vocab)
        workload, prompts = with_prompts(workload, texts, settings.block_size, longest)
    if memory is not None and before is not None:
        settings = _size_pool(settings, model, memory, before, options)
    resolved = resolve(settings, concurrency=workload.concurrency)
    state = make_state(core_columns(workload, settings), resolved.rules)
    run_chunk(state, resolved.rules, resolved.cost, 0)  # compiled before the clock starts
    return _build(workload, resolved, state, model, tokenizer, prompts, options)


def _build(
    workload: Workload,
    resolved: Resolved,
    state: State,
    model: CausalLM,
    tokenizer: TextTokenizer | None,
    prompts: list[np.ndarray] | None,
    options: RunOptions,
) -> _Setup:
    rules, settings = resolved.rules, resolved.settings
    config = model.config
    kv = KVCache(
        rules.num_blocks,
        config.num_layers,
        rules.block_size,
        config.num_kv_heads,
        config.head_dim,
        dtype=model.dtype,
        device=model.device,
        layout=options.kv_layout,
    )
    backend = get_backend(
        options.attention,
        kv,
        config.num_heads,
        windows=config.windows,
        max_num_seqs=rules.max_num_seqs,
        max_model_len=rules.max_model_len,
    )
    if model.device.type == "cuda":  # kernels are compiled before the clock starts
        backend.warm_up(*kv.layer(0))
        for num_tokens in (1, rules.token_budget):
            profile_step(
                model,
                num_tokens=num_tokens,
                num_logit_rows=rules.max_num_seqs,
                sampling=options.sampling,
            )
    executor = Executor(
        model,
        kv,
        backend,
        num_slots=len(state.slots),
        table_width=state.table.shape[1],
        max_num_seqs=rules.max_num_seqs,
        token_budget=rules.token_budget,
        max_model_len=rules.max_model_len,
        sampling=options.sampling,
        cuda_graphs=options.cuda_graphs,
        check=options.check,
    )
    host, copier = None, None
    wanted = _host_blocks(resolved, state)
    if wanted:
        host = HostPool(kv, wanted)
        asynchronous = bool(rules.copy_async or rules.offload)
        copier = Copier(kv, host, path=settings.copy_path, asynchronous=asynchronous)
    transfers = Transfers(state, rules, copier, 0 if rules.offload else wanted)
    tokens = Tokens(state, config.vocab, settings.seed, prompts)
    return _Setup(
        workload,
        resolved,
        state,
        executor,
        transfers,
        tokens,
        tokenizer,
        kv,
        host,
        backend.name,
    )


def _check(settings: EngineSettings) -> None:
    if settings.clock not in ("measured", "modelled"):
        raise SettingsError(
            f"the torch engine has no clock {settings.clock}. Choose measured, or modelled for the simulator's decisions."
        )
    if settings.tensor_parallel_size != 1 or settings.pipeline_parallel_size != 1:
        raise SettingsError(
            "the torch engine runs on one device: leave --tp at 1 and --pp at 1 (simulate models more)."
        )


def _with_model(settings: EngineSettings, model: CausalLM) -> EngineSettings:
    """Settings with the model's limits and with the types that weights and KV really have."""
    dtype = str(model.dtype).removeprefix("torch.")
    longest = model.config.max_model_len
    asked = settings.max_model_len
    if asked is not None and asked > longest:
        warnings.warn(
            f"max_model_len {asked:,} is more than the {longest:,} the model was made for: what it says beyond is noise",
            stacklevel=3,
        )
    return settings.with_(
        kv_cache_dtype=dtype, weight_dtype=dtype, max_model_len=asked or longest
    )


def _tokenizer(model: str, options: RunOptions) -> TextTokenizer | None:
    """The model's tokenizer; None where only answers are written and there is none."""
    from engine.gpu.tokenizer import load_tokenizer

    try:
        return load_tokenizer(model)
    except SettingsError:
        if options.prompts is not None or options.stop_at_eos:
            raise
        return None


def _size_pool(
    settings: EngineSettings,
    model: CausalLM,
    memory: CudaMemory,
    before: Any,
    options: RunOptions,
) -> EngineSettings:
    """num_gpu_blocks from what the device has left beside weights and one full step, as vLLM does."""
    limits = resolve(settings.with_(num_gpu_blocks=2)).rules
    shape = load_shape(settings.model)
    profile = profile_memory(
        memory,
        before,
        lambda: profile_step(
            model,
            num_tokens=limits.token_budget,
            num_logit_rows=limits.max_num_seqs,
            sampling=options.sampling,
        ),
        block_bytes=kv_bytes_per_block(shape, settings.block_size, settings.kv_cache_dtype),
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_num_batched_tokens=limits.token_budget,
        reserve_bytes=_GRAPH_BYTES if options.cuda_graphs else 0,
    )
    return settings.with_(
        num_gpu_blocks=max(2, profile.num_blocks)
    )  # vLLM's too: null block included


def _host_blocks(resolved: Resolved, state: State) -> int:
    """Blocks that the host pool needs: at most what the requests can fill. Block 0 is never used (offload)."""
    if not resolved.host_blocks:
        return 0
    if resolved.rules.offload:
        return len(state.hosts)
    q = state.requests.view(np.ndarray)[:-1]
    most = -(-(q["prompt"] + q["max_tokens"]) // resolved.rules.block_size)
    return int(min(resolved.host_blocks, most.sum()))


# --- running ----------------------------------------------------------------------------------------


def _stop_ids(setup: _Setup, options: RunOptions) -> frozenset[int]:
    if options.stop_at_eos and setup.tokenizer is not None:
        return frozenset(setup.tokenizer.eos_ids)
    return frozenset()


def _what_runs(setup: _Setup) -> str:
    """One line on what begins now."""
    r, kv = setup.resolved, setup.kv
    name = _device_name(kv.device)
    return (
        f"running {r.model.name} in {str(kv.dtype).removeprefix('torch.')} on {name}: pool of "
        f"{r.pool_blocks * r.rules.block_size:,} tokens ({kv.num_blocks:,} blocks, {kv.num_blocks * kv.block_bytes / (1 << 30):.2f} GiB), "
        f"attention {setup.attention}, {len(setup.workload):,} requests"
    )


def _make_loop(
    setup: _Setup,
    directory: Path,
    options: RunOptions,
    answer: Callable[[int, np.ndarray], None] | None,
    interrupted: Stop,
    stop_ids: frozenset[int],
) -> Loop:
    settings = setup.resolved.settings
    recorder = Recorder(
        directory,
        _metadata(setup, options),
        setup.ids,
        setup.workload.table["priority"].to_numpy(),
        settings.block_size,
        setup.resolved.pool_blocks,
        prefix_lists(setup.workload),
        work=True,
        spans=options.blocks,
    )
    return Loop(
        setup.state,
        setup.resolved,
        setup.executor,
        setup.transfers,
        setup.tokens,
        recorder,
        Ownership() if options.blocks else None,
        LoopOptions(stop_ids, setup.kv if options.poison else None, lambda: bool(interrupted)),
        answer,
    )


def _drive(
    loop: Loop,
    setup: _Setup,
    stop: Stop,
    progress: Callable[[Progress], None] | None,
    cancelled: Callable[[], bool] | None,
) -> str:
    c, total = setup.state.c[0], max(1, len(setup.workload))
    loop.start()
    shown_s = 0.0
    while True:
        code = loop.step()
        if code in END_STATUS:
            return END_STATUS[code]
        stop.check()
        if code == Code.MORE and loop.now_s - shown_s > 0.1:
            shown_s = loop.now_s
            if progress is not None:
                steps = loop.steps + int(c.num_step_rows)
                progress(Progress(float(c.num_ended) / total, steps, float(c.gpu_free_s)))
            if cancelled is not None and cancelled():
                return "cancelled"


def _taker(
    setup: _Setup,
    stop_ids: frozenset[int],
    file: AnswersFile | None,
    on_end: Callable[[str, np.ndarray], None] | None,
) -> Callable[[int, np.ndarray], None] | None:
    """What takes a request's tokens when it ends: the answers' file, the caller, both or nobody."""
    if file is None and on_end is None:
        return None
    ids, requests = setup.ids, setup.state.requests

    def take(r: int, tokens: np.ndarray) -> None:
        if on_end is not None:
            on_end(str(ids[r]), tokens)
        if file is not None:
            q, answer = requests[r], tokens.tolist()
            stopped = bool(answer) and answer[-1] in stop_ids
            reason = _END_REASONS.get(Status(int(q.status)), "stop" if stopped else "length")
            file.write(str(ids[r]), int(q.prompt), answer, reason)

    return take


def _metadata(setup: _Setup, options: RunOptions) -> dict[str, Any]:
    meta = run_metadata(setup.workload, setup.resolved)
    kv = setup.kv
    meta["executor"] = "torch"
    # A path says nothing to others, and something about whose machine it was.
    meta["settings"]["model"] = setup.resolved.model.name
    meta["software"]["torch"] = torch.__version__
    meta["torch"] = {
        "device": options.torch_device,
        "device_name": _device_name(kv.device),
        "dtype": str(kv.dtype).removeprefix("torch."),
        "attention": setup.attention,
        "kv_layout": options.kv_layout,
        "random_weights": options.random_weights,
        "prompts": "text" if options.prompts is not None else "drawn",
        "sampling": dataclasses.asdict(options.sampling),
        "stop_at_eos": options.stop_at_eos,
        "cuda_graph_sizes": list(setup.executor.graph_sizes),
        "cuda_graph_bytes": setup.executor.graph_bytes,
        "threads": torch.get_num_threads(),
    }
    return meta


def _device_name(device: Any) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return "CPU"
