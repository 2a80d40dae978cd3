"""What the Python scripts share: the verbs' arguments, and the count of what handlers did."""

import asyncio
import inspect
import json
import os
import sys
import time

URL = os.environ["BENCH_URL"]


class Tally:
    """Counts handlers' calls, at next to no cost to them."""

    def __init__(self):
        self.runs, self.first, self.last = 0, None, None

    def begin(self):
        if self.first is None:
            self.first = time.time()

    def end(self):
        self.runs += 1
        self.last = time.time()

    def print(self):
        print(json.dumps({"runs": self.runs, "first": self.first, "last": self.last}), flush=True)

    async def settled(self, is_empty, every=0.1):
        """Return when no handler has been called for two looks in a row and nothing is left to do."""
        seen, begun = -1, time.monotonic()
        while True:
            await asyncio.sleep(every)
            if self.runs == seen and (self.runs or time.monotonic() - begun > 5) and await is_empty():
                return
            seen = self.runs


def now_us():
    return time.time_ns() // 1000


def arrived(descriptor, sent):
    """Write how many microseconds ago a job was sent. One small append is one line, whoever else appends."""
    os.write(descriptor, b"%d\n" % (now_us() - int(sent)))


def appending(file):
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def serve(**verbs):
    """Call the verb that the command line names, with its other words: numbers as numbers."""
    words = [int(w) if w.isdigit() else float(w) if w.replace(".", "", 1).isdigit() else w for w in sys.argv[2:]]
    answer = verbs[sys.argv[1]](*words)
    if inspect.isawaitable(answer):

        async def main():
            await answer

        asyncio.run(main())
