"""DBOS: workflows on a queue, 100 at once, polled often; rows stay. Workflows take more promises than runs do."""

import asyncio
import time

import sqlalchemy
from common import URL, Tally, appending, arrived, now_us, serve
from dbos import DBOS, DBOSClient

DSN = URL.replace("postgresql://", "postgresql+psycopg://")
tally = Tally()
settings = {"ms": 0, "file": None}
DBOS(config={"name": "bench", "system_database_url": URL, "log_level": "ERROR", "application_version": "1"})


@DBOS.workflow()
async def noop(n):
    tally.begin()
    if settings["ms"]:
        await asyncio.sleep(settings["ms"] / 1000)
    tally.end()


@DBOS.workflow()
async def arrive(sent):
    arrived(settings["file"], sent)


def launch(slots=0):
    DBOS.launch()
    DBOS.register_queue(
        "bench", worker_concurrency=slots or 100, polling_interval_sec=0.01, on_conflict="always_update"
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


def work(slots, ms):
    settings["ms"] = ms
    launch(slots)
    seen = -1
    while seen != tally.runs or not tally.runs:
        seen = tally.runs
        time.sleep(1)
    DBOS.destroy()
    tally.print()


def loop(file):
    settings["file"] = appending(file)
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
