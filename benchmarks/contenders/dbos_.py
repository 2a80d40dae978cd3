"""DBOS: workflows on a queue, 100 at once, frequent polling; rows kept. Workflows have more guarantees than runs."""

import asyncio
import time

import sqlalchemy
from common import URL, HandlerCalls, now_us, open_for_append, record_delay, serve
from dbos import DBOS, DBOSClient

DSN = URL.replace("postgresql://", "postgresql+psycopg://")
calls = HandlerCalls()
settings = {"ms": 0, "file": None}
DBOS(
    config={
        "name": "bench",
        "system_database_url": URL,
        "log_level": "ERROR",
        "application_version": "1",
    }
)


@DBOS.workflow()
async def noop(n):
    calls.start()
    if settings["ms"]:
        await asyncio.sleep(settings["ms"] / 1000)
    calls.finish()


@DBOS.workflow()
async def arrive(sent):
    record_delay(settings["file"], sent)


def launch(concurrency=0):
    DBOS.launch()
    DBOS.register_queue(
        "bench",
        worker_concurrency=concurrency or 100,
        polling_interval_sec=0.01,
        on_conflict="always_update",
    )


def options(name):
    return {"queue_name": "bench", "workflow_name": name, "app_version": "1"}


def prepare(count):
    launch()
    DBOS.destroy()
    client = DBOSClient(system_database_url=URL)
    with sqlalchemy.create_engine(DSN).begin() as connection:
        for n in range(count):
            client.enqueue_in_transaction(connection, options("noop"), n)
    client.destroy()


def work(concurrency, ms):
    settings["ms"] = ms
    launch(concurrency)
    seen = -1
    while seen != calls.runs or not calls.runs:
        seen = calls.runs
        time.sleep(1)
    DBOS.destroy()
    calls.print()


def loop(file):
    settings["file"] = open_for_append(file)
    launch()
    while True:
        time.sleep(60)


def send(count, gap_ms):
    client = DBOSClient(system_database_url=URL)
    for _ in range(count):
        time.sleep(gap_ms / 1000)
        client.enqueue(options("arrive"), now_us())
    client.destroy()


serve(prepare=prepare, work=work, loop=loop, send=send)
