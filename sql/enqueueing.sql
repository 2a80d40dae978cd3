-- name: enqueue
select e.run_id, e.created
from yamlsched.enqueue(%(job)s::text, %(payload)s::text::jsonb, %(run_at)s::timestamptz, %(key)s::text,
                       %(namespace)s::text) e;

-- name: enqueue_many
select e.run_id, e.created
from yamlsched.enqueue_many(%(job)s::text, %(payloads)s::text[]::jsonb[], %(keys)s::text[],
                            %(run_at)s::timestamptz, %(namespace)s::text) e
order by e.position;
