-- name: configure
-- The first statement of a session: apply its settings. Behind a pooler the session belongs to the
-- pooler. There the settings hold for this statement only, and the backend's pid differs from the
-- one that the client was given. Every name is qualified, because the search_path may still be that
-- of another client. idle_timeout is the session's limit for open transactions whose client is
-- silent, in seconds; 0: none.
select s.is_pooled,
       pg_catalog.date_part('epoch', s.idle_timeout::pg_catalog.interval) as idle_timeout,
       (select pg_catalog.count(pg_catalog.set_config(p.name, p.value, s.is_pooled))
        from rows from (pg_catalog.unnest(%(names)s::pg_catalog.text[]),
            pg_catalog.unnest(%(values)s::pg_catalog.text[]))
             as p (name, value)) as settings
from (select pg_catalog.pg_backend_pid() operator(pg_catalog.<>) %(backend_pid)s::pg_catalog.int4
    as is_pooled,
             pg_catalog.current_setting('idle_in_transaction_session_timeout') as idle_timeout) s;

-- name: limits
-- The seconds after which the server cancels a statement; 0: never.
select date_part('epoch', current_setting('statement_timeout')::interval) as statement_timeout;

-- name: check_client
-- Detect, also during a statement, that the client's host has vanished.
set client_connection_check_interval = '10s';
