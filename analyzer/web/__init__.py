"""What stands around Streamlit's server: ASGI middleware that knows no page and no widget."""
