"""What the Python scripts share: the verbs' arguments, and a counter of handler calls."""

import asyncio
import inspect
import json
import os
import sys
import time

URL = os.environ["BENCH_URL"]
# "once": the first attempt of each job raises; "always": every attempt
FAILS = os.environ.get("BENCH_FAILS")
ATTEMPTS = 2 if FAILS == "once" else 1


class HandlerCalls:
    """Counts handler calls and their first and last time, at almost no cost."""

    def __init__(self):
        self.runs, self.first, self.last = 0, None, None
        self.failed = set()

    def start(self):
        if self.first is None:
            self.first = time.time()

    def finish(self):
        self.runs += 1
        self.last = time.time()

    def end(self, n):
        """Finish, and raise if this attempt of job ``n`` is to fail."""
        self.finish()
        if FAILS == "always" or (FAILS == "once" and n not in self.failed):
            self.failed.add(n)
            raise ValueError("no route to host")

    def print(self):
        print(json.dumps({"runs": self.runs, "first": self.first, "last": self.last}), flush=True)

    async def wait_until_idle(self, is_empty, every=0.1):
        """Return once no handler was called between two polls and the queue is empty."""
        seen, started = -1, time.monotonic()
        while True:
            await asyncio.sleep(every)
            if (
                self.runs == seen
                and (self.runs or time.monotonic() - started > 5)
                and await is_empty()
            ):
                return
            seen = self.runs


def now_us():
    return time.time_ns() // 1000


def record_delay(descriptor, sent):
    """Append how many microseconds ago a job was sent. A small append is atomic, so lines do not mix."""
    os.write(descriptor, b"%d\n" % (now_us() - int(sent)))


def open_for_append(file):
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def serve(**verbs):
    """Call the verb that the command line names, with its arguments; numeric ones are converted."""
    words = [
        int(w) if w.isdigit() else float(w) if w.replace(".", "", 1).isdigit() else w
        for w in sys.argv[2:]
    ]
    result = verbs[sys.argv[1]](*words)
    if inspect.isawaitable(result):

        async def main():
            await result

        asyncio.run(main())
