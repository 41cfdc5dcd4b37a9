package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5"
)

// statements are the texts of all that is sent to the database while it is in use.
type statements struct {
	state, size            string
	get, value, values     string
	list, count, remaining string
	events, feed           string
	write, outcome, lock   string
	due, nextExpiry        string
}

func newStatements(n names) statements {
	// The current revision; one statement sees one state.
	const current = `coalesce((SELECT max(m.revision) FROM {schema}.versions m), 1)`
	// The version of key k that is the newest at revision $3.
	const newest = `
		SELECT v.revision, v.created, v.expires, v.deleted, v.value FROM {schema}.versions v
		WHERE v.key = k.key AND v.revision <= $3 ORDER BY v.revision DESC LIMIT 1`
	// Keys from $1 to below $2 that may exist at revision $3.
	const keys = `k.key >= $1 AND k.key < $2 AND (k.tombstone IS NULL OR k.tombstone > $3)`
	// Events above $1, up to $2, with the versions that they replace: at most $3, and
	// none after those whose values have $4 bytes.
	events := func(filter string) string {
		return `
		SELECT e.*, p.revision AS p_revision, p.created AS p_created, p.expires AS p_expires, p.value AS p_value
		FROM (
			SELECT c.*, sum(coalesce(octet_length(c.value), 0)) OVER (ORDER BY c.revision) - coalesce(octet_length(c.value), 0) AS before
			FROM (
				SELECT v.* FROM {schema}.versions v
				WHERE v.revision > $1 AND v.revision <= $2 AND $1 + 1 >= s.compacted ` + filter + `
				ORDER BY v.revision LIMIT $3
			) c
		) e LEFT JOIN {schema}.versions p ON p.revision = e.prev
		WHERE e.before < $4`
	}
	const eventColumns = `e.revision, e.key, e.created, e.expires, e.deleted, e.value, e.p_revision, e.p_created, e.p_expires, e.p_value`
	return statements{
		state: n.sql(`
		SELECT s.compacted, coalesce(v.revision, 1), coalesce(v.stamp, 0), (SELECT p.stamp FROM {schema}.versions p WHERE p.revision = $1)
		FROM {schema}.state s LEFT JOIN (SELECT * FROM {schema}.versions ORDER BY revision DESC LIMIT 1) v ON true`),
		size: n.sql(`
		SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
		WHERE c.relnamespace = to_regnamespace('` + n.quotedSchema() + `') AND c.relkind = 'r'`),
		get: n.sql(`
		SELECT k.revision, k.created, k.expires, k.deleted, k.value FROM {schema}.versions k
		WHERE k.key = $1 ORDER BY k.revision DESC LIMIT 1`),
		// A version is needed as long as no other had taken its place at the oldest
		// revision.
		value: n.sql(`
		SELECT v.value FROM {schema}.state s, {schema}.versions v
		WHERE v.revision = $2 AND v.key = $1 AND NOT v.deleted AND ($2 >= s.compacted OR NOT EXISTS (
			SELECT FROM {schema}.versions n WHERE n.key = $1 AND n.revision > $2 AND n.revision <= s.compacted))`),
		values: n.sql(`SELECT v.revision, v.value FROM {schema}.versions v WHERE v.revision = ANY ($1)`),
		list: n.sql(`
		SELECT s.compacted, ` + current + `, x.key, x.revision, x.created, x.expires, x.value
		FROM {schema}.state s LEFT JOIN LATERAL (
			SELECT k.key, v.revision, v.created, v.expires, CASE WHEN $5 THEN v.value END AS value
			FROM {schema}.keys k CROSS JOIN LATERAL (` + newest + `) v
			WHERE ` + keys + ` AND NOT v.deleted AND $3 >= s.compacted
			ORDER BY k.key LIMIT $4
		) x ON true`),
		count: n.sql(`
		SELECT ` + current + `, (SELECT count(*) FROM {schema}.keys k WHERE k.key >= $1 AND k.key < $2 AND k.tombstone IS NULL)`),
		remaining: n.sql(`
		SELECT s.compacted, (
			SELECT count(*) FROM {schema}.keys k CROSS JOIN LATERAL (` + newest + `) v WHERE ` + keys + ` AND NOT v.deleted
		) FROM {schema}.state s`),
		events: n.sql(`
		SELECT s.compacted, ` + current + `, 0::bigint, NULL::bigint, 0::bigint, ` + eventColumns + `
		FROM {schema}.state s LEFT JOIN LATERAL (` + events(`AND v.key >= $5 AND v.key < $6`) + `) e ON true`),
		feed: n.sql(`
		SELECT s.compacted, ` + current + `, 0::bigint, (SELECT p.stamp FROM {schema}.versions p WHERE p.revision = $5), coalesce(e.stamp, 0), ` + eventColumns + `
		FROM {schema}.state s LEFT JOIN LATERAL (` + events("") + `) e ON true`),
		write: n.sql(`SELECT n, applied, new_revision, new_expires, found_revision, found_created, found_expires, found_value
		FROM {schema}.write_group($1, $2, $3, $4, $5, $6, $7, $8, $9)`),
		lock: n.sql(`SELECT FROM {schema}.sequencer FOR UPDATE`),
		// A compaction meanwhile may have removed what was written.
		outcome: n.sql(`
		SELECT s.compacted, v.key, v.revision, v.created, v.expires, p.revision, p.created, p.expires, p.value
		FROM {schema}.state s LEFT JOIN {schema}.versions v ON v.revision > $1 AND v.stamp = $2
		LEFT JOIN {schema}.versions p ON p.revision = v.prev`),
		due:        n.sql(`SELECT key, revision FROM {schema}.expiries WHERE expires <= clock_timestamp() ORDER BY expires LIMIT $1`),
		nextExpiry: n.sql(`SELECT (extract(epoch FROM min(expires) - clock_timestamp()) * 1000000)::bigint FROM {schema}.expiries`),
	}
}

