package replay

import (
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/recorded"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/engine"
)

// atOnce is how many recordings are played at a time: many of them wait for a
// watch to end.
const atOnce = 32

// share of the recordings of a file, in percent, that must match at least. It is
// only ever raised.
type share struct {
	file         string
	status, full float64
}

var shares = []share{
	{"machinery", 97, 93},
	{"lifecycle", 98.5, 93},
	{"status", 99, 91},
	{"update", 99, 88},
	{"validation", 99, 89},
	{"odd", 99, 97},       // what clients rarely send
	{"sequences", 99, 97}, // several requests that build on each other
	{"order", 100, 100},   // several problems at once, in the order in which they are said
}

// allVersions: the recordings of these files are of a server with all versions of the
// API.
var allVersions = []share{
	{"versions", 99.5, 99.5},
}

// TestReplay plays all recordings that apply. With -v it shows where answers
// differ.
func TestReplay(t *testing.T) {
	replay(t, start(t), shares)
}

// TestReplayAllVersions is TestReplay with versions that are off by default.
func TestReplayAllVersions(t *testing.T) {
	replay(t, start(t, kelsontest.Configure(func(c *controlplane.Config) {
		c.RuntimeConfig = map[string]string{"api/all": "true"}
	})), allVersions)
}

func replay(t *testing.T, p *player, shares []share) {
	for _, share := range shares {
		t.Run(share.file, func(t *testing.T) {
			recordings := recorded.Read[*recording](t, filepath.Join("testdata", share.file+".jsonl.gz"))
			all := len(recordings)
			recordings = slices.DeleteFunc(recordings, func(r *recording) bool { return !r.applies(p.served) })
			status, full := 0, 0
			for i, res := range p.playAll(t, recordings) {
				if res.status {
					status++
				}
				if res.full {
					full++
				}
				for _, d := range res.differences {
					if testing.Verbose() {
						t.Logf("%s: %s", recordings[i].ID, d)
					}
				}
			}
			t.Logf("of %d recordings %d apply; status matches in %d, everything in %d", all, len(recordings), status, full)
			check(t, "status", status, len(recordings), share.status)
			check(t, "everything", full, len(recordings), share.full)
		})
	}
}

func check(t *testing.T, what string, passed, of int, share float64) {
	t.Helper()
	if got := 100 * float64(passed) / float64(of); got < share {
		t.Errorf("%s matches in %.2f%% of the recordings; it must in %.2f%%: see -v", what, got, share)
	}
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
	s := kelsontest.Start(t, append(opts, kelsontest.Backend(backend), kelsontest.NoControllers())...)
	revision, err := backend.Revision(t.Context())
	if err == nil {
		err = backend.Compact(t.Context(), revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &player{
		server: s.URL(), shared: newName(), served: served(t, s.Config()),
		admin: transport(t, s.Config()), nobody: transport(t, rest.AnonymousClientConfig(s.Config())),
	}
	if err := p.makeNamespace(t.Context(), p.shared); err != nil {
		t.Fatal(err)
	}
	return p
}

// served returns what the server says it has, as apiOf names it.
func served(t *testing.T, config *rest.Config) map[string]bool {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	groups, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, g := range groups {
		out[g.Name] = true
	}
	for _, list := range lists {
		out[list.GroupVersion] = true
		for i := range list.APIResources {
			out[list.GroupVersion+"/"+list.APIResources[i].Name] = true
		}
	}
	return out
}

func transport(t *testing.T, config *rest.Config) http.RoundTripper {
	t.Helper()
	rt, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// playAll returns the results of recordings, in their order. Serial ones get a
// server of their own.
func (p *player) playAll(t *testing.T, recordings []*recording) []result {
	results := make([]result, len(recordings))
	play := func(p *player, i int) {
		res, err := p.play(t.Context(), recordings[i])
		if err != nil {
			res.status, res.full = false, false
			res.differences = append(res.differences, err.Error())
		}
		results[i] = res
	}
	var players sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		players.Go(func() {
			for i := range next {
				play(p, i)
			}
		})
	}
	for i, r := range recordings {
		if !r.Serial {
			next <- i
		}
	}
	close(next)
	players.Wait()
	for i, r := range recordings {
		if r.Serial {
			play(start(t), i)
		}
	}
	return results
}
