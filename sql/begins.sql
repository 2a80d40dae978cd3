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
    where r.id = %(run_id)s
      and r.status = 'running'
      and r.locked_by = %(locked_by)s
      and r.attempts = %(attempt)s
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
where b.run_id = %(run_id)s
  and b.attempt = %(attempt)s
  and b.locked_by = %(locked_by)s;

-- name: count
-- Each claim of a run has a ticket, so one that is returned at no cost leaves one.
select count(*) as tickets from yamlsched.attempt_begins b where b.run_id = %(run_id)s;

-- name: check
-- The agent reports that it is alive, and reads whose the run is, until when, and whether it is to stop.
update yamlsched.attempt_begins b
set seen_at = clock_timestamp()
from yamlsched.job_runs r
where b.run_id = %(run_id)s
  and b.attempt = %(attempt)s
  and b.locked_by = %(locked_by)s
  and b.agent = %(agent)s
  and b.ended_at is null
  and r.id = b.run_id
returning r.status, b.stop_requested,
    r.locked_by = b.locked_by and r.attempts = b.attempt as is_same_claim,
    extract(epoch from r.locked_until - clock_timestamp())::float8 as lease_seconds;

-- name: end
-- The agent writes how the attempt ended, once.
update yamlsched.attempt_begins b
set ended_at = clock_timestamp(), seen_at = clock_timestamp(), outcome = %(outcome)s
where b.run_id = %(run_id)s
  and b.attempt = %(attempt)s
  and b.locked_by = %(locked_by)s
  and b.agent = %(agent)s
  and b.ended_at is null;

-- name: withdraw
-- The worker takes the tickets of attempts that have not begun, so that no agent can. Returns those that it got.
insert into yamlsched.attempt_begins (run_id, attempt, locked_by, begun_at, seen_at, ended_at)
select g.run_id, g.attempt, g.locked_by, clock_timestamp(), clock_timestamp(), clock_timestamp()
from unnest(%(run_ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (run_id, attempt, locked_by)
where exists (select from yamlsched.job_runs r where r.id = g.run_id)
on conflict do nothing
returning run_id, locked_by;

-- name: request_stop
-- The agent reads this when it checks the lease, also where no signal reaches it.
update yamlsched.attempt_begins b
set stop_requested = true
from unnest(%(run_ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (run_id, attempt, locked_by)
where b.run_id = g.run_id
  and b.attempt = g.attempt
  and b.locked_by = g.locked_by
  and b.ended_at is null;

-- name: read
-- The tickets of attempts in flight. The database's clock says how long ago an agent was seen.
select b.run_id, b.locked_by, b.agent, b.ended_at is not null as has_ended, b.outcome,
       extract(epoch from clock_timestamp() - b.seen_at)::float8 as seen_seconds_ago
from unnest(%(run_ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (run_id, attempt, locked_by)
join yamlsched.attempt_begins b on (b.run_id, b.attempt, b.locked_by) = (g.run_id, g.attempt, g.locked_by);
