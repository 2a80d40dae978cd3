-- name: enqueue
select e.run_id, e.created
from yamlsched.enqueue(%(job_type)s::text, %(payload)s::text::jsonb, %(run_at)s::timestamptz, %(key)s::text,
                       %(namespace)s::text) e;

-- name: enqueue_many
-- One statement for however many runs of one job; parent_id is the run whose handler enqueues them.
select e.run_id, e.created
from yamlsched.enqueue_many(%(job_type)s::text, %(payloads)s::text[]::jsonb[], %(keys)s::text[],
                            %(run_at)s::timestamptz, %(namespace)s::text, %(parent_id)s::bigint) e
order by e.position;
