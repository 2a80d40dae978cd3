-- Statements about running runs. Where an index must bound a scan, "now" is a scalar sub-select: it
-- is computed once, and the index takes it as its end. The first columns of what a claim returns
-- are the fields of `ClaimedRun`; those of what a reclaim returns are the first of them.

-- name: claim
-- Claim due runs of one queue, by the levels in the order of `priorities`. `skipped` are jobs that
-- this worker may not claim, or whose gate it did not get. The others are only named: runs that
-- have expired, for `expire`, that were created for another queue than their job has now, for
-- `move`, those that are not released, for runs/release.py, and those that stand at a gate, for
-- `claim_gated`.
with clock as materialized (
    select :now as now
), picked as materialized (
    select w.*
    from (select u.level from unnest(%(priorities)s::smallint[]) with ordinality as u (level, nth)
          order by u.nth) p
    cross join lateral (
        select r.ctid, r.id, r.definition_id, r.exclusive, r.queue, r.unreleased,
               case when r.begun_at is null and r.scheduled_for is null and not r.by_hand
                    then r.run_at end as waits_since
        from yamlsched.job_runs r
        where r.namespace = %(namespace)s and r.queue = %(queue)s and r.priority = p.level
          and r.blocked_on is null and r.finished_at is null
          and r.run_at <= (select c.now from clock c) and r.locked_until is null
          and r.definition_id <= %(newest)s::bigint
          -- hashed
          and r.definition_id not in (select s.id from unnest(%(skipped)s::bigint[]) s (id))
        order by r.run_at, r.id
        limit %(limit)s
        for no key update skip locked
    ) w
    limit %(limit)s
), job as materialized (
    select d.*, yamlsched.is_closed(d, (select c.now from clock c)) as is_closed
    from yamlsched.job_definitions d
    where d.id = any (array(select p.definition_id from picked p))
), sorted as materialized (
    select p.ctid, p.id, p.definition_id,
           case when p.waits_since + j.expires_after <= (select c.now from clock c) then 'expired'
                when p.queue <> j.queue then 'misplaced'
                when p.unreleased then 'unreleased'
                when p.exclusive or j.is_closed or j.limit_name is not null then 'gated'
                else 'free' end as state
    from picked p
    join job j on j.id = p.definition_id
), claimed as (
    update yamlsched.job_runs r
    set status = 'running', attempts = r.attempts + 1, locked_by = %(token)s,
        locked_until = (select c.now from clock c) + (select j.lease from job j
            where j.id = r.definition_id),
        started_at = (select c.now from clock c), updated_at = (select c.now from clock c),
        begun_at = coalesce(r.begun_at, (select c.now from clock c)),
        unique_key = case when r.unique_key not like 'waiting:%%' then r.unique_key end,
        cpu_seconds = null, peak_memory_bytes = null, revision = %(revision)s
    where r.ctid = any (array(select s.ctid from sorted s where s.state = 'free'))
    returning r.id, r.job_type, r.idempotency_key as key, r.scheduled_for::text,
              r.attempts as attempt, r.max_attempts, r.payload::text,
              r.scheduled_for is not null
                and r.scheduled_for < r.created_at - interval '2 minutes' as is_catchup,
              date_part('epoch', r.locked_until - r.started_at) as lease, r.locked_by,
              r.prior_attempts, r.releases, r.error_type, r.trace_context,
              case when (select j.after from job j where j.id = r.definition_id) <> '{}'
                   then yamlsched.upstream_results(r.id)::text end as upstream,
              case when r.hook is not null then yamlsched.trigger_of(r)::text end as trigger,
              r.priority, r.definition_id, 'claimed' as state
)
select c.* from claimed c
union all
select s.id, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, s.definition_id, s.state
from sorted s where s.state <> 'free';

-- name: move
-- Move waiting runs to the queue that their job has now.
select yamlsched.move_runs(%(ids)s::bigint[]);

