"""The application and yamlsched use one database, so one variable names it."""

import os

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

DSN = os.environ["YAMLSCHED_DSN"]
async_engine = create_async_engine(
    "postgresql+psycopg://",
    async_creator=lambda: psycopg.AsyncConnection.connect(DSN),
    pool_pre_ping=True,
)
engine = create_engine(
    "postgresql+psycopg://", creator=lambda: psycopg.connect(DSN), pool_pre_ping=True
)
# for endpoints, and handlers that are shared
async_session = async_sessionmaker(async_engine, expire_on_commit=False)
Session = sessionmaker(engine)  # for other handlers
