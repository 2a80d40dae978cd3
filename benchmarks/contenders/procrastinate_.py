"""procrastinate: its worker, 20 async jobs at once, on its psycopg connector; rows kept, as by default."""

import asyncio
import logging

import procrastinate
from common import ATTEMPTS, FAILS, URL, HandlerCalls, now_us, open_for_append, record_delay, serve

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=URL, min_size=2, max_size=22)
)
calls = HandlerCalls()
settings = {"ms": 0, "file": None}
logging.disable(logging.ERROR if FAILS else logging.INFO)


@app.task(
    name="noop",
    retry=procrastinate.RetryStrategy(max_attempts=ATTEMPTS, wait=0) if FAILS == "once" else False,
)
async def noop(n):
    calls.start()
    if settings["ms"]:
        await asyncio.sleep(settings["ms"] / 1000)
    calls.end(n)


@app.task(name="arrive")
async def arrive(sent):
    record_delay(settings["file"], sent)


async def prepare(count):
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for start in range(0, count, 5_000):
            await noop.batch_defer_async(
                *({"n": n} for n in range(start, min(count, start + 5_000)))
            )


async def work(concurrency, ms):
    settings["ms"] = ms
    async with app.open_async():
        await app.run_worker_async(wait=False, concurrency=concurrency or 20, listen_notify=False)
    calls.print()


async def once():
    async with app.open_async():
        await app.run_worker_async(wait=False, listen_notify=False)


async def loop(file):
    settings["file"] = open_for_append(file)
    async with app.open_async():
        await app.run_worker_async(concurrency=20)


async def send(count, gap_ms):
    async with app.open_async():
        for _ in range(count):
            await asyncio.sleep(gap_ms / 1000)
            await arrive.defer_async(sent=now_us())


serve(prepare=prepare, work=work, once=once, loop=loop, send=send)