-- name: claim_gated
-- Claim those of some runs that may execute; see the function in schema.sql. `state` is "blocked"
-- for those that may not, and "busy" where another session has their gate, or their turn comes
-- with the next claim.
select r.id, r.job_type, r.idempotency_key as key, r.scheduled_for::text, r.attempts as attempt,
       r.max_attempts,
       r.payload::text, r.scheduled_for is not null
         and r.scheduled_for < r.created_at - interval '2 minutes' as is_catchup,
       date_part('epoch', r.locked_until - r.started_at) as lease, r.locked_by, r.prior_attempts,
       r.releases,
       r.error_type, r.trace_context,
       case when (select d.after from yamlsched.job_definitions d
           where d.id = r.definition_id) <> '{}'
            then yamlsched.upstream_results(r.id)::text end as upstream,
       case when r.hook is not null then yamlsched.trigger_of(r)::text end as trigger,
       r.priority, r.definition_id,
       case when r.status = 'running' then 'claimed' when r.blocked_on is not null then 'blocked'
           else 'busy' end as state
from yamlsched.claim_gated(%(namespace)s, %(ids)s::bigint[], %(priorities)s::smallint[], %(token)s,
                           :now, %(revision)s) r;

-- name: reclaim
-- Take runs from workers whose leases are over, also of paused and disabled jobs: the attempt is
-- lost, and after the last one the run is dead. A cancelled or finished run only loses its lease.
-- Not the runs `held`, which this worker ends itself. Looks at runs with permits, and at the first
-- `most` entries of each queue and level; null: all. `release` follows, in the same transaction.
with clock as materialized (
    select :now as now
), looked_at as materialized (
    select r.id
    from yamlsched.queue_levels(%(namespace)s) l
    cross join lateral (
        select e.id, e.locked_until from yamlsched.job_runs e
        where e.namespace = %(namespace)s and e.queue = l.queue and e.priority = l.priority
          and e.blocked_on is null and e.finished_at is null
          and e.run_at <= (select c.now from clock c)
        order by e.run_at, e.id limit %(most)s
    ) r
    where r.locked_until < (select c.now from clock c)
    union
    select p.run_id from yamlsched.permits p where p.namespace = %(namespace)s
), picked as materialized (
    -- checked again on the locked row
    select r.id, r.job_type, r.idempotency_key, r.scheduled_for, r.attempts,
           r.max_attempts, r.locked_by, r.locked_until, r.started_at, r.prior_attempts, r.revision,
           r.status = 'running' as is_lost,
           r.status = 'running' and r.attempts >= r.max_attempts as is_last
    from yamlsched.job_runs r
    where r.id = any (array(select l.id from looked_at l)) and r.id <> all (%(held)s::bigint[])
      and r.locked_until < (select c.now from clock c)
    order by r.id for no key update skip locked
), lost as (
    insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error,
        error_type, revision)
    select p.id, p.attempts, p.locked_by, p.started_at, (select c.now from clock c),
           format(%(lost_error)s, p.locked_by,
                  to_char(p.locked_until, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
           %(lost_type)s, p.revision
    from picked p where p.is_lost
    on conflict (run_id, attempt) do nothing
), unlocked as (
    update yamlsched.job_runs r set locked_until = null
    where r.id = any (array(select p.id from picked p where not p.is_lost))
), ended as (
    update yamlsched.job_runs r
    set status = case when r.attempts >= r.max_attempts then 'dead' else 'failed' end,
        blocked_on = null, locked_until = null,
        finished_at = case when r.attempts >= r.max_attempts then c.now end,
        dead_at = case when r.attempts >= r.max_attempts then c.now end,
        failed_at = c.now, updated_at = c.now,
        last_error = format(%(lost_error)s, r.locked_by,
                            to_char(r.locked_until, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
        error_type = %(lost_type)s
    from clock c
    where r.id = any (array(select p.id from picked p where p.is_lost))
)
select p.id, p.job_type, p.idempotency_key as key, p.scheduled_for::text, p.attempts as attempt,
       p.max_attempts, '{}' as payload, false as is_catchup, 0::float8 as lease, p.locked_by,
       p.prior_attempts, p.is_lost, p.is_last
from picked p;

-- name: release
-- What follows each statement that ends runs: those `reported`, which have succeeded, died or are
-- retried, get the runs of their hooks. All return their permits, whose room is offered. Last,
-- because of the order of locks, targets of notifications.
select case when c.reported <> '{}'
            then yamlsched.enqueue_hooks(%(namespace)s, c.reported, c.now) end as hooks,
       yamlsched.release(%(namespace)s, %(ids)s::bigint[], c.now),
       case when c.reported <> '{}'
            then yamlsched.note_runs(%(namespace)s, c.reported, c.now) end as notes
from (select %(reported)s::bigint[] as reported, :now as now offset 0) c;

-- name: pause_dying
-- Pause the jobs of runs that this session has ended as dead, null: all, whose last runs are dead.
select p.id, p.job_type, p.reason
from yamlsched.pause_dying(%(namespace)s, %(ids)s::bigint[], :now) p;

-- name: promote
-- Offer the room of gates.
select yamlsched.promote(%(namespace)s, %(names)s::text[], 0, :now) as offered;

-- name: sweep
select yamlsched.sweep(%(namespace)s, %(at_once)s, :now) as offered;

-- name: expire
-- End what has not begun within the expires_after of its job: of some runs, or null: of all.
select yamlsched.expire(%(namespace)s, coalesce(%(ids)s::bigint[], array(
    select w.id from yamlsched.job_definitions d
    cross join lateral (
        select r.id from yamlsched.job_runs r
        where r.definition_id = d.id and r.finished_at is null
          and yamlsched.is_expired(r, d, :now)
        order by r.finished_at, r.id limit 5000) w
    where d.namespace = %(namespace)s and d.expires_after is not null)), :now);

-- name: repair
select yamlsched.repair(%(namespace)s, :now)
    as repaired;

-- name: wake
-- Wake the waiting workers.
select pg_notify('yamlsched', %(namespace)s);

-- name: lock
-- Wait for runs, and lock them until the transaction ends: what is read of them then is true.
select r.id
from yamlsched.job_runs r
where r.id = any (%(ids)s::bigint[])
order by r.id
for no key update;

-- name: heartbeat
-- Renew locked_until of the runs that a worker holds, each only if nobody else has claimed it
-- since: also of one that was cancelled, or finished by its handler's own transaction, until the
-- worker has ended the handler. Returns those that are still ours. The duration is that of the
-- claim, which the worker computes with, also if the job has a shorter lease now. A row that a
-- handler's own transaction has locked is skipped: it is about to finish. `is true` makes the
-- planner hash the list instead of reading it once per row.
with renewed as (
    update yamlsched.job_runs r
    set locked_until = :now + make_interval(secs => %(lease)s::float8)
    where r.id = any (array(
        select m.id from yamlsched.job_runs m
        where m.id = any (%(ids)s::bigint[]) and m.locked_until is not null
          and ((m.id, m.attempts, m.locked_by) in
               (select * from unnest(%(ids)s::bigint[], %(attempts)s::int[],
                   %(tokens)s::text[]))) is true
        for no key update of m skip locked))
    returning r.id, r.status
)
select n.id from renewed n where n.status = 'running';

-- name: ownership
-- Whose runs are: `ours` (also while a row is locked), `lost`, or the status in which our claim has
-- left a run. `locked_by` is new for each claim and is kept when the claim ends, so it shows which
-- claim wrote the status. The number of attempts differs only if it was edited by hand.
select o.id, case when r.locked_by is distinct from o.token then 'lost'
                  when r.status <> 'running' then r.status
                  when r.attempts = o.attempt then 'ours' else 'lost' end as owner
from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]) as o (id, attempt, token)
left join yamlsched.job_runs r on r.id = o.id;

-- name: succeed
-- Write successes without a result, each only if its run is still ours and holds nothing to
-- release: no permit, no hook, and nobody follows its job. The fence is the whole `where`. What
-- waits for all that their parents have enqueued is offered by later statements of the function.
with ended as (
    update yamlsched.job_runs r
    set status = 'succeeded', locked_until = null,
        finished_at = :now,
        updated_at = :now,
        cpu_seconds = o.cpu_seconds, peak_memory_bytes = o.peak
    from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[],
        %(cpu_seconds)s::float8[], %(peaks)s::bigint[])
      as o (id, attempt, token, cpu_seconds, peak)
    where r.id = o.id
      and r.status = 'running' and r.attempts = o.attempt and r.locked_by = o.token
      and not r.exclusive
      and (select p.n from yamlsched.permits p where p.run_id = r.id limit 1) is null
      and r.definition_id not in (select d.id from yamlsched.job_definitions d
                                  where d.is_followed or d.on_success <> '{}')
    returning r.id, r.namespace, case when r.hook is null then r.parent_id end as parent_id
), parents as (
    select e.namespace, array_agg(distinct e.parent_id) as ids
    from ended e where e.parent_id is not null group by e.namespace
), offered as (
    select yamlsched.promote(p.namespace, '{}', 0, :now, p.ids) as runs
    from parents p
)
select coalesce(array_agg(e.id), '{}') as ids, (select o.runs from offered o) from ended e;

