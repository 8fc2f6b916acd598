"""A bridge between OpenAI clients and a Codex app-server subprocess."""

APP = "turnbridge"
__version__ = "0.1.0"
