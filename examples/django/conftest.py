import os

import pytest
from django.db import connection
from psycopg.conninfo import make_conninfo

from yamlsched.testing import delete_runs, prepare_database


def database() -> str:
    return make_conninfo(os.environ["YAMLSCHED_DSN"], dbname=connection.settings_dict["NAME"])


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup):
    """Create the tables of yamlsched in the test database too, and apply schedules.yaml there."""
    prepare_database(database())


@pytest.fixture(autouse=True)
def _no_runs(django_db_setup):
    """Delete the runs that a test has committed: Django empties its own tables only."""
    yield
    if not connection.in_atomic_block:  # else Django rolls them back
        delete_runs(database())
