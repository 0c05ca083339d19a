"""The table of advice, drawn: a row a lever, its flag with the price below, figures to the right.

It knows markup alone, so that long flags and prices wrap where a grid would cut them. Rows come from
`advice_section.py`; every text of them is escaped.
"""

from __future__ import annotations

import html

import polars as pl
import streamlit as st

TEXTS = ("Verdict", "Lever", "Flag, or value")
PRICE = "Price"
_STYLE = """
<style>
.kv-advice { overflow-x: auto; }
.kv-advice table { width: 100%; border-collapse: collapse; font-size: 0.85rem; }
.kv-advice th, .kv-advice td { padding: 0.35rem 0.4rem; text-align: left; vertical-align: top; border-bottom: 1px solid rgba(128, 128, 128, 0.3); }
.kv-advice th { font-weight: 600; }
.kv-advice .kv-figure { text-align: right; white-space: nowrap; }
.kv-advice .kv-flag { min-width: 11rem; overflow-wrap: anywhere; }
.kv-advice small { display: block; }
</style>
"""


def advice_table(table: pl.DataFrame, label: str) -> None:
    """Draw the rows. table: text columns TEXTS and PRICE, all others figures as text."""
    st.html(f"{_STYLE}{advice_html(table, label)}")


def advice_html(table: pl.DataFrame, label: str) -> str:
    """The table as markup; the price, where there is one, under the flag."""
    names = [n for n in table.columns if n != PRICE]
    head = "".join(f'<th scope="col"{_kind(n)}>{_title(n)}</th>' for n in names)
    rows = []
    for row in table.to_dicts():
        cells = "".join(f"<td{_kind(n)}>{_cell(n, row)}</td>" for n in names)
        rows.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="kv-advice" tabindex="0" role="region" aria-label="{html.escape(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _title(name: str) -> str:
    return html.escape(f"{name}; price" if name == TEXTS[2] else name)


def _kind(name: str) -> str:
    if name == TEXTS[2]:
        return ' class="kv-flag"'
    return "" if name in TEXTS else ' class="kv-figure"'


def _cell(name: str, row: dict[str, str | None]) -> str:
    said = html.escape(row[name] or "")
    price = row.get(PRICE) if name == TEXTS[2] else None
    return f"{said}<small>Price: {html.escape(price)}</small>" if price else said
