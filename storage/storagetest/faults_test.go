package storagetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/apikeel/kelson/storage"
)

// fault is a way to be wrong and the checks that must notice.
type fault struct {
	name   string
	caught string
	spoil  func(m *mutant)
}

func mutants() []fault {
	return slices.Concat(writeMutants(), readMutants(), watchMutants(), timeMutants())
}

func writeMutants() []fault {
	return []fault{
		{"begins at zero", "write/new", func(m *mutant) { m.model.revision = 0 }},
		{"update with guard 0 creates", "write/guards random/operations", func(m *mutant) {
			m.update = func(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
				if _, err := m.model.Get(ctx, key); guard == 0 && errors.Is(err, storage.ErrNotFound) {
					return m.model.Create(ctx, key, value, ttl)
				}
				return m.model.Update(ctx, key, value, guard, ttl)
			}
		}},
		{"conflict without the key", "write/guards random/operations", func(m *mutant) {
			m.update = func(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
				kv, err := m.model.Update(ctx, key, value, guard, ttl)
				if err != nil {
					kv = storage.KeyValue{}
				}
				return kv, err
			}
		}},
		{"delete without a guard", "write/guards write/recreate", func(m *mutant) {
			m.delete = func(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
				kv, err := m.model.Get(ctx, key)
				if err != nil {
					return kv, 0, err
				}
				return m.model.Delete(ctx, key, kv.ModRevision)
			}
		}},
		{"create revision of the first life", "write/recreate", func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				kv, err := m.model.Create(ctx, key, value, ttl)
				for _, ev := range m.log {
					if ev.KV.Key == key && err == nil {
						kv.CreateRevision = ev.KV.CreateRevision
						break
					}
				}
				return kv, err
			}
		}},
		{"keys with NUL", "write/keys", func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				return m.model.Create(ctx, strings.ReplaceAll(key, "\x00", ""), value, ttl)
			}
		}},
		{"large values cut", "write/values", func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				return m.model.Create(ctx, key, value[:min(len(value), 1<<19)], ttl)
			}
		}},
		{"keeps the caller's slice", "write/aliasing write/values random/operations", func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				kv, err := m.model.Create(ctx, key, value, ttl)
				if err == nil {
					kv.Value = value
					m.keys[key] = kv
					m.log[len(m.log)-1].KV = kv
				}
				return kv, err
			}
		}},
		{"guard not atomic", "write/counter linear/histories", func(m *mutant) {
			m.update = func(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
				kv, err := m.model.Get(ctx, key)
				if err != nil || kv.ModRevision != guard {
					return m.model.Update(ctx, key, value, guard, ttl)
				}
				m.await(func() bool { return m.keys[key].ModRevision != guard })
				for {
					if kv, err = m.model.Update(ctx, key, value, kv.ModRevision, ttl); !errors.Is(err, storage.ErrConflict) {
						return kv, err
					}
				}
			}
		}},
		{"create not atomic", "write/one-creates", func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				if kv, err := m.model.Get(ctx, key); err == nil {
					return kv, storage.ErrExists
				}
				m.await(func() bool { return m.keys[key].ModRevision != 0 })
				kv, err := m.model.Create(ctx, key, value, ttl)
				for errors.Is(err, storage.ErrExists) {
					kv, err = m.model.Update(ctx, key, value, kv.ModRevision, ttl)
				}
				return kv, err
			}
		}},
		{"deletes what is gone", "write/one-deletes write/guards", func(m *mutant) {
			m.delete = func(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
				kv, rev, err := m.model.Delete(ctx, key, guard)
				if errors.Is(err, storage.ErrNotFound) {
					err = nil
				}
				return kv, rev, err
			}
		}},
		{"does not look at the context", "write/cancelled", func(m *mutant) {
			m.get = func(_ context.Context, key string) (storage.KeyValue, error) {
				return m.model.Get(context.Background(), key)
			}
		}},
		{"status of the past", "write/status", func(m *mutant) {
			m.status = func(ctx context.Context) (storage.Status, error) {
				s, err := m.model.Status(ctx)
				s.Revision--
				return s, err
			}
		}},
		{"acknowledges after close", "restart/busy end/busy-store", func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				kv, err := m.model.Create(ctx, key, value, ttl)
				if errors.Is(err, storage.ErrClosed) {
					return storage.KeyValue{Key: key, Value: value, CreateRevision: 1 << 40, ModRevision: 1 << 40}, context.Canceled
				}
				return kv, err
			}
		}},
	}
}

