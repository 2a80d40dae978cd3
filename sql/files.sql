-- name: glance
-- The one statement of an idle tick: says which file this host presents, and answers what there is to do. A file
-- that no tick has read yet has no namespace: then nothing is written, and every answer is null.
-- What is due is found by index; the probes are scalar subqueries, which no plan can turn into a scan of the table.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), known as materialized (
    select f.namespace
    from yamlsched.schedule_files f
    where f.hash = %(hash)s and f.environment = %(environment)s
    limit 1
), presented as (
    insert into yamlsched.schedule_files as f
        (namespace, hash, environment, host, path, yamlsched_version, tzdata_version,
         first_presented_at, presented_since_at, last_presented_at)
    select k.namespace, %(hash)s, %(environment)s, %(host)s, %(path)s, %(yamlsched_version)s, %(tzdata_version)s,
           c.now, s.since, c.now
    from known k
    cross join clock c
    cross join lateral (
        select coalesce(min(p.presented_since_at), c.now) as since
        from yamlsched.schedule_files p
        where p.hash = %(hash)s and p.namespace = k.namespace and p.environment = %(environment)s
          and p.last_presented_at > c.now - interval '5 minutes'
    ) s
    on conflict (namespace, hash, environment, host, path) do update
    set last_presented_at = excluded.last_presented_at, presented_since_at = excluded.presented_since_at,
        refused_at = null, mistakes = null
    returning f.id
)
select (select max(m.version) from yamlsched.migrations m) as version,
       c.now,
       k.namespace,
       i.hash as in_force_hash,
       i.environment as in_force_environment,
       i.yamlsched_version as in_force_yamlsched,
       i.tzdata_version as in_force_tzdata,
       coalesce((
           select true
           from yamlsched.job_definitions d
           where d.namespace = k.namespace
             and d.next_slot_at <= c.now
             and (d.overlap <> 'wait' or (
                 select r.id
                 from yamlsched.job_runs r
                 where r.namespace = d.namespace and r.definition_id = d.id and r.finished_at is null and r.exclusive
                 order by r.run_at, r.id
                 limit 1
             ) is null)
           order by d.next_slot_at
           limit 1
       ), false) as has_due_jobs,
       coalesce((
           select true
           from yamlsched.job_runs r
           where r.namespace = k.namespace and r.finished_at is null and not r.exclusive
             and r.run_at <= c.now
             and (r.status <> 'running' or r.locked_until < c.now)
           order by r.run_at, r.id
           limit 1
       ), (
           select true
           from yamlsched.job_runs r
           where r.namespace = k.namespace and r.finished_at is null and r.exclusive
             and r.run_at <= c.now
             and (r.status <> 'running' or r.locked_until < c.now)
           order by r.definition_id, r.run_at, r.id
           limit 1
       ), false) as has_claimable_runs,
       coalesce(i.id is not null and coalesce(i.housekept_at <= c.now - interval '5 minutes', true), false)
           as needs_housekeeping
from clock c
left join known k on true
left join lateral (
    select f.id, f.hash, f.environment, f.yamlsched_version, f.tzdata_version, f.housekept_at
    from yamlsched.schedule_files f
    where f.namespace = k.namespace and f.applied_at is not null
    order by f.applied_at desc, f.id desc
    limit 1
) i on true;

-- name: limit_waits
-- For the rest of the transaction.
select set_config('lock_timeout', %(wait)s, true);

-- name: register
insert into yamlsched.namespaces (namespace) values (%(namespace)s) on conflict do nothing;

-- name: lock
-- Who applies a file to this namespace, or decides whether to, waits here for whoever is doing so. A row, because an
-- advisory lock can be held by every login.
select n.namespace from yamlsched.namespaces n where n.namespace = %(namespace)s for update;

-- name: present
-- A file that was read and found sound. That hosts presented it without a break of 5 minutes holds for all of them
-- together: containers have a new name every minute.
insert into yamlsched.schedule_files as f
    (namespace, hash, environment, host, path, yamlsched_version, tzdata_version,
     first_presented_at, presented_since_at, last_presented_at)
