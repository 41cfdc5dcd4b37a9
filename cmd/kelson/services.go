package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"
)

// serviceFlags are the flags about addresses and ports of services.
type serviceFlags struct {
	ranges   string
	ports    utilnet.PortRange
	nodePort int32
}

const (
	defaultServiceRange = "10.0.0.0/24"
	// minServiceBits is the smallest number of host bits of a range: there must be room
	// for a few services.
	minServiceBits = 3
)

// defaultNodePorts is the default range of node ports.
func defaultNodePorts() utilnet.PortRange { return utilnet.PortRange{Base: 30000, Size: 2768} }

func (f *serviceFlags) bind(fs *pflag.FlagSet) {
	f.ports = defaultNodePorts()
	fs.StringVar(&f.ranges, "service-cluster-ip-range", defaultServiceRange,
		"`range` of the cluster IPs of services, or two, one of each family")
	fs.Var(&f.ports, "service-node-port-range", "`range` of the node ports of services")
	fs.Int32Var(&f.nodePort, "kubernetes-service-node-port", 0, "node `port` of the service kubernetes; with 0 it has none")
}

// prepare parses the ranges.
func (f *serviceFlags) prepare(s *setup) (err error) {
	s.config.ServiceCIDRs, err = parseRanges(f.ranges)
	return err
}

func (f *serviceFlags) apply(s *setup) {
	config := s.config
	s.refuse(checkServiceRanges, f.checkRanges(config.ServiceCIDRs))
	if f.ports.Size == 0 {
		f.ports = defaultNodePorts()
	}
	config.FirstNodePort, config.LastNodePort = int32(f.ports.Base), int32(f.ports.Base+f.ports.Size-1)
	port := f.nodePort
	if port < 0 || port > 65535 {
		s.refuse(checkNodePort, fmt.Errorf("--kubernetes-service-node-port %v must be between 0 and 65535, inclusive. If 0, the Kubernetes master service will be of type ClusterIP", port))
	}
	if port > 0 && !f.ports.Contains(int(port)) {
		s.refuse(checkNodePort, fmt.Errorf("kubernetes service node port range %v doesn't contain %v", f.ports, port))
	}
	config.ServiceNodePort = port
}

// sameFamily returns an error unless the server has an address of the first range's
// family, for the endpoints of the service kubernetes.
func sameFamily(config *controlplane.Config) error {
	if config.EndpointReconciler == controlplane.EndpointNone || len(config.ServiceCIDRs) == 0 {
		return nil
	}
	server := library.Server{Addr: net.JoinHostPort(config.BindAddress, "0"), Serving: config.Serving}
	ip, err := server.AdvertiseAddress()
	if first := config.ServiceCIDRs[0]; err == nil && first.Addr().Is4() != netutils.IsIPv4(ip) {
		return fmt.Errorf("service IP family %q must match public address family %q", first, ip)
	}
	return nil // without a network there is no other address
}

// parseRanges parses the first two ranges.
func parseRanges(text string) (ranges []netip.Prefix, err error) {
	if text == "" {
		text = defaultServiceRange
	}
	parts := strings.Split(text, ",")
	for i, part := range parts[:min(len(parts), 2)] {
		// Leading zeros are accepted, as always in Kubernetes.
		_, ipNet, err := netutils.ParseCIDRSloppy(part)
		if err != nil {
			return nil, fmt.Errorf("service-cluster-ip-range[%d] is not %s", i, [...]string{"a valid cidr", "an ip net"}[i])
		}
		if ones, bits := ipNet.Mask.Size(); i == 0 && bits-ones < minServiceBits {
			return nil, fmt.Errorf("error determining service IP ranges for primary service cidr: the service cluster IP range must be at least %d IP addresses", 1<<minServiceBits)
		}
		ranges = append(ranges, netip.MustParsePrefix(ipNet.String()))
	}
	return ranges, nil
}

// checkRanges refuses ranges that cannot be used together.
func (f *serviceFlags) checkRanges(ranges []netip.Prefix) (err error) {
	if strings.Count(f.ranges, ",") > 1 {
		err = errors.New("--service-cluster-ip-range must not contain more than two entries")
	}
	if len(ranges) == 2 && ranges[0].Addr().Is4() == ranges[1].Addr().Is4() {
		err = errors.Join(err, errors.New("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family"))
	}
	return err
}
