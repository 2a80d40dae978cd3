-- Notifications: see migration 0009.

-- name: note_dead
-- Runs that this transaction has ended as dead. The last statement but the commit.
select yamlsched.note(%(namespace)s, 'dead', (
    select jsonb_agg(to_jsonb(j)) from (
        select r.definition_id, max(r.scheduled_for) as slot, max(r.dead_at) as dead_at, count(*) as dead_runs,
               (array_agg(r.id order by r.dead_at desc, r.id desc))[1] as run_id
        from yamlsched.job_runs r join yamlsched.job_definitions d on d.id = r.definition_id
        where r.id = any (%(ids)s::bigint[]) and r.dead_at is not null and d.notify <> '{}'
        group by r.definition_id) j), coalesce(%(now)s::timestamptz, clock_timestamp()));

-- name: put_targets
-- The targets of the file in force. One that has left the file is deleted, with what it was to be told.
with gone as (
    delete from yamlsched.notify_targets t where t.namespace = %(namespace)s and t.name <> all (%(names)s::text[])
)
insert into yamlsched.notify_targets as t (namespace, name, url_env, events)
select %(namespace)s, n.name, n.url_env, string_to_array(n.events, ',')
from unnest(%(names)s::text[], %(url_envs)s::text[], %(events)s::text[]) as n (name, url_env, events)
on conflict (namespace, name) do update set url_env = excluded.url_env, events = excluded.events
where (t.url_env, t.events) is distinct from (excluded.url_env, excluded.events);

-- name: settle
select yamlsched.settle_notes(%(namespace)s, coalesce(%(now)s::timestamptz, clock_timestamp()));

-- name: end_problems
-- What is no problem any more has ended. A problem's subject has a colon, which no job's name has.
update yamlsched.notifications n
set active_at = case when p.is_there then c.now else n.active_at end, ended_at = case when not p.is_there then c.now end,
    due_at = case when p.is_there then n.due_at when n.is_told then c.now end
from (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c,
     (select s.subject, s.subject = any (%(subjects)s::text[]) as is_there from yamlsched.notifications s
      where s.namespace = %(namespace)s and s.definition_id is null group by s.subject) p
where n.namespace = %(namespace)s and n.subject = p.subject and n.ended_at is null;

-- name: note_problems
select yamlsched.note(%(namespace)s, 'problem', (
    select jsonb_agg(jsonb_build_object('subject', p.subject, 'what', p.what))
    from unnest(%(subjects)s::text[], %(whats)s::text[]) as p (subject, what)), coalesce(%(now)s::timestamptz, clock_timestamp()));

-- name: due
select yamlsched.messages_due(%(namespace)s, coalesce(%(now)s::timestamptz, clock_timestamp())) as variables;

-- name: take
-- Take the targets that a message is due to and whose variables this host has, each for a minute, and return what they are
-- to be told.
with taken as (
    update yamlsched.notify_targets t
    set next_at = clock_timestamp() + interval '1 minute'
    where t.namespace = %(namespace)s and t.url_env = any (%(variables)s::text[]) and t.next_at <= clock_timestamp()
      and exists (select from yamlsched.notifications n
                  where n.namespace = t.namespace and n.target = t.name and n.due_at <= clock_timestamp())
    returning t.namespace, t.name, t.url_env
)
select t.name as target, t.url_env, n.subject, n.definition_id is null as is_problem, n.ended_at, n.quiet_until, n.dead_runs, n.late_since,
       yamlsched.is_still_dead(n.run_id, n.dead_at, clock_timestamp()) as is_dead, n.what, n.run_id, d.owner, r.locked_by, r.error_type, r.last_error
from taken t
join yamlsched.notifications n on n.namespace = t.namespace and n.target = t.name and n.due_at <= clock_timestamp()
left join yamlsched.job_definitions d on d.id = n.definition_id
left join yamlsched.job_runs r on r.id = n.run_id and r.dead_at is not null
order by t.name, n.ended_at is not null, n.dead_at is null, n.subject
limit 2000;

-- name: sent
-- What a target was told, as it was read. A trouble that ended or came back since then is still to be told. What another
-- host has told since then, because this one was suspended for longer than its minute, is counted once.
update yamlsched.notifications n
set told = array(select distinct e from unnest(n.told || string_to_array(s.events, ',')) e), is_told = s.ended_at is null,
    dead_runs = n.dead_runs - s.dead_runs,
    quiet_until = case when s.ended_at is null then clock_timestamp() + n.pause else n.quiet_until end,
    pause = case when s.ended_at is null then least(2 * n.pause, interval '1 day') else n.pause end,
    due_at = case when s.ended_at is null and n.definition_id is not null then clock_timestamp() + n.pause end
from unnest(%(subjects)s::text[], %(ended_at)s::timestamptz[], %(quiet_until)s::timestamptz[], %(dead_runs)s::int[], %(events)s::text[])
  as s (subject, ended_at, quiet_until, dead_runs, events)
where n.namespace = %(namespace)s and n.target = %(target)s and n.subject = s.subject
  and (n.ended_at, n.quiet_until) is not distinct from (s.ended_at, s.quiet_until);

-- name: end_send
-- How a send to a target has ended. After one that failed, the next one waits as long as sends have failed, up to an hour.
update yamlsched.notify_targets t
set error = %(error)s, failing_since = case when %(error)s::text is not null then f.since end,
    next_at = greatest(t.next_at, case when %(error)s::text is not null
                                       then clock_timestamp() + least(clock_timestamp() - f.since, interval '1 hour') end)
from (select o.name, coalesce(o.failing_since, clock_timestamp()) as since from yamlsched.notify_targets o
      where o.namespace = %(namespace)s and o.name = %(target)s) f
where t.namespace = %(namespace)s and t.name = f.name;

-- name: next_due
-- In how many seconds the next message may be sent.
select extract(epoch from min(greatest(t.next_at, n.due_at)) - clock_timestamp())::float8 as seconds
from yamlsched.notify_targets t join yamlsched.notifications n on n.namespace = t.namespace and n.target = t.name
where t.namespace = %(namespace)s and t.url_env = any (%(variables)s::text[]) and n.due_at is not null;
