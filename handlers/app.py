"""The example application that the handlers belong to: tables in the schema ``app``, files in the folder ``var``.

A real application has its own tables and files. These are created with sample rows if they are missing, so that the
examples have something to do on a new database.
"""

from __future__ import annotations

import os
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import psycopg

if TYPE_CHECKING:
    from yamlsched import Run

# the time zone of schedules.yaml, which defines the days of the business
ZONE = ZoneInfo("Europe/Berlin")
VAR = Path(__file__).resolve().parent.parent / "var"
DAY_SECONDS = 86400

TABLES = """
create schema if not exists app;

create table app.users (
    id     bigint primary key,
    name   text not null,
    email  text not null unique,
    active boolean not null
);
create table app.sessions (
    id         bigint generated always as identity primary key,
    user_id    bigint not null references app.users,
    expires_at timestamptz not null
);
create index sessions_expiry on app.sessions (expires_at);
create table app.events (
    id          bigint generated always as identity primary key,
    user_id     bigint not null references app.users,
    kind        text not null,
    happened_at timestamptz not null
);
create index events_of_user on app.events (user_id, happened_at);
create table app.sent_reports (
    user_id bigint not null references app.users,
    week    text not null,
    sent_at timestamptz not null default now(),
    message_id text not null,
    unique (user_id, week)
);
create table app.cached_files (
    name       text primary key,
    sha256     text not null,
    written_at timestamptz not null
);
create table app.invoices (
    id           bigint primary key,
    user_id      bigint not null references app.users,
    amount_cents bigint not null,
    issued_on    date not null,
    due_on       date not null
);
create index invoices_issued on app.invoices (issued_on);
create table app.payments (
    invoice_id   bigint primary key,
    charge_id    text not null unique,
    amount_cents bigint not null,
    paid_at      timestamptz not null default now()
);
"""

SAMPLE_ROWS = """
insert into app.users (id, name, email, active)
select n, name, lower(name) || '@example.org', n % 5 <> 0
from unnest('{Ada,Alan,Barbara,Donald,Edsger,Frances,Grace,Ken,Margaret,Radia}'::text[]) with ordinality as u (name, n);

insert into app.sessions (user_id, expires_at)
select 1 + n % 10, now() + (n - 2500) * interval '30 minutes'
from generate_series(1, 3000) as n;

insert into app.events (user_id, kind, happened_at)
select 1 + floor(10 * power(n * 0.618034 % 1, 2)), (array['login', 'upload', 'comment', 'share'])[1 + n * 7 % 11 % 4],
       now() - n * interval '15 minutes'
from generate_series(1, 1400) as n;

insert into app.invoices (id, user_id, amount_cents, issued_on, due_on)
select 800 + n, 1 + n % 10, 1000 + n * 137 % 9000, today - n, today - n + 14
from generate_series(1, 30) as n, (select (now() at time zone 'Europe/Berlin')::date) as t (today);

insert into app.payments (invoice_id, charge_id, amount_cents)
select i.id, 'sample_' || i.id, i.amount_cents from app.invoices i where i.id % 4 <> 0;
"""


def connect(run: Run) -> psycopg.Connection[Any]:
    """Open a session of the application's own, in autocommit mode: no transaction is open unless a handler starts one.

    A real application has its own settings. Here EXAMPLE_DSN names the database, by default the scheduler's, so that
    the examples work without settings.
    """
    connection = psycopg.connect(
        os.environ.get("EXAMPLE_DSN") or run.backend.dsn, autocommit=True, connect_timeout=10
    )
    with connection.transaction():
        ensure_tables(connection)
    return connection


def day_of(run: Run, connection: psycopg.Connection[Any]) -> date:
    """Return the day that a run is for: that of its slot, or today if it was enqueued."""
    [(now,)] = connection.execute("select now()").fetchall()
    return (run.scheduled_for or now).astimezone(ZONE).date()


def ensure_tables(connection: psycopg.Connection[Any]) -> None:
    """Create the example tables with sample rows if they are missing, in the caller's transaction."""
    if not _missing(connection):
        return
    # several handlers may find no tables at once: one creates them, the others wait and check again
    connection.execute("select pg_advisory_xact_lock(hashtext('handlers.app'))")
    if _missing(connection):
        connection.execute(TABLES)
        connection.execute(SAMPLE_ROWS)


def _missing(connection: psycopg.Connection[Any]) -> bool:
    # not to_regclass: its cache may be older than the lock
    return not connection.execute(
        "select from pg_catalog.pg_tables where schemaname = 'app' and tablename = 'payments'"
    ).fetchall()


def temporary_folder() -> Path:
    """Return ``var/tmp``; a new folder gets a few files, two of them 90 days old."""
    folder = VAR / "tmp"
    VAR.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        return folder
    for name, age in (("upload-1.part", 90), ("upload-2.part", 90), ("upload-3.part", 0)):
        (folder / name).write_text("a part of an unfinished upload\n", encoding="utf-8")
        then = time.time() - age * DAY_SECONDS
        os.utime(folder / name, (then, then))
    return folder
