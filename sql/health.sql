-- What `status` and the web page show of namespaces. The first column is the namespace.

-- name: clock
select n.namespace, clock_timestamp() as now, latest.seen_at as last_tick_at,
       latest.host as last_tick_host
from unnest(%(namespaces)s::text[]) as n (namespace)
left join lateral (
    select h.seen_at, h.host
    from yamlsched.hosts h
    where h.namespace = n.namespace
    order by h.seen_at desc limit 1
) latest on true;

-- name: jobs
-- Jobs as the view shows them, and the runs of each that died recently. An index is searched for
-- an instant that is computed once: clock_timestamp() would be called for each entry, of the whole
-- history. The columns have the order of JobHealth. After them, the calendars of the job.
select h.*, dead.within, dead.last_hour, dead.last_day, dead.since, died.id, died.last_error,
       died.error_type, failing.id, failing.last_error, failing.error_type,
       failing.attempts - failing.prior_attempts - (failing.status = 'running')::integer,
       failing.max_attempts - failing.prior_attempts,
       (select r.id from yamlsched.job_runs r  -- the dead run of that slot
        where r.definition_id = h.definition_id and r.dead_at is not null
          and r.scheduled_for = h.late_slot
        order by r.dead_at desc limit 1), d.queue,
       case when h.failure_streak > 0 then yamlsched.what_changed(h.definition_id) end,
       d.skip_on, d.only_on
from yamlsched.job_health h
join yamlsched.job_definitions d on d.id = h.definition_id
cross join lateral (
    select count(*) filter (where r.is_recent) as within,
           count(*) filter (
               where r.dead_at > statement_timestamp() - interval '1 hour') as last_hour,
           count(*) filter (where r.is_of_day) as last_day,
           min(r.dead_at) filter (where r.is_recent) as since,
           (array_agg(r.run_id order by r.dead_at desc) filter (where r.is_recent))[1] as run_id
    from (
        select x.run_id, x.dead_at,
               x.dead_at > statement_timestamp() - %(within)s::interval as is_recent,
               x.dead_at > statement_timestamp() - interval '1 day' as is_of_day
        from yamlsched.dead_runs x
        where x.definition_id = h.definition_id
          and x.dead_at > statement_timestamp() - greatest(%(within)s::interval, interval '1 day')
    ) r
) dead
left join yamlsched.job_runs died on died.id = dead.run_id
left join yamlsched.job_runs failing
  on failing.id = case when h.failing > 0 then yamlsched.failing_run(h.definition_id) end
where h.namespace = any(%(namespaces)s)
  and (%(jobs)s::bigint[] is null or h.definition_id = any(%(jobs)s))
order by h.namespace, h.job_type;

-- name: lost_slots
-- Slots of each job that were too old when their runs would have been created, and were recorded as
-- such within `within`.
select d.namespace, d.job_type, sum(g.slots) as slots, min(g.first_slot) as first_slot,
       max(g.last_slot) as last_slot
from yamlsched.job_definitions d
join yamlsched.skipped_slots g on g.definition_id = d.id
where d.namespace = any(%(namespaces)s) and g.reason = 'late'
  and g.recorded_at > statement_timestamp() - %(within)s::interval
group by d.namespace, d.job_type
order by d.namespace, d.job_type;

-- name: unwritten
-- Jobs whose due slots the last sync could not write, with the error.
select d.namespace, d.job_type, d.slots_error as error
from yamlsched.job_definitions d
where d.namespace = any (%(namespaces)s) and d.slots_error is not null and d.enabled
  and d.retired_at is null
order by d.job_type limit %(limit)s;

-- name: limits
-- The limits for which runs wait, in words: the first twenty. Of one that counts values the first
-- of them, and how many more there are.
select n.namespace, yamlsched.limit_line(n.namespace, f.gate) || case
           when f.gates > 1 then format('; so do runs for %%s more values', f.gates - 1) else '' end
       as waits
from unnest(%(namespaces)s::text[]) as n (namespace)
cross join lateral (
    select min(g.name) as gate, count(*) as gates
    from yamlsched.waited_for(n.namespace) g
    where g.name like 'limit/%%'
    group by split_part(g.name, '/', 2)) f
order by n.namespace, f.gate limit 20;

