"""docs/sql.md lists the views, the columns and the functions that the database has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

Db = psycopg.Connection[Any]
ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "sql.md").read_text("utf-8")
SECTIONS: dict[str, str] = dict(re.findall(r"(?ms)^### `yamlsched\.(\w+)`\n(.*?)(?=^##)", PAGE))
FUNCTIONS = {name: text for name, text in SECTIONS.items() if name.startswith("enqueue")}
RELATIONS = {name: text for name, text in SECTIONS.items() if name not in FUNCTIONS}


def first_cells(text: str) -> list[str]:
    """Return the names in the first cells of the rows of a table."""
    rows = re.findall(r"(?m)^\| (`[^|]*`) \|", text)
    return [name for cell in rows for name in re.findall(r"`(\w+)`", cell)]


def test_every_view_is_on_the_page_with_all_of_its_columns(db: Db) -> None:
    found = db.execute(
        "select c.relname, array_agg(a.attname::text) from pg_class c"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
        " where c.relnamespace = 'yamlsched'::regnamespace and c.relkind = 'v' group by 1"
    ).fetchall()

    views = {name: sorted(columns) for name, columns in found}
    listed = {name: first_cells(text) for name, text in RELATIONS.items()}
    listed["open_runs"] += listed["job_runs"]  # its section says so
    on_page = {name: sorted(columns) for name, columns in listed.items() if name in views}
    assert on_page == views, "docs/sql.md; open_runs has the columns of job_runs"


def test_every_column_of_a_table_on_the_page_exists(db: Db) -> None:
    for name, text in RELATIONS.items():
        columns = first_cells(text)
        assert columns
        listed = ", ".join(f'"{column}"' for column in columns)
        db.execute(f"select {listed} from yamlsched.{name} limit 0".encode())


@pytest.mark.parametrize("name", ["enqueue", "enqueue_many"])
def test_the_parameters_of_a_function_are_on_the_page_in_order_with_types_and_defaults(
    db: Db, name: str
) -> None:
    row = db.execute(
        "select pg_get_function_arguments(p.oid) from pg_proc p"
        " where p.pronamespace = 'yamlsched'::regnamespace and p.proname = %s",
        [name],
    ).fetchone()
    assert row is not None
    declared = [
        re.fullmatch(r"(\w+) (.*?)( DEFAULT .*)?", one) for one in re.split(r", (?=\w+ )", row[0])
    ]
    listed = re.findall(r"(?m)^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", FUNCTIONS[name])

    assert [(one[1], one[2], one[3] is None) for one in declared if one] == [
        (parameter, kind, default == "required") for parameter, kind, default in listed
    ]


def test_every_error_of_the_functions_is_on_the_page() -> None:
    source = (ROOT / "sql" / "schema.sql").read_text("utf-8")

    assert set(re.findall(r"(?m)^\| `(YS\d+)` \|", PAGE)) == set(
        re.findall(r"errcode = '(YS\d+)'", source)
    )


def test_the_queries_of_the_page_run(db: Db) -> None:
    queries = re.findall(r"(?s)```sql\n(.*?)```", PAGE)

    for query in queries[2:]:
        db.execute(query.encode())
    for query in queries[:2]:
        with pytest.raises(psycopg.Error) as refused:
            db.execute(query.encode())
        assert refused.value.sqlstate == "YS001"  # this database has no jobs
