package postgres

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apikeel/kelson/storage/postgres/pgtest"
	"github.com/jackc/pgx/v5"
)

// TestReadsUseIndexes: no read scans a table, whether the database knows how large its
// tables are or not, and what a read touches depends on what it returns.
func TestReadsUseIndexes(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b, err := Open(t.Context(), Options{DSN: db.DSN(), AllowNoSync: true, CompactInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	// 20,000 keys, each with three versions.
	for round := range 3 {
		fillTable(t, b, round)
	}
	s, err := b.revision.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	from, below := keyRange("/registry/things/00017")
	most := 11
	cases := map[string]struct {
		text    string
		args    []any
		buffers int // pages that may be touched
	}{
		"get":       {b.text.get, []any{from}, 20},
		"value":     {b.text.value, []any{from, s.revision - 5}, 40},
		"list":      {b.text.list, []any{from, below, int64(math.MaxInt64), &most, true}, 200},
		"list past": {b.text.list, []any{from, below, s.revision - 20_000, &most, true}, 200},
		"count":     {b.text.count, []any{from, below}, 60},
		"remaining": {b.text.remaining, []any{from, below, s.revision}, 200},
		"feed":      {b.text.feed, []any{s.revision - 10, s.revision, batchEvents, batchBytes, s.revision}, 200},
		"events":    {b.text.events, []any{s.revision - 10, s.revision, batchEvents, batchBytes, from, below}, 200},
		"due":       {b.text.due, []any{expireAtOnce}, 20},
		"expiry":    {b.text.nextExpiry, nil, 20},
		"state":     {b.text.state, []any{s.revision}, 20},
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			execute(t, b, "VACUUM ANALYZE")
		}
		for name, c := range cases {
			t.Run(fmt.Sprintf("%s/analyzed=%t", name, analyzed), func(t *testing.T) {
				plan, buffers := explain(t, b, c.text, c.args)
				for _, table := range []string{"versions", "keys", "expiries"} {
					if strings.Contains(plan, "Seq Scan on "+table) || strings.Contains(plan, "Bitmap") || strings.Contains(plan, "Sort") {
						t.Errorf("got a plan that scans or sorts, want one by index:\n%s", plan)
					}
				}
				if buffers > c.buffers {
					t.Errorf("got %d pages touched, want at most %d:\n%s", buffers, c.buffers, plan)
				}
			})
		}
	}
}

// fillTable writes 20,000 keys by statements of its own, in one transaction.
func fillTable(t *testing.T, b *Backend, round int) {
	t.Helper()
	const keys = 20_000
	for i := 0; i < keys; i += maxGroup {
		group := make([]*write, 0, maxGroup)
		for n := i; n < min(i+maxGroup, keys); n++ {
			w := &write{op: 1, key: fmt.Sprintf("/registry/things/%06d", n), value: make([]byte, 100), done: make(chan struct{})}
			if round > 0 {
				w.op, w.guard = 2, int64((round-1)*keys+n+2)
			}
			group = append(group, w)
		}
		b.queue <- group[0]
		for _, w := range group[1:] {
			b.queue <- w
		}
		for _, w := range group {
			if <-w.done; w.err != nil {
				t.Fatal(w.err)
			}
		}
	}
}

func execute(t *testing.T, b *Backend, text string) {
	t.Helper()
	err := b.read(t.Context(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(context.Background(), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// explain runs a statement as the backend does, and returns its plan and how many pages
// it has touched.
func explain(t *testing.T, b *Backend, text string, args []any) (plan string, buffers int) {
	t.Helper()
	err := b.read(t.Context(), func(conn *pgx.Conn) error {
		plan = ""
		// Not by parameters: the plan would be one for their values, and not the generic
		// one that the backend uses.
		literals := make([]string, len(args))
		for i, arg := range args {
			switch arg := arg.(type) {
			case []byte:
				literals[i] = fmt.Sprintf(`'\x%x'`, arg)
			case *int:
				literals[i] = fmt.Sprint(*arg)
			default:
				literals[i] = fmt.Sprint(arg)
			}
		}
		defer conn.Exec(context.Background(), "DEALLOCATE stmt", pgx.QueryExecModeSimpleProtocol)
		if _, err := conn.Exec(t.Context(), "PREPARE stmt AS "+text, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		execute := "EXECUTE stmt"
		if len(args) > 0 {
			execute += "(" + strings.Join(literals, ", ") + ")"
		}
		result, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) "+execute, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(result, pgx.RowTo[string])
		plan = strings.Join(lines, "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(plan, "\n") {
		var hit, read int
		at := strings.Index(line, "Buffers: shared")
		if at < 0 {
			continue
		}
		// The first line is that of the whole plan.
		for _, field := range strings.Fields(line[at:]) {
			fmt.Sscanf(field, "hit=%d", &hit)
			fmt.Sscanf(field, "read=%d", &read)
		}
		return plan, hit + read
	}
	t.Fatalf("got no buffers in the plan:\n%s", plan)
	return "", 0
}
