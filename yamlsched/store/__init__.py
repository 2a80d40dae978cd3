"""The only part that speaks SQL: statements stand in ``sql/``, one function here carries out one of them."""

from yamlsched.store import migrations
from yamlsched.store.connection import connect

__all__ = ["connect", "migrations"]
