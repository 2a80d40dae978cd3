"""A private PostgreSQL next to schedules.yaml, for evaluation, development and testing.

    with embedded.running(Path("schedules.yaml")) as dsn:
        ...

    users       who uses the server; the first starts it, the last stops it    <- start reading here
    server      one server: create its data, start it, find it, stop it
    processes   which processes of the operating system belong to the server
    location    where its files are, and which operating system user it runs as
    binaries    where PostgreSQL's programs come from
    dump        dump the database, and restore it

Importing this package is cheap: it starts no process and loads no driver. docs/embedded.md
describes it for users.
"""

from yamlsched.extras.embedded.binaries import available, find_binaries
from yamlsched.extras.embedded.location import data_folder
from yamlsched.extras.embedded.users import (
    ServerStatus,
    discard,
    running,
    start_and_keep,
    status,
    stop,
)

__all__ = [
    "ServerStatus",
    "available",
    "data_folder",
    "discard",
    "find_binaries",
    "running",
    "start_and_keep",
    "status",
    "stop",
]
