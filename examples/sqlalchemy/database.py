"""The application and yamlsched use one database, so one variable names it."""

import os

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

DSN = os.environ["YAMLSCHED_DSN"]
engine = create_engine(
    "postgresql+psycopg://", creator=lambda: psycopg.connect(DSN), pool_pre_ping=True
)
Session = sessionmaker(engine)
