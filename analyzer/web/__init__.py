"""What stands around Streamlit's server: ASGI middleware that draws nothing."""