-- name: succeed_in
-- Write the success of one run, as the last statement of its handler's own transaction; see the
-- function. It runs with the handler's search_path: every name is qualified. Returns a row if the
-- run was still that of the attempt.
select from yamlsched.succeed_in(
    %(id)s::pg_catalog.int8, %(attempt)s::pg_catalog.int4, %(token)s::pg_catalog.text,
    %(result)s::pg_catalog.jsonb, %(done)s::pg_catalog.float8, %(total)s::pg_catalog.float8,
    %(note)s::pg_catalog.text) as s (is_written)
where s.is_written;

-- name: finish
-- Write outcomes of any kind, each only if its run is still ours; for a failed attempt also its row
-- in the audit trail. `release` follows, in the same transaction.
-- Strings are sent in binary: as text, each is searched for what has to be escaped.
with outcome as materialized (
    select o.*, :now as now
    from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[], %(statuses)b::text[],
                %(delays)s::float8[], %(refunds)s::boolean[], %(begun)s::boolean[],
                %(errors)b::text[], %(error_types)b::text[], %(stacks)b::text[],
                %(results)b::text[], %(outputs)b::text[], %(omitted)s::bigint[],
                %(releases)s::int[], %(cpu_seconds)s::float8[], %(peaks)s::bigint[])
      as o (id, attempt, token, status, delay, refund, has_begun, error, error_type, stack, result,
            output, omitted_bytes, releases, cpu_seconds, peak)
), finished as (
    update yamlsched.job_runs r
    set status       = o.status,
        attempts     = r.attempts - o.refund::int,
        releases     = o.releases,
        begun_at     = case when o.has_begun or r.begun_at < r.started_at then r.begun_at end,
        run_at       = case when o.delay is null then r.run_at
            else o.now + make_interval(secs => o.delay) end,
        -- locked_by stays: the last owner, and the proof for a lost commit answer
        locked_until = null,
        finished_at  = case when o.status in ('succeeded', 'dead', 'cancelled') then o.now end,
        dead_at      = case when o.status = 'dead' then o.now end,
        failed_at    = case when o.error is null then r.failed_at else o.now end,
        last_error   = coalesce(o.error, r.last_error),
        error_type   = case when o.error is null then r.error_type else o.error_type end,
        result       = coalesce(o.result::jsonb, r.result),
        cpu_seconds  = o.cpu_seconds, peak_memory_bytes = o.peak,
        updated_at   = o.now
    from outcome o
    where r.id = o.id
      and r.status = 'running'
      and r.attempts = o.attempt
      and r.locked_by = o.token
    returning r.id, r.run_at, r.started_at, r.revision, r.definition_id, r.status, o.attempt,
              o.token, o.error, o.error_type as type, o.stack, o.output, o.omitted_bytes,
              o.cpu_seconds, o.peak, o.now
), failures as (
    insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error,
        error_type, stack, revision,
                                        cpu_seconds, peak_memory_bytes)
    select f.id, f.attempt, f.token, f.started_at, f.now, f.error, f.type, f.stack, f.revision,
           f.cpu_seconds, f.peak
    from finished f where f.error is not null
    on conflict (run_id, attempt) do nothing
), outputs as (
    insert into yamlsched.attempt_outputs (run_id, attempt, worker, ended_at, omitted_bytes, output)
    select f.id, f.attempt, f.token, f.now, f.omitted_bytes, f.output
    from finished f where f.output is not null
    on conflict (run_id, attempt) do update
    set worker = excluded.worker, ended_at = excluded.ended_at,
        omitted_bytes = excluded.omitted_bytes,
        output = excluded.output
)
select f.id, f.run_at,
       f.status in ('dead', 'failed') or f.status = 'succeeded' and f.definition_id in (
           select d.id from yamlsched.job_definitions d
           where d.is_followed or d.on_success <> '{}') as is_reported
