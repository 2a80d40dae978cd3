"""sql/roles.sql: each role has exactly the privileges that it needs."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support import command_line as another_process
from support.command_line import command_line
from support.database import code_of_doctor
from support.rows import a_job, a_place, a_run, value
from yamlsched import db as store
from yamlsched.act import enqueue as act_enqueue
from yamlsched.act import pause as pausing
from yamlsched.act import prune as retention
from yamlsched.act import runs as actions
from yamlsched.ask import health, namespaces
from yamlsched.ask.problem import Thresholds
from yamlsched.db.query import sql_folder
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.doctor import server as doctor_server
from yamlsched.runs.enqueue import enqueue, enqueue_many

Db = psycopg.Connection[Any]
TABLES = (
    *(
        "migrations",
        "namespaces",
        "job_definitions",
        "job_runs",
        "job_failures",
        "attempt_outputs",
    ),
    "attempt_progress",
    "running_outputs",
    *("skipped_slots", "job_days"),
    *("effects", "used_keys", "files", "hosts", "operator_actions"),
    *("edits", "edited_jobs"),
)
VIEWS = (
    *(
        "open_runs",
        "dead_runs",
        "stuck_runs",
        "late_jobs",
        "job_queues",
        "job_health",
    ),
    *("definition_changes", "queue_load", "queue_servers"),
)
DENIED = psycopg.errors.InsufficientPrivilege


@pytest.fixture
def granted(own_dsn: str) -> Iterator[Db]:
    """A database in which roles.sql was run twice: running it again must work."""
    script = (sql_folder() / "roles.sql").read_bytes()
    with store.connect(own_dsn) as connection:
        connection.execute(script)
        connection.execute(script)
        yield connection


@contextmanager
def connect_as(connection: Db, role: str) -> Iterator[None]:
    connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    try:
        yield
    finally:
        connection.execute("reset role")


def test_an_enqueuer_enqueues_and_nothing_else(granted: Db) -> None:
    a_job(granted)

    with connect_as(granted, "yamlsched_enqueuer"):
        assert enqueue(granted, "purge", {"days": 3}, key="purge:one").created
        assert len(enqueue_many(granted, "purge", [{}, {}])) == 2
        for table in (*TABLES, *VIEWS):
            with pytest.raises(DENIED):
                granted.execute(f"select count(*) from yamlsched.{table}".encode())
        for table in TABLES:
            with pytest.raises(DENIED):
                granted.execute(f"delete from yamlsched.{table}".encode())
        with pytest.raises(DENIED):
            granted.execute("update yamlsched.job_runs set payload = '{}'")

    assert value(granted, "select count(*) from yamlsched.job_runs") == 3


def test_a_reader_reads_and_nothing_else(granted: Db) -> None:
    run = a_run(granted, a_job(granted), "dead")

    with connect_as(granted, "yamlsched_reader"):
        for table in (*TABLES, *VIEWS):
            granted.execute(f"select count(*) from yamlsched.{table}".encode())
        assert value(granted, "select run_id from yamlsched.dead_runs") == run
        for table in TABLES:
            with pytest.raises(DENIED):
                granted.execute(f"delete from yamlsched.{table}".encode())
        with pytest.raises(DENIED):
            granted.execute("update yamlsched.job_runs set status = 'queued'")
        with pytest.raises(DENIED):
            enqueue(granted, "purge")


def test_a_reader_sees_all_namespaces(granted: Db) -> None:
    a_job(granted, namespace="web1")
    with connect_as(granted, "yamlsched_reader"):
        in_use, unused = namespaces.read_all(granted, Thresholds())
    assert ([one.health.namespace for one in in_use], unused) == (["web1"], [])


def test_a_worker_does_what_operators_need_and_cannot_change_the_audit_trails(granted: Db) -> None:
    job = a_job(granted)
    a_place(granted, retention="{}")
    dead, running = a_run(granted, job, "dead"), a_run(granted, job, "running")
    a_run(
        granted,
        job,
        "succeeded",
        finished_at="(now() - interval '1 year')",
        idempotency_key="purge:old",
    )
    granted.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error) "
        "select id, 1, 'w', now(), 'e' from yamlsched.job_runs"
    )
    granted.execute(
        "insert into yamlsched.attempt_outputs select id, 1, 'w', now(), 0, 'o' from yamlsched.job_runs"
    )
    granted.execute(
        "insert into yamlsched.attempt_progress select id, 1, now(), 1, 2, 'w', '' from yamlsched.job_runs"
    )

    with connect_as(granted, "yamlsched_worker"):
        assert actions.retry(granted, [dead], "ann")[0].changed
        assert actions.cancel(granted, [running], "ann")[0].changed
        assert pausing.pause(granted, "default", [job], "ann")[0].changed
        assert pausing.resume(granted, "default", [job], "ann")[0].changed
        assert act_enqueue.enqueue(
            granted, "default", "purge", {}, key=None, at=None, who="ann"
        ).created
        assert retention.housekeep(granted, "default", 60).runs == 1
        assert len(health.read(granted, "default", Thresholds().within).jobs) == 1
        for table in (
            "job_failures",
            "attempt_outputs",
            "operator_actions",
            "edits",
            "edited_jobs",
        ):
            for verb in ("delete from yamlsched.{}", "truncate yamlsched.{}"):
                with pytest.raises(DENIED):
                    granted.execute(verb.format(table).encode())
        with pytest.raises(DENIED):
            granted.execute("update yamlsched.operator_actions set who = 'nobody'")
        with pytest.raises(DENIED):
            granted.execute("update yamlsched.edits set author = 'nobody'")
        with pytest.raises(DENIED):
            granted.execute("create table yamlsched.mine ()")
        with pytest.raises(DENIED):
            granted.execute("delete from yamlsched.job_definitions")


def test_a_tick_and_operators_need_only_the_worker_role(
    granted: Db, own_dsn: str, tmp_path: Path
) -> None:
    # given a schedule with a job that succeeds, one that fails, and effects, and a login with only the worker role
    (tmp_path / "jobs.py").write_text(
        "def good(run):\n"
        "    with run.once('mail', in_doubt='raise') as effect:\n"
        "        effect.result = 1\n"
        "    run.enqueue('child')\n"
        "def bad():\n"
        "    print('trying')\n"
        "    raise OSError('no route to host')\n"
        "def child(): print('done')\n"
    )
    (tmp_path / "schedules.yaml").write_text(
        "version: 1\n"
        "jobs:\n"
        "  good: {handler: jobs.good, cron: '* * * * *'}\n"
        "  bad: {handler: jobs.bad, max_attempts: 1}\n"
        "  child: {handler: jobs.child, output: {keep: always}}\n"
    )
    dsn = make_conninfo(own_dsn, options="-c role=yamlsched_worker")

    def yamlsched(*arguments: str) -> subprocess.CompletedProcess[str]:
        return another_process.yamlsched(*arguments, cwd=tmp_path, YAMLSCHED_DSN=dsn)

    # when it runs the commands of crontab and operators
    assert yamlsched("sync").returncode == 0
    granted.execute(
        "update yamlsched.job_definitions set effective_from = now() - interval '2 minutes'"
    )
    granted.execute(
        "update yamlsched.job_definitions set next_slot_at = now() where schedule is not null"
    )
    assert yamlsched("enqueue", "bad").returncode == 0
    tick = yamlsched("tick")

    # then all commands succeed except the tick with the failing job
    assert "run.dead" in tick.stderr
    assert "permission denied" not in tick.stderr
    counts = granted.execute(
        "select job_type, status, count(*) from yamlsched.job_runs group by 1, 2 order by 1"
    ).fetchall()
    assert counts == [("bad", "dead", 1), ("child", "succeeded", 1), ("good", "succeeded", 1)]
    outputs = granted.execute("select output from yamlsched.attempt_outputs order by 1").fetchall()
    assert outputs == [("done\n",), ("trying\n",)]
    assert yamlsched("status").returncode == 0
    assert yamlsched("doctor").returncode == code_of_doctor(granted)

    # and edits are applied: jobs that follow others, a limit, a job that leaves
    for jobs in (
        "  good: {handler: jobs.good, cron: '* * * * *', limit: few}\n"
        "  after_good: {handler: jobs.child, after: [good]}\n",
        "  good: {handler: jobs.good, cron: '*/5 * * * *', overlap: allow}\n"
        "  after_good: {handler: jobs.child, cron: '*/5 * * * *'}\n",
    ):
        limits = "limits: {few: {max: 1}}\n" if "few" in jobs else ""
        (tmp_path / "schedules.yaml").write_text(f"version: 1\n{limits}jobs:\n{jobs}")
        applied = yamlsched("sync")
        assert (applied.returncode, "sync.applied" in applied.stderr) == (0, True), applied.stderr
        assert "permission denied" not in yamlsched("tick").stderr


def test_an_owner_migrates(granted: Db) -> None:
    with connect_as(granted, "yamlsched_owner"):
        granted.execute("alter table yamlsched.job_runs add column later integer")
        granted.execute(
            "create or replace view yamlsched.later as select later from yamlsched.job_runs"
        )
        granted.execute(
            "create function yamlsched.later() returns integer language sql as 'select 1'"
        )

    # PUBLIC has no privilege on what a migration adds
    with connect_as(granted, "yamlsched_reader"), pytest.raises(DENIED):
        granted.execute("select yamlsched.later()")


def test_public_has_no_privileges(granted: Db) -> None:
    granted.execute("create role yamlsched_stranger")
    try:
        with connect_as(granted, "yamlsched_stranger"), pytest.raises(DENIED):
            enqueue(granted, "purge")
    finally:
        granted.execute("drop role yamlsched_stranger")


def test_the_doctor_reports_missing_privileges(granted: Db) -> None:
    with connect_as(granted, "yamlsched_worker"):
        assert doctor_server.privileges(granted).level == "ok"
    with connect_as(granted, "yamlsched_enqueuer"):
        finding = doctor_server.privileges(granted)
    assert (finding.level, finding.remedy) == (
        "fail",
        "enough for enqueueing; sync, work and tick need a login in yamlsched_worker",
    )
    assert "can only enqueue" in finding.what
    with connect_as(granted, "yamlsched_reader"):
        finding = doctor_server.privileges(granted)
    assert (finding.level, finding.what) == ("warn", "yamlsched_reader can only read")
    assert "grant" not in finding.remedy


def test_the_doctor_asks_for_the_privileges_that_the_script_grants_to_workers(granted: Db) -> None:
    granted_on_tables = granted.execute(
        """
        select c.relname as name, string_agg(a.privilege_type, ',' order by array_position(
                   '{SELECT,INSERT,UPDATE,DELETE}', a.privilege_type)) as privileges
        from pg_class c, aclexplode(c.relacl) a
        where c.relnamespace = 'yamlsched'::regnamespace and c.relkind = 'r' and a.grantee = 'yamlsched_worker'::regrole
        group by c.relname
        """
    )
    required = [
        (name, rights)
        for rights, names in doctor_server.REQUIRED_PRIVILEGES.items()
        for name in names.split()
    ]
    assert sorted(required) == sorted((row.name, row.privileges) for row in granted_on_tables)


def test_every_verb_reports_what_to_grant_to_a_login_without_privileges(
    server: str,
    granted: Db,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    a_job(granted)
    database = str(granted.info.dbname)
    with a_login(server, database) as (name, dsn):
        cli = command_line(dsn, monkeypatch, capsys, tmp_path)
        (tmp_path / "h.py").write_text("def f(): pass\n")
        (tmp_path / "schedules.yaml").write_text("version: 1\njobs: {purge: {handler: h.f}}\n")

        for verb in (
            *(
                ["status"],
                ["sync"],
                ["tick"],
                ["work"],
                ["runs"],
                ["show", "1"],
                ["metrics"],
                ["pause", "purge"],
            ),
            *(["retry", "1"], ["prune"], ["plan"]),
        ):
            result = cli(*verb)
            assert (verb, result.code) == (verb, 3)
            assert "Grant it yamlsched_worker, or yamlsched_reader for read-only use" in result.err
            assert "Traceback" not in result.err
        result = cli("doctor")

    assert result.code == 1
    assert f"{name} is missing" in result.out
    assert f"grant yamlsched_worker to {name}" in result.out


SCRIPT = (sql_folder() / "roles.sql").read_bytes()


@contextmanager
def a_login(server: str, database: str) -> Iterator[tuple[str, str]]:
    """Create a login that owns nothing; yield its name and a DSN for it."""
    name = f"app_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"create role {name} login".encode())
        admin.execute(f"grant create on database {database} to {name}".encode())
        try:
            yield name, make_conninfo(server, dbname=database, options=f"-c role={name}")
        finally:
            with psycopg.connect(make_conninfo(server, dbname=database), autocommit=True) as db:
                db.execute(f"drop owned by {name} cascade".encode())
            admin.execute(f"drop role {name}".encode())


def test_a_login_that_migrated_by_itself_becomes_a_member_only_by_a_grant_of_the_administrator(
    server: str, empty_dsn: str
) -> None:
    # given a database that the login of an application has migrated
    database = conninfo_to_dict(empty_dsn)["dbname"]
    with a_login(server, str(database)) as (name, dsn), store.connect(empty_dsn) as admin:
        with store.connect(dsn) as app:
            store.migrations.migrate(app)

        # when the superuser runs the script
        admin.execute(SCRIPT)

        # then it owns nothing, here or elsewhere
        memberships = "select count(*) from pg_auth_members where member = %s::regrole"
        assert value(admin, memberships, name) == 0
        with store.connect(dsn) as app, pytest.raises(DENIED):
            app.execute("select count(*) from yamlsched.job_runs")

        # and it works again once both roles are granted
        admin.execute(f"grant yamlsched_owner, yamlsched_worker to {name}".encode())
        with store.connect(dsn) as app:
            assert doctor_server.privileges(app).level == "ok"
            a_job(app)
            assert act_enqueue.enqueue(
                app, "default", "purge", {}, key=None, at=None, who="ann"
            ).created
            app.execute("alter table yamlsched.job_runs add column later integer")


def test_the_script_transfers_everything_whatever_the_search_path_is(own_dsn: str) -> None:
    # given the search_path that a login with the name of the schema has by default
    with psycopg.connect(own_dsn, autocommit=True) as db:
        db.execute("set search_path = yamlsched, public")
        result: list[str] = []
        db.add_notice_handler(
            lambda notice: result.append(f"{notice.severity}: {notice.message_primary}")
        )

        db.execute(SCRIPT)

        owners = db.execute(
            "select distinct p.proowner::regrole::text from pg_proc p where p.pronamespace = 'yamlsched'::regnamespace "
            "union select c.relowner::regrole::text from pg_class c where c.relnamespace = 'yamlsched'::regnamespace"
        ).fetchall()
    assert (owners, result) == ([("yamlsched_owner",)], [])


def test_the_script_transfers_only_what_the_migrations_create(own_dsn: str) -> None:
    # given a function and a view in the schema that no migration creates
    with store.connect(own_dsn) as db:
        db.execute(
            "create function yamlsched.enqueue(text) returns integer language sql security definer as 'select 1'"
        )
        db.execute("create view yamlsched.planted as select 1 as n")

        db.execute(SCRIPT)

        owners = dict(
            db.execute(
                "select c.oid::regclass::text, c.relowner::regrole::text from pg_class c "
                "where c.relnamespace = 'yamlsched'::regnamespace and c.relkind in ('r', 'v') union all "
                "select p.oid::regprocedure::text, p.proowner::regrole::text from pg_proc p "
                "where p.pronamespace = 'yamlsched'::regnamespace"
            ).fetchall()
        )
    foreign = {name for name, owner in owners.items() if owner != "yamlsched_owner"}
    assert foreign == {"yamlsched.planted", "yamlsched.enqueue(text)"}


def test_an_enqueuer_sets_no_parent_and_learns_nothing_about_other_jobs(granted: Db) -> None:
    a_job(granted, "secret")
    a_job(granted)
    enqueue(granted, "secret", key="invoice:812")
    run = a_run(granted, a_job(granted, "parent"), "running")
    forged = "select * from yamlsched.enqueue_many('purge', array['{}'::jsonb], parent_id => %s)"

    with connect_as(granted, "yamlsched_enqueuer"):
        with pytest.raises(psycopg.Error, match="parent_id is not accepted from an enqueuer"):
            granted.execute(forged, [run])
        with pytest.raises(
            Refused, match='key "invoice:812" is held by a run of another job'
        ) as refused:
            enqueue(granted, "purge", key="invoice:812")
    assert "secret" not in str(refused.value)

    with connect_as(granted, "yamlsched_worker"):
        assert granted.execute(forged, [run]).fetchone().created  # type: ignore[union-attr]


def test_the_package_contains_the_script_beside_the_statements() -> None:
    assert (Path(sql_folder()) / "roles.sql").is_file()


READ = frozenset({"SELECT"})
ADD = READ | {"INSERT"}
CHANGE = ADD | {"UPDATE"}
DELETE = CHANGE | {"DELETE"}
EXECUTE = frozenset({"EXECUTE"})
WORKER_TABLES = {
    "migrations": READ,
    "database_identity": READ,
    "namespaces": CHANGE,
    "job_definitions": CHANGE,
    "job_runs": DELETE,
    "job_failures": ADD,
    "attempt_outputs": CHANGE,
    "attempt_progress": DELETE,
    "running_outputs": DELETE,
    "skipped_slots": DELETE,
    "job_days": DELETE,
    "effects": DELETE,
    "used_keys": DELETE,
    "files": DELETE,
    "hosts": DELETE,
    "operator_actions": ADD,
    "edits": ADD,
    "edited_jobs": ADD,
    "gates": DELETE,
    "permits": DELETE,
    "awaits": DELETE,
    "notify_targets": DELETE,
    "notifications": DELETE,
    "workers": DELETE,
    "queue_states": CHANGE,
    **dict.fromkeys((*VIEWS, "effects_in_doubt"), READ),
}
READING = """
arguments_fault awaited awaited_parents due_work enqueue_fault enqueued enqueued_run events_now
expected_until failing_run gates_of has_open_child has_succeeded is_awaited is_closed is_dying is_expired
is_failing is_inside is_silent is_worker job_to_enqueue late limit_line limit_value
messages_due owed_slot queue_levels queue_load_of refuse_keys report_file retry_key rooms
trigger_of unclaimed unique_key upstream upstream_results waited_for
waits_elsewhere waits_for what_changed
"""
WRITING = """
block block_closed claim_gated continue_edits enqueue enqueue_hooks enqueue_many expire
forget_notes grant_permits insert_hooks leave_gates lock_gates make_gates move_runs note note_runs offer
pause_dying promote put_definitions put_place release repair settle_notes succeed_in sweep unique_keys
"""


def executed(names: str) -> dict[str, frozenset[str]]:
    return {f"{name}()": EXECUTE for name in names.split()}


PRIVILEGES: dict[str, dict[str, frozenset[str]]] = {
    "yamlsched_enqueuer": {
        "schema yamlsched": frozenset({"USAGE"}),
        **executed("enqueue enqueue_many"),
    },
    "yamlsched_reader": {
        "schema yamlsched": frozenset({"USAGE"}),
        **dict.fromkeys(WORKER_TABLES, READ),
        **executed(READING),
    },
    "yamlsched_worker": {
        "schema yamlsched": frozenset({"USAGE"}),
        **WORKER_TABLES,
        **executed(READING + WRITING),
    },
}
"""All that every role but the owner may do, public included: what is not here is denied."""

ACLS = """
with objects (name, owner, acl) as (
    select 'schema ' || n.nspname, n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner))
    from pg_namespace n where n.nspname = 'yamlsched'
    union all
    select c.relname, c.relowner,
           coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::"char", c.relowner))
    from pg_class c where c.relnamespace = 'yamlsched'::regnamespace and c.relkind not in ('i', 'I', 't')
    union all
    select c.relname || '.' || a.attname, c.relowner, a.attacl
    from pg_attribute a join pg_class c on c.oid = a.attrelid
    where c.relnamespace = 'yamlsched'::regnamespace and a.attacl is not null
    union all
    select p.proname || '()', p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
    from pg_proc p where p.pronamespace = 'yamlsched'::regnamespace
)
select case when x.grantee = 0 then 'public' else pg_get_userbyid(x.grantee) end as role, o.name,
       array_agg(x.privilege_type || case when x.is_grantable then ' with grant option' else '' end) as privileges
