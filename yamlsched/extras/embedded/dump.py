"""Dump the database as plain SQL, and restore it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from yamlsched.errors import EnvironmentFailed, Refused

# Return the name of each table with rows. What `migrate` writes does not count.
FILLED_TABLES = r"""
select format('select %L where exists (select from %I.%I);',
              n.nspname || '.' || c.relname, n.nspname, c.relname)
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.relkind = 'r'
  and n.nspname <> 'information_schema'
  and n.nspname !~ '^pg_'
  and (n.nspname, c.relname) not in (('yamlsched', 'migrations'),
                                     ('yamlsched', 'database_identity'))
order by n.nspname, c.relname
\gexec
"""

# Make the database like a new one. A public schema that differs from the default would appear in
# later dumps.
EMPTY_DATABASE = """
do $$
declare
    found text;
begin
    for found in
        select nspname from pg_catalog.pg_namespace
        where nspname <> 'information_schema' and nspname !~ '^pg_'
    loop
        execute format('drop schema %I cascade', found);
    end loop;
    create schema public;
    comment on schema public is 'standard public schema';
    grant usage on schema public to public;
    if current_setting('server_version_num')::integer >= 150000 then
        alter schema public owner to pg_database_owner;
    else
        grant create on schema public to public;
    end if;
end
$$;
"""

TRANSACTION_TIMEOUT = b"SET transaction_timeout = 0;\n"  # PostgreSQL 17 and later


def client(binaries: Path, name: str) -> Path:
    """Return the client program ``name``. Raises EnvironmentFailed if this installation does not
    contain it.
    """
    if not os.access(binaries / name, os.X_OK):
        raise EnvironmentFailed(
            f"there is no program {name} in {binaries}: set YAMLSCHED_PG_BIN to the bin folder of a"
            " complete PostgreSQL"
        )
    return binaries / name


def client_environment() -> dict[str, str]:
    """Return our environment without libpq's variables: the DSN is complete."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def dump(dsn: str, binaries: Path, output: BinaryIO) -> None:
    """Write the database as SQL for PostgreSQL 15 or later. The role that loads it becomes the
    owner.
    """
    pg_dump = str(client(binaries, "pg_dump"))
    words = [pg_dump, "--no-owner", "--no-privileges", "--encoding=UTF8", f"--dbname={dsn}"]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, env=client_environment()
        ) as child,
    ):
        assert child.stdout
        output.writelines(portable(child.stdout))
        if child.wait():
            errors.seek(0)
            raise EnvironmentFailed(f"the dump failed: {_error_line(errors.read())}")


def dump_to_file(dsn: str, binaries: Path, file: Path) -> None:
    """Write the dump to ``file``, which only its owner can read, under a temporary name until it is
    complete.
    """
    part = file.with_name(file.name + ".part")
    try:
        part.unlink(missing_ok=True)  # what was left, or put there: it is not followed
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as output:
            dump(dsn, binaries, output)
        part.replace(file)
    except OSError as error:
        raise EnvironmentFailed(
            f"cannot write {error.filename or file}: {error.strerror}"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def portable(lines: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield the lines of a dump without the setting that PostgreSQL 15 does not know.

    Only the header before the first object is searched: a later line of that form is data.
    ``\restrict`` stays: it keeps psql from executing commands that a hostile server hid in the dump
    (CVE-2025-8714).
    """
    in_header = True
    for line in lines:
        if line.startswith(b"-- Name: "):
            in_header = False
        if not (in_header and line == TRANSACTION_TIMEOUT):
            yield line


def restore(dsn: str, binaries: Path, file: Path, clean: bool) -> None:
    """Replace the database's content with that of a dump, in one transaction.

    Raises Refused if there is data and not ``clean``, and if the dump cannot be loaded.
    """
    psql = [
        str(client(binaries, "psql")),
        "--no-psqlrc",
        "--quiet",
        "--set=ON_ERROR_STOP=1",
        f"--dbname={dsn}",
    ]
    search = [*psql, "--tuples-only", "--no-align"]
    process = subprocess.run(
        search, input=FILLED_TABLES.encode(), capture_output=True, env=client_environment()
    )
    if process.returncode:
        raise EnvironmentFailed(f"cannot inspect the database: {_error_line(process.stderr)}")
    filled = process.stdout.decode().split("\n")[:-1]
    if filled and not clean:
        more = f" and {len(filled) - 3} more" if len(filled) > 3 else ""
        raise Refused(
            f"the database holds data, in {', '.join(filled[:3])}{more}: to replace it, pass"
            " --clean"
        )
    loaded = subprocess.run(
        [*psql, "--single-transaction", f"--command={EMPTY_DATABASE}", f"--file={file}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**client_environment(), "PGOPTIONS": "-c client_min_messages=warning"},
    )
    if loaded.returncode:
        raise Refused(
            f"{file} was not loaded, and the database is unchanged: {_error_line(loaded.stderr)}"
        )


def _error_line(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR:" in line or "FATAL:" in line or "error:" in line]
    return (errors or lines or ["no reason given"])[0]
