"""The JSON Schema of schedules.yaml, which defines what is valid. ``check`` applies it; ``errors`` has the messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

FILE = Path(__file__).parent.with_name("schedules.schema.json")
SCHEMA: Schema = json.loads(FILE.read_text("utf-8"))
JOB_KEYS: Schema = SCHEMA["definitions"]["job"]["properties"]
NAME: str = SCHEMA["properties"]["namespace"]["pattern"]
PATH: str = SCHEMA["properties"]["paths"]["items"]["pattern"]
VARIABLE: str = JOB_KEYS["env"]["propertyNames"]["pattern"]
EXIT_CODE: str = JOB_KEYS["exit_codes"]["properties"]["retry_after"]["propertyNames"]["pattern"]
RESOURCE: str = JOB_KEYS["resources"]["propertyNames"]["pattern"]
ADDRESS: str = SCHEMA["properties"]["executors"]["additionalProperties"]["properties"]["address"]["pattern"]
HANDLER: str = JOB_KEYS["handler"]["pattern"]