from objects o cross join aclexplode(o.acl) x
where x.grantee <> o.owner
group by 1, 2
"""


def privileges_of_roles(connection: Db) -> dict[str, dict[str, frozenset[str]]]:
    found: dict[str, dict[str, frozenset[str]]] = {}
    for role, name, privileges in connection.execute(ACLS).fetchall():
        found.setdefault(role, {})[name] = frozenset(privileges)
    return found


def owners(connection: Db) -> set[str]:
    found = connection.execute(
        "select n.nspowner::regrole::text from pg_namespace n where n.nspname = 'yamlsched' union "
        "select c.relowner::regrole::text from pg_class c where c.relnamespace = 'yamlsched'::regnamespace union "
        "select p.proowner::regrole::text from pg_proc p where p.pronamespace = 'yamlsched'::regnamespace"
    )
    return {row[0] for row in found.fetchall()}


def test_each_role_has_the_privileges_of_one_list_from_scratch(granted: Db) -> None:
    assert privileges_of_roles(granted) == PRIVILEGES
    assert owners(granted) == {"yamlsched_owner"}


def test_each_role_has_the_same_privileges_after_a_login_migrated_and_gave_away_more(
    server: str, empty_dsn: str
) -> None:
    database = conninfo_to_dict(empty_dsn)["dbname"]
    with a_login(server, str(database)) as (name, dsn), store.connect(empty_dsn) as admin:
        with store.connect(dsn) as app:
            store.migrations.migrate(app)
            app.execute("grant select (payload), update (payload) on yamlsched.job_runs to public")
            app.execute("grant all on sequence yamlsched.job_runs_id_seq to public")

        admin.execute(SCRIPT)

        found = privileges_of_roles(admin)
        assert name not in found
        assert found == PRIVILEGES
        assert owners(admin) == {"yamlsched_owner"}


GRANTED_BEFORE = """
grant usage on schema yamlsched to yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;
grant execute on all functions in schema yamlsched to yamlsched_worker, yamlsched_enqueuer;
grant select on all tables in schema yamlsched to yamlsched_reader, yamlsched_worker;
grant insert, update, delete on yamlsched.job_runs, yamlsched.attempt_progress, yamlsched.effects, yamlsched.used_keys,
    yamlsched.hosts to yamlsched_worker;
