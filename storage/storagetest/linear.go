package storagetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/apikeel/kelson/storage"
)

// call is an operation on one key.
type call struct {
	op    string // get, create, update or delete
	key   string
	value string
	guard int64
}

// answer is the result of a call.
type answer struct {
	err error // a sentinel, or nil
	// ambiguous: nobody knows whether the write was done.
	ambiguous bool
	kv        storage.KeyValue // the key as written or found
	revision  int64            // of a write that was done
}

func (c call) String() string {
	return fmt.Sprintf("%s %s %.8q guard %d", c.op, c.key[len(c.key)-1:], c.value, c.guard)
}

func (a answer) String() string {
	if a.ambiguous {
		return "?"
	}
	return fmt.Sprintf("%.8q create %d mod %d, revision %d, error %v", a.kv.Value, a.kv.CreateRevision, a.kv.ModRevision, a.revision, a.err)
}

// checkLinear: the histories of concurrent clients on a few keys are linearizable. Some
// calls have so short a deadline that their outcome is unknown.
func checkLinear(e *env) error {
	for round := range e.times(6, 60) {
		if err := e.below(fmt.Sprint(round)).linear(round); err != nil {
			return fmt.Errorf("history %d: %w", round, err)
		}
	}
	return nil
}

// linear records one history and judges it.
func (e *env) linear(round int) error {
	const clients, keys = 5, 3
	var clock atomic.Int64
	histories := make([][]porcupine.Operation, clients)
	err := together(clients, func(i int) error {
		rng := e.rand(round*clients + i)
		seen := map[string]int64{} // the last mod-revision that this client saw
		for n := range e.times(60, 100) {
			c := call{key: e.key(fmt.Sprint(rng.IntN(keys)))}
			c.value = fmt.Sprintf("%d-%d", i, n)
			c.guard = seen[c.key]
			c.op = []string{"get", "get", "create", "update", "update", "update", "delete"}[rng.IntN(7)]
			start := clock.Add(1)
			a, err := e.call(c, rng)
			end := clock.Add(1)
			if err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
			seen[c.key] = cmp.Or(a.kv.ModRevision, seen[c.key])
			histories[i] = append(histories[i], porcupine.Operation{ClientId: i, Input: c, Output: a, Call: start, Return: end})
		}
		return nil
	})
	if err != nil {
		return err
	}
	history := slices.Concat(histories...)
	if err := realTime(history); err != nil {
		return err
	}
	// A write with an unknown outcome may take effect at any later time.
	for i := range history {
		if history[i].Output.(answer).ambiguous {
			history[i].Return = clock.Load() + 1
		}
	}
	m := keyModel()
	limit := 20 * time.Second
	switch result, info := porcupine.CheckOperationsVerbose(m, history, limit); result {
	case porcupine.Illegal:
		return fmt.Errorf("not linearizable: %s", picture(m, info))
	case porcupine.Unknown:
		return fmt.Errorf("not known to be linearizable after %v: %s", limit, picture(m, info))
	}
	return nil
}

// picture writes a visualization of the history to a file and returns its path.
func picture(m porcupine.Model, info porcupine.LinearizationInfo) string {
	f, err := os.CreateTemp("", "kelson-linear-*.html")
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if err := porcupine.Visualize(m, info, f); err != nil {
		return err.Error()
	}
	return "see " + f.Name()
}

// call does one operation, some in too little time.
func (e *env) call(c call, rng *rand.Rand) (answer, error) {
	ctx := e.ctx
	if c.op != "get" && rng.IntN(25) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(400))*time.Microsecond)
		defer cancel()
	}
	var a answer
	var err error
	switch c.op {
	case "get":
		a.kv, err = e.b.Get(ctx, c.key)
	case "create":
		a.kv, err = e.b.Create(ctx, c.key, []byte(c.value), 0)
		a.revision = a.kv.ModRevision
	case "update":
		a.kv, err = e.b.Update(ctx, c.key, []byte(c.value), c.guard, 0)
		a.revision = a.kv.ModRevision
	case "delete":
		a.kv, a.revision, err = e.b.Delete(ctx, c.key, c.guard)
	}
	switch {
	case err == nil:
		return a, nil
	case errors.Is(err, storage.ErrUncertain), ctx != e.ctx && ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return answer{ambiguous: true}, nil
	}
	a.revision = 0
	for _, known := range []error{storage.ErrNotFound, storage.ErrExists, storage.ErrConflict} {
		if errors.Is(err, known) {
			a.err = known
			if known == storage.ErrNotFound {
				a.kv = storage.KeyValue{}
			}
			return a, nil
		}
	}
	return a, err
}

