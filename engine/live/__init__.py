"""Recording from a vLLM that serves: what is imported into the server's own processes.

Everything here must import with vLLM, numpy and pyarrow alone: no numba, polars or streamlit.
Nothing here may make a server slower than docs/record-from-vllm.md says, or stop it.
"""
