-- Views of the files that hosts present. Creates only.
-- oldest_supported: 3

-- The file in force in each namespace: the one that was applied last.
create view yamlsched.files_in_force as
select distinct on (f.namespace) f.*
from yamlsched.schedule_files f
where f.applied_at is not null
order by f.namespace, f.applied_at desc, f.id desc;

-- The latest file of each place, and until when that counts: for 2 hours at most.
create view yamlsched.presented_files as
select f.*, f.last_presented_at + least(f.presented_for, interval '2 hours') as presented_until
from yamlsched.schedule_files f
where not exists (
    select from yamlsched.schedule_files g
    where g.host = f.host and g.path = f.path and g.environment = f.environment
      and (g.last_presented_at, g.id) > (f.last_presented_at, f.id));
