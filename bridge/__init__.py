"""A bridge between clients of OpenAI's, Anthropic's and Google's APIs and a Codex app-server subprocess."""

APP = "turnbridge"
__version__ = "0.1.0"
