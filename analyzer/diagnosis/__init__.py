"""From evidence to a verdict, with its proofs: `diagnose(evidence)`.

It knows the order of verdicts and what excludes what. Quantities are in quantities.py, what signs mean in rules/,
traps of engines and versions in traps.py.

    from traces.evidence.reading import read_evidence
    print(diagnose(read_evidence(["server.log"])).verdict)
"""

from __future__ import annotations

from analyzer.diagnosis.diagnose import diagnose
from analyzer.diagnosis.findings import WORDS, Diagnosis, Verdict
from analyzer.diagnosis.rules import RULES

__all__ = ["RULES", "WORDS", "Diagnosis", "Verdict", "diagnose"]
