package replay

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
)

// atOnce is how many recordings are played at a time: many of them wait for a
// watch to end.
const atOnce = 32

// update is for cases without a reference: docs/contributing/recording.md.
var update = flag.Bool("update", false, "write the answers of this server into the recordings that -run selects")

// unsteady are recordings whose answers are not the same each time, and why: they may match in
// any of a few attempts, all others must match at once.
var unsteady = map[string]string{
	"machinery/delete:collection-body": "several workers delete a collection, and the answer names the object that was refused first",
	"odd/rv:del-1":                     "several workers delete a collection, and the answer names the object that was refused first",
	"stateful/ing:9122":                "managed fields in YAML are in the order of their times, and a second may begin between two writes",
	"stateful/lease-secret:9135":       "managed fields in YAML are in the order of their times, and a second may begin between two writes",
}

// differing are recordings whose answers cannot be the same here.
var differing = map[string]string{
	"machinery/accept:discovery-10": "the commit is that of the build",
	"machinery/accept:discovery-17": "the commit is that of the build",
}

// TestReplay plays all recordings.
func TestReplay(t *testing.T) {
	replay(t, func(t *testing.T) *Player { return start(t) },
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
	replay(t, func(t *testing.T) *Player {
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
	replay(t, func(t *testing.T) *Player {
		return start(t, kelsontest.FeatureGates(gates), kelsontest.Configure(func(c *controlplane.Config) {
			c.RuntimeConfig = map[string]string{"api/all": "true"}
			c.Admission.Disable = append(c.Admission.Disable, "ServiceAccount")
		}))
	}, "gates")
}

// TestReplayEmulated is TestReplay with an earlier version of Kubernetes emulated, in which
// hand-written rules report what rules declared in beta report today.
func TestReplayEmulated(t *testing.T) {
	replay(t, func(t *testing.T) *Player { return start(t, kelsontest.EmulatedVersion("1.35")) }, "emulated")
}

// TestReplayPostgres is TestReplay with the data in PostgreSQL.
func TestReplayPostgres(t *testing.T) {
	if !testsize.Long() {
		t.Skip("set KELSON_LONG=1 to play the recordings on PostgreSQL")
	}
	db := pgtest.Start(t)
	var stores atomic.Int64
	replay(t, func(t *testing.T) *Player {
		b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), Schema: fmt.Sprint("s", stores.Add(1)), AllowNoSync: true, CompactInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		return startOn(t, b)
	}, "machinery", "lifecycle", "status", "update", "validation", "odd", "sequences", "order", "stateful", "subresources", "custom")
}

// replay plays the recordings in folders on a server, but for serial ones: they get a
// server of their own. Each is a test that -run can select.
func replay(t *testing.T, start func(*testing.T) *Player, folders ...string) {
	p := start(t)
	for _, folder := range folders {
		t.Run(folder, func(t *testing.T) {
			archives, err := ReadArchives(filepath.Join("testdata", folder))
			if err != nil {
				t.Fatal(err)
			}
			var recordings []*Recording
			for _, a := range archives {
				recordings = append(recordings, a.Recordings...)
			}
			checkNames(t, folder, recordings)
			// Goroutines meet in all of them in the same ways: with the race detector, a fifth
			// has to do.
			if every := testsize.Pick(5, 1, 1); every > 1 {
				var some []*Recording
				for i := 0; i < len(recordings); i += every {
					some = append(some, recordings[i])
				}
				recordings = some
			}
			run := func(p func() *Player, r *Recording) {
				t.Run(strings.TrimPrefix(r.ID, folder+"/"), func(t *testing.T) {
					if *update {
						rewrite(t, p(), r)
					} else {
						judge(t, p(), r)
					}
				})
			}
			var players sync.WaitGroup
			next := make(chan *Recording)
			for range atOnce {
				players.Go(func() {
					for r := range next {
						run(func() *Player { return p }, r)
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
					run(func() *Player { return start(t) }, r)
				}
			}
			if *update {
				for _, a := range archives {
					if err := a.Write(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// checkNames checks that the recordings of a folder have its name and one of their own, and
// that the tables above name recordings.
func checkNames(t *testing.T, folder string, recordings []*Recording) {
	known := map[string]bool{}
	for _, r := range recordings {
		if known[r.ID] {
			t.Errorf("there are two recordings %s", r.ID)
		}
		if !strings.HasPrefix(r.ID, folder+"/") {
			t.Errorf("the name of %s should begin with %s/", r.ID, folder)
		}
		known[r.ID] = true
	}
	for _, table := range []map[string]string{differing, unsteady} {
		for id := range table {
			if strings.HasPrefix(id, folder+"/") && !known[id] {
				t.Errorf("there is no recording %s", id)
			}
		}
	}
}

// judge plays a recording, whose answers must match at once, or if it is listed as unsteady
// in one of a few attempts.
func judge(t *testing.T, p *Player, r *Recording) {
	if reason := differing[r.ID]; reason != "" {
		t.Logf("not played: %s", reason)
		return
	}
	play := func() (string, error) { return p.Play(t.Context(), r) }
	problem, note := attempt(unsteady[r.ID], play)
	for again := 0; problem != "" && again < 4 && readsOld(r); again++ {
		problem, note = attempt(unsteady[r.ID], play)
	}
	if problem != "" {
		t.Errorf("%s: %s", r.ID, problem)
	}
	if note != "" {
		t.Logf("%s: %s", r.ID, note)
	}
}

// readsOld reports whether a recording reads a state that need not have the write before: a
// read of any revision, or of one that is not older than another, takes what the cache has.
func readsOld(r *Recording) bool {
	wrote := false
	for _, step := range r.Steps {
		if step.Method != http.MethodGet {
			wrote = true
		} else if wrote && strings.Contains(step.Path, "resourceVersion=") {
			return true
		}
	}
	return false
}

// attempt calls play once, or if there is a reason why it need not match each time, until it
// has both matched and differed, up to five times. A problem is that it never matched; worth
// a note is that it always did, although it is listed.
func attempt(reason string, play func() (difference string, err error)) (problem, note string) {
	attempts := 1
	if reason != "" {
		attempts = 5
	}
	matched, difference := false, ""
	for range attempts {
		d, err := play()
		switch {
		case err != nil:
			return err.Error(), ""
		case d == "":
			matched = true
		default:
			difference = d
		}
		if matched && difference != "" {
			return "", ""
		}
	}
	switch {
	case !matched:
		return difference, ""
	case reason != "":
		return "", fmt.Sprintf("it is listed as unsteady (%s), but has matched %d times in a row", reason, attempts)
	}
	return "", ""
}

// TestOnlyListedRecordingsHaveAttempts checks what becomes of answers that differ now and
// then.
func TestOnlyListedRecordingsHaveAttempts(t *testing.T) {
	for _, c := range []struct {
		reason, answers string // m matches, d differs, e is an error
		problem, note   bool
		plays           int
	}{
		{answers: "m", plays: 1},
		{answers: "dm", problem: true, plays: 1},
		{answers: "e", problem: true, plays: 1},
		{reason: "random", answers: "dm", plays: 2},
		{reason: "random", answers: "mmd", plays: 3},
		{reason: "random", answers: "ddddm", plays: 5},
		{reason: "random", answers: "dddddm", problem: true, plays: 5},
		{reason: "random", answers: "de", problem: true, plays: 2},
		{reason: "random", answers: "mmmmm", note: true, plays: 5},
	} {
		plays := 0
		problem, note := attempt(c.reason, func() (string, error) {
			plays++
			switch c.answers[plays-1] {
			case 'm':
				return "", nil
			case 'd':
				return "it differs", nil
			}
			return "", errors.New("no answer")
		})
		if (problem != "") != c.problem || (note != "") != c.note || plays != c.plays {
			t.Errorf("%+v: got problem %q, note %q, %d plays", c, problem, note, plays)
		}
	}
}

// rewrite puts the answers of this server into a recording.
func rewrite(t *testing.T, p *Player, r *Recording) {
	if differing[r.ID] != "" {
		return
	}
	changes, err := p.Record(t.Context(), r)
	if err != nil {
		t.Errorf("%s: %v", r.ID, err)
	}
	for _, c := range changes {
		t.Logf("%s: rewritten: %s", r.ID, c)
	}
}

// start starts a server whose first revisions are gone, as recordings of expired
// revisions need it.
func start(t *testing.T, opts ...kelsontest.Option) *Player {
	t.Helper()
	return startOn(t, memory.New(memory.Options{}), opts...)
}

// startOn starts a server on a store, which it closes.
func startOn(t *testing.T, backend storage.Backend, opts ...kelsontest.Option) *Player {
	t.Helper()
	t.Cleanup(func() { _ = backend.Close() })
	s := kelsontest.Start(t, append(opts, kelsontest.Backend(backend), kelsontest.NoControllers(),
		kelsontest.Configure(func(c *controlplane.Config) {
			c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
		}))...)
	revision, err := backend.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A list is as new as that, and so is the server's watch on the store then, which must not
	// lose its place.
	resp, err := (&http.Client{Transport: transport(t, s.Config())}).Get(s.URL() + "/api/v1/namespaces")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := backend.Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	p, err := NewPlayer(t.Context(), s.URL(), transport(t, s.Config()), transport(t, rest.AnonymousClientConfig(s.Config())))
	if err != nil {
		t.Fatal(err)
	}
	p.Own = true
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