// quotedSchema returns the schema as it stands in a string.
func (n names) quotedSchema() string {
	return string(bytes.ReplaceAll([]byte(n.schema), []byte("'"), []byte("''")))
}

// keyRange returns the keys of a prefix: from the first to below the second.
func keyRange(prefix string) (from, below []byte) {
	if end := storage.PrefixEnd(prefix); end != "" {
		return []byte(prefix), []byte(end)
	}
	return []byte(prefix), bytes.Repeat([]byte{0xff}, storage.MaxKeyBytes+1)
}

// raw reads a row in the binary format.
type raw [][]byte

func (r raw) isNull(i int) bool { return r[i] == nil }

func (r raw) int(i int) int64 {
	if r[i] == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(r[i]))
}

func (r raw) bool(i int) bool { return len(r[i]) > 0 && r[i][0] != 0 }

// time returns a timestamp, which counts microseconds from the year 2000.
func (r raw) time(i int) time.Time {
	if r[i] == nil {
		return time.Time{}
	}
	const epoch = 946_684_800_000_000
	return time.UnixMicro(r.int(i) + epoch)
}

// bytes returns a copy, since a row is overwritten by the next.
func (r raw) bytes(i int) []byte {
	if r[i] == nil {
		return nil
	}
	return append(make([]byte, 0, len(r[i])), r[i]...)
}

// rows calls yield for every row of a statement.
func rows(ctx context.Context, conn *pgx.Conn, yield func(raw) error, text string, args ...any) error {
	result, err := conn.Query(ctx, text, args...)
	if err != nil {
		return err
	}
	defer result.Close()
	for result.Next() {
		if err := yield(raw(result.RawValues())); err != nil {
			return err
		}
	}
	result.Close()
	return result.Err()
}

// Get returns the newest value of a key.
func (b *Backend) Get(ctx context.Context, key string) (kv storage.KeyValue, err error) {
	if err := storage.CheckKey(key); err != nil {
		return kv, err
	}
	found := false
	err = b.read(ctx, func(conn *pgx.Conn) error {
		kv, found = storage.KeyValue{}, false
		return rows(ctx, conn, func(r raw) error {
			if found = !r.bool(3); found {
				kv = storage.KeyValue{Key: key, Value: r.bytes(4), CreateRevision: r.int(1), ModRevision: r.int(0), Expires: r.time(2)}
			}
			return nil
		}, b.text.get, []byte(key))
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: %q", storage.ErrNotFound, key)
	}
	return kv, err
}

// Value implements storage.ValueReader.
func (b *Backend) Value(ctx context.Context, key string, revision int64) (value []byte, err error) {
	found := false
	err = b.read(ctx, func(conn *pgx.Conn) error {
		value, found = nil, false
		return rows(ctx, conn, func(r raw) error {
			value, found = r.bytes(0), true
			return nil
		}, b.text.value, []byte(key), revision)
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: %s at %d", storage.ErrCompacted, key, revision)
	}
	return value, err
}

const (
	// A list with a limit of bytes is read in chunks of keys, whose number is estimated
	// from the sizes so far.
	firstChunkKeys = 64
	maxChunkKeys   = 10_000

	// listAttempts bounds how often a list of the current revision is begun again
	// because that revision was compacted meanwhile.
	listAttempts = 5
)

// List returns the keys that begin with prefix, as they stood at one revision.
func (b *Backend) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	for attempt := 1; ; attempt++ {
		var items []storage.KeyValue
		page, err := b.Scan(ctx, prefix, opts, func(kv *storage.KeyValue) error {
			kv.Value = bytes.Clone(kv.Value)
			items = append(items, *kv)
			return nil
		})
		if opts.Revision == 0 && errors.Is(err, storage.ErrCompacted) && attempt < listAttempts {
			continue
		}
		if err != nil {
			return storage.Page{}, err
		}
		page.Items = items
		return page, nil
	}
}

// Scan implements storage.Scanner.
func (b *Backend) Scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
	if err := storage.CheckStart(prefix, opts.Start); err != nil {
		return storage.Page{}, err
	}
	s := &scan{b: b, opts: opts, each: each, revision: opts.Revision}
	s.from, s.below = keyRange(prefix)
	if opts.Start != "" {
		s.from = []byte(opts.Start)
	}
	for chunk := firstChunkKeys; ; {
		limit := 0
		if opts.Limit > 0 {
			limit = opts.Limit - s.keys
		}
		if opts.MaxBytes > 0 && (limit == 0 || limit > chunk) {
			limit = chunk
		}
		if err := s.read(ctx, limit); err != nil {
			return storage.Page{}, err
		}
		if !s.more || s.isFull() {
			break
		}
		chunk = min(max((opts.MaxBytes-s.size)/max(s.size/s.keys, 1)+1, firstChunkKeys), maxChunkKeys)
	}
	page := storage.Page{Revision: s.revision, More: s.more}
	if page.More && opts.Count {
		var err error
		if page.Remaining, err = b.remaining(ctx, s.from, s.below, s.revision); err != nil {
			return storage.Page{}, err
		}
	}
	return page, nil
}