-- name: held_up
-- The jobs with runs that wait, directly or through others, for a run that is dead or cancelled:
-- how many runs, and that run. Of the first thousand runs that wait for jobs that they follow.
with recursive waiting as materialized (
    select r.id
    from yamlsched.job_runs r
    where r.namespace = any (%(namespaces)s) and r.unreleased and r.finished_at is null
    order by r.run_at, r.id
    limit 1000
), edge as materialized (
    select w.id, u.run_id as upstream_id, u.state
    from waiting w
    join yamlsched.awaits a on a.run_id = w.id and a.outcome is null
    cross join lateral yamlsched.awaited(a, clock_timestamp()) u
    where u.state in ('waiting', 'dead', 'cancelled')
), chain as (
    select e.id, e.upstream_id, e.state from edge e
    union
    select c.id, e.upstream_id, e.state from chain c join edge e on e.id = c.upstream_id
    where c.state = 'waiting'
)
select r.namespace, r.job_type, root.job_type as upstream, root.id as run_id, root.status,
       root.finished_at as ended_at, count(*) as runs
from chain c
join yamlsched.job_runs r on r.id = c.id
join yamlsched.job_runs root on root.id = c.upstream_id
where c.state in ('dead', 'cancelled')
group by r.namespace, r.job_type, root.id
order by root.finished_at, root.id, r.job_type;

-- name: stuck
select s.namespace, s.run_id, s.job_type, s.worker, s.started_at, s.locked_until, s.why
from yamlsched.stuck_runs s
where s.namespace = any(%(namespaces)s)
order by s.started_at;

-- name: in_doubt
-- Effects in doubt, oldest first; those that wait for an operator before those that a retry
-- resolves.
select n.namespace, e.key, e.provider_key::text, e.run_id, e.job_type, e.run_status, e.attempt,
       e.since, e.waits_for
from unnest(%(namespaces)s::text[]) as n (namespace)
cross join lateral (
    select i.*, coalesce(i.doubted_at, i.claimed_at) as since
    from yamlsched.effects_in_doubt i
    where i.namespace = n.namespace
    order by i.waits_for = 'retry', since limit %(limit)s
) e
order by e.waits_for = 'retry', e.since;

-- name: in_doubt_counts
select e.namespace, e.job_type, e.waits_for, count(*) as effects
from yamlsched.effects_in_doubt e
where e.namespace = any(%(namespaces)s)
group by e.namespace, e.job_type, e.waits_for;

-- name: files
-- The file in use, and those that the places that count have.
with in_use as materialized (
    select n.*
    from yamlsched.namespaces n
    where n.namespace = any(%(namespaces)s) and n.hash is not null
), held as (
    select h.namespace, h.hash, min(h.environment) as environment, min(h.since) as since,
           max(h.seen_at) as seen_at,
           array_agg(h.host || ':' || h.path order by h.seen_at desc) as places
    from yamlsched.hosts h
    where h.namespace = any(%(namespaces)s) and h.hash is not null
      and h.expected_until > clock_timestamp()
    group by h.namespace, h.hash
)
select coalesce(i.namespace, h.namespace) as namespace, coalesce(i.hash, h.hash) as hash,
       coalesce(i.environment, h.environment) as environment, i.hash is not null as in_use,
       i.applied_at, i.host || ':' || i.path as applied_by, i.yamlsched_version,
       i.tzdata_version, e.commit, coalesce(e.is_dirty, false) as is_dirty, e.author, e.subject,
       h.since, h.seen_at, coalesce(h.places, '{}') as places,
       i.prune_failing_since, i.prune_error
from in_use i
full join held h on h.namespace = i.namespace and h.hash = i.hash
left join lateral (  -- the edit that it came with
    select l.hash, l.commit, l.is_dirty, l.author, l.subject
    from yamlsched.edits l
    where l.namespace = i.namespace
    order by l.applied_at desc, l.id desc
    limit 1
) e on e.hash = i.hash
order by (i.hash is not null) desc, h.since;

-- name: refused
-- The places whose file has errors, or is of another environment.
select h.namespace, h.host || ':' || h.path as place, cardinality(h.errors) as mistakes,
       h.refused_at as since, h.errors[1] as first_error,
       n.hash is not null and n.environment <> h.environment as is_other_environment
from yamlsched.hosts h
left join yamlsched.namespaces n on n.namespace = h.namespace
where h.namespace = any(%(namespaces)s) and h.refused_at is not null
  and h.expected_until > clock_timestamp()
order by h.refused_at, place;

