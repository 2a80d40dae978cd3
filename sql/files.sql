-- name: poll
-- The one statement of an idle tick: it records which file this host presents, and returns what
-- there is to do. A file that no tick has read yet has no namespace: then nothing is written, and
-- the rest is null. A sync that has read such a file passes its namespace.
--
-- A file is presented without a break as long as any host presents it: containers have a new name
-- every minute. A presentation counts for 5 minutes, or for twice the time since the previous one
-- if that is longer: that of this host and path, else (a new name) that of this file within an
-- hour. A file in force is kept in force by that for 2 hours at most.
--
-- The namespace is that of the file, or one that --namespace sets. A place (host, path and
-- environment; for a new environment, host and path) remembers its namespace: with another one, by
-- an option that was set or left out, nothing is written before an operator's sync that names it
-- (moves). other_namespace is the remembered one then.
--
-- Due jobs and runs are found by index; the probes are scalar subqueries, which no plan can turn
-- into a table scan.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), known as materialized (
    select coalesce(%(namespace)s::text, (
        select f.namespace
        from yamlsched.schedule_files f
        where f.hash = %(hash)s and f.environment = %(environment)s
          and case when %(namespace_override)s::text is null then not f.overrides_namespace
                   else f.namespace = %(namespace_override)s::text end
        limit 1
    )) as namespace
), elsewhere as materialized (
    select p.namespace
    from known k
    cross join lateral (
        select f.namespace, f.overrides_namespace
        from yamlsched.schedule_files f
        where f.host = %(host)s and f.path = %(path)s
        order by (f.environment = %(environment)s) desc, f.last_presented_at desc, f.id desc
        limit 1
    ) p
    where (p.overrides_namespace or %(namespace_override)s::text is not null)
      and p.namespace <> coalesce(%(namespace_override)s::text, k.namespace)
), presented as (
    insert into yamlsched.schedule_files as f
        (namespace, hash, environment, host, path, overrides_namespace, yamlsched_version,
            tzdata_version,
         host_tzdata_version, first_presented_at, presented_since_at, last_presented_at,
         presented_for)
    select k.namespace, %(hash)s, %(environment)s, %(host)s, %(path)s,
           %(namespace_override)s::text is not null,
           %(yamlsched_version)s, %(tzdata_version)s, %(tzdata_version)s, c.now, s.since, c.now,
           greatest(interval '5 minutes',
                    case when not %(by_hand)s then 2 * coalesce(c.now - p.last, s.last) end)
    from known k
    cross join clock c
    cross join lateral (
        select coalesce(min(f.presented_since_at) filter (where f.last_presented_at
            + f.presented_for > c.now), c.now)
                   as since,
               c.now - max(f.last_presented_at) filter (where f.last_presented_at > c.now
                   - interval '1 hour') as last
        from yamlsched.schedule_files f
        where f.hash = %(hash)s and f.namespace = k.namespace and f.environment = %(environment)s
    ) s
    cross join lateral (
        select max(f.last_presented_at) as last
        from yamlsched.schedule_files f
        where f.host = %(host)s and f.path = %(path)s and f.environment = %(environment)s
    ) p
    where k.namespace is not null and (%(moves)s or not exists (select from elsewhere))
    on conflict (namespace, hash, environment, host, path) do update
    set overrides_namespace = excluded.overrides_namespace,
        last_presented_at = excluded.last_presented_at,
        presented_since_at = excluded.presented_since_at,
        presented_for = greatest(excluded.presented_for,
                                 f.last_presented_at + f.presented_for
                                     - excluded.last_presented_at),
        host_tzdata_version = excluded.host_tzdata_version,
        refused_at = null, mistakes = null, errors = null
    returning f.id
)
select (select jsonb_object_agg(m.version, m.checksum) from yamlsched.migrations m) as checksums,
       c.now, k.namespace, i.hash as in_force_hash, i.environment as in_force_environment,
       i.yamlsched_version as in_force_yamlsched, i.tzdata_version as in_force_tzdata,
       coalesce((
           select true
           from yamlsched.job_definitions d
           where d.namespace = k.namespace
             and d.next_slot_at <= c.now
             and (d.overlap <> 'wait' or d.after <> '{}' or (
                 select r.id from yamlsched.job_runs r
                 where r.namespace = d.namespace and r.definition_id = d.id
                   and r.finished_at is null and r.exclusive
                 order by r.priority, r.run_at, r.id limit 1) is null)
           order by d.next_slot_at limit 1
       ), false) as has_due_jobs,
       coalesce((
           select true
           from yamlsched.queue_levels(k.namespace) e       -- so that the index bounds run_at
           cross join lateral (
               select r.id
               from yamlsched.job_runs r
               where r.namespace = k.namespace and r.queue = e.queue and r.priority = e.priority
                 and r.blocked_on is null
                 and r.finished_at is null and r.run_at <= c.now
                 and yamlsched.has_no_worker(r, c.now)
               order by r.run_at, r.id limit 1) r
           limit 1
       ), (
           select true
           from yamlsched.job_runs r
           where r.namespace = k.namespace and r.blocked_on is not null
             and r.finished_at is null and r.run_at <= c.now
           order by r.namespace, r.blocked_on, r.priority, r.run_at, r.id limit 1
       ), (
           select true
           from yamlsched.permits p
           where p.namespace = k.namespace
           order by p.namespace, p.name, p.n limit 1
       ), false) as has_claimable_runs,
       coalesce(i.id is not null and coalesce(i.housekept_at <= c.now - i.pause, true),
           false) as needs_housekeeping,
       (select e.namespace from elsewhere e) as other_namespace,
       yamlsched.messages_due(k.namespace, c.now) as messages_due,
       coalesce((
           select true      -- a deletion, or a partial restore: the number is in the file
           from yamlsched.job_definitions d
           where d.namespace = k.namespace and d.limit_name is not null and d.retired_at is null
             and (select g.capacity from yamlsched.gates g
                  where g.namespace = d.namespace and g.name = 'limit/' || d.limit_name) is null
           order by d.namespace, d.limit_name limit 1
       ), false) as has_lost_limits,
       pg_catalog.row_security_active('yamlsched.job_runs')
         or pg_catalog.row_security_active('yamlsched.migrations')
       or pg_catalog.row_security_active('yamlsched.job_definitions')
       or pg_catalog.row_security_active('yamlsched.schedule_files') as is_hidden
