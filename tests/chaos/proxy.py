"""A network between workers and the server that can be slow, silent, or lose answers."""

from __future__ import annotations

import asyncio
import threading

import psycopg
from psycopg.conninfo import make_conninfo


class Proxy:
    """Set ``mode`` to "open", "slow", "silent" (nothing passes, nothing is closed) or "mute" (answers are lost)."""

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            self._host, self._port = connection.info.host, connection.info.port
        self.mode = "open"
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result()
        port = server.sockets[0].getsockname()[1]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._host.startswith("/"):
                back, forth = await asyncio.open_unix_connection(
                    f"{self._host}/.s.PGSQL.{self._port}"
                )
            else:
                back, forth = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, forth)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pass_on(reader, forth), self._pass_on(back, writer, is_answer=True)
            )
        except OSError:
            pass
        finally:
            self._abort(pair)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool = False
    ) -> None:
        has_lost = False
        while chunk := await reader.read(1 << 16):
            while self.mode == "silent":
                await asyncio.sleep(0.02)
            if self.mode == "slow":
                await asyncio.sleep(0.15)
            if is_answer and self.mode == "mute":
                has_lost = True
                continue
            if has_lost:
                break  # the client would take the next answer for the lost one
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError

    def _abort(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self._pairs.discard(pair)
        for writer in pair:
            writer.transport.abort()

    def cut(self) -> None:
        """Reset every connection."""
        self._loop.call_soon_threadsafe(lambda: [self._abort(pair) for pair in list(self._pairs)])

    def close(self) -> None:
        self.mode = "open"
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