func readMutants() []fault {
	// lists makes m pass every page through edit.
	lists := func(edit func(prefix string, opts storage.ListOptions, p *storage.Page)) func(m *mutant) {
		return func(m *mutant) {
			m.list = func(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
				page, err := m.model.List(ctx, prefix, opts)
				edit(prefix, opts, &page)
				return page, err
			}
		}
	}
	return []fault{
		{"stale get", "write/read-your-writes linear/histories", func(m *mutant) {
			m.get = func(ctx context.Context, key string) (storage.KeyValue, error) {
				m.mu.Lock()
				defer m.mu.Unlock()
				if n := len(m.log); n > 0 && m.log[n-1].KV.Key == key && m.log[n-1].Op == storage.Updated {
					return m.log[n-1].Prev, nil
				}
				kv, ok := m.keys[key]
				if !ok {
					return kv, storage.ErrNotFound
				}
				return kv, nil
			}
		}},
		{"stale revision", "write/read-your-writes", func(m *mutant) {
			m.revision = func(ctx context.Context) (int64, error) {
				rev, err := m.model.Revision(ctx)
				return max(rev-1, 1), err
			}
		}},
		{"stale count", "write/read-your-writes list/prefixes", func(m *mutant) {
			m.count = func(ctx context.Context, prefix string) (int64, int64, error) {
				n, rev, err := m.model.Count(ctx, prefix)
				return n - 1, rev, err
			}
		}},
		{"list of two revisions", "list/snapshot list/pinned", func(m *mutant) {
			m.list = func(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
				if opts.Revision != 0 {
					return m.model.List(ctx, prefix, opts)
				}
				first, err := m.model.List(ctx, prefix, opts)
				m.await(func() bool { return m.model.revision > first.Revision+20 })
				second, _ := m.model.List(ctx, prefix, opts)
				if half := len(first.Items) / 2; half < len(second.Items) && len(first.Items) > 0 {
					first.Items = append(first.Items[:half:half], second.Items[half:]...)
				}
				return first, err
			}
		}},
		{"list at the present", "list/revisions list/pages random/operations", func(m *mutant) {
			m.list = func(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
				rev := opts.Revision
				if _, err := m.model.List(ctx, prefix, opts); err != nil {
					return storage.Page{}, err
				}
				opts.Revision = 0
				page, err := m.model.List(ctx, prefix, opts)
				if rev > 0 {
					page.Revision = rev
				}
				return page, err
			}
		}},
		{"keys with 0xff left out", "list/prefixes list/whole", lists(func(prefix string, _ storage.ListOptions, p *storage.Page) {
			p.Items = slices.DeleteFunc(p.Items, func(kv storage.KeyValue) bool { return kv.Key >= prefix+"\xff" })
		})},
		{"the prefix itself left out", "list/prefixes", lists(func(prefix string, _ storage.ListOptions, p *storage.Page) {
			p.Items = slices.DeleteFunc(p.Items, func(kv storage.KeyValue) bool { return kv.Key == prefix })
		})},
		{"keys out of order", "list/prefixes list/pages", lists(func(_ string, _ storage.ListOptions, p *storage.Page) {
			slices.Reverse(p.Items)
		})},
		{"start left out", "list/pages random/operations", lists(func(_ string, o storage.ListOptions, p *storage.Page) {
			p.Items = slices.DeleteFunc(p.Items, func(kv storage.KeyValue) bool { return kv.Key == o.Start })
		})},
		{"more not said", "list/pages list/pinned list/bytes", lists(func(_ string, _ storage.ListOptions, p *storage.Page) { p.More = false })},
		{"more always said", "list/pages", lists(func(_ string, o storage.ListOptions, p *storage.Page) { p.More = len(p.Items) == o.Limit })},
		{"remaining off by one", "list/pages", lists(func(_ string, _ storage.ListOptions, p *storage.Page) { p.Remaining++ })},
		{"values in keys-only", "list/pages", lists(func(_ string, o storage.ListOptions, p *storage.Page) {
			for i := range p.Items {
				p.Items[i].Value = []byte(strings.TrimPrefix(p.Items[i].Key, storage.Root+"pages/"))
			}
		})},
		{"a scan without its limits", "list/scan", func(m *mutant) {
			m.scan = func(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
				opts.Limit = 0
				return storage.Scan(ctx, m.model, prefix, opts, each)
			}
		}},
		{"a scan that does not end", "list/scan", func(m *mutant) {
			m.scan = func(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
				return storage.Scan(ctx, m.model, prefix, opts, func(kv *storage.KeyValue) error {
					_ = each(kv)
					return nil
				})
			}
		}},
		{"the newest value for an old one", "list/values", func(m *mutant) {
			m.value = func(ctx context.Context, key string, revision int64) ([]byte, error) {
				kv, err := m.model.Get(ctx, key)
				return kv.Value, err
			}
		}},
		{"values before the compaction are gone", "list/values", func(m *mutant) {
			m.value = func(ctx context.Context, key string, revision int64) ([]byte, error) {
				if revision < m.model.compacted {
					return nil, storage.ErrCompacted
				}
				return m.model.Value(ctx, key, revision)
			}
		}},
		{"future is the present", "list/future", func(m *mutant) {
			m.list = func(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
				opts.Revision = min(opts.Revision, m.model.revision)
				return m.model.List(ctx, prefix, opts)
			}
		}},
		{"compacts one too many", "compact/bounds compact/current watch/boundary", func(m *mutant) {
			m.compact = func(ctx context.Context, rev int64) error {
				err := m.model.Compact(ctx, rev)
				if err == nil {
					m.compacted++
				}
				return err
			}
		}},
		{"compacts one too few", "compact/bounds compact/current watch/boundary", func(m *mutant) {
			m.compact = func(ctx context.Context, rev int64) error {
				err := m.model.Compact(ctx, rev)
				if err == nil {
					m.compacted--
				}
				return err
			}
		}},
		{"compaction revives", "compact/keeps compact/current", func(m *mutant) {
			m.compact = func(ctx context.Context, rev int64) error {
				err := m.model.Compact(ctx, rev)
				if last := m.log[len(m.log)-1]; err == nil && last.Op == storage.Deleted {
					m.keys[last.KV.Key] = last.Prev
				}
				return err
			}
		}},
		{"list says a compacted revision is empty", "compact/busy compact/bounds", func(m *mutant) {
			m.list = func(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
				if opts.Revision > 0 {
					m.await(func() bool { return m.compacted > opts.Revision })
				}
				page, err := m.model.List(ctx, prefix, opts)
				if errors.Is(err, storage.ErrCompacted) {
					return storage.Page{Revision: opts.Revision}, nil
				}
				return page, err
			}
		}},
		{"compaction in the way of the present", "compact/present", func(m *mutant) {
			m.list = func(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
				if opts.Revision == 0 {
					opts.Revision, _ = m.model.Revision(ctx)
					m.await(func() bool { return m.compacted > opts.Revision })
				}
				return m.model.List(ctx, prefix, opts)
			}
		}},
		{"reads after close", "end/store", func(m *mutant) {
			m.get = func(ctx context.Context, key string) (storage.KeyValue, error) { return m.keys[key], nil }
		}},
		{"restart loses a write", "restart/state", func(m *mutant) {
			m.reopened = func(m *model) {
				last := m.log[len(m.log)-1]
				m.log = m.log[:len(m.log)-1]
				delete(m.keys, last.KV.Key)
				if last.Op != storage.Created {
					m.keys[last.KV.Key] = last.Prev
				}
			}
		}},
		{"restart takes the revision back", "restart/state", func(m *mutant) {
			m.reopened = func(m *model) { m.revision-- }
		}},
		{"restart loses history", "restart/watch restart/state", func(m *mutant) {
			m.reopened = func(m *model) { m.compacted = m.revision }
		}},
		{"restart forgets the compaction", "restart/compaction", func(m *mutant) {
			m.reopened = func(m *model) { m.compacted = 1 }
		}},
	}
}

