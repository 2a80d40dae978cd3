-- What places cannot start: a host, and the path of its schedules.yaml.

-- name: record
-- Replace what this place lacks, and return which of it is new. What places lacked that stopped
-- ticking a week ago is removed: until then it tells which of them could start a job. A place that
-- has not checked for longer than it takes between two of its ticks may have had in the meantime
-- what it lacks: then the time starts again. Rows are locked in one order, and what another session
-- is removing is left to it.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), given as materialized (
    select d.id, d.job_type, g.reason, g.waits
    from unnest(%(names)s::text[], %(reasons)s::text[], %(waits)s::boolean[]) as g (name, reason,
        waits)
    join yamlsched.job_definitions d on d.namespace = %(namespace)s and d.job_type = g.name
), gone as (
    delete from yamlsched.lacks x
    where x.ctid = any (array(
        select l.ctid
        from yamlsched.lacks l
        join yamlsched.job_definitions d on d.id = l.definition_id
        cross join clock c
        where d.namespace = %(namespace)s
          and case when (l.host, l.path) = (%(host)s, %(path)s)
                   then l.definition_id not in (select g.id from given g)
                   else not exists (
                       select from yamlsched.schedule_files f
                       where f.namespace = d.namespace and f.host = l.host and f.path = l.path
                         and f.last_presented_at > c.now - interval '7 days') end
        for update of l skip locked))
), written as (
    insert into yamlsched.lacks as l (definition_id, host, path, reason, waits, since, checked_at)
    select g.id, %(host)s, %(path)s, g.reason, g.waits, c.now, c.now
    from given g
    cross join clock c
    order by g.id
    on conflict (host, path, definition_id) do update
    set reason = excluded.reason, waits = excluded.waits, checked_at = excluded.checked_at,
        since = case when l.waits = excluded.waits and l.checked_at > excluded.checked_at - (
                         select greatest(interval '10 minutes',
                             max(least(f.presented_for, interval '2 hours')))
                         from yamlsched.schedule_files f
                         where f.host = excluded.host and f.path = excluded.path
                           and f.last_presented_at > excluded.checked_at - interval '2 hours')
                     then l.since else excluded.since end
    returning l.definition_id, l.since = l.checked_at as is_new
)
select g.job_type
from written w
join given g on g.id = w.definition_id
where w.is_new
order by g.job_type;

-- name: lacked_everywhere
-- The jobs whose code every place that presents the file in force has lacked for 10 minutes. A
-- place counts only if it has checked since its latest tick: it may have got the code.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), place as materialized (
    select f.host, f.path, f.last_presented_at
    from yamlsched.schedule_files f
    join yamlsched.files_in_force i on i.namespace = f.namespace and i.hash = f.hash
      and i.environment = f.environment
    cross join clock c
    where i.namespace = %(namespace)s
      and f.last_presented_at + least(f.presented_for, interval '2 hours') > c.now
      and f.refused_at is null  -- else it checks, and claims, only what its own file allows
)
select d.job_type
from yamlsched.lacks l
join yamlsched.job_definitions d on d.id = l.definition_id and d.namespace = %(namespace)s
cross join clock c
where (l.host, l.path) = (%(host)s, %(path)s) and not l.waits
  and l.since <= c.now - interval '10 minutes'
  and not exists (
      select from place p
      where (p.host, p.path) <> (%(host)s, %(path)s)
        and not exists (
            select from yamlsched.lacks o
            where o.definition_id = l.definition_id and o.host = p.host and o.path = p.path
              and not o.waits
              and o.since <= c.now - interval '10 minutes'
              and o.checked_at >= p.last_presented_at));
