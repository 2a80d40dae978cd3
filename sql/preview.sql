-- name: begin
-- A preview reads one snapshot from its first statement to its last, and cannot change anything.
set transaction isolation level repeatable read, read only;

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
-- The retention of the file in use.
select n.retention from yamlsched.namespaces n
where n.namespace = %(namespace)s and n.hash is not null;

-- name: other_namespaces
-- Other namespaces in which this place applied the file in use. A file that names another namespace
-- does not retire their jobs.
select n.namespace
from yamlsched.namespaces n
where n.host = %(host)s and n.path = %(path)s and n.namespace <> %(namespace)s
order by n.namespace;