func watchMutants() []fault {
	return []fault{
		{"event lost", "watch/past watch/now watch/joins watch/starved watch/prefixes random/operations", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) {
				b.Events = slices.DeleteFunc(b.Events, func(ev storage.Event) bool { return ev.KV.ModRevision%7 == 0 })
			})
		}},
		{"event twice", "watch/past watch/joins watch/next-expires compact/busy", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) {
				if n := len(b.Events); n > 0 {
					last := b.Events[n-1]
					b.Events = append(w.held, b.Events...)
					w.held = []storage.Event{last}
				}
			})
		}},
		{"event twice in a batch", "watch/past", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) {
				if n := len(b.Events); n > 0 {
					b.Events = append(b.Events, b.Events[n-1])
				}
			})
		}},
		{"a batch late", "watch/wakes", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) { b.Events, w.held = w.held, b.Events })
		}},
		{"asleep", "watch/wakes", func(m *mutant) {
			m.watches(mutantWatcher{next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
				for {
					w.m.mu.Lock()
					awake, changed := w.m.asked == w.m.revision, w.m.changed
					w.m.mu.Unlock()
					if awake {
						return w.modelWatcher.Next(ctx)
					}
					select {
					case <-changed:
					case <-ctx.Done():
						return storage.Batch{}, ctx.Err()
					}
				}
			}})
		}},
		{"progress ahead of events", "watch/progress-honest watch/joins watch/past", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) {
				all := append(w.held, b.Events...)
				w.held = nil
				if n := len(all); n > 1 {
					w.held = []storage.Event{all[n-1]}
					all = all[:n-1]
				}
				b.Events = all
			})
		}},
		{"progress never", "watch/progress-idle watch/idle-compacted", func(m *mutant) {
			m.progress = func(ctx context.Context) error { return nil }
		}},
		{"progress behind events", "watch/past", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) { b.Revision-- })
		}},
		{"events out of order", "watch/past", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) { slices.Reverse(b.Events) })
		}},
		{"no previous values", "watch/past ttl/goes random/operations", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) {
				for i := range b.Events {
					b.Events[i].Prev = storage.KeyValue{}
				}
			})
		}},
		{"previous value without its bytes", "watch/past", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) {
				for i := range b.Events {
					b.Events[i].Prev.Value = nil
				}
			})
		}},
		{"all are creations", "watch/past write/guards", func(m *mutant) {
			m.edits(func(w *mutantWatcher, b *storage.Batch) {
				for i := range b.Events {
					if b.Events[i].Op == storage.Updated {
						b.Events[i].Op, b.Events[i].Prev = storage.Created, storage.KeyValue{}
					}
				}
			})
		}},
		{"prefix not looked at", "watch/prefixes", func(m *mutant) {
			m.watch = func(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
				return m.model.Watch(ctx, prefix[:len(prefix)-1], after)
			}
		}},
		{"now is a revision ago", "watch/now", func(m *mutant) {
			m.watch = func(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
				if after == 0 {
					after, _ = m.model.Revision(ctx)
					after--
				}
				return m.model.Watch(ctx, prefix, after)
			}
		}},
		{"now is the first Next", "watch/now watch/prefixes", func(m *mutant) {
			m.watches(mutantWatcher{next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
				w.m.mu.Lock()
				if w.reported == 0 {
					w.pos = w.m.revision
				}
				w.m.mu.Unlock()
				return w.modelWatcher.Next(ctx)
			}})
		}},
		{"future is now", "watch/future", func(m *mutant) {
			m.watch = func(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
				now, _ := m.model.Revision(ctx)
				return m.model.Watch(ctx, prefix, min(after, now))
			}
		}},
		{"compacted events left out in silence", "watch/boundary watch/starved-compacted restart/compaction", func(m *mutant) {
			m.watch = func(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
				w, err := m.model.Watch(ctx, prefix, max(after, m.compacted-1))
				if err != nil {
					return nil, err
				}
				return &mutantWatcher{modelWatcher: w.(*modelWatcher), next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
					w.m.mu.Lock()
					w.pos = max(w.pos, w.m.compacted-1)
					w.m.mu.Unlock()
					return w.modelWatcher.Next(ctx)
				}}, nil
			}
		}},
		{"starved loses", "watch/starved", func(m *mutant) {
			m.watches(mutantWatcher{next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
				w.m.mu.Lock()
				w.pos = max(w.pos, w.m.revision-1000)
				w.m.mu.Unlock()
				return w.modelWatcher.Next(ctx)
			}})
		}},
		{"idle does not move", "watch/idle-compacted", func(m *mutant) {
			m.watches(mutantWatcher{next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
				w.m.mu.Lock()
				if w.at == 0 {
					w.at = w.pos
				}
				gone := w.at+1 < w.m.compacted
				w.m.mu.Unlock()
				if gone {
					return storage.Batch{}, storage.ErrCompacted
				}
				b, err := w.modelWatcher.Next(ctx)
				if len(b.Events) > 0 {
					w.at = b.Revision
				}
				return b, err
			}})
		}},
		{"expiry of Next ends the watch", "watch/next-expires", func(m *mutant) {
			m.watches(mutantWatcher{next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
				if w.over != nil {
					return storage.Batch{}, w.over
				}
				b, err := w.modelWatcher.Next(ctx)
				w.over = err
				return b, err
			}})
		}},
		{"expiry of Next loses a batch", "watch/next-expires", func(m *mutant) {
			m.watches(mutantWatcher{next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
				b, err := w.modelWatcher.Next(ctx)
				if w.at++; err == nil && w.at%5 == 0 {
					return storage.Batch{}, context.DeadlineExceeded
				}
				return b, err
			}})
		}},
		{"close does not wake", "end/watcher", func(m *mutant) {
			m.watches(mutantWatcher{close: func(w *mutantWatcher) {}})
		}},
		{"context does not end the watch", "end/context", func(m *mutant) {
			m.watch = func(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
				return m.model.Watch(context.WithoutCancel(ctx), prefix, after)
			}
		}},
		{"error not repeated", "end/watcher end/context end/store", func(m *mutant) {
			m.watches(mutantWatcher{next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
				if w.over != nil {
					return storage.Batch{}, errors.New("watch is over")
				}
				b, err := w.modelWatcher.Next(ctx)
				if !errors.Is(err, context.DeadlineExceeded) {
					w.over = err
				}
				return b, err
			}})
		}},
	}
}

