"""What runs in the interpreter that has vLLM. It imports vLLM and the standard library only."""
