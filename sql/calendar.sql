-- name: jobs
-- What decides the coming slots of the jobs of the file in use, and what they are filtered by. It
-- reads one row for each job, and no runs.
select d.job_type, d.schedule, d.timezone, d.spread, d.enabled, d.paused_at, d.paused_until,
       d.paused_by, d.paused_reason,
       d.description, d.owner, d.tags, d.skip_on, d.only_on
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.retired_at is null
order by d.job_type;
