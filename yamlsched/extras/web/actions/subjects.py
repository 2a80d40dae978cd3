"""What actions are about: a run or a job that the form names."""

from __future__ import annotations

import psycopg

from yamlsched.act.statements import RunOutlook
from yamlsched.ask import history
from yamlsched.errors import Refused
from yamlsched.extras.web.ask import outlook
from yamlsched.extras.web.flow import Field, Given, Invalid
from yamlsched.extras.web.render import sentence
from yamlsched.extras.web.visit import Visit
from yamlsched.sync import definitions
from yamlsched.sync.definitions import Definition
from yamlsched.text import did_you_mean

MAX_OFFERED_JOBS = 500
RUN = Field("run", "Run", "subject", "Its id or its key.", is_required=True)


def run(visit: Visit, given: Given) -> RunOutlook:
    """Return the run that the field ``run`` names by its id or key."""
    try:
        found = outlook.find(
            visit.connection, visit.namespace, history.find(visit.connection, visit.namespace, given["run"])
        )
    except Refused as error:
        raise Invalid("run", sentence(str(error))) from None
    if found is None:
        raise Invalid("run", f'Run {given["run"]} does not exist in namespace "{visit.namespace}", or was pruned.')
    return found


def job_field(visit: Visit, given: Given) -> Field:
    """Return the field ``job``. If a link has not set it, names are offered."""
    names = [] if given["job"] else definitions.names(visit.connection, visit.namespace)[:MAX_OFFERED_JOBS]
    return Field("job", "Job", "subject", choices=[(name, name) for name in names], is_required=True)


def job(visit: Visit, given: Given) -> Definition:
    """Return the job that the field ``job`` names."""
    return job_for(visit.connection, visit.namespace, given["job"])


def job_for(connection: psycopg.Connection[object], namespace: str, name: str) -> Definition:
    """Return the job ``name``. Raises Invalid for the field ``job``."""
    found = definitions.find(connection, namespace, name)
    if found is None:
        hint = did_you_mean(name, definitions.names(connection, namespace))
        raise Invalid("job", f'There is no job "{name}" in namespace "{namespace}". {hint}'.strip())
    return found
