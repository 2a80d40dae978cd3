"""Start one worker of yamlsched on a Dask cluster, and exit: start_worker.py PROGRAM ARGUMENT...

The task lasts as long as the worker, which so occupies what RESOURCES says.
"""

import os
import subprocess
import sys
import time

from distributed import Client, Security, fire_and_forget

RESOURCES = {"GPU": 1}
WITH_DASK_WORKER = ["setpriv", "--pdeathsig", "TERM"]  # the worker ends with its Dask worker


def main() -> None:
    with Client(security=Security(require_encryption=True), timeout=30) as client:
        task = client.submit(
            subprocess.call,  # of the standard library: no Dask worker needs this file
            [*WITH_DASK_WORKER, *sys.argv[1:]],
            key=f"yamlsched-{os.environ['YAMLSCHED_WORKER']}",
            resources=RESOURCES,
            pure=False,
            retries=0,
        )
        fire_and_forget(task)  # it goes on when this program has ended
        while not client.story(task.key):  # until the scheduler has it
            time.sleep(0.1)


if __name__ == "__main__":
    main()
