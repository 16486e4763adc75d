"""Loaded models behind HTTP: an ASGI app, the threads that run models, and a page to type into."""
