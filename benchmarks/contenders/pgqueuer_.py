"""pgqueuer: its queue manager on one asyncpg connection, batches of 500, uvloop; it deletes rows and keeps a log."""

import asyncio
import json
import logging

import asyncpg
import uvloop
from common import URL, Tally, appending, arrived, now_us, serve
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BATCH = 500
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
logging.disable(logging.INFO)


async def connected():
    return AsyncpgDriver(await asyncpg.connect(URL))


async def prepare(count):
    queries = Queries(await connected())
    await queries.install()
    for start in range(0, count, 10_000):
        size = min(count - start, 10_000)
        await queries.enqueue(["noop"] * size, [b'{"n": 1}'] * size, [0] * size)


async def work(slots, ms):
    tally = Tally()
    queuer = PgQueuer(await connected())

    @queuer.entrypoint("noop", concurrency_limit=slots)
    async def noop(job):
        tally.begin()
        if ms:
            await asyncio.sleep(ms / 1000)
        tally.end()

    # max_concurrent_tasks cannot be less than two batches, and so not one: the entrypoint's own limit can
    await queuer.run(mode=QueueExecutionMode.drain, batch_size=max(1, slots // 2) if slots else BATCH)
    tally.print()


async def once():
    await work(0, 0)


async def loop(file):
    descriptor = appending(file)
    queuer = PgQueuer(await connected())

    @queuer.entrypoint("arrive")
    async def arrive(job):
        arrived(descriptor, json.loads(job.payload)["sent"])

    await queuer.run()


async def send(count, gap_ms):
    queries = Queries(await connected())
    for _ in range(count):
        await asyncio.sleep(gap_ms / 1000)
        await queries.enqueue("arrive", json.dumps({"sent": now_us()}).encode())


serve(prepare=prepare, work=work, once=once, loop=loop, send=send)
