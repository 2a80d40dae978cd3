"""Run a command and write its seconds, MiB and status to a file: ``measured.py FILE COMMAND...``

A small process of its own, because a child's largest resident set begins as that of the process that forked it.
"""

import json
import os
import sys
import time

begun = time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - begun
with open(sys.argv[1], "w") as file:
    json.dump({"seconds": seconds, "memory": usage.ru_maxrss / 1024, "status": os.waitstatus_to_exitcode(status)}, file)
