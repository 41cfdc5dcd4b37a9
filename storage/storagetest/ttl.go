package storagetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apikeel/kelson/storage"
)

func ttlChecks() []check {
	return []check{
		{name: "goes", run: checkTTLGoes, parallel: true},
		{name: "stays", run: checkTTLStays, parallel: true},
		{name: "replaced", run: checkTTLReplaced, parallel: true},
		{name: "many", run: checkTTLMany, parallel: true},
		{name: "reported", run: checkTTLReported},
	}
}

const (
	// expirySlack is how long after its time a key may still be there: the
	// contract says a few seconds, and the machine may be busy.
	expirySlack = 20 * time.Second
	// clockError is how much too early a key may seem to go: a store may count
	// in milliseconds.
	clockError = 2 * time.Millisecond
	// longTTL outlasts every test.
	longTTL = time.Hour
)

// ttl is a short ttl, but long enough to do something before it ends.
func (e *env) ttl() time.Duration { return max(e.subject.TTLGranularity, 400*time.Millisecond) }

// gone reads f until key is deleted, which must not be before notBefore.
func (f *follower) gone(key string, notBefore time.Time) error {
	ctx, cancel := context.WithDeadline(f.e.ctx, notBefore.Add(expirySlack))
	defer cancel()
	for {
		if kv, told := f.known[key]; told && kv == nil {
			break
		}
		if err := f.next(ctx); err != nil {
			return fmt.Errorf("waiting for %q to expire: %w", key, err)
		}
	}
	if early := time.Until(notBefore); early > clockError {
		return fmt.Errorf("%q was gone %v before its time", key, early)
	}
	return nil
}

// checkTTLGoes: a key is deleted when its ttl has ended, with an event, and can be
// created again.
func checkTTLGoes(e *env) error {
	f, err := e.follow(e.prefix, 0)
	if err != nil {
		return err
	}
	defer f.w.Close()
	key := e.key("a")
	start := time.Now()
	kv, err := e.b.Create(e.ctx, key, []byte("soon gone"), e.ttl())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if err := f.gone(key, start.Add(e.ttl())); err != nil {
		return err
	}
	last := f.events[len(f.events)-1]
	want := storage.Event{
		Op:   storage.Deleted,
		KV:   storage.KeyValue{Key: key, CreateRevision: kv.CreateRevision, ModRevision: last.KV.ModRevision},
		Prev: kv,
	}
	if err := diffEvents("event of the expiry", []storage.Event{last}, []storage.Event{want}); err != nil {
		return err
	}
	_, err = e.b.Get(e.ctx, key)
	if err := fails("get of an expired key", err, storage.ErrNotFound); err != nil {
		return err
	}
	page, err := e.list(0)
	if err != nil {
		return err
	}
	before, err := e.list(last.KV.ModRevision - 1)
	if err != nil {
		return err
	}
	if len(page.Items) != 0 || len(before.Items) != 1 {
		return fmt.Errorf("%d keys after the expiry, %d at the revision before", len(page.Items), len(before.Items))
	}
	again, err := e.b.Create(e.ctx, key, nil, 0)
	if err != nil || again.CreateRevision <= last.KV.ModRevision {
		return fmt.Errorf("created again: %s, error %v", show(again), err)
	}
	return f.until(again.ModRevision)
}

// checkTTLStays: a key whose ttl was removed or extended is not deleted by the old ttl,
// nor is a key that was deleted and created again.
func checkTTLStays(e *env) error {
	short := e.ttl()
	for attempt := range 20 {
		e := e.below(fmt.Sprint(attempt))
		start := time.Now()
		want := map[string]storage.KeyValue{}
		var errs []error
		put := func(key string, ttls ...time.Duration) {
			kv, err := e.b.Create(e.ctx, e.key(key), nil, ttls[0])
			for _, ttl := range ttls[1:] {
				if err == nil {
					kv, err = e.b.Update(e.ctx, e.key(key), []byte(key), kv.ModRevision, ttl)
				}
			}
			want[kv.Key] = kv
			errs = append(errs, err)
		}
		put("permanent", 0)
		put("made permanent", short, 0)
		put("made permanent at last", short, longTTL, 0)
		put("extended", short, longTTL)
		for _, ttl := range []time.Duration{0, longTTL} {
			key := fmt.Sprint("again for ", ttl)
			put(key, short)
			_, _, err := e.b.Delete(e.ctx, e.key(key), want[e.key(key)].ModRevision)
			errs = append(errs, err)
			put(key, ttl)
		}
		// Writes that are refused change nothing.
		put("refused", 0)
		_, create := e.b.Create(e.ctx, e.key("refused"), nil, short)
		_, update := e.b.Update(e.ctx, e.key("refused"), nil, 1, short)
		if time.Since(start) >= short {
			continue // too slow to say anything
		}
		err := errors.Join(append(errs,
			fails("create", create, storage.ErrExists), fails("update", update, storage.ErrConflict))...)
		if err != nil {
			return err
		}
		// A key that expires after the others would have expired.
		f, err := e.follow(e.prefix, 0)
		if err != nil {
			return err
		}
		defer f.w.Close()
		started := time.Now()
		if _, err := e.b.Create(e.ctx, e.key("clock"), nil, 2*short); err != nil {
			return fmt.Errorf("create: %w", err)
		}
		if err := f.gone(e.key("clock"), started.Add(2*short)); err != nil {
			return err
		}
		page, err := e.list(0)
		if err != nil {
			return err
		}
		for _, kv := range page.Items {
			if err := diffKV("key that stays", kv, want[kv.Key]); err != nil {
				return err
			}
			delete(want, kv.Key)
		}
		for _, kv := range want {
			return fmt.Errorf("%s is gone, and should have stayed", show(kv))
		}
		return nil
	}
	return fmt.Errorf("a dozen writes take more than %v", short)
}

