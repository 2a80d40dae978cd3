-- name: claim
-- Take the key of an effect, in one statement with its whole precondition: our lease on the run holds. Answers with
-- how the key stood; no row: the lease is lost. Without a state the key is free and was not to be had: it was
-- released, or claimed by another, while this statement waited. A new one sees which.
with ours as materialized (
    select r.id from yamlsched.job_runs r
    where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s and r.attempts = %(attempt)s
      and r.locked_until > clock_timestamp()
), made as (
    insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, state)
    select %(namespace)s, %(key)s, %(run_id)s, %(attempt)s, %(locked_by)s, 'claimed' from ours
    on conflict (namespace, key) do nothing
    returning key
)
select (select m.key from made m) is not null as is_first,
       e.state, e.result, e.run_id, e.attempt, e.locked_by, e.claimed_at,
       coalesce((select true from yamlsched.job_runs r
                 where r.id = e.run_id and r.status = 'running' and r.locked_by = e.locked_by
                   and r.attempts = e.attempt and r.locked_until > clock_timestamp()), false) as holder_is_live
from ours
left join yamlsched.effects e on e.namespace = %(namespace)s and e.key = %(key)s;

-- name: doubt
-- The process that began the effect died inside, or left it by an exception that says nothing of it.
update yamlsched.effects e
set state = 'in_doubt'
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'claimed'
  and e.locked_by = %(holder)s and e.run_id = %(holder_run_id)s and e.attempt = %(holder_attempt)s
returning e.key;

-- name: take_over
-- Begin an effect in doubt again, if our lease still holds.
update yamlsched.effects e
set state = 'claimed', run_id = %(run_id)s, attempt = %(attempt)s, locked_by = %(locked_by)s,
    claimed_at = clock_timestamp()
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'in_doubt'
  and (select r.locked_until > clock_timestamp() from yamlsched.job_runs r
       where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s
         and r.attempts = %(attempt)s)
returning e.key;

-- name: done
-- What was done was done, also if somebody has come to doubt it meanwhile, or if this was written before by a commit
-- whose answer was lost; not if it was begun again since.
update yamlsched.effects e
set state = 'done', result = %(result)s::jsonb, done_at = clock_timestamp()
where e.namespace = %(namespace)s and e.key = %(key)s
  and e.locked_by = %(locked_by)s and e.run_id = %(run_id)s and e.attempt = %(attempt)s
returning e.key;

-- name: release
-- It was not done: the key is free again. Not if another attempt has come to doubt it: what that one has made of the
-- doubt stands.
delete from yamlsched.effects e
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'claimed'
  and e.locked_by = %(locked_by)s and e.run_id = %(run_id)s and e.attempt = %(attempt)s;

-- name: settle_done
-- A person has looked up that an effect in doubt did happen. An effect is in doubt also while it is claimed by an
-- attempt that is over: nobody has come to it since.
with settled as (
    update yamlsched.effects e
    set state = 'done', result = %(result)s::jsonb, done_at = clock_timestamp()
    where e.namespace = %(namespace)s and e.key = %(key)s and e.state <> 'done'
      and not (e.state = 'claimed' and exists (
          select from yamlsched.job_runs r
          where r.id = e.run_id and r.status = 'running' and r.locked_by = e.locked_by and r.attempts = e.attempt))
    returning e.namespace, e.key, e.run_id
)
insert into yamlsched.operator_actions (namespace, who, verb, target, detail)
select s.namespace, %(who)s, 'settle', 'run:' || s.run_id, jsonb_build_object('effect', s.key, 'as', 'done')
from settled s;

-- name: settle_not_done
-- A person has looked up that it did not happen: the next attempt does it.
with settled as (
    delete from yamlsched.effects e
    where e.namespace = %(namespace)s and e.key = %(key)s and e.state <> 'done'
      and not (e.state = 'claimed' and exists (
          select from yamlsched.job_runs r
          where r.id = e.run_id and r.status = 'running' and r.locked_by = e.locked_by and r.attempts = e.attempt))
    returning e.namespace, e.key, e.run_id
)
insert into yamlsched.operator_actions (namespace, who, verb, target, detail)
select s.namespace, %(who)s, 'settle', 'run:' || s.run_id, jsonb_build_object('effect', s.key, 'as', 'not done')
from settled s;

-- name: standing
-- How an effect stands, and the run that began it.
select e.state, e.run_id, e.attempt, e.claimed_at, e.done_at,
       coalesce((select r.status = 'running' and r.locked_by = e.locked_by and r.attempts = e.attempt
                 from yamlsched.job_runs r where r.id = e.run_id), false) as is_running
from yamlsched.effects e
where e.namespace = %(namespace)s and e.key = %(key)s;