// realTime returns an error unless revisions follow time over all keys: a
// write that began after another was acknowledged has the higher one, and what
// is read is at least as new as all writes of that key acknowledged before.
func realTime(history []porcupine.Operation) error {
	type moment struct {
		at    int64
		op    porcupine.Operation
		begin bool
	}
	var moments []moment
	for _, op := range history {
		moments = append(moments, moment{op.Call, op, true}, moment{op.Return, op, false})
	}
	slices.SortFunc(moments, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	var acknowledged int64
	floor := map[int64]int64{} // by call: what was acknowledged before it
	taken := map[int64]porcupine.Operation{}
	for _, m := range moments {
		a := m.op.Output.(answer)
		if m.begin {
			floor[m.op.Call] = acknowledged
			continue
		}
		if a.revision == 0 {
			continue
		}
		if a.revision <= floor[m.op.Call] {
			return fmt.Errorf("%v took revision %d, but %d had been acknowledged before it began", m.op.Input, a.revision, floor[m.op.Call])
		}
		if other, ok := taken[a.revision]; ok {
			return fmt.Errorf("%v and %v both took revision %d", m.op.Input, other.Input, a.revision)
		}
		taken[a.revision] = m.op
		acknowledged = max(acknowledged, a.revision)
	}
	return nil
}

// keyState is what is known about one key. The revisions of a write with an unknown
// outcome are unknown until a read returns them.
type keyState struct {
	there       bool
	value       string
	create, mod int64 // zero: unknown
	newest      int64 // the highest revision known to have been used for the key
}

// holds returns the state narrowed by a key that was read, or false.
func (s keyState) holds(kv storage.KeyValue) (keyState, bool) {
	if !s.there || s.value != string(kv.Value) ||
		s.create != 0 && s.create != kv.CreateRevision || s.mod != 0 && s.mod != kv.ModRevision ||
		kv.ModRevision < s.newest || kv.CreateRevision > kv.ModRevision {
		return s, false
	}
	s.create, s.mod, s.newest = kv.CreateRevision, kv.ModRevision, kv.ModRevision
	return s, true
}

// next returns the state after c took the revision, which is zero if unknown,
// or false if c would not have been done.
func (s keyState) next(c call, revision int64) (keyState, bool) {
	if revision != 0 && revision <= s.newest {
		return s, false
	}
	after := keyState{there: true, value: c.value, create: s.create, mod: revision, newest: max(s.newest, revision)}
	guarded := s.there && (s.mod == c.guard || s.mod == 0 && c.guard > s.newest)
	switch c.op {
	case "create":
		after.create = revision
		return after, !s.there
	case "update":
		return after, guarded
	case "delete":
		return keyState{newest: after.newest}, guarded
	}
	return s, false
}

// step returns the states in which c may leave the key with the answer a.
func (s keyState) step(c call, a answer) []any {
	one := func(s keyState, ok bool) []any {
		if ok {
			return []any{s}
		}
		return nil
	}
	switch {
	case a.ambiguous:
		states := []any{s}
		if done, ok := s.next(c, 0); ok {
			states = append(states, done)
		}
		return states
	case errors.Is(a.err, storage.ErrNotFound):
		return one(s, !s.there)
	case c.op == "get", errors.Is(a.err, storage.ErrExists):
		return one(s.holds(a.kv))
	case errors.Is(a.err, storage.ErrConflict):
		after, ok := s.holds(a.kv)
		return one(after, ok && a.kv.ModRevision != c.guard)
	case c.op == "delete":
		// The answer has the key as it was before.
		before, ok := s.holds(a.kv)
		if !ok {
			return nil
		}
		return one(before.next(c, a.revision))
	}
	after, ok := s.next(c, a.revision)
	if !ok {
		return nil
	}
	return one(after.holds(a.kv))
}

// keyModel is the contract for one key, in porcupine's terms.
func keyModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			parts := map[string][]porcupine.Operation{}
			for _, op := range history {
				key := op.Input.(call).key
				parts[key] = append(parts[key], op)
			}
			var out [][]porcupine.Operation
			for _, part := range parts {
				out = append(out, part)
			}
			return out
		},
		Init: func() []any { return []any{keyState{}} },
		Step: func(state, input, output any) []any {
			return state.(keyState).step(input.(call), output.(answer))
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %v", input, output) },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
	return m.ToModel()
}