from clock c
cross join known k
left join lateral (
    select f.id, f.hash, f.environment, f.yamlsched_version, f.tzdata_version, f.housekept_at,
           -- an archive gets a file each time
           case when f.retention ? 'archive' then interval '1 hour'
               else interval '5 minutes' end as pause
    from yamlsched.schedule_files f
    where f.namespace = k.namespace and f.applied_at is not null
    order by f.applied_at desc, f.id desc
    limit 1
) i on true;

-- name: set_lock_timeout
-- For the rest of the transaction.
select set_config('lock_timeout', %(timeout)s, true);

-- name: register
insert into yamlsched.namespaces (namespace) values (%(namespace)s) on conflict do nothing;

-- name: lock_namespace
-- One session at a time applies a file to a namespace, or decides whether to. A row lock, because
-- any login can hold an advisory lock.
select n.namespace from yamlsched.namespaces n where n.namespace = %(namespace)s for update;

-- name: keep_presenting
-- A host whose file cannot be read, or is refused, continues to present the file that it presented
-- last, with a mark if its file has errors. A host with a new name (a container) presents the file
-- of its path that was applied last: in the namespace of its file, or, if that is unknown, in the
-- one to which all files of that path belong. With errors in the first file of a new path, that is
-- the file in force: else the host would appear nowhere. A place that remembers another namespace
-- than that of --namespace, or than the file's without it, presents nothing.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), own as materialized (
    select p.id
    from yamlsched.schedule_files p
    where p.host = %(host)s and p.path = %(path)s and p.environment = %(environment)s
      and case when %(namespace_override)s::text is null then not p.overrides_namespace
               else p.namespace = %(namespace_override)s::text end
    order by p.last_presented_at desc, p.id desc
    limit 1
), other as materialized (
    select p.namespace, p.hash
    from yamlsched.schedule_files p
    where not exists (select from own)
      and not exists (  -- a place that remembers another namespace
          select
          from yamlsched.schedule_files q
          where q.host = %(host)s and q.path = %(path)s
            and (q.overrides_namespace or %(namespace_override)s::text is not null))
      and p.overrides_namespace = (%(namespace_override)s::text is not null)
      and (p.path = %(path)s or %(mistakes)s::integer is not null
          and %(namespace)s::text is not null) and p.environment = %(environment)s
      and case when %(namespace)s::text is not null then p.namespace = %(namespace)s::text
               else not exists (
                   select from yamlsched.schedule_files q
                   where q.path = p.path and q.environment = p.environment
                     and q.namespace <> p.namespace
                     and not q.overrides_namespace) end
    order by p.path = %(path)s desc,
             (select max(a.applied_at) from yamlsched.schedule_files a
              where a.namespace = p.namespace and a.hash = p.hash
                and a.environment = p.environment) desc nulls last,
             p.last_presented_at desc
    limit 1
), renewed as (
    update yamlsched.schedule_files f
    set last_presented_at = c.now,
        refused_at = case when %(mistakes)s::integer is null then f.refused_at
            else coalesce(f.refused_at, c.now) end,
        mistakes = coalesce(%(mistakes)s, f.mistakes),
        errors = case when %(mistakes)s::integer is null then f.errors else %(errors)s::text[] end,
        presented_since_at =
            case when f.last_presented_at + f.presented_for > c.now then f.presented_since_at
                else c.now end,
        presented_for = greatest(interval '5 minutes',
            f.last_presented_at + f.presented_for - c.now,
                                 case when not %(by_hand)s
                                     then 2 * (c.now - f.last_presented_at) end),
        host_tzdata_version = %(tzdata_version)s
    from clock c
    where f.id = (select o.id from own o)
    returning f.namespace
), added as (
    insert into yamlsched.schedule_files as f
        (namespace, hash, environment, host, path, overrides_namespace, yamlsched_version,
            tzdata_version,
         host_tzdata_version, first_presented_at, presented_since_at, last_presented_at,
         refused_at, mistakes, errors)
    select o.namespace, o.hash, %(environment)s, %(host)s, %(path)s,
           %(namespace_override)s::text is not null,
           %(yamlsched_version)s, %(tzdata_version)s, %(tzdata_version)s, c.now,
           (select coalesce(min(p.presented_since_at), c.now)
            from yamlsched.schedule_files p
            where p.hash = o.hash and p.namespace = o.namespace and p.environment = %(environment)s
              and p.last_presented_at + p.presented_for > c.now),
           c.now, case when %(mistakes)s::integer is not null then c.now end, %(mistakes)s::integer,
           case when %(mistakes)s::integer is not null then %(errors)s::text[] end
    from other o
    cross join clock c
    on conflict (namespace, hash, environment, host, path) do update
    set last_presented_at = excluded.last_presented_at
    returning f.namespace
)
select r.namespace from renewed r
union all
select a.namespace from added a;

