-- Summaries of runs that have ended. Every statement reads a bounded number of runs, however many have finished.

-- name: ended
-- Runs that ended in each hour of a span, and those of them that died. At most `limit` of each are read, job by job
-- through indexes by their end: if there are more, the numbers are of no use.
select b.hour, (sum(b.ended))::integer as ended, (sum(b.dead))::integer as dead
from (
    (select date_trunc('hour', e.finished_at) as hour, 1 as ended, 0 as dead
     from yamlsched.job_definitions d
     cross join lateral (
         select r.finished_at
         from yamlsched.job_runs r
         where r.definition_id = d.id and r.finished_at >= %(start)s and r.finished_at < %(end)s
         order by r.finished_at desc
         limit %(limit)s
     ) e
     where d.namespace = %(namespace)s and (%(job)s::text is null or d.job_type = %(job)s)
     limit %(limit)s)
    union all
    (select date_trunc('hour', e.dead_at), 0, 1
     from yamlsched.job_definitions d
     cross join lateral (
         select r.dead_at
         from yamlsched.job_runs r
         where r.definition_id = d.id and r.dead_at >= %(start)s and r.dead_at < %(end)s
         order by r.dead_at desc
         limit %(limit)s
     ) e
     where d.namespace = %(namespace)s and (%(job)s::text is null or d.job_type = %(job)s)
     limit %(limit)s)
) b
group by b.hour
order by b.hour;

-- name: dead_groups
-- The newest dead runs of each job, at most `of_job` of one job and `limit` in all, by the type of their error. Calls of
-- on_dead are groups of their own: their errors are those of another handler. `examined` is how many runs of the job were
-- read. The example is the latest run.
with dead as materialized (
    select d.job_type, d.timezone, e.id, e.error_type, e.is_call, e.dead_at
    from yamlsched.job_definitions d
    cross join lateral (
        select r.id, coalesce(r.error_type, '') as error_type, r.dead_at,
               coalesce(r.idempotency_key ~ '^on_dead:[0-9]{1,18}(:[0-9]+)?$', false) as is_call
        from yamlsched.job_runs r
        where r.definition_id = d.id and r.dead_at >= %(since)s
        order by r.dead_at desc
        limit %(of_job)s
    ) e
    where d.namespace = %(namespace)s
    limit %(limit)s
), grouped as (
    select x.job_type, x.timezone, x.error_type, x.is_call, count(*)::integer as runs, min(x.dead_at) as first_at,
           max(x.dead_at) as last_at, (array_agg(x.id order by x.dead_at desc, x.id desc))[1] as example_id,
           (sum(count(*)) over (partition by x.job_type))::integer as examined, (sum(count(*)) over ())::integer as total
    from dead x
    group by x.job_type, x.timezone, x.error_type, x.is_call
)
select g.job_type, g.timezone, g.error_type, g.is_call, g.runs, g.first_at, g.last_at, g.example_id, g.examined, g.total,
       r.idempotency_key as example_key, r.last_error as example_error
from grouped g
join yamlsched.job_runs r on r.id = g.example_id
order by g.last_at desc, g.job_type, g.error_type, g.is_call;
