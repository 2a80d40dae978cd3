"""Run a command and write its seconds, MiB and exit status to a file: ``measure_process.py FILE COMMAND...``

This is a small separate process because a child's largest resident set starts with that of the process that forked it.
"""

import json
import os
import sys
import time

started = time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - started
with open(sys.argv[1], "w") as file:
    json.dump(
        {
            "seconds": seconds,
            "memory": usage.ru_maxrss / 1024,
            "status": os.waitstatus_to_exitcode(status),
        },
        file,
    )
