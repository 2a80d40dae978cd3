import subprocess

import pytest

from yamlsched.testing import use_test_database

# before the modules of the application are imported, which read YAMLSCHED_DSN
DSN = use_test_database()

from database import engine  # noqa: E402
from models import Base  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _tables() -> None:
    """Create the tables of the application and of yamlsched in the test database, and apply schedules.yaml there."""
    Base.metadata.create_all(engine)
    for verb in ("migrate", "sync"):
        subprocess.run(["yamlsched", verb, "--dsn", DSN], check=True)