-- name: cannot_start
-- The jobs that a place or a worker cannot start, and whether nobody who serves the queue and has
-- the file in use can. down: the hosts that could, and have stopped ticking within a week, latest
-- first.
with server as materialized (
    select q.*, q.until > clock_timestamp() as counts
    from yamlsched.queue_servers q
    where q.namespace = any(%(namespaces)s) and q.seen_at > clock_timestamp() - interval '7 days'
), lacking as (
    select distinct on (d.id, place) d.namespace, d.id, d.job_type, d.queue, d.created_at,
           s.host || ':' || s.path as place, j.why ->> 'reason' as reason,
           (j.why ->> 'since')::timestamptz as since
    from server s
    cross join jsonb_each(s.cannot_start) as j (job_type, why)
    join yamlsched.job_definitions d on d.namespace = s.namespace and d.job_type = j.job_type
      and d.queue = s.queue and d.enabled and d.retired_at is null
    where s.counts and s.has_file
    order by d.id, place, since
)
select l.namespace, l.job_type, l.place, l.reason, l.since,
       not exists (
           select from server s
           where s.namespace = l.namespace and s.queue = l.queue and s.counts and s.has_file
             and not s.cannot_start ? l.job_type) as is_everywhere,
       down.hosts as down, down.seen_at as down_at
from lacking l
cross join lateral (
    select coalesce(array_agg(s.host order by s.seen_at desc), '{}') as hosts,
           max(s.seen_at) as seen_at
    from server s
    where s.namespace = l.namespace and s.queue = l.queue and s.worker is null and not s.counts
      and s.until > l.created_at and not s.cannot_start ? l.job_type
) down
order by l.job_type, l.place limit %(limit)s;

-- name: workers
-- The 50 hosts that were seen last, of those that serve queues or execute runs, within the hour. A
-- claim is named host:pid:random.
select s.namespace, s.host, sum(s.running) as running, max(s.seen_at) as seen_at
from (
    select q.namespace, q.host, 0 as running, q.seen_at from yamlsched.queue_servers q
    where q.namespace = any(%(namespaces)s)
      and q.seen_at > clock_timestamp() - interval '1 hour'
    union all
    select o.namespace, regexp_replace(o.locked_by, '^(.*:)?([^:]*):[^:]*:[^:]*$', '\2'), 1,
           o.started_at
    from yamlsched.open_runs o
    where o.namespace = any(%(namespaces)s) and o.status = 'running'
) s
group by s.namespace, s.host
order by max(s.seen_at) desc limit 50;

-- name: queues
select l.*
from yamlsched.queue_load l
where l.namespace = any (%(namespaces)s)
order by l.queue;

-- name: unserved
-- The queues of enabled jobs that nobody serves, and who did last. is_on_demand: its workers are
-- there only while runs wait, because they are started, or neither ticks nor loops serve it.
select n.namespace, d.queue, s.place as served_by, s.seen_at as served_at,
       n.queues ->> d.queue = 'started' or coalesce(s.is_of_workers, false) as is_on_demand
from yamlsched.namespaces n
cross join lateral (
    select distinct j.queue from yamlsched.job_definitions j
    where j.namespace = n.namespace and j.enabled and j.retired_at is null
) d
cross join lateral (
    select max(q.seen_at) as seen_at, max(q.until) as until,
           (array_agg(q.host || ':' || q.path order by q.seen_at desc))[1] as place,
           bool_and(q.worker is not null) as is_of_workers
    from yamlsched.queue_servers q where q.namespace = n.namespace and q.queue = d.queue
) s
where n.namespace = any(%(namespaces)s) and n.queues ? d.queue
  and coalesce(s.until, '-infinity') <= clock_timestamp()
order by d.queue;

-- name: calendars
-- Calendars that enabled jobs use and that end within 60 days, or have ended: after that, what they
-- skip runs.
select d.namespace, c.calendar ->> 'name', count(*), min(c.calendar ->> 'until'),
       min(c.calendar ->> 'until') < t.today as has_ended
from yamlsched.job_definitions d
cross join (select statement_timestamp()::date::text,
    (statement_timestamp() + interval '60 days')::date::text) t (today, soon)
cross join jsonb_array_elements(d.skip_on || d.only_on) as c (calendar)
where d.namespace = any(%(namespaces)s) and d.enabled and d.retired_at is null
  and c.calendar ->> 'until' < t.soon
group by d.namespace, c.calendar ->> 'name', t.today
order by min(c.calendar ->> 'until'), c.calendar ->> 'name';

-- name: unsent
-- Targets of notifications that sends fail for, or to which no host has sent what has been due for
-- ten minutes.
select t.namespace, format('notifications to target "%%s" ', t.name) || case
           when t.failing_since is not null then format(
               'have failed since %%s: %%s',
               to_char(t.failing_since at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), t.error)
           else format('wait for a host with the variable %%s and yamlsched[notify]', t.url_env)
       end as what
from yamlsched.notify_targets t
where t.namespace = any (%(namespaces)s) and (t.failing_since is not null or exists (
    select from yamlsched.notifications n
    where n.namespace = t.namespace and n.target = t.name
      and n.due_at < clock_timestamp() - interval '10 minutes'))
order by t.name;
