"""The OpenAI-compatible server: JSON and text in front, the loop's worker thread behind."""
