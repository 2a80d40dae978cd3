"""The JSON Schema of schedules.yaml, which defines what is valid, and its parts.

``schema_check`` applies it; ``schema_errors`` has the messages.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

FILE = Path(__file__).with_name("schedules.schema.json")
SCHEMA: Schema = json.loads(FILE.read_text("utf-8"))
JOB_KEYS: Schema = SCHEMA["definitions"]["job"]["properties"]
NAME: str = SCHEMA["properties"]["namespace"]["pattern"]
INCLUDED: Schema = {
    "$schema": SCHEMA["$schema"],
    "title": "A file that schedules.yaml of yamlsched includes, version 1",
    "description": "Jobs, and defaults for them. Paths are relative to the main file.",
    "type": "object",
    "additionalProperties": False,
    "required": ["jobs"],
    "patternProperties": SCHEMA["patternProperties"],
    "properties": {key: SCHEMA["properties"][key] for key in ("defaults", "jobs")},
    "definitions": SCHEMA["definitions"],
}
"""The schema of included files, for editors too."""
INCLUDE: str = SCHEMA["properties"]["include"]["items"]["pattern"]
PATH: str = SCHEMA["properties"]["paths"]["items"]["pattern"]
VARIABLE: str = JOB_KEYS["env"]["propertyNames"]["pattern"]
EXIT_CODE: str = JOB_KEYS["exit_codes"]["properties"]["retry_after"]["propertyNames"]["pattern"]
HANDLER: str = JOB_KEYS["handler"]["pattern"]
DATE: str = JOB_KEYS["starts_on"]["pattern"]
TAG: str = JOB_KEYS["tags"]["items"]["pattern"]
WEEKS: str = JOB_KEYS["every"]["pattern"]
DATES: str = SCHEMA["properties"]["calendars"]["additionalProperties"]["properties"]["dates"][
    "items"
]["pattern"]
HOOKS = ("on_dead", "on_failure", "on_success")
WHOLE_JOB: Schema = SCHEMA["definitions"]["whole_job"]
NEEDED_KEYS = {
    key: [choice["required"][0] for choice in needed["anyOf"]]
    for key, needed in WHOLE_JOB["dependencies"].items()
}
"""By key of a job: those without one of which it has no effect."""
MAX_DURATION = timedelta(days=3650)
"""The maximum of every duration, so that no instant overflows."""
SECOND = timedelta(seconds=1)
RETRY_DELAYS = ("delay", "max_delay", "delays", "retry_after")
LIMITS = {
    **dict.fromkeys(RETRY_DELAYS, (SECOND, MAX_DURATION)),
    **dict.fromkeys(
        ("timeout", "start_within", "finish_within", "expires_after"), (SECOND, MAX_DURATION)
    ),
    "lease": (2 * SECOND, MAX_DURATION),
    "catchup_window": (60 * SECOND, MAX_DURATION),
    "spread": (timedelta(0), timedelta(hours=24)),
    "kill_after": (timedelta(0), timedelta(hours=1)),
    "start_timeout": (10 * SECOND, MAX_DURATION),
}
"""By key: the shortest and the longest duration, which no schema can express."""
