package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5"
)

const (
	// trimRevisions is how many revisions one statement of trimLoop looks at: writers
	// may have to wait for it.
	trimRevisions = 500
	// trimPause is between two such statements, trimInterval between two looks whether
	// there is something to trim.
	trimPause    = 2 * time.Millisecond
	trimInterval = 10 * time.Second
)

// Compact discards history before revision. It is out of reach at once; the space is
// given back after a while. Watchers of this server that are not behind stay: the feed
// reads what will be out of reach first.
func (b *Backend) Compact(ctx context.Context, revision int64) error {
	if err := b.checkUsable(ctx); err != nil {
		return err
	}
	b.feed.await(ctx, revision)
	var s state
	attempts := 0
	err := b.read(ctx, func(conn *pgx.Conn) error {
		attempts++
		return conn.QueryRow(ctx, b.names.sql("SELECT oldest, current FROM {schema}.compact($1)"), revision).Scan(&s.compacted, &s.revision)
	})
	switch {
	case err != nil:
		return err
	case revision > s.revision:
		return fmt.Errorf("%w: cannot compact to %d, the current revision is %d", storage.ErrFutureRevision, revision, s.revision)
	case revision == s.compacted && attempts > 1:
		// The attempt whose connection broke has done it, most likely.
	case revision <= s.compacted:
		return fmt.Errorf("%w: already to %d", storage.ErrCompacted, s.compacted)
	}
	signal(b.wakeTrim)
	return nil
}

// compactLoop takes part in the periodic compaction: the server that first finds that an
// interval is over compacts, by the clock of the database.
func (b *Backend) compactLoop() {
	// Several looks an interval, so that the others soon do what a dead one did not.
	interval := b.opts.CompactInterval
	period := max(interval/10, time.Millisecond)
	for range clock.Every(b.ctx, period) {
		var revision *int64
		ctx, cancel := context.WithTimeout(b.ctx, b.opts.ConnectTimeout)
		err := b.read(ctx, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, b.names.sql("SELECT {schema}.compact_periodically($1)"), interval).Scan(&revision)
		})
		cancel()
		switch {
		case b.ctx.Err() != nil:
			return
		case err != nil:
			b.log.Warn("compaction failed; it is tried again", "error", err, "after", period)
		case revision != nil:
			b.log.Info("compacted", "revision", *revision)
			signal(b.wakeTrim)
		}
	}
}

// trimLoop removes versions that are out of reach, in small steps. Any number of servers
// do so, one at a time.
func (b *Backend) trimLoop() {
	for {
		left, err := b.trim()
		wait := trimPause
		switch {
		case b.ctx.Err() != nil:
			return
		case err != nil:
			b.log.Warn("old versions could not be removed; it is tried again", "error", err, "after", trimInterval)
			wait = trimInterval
		case left == 0:
			wait = trimInterval/2 + rand.N(trimInterval)
		}
		select {
		case <-b.ctx.Done():
			return
		case <-time.After(wait):
		case <-b.wakeTrim:
		}
	}
}

// trim does one step. It returns how many revisions are left to look at, 0 if another
// server looks at them.
func (b *Backend) trim() (int64, error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.opts.CommitTimeout)
	defer cancel()
	var left *int64
	err := b.read(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, b.names.sql("SELECT {schema}.trim($1)"), trimRevisions).Scan(&left)
	})
	if err != nil || left == nil {
		return 0, err
	}
	return *left, nil
}
