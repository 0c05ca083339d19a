"""Lines about single requests, of vLLM and SGLang: received, finished, aborted, refused for their length.

Prompts and token ids are counted where they are printed and never kept (`without_prompts`).
"""

from __future__ import annotations

import re

from traces.evidence.grammars.grammar import Field, Grammar, integer, word

_IDS = r"(?:prompt_token_ids|prompt token ids|input_ids|token_ids)['\"]?\s*[:=]\s*\["
_IDS_TO_DROP = re.compile(rf"({_IDS})[^\]]*\]?")
_PROMPT_TO_DROP = re.compile(
    r"(\b(?:prompt|text|output|content|inputs|generated_text)['\"]?\s*[:=]\s*)"
    r"(?:'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?)",
    re.S,
)


def without_prompts(text: str) -> str:
    """The line without what users wrote or were answered, and without token ids."""
    if "_ids" in text or "token ids" in text:
        text = _IDS_TO_DROP.sub(r"\1left out]", text)
    if "'" not in text and '"' not in text:
        return text
    return _PROMPT_TO_DROP.sub(r"\1'left out'", text)


GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "received",
        None,
        "",
        "Received request ",
        "vllm#2731, #1879; logger.py, async_llm_engine.py",
        notice="request_received",
        merges=True,
        values={
            "request": word(r"Received request ([\w.-]+):"),
            "prompt_tokens": Field(
                rf"{_IDS}([^\]]*)\]", lambda m: m[1].count(",") + 1 if m[1].strip() else None
            ),
            "max_tokens": integer(r"max_tokens=(\d+)"),
            "n": integer(r"\bn=(\d+)"),
            "best_of": integer(r"best_of=(\d+)"),
        },
        examples=(
            "INFO 02-01 06:36:05 async_llm_engine.py:436] Received request cmpl-2-0: prompt: None, prefix_pos: None,sampling_params: SamplingParams(n=1, best_of=1, temperature=0.0, max_tokens=512), prompt_token_ids: [1, 319, 13563, 29871], lora_request: None.",
        ),
    ),
    Grammar(
        "added",
        "vllm",
        "",
        "Added request ",
        "vllm-ascend#2245; async_llm.py",
        notice="request_received",
        merges=True,
        values={"request": word(r"Added request ([\w.-]*[\w-])")},
        examples=("INFO 08-06 09:37:10 [async_llm.py:270] Added request chatcmpl-49.",),
    ),
    Grammar(
        "finished",
        None,
        "",
        "Finished request ",
        "vllm#2731; async_llm_engine.py",
        notice="request_finished",
        values={"request": word(r"Finished request ([\w.-]*[\w-])")},
        examples=("INFO 02-01 06:36:05 async_llm_engine.py:110] Finished request cmpl-1-0.",),
    ),
    Grammar(
        "aborted",
        None,
        "",
        "bort",
        "vllm#39734; async_llm.py, async_llm_engine.py",
        pattern=r"Request [\w.-]+ (?:was )?aborted|Abort(?:ed|ing) request",
        notice="request_aborted",
        merges=True,
        values={
            "request": word(
                r"(?:Request (?=\S+ (?:was )?aborted)|Abort(?:ed|ing) request(?:\(s\))? )([\w.-]*[\w-])"
            )
        },
        examples=(
            "INFO 04-15 09:47:31 [async_llm.py:702] Request chatcmpl-f aborted.",
            "INFO 04-15 09:47:31 [async_llm.py:404] Aborted request(s) chatcmpl-f.",
            "INFO 02-01 06:36:05 async_llm_engine.py:134] Aborted request cmpl-1-0.",
        ),
    ),
    Grammar(
        "over-length",
        None,
        "",
        "maximum context length is ",
        "vllm#27073; serving_chat.py",
        notice="request_refused",
        values={
            "limit_tokens": integer(r"maximum context length is (\d+)"),
            "prompt_tokens": integer(
                r"(?:request has |\()(\d+) (?:input tokens|in the (?:messages|prompt))"
            ),
            "max_tokens": integer(r", (\d+) in the completion"),
            "asked_tokens": integer(r"you requested (\d+) tokens"),
        },
        examples=(
            "ERROR 10-14 16:59:26 [serving_chat.py:251] ValueError: This model's maximum context length is 32768 tokens. However, your request has 41877 input tokens. Please reduce the length of the input messages.",
            "ValueError: This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
        ),
    ),
    Grammar(
        "decoder-too-long",
        "vllm",
        "",
        "is longer than the maximum model length of",
        "processor.py",
        notice="request_refused",
        values={
            "prompt_tokens": integer(r"prompt \(length (\d+)\)"),
            "limit_tokens": integer(r"maximum model length of (\d+)"),
        },
        examples=(
            "ValueError: The decoder prompt (length 41877) is longer than the maximum model length of 32768. Make sure that `max_model_len` is no smaller than the number of text tokens.",
        ),
    ),
)
