import os
import subprocess

import pytest
from app.database import engine
from app.models import Base


@pytest.fixture(scope="session", autouse=True)
def _tables() -> None:
    """Create the tables of the application and of yamlsched in the test database, and apply schedules.yaml there."""
    Base.metadata.create_all(engine)
    for verb in ("migrate", "sync"):
        subprocess.run(["yamlsched", verb, "--dsn", os.environ["YAMLSCHED_DSN"]], check=True)