select %(namespace)s, %(hash)s, %(environment)s, %(host)s, %(path)s, %(yamlsched_version)s, %(tzdata_version)s,
       c.now, s.since, c.now
from (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c
cross join lateral (
    select coalesce(min(p.presented_since_at), c.now) as since
    from yamlsched.schedule_files p
    where p.hash = %(hash)s and p.namespace = %(namespace)s and p.environment = %(environment)s
      and p.last_presented_at > c.now - interval '5 minutes'
) s
on conflict (namespace, hash, environment, host, path) do update
set last_presented_at = excluded.last_presented_at, presented_since_at = excluded.presented_since_at,
    refused_at = null, mistakes = null;

-- name: stand_in
-- A host whose file cannot be read goes on presenting the one that it presented last, with a mark if it has mistakes.
update yamlsched.schedule_files f
set last_presented_at = c.now,
    refused_at = case when %(mistakes)s::integer is null then f.refused_at else coalesce(f.refused_at, c.now) end,
    mistakes = coalesce(%(mistakes)s, f.mistakes),
    presented_since_at = case when f.last_presented_at > c.now - interval '5 minutes' then f.presented_since_at else c.now end
from (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c
where f.id = (
    select p.id
    from yamlsched.schedule_files p
    where p.host = %(host)s and p.path = %(path)s
    order by p.last_presented_at desc, p.id desc
    limit 1
)
returning f.namespace;

-- name: standing
-- What decides whether a file is applied: the one in force, since when ours is presented and when it was applied, and
-- the newest presentation of a file that was applied after ours.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), ours as materialized (
    select max(f.applied_at) as applied_at, min(f.presented_since_at) filter (where f.last_presented_at > c.now - interval '5 minutes') as since
    from yamlsched.schedule_files f
    cross join clock c
    where f.hash = %(hash)s and f.namespace = %(namespace)s and f.environment = %(environment)s
)
select c.now,
       o.applied_at,
       coalesce(o.since, c.now) as presented_since_at,
       i.id as in_force_id,
       i.hash as in_force_hash,
       i.environment as in_force_environment,
       i.host as in_force_host,
       i.path as in_force_path,
       i.applied_at as in_force_since,
       i.yamlsched_version as in_force_yamlsched,
       i.tzdata_version as in_force_tzdata,
       (select max(f.last_presented_at)
        from yamlsched.schedule_files f
        where f.namespace = %(namespace)s
          and f.last_presented_at > c.now - interval '5 minutes'
          and (f.hash, f.environment) in (
              select g.hash, g.environment
              from yamlsched.schedule_files g
              where g.namespace = %(namespace)s and (g.applied_at > o.applied_at or g.id = i.id)
          )
          and (f.hash, f.environment) <> (%(hash)s, %(environment)s)) as newer_presented_at
from clock c
cross join ours o
left join lateral (
    select f.id, f.hash, f.environment, f.host, f.path, f.applied_at, f.yamlsched_version, f.tzdata_version
    from yamlsched.schedule_files f
    where f.namespace = %(namespace)s and f.applied_at is not null
    order by f.applied_at desc, f.id desc
    limit 1
) i on true;

-- name: applied
-- From here on this file is the one in force.
update yamlsched.schedule_files f
set applied_at = %(now)s,
    yamlsched_version = %(yamlsched_version)s,
    tzdata_version = %(tzdata_version)s,
    retention = %(retention)s
where f.namespace = %(namespace)s and f.hash = %(hash)s and f.environment = %(environment)s
  and f.host = %(host)s and f.path = %(path)s;

-- name: renewed
-- The file in force was applied again, by a newer yamlsched or with newer time zone data. It stays in force since when
-- it was.
update yamlsched.schedule_files f
set yamlsched_version = %(yamlsched_version)s, tzdata_version = %(tzdata_version)s
where f.id = %(id)s;

-- name: forget
-- A container has a new name every minute: what it presented is only news. Files that were applied are remembered.
delete from yamlsched.schedule_files f
where f.namespace = %(namespace)s
  and f.applied_at is null
  and f.last_presented_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - interval '1 day';
