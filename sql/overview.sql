-- Summaries of runs that have ended. Every statement reads a bounded number of runs, however many have finished.

-- name: ended
-- Runs that ended in each hour of a span, and those of them that died. At most `limit` of each are read, job by job
-- through indexes by their end: if there are more, the numbers are of no use.
select b.hour as at, (sum(b.ended))::integer as ended, (sum(b.dead))::integer as dead
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
