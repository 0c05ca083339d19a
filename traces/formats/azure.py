"""Azure LLM inference traces of 2023 (Splitwise), 2024 (DynamoLLM) and 2025 (multimodal, ModServe).

CSV with TIMESTAMP, ContextTokens, GeneratedTokens; 2025 adds NumImages. Quirks: seven fractional
digits (2023), fractions and none mixed in one file (2024), T and Z (2025), CRLF without a last line
end, no zone in 2023. No prefixes, sessions or models.
Source: github.com/Azure/AzurePublicDataset.
"""

from __future__ import annotations

from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

_COLUMNS = {
    "arrival_s": "TIMESTAMP",
    "prompt_tokens": "ContextTokens",
    "output_tokens": "GeneratedTokens",
}


def sniff(source: Source) -> bool:
    return source.is_table and source.has(*_COLUMNS.values())


def read(source: Source, options: ReadOptions) -> RawTrace:
    loaded = load(source, _COLUMNS, KINDS, time_unit=options.time_unit)
    name = "Azure LLM inference trace"
    notes: tuple[str, ...] = ()
    if source.has("NumImages"):
        name = "Azure multimodal inference trace"
        notes = ("Images are counted in ContextTokens; NumImages is not used.",)
    return raw_from_table(source, name, loaded, columns=_COLUMNS, notes=notes)


FORMAT = Format("azure", "Azure LLM inference traces 2023, 2024, 2025", sniff, read)
