-- Places, which are a host and the path of its file, and the file in use. See docs/catchup.md.

-- name: poll
-- The one statement of an idle tick: it writes which file this place has, and returns what decides
-- about the file (sync/in_use.py) and what there is to do. Without a namespace the file was never
-- read: then nothing is written, and the rest is null. The same bytes name the same namespace.
with clock as materialized (
    select :now as now
), known as materialized (
    select coalesce(%(namespace)s::text, (
        select h.namespace from yamlsched.hosts h
        where h.hash = %(hash)s and not h.is_named
        order by h.seen_at desc limit 1)) as namespace
)
select (select jsonb_object_agg(m.version, m.checksum) from yamlsched.migrations m) as checksums,
       c.now, k.namespace, i.hash as in_use_hash, i.environment as in_use_environment,
       i.yamlsched_version as in_use_yamlsched, i.tzdata_version as in_use_tzdata,
       i.host as in_use_host, i.path as in_use_path, i.applied_at as in_use_since,
       array(select jsonb_object_keys(i.queues)) as queues,
       f.was_in_use, f.had_file, f.has_file_since, f.others, f.other_tzdata, f.other_namespace,
       w.has_due_jobs, w.has_claimable_runs, w.has_lost_limits, w.messages_due,
       coalesce(i.hash is not null and coalesce(i.housekept_at <= c.now - case
           -- an archive gets a file each time
           when i.retention ? 'archive' then interval '1 hour' else interval '5 minutes' end,
           true), false) as needs_housekeeping
from clock c
cross join known k
left join yamlsched.namespaces i on i.namespace = k.namespace
cross join lateral yamlsched.report_file(
    jsonb_populate_record(null::yamlsched.hosts, jsonb_build_object(
        'namespace', k.namespace, 'host', %(host)s::text, 'path', %(path)s::text,
        'is_named', %(is_named)s::boolean, 'hash', %(hash)s::text,
        'environment', %(environment)s::text, 'yamlsched_version', %(yamlsched_version)s::text,
        'tzdata_version', %(tzdata_version)s::text, 'errors', %(errors)s::text[],
        'queues', %(queues)s::text[], 'include', %(include)s::text[])),
    %(is_valid)s, %(by_hand)s, %(writes)s and k.namespace is not null, c.now) f
cross join lateral yamlsched.due_work(k.namespace, c.now) w;

-- name: patterns
-- The patterns of the file that a place had at its latest tick: what an idle tick has to read.
select h.include from yamlsched.hosts h
where h.host = %(host)s and h.path = %(path)s
order by h.seen_at desc limit 1;

-- name: set_lock_timeout
-- For the rest of the transaction.
select set_config('lock_timeout', %(timeout)s, true);

-- name: lock_namespace
-- One session at a time applies a file to a namespace, or decides whether to. A row lock, because
-- any login can hold an advisory lock; the update writes nothing new.
insert into yamlsched.namespaces (namespace) values (%(namespace)s)
on conflict (namespace) do update set namespace = excluded.namespace;

-- name: namespace_of_refused
-- The namespace of a place whose file is not valid: the one that it had, or that of the file, or,
-- if it cannot be read, the one to which alone files of its path belong.
select coalesce((
    select h.namespace from yamlsched.hosts h
    where h.host = %(host)s and h.path = %(path)s and not h.is_named
    order by h.seen_at desc limit 1
), %(namespace)s::text, (
    select min(h.namespace) from yamlsched.hosts h
    where h.path = %(path)s and not h.is_named
    having min(h.namespace) = max(h.namespace))) as namespace;

-- name: use
-- From now on this file of this place is in use.
with former as (
    update yamlsched.files f
    set last_used_at = %(now)s
    from yamlsched.namespaces n
    where n.namespace = %(namespace)s and f.namespace = n.namespace and f.hash = n.hash
      and f.environment = n.environment
      and (f.hash, f.environment) <> (%(hash)s, %(environment)s)
), used as (
    insert into yamlsched.files as f (namespace, hash, environment, last_used_at)
    values (%(namespace)s, %(hash)s, %(environment)s, %(now)s)
    on conflict (namespace, hash, environment) do update set last_used_at = excluded.last_used_at
), place as (
    update yamlsched.hosts h
    set hash = %(hash)s, environment = %(environment)s, refused_hash = null, refused_at = null,
        errors = null, since = case when h.hash = %(hash)s then h.since else %(now)s end
    where h.host = %(host)s and h.path = %(path)s and h.namespace = %(namespace)s
)
update yamlsched.namespaces n
set hash = %(hash)s, environment = %(environment)s, yamlsched_version = %(yamlsched_version)s,
    tzdata_version = %(tzdata_version)s, host = %(host)s, path = %(path)s, commit = %(commit)s,
    applied_at = %(now)s, retention = %(retention)s, queues = %(queues)s
