"""Reading a payload that a person wrote, and checking it against the handler, whose
source is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from psycopg import Connection

from yamlsched.ask.history import place_of
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.jsonb import MAX_DIGITS
from yamlsched.schedule import handlers
from yamlsched.schedule.handlers import Parameters
from yamlsched.schedule.load import load_file
from yamlsched.schedule.paths import import_path


def parse(text: str) -> dict[str, Any]:
    """Parse a payload: a JSON object.

    >>> parse('{"user_id": 12}')
    {'user_id': 12}

    Raises ValueError with a message that says what to write.

    >>> parse("[1]")
    Traceback (most recent call last):
    ValueError: not a JSON object: its keys become keyword arguments, as in {"user_id": 12}
    """

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a valid JSON value: write null, or a string")

    def integer(digits: str) -> int:
        return (
            int(digits)
            if len(digits.lstrip("-")) <= MAX_DIGITS
            else refuse("a number of over 3,000 digits")
        )

    try:
        value = json.loads(text, parse_constant=refuse, parse_int=integer)
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos : error.pos + 20].split("\n")[0]
        where = f"at {rest!r}" if rest else "where it ends"
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(
            f"{place}: invalid JSON {where}: write for example '{{\"user_id\": 12}}'"
        ) from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(
            'not a JSON object: its keys become keyword arguments, as in {"user_id": 12}'
        )
    return value


class Taken(NamedTuple):
    """The parameters of a job's handler, None if its source does not determine them, and the
    payload of the job.
    """

    handler: str
    parameters: Parameters | None
    payload: Mapping[str, Any]


def taken(
    connection: Connection[Any],
    file: Path,
    namespace: str,
    job: str,
    paths: Sequence[str | Path] = (),
) -> Taken | None:
    """Return what the handler of ``job`` takes, in the environment of ``namespace``. None without
    the file, or the job in it, and for a command.

    So it is for a job of another ``namespace`` than the file's, unless an option names it for the
    file on this host, and where the environment is not known: its handler may be another one.
    ``paths`` are further folders with handlers.
    """
    known = place_of(connection, namespace, file)
    is_named, environment = known or (False, "")
    try:
        loaded = load_file(file, environment or None)
    except EnvironmentFailed:
        return None
    definition = loaded.jobs.get(job)
    is_own = loaded.namespace == namespace and (known or not loaded.environments)
    if definition is None or definition.handler is None or not (is_own or is_named):
        return None
    path = import_path(file, loaded.paths, paths)
    return Taken(
        definition.handler, handlers.parameters(definition.handler, path), definition.payload
    )


def check(
    connection: Connection[Any],
    file: Path,
    namespace: str,
    job: str,
    payload: Mapping[str, Any],
    paths: Sequence[str | Path] = (),
) -> None:
    """Check ``payload``, merged over the job's own. What ``taken`` does not know is accepted.

    Raises Refused if no call of the handler could succeed: the run would be dead at once.
    """
    known = taken(connection, file, namespace, job, paths)
    if known is None or known.parameters is None:
        return
    if fault := known.parameters.fault({**known.payload, **payload}):
        raise Refused(f'job "{job}": {fault}')