// checkTTLReplaced: an update gives a key a ttl, or a shorter one, and counts
// from its own time.
func checkTTLReplaced(e *env) error {
	f, err := e.follow(e.prefix, 0)
	if err != nil {
		return err
	}
	defer f.w.Close()
	notBefore := map[string]time.Time{}
	for _, c := range []struct {
		name string
		ttl  time.Duration
	}{{"permanent", 0}, {"long", longTTL}, {"short", 10 * e.ttl()}} {
		kv, err := e.b.Create(e.ctx, e.key(c.name), nil, c.ttl)
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		start := time.Now()
		if _, err := e.b.Update(e.ctx, kv.Key, nil, kv.ModRevision, e.ttl()); err != nil {
			return fmt.Errorf("update: %w", err)
		}
		notBefore[kv.Key] = start.Add(e.ttl())
	}
	for key, at := range notBefore {
		if err := f.gone(key, at); err != nil {
			return err
		}
	}
	return nil
}

// checkTTLMany: keys that expire together are deleted once each, and no other key is.
func checkTTLMany(e *env) error {
	f, err := e.follow(e.prefix, 0)
	if err != nil {
		return err
	}
	defer f.w.Close()
	n := e.times(40, 500)
	start := time.Now()
	err = together(n, func(i int) error {
		ttl := e.ttl()
		if i%4 == 0 {
			ttl = 0
		}
		_, err := e.b.Create(e.ctx, e.key(fmt.Sprintf("%03d", i)), nil, ttl)
		return err
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for i := range n {
		if i%4 != 0 {
			if err := f.gone(e.key(fmt.Sprintf("%03d", i)), start.Add(e.ttl())); err != nil {
				return err
			}
		}
	}
	page, err := e.list(0)
	if err != nil {
		return err
	}
	if want := (n + 3) / 4; len(page.Items) != want {
		return fmt.Errorf("%d keys are left, want %d", len(page.Items), want)
	}
	return f.until(page.Revision)
}

// checkTTLReported: a list that asks says when keys expire.
func checkTTLReported(e *env) error {
	tolerance := time.Second + 2*e.subject.TTLGranularity
	start := time.Now()
	key := e.key("a")
	kv, err := e.b.Create(e.ctx, key, nil, longTTL)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if _, err := e.b.Create(e.ctx, e.key("b"), nil, 0); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for _, ttl := range []time.Duration{longTTL, 2 * longTTL, 0} {
		if ttl != longTTL {
			start = time.Now()
			if kv, err = e.b.Update(e.ctx, key, nil, kv.ModRevision, ttl); err != nil {
				return fmt.Errorf("update: %w", err)
			}
		}
		page, err := e.b.List(e.ctx, e.prefix, storage.ListOptions{Expiry: true})
		if err != nil || len(page.Items) != 2 {
			return fmt.Errorf("list: %d keys, error %v", len(page.Items), err)
		}
		got := page.Items[0].Expires
		earliest, latest := start.Add(ttl-tolerance), time.Now().Add(ttl+tolerance)
		switch {
		case ttl == 0 && !got.IsZero():
			return fmt.Errorf("permanent key expires at %v", got)
		case ttl > 0 && (got.Before(earliest) || got.After(latest)):
			return fmt.Errorf("key expires at %v, want between %v and %v", got, earliest, latest)
		case !page.Items[1].Expires.IsZero():
			return fmt.Errorf("permanent key expires at %v", page.Items[1].Expires)
		}
	}
	return nil
}
