-- The tables of storage/postgres, format 1. {schema} stands for the name of the schema,
-- {channel} for the NOTIFY channel as a string. docs/postgres.md describes them for
-- people who read them; only the functions below may write.

-- One row: the format of this schema, and the oldest revision that can be read.
CREATE TABLE {schema}.state (
	one       boolean     PRIMARY KEY DEFAULT true CHECK (one),
	format    integer     NOT NULL,
	compacted bigint      NOT NULL DEFAULT 1,
	-- What the next periodic compaction compacts to, and when it was noted.
	mark      bigint      NOT NULL DEFAULT 1,
	marked    timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO {schema}.state (format) VALUES (1);

-- One row that is locked by whoever gives revisions, until its transaction has been
-- committed: so revisions become visible in their order. It is never changed, so it
-- leaves no dead rows.
CREATE TABLE {schema}.sequencer (one boolean PRIMARY KEY DEFAULT true CHECK (one));
INSERT INTO {schema}.sequencer DEFAULT VALUES;

-- One row: versions that are superseded by a revision up to this one have been removed.
-- It is apart from state, since it changes often and readers do not need it.
CREATE TABLE {schema}.trimmed (
	one      boolean PRIMARY KEY DEFAULT true CHECK (one),
	revision bigint  NOT NULL DEFAULT 1
) WITH (fillfactor = 10);
INSERT INTO {schema}.trimmed DEFAULT VALUES;

-- Every version of every key, the deletions included: what a key was from a revision on.
-- Rows are inserted and removed, never changed.
CREATE TABLE {schema}.versions (
	revision bigint  PRIMARY KEY,
	created  bigint  NOT NULL, -- the revision that created the key
	prev     bigint,           -- the revision of the version replaced; null for a creation
	stamp    bigint  NOT NULL, -- a random number of the transaction
	expires  timestamptz,      -- when the key is deleted by itself
	deleted  boolean NOT NULL,
	key      bytea   NOT NULL,
	value    bytea             -- null for a deletion
) WITH (
	toast_tuple_target = 4080,
	autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_insert_scale_factor = 0.05,
	toast.autovacuum_vacuum_threshold = 5000, toast.autovacuum_vacuum_scale_factor = 0.02
);
ALTER TABLE {schema}.versions ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX versions_key ON {schema}.versions (key, revision DESC);

-- Every key that has a version. An update does not touch it.
CREATE TABLE {schema}.keys (
	key       bytea PRIMARY KEY,
	tombstone bigint -- the revision of the deletion, if that is the newest version
) WITH (fillfactor = 80, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02);

-- The keys with a time to live.
CREATE TABLE {schema}.expiries (
	key      bytea       PRIMARY KEY,
	revision bigint      NOT NULL,
	expires  timestamptz NOT NULL
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX expiries_expires ON {schema}.expiries (expires);

-- write_group applies those of a group of writes whose guards hold, and returns for each
-- what became of it and the version that it found. ops are 1 create, 2 update, 3 delete;
-- no key may occur twice. ttls are in microseconds, 0 for none. seen is a revision that
-- the caller knows to be committed, with its stamp: a database without it has lost
-- writes, and is not written to. With previous it also returns the values that updates
-- replace.
CREATE FUNCTION {schema}.write_group(
	seen bigint, seen_stamp bigint, new_stamp bigint, previous boolean,
	ops smallint[], names bytea[], guards bigint[], ttls bigint[], contents bytea[]
) RETURNS TABLE (
	n bigint, applied boolean, new_revision bigint, new_expires timestamptz,
	found_revision bigint, found_created bigint, found_expires timestamptz, found_value bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	last  bigint;
	began timestamptz;
BEGIN
	PERFORM 1 FROM {schema}.sequencer FOR UPDATE;
	-- Each statement from here on sees all that was committed before the lock was had.
	SELECT coalesce(max(v.revision), 1) INTO last FROM {schema}.versions v;
	IF last < seen OR seen > 1 AND NOT EXISTS (
		SELECT FROM {schema}.versions v WHERE v.revision = seen AND v.stamp = seen_stamp
	) AND seen >= (SELECT s.compacted FROM {schema}.state s) THEN
		RAISE EXCEPTION 'revision % is not the one that was committed', seen USING ERRCODE = 'KE001';
	END IF;
	began := clock_timestamp();
	RETURN QUERY
	WITH request AS MATERIALIZED (
		SELECT r.op, r.name, r.guard, r.ttl, r.content, r.n
		FROM unnest(ops, names, guards, ttls, contents) WITH ORDINALITY AS r (op, name, guard, ttl, content, n)
	), judged AS MATERIALIZED (
		SELECT r.*, f.revision, f.created, f.expires,
			CASE WHEN r.op = 1 THEN f.revision IS NULL ELSE f.revision IS NOT NULL AND f.revision = r.guard END AS ok,
			CASE WHEN r.ttl > 0 THEN began + r.ttl * interval '1 microsecond' END AS ends
		FROM request r LEFT JOIN LATERAL (
			SELECT v.revision, v.created, v.expires, v.deleted FROM {schema}.versions v
			WHERE v.key = r.name ORDER BY v.revision DESC LIMIT 1
		) f ON NOT f.deleted
	), numbered AS MATERIALIZED (
		SELECT j.*, CASE WHEN j.ok THEN last + count(*) FILTER (WHERE j.ok) OVER (ORDER BY j.n) END AS given
		FROM judged j
	), inserted AS (
		INSERT INTO {schema}.versions (revision, created, prev, stamp, expires, deleted, key, value)
		SELECT d.given, coalesce(d.created, d.given), d.revision, new_stamp, d.ends, d.op = 3, d.name, d.content
		FROM numbered d WHERE d.ok
	), made AS (
		INSERT INTO {schema}.keys AS k (key) SELECT d.name FROM numbered d WHERE d.ok AND d.op = 1
		ON CONFLICT (key) DO UPDATE SET tombstone = NULL
	), buried AS (
		UPDATE {schema}.keys k SET tombstone = d.given FROM numbered d WHERE d.ok AND d.op = 3 AND k.key = d.name
	), expiring AS (
		INSERT INTO {schema}.expiries AS e (key, revision, expires) SELECT d.name, d.given, d.ends FROM numbered d WHERE d.ok AND d.ends IS NOT NULL
		ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, expires = excluded.expires
	), kept AS (
		DELETE FROM {schema}.expiries e USING numbered d WHERE d.ok AND d.ends IS NULL AND d.expires IS NOT NULL AND e.key = d.name
	), sized AS (
		-- The rows are sent while the sequencer is locked: a caller that does not read
		-- must not keep it locked, so no more is sent than sockets buffer. The caller
		-- reads other values later.
		SELECT d.*, v.value, sum(octet_length(v.value)) OVER (ORDER BY d.n) AS size
		FROM numbered d LEFT JOIN {schema}.versions v ON v.revision = d.revision AND (NOT d.ok OR d.op = 3 OR previous)
	)
	SELECT z.n, z.ok, z.given, z.ends, z.revision, z.created, z.expires, CASE WHEN z.size <= 65536 THEN z.value END
	FROM sized z;
	IF EXISTS (SELECT FROM {schema}.versions v WHERE v.revision > last) THEN
		PERFORM pg_notify({channel}, (SELECT max(v.revision)::text FROM {schema}.versions v));
	END IF;
END $$;

-- compact raises the oldest revision that can be read. It returns that and the current
-- revision as they were before.
CREATE FUNCTION {schema}.compact(target bigint) RETURNS TABLE (oldest bigint, current bigint) LANGUAGE plpgsql AS $$
BEGIN
	SELECT s.compacted INTO oldest FROM {schema}.state s FOR UPDATE;
	SELECT coalesce(max(v.revision), 1) INTO current FROM {schema}.versions v;
	IF target > oldest AND target <= current THEN
		UPDATE {schema}.state s SET compacted = target;
	END IF;
	RETURN NEXT;
END $$;

-- compact_periodically compacts to the revision that was current when it last did so, if
-- that is age ago, and returns it; otherwise null. Any number of servers call it.
CREATE FUNCTION {schema}.compact_periodically(age interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	s {schema}.state;
BEGIN
	SELECT * INTO s FROM {schema}.state WHERE marked <= clock_timestamp() - age FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		RETURN NULL;
	END IF;
	UPDATE {schema}.state SET compacted = greatest(s.compacted, s.mark), marked = clock_timestamp(),
		mark = (SELECT coalesce(max(v.revision), 1) FROM {schema}.versions v);
	RETURN greatest(s.compacted, s.mark);
END $$;

-- trim removes versions that no revision which can be read needs, looking at so many
-- revisions. It keeps the state at the revision before the oldest one: events of the
-- oldest have it as their previous value. It returns how many revisions are left to
-- look at, or null if another server is trimming.
CREATE FUNCTION {schema}.trim(steps bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	done   bigint;
	upto   bigint;
	oldest bigint;
BEGIN
	SELECT s.compacted INTO oldest FROM {schema}.state s;
	IF EXISTS (SELECT FROM {schema}.trimmed t WHERE t.revision >= oldest - 1) THEN
		RETURN 0; -- without a lock, which would be a write
	END IF;
	SELECT t.revision INTO done FROM {schema}.trimmed t FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		RETURN NULL;
	END IF;
	upto := least(oldest - 1, done + steps);
	IF upto <= done THEN
		RETURN 0;
	END IF;
	IF EXISTS (SELECT FROM {schema}.versions v WHERE v.revision > done AND v.revision <= upto AND v.deleted) THEN
		-- Writers change keys in an order of their own: without the lock they and this
		-- could wait for each other.
		PERFORM 1 FROM {schema}.sequencer FOR UPDATE;
		DELETE FROM {schema}.keys k USING {schema}.versions v
		WHERE v.revision > done AND v.revision <= upto AND v.deleted AND k.key = v.key AND k.tombstone = v.revision;
	END IF;
	DELETE FROM {schema}.versions v USING (
		SELECT e.prev AS revision FROM {schema}.versions e WHERE e.revision > done AND e.revision <= upto AND e.prev IS NOT NULL
		UNION ALL
		SELECT e.revision FROM {schema}.versions e WHERE e.revision > done AND e.revision <= upto AND e.deleted
	) gone WHERE v.revision = gone.revision;
	UPDATE {schema}.trimmed t SET revision = upto;
	RETURN oldest - 1 - upto;
END $$;

-- try_json returns a value as JSON, or null if it is none, as Kubernetes' protobuf is.
CREATE FUNCTION {schema}.try_json(value bytea) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF get_byte(value || '\x00', 0) <> 123 THEN
		RETURN NULL;
	END IF;
	RETURN convert_from(value, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
	RETURN NULL;
END $$;

-- For people: the keys that exist, with their values as JSON where they are JSON.
CREATE VIEW {schema}.objects AS
	SELECT encode(k.key, 'escape') AS key, v.revision, v.created, v.expires,
		octet_length(v.value) AS bytes, {schema}.try_json(v.value) AS json, v.value
	FROM {schema}.keys k CROSS JOIN LATERAL (
		SELECT * FROM {schema}.versions v WHERE v.key = k.key ORDER BY v.revision DESC LIMIT 1
	) v
	WHERE k.tombstone IS NULL;

COMMENT ON TABLE {schema}.state IS 'format of this schema and the oldest readable revision';
COMMENT ON TABLE {schema}.versions IS 'every version of every key; written by write_group, removed by trim';
COMMENT ON TABLE {schema}.keys IS 'every key that has a version';
COMMENT ON TABLE {schema}.expiries IS 'keys with a time to live';
COMMENT ON VIEW {schema}.objects IS 'keys that exist now, values as JSON where they are JSON';
