-- Concurrency of executors, over all hosts. Locks job_runs for a moment: it adds a column without a default, and an index of no rows.
-- oldest_supported: 3

-- The executor that has claimed the run, while it is running. A later claim for that executor, under its gate, clears what
-- has ended; the gate's n is the number of the applied file, null for the one of the host that claims.
alter table yamlsched.job_runs add column executor text;
create index job_runs_executor on yamlsched.job_runs (namespace, executor) where executor is not null;
update yamlsched.job_runs r set executor = r.lane
where r.finished_at is null and r.status = 'running' and r.lane not in ('local', 'shared');
insert into yamlsched.gates (namespace, name)
select distinct d.namespace, 'executor/' || d.executor from yamlsched.job_definitions d where d.executor <> 'local';

-- How many more runs may execute on an executor: those of its gate, which is locked until the end of the transaction, less those
-- that run. What has ended is cleared. Null: another session has the gate.
create function yamlsched.executor_places(of_namespace text, of_executor text) returns integer
    language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    most integer;
begin
    insert into yamlsched.gates (namespace, name) values (of_namespace, 'executor/' || of_executor) on conflict do nothing;
    select coalesce(g.n, 1000) into most from yamlsched.gates g
    where g.namespace = of_namespace and g.name = 'executor/' || of_executor for no key update skip locked;
    update yamlsched.job_runs r set executor = null
    where most is not null and r.id = any (array(
        select e.id from yamlsched.job_runs e
        where e.namespace = of_namespace and e.executor = of_executor and e.status <> 'running'
        order by e.id for no key update skip locked));
    return most - (select count(*) from yamlsched.job_runs r
                   where r.namespace = of_namespace and r.executor = of_executor and r.status = 'running');
end
$$;
