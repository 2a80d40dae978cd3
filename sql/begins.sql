-- Begin tickets of attempts on executors other than "local": see attempt_begins.

-- name: begin
-- The agent takes the ticket, only while the claim that started it holds a live lease. No row: there is no such lease, or
-- another execution of this attempt has begun, or the worker has withdrawn it. Then the handler must not be called. Nor
-- while the job is paused, disabled or retired: the ticket is then written as a withdrawn one, and the worker refunds it.
with live as (
    select r.id, r.attempts, r.locked_by, r.locked_until, r.payload,
           yamlsched.is_withheld(d, clock_timestamp()) as is_withheld
    from yamlsched.job_runs r
    join yamlsched.job_definitions d on d.id = r.definition_id
    where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s and r.attempts = %(attempt)s
      and r.locked_until > clock_timestamp()
), begun as (
    insert into yamlsched.attempt_begins (run_id, attempt, locked_by, agent, begun_at, seen_at, ended_at)
    select l.id, l.attempts, l.locked_by, case when not l.is_withheld then %(agent)s end, clock_timestamp(),
           clock_timestamp(), case when l.is_withheld then clock_timestamp() end
    from live l
    on conflict do nothing
    returning run_id, agent
)
select l.payload::text as payload, extract(epoch from l.locked_until - clock_timestamp())::float8 as lease_seconds
from live l
join begun b on b.run_id = l.id
where b.agent is not null;

-- name: begun_by
-- Who has the ticket: the agent itself, if the answer to its insert was lost.
select b.agent, r.payload::text as payload,
       extract(epoch from r.locked_until - clock_timestamp())::float8 as lease_seconds
from yamlsched.attempt_begins b
join yamlsched.job_runs r on r.id = b.run_id
where b.run_id = %(run_id)s and b.attempt = %(attempt)s and b.locked_by = %(locked_by)s;

-- name: count
-- Each claim of a run has a ticket, so one that is returned at no cost leaves one.
select count(*) as tickets from yamlsched.attempt_begins b where b.run_id = %(run_id)s;

-- name: check
-- The agent reports that it is alive, renews the lease, and reads whose the run is, until when, and whether it is to stop. A
-- row that its handler's own transaction has locked is skipped: it is about to finish.
with renewed as (
    update yamlsched.job_runs r
    set locked_until = clock_timestamp() + make_interval(secs => %(lease)s::float8)
    where r.id = any (array(
        select m.id from yamlsched.job_runs m
        where m.id = %(run_id)s and m.status = 'running' and m.attempts = %(attempt)s and m.locked_by = %(locked_by)s
        for no key update of m skip locked))
    returning r.id, r.locked_until
)
update yamlsched.attempt_begins b
set seen_at = clock_timestamp()
from yamlsched.job_runs r
left join renewed n on n.id = r.id
where b.run_id = %(run_id)s and b.attempt = %(attempt)s and b.locked_by = %(locked_by)s and b.agent = %(agent)s
  and b.ended_at is null
  and r.id = b.run_id
returning r.status, b.stop_requested,
    r.locked_by = b.locked_by and r.attempts = b.attempt as is_same_claim,
    extract(epoch from coalesce(n.locked_until, r.locked_until) - clock_timestamp())::float8 as lease_seconds;

-- name: end
-- The agent writes how the attempt ended, once.
update yamlsched.attempt_begins b
set ended_at = clock_timestamp(), seen_at = clock_timestamp(), outcome = %(outcome)s
where b.run_id = %(run_id)s and b.attempt = %(attempt)s and b.locked_by = %(locked_by)s and b.agent = %(agent)s
  and b.ended_at is null;

-- name: withdraw
-- The worker takes the tickets of attempts that have not begun, so that no agent can. Returns those that it got, and how many
-- their runs have, this one included.
insert into yamlsched.attempt_begins as b (run_id, attempt, locked_by, begun_at, seen_at, ended_at)
select g.run_id, g.attempt, g.locked_by, clock_timestamp(), clock_timestamp(), clock_timestamp()
from unnest(%(run_ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (run_id, attempt, locked_by)
where exists (select from yamlsched.job_runs r where r.id = g.run_id)
on conflict do nothing
returning run_id, locked_by, (select count(*) + 1 from yamlsched.attempt_begins e where e.run_id = b.run_id)::integer as tickets;

-- name: request_stop
-- The agent reads this when it checks the lease, also where no signal reaches it.
update yamlsched.attempt_begins b
set stop_requested = true
from unnest(%(run_ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (run_id, attempt, locked_by)
where b.run_id = g.run_id and b.attempt = g.attempt and b.locked_by = g.locked_by and b.ended_at is null;

-- name: read
-- The tickets of attempts in flight. The database's clock says how long ago an agent was seen.
select b.run_id, b.locked_by, b.agent, b.ended_at is not null as has_ended, b.outcome,
       extract(epoch from clock_timestamp() - b.seen_at)::float8 as seen_seconds_ago
from unnest(%(run_ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (run_id, attempt, locked_by)
join yamlsched.attempt_begins b on (b.run_id, b.attempt, b.locked_by) = (g.run_id, g.attempt, g.locked_by);

-- name: unsettled
-- Attempts on executors that their workers have left: their agents have written how they ended, or their leases are over
-- without an agent that has begun. A worker that lives takes an outcome within two seconds. Not the runs `held`; of the first
-- `most` entries of each lane and level. What it returns is checked again by the fence of each write.
select r.id, r.job_type, r.idempotency_key as key, r.scheduled_for::text, r.attempts as attempt, r.max_attempts,
       '{}' as payload, false as is_catchup, 0.0::float8 as lease, r.locked_by, r.prior_attempts, r.sessions_lost,
       r.error_type, r.trace_context, null::text as upstream, b.outcome,
       b.run_id is not null as is_withdrawn, d.backoff, d.output ->> 'keep' as keep
from (select distinct j.lane from yamlsched.job_definitions j
      where j.namespace = %(namespace)s and j.executor <> 'local') l (name)
cross join (values (1::smallint), (2::smallint), (3::smallint)) p (priority)
cross join lateral (
    select e.* from yamlsched.job_runs e
    where e.namespace = %(namespace)s and e.lane = l.name and e.priority = p.priority and e.withheld = 0
      and e.finished_at is null and e.run_at <= clock_timestamp() order by e.run_at, e.id limit %(most)s) r
join yamlsched.job_definitions d on d.id = r.definition_id
left join yamlsched.attempt_begins b on (b.run_id, b.attempt, b.locked_by) = (r.id, r.attempts, r.locked_by)
where r.status = 'running' and r.id <> all (%(held)s::bigint[])
  and (r.locked_until < clock_timestamp() and (b.agent is null or b.outcome is not null)
       or b.ended_at < clock_timestamp() - interval '2 seconds');
