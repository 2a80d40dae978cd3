import os
from typing import Any

from django.conf import settings
from django.db import connection
from django.test.runner import DiscoverRunner
from psycopg.conninfo import make_conninfo

from yamlsched.testing import prepare_database


class Runner(DiscoverRunner):
    """Creates the tables of yamlsched in the test database too, and applies schedules.yaml there."""

    def setup_databases(self, **options: Any) -> Any:
        created = super().setup_databases(**options)
        dsn = make_conninfo(os.environ["YAMLSCHED_DSN"], dbname=connection.settings_dict["NAME"])
        prepare_database(dsn, settings.BASE_DIR / "schedules.yaml")
        return created
