"""The page's frame: its style sheet, less empty space than Streamlit leaves, and the cards' looks."""

from __future__ import annotations

import streamlit as st

from analyzer.look import Theme

_CSS = """
<style>
[data-testid="stMainBlockContainer"] {{ padding: 4rem 2rem 3rem; }}
[data-testid="stMainBlockContainer"] > [data-testid="stVerticalBlock"] {{ gap: 0.7rem; }}
[data-testid="stSidebarHeader"] {{ height: 2.6rem; margin-bottom: 0; }}
[data-testid="stSidebarUserContent"] {{ padding: 0 0 2rem; }}
.st-key-source button {{ padding: 0.25rem 0.45rem; }}
[data-testid="stSidebarUserContent"] > div > [data-testid="stVerticalBlock"] {{ gap: 0.7rem; }}
.st-key-header h1 {{ padding: 0; font-size: 1.45rem; }}
.st-key-header > [data-testid="stLayoutWrapper"]:has(.st-key-aside) {{ margin-left: auto; }}
.st-key-verdict {{ padding: 0.6rem 0.9rem; border-left: 4px solid {b}; }}
.st-key-verdict p {{ font-size: 1rem; }}
.st-key-verdict [data-testid="stVerticalBlock"] {{ gap: 0.3rem; }}
.st-key-verdict p:not(:has(strong)) {{ font-size: 0.88rem; margin-top: -0.4rem; }}
.st-key-zoom, .st-key-keys_heard {{ display: none; }}
[data-testid="stCaptionContainer"] {{ opacity: 1 !important; }}
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] * {{ color: {muted} !important; }}
[data-testid="stButtonGroup"] button[aria-checked="true"] p, [data-testid="stButtonGroup"] button[aria-pressed="true"] p {{ color: {chosen}; }}
button[data-testid^="stBaseButton-primary"], button[data-testid^="stBaseButton-primary"] * {{ color: {on_primary}; }}
.kv-cards {{ display: grid; gap: 0.6rem; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); }}
.kv-card {{ border: 1px solid {grid}; border-radius: 0.5rem; padding: 0.5rem 0.7rem; color: {text}; }}
.kv-card h2 {{ margin: 0; padding: 0; font-size: 0.82rem; font-weight: 400; color: {muted}; white-space: nowrap; }}
.kv-card p {{ margin: 0; line-height: 1.3; font-variant-numeric: tabular-nums; }}
.kv-side {{ display: inline-block; width: 1.1em; font-size: 0.78rem; font-weight: 600; color: {muted}; }}
.kv-b {{ font-size: 1.45rem; font-weight: 600; }}
.kv-a {{ font-size: 0.9rem; color: {muted}; }}
.kv-change {{ font-size: 0.85rem; font-weight: 600; white-space: nowrap; }}
.kv-good {{ color: {good}; }} .kv-bad {{ color: {bad}; }} .kv-even {{ color: {muted}; font-weight: 400; white-space: normal; }}
[data-testid="stSidebar"] input[role="combobox"] {{ font-size: 0.84rem; padding: 0 0 0 0.5rem; text-overflow: ellipsis; }}
[data-testid="stSidebar"] .react-aria-ComboBox button {{ padding-left: 0; padding-right: 0.25rem; }}
@media (max-width: 640px) {{
[data-testid="stMainBlockContainer"] {{ padding: 4.2rem 0.8rem 2rem; }}
[data-testid="stMainBlockContainer"] > [data-testid="stVerticalBlock"] {{ gap: 0.45rem; }}
.st-key-header {{ flex-wrap: nowrap; }}
.st-key-header h1 {{ font-size: 1.1rem; }}
.st-key-header > :has(> .st-key-aside) {{ display: none; }}
.st-key-header > :first-child {{ flex: 1 1 0 !important; min-width: 0; }}
.st-key-header > :first-child h1 {{ overflow-wrap: anywhere; }}
.st-key-header button {{ padding: 0.1rem 0.4rem; min-height: 1.8rem; }}
.st-key-set_up p {{ font-size: 0.72rem; line-height: 1.3; }}
.st-key-verdict {{ padding: 0.35rem 0.6rem; }}
.st-key-verdict p {{ font-size: 0.86rem; line-height: 1.3; }}
.st-key-verdict p:not(:has(strong)) {{ font-size: 0.76rem; }}
.kv-cards {{ gap: 0.3rem; grid-template-columns: repeat(3, 1fr); }}
.kv-card {{ padding: 0.25rem 0.35rem; overflow: hidden; }}
.kv-card h2 {{ font-size: 0.7rem; white-space: normal; }}
.kv-b {{ font-size: 1.05rem; }}
.kv-a {{ font-size: 0.75rem; }}
.kv-change {{ font-size: 0.7rem; white-space: normal; }}
.st-key-controls {{ gap: 0.3rem; }}
.st-key-rows, .st-key-rows [data-testid="stButtonGroup"] {{ max-width: 100%; }}
.st-key-rows [role="toolbar"] {{ flex-wrap: nowrap; overflow-x: auto; scrollbar-width: none; }}
.st-key-rows [role="toolbar"] button {{ flex-shrink: 0; }}
.st-key-controls button {{ min-height: 1.6rem; padding: 0.05rem 0.5rem; }}
.st-key-controls button p {{ font-size: 0.78rem; }}
}}
@media (prefers-reduced-motion: reduce) {{ * {{ transition: none !important; animation: none !important; }} }}
</style>
"""


def style(theme: Theme) -> None:
    """Send the style sheet, in the colours of the page's brightness."""
    st.html(
        _CSS.format(
            b=theme.b,
            grid=theme.grid,
            text=theme.text,
            muted=theme.muted,
            chosen=theme.chosen_text,
            on_primary=theme.on_primary,
            good=theme.good_text,
            bad=theme.bad_text,
        )
    )
