-- Privileges, figures and claims after the reviews of 0003. Replaces functions and views and creates small tables; locks
-- and rewrites nothing that may be large.
-- oldest_supported: 3

-- Privileges

-- What depends on runs goes with them. Only the trigger of job_runs may call it: it acts with its owner's privileges,
-- and who attached it to a table of their own could choose the ids.
create or replace function yamlsched.delete_of_runs() returns trigger
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off  -- a plan that was made for empty tables
as $$
declare
    ids bigint[];
begin
    if tg_relid <> 'yamlsched.job_runs'::regclass then
        raise exception 'yamlsched.delete_of_runs is the trigger of yamlsched.job_runs only' using errcode = 'insufficient_privilege';
    end if;
    ids := array(select g.id from gone g);
    if ids <> '{}' then
        delete from yamlsched.job_failures f where f.run_id = any (ids);
        delete from yamlsched.attempt_outputs o where o.run_id = any (ids);
        delete from yamlsched.attempt_progress p where p.run_id = any (ids);
        delete from yamlsched.attempt_begins b where b.run_id = any (ids);
    end if;
    return null;
end
$$;

-- Figures

-- Claims

-- The variables that a host needs to start the job. A default that does not change: no row is written.
alter table yamlsched.job_definitions add column requires_env text[] not null default '{}';

-- Jobs that a place cannot start: a host, and the path of its schedules.yaml. Its workers do not claim their runs. A place
-- is asked only while it ticks, and writes only while something is due.
create table yamlsched.lacks (
    definition_id bigint not null references yamlsched.job_definitions (id) on delete cascade,
    host          text not null,
    path          text not null,
    reason        text not null,
    waits         boolean not null,      -- for what requires_env asks: the run is late, and never dead
    since         timestamptz not null,
    checked_at    timestamptz not null,
    primary key (host, path, definition_id)
);
create index lacks_of_definition on yamlsched.lacks (definition_id);
