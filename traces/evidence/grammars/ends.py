"""How an engine ended or failed, in any engine's words: fatal errors, faults, memory, and being ended.

The last line of a traceback names the error; the lines before are passed over.
"""

from __future__ import annotations

from traces.evidence.grammars.grammar import Field, Grammar, word

_MAX_WHAT = 200


def what(pattern: str) -> Field:
    """What happened, in the line's words, at most 200 characters."""
    return Field(pattern, lambda m: m[1].strip()[:_MAX_WHAT] or None)


_DEAD = (
    r"(EngineDeadError.*|EngineCore (?:encountered|hit|failed|died).*|Engine core (?:initialization failed|proc .* died).*"
    r"|AsyncEngineDeadError.*|Background loop (?:has errored already|is stopped).*|Engine background task failed.*"
    r"|Engine loop (?:has died|is not running).*|Scheduler hit an exception.*|died unexpectedly.*|MQLLMEngine.*dead.*"
    r"|Received sigquit from a child process.*|Segmentation fault.*|Fatal Python error.*|Engine process failed.*)"
)
_STUCK = (
    r"(No available shared memory broadcast block.*|RPC call to \w+ timed out.*|Watchdog timeout.*"
    r"|Watchdog caught collective operation timeout.*|.*NCCL (?:error|timeout).*|CUDA error: .*"
    r"|.*memory leak detected.*|execute_model timed out.*|TimeoutError: .*execute_model.*)"
)

GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "out-of-memory",
        None,
        "",
        "ut of memory",
        "torch; vllm#57475",
        pattern=r"(?:CUDA|HIP|NPU|XPU) out of memory|OutOfMemoryError|NPU out of memory",
        notice="out_of_memory",
        merges=True,
        values={"what": what(r"((?:CUDA|HIP|NPU|XPU) out of memory.*|\w*OutOfMemoryError.*)")},
        examples=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.33 GiB",
        ),
    ),
    Grammar(
        "dead",
        None,
        "",
        (
            "Dead",
            "dead",
            "died",
            "EngineCore",
            "ngine core",
            "Background loop",
            "background task",
            "ngine loop",
            "hit an exception",
            "sigquit",
            "Segmentation",
            "Fatal Python",
            "process failed",
        ),
        "core.py, async_llm.py, async_llm_engine.py; sglang scheduler.py",
        pattern=_DEAD,
        notice="fatal",
        values={"what": what(_DEAD)},
        examples=(
            "ERROR 08-06 09:41:10 [core.py:700] EngineCore encountered a fatal error.",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "[2025-05-07 10:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        ),
    ),
    Grammar(
        "stuck",
        None,
        "",
        (
            "memory leak",
            "No available shared",
            "timed out",
            "Watchdog",
            "NCCL",
            "CUDA error",
            "TimeoutError",
        ),
        "shm_broadcast.py, multiproc_executor.py, NCCL",
        pattern=_STUCK,
        notice="fault",
        values={"what": what(_STUCK)},
        examples=(
            "INFO 08-06 09:41:10 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ),
    ),
    Grammar(
        "killed",
        None,
        "",
        (
            "^C",
            "Shutting down",
            "Killed",
            "KeyboardInterrupt",
            "SIGTERM",
            "SIGKILL",
            "OOMKilled",
            "oom-kill",
            "xit code",
            "signal 9",
            "code=killed",
        ),
        "uvicorn, the shell, the kernel",
        pattern=r"^\^C|:\s+Shutting down\b|^Killed\b|KeyboardInterrupt|SIGTERM|SIGKILL|OOMKilled|oom-kill|Killed process \d+|code=killed|[Ee]xit code:? (?:137|-9)|signal 9\b",
        notice="killed",
        merges=True,
        values={
            "what": word(
                r"(Shutting down|Killed process \d+|Killed|code=killed|KeyboardInterrupt|SIGTERM|SIGKILL|OOMKilled|oom-kill|[Ee]xit code:? (?:137|-9)|signal 9|\^C)"
            )
        },
        examples=("INFO:     Shutting down", "Killed"),
    ),
    Grammar(
        "error",
        None,
        "",
        ("Error", "Exception"),
        "the last line of a traceback",
        pattern=r"(?:^|\] |: )(?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)(?:: |\(['\"]|$)",
        notice="fault",
        values={"what": what(r"((?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)(?:[:(].*|$))")},
        examples=("AssertionError: block table is empty",),
    ),
)
