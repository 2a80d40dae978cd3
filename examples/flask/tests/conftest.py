import os
import subprocess

import pytest
from jobs import app
from shop.models import db


@pytest.fixture(scope="session", autouse=True)
def _tables() -> None:
    """Create the tables of the application and of yamlsched in the test database, and apply schedules.yaml there."""
    with app.app_context():
        db.create_all()
    for verb in ("migrate", "sync"):
        subprocess.run(["yamlsched", verb, "--dsn", os.environ["YAMLSCHED_DSN"]], check=True)
