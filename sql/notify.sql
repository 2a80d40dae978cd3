-- Notifications: see the tables and functions in schema.sql.

-- name: put_targets
-- The targets of the file in use. One that has left the file is deleted, with what was to be sent
-- to it.
with gone as (
    delete from yamlsched.notify_targets t
    where t.namespace = %(namespace)s and t.name <> all (%(names)s::text[])
)
insert into yamlsched.notify_targets as t (namespace, name, url_env, events)
select %(namespace)s, n.name, n.url_env, string_to_array(n.events, ',')
from unnest(%(names)s::text[], %(url_envs)s::text[], %(events)s::text[])
    as n (name, url_env, events)
on conflict (namespace, name) do update
set url_env = excluded.url_env, events = excluded.events
where (t.url_env, t.events) is distinct from (excluded.url_env, excluded.events);

-- name: targets
-- The targets of a job. The address of each is known only to the hosts that have the variable.
select t.name, t.url_env, t.events
from yamlsched.notify_targets t
where t.namespace = %(namespace)s and t.name = any (%(names)s::text[])
order by t.name;

-- name: settle
-- Say what is to be sent when. `problems` are objects with subject, what, and found_since.
select yamlsched.settle_notes(%(namespace)s, %(problems)s::jsonb, :now);

-- name: due
select yamlsched.messages_due(%(namespace)s, :now) as targets;

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
    select u.*, case when u.events && '{dead,paused}' then u.run_id
                     when 'failing' = any (u.events)
                         then yamlsched.failing_run(u.definition_id) end as shown_run
    from due u
)
select u.target, u.subject, u.definition_id is null as is_problem, u.since, u.ended_at, u.pause,
       u.dead_runs, u.told_runs, d.paused_after, u.found_since as late_since,
       u.events, u.what, u.shown_run as run_id, d.owner, r.locked_by, r.error_type, r.last_error,
       case when r.id is not null then yamlsched.what_changed(d.id) end as changed,
       case when r.dead_at is not null and r.scheduled_for is null
            then (select count(*) from (select from yamlsched.job_runs o
                                        where o.definition_id = d.id and o.dead_at is not null
                                        limit 10000) o)
       end as dead_of_job
from chosen u
left join yamlsched.job_definitions d on d.id = u.definition_id
left join yamlsched.job_runs r on r.id = u.shown_run and (r.dead_at is not null
    or not u.events && '{dead,paused}')
order by u.target, u.ended_at is not null, u.dead_at is null, u.subject
limit 2000;

-- name: sent
-- What a message has said, as it was read; without events the end of trouble. Trouble that has
-- started over meanwhile is other trouble, and that of a problem is not said again.
update yamlsched.notifications n
set told = case when s.events is null then '{}'
                else array(select distinct e
                           from unnest(n.told || string_to_array(s.events, ',')) e) end,
    told_runs = greatest(n.told_runs, s.dead_runs),
    quiet_until = clock_timestamp() + s.pause, pause = least(2 * s.pause, interval '1 day'),
    due_at = case when n.ended_at is null and n.definition_id is not null
                  then clock_timestamp() + s.pause
                  when n.ended_at is not null and s.events is not null then n.due_at end
from unnest(%(subjects)s::text[], %(since)s::timestamptz[], %(dead_runs)s::int[],
            %(pauses)s::interval[], %(events)s::text[])
    as s (subject, since, dead_runs, pause, events)
where n.namespace = %(namespace)s and n.target = %(target)s and n.subject = s.subject
  and n.since = s.since;

-- name: end_send
-- How a send to a target has ended. After one that failed, the next one waits as long as sends have
-- failed, up to an hour.
update yamlsched.notify_targets t
set error = %(error)s,
    failing_since = case when %(error)s::text is not null
                         then coalesce(t.failing_since, clock_timestamp()) end,
    next_at = greatest(t.next_at, case
        when %(error)s::text is not null and t.failing_since is not null
        then clock_timestamp() + least(clock_timestamp() - t.failing_since, interval '1 hour') end)
where t.namespace = %(namespace)s and t.name = %(target)s;

-- name: next_due
-- In how many seconds the next message may be sent.
select extract(epoch from min(greatest(t.next_at, n.due_at)) - clock_timestamp())::float8 as seconds
from yamlsched.notify_targets t join yamlsched.notifications n on n.namespace = t.namespace
  and n.target = t.name
where t.namespace = %(namespace)s and t.name = any (%(targets)s::text[]) and n.due_at is not null;
