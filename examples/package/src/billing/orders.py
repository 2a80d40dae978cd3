from datetime import date

import psycopg

TABLES = """
create schema if not exists billing;
create table if not exists billing.orders (id bigserial primary key, customer text, cents int, ordered_on date);
create table if not exists billing.invoices (id bigserial primary key, customer text, month date, cents int);
"""


def bill(connection: psycopg.Connection, month: date) -> int:
    """Add an invoice for each customer who ordered in ``month``; return how many."""
    return connection.execute(
        "insert into billing.invoices (customer, month, cents) "
        "select customer, %(month)s, sum(cents) from billing.orders "
        "where date_trunc('month', ordered_on) = %(month)s group by customer",
        {"month": month},
    ).rowcount
