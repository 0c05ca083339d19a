"""The recorder for a live vLLM, driven around vLLM's own scheduler without a GPU.

`drive.py` runs in the interpreter that has vLLM; the tests (tests/test_live_*.py) run in the
project's and are skipped where there is none (see tests/parity).
"""
