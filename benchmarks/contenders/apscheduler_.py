"""APScheduler 3: jobs with a date in its SQLAlchemy store, 20 threads. Jobs with a date are its closest
equivalent of a queue. One process must own the store."""

import logging
import threading
import time
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from common import URL, HandlerCalls, serve
from sqlalchemy import create_engine

calls = HandlerCalls()
lock = threading.Lock()
settings = {"ms": 0}
logging.disable(logging.INFO)


def noop(n):
    with lock:
        calls.start()
    if settings["ms"]:
        time.sleep(settings["ms"] / 1000)
    with lock:
        calls.finish()


def scheduler(threads=20):
    engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
    return BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(engine=engine)},
        executors={"default": ThreadPoolExecutor(threads)},
        job_defaults={"misfire_grace_time": None},
        timezone=UTC,
    )


def prepare(count):
    adding = scheduler()
    adding.start(paused=True)
    for n in range(count):
        adding.add_job("__main__:noop", "date", run_date=datetime.now(UTC), args=[n])
    adding.shutdown()


def work(concurrency, ms):
    settings["ms"] = ms
    working = scheduler(concurrency or 20)
    working.start()
    while working.get_jobs():
        time.sleep(0.1)
    working.shutdown()
    calls.print()


serve(prepare=prepare, work=work)
