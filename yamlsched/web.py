"""The web page as an ASGI application."""

from yamlsched.extras.web import app

__all__ = ["app"]