from finished f;

-- name: unlock
-- The handlers of runs have ended that were cancelled, or finished by their handlers' own
-- transactions: nobody executes them any more. `release` follows.
update yamlsched.job_runs r
set locked_until = null
from unnest(%(ids)s::bigint[], %(tokens)s::text[]) as o (id, token)
where r.id = o.id and r.locked_by = o.token and r.locked_until is not null
  and r.status <> 'running'
returning r.id;

-- name: keep_outputs
-- The outputs of attempts whose outcome is not written by `finish`: the run was cancelled, another
-- claim has it, or the handler's own transaction has finished it. No fence, because no run changes.
-- What a later attempt of the same number has printed stays.
insert into yamlsched.attempt_outputs (run_id, attempt, worker, ended_at, omitted_bytes, output)
select r.id, o.attempt, o.token, :now, o.omitted_bytes,
       o.output
from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[], %(omitted)s::bigint[],
    %(outputs)s::text[])
  as o (id, attempt, token, omitted_bytes, output)
join yamlsched.job_runs r on r.id = o.id
where o.output is not null
for key share of r  -- or a prune might leave the output
on conflict (run_id, attempt) do nothing;

-- name: note_usage
-- What the same attempts used. A run that has been retried or claimed since is not theirs.
update yamlsched.job_runs r
set cpu_seconds = o.cpu_seconds, peak_memory_bytes = o.peak
from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[], %(cpu_seconds)s::float8[],
    %(peaks)s::bigint[])
  as o (id, attempt, token, cpu_seconds, peak)
