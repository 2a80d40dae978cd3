"""The only part that speaks SQL: statements stand in ``sql/``, one function here carries out one of
them.
"""

from yamlsched.db import migrations
from yamlsched.db.connection import connect, connect_async, connect_for_handler

__all__ = ["connect", "connect_async", "connect_for_handler", "migrations"]
