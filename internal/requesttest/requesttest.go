// Package requesttest has parts of requests for tests. Start at EndedArrivals.
package requesttest

import "sync/atomic"

// EndedArrivals is a request.Arrival that counts how often requests have said that they
// have arrived.
type EndedArrivals struct{ atomic.Int64 }

// EndArrival implements request.Arrival.
func (s *EndedArrivals) EndArrival(bool) { s.Add(1) }
