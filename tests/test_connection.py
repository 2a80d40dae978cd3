"""Opening sessions: outside settings change no statement, and no silent host or pooler blocks a verb."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.database import code_of_doctor
from support.project import Project, a_project, until
from support.proxy import Pooler, Proxy, a_proxy
from yamlsched import db as store
from yamlsched.db.connection import PINNED_SETTINGS, in_utc, leave_utc
from yamlsched.errors import EnvironmentFailed

pytestmark = pytest.mark.story

HOSTILE = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
    "timezone": "Asia/Kathmandu",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
    "bytea_output": "escape",
    "search_path": "evil",
    "extra_float_digits": "-15",
    "array_nulls": "off",
    "lc_messages": "C",
    "client_encoding": "latin1",
}
VERBS = [
    ["sync"],
    ["enqueue", "nap", "--payload", '{"seconds": 0}', "--key", "k:1"],
    ["work"],
    ["fails"],
    ["tick"],
    ["status"],
    ["why", "nap", "--at", "2026-01-14T02:00Z"],
    ["runs"],
    ["show", "k:1"],
    ["metrics"],
    ["plan"],
    ["pause", "nap", "--reason", "a test", "--until", "2h"],
    ["resume", "nap"],
    ["retry", "k:1", "--force"],
    ["cancel", "k:1"],
    ["backfill", "nap", "--from", "2026-01-14", "--to", "2026-01-15", "--before-first"],
    ["work"],
    ["prune"],
    ["doctor"],
]


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def direct(project: Project) -> Any:
    return a_proxy(project.dsn)


def pooled(project: Project) -> Any:
    return a_proxy(project.dsn, Pooler)


def set_on_database(project: Project, **settings: str) -> None:
    name = project.db.info.dbname
    for setting, value in settings.items():
        literal = value if setting == "search_path" else f"'{value}'"
        project.db.execute(f'alter database "{name}" set {setting} = {literal}'.encode())


# -- settings of the database


@pytest.mark.parametrize("way", [direct, pooled])
def test_settings_of_the_database_change_no_verb(project: Project, way: Any) -> None:
    project.sync(nap={"cron": "0 2 * * *"}, fails={"max_attempts": 1})
    set_on_database(project, **HOSTILE)

    with way(project) as proxy:
        for verb in VERBS:
            if verb == ["fails"]:
                project.enqueue("fails")
                continue
            process = project.start(*verb, dsn=proxy.dsn)
            code = process.wait()
            assert "Traceback" not in process.text, verb
            assert "the database failed" not in process.text, verb
            # exit code 1 of the tick because of the failed run
            expected = {"tick": 1, "doctor": code_of_doctor(project.db)}.get(verb[0], 0)
            assert code == expected, (verb, process.text)

    row = project.db.execute(
        "select * from yamlsched.job_runs where idempotency_key = 'k:1'"
    ).fetchone()
    assert row is not None
    assert project.statuses() == {"cancelled": 1, "succeeded": 2, "dead": 1}


def test_settings_apply_to_the_session_or_behind_a_pooler_only_to_each_transaction(
    project: Project,
) -> None:
    set_on_database(project, **HOSTILE)

    def shown(connection: Any) -> dict[str, str]:
        cursor = connection.cursor()
        return {name: cursor.execute(f"show {name}").fetchone()[0] for name in PINNED_SETTINGS}

    with store.connect(project.dsn) as connection:
        ours = shown(connection)
    with pooled(project) as proxy, store.connect(proxy.dsn) as connection:
        behind = shown(connection)
        # the session as the next client of the pooler gets it
        connection.cursor_factory = psycopg.Cursor
        left_behind = shown(connection)

    assert ours["search_path"] == behind["search_path"] == "pg_catalog, pg_temp"
    assert {**ours, **behind}["timezone"] == "UTC"
    assert {
        name: value for name, value in behind.items() if name != "default_transaction_isolation"
    } == {name: value for name, value in ours.items() if name != "default_transaction_isolation"}
    assert left_behind["search_path"] == "evil"
    assert left_behind["extra_float_digits"] == "-15"


@pytest.mark.parametrize("way", [direct, pooled])
def test_concurrent_ticks_succeed_under_serializable(project: Project, way: Any) -> None:
    project.sync(
        **{f"nap_{n}": {"handler": "support.handlers.nap", "cron": "* * * * *"} for n in range(50)}
    )
    project.db.execute(
        "update yamlsched.job_definitions set next_slot_at = now(), effective_from = now() - interval '1 h'"
    )
    set_on_database(project, default_transaction_isolation="serializable")

    with way(project) as proxy:
        ticks = [
            project.start("tick", "--max-time", "20s", dsn=proxy.dsn, host=f"h{n}")
            for n in range(4)
        ]
        assert [tick.wait() for tick in ticks] == [0] * 4, [tick.text for tick in ticks]


TRAP = """
create table public.trapped (what text);
create function public.unnest(a bigint[]) returns setof bigint language plpgsql as $$
begin insert into public.trapped values ('unnest'); return query select x from pg_catalog.unnest(a) x; end $$;
create function public.clock_timestamp() returns timestamptz language plpgsql as $$
begin insert into public.trapped values ('clock_timestamp'); return pg_catalog.clock_timestamp(); end $$;
create function public.same(a bigint, b bigint) returns boolean language plpgsql as $$
begin insert into public.trapped values ('='); return a operator(pg_catalog.=) b; end $$;
create function public.same(a text, b text) returns boolean language plpgsql as $$
begin insert into public.trapped values ('='); return a operator(pg_catalog.=) b; end $$;
create operator public.= (leftarg = bigint, rightarg = bigint, function = public.same);
create operator public.= (leftarg = text, rightarg = text, function = public.same);
create domain public.jsonb as pg_catalog.text;
"""


@pytest.mark.parametrize("way", [direct, pooled])
def test_a_function_in_the_search_path_does_not_replace_a_built_in_one(
    project: Project, way: Any
) -> None:
    project.db.execute("create table public.ledger (run_id bigint not null)")
    project.db.execute(TRAP.encode())
    set_on_database(project, search_path="public, pg_catalog")
    project.sync(
        nap={},
        fails={"max_attempts": 1},
        transacts={},
        fan_out={"handler": "support.handlers.fans_out_in_a_transaction"},
    )
    runs = [project.enqueue(job)[0] for job in ("nap", "fails", "transacts", "fan_out")]

    with way(project) as proxy:
        project.work(dsn=proxy.dsn, code=1)
        for verb in (["tick"], ["status"], ["retry", str(runs[1])], ["work"]):
            project.start(*verb, dsn=proxy.dsn).wait()

    assert [row.what for row in project.db.execute("select what from public.trapped")] == []
    assert project.row(runs[2]).status == project.row(runs[3]).status == "succeeded"


# -- silent hosts


@contextmanager
def silent_hosts(count: int, backlog: bool = False) -> Iterator[list[str]]:
    """Yield the ports of listeners that accept without answering, or whose backlog is full."""
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            listener = stack.enter_context(
                socket.create_server(("127.0.0.1", 0), backlog=0 if backlog else 64)
            )
            if backlog:
                for _ in range(3):
                    client = stack.enter_context(socket.socket())
                    client.setblocking(False)
                    client.connect_ex(listener.getsockname())
            ports.append(str(listener.getsockname()[1]))
        yield ports


def behind(proxy: Proxy, ports: list[str]) -> str:
    """Return a DSN with silent hosts before a proxy."""
    port = str(conninfo_to_dict(proxy.dsn)["port"])
    count = len(ports) + 1
    return make_conninfo(
        proxy.dsn, host=",".join(["127.0.0.1"] * count), port=",".join([*ports, port])
    )


@pytest.mark.parametrize("backlog", [False, True], ids=["accepts", "queue full"])
def test_a_worker_reaches_the_third_host_if_two_are_silent(project: Project, backlog: bool) -> None:
    project.sync(nap={"lease": "1m"})
    [run] = project.enqueue("nap")

    with direct(project) as proxy, silent_hosts(2, backlog) as ports:
        process = project.work(dsn=behind(proxy, ports))

    assert project.row(run).status == "succeeded"
    assert "Traceback" not in process.text


# -- a silent server behind a pooler


SILENCE = """
import time
from pathlib import Path
from yamlsched.db import connection
real = connection.connect
def connect(*given, **named):
    opened = real(*given, **named)
    Path({folder!r}, "connected").touch()
    while not Path({folder!r}, "go").exists():
        time.sleep(0.005)
    opened.answer_within = 1.0
    return opened
