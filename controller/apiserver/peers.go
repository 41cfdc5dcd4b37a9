package apiserver

//lint:file-ignore SA1019 kube-apiserver still keeps Endpoints in the keys of servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/storage"
)

// The prefix, the label and the times are those of kube-apiserver, which keeps the same
// keys.
const (
	peerPrefix = storage.Root + "peerserverleases/"
	peerLabel  = "apiserverIdentity"
	peerTTL    = 15 * time.Second
	peerEvery  = 10 * time.Second
)

// PeerAddress keeps a key in the store with the address at which other servers reach this
// one, to forward requests for what only this one serves. The key expires with the
// server. Its value is an Endpoints object, as with kube-apiserver.
type PeerAddress struct {
	*Server
	// Name is the name of the identity lease.
	Name string
	// Store is where the key is.
	Store storage.Backend

	key *ownKey // nil before Start
}

// Start keeps the key until ctx ends or Stop is called. ready is closed when the server
// answers all requests; before, there is no key.
func (a *PeerAddress) Start(ctx context.Context, ip string, port int32, ready <-chan struct{}) error {
	a.key = newOwnKey(a.Store, peerPrefix+a.Name, "the address of this server for other ones", a.Logger)
	a.Running.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-ready:
		}
		a.key.keep(ctx, peerEvery, func(ctx context.Context) error {
			return a.key.renew(ctx, peerTTL, func(lease *corev1.Endpoints) {
				lease.Subsets = []corev1.EndpointSubset{{
					Addresses: []corev1.EndpointAddress{{IP: ip}},
					Ports:     []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}},
				}}
				if lease.Labels == nil {
					lease.Labels = map[string]string{}
				}
				lease.Labels[peerLabel] = a.Name
			})
		})
	})
	return nil
}

// Stop removes the key, unless another process has it now.
func (a *PeerAddress) Stop(ctx context.Context) error {
	if a.key != nil {
		a.key.takeBack(ctx, a.key.remove)
	}
	return nil
}

// FindPeer returns the host and port at which a server is reached by others.
func FindPeer(ctx context.Context, store storage.Backend, name string) (string, error) {
	kv, err := store.Get(ctx, peerPrefix+name)
	if errors.Is(err, storage.ErrNotFound) {
		return "", fmt.Errorf("server %s has published no address", name)
	}
	if err != nil {
		return "", err
	}
	lease := readLease(kv.Value)
	ips := addresses(lease)
	if len(ips) == 0 || len(lease.Subsets[0].Ports) == 0 {
		return "", fmt.Errorf("the published address of server %s has no address or no port", name)
	}
	return net.JoinHostPort(ips[0], strconv.Itoa(int(lease.Subsets[0].Ports[0].Port))), nil
}
