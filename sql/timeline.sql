-- What happened to a job over time. Every statement reads a bounded number of rows, however many runs have finished.

-- name: days
-- For each given span of a job, the ends of its runs: those that died, those that succeeded after a failed attempt, and
-- whether any succeeded; and why slots were skipped. At most `limit` runs of each kind are read. Calls of on_dead do not
-- count, as in job_health.
select s.nth::integer - 1 as nth,
       dead.runs as dead, tried.retried, tried.retrying,
       coalesce(ended.succeeded, false) as succeeded, coalesce(ended.cancelled, false) as cancelled,
       coalesce(gap.reasons, '{}') as reasons
from unnest(%(jobs)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]) with ordinality as s (job_type, start_at, end_at, nth)
join yamlsched.job_definitions d on d.namespace = %(namespace)s and d.job_type = s.job_type
cross join lateral (
    select count(*)::integer as runs
    from (select from yamlsched.job_runs r
          where r.definition_id = d.id and r.dead_at >= s.start_at and r.dead_at < s.end_at
            and coalesce(r.idempotency_key not like 'on\_dead:%%', true)
          limit %(limit)s) x
) dead
cross join lateral (
    select (count(*) filter (where x.status = 'succeeded'))::integer as retried,
           (count(*) filter (where x.status in ('failed', 'queued', 'running')))::integer as retrying
    from (select r.status from yamlsched.job_runs r
          where r.definition_id = d.id and r.failed_at >= s.start_at and r.failed_at < s.end_at
          limit %(limit)s) x
) tried
cross join lateral (
    select bool_or(x.status = 'succeeded') as succeeded, bool_or(x.status = 'cancelled') as cancelled
    from (select r.status from yamlsched.job_runs r
          where r.definition_id = d.id and r.finished_at >= s.start_at and r.finished_at < s.end_at
          limit %(limit)s) x
) ended
cross join lateral (
    select array_agg(distinct x.reason order by x.reason) as reasons
    from (select g.reason from yamlsched.skipped_slots g
          where g.definition_id = d.id and g.last_slot >= s.start_at and g.first_slot < s.end_at
          order by g.last_slot
          limit %(limit)s) x
) gap
order by s.nth;
