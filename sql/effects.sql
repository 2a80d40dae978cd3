-- Who is inside an effect: the attempt that claimed it, while it has the lease, and after a cancel until the lease would
-- have ended (held_until), because its handler may live until its worker's next heartbeat.

-- name: claim
-- Take the key of an effect, in one statement with its whole precondition: our lease on the run holds. Answers with
-- how the key stood; no row: the lease is lost. Without a state the key is free and was not available: it was
-- released, or claimed by another, while this statement waited. A new one sees which.
-- effect.key, which a provider gets, is a UUID (version 8) made of the database's identity, the namespace, the key,
-- and for an effect of one run also the run's nonce, because a lost run's id may be used again. A business key is
-- without the nonce: it must mean the same whichever run comes to it.
with ours as materialized (
    select r.id, encode(sha256(convert_to(
               concat_ws(':', (select i.identity from yamlsched.database_identity i), %(namespace)s::text,
                         case when %(is_of_run)s then r.nonce::text else 'key' end, %(key)s::text), 'UTF8')), 'hex') as hash
    from yamlsched.job_runs r
    where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s and r.attempts = %(attempt)s
      and r.locked_until > clock_timestamp()
), made as (
    insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, entry, provider_key, state)
    select %(namespace)s, %(key)s, %(run_id)s, %(attempt)s, %(locked_by)s, %(entry)s::uuid,
           (substr(o.hash, 1, 12) || '8' || substr(o.hash, 14, 3) || '8' || substr(o.hash, 18, 15))::uuid, 'claimed'
    from ours o
    on conflict (namespace, key) do nothing
    returning key, provider_key
)
select (select m.key from made m) is not null as is_first,
       e.state, e.result, e.run_id, e.attempt, e.entry::text,
       coalesce((select m.provider_key from made m), e.provider_key)::text as provider_key, e.claimed_at,
       coalesce((select true from yamlsched.job_runs r
                 where r.id = e.run_id and r.locked_by = e.locked_by and r.attempts = e.attempt
                   and greatest(r.locked_until, r.held_until) > clock_timestamp()), false) as holder_is_live
from ours
left join yamlsched.effects e on e.namespace = %(namespace)s and e.key = %(key)s;

-- name: mark_in_doubt
-- Whoever entered the effect died inside, or left it by an exception that does not prove that nothing happened.
-- An entry has one owner and one attempt: it is the whole fence.
update yamlsched.effects e
set state = 'in_doubt', doubted_at = clock_timestamp()
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'claimed' and e.entry = %(doubted)s::uuid
returning e.key;

-- name: take_over
-- in_doubt="repeat": enter an effect in doubt again, if our lease still holds. provider_key stays.
update yamlsched.effects e
set state = 'claimed', run_id = %(run_id)s, attempt = %(attempt)s, locked_by = %(locked_by)s,
    entry = %(entry)s::uuid, claimed_at = clock_timestamp(), doubted_at = null
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'in_doubt'
  and (select r.locked_until > clock_timestamp() from yamlsched.job_runs r
       where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s
         and r.attempts = %(attempt)s)
returning e.key;

-- name: assume_done
-- in_doubt="skip": count an effect in doubt as done, if our lease still holds. doubted_at stays and says so.
update yamlsched.effects e
set state = 'done', done_at = clock_timestamp()
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'in_doubt'
  and (select r.locked_until > clock_timestamp() from yamlsched.job_runs r
       where r.id = %(run_id)s and r.status = 'running' and r.locked_by = %(locked_by)s
         and r.attempts = %(attempt)s)
returning e.key;

-- name: mark_done
-- What was done was done, also if somebody has come to doubt it meanwhile, or if this was written before by a commit
-- whose answer was lost; not if it was entered again since.
update yamlsched.effects e
set state = 'done', result = %(result)s::jsonb, done_at = clock_timestamp(), doubted_at = null
where e.namespace = %(namespace)s and e.key = %(key)s and e.entry = %(entry)s::uuid
returning e.key;

-- name: release
-- Nothing happened: the key is free again. Not if another attempt has come to doubt it: what that one has made of the
-- doubt stands.
delete from yamlsched.effects e
where e.namespace = %(namespace)s and e.key = %(key)s and e.state = 'claimed' and e.entry = %(entry)s::uuid;

-- name: settle_done
-- A person has looked up that an effect in doubt did happen. An effect is in doubt also while it is claimed by an
-- attempt that is over (nobody has come to it since), and where in_doubt="skip" counted it as done.
with settled as (
    update yamlsched.effects e
    set state = 'done', result = %(result)s::jsonb, done_at = clock_timestamp(), doubted_at = null
    where e.namespace = %(namespace)s and e.key = %(key)s and (e.state <> 'done' or e.doubted_at is not null)
      and not (e.state = 'claimed' and exists (
          select from yamlsched.job_runs r
          where r.id = e.run_id and r.locked_by = e.locked_by and r.attempts = e.attempt
            and (r.status = 'running' or r.held_until > clock_timestamp())))
    returning e.namespace, e.key, e.run_id
)
insert into yamlsched.operator_actions (namespace, who, verb, target, detail)
select s.namespace, %(who)s, 'settle', 'run:' || s.run_id, jsonb_build_object('effect', s.key, 'as', 'done')
from settled s;

-- name: settle_not_done
-- A person has looked up that it did not happen: the next attempt does it.
with settled as (
    delete from yamlsched.effects e
    where e.namespace = %(namespace)s and e.key = %(key)s and (e.state <> 'done' or e.doubted_at is not null)
      and not (e.state = 'claimed' and exists (
          select from yamlsched.job_runs r
          where r.id = e.run_id and r.locked_by = e.locked_by and r.attempts = e.attempt
            and (r.status = 'running' or r.held_until > clock_timestamp())))
    returning e.namespace, e.key, e.run_id
)
insert into yamlsched.operator_actions (namespace, who, verb, target, detail)
select s.namespace, %(who)s, 'settle', 'run:' || s.run_id, jsonb_build_object('effect', s.key, 'as', 'not done')
from settled s;

-- name: find
-- How an effect stands, and the run that entered it.
select e.state, e.run_id, e.attempt, e.claimed_at, e.done_at,
       coalesce((select r.locked_by = e.locked_by and r.attempts = e.attempt
                        and (r.status = 'running' or r.held_until > clock_timestamp())
                 from yamlsched.job_runs r where r.id = e.run_id), false) as is_running
from yamlsched.effects e
where e.namespace = %(namespace)s and e.key = %(key)s;
