-- Notifications: see the tables and functions in schema.sql.

-- name: put_targets
-- The targets of the file in use; return those that were not as it says. One that has left the file
-- is deleted, with what was to be sent to it. With `restores` the file has not changed, so somebody
-- else has changed or deleted the row.
with gone as (
    delete from yamlsched.notify_targets t
    where t.namespace = %(namespace)s and t.name <> all (%(names)s::text[])
    returning t.name
), put as (
    insert into yamlsched.notify_targets as t (namespace, name, url_env, events, restored_at)
    select %(namespace)s, n.name, n.url_env, string_to_array(n.events, ','),
           case when %(restores)s then clock_timestamp() end
    from unnest(%(names)s::text[], %(url_envs)s::text[], %(events)s::text[]) as n (name, url_env,
        events)
    on conflict (namespace, name) do update
    set url_env = excluded.url_env, events = excluded.events, restored_at = excluded.restored_at
    where (t.url_env, t.events) is distinct from (excluded.url_env, excluded.events)
    returning t.name
)
select g.name from gone g union all select p.name from put p order by name;

-- name: targets
select t.name, t.url_env, t.events from yamlsched.notify_targets t
where t.namespace = %(namespace)s;

-- name: is_in_use
select 1 from yamlsched.namespaces n
where n.namespace = %(namespace)s and n.hash = %(hash)s and n.environment = %(environment)s;

-- name: settle
select yamlsched.settle_notes(%(namespace)s, coalesce(%(now)s::timestamptz, clock_timestamp()));

-- name: end_problems
-- What is no problem any more has ended. A problem's subject has a colon, which no job's name has.
update yamlsched.notifications n
set active_at = case when p.is_there then c.now else n.active_at end,
    ended_at = case when not p.is_there then c.now end,
    recovered_at = case when p.is_there then n.recovered_at else c.now end,
    due_at = case when p.is_there then n.due_at
        else yamlsched.end_due_at(n.told, n.recovered_at, c.now) end
from (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c,
     (select s.subject, s.subject = any (%(subjects)s::text[]) as is_there
         from yamlsched.notifications s
      where s.namespace = %(namespace)s and s.definition_id is null group by s.subject) p
where n.namespace = %(namespace)s and n.subject = p.subject and n.ended_at is null;

-- name: note_problems
select yamlsched.note(%(namespace)s, 'problem', (
    select jsonb_agg(jsonb_build_object('subject', p.subject, 'what', p.what))
    from unnest(%(subjects)s::text[], %(whats)s::text[]) as p (subject, what)),
        coalesce(%(now)s::timestamptz, clock_timestamp()));

-- name: due
select yamlsched.messages_due(%(namespace)s, coalesce(%(now)s::timestamptz,
    clock_timestamp())) as targets;

-- name: take
-- Take the targets that a message is due to and whose variables this host has, each for a minute,
-- and return what there is to send.
with taken as (
    update yamlsched.notify_targets t
    set next_at = clock_timestamp() + interval '1 minute'
    where t.namespace = %(namespace)s and t.name = any (%(targets)s::text[])
      and t.next_at <= clock_timestamp()
      and exists (select from yamlsched.notifications n
                  where n.namespace = t.namespace and n.target = t.name
                    and n.due_at <= clock_timestamp())
    returning t.namespace, t.name, t.events
), due as (
    select n.*, yamlsched.events_now(n, t.events, clock_timestamp()) as events
    from taken t
    join yamlsched.notifications n on n.namespace = t.namespace and n.target = t.name
      and n.due_at <= clock_timestamp()
), chosen as (
    select u.*, case when 'dead' = any (u.events) then u.run_id
                     when 'failing' = any (u.events)
                         then yamlsched.failing_run(u.definition_id) end as shown_run
    from due u
)
select u.target, u.subject, u.definition_id is null as is_problem, u.since, u.ended_at, u.pause,
       u.dead_runs,
       u.told_runs, u.late_since, u.events, u.what, u.shown_run as run_id, d.owner, r.locked_by,
       r.error_type,
       r.last_error,
       case when r.dead_at is not null and r.scheduled_for is null
            then (select count(*) from (select from yamlsched.job_runs o
                                        where o.definition_id = d.id and o.dead_at is not null
                                        limit 10000) o)
       end as dead_of_job
from chosen u
left join yamlsched.job_definitions d on d.id = u.definition_id
left join yamlsched.job_runs r on r.id = u.shown_run and (r.dead_at is not null
    or 'dead' <> all (u.events))
order by u.target, u.ended_at is not null, u.dead_at is null, u.subject
limit 2000;

-- name: sent
-- What a message has said, as it was read. Whatever has happened since then is sent next: if the
-- trouble was back while its end was on its way, it is sent at once, and if it was over while it
-- was on its way, its end is.
update yamlsched.notifications n
set told = case when s.is_over then '{}' else array(select distinct e
    from unnest(n.told || s.events) e) end,
    told_runs = case when s.is_over then 0 when s.is_same then greatest(n.told_runs, s.dead_runs)
        else n.told_runs end,
    dead_runs = case when s.is_over and s.is_same and n.ended_at is null
        then n.dead_runs - s.dead_runs
                     else n.dead_runs end,
    since = case when s.is_over and n.ended_at is null then clock_timestamp() else n.since end,
    quiet_until = case when not s.is_over then clock_timestamp() + s.pause end,
    pause = case when s.is_over then '1 hour' else least(2 * s.pause, interval '1 day') end,
    due_at = case when s.is_over then case when n.ended_at is null then clock_timestamp() end
                  when n.ended_at is not null then coalesce(n.due_at, clock_timestamp())
                  when n.definition_id is not null then clock_timestamp() + s.pause end
from (select v.subject, v.is_over, v.dead_runs, v.pause, string_to_array(v.events, ',') as events,
    v.since = o.since as is_same
      from unnest(%(subjects)s::text[], %(is_over)s::boolean[], %(since)s::timestamptz[],
          %(dead_runs)s::int[],
                  %(pauses)s::interval[], %(events)s::text[]) as v (subject, is_over, since,
                  dead_runs, pause, events)
      join yamlsched.notifications o
        on o.namespace = %(namespace)s and o.target = %(target)s and o.subject = v.subject) s
where n.namespace = %(namespace)s and n.target = %(target)s and n.subject = s.subject;

-- name: end_send
-- How a send to a target has ended. After one that failed, the next one waits as long as sends have
-- failed, up to an hour.
update yamlsched.notify_targets t
set error = %(error)s, failing_since = case when %(error)s::text is not null then f.since end,
    next_at = greatest(t.next_at, case when %(error)s::text is not null
                                       then clock_timestamp() + least(clock_timestamp() - f.since,
                                           interval '1 hour') end)
from (select o.name, coalesce(o.failing_since, clock_timestamp()) as since
    from yamlsched.notify_targets o
      where o.namespace = %(namespace)s and o.name = %(target)s) f
where t.namespace = %(namespace)s and t.name = f.name;

-- name: next_due
-- In how many seconds the next message may be sent.
select extract(epoch from min(greatest(t.next_at, n.due_at)) - clock_timestamp())::float8 as seconds
from yamlsched.notify_targets t join yamlsched.notifications n on n.namespace = t.namespace
  and n.target = t.name
where t.namespace = %(namespace)s and t.name = any (%(targets)s::text[]) and n.due_at is not null;
