"""The torch engine: real tokens in real blocks, under the scheduler of `engine.core`.

The only code that imports torch. `run.py` puts the parts together, `loop.py` drives them.
"""
