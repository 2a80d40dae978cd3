"""pgqueuer: its queue manager on one asyncpg connection, batches of 500, uvloop; rows deleted, log kept."""

import asyncio
import json
import logging

import asyncpg
import uvloop
from common import FAILS, URL, HandlerCalls, now_us, open_for_append, record_delay, serve
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
        payloads = [json.dumps({"n": n}).encode() for n in range(start, start + size)]
        await queries.enqueue(["noop"] * size, payloads, [0] * size)


async def work(concurrency, ms):
    calls = HandlerCalls()
    queuer = PgQueuer(await connected())

    @queuer.entrypoint("noop", concurrency_limit=concurrency)
    async def noop(job):
        calls.start()
        if ms:
            await asyncio.sleep(ms / 1000)
        if FAILS:
            calls.end(json.loads(job.payload)["n"])
        else:
            calls.finish()

    # max_concurrent_tasks is at least two batches, so it cannot be 1; the limit of the entrypoint can
    await queuer.run(
        mode=QueueExecutionMode.drain, batch_size=max(1, concurrency // 2) if concurrency else BATCH
    )
    calls.print()


async def once():
    await work(0, 0)


async def loop(file):
    descriptor = open_for_append(file)
    queuer = PgQueuer(await connected())

    @queuer.entrypoint("arrive")
    async def arrive(job):
        record_delay(descriptor, json.loads(job.payload)["sent"])

    await queuer.run()


async def send(count, gap_ms):
    queries = Queries(await connected())
    for _ in range(count):
        await asyncio.sleep(gap_ms / 1000)
        await queries.enqueue("arrive", json.dumps({"sent": now_us()}).encode())


serve(prepare=prepare, work=work, once=once, loop=loop, send=send)