from yamlsched import db as store
store.connect = connect
"""


@pytest.mark.parametrize(
    "way, verb", [(direct, ["tick"]), (pooled, ["tick"]), (pooled, ["enqueue", "nap"])]
)
def test_a_verb_gives_up_on_a_silent_server(project: Project, way: Any, verb: list[str]) -> None:
    project.sync(nap={})
    with way(project) as proxy:
        process = project.start(
            *verb, dsn=proxy.dsn, before=SILENCE.format(folder=str(project.folder))
        )
        until(
            lambda: (project.folder / "connected").exists() or not process.is_alive,
            "the verb has connected",
        )
        assert process.is_alive, process.text
        proxy.is_silent = True
        project.touch("go")

        assert process.wait() == 3

    assert (
        process.text.strip()
        .splitlines()[-1]
        .startswith("yamlsched: the database did not answer within 1 s")
    )
    assert "Traceback" not in process.text


def test_a_statement_that_waits_for_a_lock_behind_a_pooler_ends(project: Project) -> None:
    limits = make_conninfo(project.dsn, options="-c lock_timeout=200ms")
    with pooled(project) as proxy, project.db.transaction():
        project.db.execute("lock table yamlsched.job_runs")
        with (
            store.connect(
                make_conninfo(proxy.dsn, options=conninfo_to_dict(limits)["options"])
            ) as connection,
            pytest.raises(psycopg.errors.LockNotAvailable),
        ):
            connection.execute("select id from yamlsched.job_runs")


def test_the_deadline_follows_the_statement_timeout_of_the_dsn(project: Project) -> None:
    with pooled(project) as proxy:
        for dsn in (project.dsn, proxy.dsn):
            with store.connect(
                make_conninfo(dsn, options="-c statement_timeout=2min")
            ) as connection:
                assert connection.answer_within == 125
            with store.connect(make_conninfo(dsn, options="-c statement_timeout=0")) as connection:
                assert connection.answer_within is None
            with store.connect(dsn) as connection:
                assert connection.answer_within == 65


def test_the_error_for_an_invalid_connection_string_does_not_contain_it() -> None:
    with pytest.raises(EnvironmentFailed) as raised:
        store.connect("postgresql://user:secret@[broken")
    assert "secret" not in str(raised.value)


def test_blocks_in_utc_may_overlap_and_the_last_one_restores_the_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGTZ", "Europe/Paris")
    first, second = in_utc(), in_utc()
    first.__enter__()
    second.__enter__()

    first.__exit__(None, None, None)
    assert os.environ["PGTZ"] == "UTC"

    second.__exit__(None, None, None)
    assert os.environ["PGTZ"] == "Europe/Paris"


def test_a_process_that_was_forked_inside_a_block_restores_the_time_zone_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGTZ", "Europe/Paris")
    with in_utc():
        leave_utc()
        assert os.environ["PGTZ"] == "Europe/Paris"

        with in_utc():
            assert os.environ["PGTZ"] == "UTC"
        assert os.environ["PGTZ"] == "Europe/Paris"
