-- name: configure
-- The first statement of a session: set what it needs, for as long as it lasts. Behind a pooler the session is not ours:
-- there the settings hold for this statement only, and the process is not the one that the client was told of. Until it
-- is done names mean what somebody else has set: each is qualified. idle_timeout is what is set for transactions whose
-- client is silent, in seconds; 0: never.
select s.is_pooled,
       pg_catalog.date_part('epoch', s.idle_timeout::pg_catalog.interval) as idle_timeout,
       (select pg_catalog.count(pg_catalog.set_config(p.name, p.value, s.is_pooled))
        from rows from (pg_catalog.unnest(%(names)s::pg_catalog.text[]), pg_catalog.unnest(%(values)s::pg_catalog.text[]))
             as p (name, value)) as settings
from (select pg_catalog.pg_backend_pid() operator(pg_catalog.<>) %(told)s::pg_catalog.int4 as is_pooled,
             pg_catalog.current_setting('idle_in_transaction_session_timeout') as idle_timeout) s;

-- name: limits
-- After how many seconds the server ends a statement; 0: never.
select date_part('epoch', current_setting('statement_timeout')::interval) as statement_timeout;

-- name: check_client
-- Notice also in the middle of a statement that the client's host has vanished.
set client_connection_check_interval = '10s';