"""


def test_the_script_revokes_what_an_earlier_one_granted(granted: Db) -> None:
    granted.execute(GRANTED_BEFORE)
    assert "sweep()" in privileges_of_roles(granted)["yamlsched_enqueuer"]

    granted.execute(SCRIPT)

    assert privileges_of_roles(granted) == PRIVILEGES
    assert owners(granted) == {"yamlsched_owner"}


def test_each_verb_that_reads_works_as_a_reader(
    granted: Db,
    own_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "h.py").write_text("def f(): raise OSError('no route')\n")
    (tmp_path / "schedules.yaml").write_text(
        "version: 1\njobs: {purge: {handler: h.f, cron: '0 3 * * *', max_attempts: 1}}\n"
    )
    owner = command_line(own_dsn, monkeypatch, capsys, tmp_path)
    assert (owner("sync").code, owner("enqueue", "purge").code, owner("work").code) == (0, 0, 1)
    run = str(value(granted, "select max(id) from yamlsched.job_runs"))
    cli = command_line(
        make_conninfo(own_dsn, options="-c role=yamlsched_reader"), monkeypatch, capsys, tmp_path
    )

    for verb in (
        *(
            ["status"],
            ["status", "--check"],
            ["report"],
            ["runs"],
            ["show", run],
            ["why", "purge"],
            ["log"],
        ),
        *(["metrics"], ["plan"], ["next"], ["doctor"], ["db", "identity"]),
    ):
        result = cli(*verb)
        assert "permission denied" not in result.err + result.out, verb
        assert result.code in (0, 1), (verb, result.err)


def test_migrate_refuses_a_schema_that_a_role_created_of_which_the_user_is_no_member(
    server: str, empty_dsn: str
) -> None:
    database = conninfo_to_dict(empty_dsn)["dbname"]
    with a_login(server, str(database)) as (name, dsn), store.connect(empty_dsn) as admin:
        with psycopg.connect(dsn, autocommit=True) as login:
            login.execute("create schema yamlsched")

        with pytest.raises(EnvironmentFailed, match=f'belongs to role "{name}"'):
            store.migrations.migrate(admin)

        assert value(admin, "select to_regclass('yamlsched.migrations')") is None
        with store.connect(dsn) as app:
            store.migrations.migrate(app)
        # a later migration is refused, too: the owner could have put triggers on these tables
        with pytest.raises(EnvironmentFailed, match=f'belongs to role "{name}"'):
            store.migrations.migrate(admin)
        # and the script makes it a member of nothing
        admin.execute(SCRIPT)
        assert (
            value(admin, "select count(*) from pg_auth_members where member = %s::regrole", name)
            == 0
        )
        assert store.migrations.migrate(admin) == []


def test_migrate_refuses_a_schema_with_objects_that_no_migration_created(empty_dsn: str) -> None:
    with store.connect(empty_dsn) as admin:
        admin.execute("create schema yamlsched")
        admin.execute(
            "create function yamlsched.planted() returns integer language sql as 'select 1'"
        )

        with pytest.raises(EnvironmentFailed, match="has objects that yamlsched did not create"):
            store.migrations.migrate(admin)

        admin.execute("drop function yamlsched.planted()")
        assert store.migrations.migrate(admin)
