"""Where a run's transaction, effects and enqueued runs go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from yamlsched.handling.sessions import persist, sessions

if TYPE_CHECKING:
    import psycopg

    from yamlsched.store.session import HandlerSession

MAX_OUTAGE_SECONDS = 30.0
"""How long the database may be unreachable before an attempt fails."""
BEGIN_TIMEOUT_SECONDS = 8.0
"""A server that does not begin a transaction within this time counts as gone, and another session is opened."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class PostgresBackend:
    """By what right the attempt acts: it fences whatever is written about the run."""

    def __init__(self, dsn: str, namespace: str, locked_by: str, timeout: float | None = None) -> None:
        self.dsn, self.namespace, self.locked_by = dsn, namespace, locked_by
        self.timeout = timeout  # seconds that the attempt may take

    def begin(self, block: ExitStack) -> psycopg.Connection[Any]:
        """Enter a transaction on the session for handlers, which ends with ``block``.

        A session that the server has closed since its last use, or that cannot be opened yet, costs nothing: the
        handler has not seen it. Raises EnvironmentFailed or psycopg's error when that lasts.
        """

        def enter() -> psycopg.Connection[Any]:
            with ExitStack() as opening:
                use = sessions.use(self.dsn, "transaction", self.timeout or MAX_OUTAGE_SECONDS)
                session: HandlerSession = opening.enter_context(use)
                session.answer_within = BEGIN_TIMEOUT_SECONDS  # the network may have dropped it since its last use
                opening.enter_context(session.transaction())
                session.configure_transaction(self.timeout)
                session.answer_within = None
                block.push(opening.pop_all())
                return session

        return persist(enter, MAX_OUTAGE_SECONDS)

    def record(
        self,
        statement: Callable[Concatenate[psycopg.Connection[Any], Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Answer:
        """Carry out a statement about the run, again on a new session while the database does not answer.

        A mail that has left must not be forgotten because the server restarted meanwhile. The session is not that of
        the transaction: what is recorded stands even if the transaction is rolled back.
        """

        def execute() -> Answer:
            with sessions.lock, sessions.use(self.dsn, "effects", self.timeout or MAX_OUTAGE_SECONDS) as session:
                return statement(session, *given, **named)

        return persist(execute, MAX_OUTAGE_SECONDS)
