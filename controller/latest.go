package controller

import "sync"

// latest is a map with a lock, of the last state seen of each object.
type latest[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]V
}

func newLatest[K comparable, V any]() *latest[K, V] { return &latest[K, V]{all: map[K]V{}} }

// get returns the value of a key, or the zero value.
func (l *latest[K, V]) get(key K) V {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[key]
}

func (l *latest[K, V]) set(key K, v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[key] = v
}

func (l *latest[K, V]) remove(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, key)
}

func (l *latest[K, V]) each(f func(K)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.all {
		f(key)
	}
}
