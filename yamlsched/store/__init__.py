"""The only part that speaks SQL: statements stand in ``sql/``, one function here carries out one of them."""

from yamlsched.store import migrations
from yamlsched.store.connection import connect, connect_async, connect_for_handler

__all__ = ["connect", "connect_async", "connect_for_handler", "migrations"]