-- name: state
-- What decides whether a file is applied: the file in force; since when this one is presented and
-- when it was applied; and of the files that were applied after it, when one was last presented and
-- whether one still is. A host presents only the file of its latest tick.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), this_file as materialized (
    select max(f.applied_at) as applied_at,
           min(f.presented_since_at) filter (where f.last_presented_at + f.presented_for > c.now)
               as since
    from yamlsched.schedule_files f
    cross join clock c
    where f.hash = %(hash)s and f.namespace = %(namespace)s and f.environment = %(environment)s
)
select c.now, o.applied_at, coalesce(o.since, c.now) as presented_since_at,
       i.id as in_force_id, i.hash as in_force_hash, i.environment as in_force_environment,
       i.host as in_force_host,
       i.path as in_force_path, i.applied_at as in_force_since,
       i.yamlsched_version as in_force_yamlsched,
       i.tzdata_version as in_force_tzdata,
       n.last_at as newer_presented_at, coalesce(n.is_presented, false) as is_newer_presented,
       %(namespace)s::text as namespace,
       %(namespace_override)s::text is not null as overrides_namespace,
       (select p.namespace
        from (
            select f.namespace, f.overrides_namespace
            from yamlsched.schedule_files f
            where f.host = %(host)s and f.path = %(path)s
            order by (f.environment = %(environment)s) desc, f.last_presented_at desc, f.id desc
            limit 1
        ) p
        where (p.overrides_namespace or %(namespace_override)s::text is not null)
          and p.namespace <> %(namespace)s::text) as other_namespace
