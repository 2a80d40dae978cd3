"""The projects of the guides: their own tests, their jobs in ticks as cron starts them, and workers that are killed."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from packaging.requirements import Requirement

from support.command_line import yamlsched
from support.example_project import EXAMPLES, ROOT, ExampleProject, an_example
from support.project import until

GUIDES = {
    name: ROOT / "docs" / f"{name}.md" for name in ("django", "fastapi", "package", "sqlalchemy")
}
GUIDES |= {"etl": ROOT / "docs" / "follow.md", "flask": GUIDES["sqlalchemy"]}
Example = Callable[[str], ExampleProject]


@pytest.fixture
def example(own_dsn: str, tmp_path: Path) -> Iterator[Example]:
    projects: list[Any] = []

    def start(name: str) -> ExampleProject:
        projects.append(an_example(name, tmp_path, own_dsn))
        return projects[0].__enter__()  # type: ignore[no-any-return]

    yield start
    for project in projects:
        project.__exit__(None, None, None)


@contextmanager
def locked(dsn: str, query: str) -> Iterator[None]:
    """Hold the locks of ``query``."""
    with psycopg.connect(dsn) as connection:
        connection.execute(query.encode())
        yield
        connection.rollback()


def waiting(statement: str) -> str:
    """Return a query that has a row while a session waits for a lock with such a statement."""
    found = f"wait_event_type = 'Lock' and query ilike '{statement}%%'"
    return f"select from pg_stat_activity where datname = current_database() and {found}".replace(
        "%%", "%"
    )


# -- the guides show the code of the projects


def test_the_schedules_of_the_projects_are_valid_and_get_no_advice() -> None:
    done = yamlsched(
        "validate", "--strict", *(str(EXAMPLES / name / "schedules.yaml") for name in GUIDES)
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize("name", GUIDES)
def test_the_code_of_a_guide_is_that_of_its_project(name: str) -> None:
    page = GUIDES[name].read_text("utf-8")
    blocks = re.findall(
        rf"^```\w+\n# (examples/{name}/\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    )

    assert len(blocks) >= 3
    for path, code in blocks:
        for part in re.split(r"^ *# \.\.\.\n", code, flags=re.MULTILINE):
            assert part.strip("\n") in (ROOT / path).read_text("utf-8"), path
    for path in re.findall(r"\b(?:\.\./)?(examples/[\w/.-]+)", page):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", GUIDES)
def test_what_a_project_needs_is_what_developers_install(name: str) -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["dev"]
    needed = (EXAMPLES / name / "requirements.txt").read_text().splitlines()

    def names(lines: list[str]) -> set[tuple[str, str]]:
        return {(found.name, str(sorted(found.extras))) for found in map(Requirement, lines)}

    assert names(needed) <= names(extra)


def test_the_guide_of_the_package_shows_what_validate_prints_about_a_misspelt_handler(
    tmp_path: Path,
) -> None:
    shutil.copytree(EXAMPLES / "package", tmp_path / "package")
    schedule = tmp_path / "package" / "schedules.yaml"
    schedule.write_text(
        schedule.read_text().replace("billing.jobs.bill_month", "billing.jobs.bil_month")
    )

    error, *_ = yamlsched("validate", cwd=schedule.parent).stdout.split("\n\n")

    assert f"```text\n{error}\n```" in GUIDES["package"].read_text()


# -- Django


ORDER = """
from django.test import Client
from orders.models import Customer, Product
customer, _ = Customer.objects.get_or_create(email="ada@example.com")
product, _ = Product.objects.get_or_create(name="Book", defaults={"stock": STOCK})
print(*(Client().post("/orders/", {"email": customer.email, "product": product.pk}).status_code for _ in range(2)))
"""

DJANGO_COMMITS = """
import pytest
from django.db import connection
import yamlsched

def kind(commits):
    return pytest.param(commits, marks=pytest.mark.django_db(transaction=commits))

@pytest.mark.parametrize("commits", [kind(False), kind(False), kind(True), kind(True)])
def test_commits(commits):
    yamlsched.enqueue(connection, "add_points", {"order_id": 1})
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from yamlsched.job_runs")
        assert cursor.fetchall() == [(1,)]
