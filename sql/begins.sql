-- Attempts on executors other than "local": how many, and their begin tickets, see attempt_begins.

-- name: places
-- How many more runs may execute on an executor; null: another claim or a sync has its gate.
select yamlsched.executor_places(%(namespace)s, %(executor)s) as places;

-- name: occupy
-- Note that these runs, which were just claimed, execute on the executor of their lane.
update yamlsched.job_runs r set executor = r.lane where r.id = any (%(ids)s::bigint[]);

-- name: put_executors
-- Write how many runs may execute on each executor of the file in force.
insert into yamlsched.gates as g (namespace, name, n)
select %(namespace)s, 'executor/' || e.name, e.n
from unnest(%(names)s::text[], %(numbers)s::int[]) as e (name, n)
order by e.name
on conflict (namespace, name) do update set n = excluded.n where g.n is distinct from excluded.n;

-- name: begin
-- The agent takes the ticket, only while the claim that started it holds a live lease. No row:
-- there is no such lease, or another execution of this attempt has begun, or the worker has
-- withdrawn it. Then the handler must not be called. Nor while the job is paused, disabled or
-- retired: the ticket is then written as a withdrawn one, and the worker refunds it.
with live as (
    select r.id, r.attempts, r.locked_by, r.locked_until, r.payload,
           yamlsched.is_withheld(d, clock_timestamp()) as is_withheld
    from yamlsched.job_runs r
    join yamlsched.job_definitions d on d.id = r.definition_id
    where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s
      and r.attempts = %(attempt)s
      and r.locked_until > clock_timestamp()
), begun as (
    insert into yamlsched.attempt_begins (run_id, attempt, locked_by, agent, begun_at, seen_at,
        ended_at)
    select l.id, l.attempts, l.locked_by, case when not l.is_withheld then %(agent)s end,
           clock_timestamp(),
           clock_timestamp(), case when l.is_withheld then clock_timestamp() end
    from live l
    on conflict do nothing
    returning run_id, agent
)
select l.payload::text as payload,
       extract(epoch from l.locked_until - clock_timestamp())::float8 as lease_seconds
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
-- The agent reports that it is alive, renews the lease, and reads whose the run is, and until when.
-- A row that its handler's own transaction has locked is skipped: it is about to finish.
with renewed as (
    update yamlsched.job_runs r
    set locked_until = clock_timestamp() + make_interval(secs => %(lease)s::float8)
    where r.id = any (array(
        select m.id from yamlsched.job_runs m
        where m.id = %(run_id)s and m.status = 'running' and m.attempts = %(attempt)s
          and m.locked_by = %(locked_by)s
        for no key update of m skip locked))
    returning r.id, r.locked_until
)
update yamlsched.attempt_begins b
set seen_at = clock_timestamp()
from yamlsched.job_runs r
left join renewed n on n.id = r.id
where b.run_id = %(run_id)s and b.attempt = %(attempt)s and b.locked_by = %(locked_by)s
  and b.agent = %(agent)s
  and b.ended_at is null
  and r.id = b.run_id
returning r.status, r.locked_by = b.locked_by and r.attempts = b.attempt as is_same_claim,
    extract(epoch from coalesce(n.locked_until,
        r.locked_until) - clock_timestamp())::float8 as lease_seconds;

-- name: end
-- The agent writes how the attempt ended, once, and wakes the workers that wait.
with ended as (
    update yamlsched.attempt_begins b
    set ended_at = clock_timestamp(), seen_at = clock_timestamp(), outcome = %(outcome)s
    where b.run_id = %(run_id)s and b.attempt = %(attempt)s and b.locked_by = %(locked_by)s
      and b.agent = %(agent)s
      and b.ended_at is null
    returning b.run_id
)
select pg_notify('yamlsched', r.namespace) from ended e join yamlsched.job_runs r
    on r.id = e.run_id;

-- name: withdraw
-- The worker takes the tickets of attempts that have not begun, so that no agent can. Returns those
-- that it got, and how many their runs have, this one included.
insert into yamlsched.attempt_begins as b (run_id, attempt, locked_by, begun_at, seen_at, ended_at)
select g.run_id, g.attempt, g.locked_by, clock_timestamp(), clock_timestamp(), clock_timestamp()
from unnest(%(run_ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (run_id, attempt,
    locked_by)
where exists (select from yamlsched.job_runs r where r.id = g.run_id)
on conflict do nothing
returning run_id, locked_by, (select count(*) + 1 from yamlsched.attempt_begins e
    where e.run_id = b.run_id)::integer as tickets;

-- name: read
-- The tickets of attempts that a worker has submitted: an agent has begun, or none can.
select b.run_id, b.locked_by, b.agent
from unnest(%(run_ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as g (run_id, attempt,
    locked_by)
join yamlsched.attempt_begins b on (b.run_id, b.attempt, b.locked_by) = (g.run_id, g.attempt,
    g.locked_by);

-- name: unsettled
-- Attempts on executors whose agents have written how they ended, of the runs `ids` or, if that is
-- null, of all except those `held`; of the latter also those whose leases are over without an agent
-- that has begun. What it returns is checked again by the fence of each write.
select r.id, r.job_type, r.idempotency_key as key, r.scheduled_for::text, r.attempts as attempt,
       r.max_attempts,
       '{}' as payload, false as is_catchup, 0.0::float8 as lease, r.locked_by, r.prior_attempts,
       r.sessions_lost,
       r.error_type, r.trace_context, null::text as upstream, b.outcome, r.namespace,
       b.run_id is not null as is_withdrawn, d.backoff, d.output ->> 'keep' as keep
from yamlsched.job_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
left join yamlsched.attempt_begins b on (b.run_id, b.attempt, b.locked_by) = (r.id, r.attempts,
    r.locked_by)
where r.executor is not null and r.status = 'running'
  and case when %(ids)s::bigint[] is null
           then r.namespace = %(namespace)s and r.id <> all (%(held)s::bigint[])
                and (b.outcome is not null or b.agent is null
                    and r.locked_until < clock_timestamp())
           else r.id = any (%(ids)s::bigint[]) and b.outcome is not null end;
