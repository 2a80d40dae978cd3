import subprocess

import pytest

from yamlsched.testing import use_test_database

# before the modules of the application are imported, which read YAMLSCHED_DSN
DSN = use_test_database()

from jobs import app  # noqa: E402
from shop.models import db  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _tables() -> None:
    """Create the tables of the application and of yamlsched in the test database, and apply schedules.yaml there."""
    with app.app_context():
        db.create_all()
    for verb in ("migrate", "sync"):
        subprocess.run(["yamlsched", verb, "--dsn", DSN], check=True)