"""

PAGE = """
from django.contrib.auth.models import User
from django.test import Client
from starlette.testclient import TestClient
from shop.asgi import application
client = Client()
client.force_login(User.objects.create(username="ada", is_staff=True))
cookies = {"sessionid": client.cookies["sessionid"].value}
print(TestClient(application, base_url="http://shop.example.com", cookies=cookies).get("/scheduler/").text)
"""


@pytest.fixture
def django(example: Example) -> ExampleProject:
    project = example("django")
    if project.db.info.server_version < 140000:
        pytest.skip("Django 5.2 needs PostgreSQL 14")
    project.run("python", "manage.py", "migrate")
    return project


def order(project: ExampleProject, stock: int) -> list[str]:
    """Place two orders, which commit; return the statuses of the responses."""
    printed = project.run(
        "python", "manage.py", "shell", "--no-imports", "-c", ORDER.replace("STOCK", str(stock))
    )
    return printed.split()


@pytest.mark.slow
def test_django_passes_its_own_tests(django: ExampleProject) -> None:
    django.run("python", "manage.py", "makemigrations", "--check")
    django.run("python", "manage.py", "test", "--no-input")
    (django.folder / "orders" / "test_commits.py").write_text(DJANGO_COMMITS)
    for words in (["pytest"], ["python", "-m", "pytest"]):
        printed = django.run(
            *words, "-p", "no:cacheprovider", "-o", "python_files=tests.py test_commits.py"
        )
        # transactions of Django first, then those that commit
        assert printed.count("test_commits.py ..") == 2
    assert django.runs() == {}
    page = django.run("python", "manage.py", "shell", "--no-imports", "-c", PAGE)
    assert "<title>" in page
    assert 'href="/scheduler/jobs/add_points"' in page


@pytest.mark.slow
def test_django_orders_that_commit_have_their_runs_which_a_tick_of_cron_executes(
    django: ExampleProject,
) -> None:
    # the second order is rolled back after it has enqueued its runs
    assert order(django, stock=1) == ["201", "409"]
    assert django.runs() == {"send_receipt": [("queued", 0)], "add_points": [("queued", 0)]}

    django.run("yamlsched", "enqueue", "delete_unpaid")
    log = django.tick()

    assert {status for runs in django.runs().values() for status, _ in runs} == {"succeeded"}, log
    assert django.value("select points from orders_customer") == 49
    assert len(list((django.folder / "var" / "mail").iterdir())) == 1
    assert "INFO delete_unpaid: deleted 0 rows" in log


@pytest.mark.slow
def test_django_points_are_added_once_if_the_worker_is_killed_between_two_writes_of_the_orm(
    django: ExampleProject,
) -> None:
    assert order(django, stock=1) == ["201", "409"]
    with locked(django.dsn, "select from orders_customer for update"):
        django.tick_that_is_killed(waiting('update "orders_customer"'))

    django.tick()

    assert django.runs()["add_points"] == [("succeeded", 2)]
    assert django.value(
        "select array[points, (select count(*) from orders_pointsentry)] from orders_customer"
    ) == [
        49,
        1,
    ]


@pytest.mark.slow
def test_django_connections_are_closed_after_each_run_as_after_each_request(
    django: ExampleProject,
) -> None:
    assert order(django, stock=2) == ["201", "201"]
    worker = django.start("work", "--loop")
    try:
        until(
            lambda: (
                {status for runs in django.runs().values() for status, _ in runs} == {"succeeded"}
            ),
            "all ran",
        )
        # their children wait for more work, and would keep what Django has opened in them
        until(lambda: not django.sessions(), "Django's sessions are closed")
        assert worker.poll() is None
    finally:
        worker.terminate()
        worker.wait(300)


# -- FastAPI


FASTAPI_ORDER = """
from app.database import Session
from app.main import app
from app.models import Customer, Product
from fastapi.testclient import TestClient
with Session.begin() as session:
    session.add_all([Customer(id=1, email="ada@example.com"), Product(id=1, stock=1)])
with TestClient(app) as client:
    print(*(client.post("/orders", json={"customer_id": 1, "product_id": 1}).status_code for _ in range(2)))
"""
FASTAPI_TABLES = """
from app.database import engine
from app.models import Base
Base.metadata.create_all(engine)
"""


@pytest.fixture
def fastapi(example: Example) -> ExampleProject:
    return example("fastapi")


@pytest.mark.slow
def test_fastapi_passes_its_own_tests_in_a_database_of_their_own(
    fastapi: ExampleProject, empty_dsn: str
) -> None:
    for words in (["pytest"], ["python", "-m", "pytest"]):
        fastapi.run(*words, "-q", "-p", "no:cacheprovider", "tests", TEST_DSN=empty_dsn)
    assert fastapi.runs() == {}  # in the database of the shell, which could be production


@pytest.mark.slow
def test_tests_of_a_guide_without_a_dsn_use_the_embedded_database_and_refuse_that_of_the_shell(
    sqlalchemy: ExampleProject,
) -> None:
    sqlalchemy.run("pytest", "-q", "-p", "no:cacheprovider", "tests", YAMLSCHED_DSN="")
    sqlalchemy.run(
        "pytest", "-q", "-p", "no:cacheprovider", "tests", TEST_DSN=sqlalchemy.dsn, code=4
    )
    assert sqlalchemy.runs() == {}


@pytest.mark.slow
def test_fastapi_orders_that_commit_have_their_runs_and_a_worker_that_is_killed_adds_points_once(
    fastapi: ExampleProject,
) -> None:
    # the second order is rolled back after it has enqueued its runs
    fastapi.run("python", "-c", FASTAPI_TABLES)
    assert fastapi.run("python", "-c", FASTAPI_ORDER).split() == ["201", "409"]
    assert fastapi.runs() == {"send_receipt": [("queued", 0)], "add_points": [("queued", 0)]}

    with locked(fastapi.dsn, "select from customers for update"):
        fastapi.tick_that_is_killed(waiting("update customers"))
    assert fastapi.value("select count(*) from points_entries") == 0
    fastapi.run("yamlsched", "enqueue", "delete_empty")
    log = fastapi.tick()

    assert fastapi.runs()["add_points"] == [("succeeded", 2)], log
    assert {status for runs in fastapi.runs().values() for status, _ in runs} == {"succeeded"}, log
    assert fastapi.value("select points from customers") == 49
    assert fastapi.value("select count(*) from points_entries") == 1


# -- SQLAlchemy


SQLALCHEMY_ACCOUNT = """
from accounts import open_account
from database import Session, engine
from models import Base
Base.metadata.create_all(engine)
with Session.begin() as session:
    open_account(session, "ada@example.com")
