-- name: begin
-- A preview reads one snapshot from its first statement to its last, and cannot change anything.
set transaction isolation level repeatable read, read only;

-- name: now
-- The instant of the preview.
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now;

-- name: definitions
-- Every job of a namespace as it was applied, retired ones included: a job that returns is not new.
-- All columns: definitions.job knows which of them make up a job.
select d.*
from yamlsched.job_definitions d
where d.namespace = %(namespace)s
order by d.job_type;

-- name: unfinished
-- The unfinished runs of these jobs.
select r.definition_id, count(*) as runs, count(*) filter (where r.status = 'running') as running
from yamlsched.job_runs r
where r.namespace = %(namespace)s and r.definition_id = any (%(ids)s::bigint[])
  and r.finished_at is null
group by r.definition_id;

-- name: retention
-- The retention of the file in force.
select i.retention from yamlsched.files_in_force i where i.namespace = %(namespace)s;

-- name: other_namespaces
-- Other namespaces to which a file of this host and path was applied. A file that names another
-- namespace does not retire their jobs.
select distinct f.namespace
from yamlsched.schedule_files f
where f.host = %(host)s and f.path = %(path)s and f.namespace <> %(namespace)s
  and f.applied_at is not null
order by f.namespace;