// scan is the state of a Scan.
type scan struct {
	b           *Backend
	opts        storage.ListOptions
	each        func(*storage.KeyValue) error
	revision    int64  // at which it reads; 0 before the first statement if that is the current one
	from, below []byte // the keys that are left
	last        string // the key passed to each last
	keys, size  int    // passed to each, and the bytes of their values
	more        bool   // there are keys after the last statement
	failed      error  // of each
}

// isFull reports whether a bound of the options is reached.
func (s *scan) isFull() bool {
	return s.opts.Limit > 0 && s.keys >= s.opts.Limit || s.opts.MaxBytes > 0 && s.size >= s.opts.MaxBytes
}

// read passes up to limit keys to each, 0 being no limit. If the connection breaks, it
// goes on after the last of them, at the same revision.
func (s *scan) read(ctx context.Context, limit int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first := s.keys
	var now state
	err := s.b.read(ctx, func(conn *pgx.Conn) error {
		if s.failed != nil {
			return nil
		}
		at := int64(math.MaxInt64)
		if s.revision != 0 {
			at = s.revision
		}
		var most *int // null is no limit
		if limit > 0 {
			most = new(int)
			*most = limit - (s.keys - first) + 1
		}
		s.more = false
		return rows(ctx, conn, func(r raw) error {
			now = state{compacted: r.int(0), revision: r.int(1)}
			if s.revision == 0 {
				s.revision = now.revision
			}
			if r.isNull(2) {
				return nil
			}
			if limit > 0 && s.keys-first == limit || s.isFull() {
				s.more = true
				return nil
			}
			kv := storage.KeyValue{Key: string(r[2]), Value: r[6], ModRevision: r.int(3), CreateRevision: r.int(4), Expires: r.time(5)}
			if s.keys > 0 && kv.Key <= s.last {
				return fmt.Errorf("postgres: list is out of order at %q", kv.Key)
			}
			s.last, s.from = kv.Key, []byte(storage.NextKey(kv.Key))
			s.keys, s.size = s.keys+1, s.size+len(kv.Value)
			if s.failed = s.each(&kv); s.failed != nil {
				cancel() // what is left is not read
			}
			return s.failed
		}, s.b.text.list, s.from, s.below, at, most, !s.opts.KeysOnly)
	})
	switch {
	case s.failed != nil:
		return s.failed
	case err != nil:
		return err
	}
	return checkRevision(s.revision, now)
}

// checkRevision returns an error unless a revision can be read.
func checkRevision(at int64, s state) error {
	switch {
	case at > s.revision:
		return fmt.Errorf("%w: %d is asked for, the newest is %d", storage.ErrFutureRevision, at, s.revision)
	case at < s.compacted:
		return fmt.Errorf("%w: %d is asked for, the oldest kept is %d", storage.ErrCompacted, at, s.compacted)
	}
	return nil
}

// remaining counts keys at a revision.
func (b *Backend) remaining(ctx context.Context, from, below []byte, at int64) (n int64, err error) {
	s := state{revision: at}
	err = b.read(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, b.text.remaining, from, below, at).Scan(&s.compacted, &n)
	})
	if err == nil {
		err = checkRevision(at, s)
	}
	return n, err
}

// Count returns the number of keys that begin with prefix, and the revision at which
// they were counted.
func (b *Backend) Count(ctx context.Context, prefix string) (n, revision int64, err error) {
	from, below := keyRange(prefix)
	err = b.read(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, b.text.count, from, below).Scan(&revision, &n)
	})
	return n, revision, err
}
