-- The audit trail of operators' actions, and the forms of the web page that asked for them.

-- name: trail
-- Newest first, one page: `before` is the last id of the previous page. A null parameter does not
-- filter. A target has an index; other filters read the trail, newest first, up to a full page.
select a.id, a.at, a.who, a.verb, a.target, a.job_type, a.detail, a.request is not null as by_form
from yamlsched.operator_actions a
where a.namespace = %(namespace)s
  and (%(verb)s::text is null or a.verb = %(verb)s)
  and (%(who)s::text is null or a.who = %(who)s)
  and (%(job_type)s::text is null or a.job_type = %(job_type)s)
  and (%(target)s::text is null or a.target = %(target)s)
  and (%(request)s::uuid is null or a.request = %(request)s)
  and (%(before)s::bigint is null or a.id < %(before)s)
order by a.id desc
limit %(limit)s;

-- name: start_request
-- The start of a transaction that carries out a form: its actions are recorded with the form. Forms
-- about one target are carried out one after another, so that each sees what the others did. They
-- share 64 rows to lock.
select set_config('yamlsched.request', %(request)s, true),
       yamlsched.lock_gates(%(namespace)s, array['form/' || (hashtext(%(target)s) & 63)]);
