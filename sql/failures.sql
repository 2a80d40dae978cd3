-- Failures by job and type of error. Every statement reads a bounded number of runs, however many
-- have finished.

-- name: groups
-- Runs with a failed attempt in [since, until), by their job and the type of their latest error:
-- those that died in it, and unless `only_dead` the others. The newest are read: at most `of_job`
-- of each job and kind, `limit` in all, first of the jobs that have most. `examined` is how many
-- of the job were read, of the larger kind. The example is the run that failed last: a dead one,
-- else one that is not finished. `changed` takes long: of a job that has succeeded since, it is
-- null anyway.
with failed as materialized (
    select d.job_type, d.timezone, d.id as definition_id, e.*,
           count(*) over (partition by d.id, e.is_dead) as of_kind
    from yamlsched.job_definitions d
    cross join lateral (
        (select r.id, r.status, coalesce(r.error_type, '') as error_type, r.locked_by,
                r.dead_at as failed_at, true as is_dead
         from yamlsched.job_runs r
         where r.definition_id = d.id and r.dead_at >= %(since)s and r.dead_at < %(until)s
         order by r.dead_at desc limit %(of_job)s)
        union all
        (select r.id, r.status, coalesce(r.error_type, ''), r.locked_by, r.failed_at, false
         from yamlsched.job_runs r
         where not %(only_dead)s and r.definition_id = d.id and r.failed_at >= %(since)s
           and (r.dead_at is null or r.dead_at >= %(until)s)
         order by r.failed_at desc limit %(of_job)s)
    ) e
    where d.namespace = %(namespace)s
      and (%(definitions)s::bigint[] is null or d.id = any (%(definitions)s))
    order by count(*) over (partition by d.id) desc, d.id limit %(limit)s
), counted as (
    select x.*, coalesce(f.first_at, x.failed_at) as first_at, f.attempts,
           coalesce(f.last_at, x.failed_at) as last_at,
           reverse(split_part(reverse(x.locked_by), ':', 3)) as host,
           max(x.of_kind) over (partition by x.definition_id) as examined,
           count(*) over () as total
    from failed x
    cross join lateral (
        select count(*) as attempts, min(f.failed_at) as first_at, max(f.failed_at) as last_at
        from yamlsched.job_failures f where not %(only_dead)s and f.run_id = x.id
          and f.failed_at >= %(since)s and f.failed_at < %(until)s
    ) f
), grouped as (
    select x.job_type, x.timezone, x.error_type, count(*) as runs,
           count(*) filter (where x.status = 'dead') as dead,
           count(*) filter (where x.status in ('queued', 'running', 'failed')) as failing,
           count(*) filter (where x.status = 'succeeded') as recovered,
           sum(greatest(x.attempts, 1))::integer as attempts, min(x.first_at) as first_at,
           max(x.last_at) as last_at, max(x.examined) as examined, max(x.total) as total,
           (array_agg(x.id order by x.status = 'dead' desc, x.status in ('succeeded', 'cancelled'),
                      x.last_at desc, x.id desc))[1] as example_id,
           array_remove((array_agg(distinct x.host))[:4], null) as hosts
    from counted x
    where x.is_dead or x.attempts > 0 or x.failed_at < %(until)s
    group by x.job_type, x.timezone, x.definition_id, x.error_type
)
select g.*, r.idempotency_key as example_key, r.last_error as example_error,
       case when (select x.id from yamlsched.job_runs x
           where x.definition_id = r.definition_id and x.finished_at > g.last_at
             and x.status = 'succeeded' order by x.finished_at limit 1) is null
           then yamlsched.what_changed(r.definition_id) end as changed
from grouped g join yamlsched.job_runs r on r.id = g.example_id
order by g.last_at desc, g.job_type, g.error_type;

-- name: attempts
-- Failed attempts since an instant by job and the type of their error, and `by_hour`. Of each job,
-- the runs that failed last are read, at most `of_job`.
select d.job_type, coalesce(f.error_type, '') as error_type, count(*) as attempts,
       date_trunc('hour', case when %(by_hour)s then f.failed_at end) as hour
from yamlsched.job_definitions d
cross join lateral (
    select r.id
    from yamlsched.job_runs r
    where r.definition_id = d.id and r.failed_at >= %(since)s
    order by r.failed_at desc
    limit %(of_job)s
) failed
join yamlsched.job_failures f on f.run_id = failed.id and f.failed_at >= %(since)s
where d.namespace = %(namespace)s
group by d.job_type, coalesce(f.error_type, ''), hour
order by d.job_type, attempts desc, error_type;

-- name: by_hour
-- Dead runs by the hour in which they died, the latest first, with the job and the type of error
-- that most of them have. The `limit` that died last are read: `examined`, with other types.
select date_trunc('hour', r.dead_at) as at, count(*) as runs,
       count(distinct r.definition_id) as jobs,
       mode() within group (order by d.job_type) as job_type,
       mode() within group (order by r.error_type) as error_type,
       max(r.examined) as examined
from (
    select l.dead_at, l.definition_id, coalesce(l.error_type, '') as error_type,
           count(*) over () as examined
    from (
        select x.*
        from yamlsched.job_runs x
        where x.namespace = %(namespace)s and x.dead_at >= %(since)s
          and (%(definitions)s::bigint[] is null or x.definition_id = any (%(definitions)s))
        order by x.dead_at desc
        limit %(limit)s
    ) l
) r
join yamlsched.job_definitions d on d.id = r.definition_id
where %(error_type)s::text is null or r.error_type = %(error_type)s
group by 1
order by 1 desc;