with Session() as session:
    open_account(session, "bob@example.com")
    session.rollback()
"""


@pytest.fixture
def sqlalchemy(example: Example) -> ExampleProject:
    return example("sqlalchemy")


@pytest.mark.slow
def test_sqlalchemy_passes_its_own_tests_in_a_database_of_their_own(
    sqlalchemy: ExampleProject, empty_dsn: str
) -> None:
    for words in (["pytest"], ["python", "-m", "pytest"]):
        sqlalchemy.run(*words, "-q", "-p", "no:cacheprovider", "tests", TEST_DSN=empty_dsn)
    assert sqlalchemy.runs() == {}  # in the database of the shell, which could be production


@pytest.mark.slow
def test_sqlalchemy_accounts_that_commit_have_a_run_and_a_worker_that_is_killed_books_once(
    sqlalchemy: ExampleProject,
) -> None:
    sqlalchemy.run("python", "-c", SQLALCHEMY_ACCOUNT)
    assert sqlalchemy.runs() == {"book_bonus": [("queued", 0)]}

    with locked(sqlalchemy.dsn, "select from accounts for update"):
        sqlalchemy.tick_that_is_killed(waiting("update accounts"))
    sqlalchemy.run("yamlsched", "enqueue", "delete_closed")
    log = sqlalchemy.tick()

    assert sqlalchemy.runs() == {
        "book_bonus": [("succeeded", 2)],
        "delete_closed": [("succeeded", 1)],
    }, log
    assert sqlalchemy.value("select balance from accounts") == 500
    assert sqlalchemy.value("select count(*) from bookings") == 1


# -- a package with src layout


PACKAGE_ORDERS = """
import os, psycopg
from billing import orders
with psycopg.connect(os.environ["YAMLSCHED_DSN"]) as connection:
    connection.execute(orders.TABLES)
    connection.execute("insert into billing.orders (customer, cents, ordered_on) values ('ada', 100, '2026-01-07')")
"""


@pytest.mark.slow
def test_the_package_passes_its_own_tests_and_a_worker_that_is_killed_bills_once(
    example: Example,
) -> None:
    package = example("package")
    package.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    package.run("python", "-c", PACKAGE_ORDERS, PYTHONPATH="src")

    package.run("yamlsched", "backfill", "bill_month", "--from", "2026-02-01", "--before-first")
    with locked(package.dsn, "lock table billing.orders in access exclusive mode"):
        package.tick_that_is_killed(waiting("insert into billing.invoices"))
    log = package.tick()

    assert package.runs() == {"bill_month": [("succeeded", 2)]}, log
    invoices = "select jsonb_agg(jsonb_build_array(customer, month, cents)) from billing.invoices"
    assert package.value(invoices) == [["ada", "2026-01-01", 100]]


# -- Flask


FLASK_ORDER = """
from jobs import app
from shop.models import Customer, Product, db
with app.app_context():
    db.create_all()
    db.session.add_all([Customer(id=1), Product(id=1, stock=1)])
    db.session.commit()
client = app.test_client()
print(*(client.post("/orders", json={"customer_id": 1, "product_id": 1}).status_code for _ in range(2)))
"""


@pytest.fixture
def flask(example: Example) -> ExampleProject:
    return example("flask")


@pytest.mark.slow
def test_flask_passes_its_own_tests_in_a_database_of_their_own(
    flask: ExampleProject, empty_dsn: str
) -> None:
    for words in (["pytest"], ["python", "-m", "pytest"]):
        flask.run(*words, "-q", "-p", "no:cacheprovider", "tests", TEST_DSN=empty_dsn)
    assert flask.runs() == {}  # in the database of the shell, which could be production


@pytest.mark.slow
def test_flask_orders_that_commit_have_their_run_and_a_worker_that_is_killed_adds_points_once(
    flask: ExampleProject,
) -> None:
    # the second order is rolled back after it has enqueued its run
    assert flask.run("python", "-c", FLASK_ORDER).split() == ["201", "409"]
    assert flask.runs() == {"add_points": [("queued", 0)]}

    with locked(flask.dsn, "select from customers for update"):
        flask.tick_that_is_killed(waiting("update customers"))
    flask.run("yamlsched", "enqueue", "delete_empty")
    log = flask.tick()

    assert flask.runs() == {"add_points": [("succeeded", 2)], "delete_empty": [("succeeded", 1)]}, (
        log
    )
    assert flask.value("select points from customers") == 49
    assert flask.value("select count(*) from points_entries") == 1