where r.id = o.id and r.attempts = o.attempt and r.locked_by = o.token
  and r.finished_at is not null and o.cpu_seconds is not null;

-- name: running_under
-- What runs under a claim.
select r.id, r.attempts as attempt, r.releases
from yamlsched.job_runs r
where r.namespace = %(namespace)s and r.blocked_on is null and r.finished_at is null
  and r.status = 'running' and r.locked_by = %(token)s;

-- name: scope
-- A worker may claim the jobs that its own file maps to a handler: those up to `newest`, without
-- the `others`. A job that another host's file adds later has a greater id. `has_end`: with the
-- timeouts, for a worker that ends after a time.
select coalesce(max(d.id), 0) as newest,
       coalesce(array_agg(d.id) filter (where n.name is null), '{}') as others,
       coalesce(array_agg(d.id) filter (where %(has_end)s), '{}') as ids,
       coalesce(array_agg(extract(epoch from d.timeout)::float8) filter (where %(has_end)s), '{}')
           as timeouts
from yamlsched.job_definitions d
left join (select distinct u.name from unnest(%(names)s::text[]) as u (name)) n
    on n.name = d.job_type
where d.namespace = %(namespace)s;

-- name: listen
-- Enqueues and syncs notify this channel; the payload is the namespace.
listen yamlsched;
