import os
import subprocess
from typing import Any

from django.conf import settings
from django.db import connection
from django.test.runner import DiscoverRunner
from psycopg.conninfo import make_conninfo


class Runner(DiscoverRunner):
    """Creates the tables of yamlsched in the test database too, and applies schedules.yaml there."""

    def setup_databases(self, **options: Any) -> Any:
        created = super().setup_databases(**options)
        dsn = make_conninfo(os.environ["YAMLSCHED_DSN"], dbname=connection.settings_dict["NAME"])
        for verb in ("migrate", "sync"):
            subprocess.run(["yamlsched", verb, "--dsn", dsn], cwd=settings.BASE_DIR, check=True)
        return created
