-- These statements run in the sessions of applications and handlers, with their search_path, so
-- every name is qualified. A delay is in seconds from now on the database's clock.

-- name: enqueue_many
-- Any number of runs of one job; parent_id is the run whose handler enqueues them.
select e.run_id, e.created
from yamlsched.enqueue_many(%(job_type)s::pg_catalog.text,
    %(payloads)s::pg_catalog.text[]::pg_catalog.jsonb[],
                            %(keys)s::pg_catalog.text[],
                            %(run_at)s::pg_catalog.timestamptz, %(namespace)s::pg_catalog.text,
                            %(parent_id)s::pg_catalog.int8, %(priority)s::pg_catalog.text,
                            pg_catalog.make_interval(secs => %(delay)s::pg_catalog.float8),
                            %(trace_contexts)s::pg_catalog.text[]) e
order by e.position;
