-- name: server
select current_setting('server_version_num')::integer as version, current_setting('server_version') as version_text,
       current_setting('server_encoding') as encoding, current_setting('TimeZone') as timezone,
       current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on' as is_safe,
       current_setting('synchronous_commit') <> 'off' as is_durable,
       pg_is_in_recovery() as is_standby, current_setting('transaction_read_only') = 'on' as is_read_only,
       (select s.reset_val from pg_catalog.pg_settings s where s.name = 'default_transaction_isolation') as isolation,
       pg_backend_pid() as pid, clock_timestamp() as now, current_user as who,
       (select r.rolsuper from pg_catalog.pg_roles r where r.rolname = current_user) as is_superuser;

-- name: oldest_transaction
-- While a transaction is open, vacuum cannot remove the rows that were deleted or updated since it started.
select max(clock_timestamp() - a.xact_start) as age
from pg_catalog.pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid();

-- name: standbys
-- Physical standbys, without running backups and logical subscribers, which are no failover targets. Without
-- pg_read_all_stats the rows are visible, but not their states.
select count(*)::integer as count,
       current_setting('synchronous_standby_names') <> ''
       and current_setting('synchronous_commit') not in ('off', 'local') as is_synchronous
from pg_catalog.pg_stat_replication r
where coalesce(r.state, '') <> 'backup'
  and not exists (
      select from pg_catalog.pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical');

-- name: privileges
-- The privileges that sync, work and tick need and the role lacks. Read from the catalog, because a lookup by name fails
-- if the schema is missing.
select t.name || ' (' || string_agg(lower(p.privilege), ', ' order by p.privilege) || ')' as lacks
from unnest(%(tables)s::text[], %(privileges)s::text[]) as t (name, privileges)
cross join unnest(string_to_array(t.privileges, ',')) as p (privilege)
left join pg_catalog.pg_class c on c.relnamespace = (select n.oid from pg_catalog.pg_namespace n where n.nspname = 'yamlsched')
                               and c.relname = t.name
where not coalesce(has_schema_privilege(current_user, c.relnamespace, 'usage')
                   and has_table_privilege(current_user, c.oid, p.privilege), false)
group by t.name
order by t.name;

-- name: can_enqueue
select coalesce(bool_or(has_schema_privilege(current_user, p.pronamespace, 'usage')
                        and has_function_privilege(current_user, p.oid, 'execute')), false) as can
from pg_catalog.pg_proc p
where p.pronamespace = (select n.oid from pg_catalog.pg_namespace n where n.nspname = 'yamlsched')
  and p.proname = 'enqueue';

-- name: can_read
-- Whether the role may read every table.
select bool_and(coalesce(has_schema_privilege(current_user, c.relnamespace, 'usage')
                         and has_table_privilege(current_user, c.oid, 'select'), false)) as can
from unnest(%(tables)s::text[]) as t (name)
left join pg_catalog.pg_class c on c.relnamespace = (select n.oid from pg_catalog.pg_namespace n where n.nspname = 'yamlsched')
                               and c.relname = t.name;
