package core

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

const (
	// defaultKubeletPort is the port of kubelets that do not declare one.
	defaultKubeletPort = 10250
	// kubeletWebSockets is the declared feature of nodes whose kubelets speak the
	// WebSocket subprotocols of clients, and the feature gate of letting them.
	kubeletWebSockets = "ExtendWebSocketsToKubelet"
)

// kubelets knows how to reach kubelets: by which address types, the preferred one first, and
// at which default port.
type kubelets struct {
	addresses []corev1.NodeAddressType
	port      int
	split     bool // stdout and stderr can be read separately
	gates     features.Gates
}

// locate returns the location of a node's kubelet, without a path, and whether WebSockets
// must be translated. The NotFound error for a missing node names the resource asked.
func (k kubelets) locate(ctx context.Context, target resource.Target, asked, name string) (to *resource.Location, translate bool, err error) {
	nodes, err := target.Other("", "nodes")
	if err != nil {
		return nil, false, err
	}
	obj, err := nodes.Get(ctx, "", name)
	if errors.IsNotFound(err) {
		return nil, false, errors.NewNotFound(corev1.Resource(asked), name)
	}
	if err != nil {
		return nil, false, err
	}
	node := obj.(*corev1.Node)
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port <= 0 {
		port = k.port
	}
	for _, t := range k.addresses {
		for _, a := range node.Status.Addresses {
			if a.Type == t {
				at := &url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, strconv.Itoa(port))}
				return &resource.Location{URL: at, Kubelet: true}, !k.gates.Enabled(kubeletWebSockets) || !slices.Contains(node.Status.DeclaredFeatures, kubeletWebSockets), nil
			}
		}
	}
	return nil, false, fmt.Errorf("no preferred addresses found; known addresses: %v", node.Status.Addresses)
}

// checkProxyable refuses to proxy to loopback and link-local addresses, which only the
// server itself can reach.
func checkProxyable(ctx context.Context, host string) error {
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	switch {
	case err != nil:
		return errors.NewBadRequest(err.Error())
	case len(addresses) == 0:
		return errors.NewBadRequest("no addresses for hostname")
	}
	for _, a := range addresses {
		if !a.IP.IsGlobalUnicast() {
			return errors.NewBadRequest("address not allowed")
		}
	}
	return nil
}