from clock c
cross join this_file o
left join yamlsched.files_in_force i on i.namespace = %(namespace)s
cross join lateral (
    select max(f.last_presented_at) as last_at,
           bool_or(f.last_presented_at + least(f.presented_for, interval '2 hours') > c.now
               and not exists (
               select from yamlsched.schedule_files g
               where g.host = f.host and g.path = f.path and g.environment = f.environment
                 and (g.last_presented_at, g.id) > (f.last_presented_at, f.id))) as is_presented
    from yamlsched.schedule_files f
    where f.namespace = %(namespace)s
      and (f.hash, f.environment) in (
          select g.hash, g.environment
          from yamlsched.schedule_files g
          where g.namespace = %(namespace)s and (g.applied_at > o.applied_at or g.id = i.id)
      )
      and (f.hash, f.environment) <> (%(hash)s, %(environment)s)
) n;

-- name: tzdata_in_use
-- The time zone data with which the next slots were computed, and that of each host that presents a
-- file.
select (select i.tzdata_version from yamlsched.files_in_force i
    where i.namespace = %(namespace)s) as in_force,
       array(select distinct f.host_tzdata_version
             from yamlsched.schedule_files f
             where f.namespace = %(namespace)s
               and f.last_presented_at + least(f.presented_for, interval '2 hours')
                   > coalesce(%(now)s::timestamptz, clock_timestamp())) as presented;

-- name: environment_in_force
-- Empty without a file in force, and for a file without an environment.
select coalesce(max(i.environment), '') as environment from yamlsched.files_in_force i
where i.namespace = %(namespace)s;

-- name: mark_applied
-- From now on this file is in force.
update yamlsched.schedule_files f
set applied_at = %(now)s,
    yamlsched_version = %(yamlsched_version)s,
    tzdata_version = %(tzdata_version)s,
    retention = %(retention)s
where f.namespace = %(namespace)s and f.hash = %(hash)s and f.environment = %(environment)s
  and f.host = %(host)s and f.path = %(path)s;

-- name: mark_renewed
-- The file in force was applied again, by a newer yamlsched or with newer time zone data. The start
-- of its time in force does not change.
update yamlsched.schedule_files f
set yamlsched_version = %(yamlsched_version)s, tzdata_version = %(tzdata_version)s
where f.id = %(id)s;

-- name: prune_unapplied
-- Containers have a new name every minute: what they presented matters for a day. Files that were
-- applied are kept.
delete from yamlsched.schedule_files f
where f.namespace = %(namespace)s
  and f.applied_at is null
  and f.last_presented_at < coalesce(%(now)s::timestamptz, clock_timestamp()) - interval '1 day';
