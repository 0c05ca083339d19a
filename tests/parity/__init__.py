"""Parity with vLLM 0.26.0: its own scheduler and ours run the same workload and must decide alike.

    make parity                                       install vLLM's scheduler in .venv-vllm, compare
    python -m tests.parity --seed 7 --cases 300       300 seeded cases
    python -m tests.parity --seed 7 --case 12         one of them again, with the step that differs
    python -m tests.parity --seed 7 --case 12 --keep out    ... leaving trace, settings and both logs
    python -m tests.parity --trace T.jsonl --settings S.json      a trace and settings of your own
    python -m tests.parity --golden burst             a committed case, live
    python -m tests.parity --real azure-scarce        2,000 requests of a recorded trace

The interpreter with vLLM is the one named in KV_REPLAY_VLLM_PYTHON, else .venv-vllm/bin/python.

`vllm_side/` runs there: it imports vLLM and the standard library, nothing of the project. It plays
engine core, executor and model around vLLM's real scheduler and writes one record a step.
`cases.py` invents cases, `run.py` runs both sides, `compare.py` finds and shows a difference,
`real_traces.py` makes cases of recorded traces. Whoever wants to look at vLLM's scheduler under a
class of their own (a recorder, say) passes --scheduler-cls module.Class.
"""
