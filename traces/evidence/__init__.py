"""Evidence of production: logs, metrics, tables and notes of a server, read into one shape.

`read_evidence(paths, pasted=...)` is in reading.py; what it makes is in evidence.py. Each reader is a
file: what it recognises, what it makes of it, and the quirks it knows. Nothing here judges: that is
analyzer/diagnosis.
"""
