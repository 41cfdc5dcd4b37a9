package budget

import "sync/atomic"

// Allowance bounds bytes for which nobody waits: who gets none does without. The zero value
// gives everything.
type Allowance struct {
	limit int64
	held  atomic.Int64
}

// Take reports whether n more bytes may be held.
func (a *Allowance) Take(n int) bool {
	if a.held.Add(int64(n)) > a.limit && a.limit > 0 {
		a.held.Add(-int64(n))
		return false
	}
	return true
}

// Return gives back n bytes that Take has given.
func (a *Allowance) Return(n int) { a.held.Add(-int64(n)) }

// Held returns how many bytes are held.
func (a *Allowance) Held() int64 { return a.held.Load() }
