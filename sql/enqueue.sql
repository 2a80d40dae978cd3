-- A delay in seconds counts from now on the database's clock.

-- name: enqueue
select e.run_id, e.created
from yamlsched.enqueue(%(job_type)s::text, %(payload)s::text::jsonb,
                       coalesce(%(run_at)s::timestamptz, clock_timestamp() + make_interval(secs => %(delay)s::float8)),
                       %(key)s::text, %(namespace)s::text) e;

-- name: enqueue_many
-- One statement for however many runs of one job; parent_id is the run whose handler enqueues them.
select e.run_id, e.created
from yamlsched.enqueue_many(%(job_type)s::text, %(payloads)s::text[]::jsonb[], %(keys)s::text[],
                            coalesce(%(run_at)s::timestamptz, clock_timestamp() + make_interval(secs => %(delay)s::float8)),
                            %(namespace)s::text, %(parent_id)s::bigint) e
order by e.position;
