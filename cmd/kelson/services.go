package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// serviceFlags say which addresses and ports services get, with the names that
// kube-apiserver has for them.
type serviceFlags struct {
	ranges   []string
	ports    string
	nodePort int32
}

func (f *serviceFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.ranges, "service-cluster-ip-range", []string{"10.0.0.0/24"},
		"`range` of the cluster IPs of services, or two, one of each family")
	fs.StringVar(&f.ports, "service-node-port-range", "30000-32767", "`range` of the node ports of services")
	fs.Int32Var(&f.nodePort, "kubernetes-service-node-port", 0, "node `port` of the service kubernetes; with 0 it has none")
}

func (f *serviceFlags) apply(s *setup) error {
	config := s.config
	for _, text := range f.ranges {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--service-cluster-ip-range: %w", err)
		}
		config.ServiceCIDRs = append(config.ServiceCIDRs, cidr)
	}
	first, last, err := parsePorts(f.ports)
	if err != nil {
		return fmt.Errorf("--service-node-port-range: %w", err)
	}
	config.FirstNodePort, config.LastNodePort = first, last
	switch port := f.nodePort; {
	case port < 0 || port > 65535:
		return fmt.Errorf("--kubernetes-service-node-port %v must be between 0 and 65535, inclusive. If 0, the Kubernetes master service will be of type ClusterIP", port)
	case port > 0 && (port < first || port > last):
		return fmt.Errorf("kubernetes service node port range %v doesn't contain %v", f.ports, port)
	}
	config.ServiceNodePort = f.nodePort
	return nil
}

// parsePorts reads 30000-32767, 30000+2767 or 30000.
func parsePorts(text string) (first, last int32, err error) {
	from, to, two := strings.Cut(text, "-")
	more := ""
	if !two {
		from, more, two = strings.Cut(text, "+")
		to = more
	}
	a, err := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
	if err != nil || !two {
		return int32(a), int32(a), err
	}
	b, err := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
	if more != "" {
		b += a
	}
	return int32(a), int32(b), err
}
