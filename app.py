"""The list of pages; nothing else. Start with `streamlit run app.py`."""

from __future__ import annotations

import streamlit as st

from analyzer.pages import compare

st.set_page_config(page_title="KV Replay", page_icon="🧱", layout="wide")
st.navigation(
    [
        st.Page(
            compare.page,
            title="Compare",
            icon=":material/compare_arrows:",
            url_path="compare",
            default=True,
        )
    ],
    position="top",
).run()
