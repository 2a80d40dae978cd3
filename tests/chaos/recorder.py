"""The flight recorder: a trigger that keeps every version of every run and definition."""

from __future__ import annotations

from typing import Any

import psycopg

INSTALL = """
create schema chaos;

create table chaos.flight (
    seq        bigint generated always as identity primary key,
    at         timestamptz not null,
    xact       text not null,
    writer     text not null,          -- application_name of the writing session
    table_name text not null,
    op         text not null,
    row        jsonb not null
);

create function chaos.record() returns trigger language plpgsql as $$
declare
    content jsonb := to_jsonb(case when tg_op = 'DELETE' then old else new end);
begin
    insert into chaos.flight (at, xact, writer, table_name, op, row)
    values (clock_timestamp(), pg_current_xact_id()::text, current_setting('application_name'), tg_table_name, tg_op,
            content - '{payload,result,backoff}'::text[]
            || jsonb_build_object('by', content -> 'result' ->> 'by',
                                  'filler', md5(content #>> '{payload,filler}')));
    return null;
end
$$;

create trigger chaos_record after insert or update or delete on yamlsched.job_runs
    for each row execute function chaos.record();
create trigger chaos_record after insert or update or delete on yamlsched.job_definitions
    for each row execute function chaos.record();

create trigger chaos_record after insert or update or delete on yamlsched.notifications
    for each row execute function chaos.record();
create trigger chaos_record after insert or update or delete on yamlsched.notify_targets
    for each row execute function chaos.record();

-- rows that handlers write through run.transaction()
create table chaos.ledger (
    run_id  bigint not null,
    attempt integer not null,
    token   text not null
);
"""


def install(connection: psycopg.Connection[Any]) -> None:
    connection.execute(INSTALL.encode())


def read(connection: psycopg.Connection[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return all recorded rows, by table."""
    statements = {
        "flight": "select * from chaos.flight order by seq",
        "ledger": "select * from chaos.ledger",
        "failures": "select run_id, attempt, worker, error, error_type from yamlsched.job_failures",
        "gaps": "select * from yamlsched.skipped_slots order by definition_id, first_slot",
        "used_keys": "select * from yamlsched.used_keys",
        "definitions": "select * from yamlsched.job_definitions",
    }
    return {
        name: [row._asdict() for row in connection.execute(sql.encode())]
        for name, sql in statements.items()
    }
