"""A private PostgreSQL beside schedules.yaml: for trying, developing and testing.

    with embedded.running(Path("schedules.yaml")) as dsn:
        ...

    lease       who uses the server; the first starts it, the last stops it    <- start reading here
    server      one server process: create its data, start, find, stop
    processes   which processes of the machine are the server's
    location       where everything lies, and as which operating system user the server runs
    binaries    where PostgreSQL's programs come from
    dump        out to a real server, and back in

Importing this costs next to nothing: no process is started and no driver is loaded before it must be.
docs/embedded.md tells the rules from the user's side.
"""

from yamlsched.embedded.binaries import available, find_binaries
from yamlsched.embedded.location import data_folder
from yamlsched.embedded.users import Status, discard, running, start_and_keep, status, stop

__all__ = [
    "Status",
    "available",
    "data_folder",
    "discard",
    "find_binaries",
    "running",
    "start_and_keep",
    "status",
    "stop",
]
