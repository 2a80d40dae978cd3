-- Workers report here. What they write decides nothing about runs: only the lease does.

-- name: report
-- A worker has come, for each of its queues. A queue is not returned if another process with this
-- id is live there. One that was lost, or that its engine has started again, takes its row over;
-- `takes_over`: in any case, because the id names this very process.
insert into yamlsched.workers as w
    (namespace, id, queue, host, path, revision, reported_at, seen_at)
select %(namespace)s, %(id)s, q.name, %(host)s, %(path)s, %(revision)s, c.now, c.now
from unnest(%(queues)s::text[]) as q (name)
cross join (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c
on conflict (namespace, id, queue) do update
set host = excluded.host, path = excluded.path, revision = excluded.revision,
    reported_at = excluded.reported_at, seen_at = excluded.seen_at,
    leaving_at = null, ended_at = null, runs = 0
where %(takes_over)s or w.ended_at is not null
   or w.seen_at <= excluded.seen_at - interval '60 seconds'
returning w.queue, w.reported_at;

-- name: beat
-- A worker is there, or has ended. Returns the queues whose rows are its own: others were pruned,
-- or taken over by another process after it was lost. One that was counted as lost is live again.
update yamlsched.workers w
set seen_at = c.now, runs = o.runs,
    leaving_at = case when %(is_leaving)s then coalesce(w.leaving_at, c.now) end,
    ended_at = case when %(has_ended)s then c.now end
from (select coalesce(%(now)s::timestamptz, clock_timestamp()) as now) c
cross join unnest(%(queues)s::text[], %(reported_ats)s::timestamptz[], %(runs)s::bigint[])
    as o (queue, reported_at, runs)
where w.namespace = %(namespace)s and w.id = %(id)s and w.queue = o.queue
  and w.reported_at = o.reported_at
returning w.queue;

-- name: loads
-- How much there is to do in each queue, counted to 1,000 of each level, and who does it.
select l.queue, l.due, l.executing, l.oldest_due_at, l.live, l.leaving
from yamlsched.queue_loads(%(namespace)s, 1000, clock_timestamp()) l
order by l.queue;

-- name: latest
-- Workers: those that are there first, then the latest.
select w.id, w.queue, w.host, w.path, w.revision, w.reported_at, w.seen_at, w.leaving_at,
       w.ended_at, w.runs
from yamlsched.workers w
where w.namespace = %(namespace)s
order by w.ended_at is not null, w.seen_at desc, w.id, w.queue
limit %(limit)s;

-- name: prune
-- Forget workers that ended, or were seen last, more than 7 days ago.
delete from yamlsched.workers w
where w.namespace = %(namespace)s
  and coalesce(w.ended_at, w.seen_at)
      < coalesce(%(now)s::timestamptz, clock_timestamp()) - interval '7 days';
