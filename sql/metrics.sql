-- What `metrics` reads besides the health of a namespace.

-- name: jobs
-- What the health of a job does not have: how many dead runs retention has not pruned, and
-- since when its oldest run has waited for other jobs.
select d.job_type,
       (select count(*) from yamlsched.dead_runs r
        where r.definition_id = d.id) as dead,
       (select min(r.run_at) from yamlsched.job_runs r
        where r.namespace = d.namespace and r.definition_id = d.id and r.unreleased
          and r.finished_at is null and r.run_at <= %(now)s) as held_up_since
from yamlsched.job_definitions d
where d.namespace = %(namespace)s;

-- name: repairs
select coalesce(max(n.repairs), 0)::float8 from yamlsched.namespaces n
where n.namespace = %(namespace)s;

-- name: ended
-- Runs that ended within the hour before `now`, by job, status and bucket: the number of bounds
-- that the duration of the latest attempt exceeds. Instants are whole microseconds; subtracting
-- half of one puts a duration equal to a bound into the bucket below it. `now` is
-- given, so that the planner sees that an hour is a small part of the history.
select e.job_type, e.status, width_bucket(e.took - 0.0000005, %(bounds)s::float8[]) as bucket,
       count(*) as runs, sum(e.took) as seconds
from (
    select d.job_type, r.status,
           coalesce(extract(epoch from r.finished_at - r.started_at), 0)::float8 as took
    from yamlsched.job_definitions d
    join yamlsched.job_runs r
      on r.definition_id = d.id and r.finished_at > %(now)s::timestamptz - interval '1 hour'
    where d.namespace = %(namespace)s
) e
group by e.job_type, e.status, bucket
order by e.job_type, e.status, bucket;
