package replay

import (
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/recorded"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/engine"
)

// atOnce is how many recordings are played at a time: many of them wait for a
// watch to end.
const atOnce = 32

// differing are recordings whose answers cannot be the same here.
var differing = map[string]string{
	"machinery/accept:discovery-10": "the commit is that of the build",
	"machinery/accept:discovery-17": "the commit is that of the build",
	"machinery/discovery:get-16":    "it lists pods in all namespaces, while other recordings make some",
}

// TestReplay plays all recordings.
func TestReplay(t *testing.T) {
	replay(t, func(t *testing.T) *player { return start(t) },
		"machinery", "lifecycle", "status", "update", "validation",
		"odd",       // what clients rarely send
		"sequences", // several requests that build on each other
		"order",     // several problems at once, in the order in which they are said
		"stateful",  // random ones on the same few objects, and what is there in the end
		"subresources",
		"custom", // definitions of all sorts, and objects of them
	)
}

// TestReplayAllVersions is TestReplay with versions that are off by default.
func TestReplayAllVersions(t *testing.T) {
	replay(t, func(t *testing.T) *player {
		return start(t, kelsontest.Configure(func(c *controlplane.Config) {
			c.RuntimeConfig = map[string]string{"api/all": "true"}
		}))
	}, "versions")
}

// TestReplayGates is TestReplay with feature gates on that are off by default, and
// pods as they are sent.
func TestReplayGates(t *testing.T) {
	gates := map[string]bool{}
	for _, name := range []string{
		"AtomicWriteVolumeUserFields", "CompositePodGroup", "ContainerStopSignals", "CoordinatedLeaderElection", "CrossNamespaceVolumeDataSource",
		"DRADeviceCompatibilityGroups", "DRAFractionalCapacityRange", "DRAOptionalNodeOperations", "DRAPartitionableDevicesType", "DRAResourcePoolStatus",
		"DRAWorkloadResourceClaims", "EmptyDirVolumeMode", "EvictionRequestAPI", "GRPCContainerProbeTLS", "GenericWorkload", "H2CContainerProbe",
		"ImageVolumeWithDigest", "InPlacePodVerticalScalingMemoryBackedVolumes", "InPlacePodVerticalScalingSchedulerPreemption", "MutablePVNodeAffinity", "PodGroupPreemptionPolicy", "PodLogsQuerySplitStreams",
		"StatefulSetRecreateStrategy", "TaintTolerationComparisonOperators", "TopologyAwareWorkloadScheduling", "UserNamespacesHostNetworkSupport",
		"VolumeBindMountOptions", "WorkloadWithJob",
	} {
		gates[name] = true
	}
	replay(t, func(t *testing.T) *player {
		return start(t, kelsontest.FeatureGates(gates), kelsontest.Configure(func(c *controlplane.Config) {
			c.RuntimeConfig = map[string]string{"api/all": "true"}
			c.Admission.Disable = append(c.Admission.Disable, "ServiceAccount")
		}))
	}, "gates")
}

// replay plays the recordings in files on a server, but for serial ones: they get a
// server of their own.
func replay(t *testing.T, start func(*testing.T) *player, files ...string) {
	p := start(t)
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			recordings := recorded.Read[*recording](t, filepath.Join("testdata", file+".jsonl.gz"))
			var players sync.WaitGroup
			next := make(chan *recording)
			for range atOnce {
				players.Go(func() {
					for r := range next {
						judge(t, p, r)
					}
				})
			}
			for _, r := range recordings {
				if !r.Serial {
					next <- r
				}
			}
			close(next)
			players.Wait()
			for _, r := range recordings {
				if r.Serial {
					judge(t, start(t), r)
				}
			}
		})
	}
}

// judge plays a recording. An answer that differs is asked for again: several problems
// with the entries of a map are said in any order, and what others do meanwhile can be
// seen.
func judge(t *testing.T, p *player, r *recording) {
	const attempts = 5
	if differing[r.ID] != "" {
		return
	}
	var difference string
	for range attempts {
		var err error
		if difference, err = p.play(t.Context(), r); err != nil {
			t.Errorf("%s: %v", r.ID, err)
			return
		}
		if difference == "" {
			return
		}
	}
	t.Errorf("%s: %s", r.ID, difference)
}

// start starts a server whose first revisions are gone, as recordings of expired
// revisions need it.
func start(t *testing.T, opts ...kelsontest.Option) *player {
	t.Helper()
	backend, err := engine.Open(engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	s := kelsontest.Start(t, append(opts, kelsontest.Backend(backend), kelsontest.NoControllers(),
		kelsontest.Configure(func(c *controlplane.Config) {
			c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
		}))...)
	revision, err := backend.Revision(t.Context())
	if err == nil {
		err = backend.Compact(t.Context(), revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &player{
		server: s.URL(), shared: newName(),
		admin: transport(t, s.Config()), nobody: transport(t, rest.AnonymousClientConfig(s.Config())),
	}
	if err := p.makeNamespace(t.Context(), p.shared); err != nil {
		t.Fatal(err)
	}
	return p
}

func transport(t *testing.T, config *rest.Config) http.RoundTripper {
	t.Helper()
	rt, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}
