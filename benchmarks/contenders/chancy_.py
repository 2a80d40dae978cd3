"""chancy: its worker with the async executor, 500 jobs at once, eager polling; rows kept."""

import asyncio
import logging

import psycopg
from chancy import Chancy, Queue, Worker, job
from common import ATTEMPTS, FAILS, URL, HandlerCalls, now_us, open_for_append, record_delay, serve

calls = HandlerCalls()
settings = {"ms": 0, "file": None}
log = logging.getLogger("chancy")
log.setLevel(logging.CRITICAL if FAILS else logging.ERROR)


@job(max_attempts=ATTEMPTS)
async def noop(*, n: int):
    calls.start()
    if settings["ms"]:
        await asyncio.sleep(settings["ms"] / 1000)
    calls.end(n)


@job()
async def arrive(*, sent: int):
    record_delay(settings["file"], sent)


def app():
    return Chancy(URL, log=log)


def queue(concurrency):
    return Queue(
        "default",
        concurrency=concurrency or 500,
        executor="chancy.executors.asyncex.AsyncExecutor",
        polling_interval=1,
        eager_polling=True,
    )


async def prepare(count):
    async with app() as chancy:
        await chancy.migrate()
        await chancy.declare(queue(None), upsert=True)
        async for _ in chancy.push_many([noop.job.with_kwargs(n=n) for n in range(count)]):
            pass


async def work(concurrency, ms):
    settings["ms"] = ms
    async with (
        app() as chancy,
        await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection,
    ):
        await chancy.declare(queue(concurrency), upsert=True)

        async def is_empty():
            found = await connection.execute(
                "select exists (select from chancy_jobs where completed_at is null)"
            )
            return not (await found.fetchone())[0]

        async with Worker(chancy) as worker:
            await calls.wait_until_idle(is_empty)
            await worker.stop()
    calls.print()


async def loop(file):
    settings["file"] = open_for_append(file)
    async with app() as chancy:
        await chancy.declare(queue(None), upsert=True)
        async with Worker(chancy) as worker:
            await worker.wait_for_shutdown()


async def send(count, gap_ms):
    async with app() as chancy:
        for _ in range(count):
            await asyncio.sleep(gap_ms / 1000)
            await chancy.push(arrive.job.with_kwargs(sent=now_us()))


serve(prepare=prepare, work=work, loop=loop, send=send)
