-- Which release each host has, so that a file with keys that an older one does not know waits for it. Takes a short lock.
-- oldest_supported: 3

-- made_for is the version of the tables that the host's release is made for, recorded at made_for_at. An older release records
-- neither, and leaves those of an earlier release: made_for counts while made_for_at is that of the latest presentation.
alter table yamlsched.schedule_files
    add column made_for integer,
    add column made_for_at timestamptz,
    add column needs jsonb;  -- the keys for which the file waited, each with the version since which hosts know it
