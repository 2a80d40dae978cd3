-- name: enqueued
-- The last runs of a job, and whether the payload of each has all that is wanted.
select r.payload, r.payload @> %(payload)s::jsonb as matches
from yamlsched.job_runs r
where r.job_type = %(job)s
order by r.id desc
limit 100;

-- name: delete_runs
-- Delete all runs of all namespaces, and what belongs to them, in a database for tests.
truncate yamlsched.awaits, yamlsched.job_runs, yamlsched.job_failures, yamlsched.attempt_outputs,
yamlsched.attempt_progress, yamlsched.running_outputs, yamlsched.effects, yamlsched.used_keys,
    yamlsched.skipped_slots, yamlsched.job_days;
