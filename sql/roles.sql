-- Four roles to grant to logins, each with the least it needs. Run it as a superuser, or as the database's owner with
-- CREATEROLE, after each "yamlsched migrate"; it may be run again and again.
--
--     yamlsched migrate --roles | psql -d app
--     grant yamlsched_worker   to scheduler;   -- crontab, work, and operators: retry, cancel, pause
--     grant yamlsched_enqueuer to webapp;      -- may call yamlsched.enqueue, and see nothing
--     grant yamlsched_reader   to grafana;     -- sees everything, payloads and results included; changes nothing
--     grant yamlsched_owner    to deployer;    -- migrates; not needed by anything that runs every day

do $$
declare
    name text;
begin
    foreach name in array array['yamlsched_owner', 'yamlsched_worker', 'yamlsched_enqueuer', 'yamlsched_reader'] loop
        begin
            execute format('create role %I nologin', name);
        exception
            -- roles belong to the whole server: another database, or somebody just now, has made it
            when duplicate_object or unique_violation then null;
        end;
    end loop;
end
$$;

-- The owner owns, so that whoever is in it can migrate what another member made.
do $$
declare
    thing record;
begin
    execute format('grant create on database %I to yamlsched_owner', current_database());
    alter schema yamlsched owner to yamlsched_owner;
    for thing in
        select c.oid::regclass::text as name
        from pg_catalog.pg_class c
        where c.relnamespace = 'yamlsched'::regnamespace and c.relkind in ('r', 'v')
    loop
        execute format('alter table %s owner to yamlsched_owner', thing.name);
    end loop;
    for thing in
        select p.oid::regprocedure::text as name
        from pg_catalog.pg_proc p
        where p.pronamespace = 'yamlsched'::regnamespace
    loop
        execute format('alter function %s owner to yamlsched_owner', thing.name);
    end loop;
end
$$;

-- Functions are everybody's by default, and those that enqueue act with their owner's rights.
revoke all on all functions in schema yamlsched from public;
-- Without "in schema": what everybody has by default can be taken away for the whole database only.
alter default privileges for role yamlsched_owner revoke execute on functions from public;
revoke all on schema yamlsched from public;
grant usage on schema yamlsched to yamlsched_worker, yamlsched_enqueuer, yamlsched_reader;

grant execute on all functions in schema yamlsched to yamlsched_worker, yamlsched_enqueuer;

grant select on all tables in schema yamlsched to yamlsched_reader, yamlsched_worker;

-- The audit trails (job_failures, operator_actions) can be added to, and not rewritten.
grant insert on yamlsched.job_failures, yamlsched.operator_actions to yamlsched_worker;
grant insert, update on yamlsched.namespaces, yamlsched.job_definitions, yamlsched.skipped_slots to yamlsched_worker;
grant insert, update, delete on yamlsched.job_runs, yamlsched.effects, yamlsched.used_keys, yamlsched.schedule_files
    to yamlsched_worker;
