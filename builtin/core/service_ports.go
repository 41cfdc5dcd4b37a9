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
	// portRange is the name of the RangeAllocation of node ports.
	portRange = "servicenodeports"
	// portTimeout bounds a batched write, which no single client can cancel.
	portTimeout = 30 * time.Second
)

// RangeResource is the resource name of RangeAllocations.
const RangeResource = "rangeallocations"

// RangeAllocations defines bitmaps of the used values of a range. They are internal and not
// served.
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
// All ports are in one object, so writes to it are serialized. Changes that come in during a
// write are batched into the next one, which the first of them makes.
type clusterPorts struct {
	span[int32]
	of     *ClusterAllocator
	ranges resource.Objects
	text   string // of the range, as RangeAllocation has it

	mu     sync.Mutex
	queue  []*portChange
	busy   bool // a write is under way
	unused map[int32]suspicion
}

// portChange is a change of the bitmap. apply leaves the bitmap unchanged if it fails; it may
// run several times.
type portChange struct {
	apply func(used *big.Int) error
	lead  chan struct{} // receives the turn to write the batch
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

// PortsInUse returns the number of reserved node ports and the size of the range.
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

// change applies a change, batched with others.
func (p *clusterPorts) change(ctx context.Context, apply func(used *big.Int) error) error {
	c := &portChange{apply: apply, lead: make(chan struct{}, 1), done: make(chan error, 1)}
	p.mu.Lock()
	p.queue = append(p.queue, c)
	if !p.busy {
		p.busy = true
		c.lead <- struct{}{}
	}
	p.mu.Unlock()
	// A waiter is always answered: a write ends, and the first in the queue makes the
	// next.
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
	// The batch must not be cancelled with this request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), portTimeout)
	defer cancel()
	p.write(ctx, batch)
	return <-c.done
}

// next passes the turn to the next waiter.
func (p *clusterPorts) next() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) > 0 {
		p.queue[0].lead <- struct{}{}
	} else {
		p.busy = false
	}
}

// write applies a batch of changes and reports the results.
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
		// First server on this storage: reserve the ports of existing services.
		if err = p.repair(ctx); err == nil {
			err = p.ranges.Update(ctx, "", portRange, apply)
		}
	}
}
