-- The audit trail of operators' actions, and the forms of the web page that asked for them.

-- name: trail
-- Newest first, one page: `before` is the last id of the previous page. A null parameter does not
-- filter; each filter has an index, and the planner sees which are used.
select a.id, a.at, a.who, a.verb, a.target, a.job_type, a.detail, a.request is not null as by_form
from yamlsched.operator_actions a
where a.namespace = %(namespace)s
  and (%(verb)s::text is null or a.verb = %(verb)s)
  and (%(who)s::text is null or a.who = %(who)s)
  and (%(job_type)s::text is null or a.job_type = %(job_type)s)
  and (%(target)s::text is null or a.target = %(target)s)
  and (%(before)s::bigint is null or a.id < %(before)s)
order by a.id desc
limit %(limit)s;

-- name: rest_of_action
-- How many of the next entries belong to the same action as the one before, and the id of the last
-- of them. At most `limit` entries are examined; they are counted here, because an action on many
-- runs has thousands.
with examined as materialized (
    select a.id,
           a.who = %(of_who)s and a.verb = %(of_verb)s
           and (a.verb in ('pause', 'resume') or a.job_type is not distinct
               from %(of_job_type)s::text)
           and a.detail ->> 'reason' is not distinct from %(of_reason)s::text
           and a.at > %(since)s::timestamptz as is_same
    from yamlsched.operator_actions a
    where a.namespace = %(namespace)s
      and (%(verb)s::text is null or a.verb = %(verb)s)
      and (%(who)s::text is null or a.who = %(who)s)
      and (%(job_type)s::text is null or a.job_type = %(job_type)s)
      and (%(target)s::text is null or a.target = %(target)s)
      and a.id < %(before)s
    order by a.id desc
    limit %(limit)s
)
select count(*)::integer as entries, min(e.id) as last_id
from examined e
where e.id > coalesce((select max(x.id) from examined x where not x.is_same), 0);

-- name: of_request
-- What a form has done.
select a.id, a.at, a.who, a.verb, a.target, a.job_type, a.detail, true as by_form
from yamlsched.operator_actions a
where a.request = %(request)s::uuid
order by a.id
limit %(limit)s;

-- name: start_request
-- The start of a transaction that carries out a form: its actions are recorded with the form. Forms
-- about one target are carried out one after another, so that each sees what the others did. They
-- share 64 rows to lock.
select set_config('yamlsched.request', %(request)s, true),
       yamlsched.lock_gates(%(namespace)s, array['form/' || (hashtext(%(target)s) & 63)]);

-- name: pauses
-- The jobs that are paused, the latest first. `runs` are those that wait for the end of the pause,
-- up to a limit.
select d.job_type, d.timezone, d.paused_at, d.paused_until, d.paused_by, d.paused_reason,
       d.next_slot_at,
       (select count(*)
        from (select from yamlsched.job_runs r
              where r.namespace = d.namespace and r.definition_id = d.id and r.finished_at is null
                and r.status <> 'running'
              limit %(limit)s + 1) x)::integer as runs
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.paused_at is not null and d.retired_at is null
  and coalesce(d.paused_until > %(now)s, true)
order by d.paused_at desc, d.job_type;
