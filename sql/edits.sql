-- Edits: the files that were applied, and the jobs that each changed. Written by sync in the
-- transaction that applies the file. An edit is in use for everything that is created after its
-- applied_at: what the definitions before still owed is created at that instant.

-- name: definitions
-- The jobs that an edit changes, as they are before it. All columns: definitions.job knows which of
-- them make up a job.
select d.*
from yamlsched.job_definitions d
where d.id = any (%(ids)s::bigint[])
order by d.id;

-- name: latest_settings
-- What the file before said outside of its jobs.
select e.settings
from yamlsched.edits e
where e.namespace = %(namespace)s
order by e.applied_at desc, e.id desc
limit 1;

-- name: record
-- One edit and all the jobs that it changed, in one statement. An edit that changes no job is
-- recorded, too.
with edit as (
    insert into yamlsched.edits
        (namespace, environment, hash, host, path, yamlsched_version, commit, is_dirty, author,
            subject, jobs, before,
         after, settings, applied_at)
    values (%(namespace)s, %(environment)s, %(hash)s, %(host)s, %(path)s, %(yamlsched_version)s,
        %(commit)s, %(is_dirty)s,
            %(author)s, %(subject)s, %(counts)s, %(before)s, %(after)s, %(settings)s, %(now)s)
    returning id
)
insert into yamlsched.edited_jobs (edit_id, definition_id, change, before, after)
select e.id, d.id, j.job ->> 'change', nullif(j.job -> 'before', 'null'),
       nullif(j.job -> 'after', 'null')
from edit e
cross join jsonb_array_elements(%(jobs)s) as j (job)
-- one index search for each: no plan may read all jobs of the namespace for each of them
cross join lateral (
    select f.id
    from yamlsched.job_definitions f
    where f.namespace = %(namespace)s and f.job_type = j.job ->> 'job_type'
    limit 1
) d;

-- name: edits
-- The edits of a namespace, newest first, one page: `before` is the last id of the previous page.
-- Applied in [since, until); a null parameter does not filter. Of one job: the edits that changed
-- it.
select e.id, e.namespace, e.environment, e.hash, e.host, e.path, e.yamlsched_version, e.commit,
       e.is_dirty, e.author,
       e.subject, e.jobs, e.before, e.after, e.applied_at
from yamlsched.edits e
where e.namespace = %(namespace)s
  and (%(since)s::timestamptz is null or e.applied_at >= %(since)s)
  and (%(until)s::timestamptz is null or e.applied_at < %(until)s)
  and (%(before)s::bigint is null or (e.applied_at, e.id) < (
      select b.applied_at, b.id from yamlsched.edits b where b.id = %(before)s
        and b.namespace = %(namespace)s))
  and (%(job_type)s::text is null or exists (
      select
      from yamlsched.edited_jobs c
      join yamlsched.job_definitions d on d.id = c.definition_id
      where c.edit_id = e.id and d.namespace = %(namespace)s and d.job_type = %(job_type)s))
order by e.applied_at desc, e.id desc
limit %(limit)s;

-- name: changes
-- How edits changed jobs: those that one edit changed in the same way together, so that an edit of
-- defaults is one row. At most `limit` rows of each edit, in the order of the first job; `groups`
-- is how many it has, `jobs` how many jobs. A null job_type does not filter.
select g.edit_id, g.change, g.before, g.after, g.jobs, g.first, g.groups
from unnest(%(ids)s::bigint[]) as i (id)
cross join lateral (
    select c.edit_id, c.change, c.before, c.after, count(*) as jobs,
           (array_agg(d.job_type order by d.job_type))[:%(names)s] as first,
           count(*) over () as groups
    from yamlsched.edited_jobs c
    join yamlsched.job_definitions d on d.id = c.definition_id
    where c.edit_id = i.id
      and (%(job_type)s::text is null or c.definition_id = (
          select j.id
          from yamlsched.edits e
          join yamlsched.job_definitions j on j.namespace = e.namespace
          where e.id = i.id and j.job_type = %(job_type)s))
    group by c.edit_id, c.change, c.before, c.after
    order by min(d.job_type)
    limit %(limit)s
) g
order by g.edit_id, g.first;
