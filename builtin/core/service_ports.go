package core

import (
	"context"
	"errors"
	"math/big"
	"math/bits"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/resource"
)

const (
	// portRange is the name of the object that has the node ports.
	portRange = "servicenodeports"
	// portTimeout bounds a write for many, which no single client can cancel.
	portTimeout = 30 * time.Second
)

// RangeResource is the name of RangeAllocations.
const RangeResource = "rangeallocations"

// RangeAllocations are bitmaps of what is in use of a range. They are the
// server's own, and not served.
func RangeAllocations() resource.Definition {
	return resource.Definition{
		Resource:   RangeResource,
		Kind:       "RangeAllocation",
		StorageKey: "ranges",
		Versions:   []resource.Version{resource.VersionOf[corev1.RangeAllocation, corev1.List]("v1", nil)},
	}
}

// clusterPorts is the pool of node ports of a ClusterAllocator.
//
// All ports are in one object, so writes to it wait for each other. Those that
// come in while one is under way make one write together, by whoever of them
// came first.
type clusterPorts struct {
	span[int32]
	of     *ClusterAllocator
	ranges resource.Objects
	text   string // of the range

	mu     sync.Mutex
	queue  []*portChange
	busy   bool // somebody writes
	unused map[int32]suspicion
}

// portChange is something that somebody wants to do to the bitmap. apply leaves
// the bitmap as it is if it fails; it may run several times.
type portChange struct {
	apply func(used *big.Int) error
	lead  chan struct{} // gets the turn to write for all
	done  chan error
}

// Reserve implements Pool.
func (p *clusterPorts) Reserve(ctx context.Context, _ types.NamespacedName, port int32) error {
	i, ok := p.index(port)
	if !ok {
		return p.outside(port)
	}
	return p.change(ctx, func(used *big.Int) error {
		if used.Bit(int(i)) == 1 {
			return p.taken(port)
		}
		used.SetBit(used, int(i), 1)
		return nil
	})
}

// ReserveAny implements Pool.
func (p *clusterPorts) ReserveAny(ctx context.Context, _ types.NamespacedName) (port int32, err error) {
	err = p.change(ctx, func(used *big.Int) error {
		return p.pick(func(i uint64) (bool, error) {
			if used.Bit(int(i)) == 1 {
				return false, nil
			}
			used.SetBit(used, int(i), 1)
			port = p.value(i)
			return true, nil
		})
	})
	return port, err
}

// Release implements Pool.
func (p *clusterPorts) Release(ctx context.Context, _ types.NamespacedName, port int32) error {
	i, ok := p.index(port)
	if !ok {
		return nil
	}
	return p.change(ctx, func(used *big.Int) error { used.SetBit(used, int(i), 0); return nil })
}

// Check implements Pool.
func (p *clusterPorts) Check(ctx context.Context, port int32) error {
	i, ok := p.index(port)
	if !ok {
		return p.check(port, false, false)
	}
	obj, err := p.ranges.Get(ctx, "", portRange)
	if apierrors.IsNotFound(err) {
		return p.check(port, true, false)
	}
	if err != nil {
		return err
	}
	return p.check(port, true, new(big.Int).SetBytes(obj.(*corev1.RangeAllocation).Data).Bit(int(i)) == 1)
}

// PortsInUse returns how many node ports services have, and how many there are.
func (a *ClusterAllocator) PortsInUse(ctx context.Context) (used, all int, err error) {
	p := a.ports
	obj, err := p.ranges.Get(ctx, "", portRange)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, 0, err
	}
	if err == nil {
		for _, b := range obj.(*corev1.RangeAllocation).Data {
			used += bits.OnesCount8(b)
		}
	}
	return used, int(p.size), nil
}

// Example implements Pool.
func (p *clusterPorts) Example() int32 { return p.example }

// change applies a change together with those of others.
func (p *clusterPorts) change(ctx context.Context, apply func(used *big.Int) error) error {
	c := &portChange{apply: apply, lead: make(chan struct{}, 1), done: make(chan error, 1)}
	p.mu.Lock()
	p.queue = append(p.queue, c)
	if !p.busy {
		p.busy = true
		c.lead <- struct{}{}
	}
	p.mu.Unlock()
	// Whoever waits is told in time: a write ends, and the next is led by the
	// first in the queue.
	select {
	case err := <-c.done:
		return err
	case <-c.lead:
	}
	defer p.next()
	p.mu.Lock()
	batch := p.queue
	p.queue = nil
	p.mu.Unlock()
	// A client that goes away does not take the ports of others with it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), portTimeout)
	defer cancel()
	p.write(ctx, batch)
	return <-c.done
}

// next passes the turn on.
func (p *clusterPorts) next() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) > 0 {
		p.queue[0].lead <- struct{}{}
	} else {
		p.busy = false
	}
}

// write makes the changes and tells those who wait how it went.
func (p *clusterPorts) write(ctx context.Context, batch []*portChange) {
	results := make([]error, len(batch))
	err := errors.New("the write was broken off")
	defer func() {
		for i, c := range batch {
			if err != nil {
				results[i] = err
			}
			c.done <- results[i]
		}
	}()
	apply := func(obj resource.Object) error {
		r := obj.(*corev1.RangeAllocation)
		if r.Range != p.text {
			return errors.New("the provided range does not match the current range")
		}
		used := new(big.Int).SetBytes(r.Data)
		for i, c := range batch {
			results[i] = c.apply(used)
		}
		r.Data = used.Bytes()
		return nil
	}
	err = p.ranges.Update(ctx, "", portRange, apply)
	if apierrors.IsNotFound(err) {
		// The first server on a storage: what services have is in use.
		if err = p.repair(ctx); err == nil {
			err = p.ranges.Update(ctx, "", portRange, apply)
		}
	}
}
