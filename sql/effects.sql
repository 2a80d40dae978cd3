-- name: claim
-- Claim the key of an effect, if our lease on the run holds, and return what was found. No row: the
-- lease is lost. Without a state the key was not available and is free now: it was released, or
-- another claimed it, while this statement waited. The next claim sees which. effect.key, which a
-- provider gets, is a UUID (version 8) made of the database's identity, the namespace, the key, and
-- for an effect of one run also when the run was created, because a failover or a restore may lose
-- a run and use its id again. A business key goes without: it must mean the same for every run.
with ours as materialized (
    select r.id, encode(sha256(convert_to(
               concat_ws(':', (select i.identity from yamlsched.database_identity i),
                   %(namespace)s::text,
                         case when %(is_of_run)s then extract(epoch from r.created_at)::text
                              else 'key' end, %(key)s::text),
                             'UTF8')), 'hex') as hash
    from yamlsched.job_runs r
    where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s
      and r.attempts = %(attempt)s
      and r.locked_until > clock_timestamp()
), made as (
    insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, entry, provider_key,
        state)
    select %(namespace)s, %(key)s, %(run_id)s, %(attempt)s, %(locked_by)s, %(entry)s::uuid,
           (substr(o.hash, 1, 12) || '8' || substr(o.hash, 14, 3) || '8' || substr(o.hash, 18,
               15))::uuid, 'claimed'
    from ours o
    on conflict (namespace, key) do nothing
    returning key, provider_key
)
select (select m.key from made m) is not null as is_first,
       e.state, e.result, e.run_id, e.attempt, e.entry::text,
       coalesce((select m.provider_key from made m), e.provider_key)::text as provider_key,
       e.claimed_at,
       coalesce((select true from yamlsched.job_runs r
                 where r.id = e.run_id and r.locked_by = e.locked_by and r.attempts = e.attempt
                   and r.locked_until > clock_timestamp()),
                       false) as holder_is_live
from ours
left join yamlsched.effects e on e.namespace = %(namespace)s and e.key = %(key)s;

-- name: mark_in_doubt
-- The attempt that entered the effect died inside, or left it by an exception that does not prove
-- that nothing happened. An entry has one owner and one attempt, so it is the whole fence.
update yamlsched.effects e
set state = 'in_doubt', doubted_at = clock_timestamp()
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'claimed'
  and e.entry = %(doubted)s::uuid
returning e.key;

-- name: take_over
-- in_doubt="repeat": enter an effect in doubt again, if our lease still holds. provider_key does
-- not change.
update yamlsched.effects e
set state = 'claimed', run_id = %(run_id)s, attempt = %(attempt)s, locked_by = %(locked_by)s,
    entry = %(entry)s::uuid, claimed_at = clock_timestamp(), doubted_at = null
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'in_doubt'
  and (select r.locked_until > clock_timestamp() from yamlsched.job_runs r
       where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s
         and r.attempts = %(attempt)s)
returning e.key;

-- name: assume_done
-- in_doubt="skip": count an effect in doubt as done, if the lease still holds. doubted_at is kept
-- as the record of it.
update yamlsched.effects e
set state = 'done', done_at = clock_timestamp()
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'in_doubt'
  and (select r.locked_until > clock_timestamp() from yamlsched.job_runs r
       where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s
         and r.attempts = %(attempt)s)
returning e.key;

-- name: mark_done
-- The effect is done, even if another attempt has marked it as in doubt since, or if an earlier
-- commit whose answer was lost wrote this. It is not, if it was entered again since.
update yamlsched.effects e
set state = 'done', result = %(result)s::jsonb, done_at = clock_timestamp(), doubted_at = null
where e.namespace = %(namespace)s and e.key = %(key)s and e.entry = %(entry)s::uuid
returning e.key;

-- name: release
-- Nothing happened: the key is free again, unless another attempt has marked the effect as in doubt
-- and decided on it.
delete from yamlsched.effects e
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'claimed'
  and e.entry = %(entry)s::uuid;

-- name: settle
-- A person has found out whether an effect in doubt happened. If it did not, the next attempt does
-- it. An effect is also in doubt if the attempt that claimed it is over and no other has used it
-- since, and if in_doubt="skip" counted it as done. Returns the job, for the audit trail.
with unsettled as (
    select e.id, e.run_id
    from yamlsched.effects e
    where e.namespace = %(namespace)s and e.key = %(key)s and (e.state <> 'done'
        or e.doubted_at is not null)
      and not (e.state = 'claimed' and yamlsched.is_inside(e))
    for update
), done as (
    update yamlsched.effects e
    set state = 'done', result = %(result)s::jsonb, done_at = clock_timestamp(), doubted_at = null
    from unsettled u
    where e.id = u.id and %(happened)s
), reset as (
    delete from yamlsched.effects e using unsettled u
    where e.id = u.id and not %(happened)s
)
select u.run_id, r.job_type
from unsettled u left join yamlsched.job_runs r on r.id = u.run_id;

-- name: find
-- The state of an effect, and the run that entered it.
select e.state, e.run_id, e.attempt, e.provider_key::text, e.claimed_at, e.doubted_at, e.done_at,
       yamlsched.is_inside(e) as is_running
from yamlsched.effects e
where e.namespace = %(namespace)s and e.key = %(key)s;
