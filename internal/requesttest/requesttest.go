// Package requesttest has parts of requests for tests. Start at Settlements.
package requesttest

import "sync/atomic"

// Settlements is a request.Settler that counts how often requests have said that they are
// settled.
type Settlements struct{ atomic.Int64 }

// Settle implements request.Settler.
func (s *Settlements) Settle(bool) { s.Add(1) }