where n.namespace = %(namespace)s;

-- name: renew
-- The file in use was applied again, by a newer release or with newer time zone data.
update yamlsched.namespaces n
set yamlsched_version = %(yamlsched_version)s, tzdata_version = %(tzdata_version)s
where n.namespace = %(namespace)s;

-- name: leave
-- An operator has named the namespace of this place: it leaves the one that its file names.
delete from yamlsched.hosts h
where h.host = %(host)s and h.path = %(path)s and not h.is_named and h.namespace <> %(namespace)s
returning h.namespace;

-- name: store_cannot_start
-- Replace what this place cannot start of these jobs, and return those that are new.
with clock as materialized (
    select :now as now
), former as materialized (
    select h.cannot_start as jobs
    from yamlsched.hosts h
    where h.host = %(host)s and h.path = %(path)s and h.namespace = %(namespace)s
), found as materialized (
    select g.name, f.jobs -> g.name -> 'since' is null as is_new,
           jsonb_build_object('reason', g.reason, 'since',
               coalesce(f.jobs -> g.name ->> 'since', c.now::text)) as why
    from clock c
    left join former f on true
    cross join unnest(%(names)s::text[], %(reasons)s::text[]) as g (name, reason)
), written as (
    update yamlsched.hosts h
    set cannot_start = h.cannot_start - %(jobs)s::text[] || a.jobs
    from (select coalesce(jsonb_object_agg(n.name, n.why), '{}') as jobs from found n) a
    where h.host = %(host)s and h.path = %(path)s and h.namespace = %(namespace)s
      and h.cannot_start <> h.cannot_start - %(jobs)s::text[] || a.jobs
)
select n.name from found n where n.is_new order by n.name;

-- name: prune
-- Places that have not ticked for 7 days, or, if the name ticked only once (a container), for 2
-- hours; and files that were in use 400 days ago.
with clock as materialized (
    select :now as now
), forgotten as (
    delete from yamlsched.files f
    using clock c
    where f.namespace = %(namespace)s and f.last_used_at < c.now - interval '400 days'
      and not exists (
          select from yamlsched.namespaces n
          where n.namespace = f.namespace and n.hash = f.hash and n.environment = f.environment)
)
delete from yamlsched.hosts h
using clock c
where h.namespace = %(namespace)s and (h.seen_at < c.now - interval '7 days'
    or h.first_seen_at = h.seen_at and h.seen_at < c.now - interval '2 hours');

-- name: places
-- The places of a namespace: those that count first, then those that ticked last. used_until: the
-- file was in use until then.
select h.namespace, h.host, h.path, h.is_named, h.hash, h.environment, h.yamlsched_version,
       h.since, h.refused_at, coalesce(h.errors, '{}') as errors, h.seen_at,
       h.expected_until > :now as counts,
       coalesce(h.hash = n.hash, false) as has_file_in_use, f.last_used_at as used_until,
       case when h.refused_at is not null and n.environment <> h.environment
                then 'other environment'
            when h.refused_at is not null then 'refused'
            when h.hash = n.hash then 'in use'
            when f.hash is not null then 'superseded'
            else 'to be applied' end as state
from yamlsched.hosts h
left join yamlsched.namespaces n on n.namespace = h.namespace and n.hash is not null
left join yamlsched.files f on f.namespace = h.namespace and f.hash = h.hash
  and f.environment = h.environment
where h.namespace = %(namespace)s
order by counts desc, h.refused_at, h.seen_at desc, h.host, h.path
limit %(limit)s;

-- name: in_use
select n.hash, n.environment, n.yamlsched_version, n.tzdata_version, n.host, n.path, n.applied_at,
       n.retention
from yamlsched.namespaces n
where n.namespace = %(namespace)s and n.hash is not null;

-- name: changed_since
-- How jobs were changed since a file was in use, and the first names. What an operator paused was
-- not changed by a file.
with changed as materialized (
    select d.job_type,
           case when d.retired_at is not null then 'retired'
               when d.created_at >= %(since)s then 'added'
                else 'changed' end as change
    from yamlsched.job_definitions d
    where d.namespace = %(namespace)s
      and (d.applied_at >= %(since)s or d.retired_at >= %(since)s)
      and not (d.created_at >= %(since)s and d.retired_at is not null)
)
select c.change, count(*)::integer as jobs,
       (array_agg(c.job_type order by c.job_type))[:20] as first
from changed c
group by c.change
order by c.change;

-- name: job_counts
-- How many jobs the file in use has, and the time zone that most of those with a cron have.
select count(*)::integer as jobs, count(*) filter (where not d.enabled)::integer as disabled,
       mode() within group (order by d.timezone) filter (where d.schedule is not null) as timezone
from yamlsched.job_definitions d where d.namespace = %(namespace)s and d.retired_at is null;