func timeMutants() []fault {
	// ttls makes m pass every ttl through edit.
	ttls := func(edit func(ttl time.Duration, update bool) time.Duration) func(m *mutant) {
		return func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				return m.model.Create(ctx, key, value, edit(ttl, false))
			}
			m.update = func(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
				return m.model.Update(ctx, key, value, guard, edit(ttl, true))
			}
		}
	}
	return []fault{
		{"no ttl", "ttl/goes ttl/many ttl/reported restart/ttl", ttls(func(time.Duration, bool) time.Duration { return 0 })},
		{"ttl ends early", "ttl/goes ttl/replaced ttl/reported", ttls(func(ttl time.Duration, _ bool) time.Duration { return ttl / 2 })},
		{"update has no ttl", "ttl/replaced", ttls(func(ttl time.Duration, update bool) time.Duration {
			if update {
				return 0
			}
			return ttl
		})},
		{"first ttl counts", "ttl/stays", func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				kv, err := m.model.Create(ctx, key, value, ttl)
				if ttl > 0 && ttl < longTTL {
					// The timer of a life goes on after its end.
					time.AfterFunc(ttl, func() {
						if kv, err := m.model.Get(context.Background(), key); err == nil {
							m.model.Delete(context.Background(), key, kv.ModRevision)
						}
					})
				}
				return kv, err
			}
		}},
		{"takes the neighbour with it", "ttl/many ttl/stays", func(m *mutant) {
			m.create = func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
				if strings.HasSuffix(key, "8") || strings.HasSuffix(key, "permanent") {
					ttl = time.Millisecond
				}
				return m.model.Create(ctx, key, value, ttl)
			}
		}},
		{"restart forgets ttls", "restart/ttl", func(m *mutant) {
			m.reopened = func(m *model) {
				for _, t := range m.timers {
					t.Stop()
				}
			}
		}},
		{"values swapped", "write/counter", func(m *mutant) {
			m.update = func(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
				return m.model.Update(ctx, key, bytes.Replace(value, []byte("9"), []byte("7"), 1), guard, ttl)
			}
		}},
	}
}
