package budget

import (
	"fmt"
	"sync"
	"testing"

	"github.com/apikeel/kelson/internal/randomtest"
)

// TestSharedIsDivided: one user does not get all, a later one gets a part of the rest, and
// administrators have a part of their own.
func TestSharedIsDivided(t *testing.T) {
	s := Shared{limit: 1000}
	takeAll := func(user string, lane bool) (n int) {
		for s.Take(user, 1, lane) {
			n++
		}
		return n
	}
	for i, want := range []int{640, 128, 25, 5} { // four fifths of what is left of 800
		if got := takeAll(fmt.Sprint("user-", i), false); got != want {
			t.Errorf("user %d of those who take all: got %d bytes, want %d", i, got, want)
		}
	}
	if !s.Take("late", 1, false) {
		t.Error("somebody who holds nothing is refused, want that something is left")
	}
	if got := takeAll("admin", true); got != 201 {
		t.Errorf("an administrator: got %d bytes, want all that is left, 201", got)
	}
	if s.Held() != 1000 {
		t.Errorf("%d bytes are held, want 1000", s.Held())
	}
	s.Return("user-0", 640)
	if got := takeAll("user-1", false); got == 0 {
		t.Error("nothing is to be had after another user has given all back")
	}
}

// TestConnectionsHaveRoom: a thousand nodes with ten watches each are too much for a server with
// 512 MiB. All of them have a connection, on which they say that they live, and half of them
// their watches; before, those who came last had none.
func TestConnectionsHaveRoom(t *testing.T) {
	const nodes, watches, connection, watch = 1000, 10, 16 << 10, 12 << 10
	s := &New(512 << 20).Clients
	connected, watched := 0, 0
	for i := range nodes {
		node := fmt.Sprint("system:node:", i)
		if !s.Take(node, connection, false) {
			continue
		}
		connected++
		for range watches {
			if s.TakeMore(node, watch, false) {
				watched++
			}
		}
	}
	if connected != nodes || watched < watches*nodes/2 {
		t.Errorf("%d of %d nodes have a connection, and %d watches in all, want all and half of them", connected, nodes, watched)
	}
	if !s.TakeMore("admin", watch, true) {
		t.Error("an administrator is refused")
	}
}

// TestSharedConcurrently: what is held is never above the limit, and nothing stays when all is
// given back.
func TestSharedConcurrently(t *testing.T) {
	seed := randomtest.New(t).Uint64()
	s := Shared{limit: 1 << 20}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			random := randomtest.Rand(seed, uint64(i))
			user := fmt.Sprint("user-", i%3)
			var mine []int64
			for range 2000 {
				if bytes := random.Int64N(64 << 10); s.Take(user, bytes, i == 7) {
					mine = append(mine, bytes)
				}
				if s.Held() > s.limit {
					t.Errorf("%d bytes are held, of %d", s.Held(), s.limit)
				}
				if n := len(mine); n > 0 && random.IntN(2) == 0 {
					s.Return(user, mine[n-1])
					mine = mine[:n-1]
				}
			}
			for _, bytes := range mine {
				s.Return(user, bytes)
			}
		})
	}
	wg.Wait()
	if s.Held() != 0 || len(s.byUser) != 0 {
		t.Errorf("at the end %d bytes are held by %d users, want none", s.Held(), len(s.byUser))
	}
}
