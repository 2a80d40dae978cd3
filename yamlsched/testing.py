"""Call your handlers in your own tests: no worker, no row, and no database unless the handler uses
one.

from yamlsched.testing import FakeRun, call, call_command

run = FakeRun(payload={"user_id": 12})
call(handler, run)
call(handler, run.next_attempt())       # finds what the first attempt has done
call_command("schedules.yaml", "backup_database").exit_code
"""

from yamlsched.extras.testing.commands import CommandResult, call_command
from yamlsched.extras.testing.databases import (
    assert_enqueued,
    delete_runs,
    prepare_database,
    use_test_database,
)
from yamlsched.extras.testing.fake_run import IN_DOUBT, Enqueue, FakeRun, call, provider_key
from yamlsched.handler.run import Trigger as Trigger
from yamlsched.handler.run import UpstreamRun as UpstreamRun
from yamlsched.runs.progress import Progress

__all__ = [
    "IN_DOUBT",
    "CommandResult",
    "Enqueue",
    "FakeRun",
    "Progress",
    "assert_enqueued",
    "call",
    "call_command",
    "delete_runs",
    "prepare_database",
    "provider_key",
    "use_test_database",
]
