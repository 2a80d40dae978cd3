"""Processes share one embedded server: the first starts it, the last stops it, and a kill of any loses nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psycopg
import pytest

from support.embedded_database import answer, carry_out, kill, leave, pid_of_server, said_dsn
from support.project import is_alive, until
from yamlsched.errors import Refused
from yamlsched.extras import embedded
from yamlsched.extras.embedded import binaries, location, server

pytestmark = pytest.mark.story


def test_the_first_user_starts_it_and_the_last_one_stops_it(project, user):
    first = user(project)
    said_dsn(first)
    pid = pid_of_server(project)

    with embedded.running(project):
        leave(first)
        assert pid_of_server(project) == pid
        assert embedded.status(project).users == [os.getpid()]

    assert not is_alive(pid)
    assert not embedded.status(project).running


def test_a_permanently_started_server_runs_until_it_is_stopped(project):
    embedded.start_and_keep(project)
    pid = pid_of_server(project)

    with embedded.running(project):
        pass

    assert pid_of_server(project) == pid
    assert embedded.status(project).kept
    assert embedded.stop(project) is True
    assert not is_alive(pid)
    assert embedded.stop(project) is False
    assert not embedded.status(project).kept


def test_stop_refuses_while_there_are_users_names_them_and_lets_the_last_one_stop_it(project, user):
    embedded.start_and_keep(project)
    other = user(project)
    said_dsn(other)

    with pytest.raises(Refused, match=f"in use by process {other.pid};.*--force"):
        embedded.stop(project)

    leave(other)
    assert not embedded.status(project).running


def test_stop_with_force_stops_it_despite_users(project, user):
    said_dsn(user(project))

    assert embedded.stop(project, force=True) is True

    assert not embedded.status(project).running


def test_ten_processes_that_start_at_once_in_an_empty_folder_share_one_server(empty, user):
    users = [user(empty) for _ in range(10)]

    dsns = {said_dsn(process) for process in users}

    assert len(dsns) == 1
    assert answer(dsns.pop(), "select 1") == 1
    said = [process.communicate("done\n", timeout=60)[1] for process in users]
    assert [process.returncode for process in users] == [0] * 10
    assert "".join(said).count("first use") == 1
    assert not embedded.status(empty).running


def test_concurrent_users_never_get_a_server_that_is_being_stopped(project):
    code = f"""
import sys
import psycopg
from pathlib import Path
from yamlsched.extras import embedded
for _ in range(10):
    with embedded.running(Path({str(project)!r})) as dsn, psycopg.connect(dsn) as connection:
        connection.execute("select 1")
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]

    errors = [process.communicate(timeout=120)[1] for process in processes]

    assert errors == [""] * 3
    assert not embedded.status(project).running


def test_a_forked_child_that_leaves_the_block_does_not_stop_the_server(project):
    us = os.getpid()
    try:
        with embedded.running(project) as dsn:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                assert answer(dsn, "select 1") == 1
    finally:
        if os.getpid() != us:
            os._exit(0)
    assert not embedded.status(project).running


def test_the_server_has_its_own_session_and_is_no_child_of_a_user(project):
    with embedded.running(project):
        pid = pid_of_server(project)
        assert os.getsid(pid) != os.getsid(0)
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_discard_removes_everything_unless_there_are_users(project, user):
    other = user(project)
    said_dsn(other)
    assert embedded.discard(project) is False
    leave(other)
    assert embedded.discard(project) is True
    assert not (project.parent / ".yamlsched").exists()


# -- kills


def test_a_killed_server_is_recovered_at_the_next_use_with_what_was_committed(project, user):
    dsn = said_dsn(user(project))
    carry_out(dsn, "create table kept (number int)", "insert into kept values (42)")
    pid = pid_of_server(project)

    kill(pid)

    with embedded.running(project) as dsn:
        assert answer(dsn, "select number from kept") == 42
        assert pid_of_server(project) != pid


def test_a_backend_that_survives_the_kill_of_the_server_is_awaited_or_terminated(project):
    with embedded.running(project) as dsn:
        busy = psycopg.connect(dsn, autocommit=True)
        orphan = busy.info.backend_pid
        busy.pgconn.send_query(b"select count(*) from generate_series(1, 1000000000000)")
        until(
            lambda: (
                answer(dsn, f"select state from pg_stat_activity where pid = {orphan}") == "active"
            )
        )

        kill(pid_of_server(project))

        with embedded.running(project) as again:
            assert answer(again, "select 1") == 1
            assert not is_alive(orphan)
        busy.close()


def test_a_killed_server_whose_socket_is_still_open_in_another_process_is_not_running(project):
    with embedded.running(project):
        here = location.locate(project.parent / ".yamlsched")
        kill(pid_of_server(project))

        # a backend that was forked at that moment has not closed the socket yet
        path = here.sockets / f".s.PGSQL.{location.PORT}"
        path.unlink()
        with socket.socket(socket.AF_UNIX) as inherited:
            inherited.bind(os.fspath(path))
            inherited.listen()
            assert not embedded.status(project).running

            with embedded.running(project) as again:
                assert answer(again, "select 1") == 1


def test_when_the_owner_is_killed_the_next_user_takes_over_the_server_and_stops_it(project, user):
    owner = user(project)
    said_dsn(owner)
    pid = pid_of_server(project)

    owner.kill()
    owner.wait()

    assert is_alive(pid)
    with embedded.running(project):
        assert pid_of_server(project) == pid
        assert embedded.status(project).users == [os.getpid()]
    assert not is_alive(pid)


def test_a_pid_file_with_the_pid_of_another_program_neither_prevents_the_start_nor_harms_that_program(
    project, user
):
    said_dsn(user(project))
    here = location.locate(project.parent / ".yamlsched")
    kill(pid_of_server(project))
    until(lambda: not server.is_alive(here))
    # of the same user: PostgreSQL itself detects a pid that it may not signal
    same_user = here.account.as_popen() if here.account else {}
    bystander = subprocess.Popen(["sleep", "600"], **same_user)
    for file in (here.data / "postmaster.pid", here.sockets / ".s.PGSQL.5432.lock"):
        _, *rest = file.read_text().splitlines()
        file.write_text("\n".join([str(bystander.pid), *rest]) + "\n")

    try:
        with embedded.running(project) as dsn:
            assert answer(dsn, "select 1") == 1
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_kill_during_the_creation_leaves_no_partial_database(empty, user):
    half = user(empty)
    until(lambda: list(empty.parent.glob(".yamlsched/postgres/data.new-*/PG_VERSION")))

    half.kill()
    half.wait()

    with embedded.running(empty) as dsn:
        assert answer(dsn, "select 1") == 1
        assert [path.name for path in empty.parent.glob(".yamlsched/postgres/data*")] == ["data"]


def test_the_next_user_completes_a_start_that_was_killed(project):
    here = location.prepare(project.parent / ".yamlsched")
    server._start(here, binaries.find_binaries(False))  # killed before the server was ready

    with embedded.running(project) as dsn:
        assert answer(dsn, "select 1") == 1
