package kelsontest_test

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/internal/http2test"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/memory"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func client(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t testing.TB, c kubernetes.Interface, name string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestHTTP2Server(t *testing.T) {
	for _, c := range []struct {
		opts []kelsontest.Option
		want string
	}{
		{nil, cmp.Or(http2test.Chosen(), kelson.HTTP2Own)},
		{[]kelsontest.Option{kelsontest.HTTP2Server(kelson.HTTP2Own)}, kelson.HTTP2Own},
		{[]kelsontest.Option{kelsontest.HTTP2Server(kelson.HTTP2NetHTTP)}, kelson.HTTP2NetHTTP},
	} {
		s := kelsontest.Start(t, append(c.opts, kelsontest.NoControllers())...)
		if got := http2test.Greet(t, strings.TrimPrefix(s.URL(), "https://")).Implementation(); got != c.want {
			t.Errorf("got the server of %s, want that of %s", got, c.want)
		}
	}
}

func names(t testing.TB, c kubernetes.Interface) string {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		if name := list.Items[i].Name; name != "kube-root-ca.crt" { // which every namespace has
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

func TestStart(t *testing.T) {
	for i, opts := range [][]kelsontest.Option{nil, nil, nil, {kelsontest.Disk()}, {kelsontest.Disk()}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			c := client(t, kelsontest.Start(t, opts...).Config())
			own := fmt.Sprintf("of-%d", i)
			create(t, c, own)
			if got := names(t, c); got != own {
				t.Errorf("config maps are %q, and not %q alone", got, own)
			}
		})
	}
}

func TestKubeconfig(t *testing.T) {
	s := kelsontest.Start(t)
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != s.URL() {
		t.Errorf("the kubeconfig leads to %s, the server is at %s", config.Host, s.URL())
	}
	create(t, client(t, config), "a")
	if got := names(t, client(t, s.Config())); got != "a" {
		t.Errorf("config maps are %q", got)
	}
}

// A server that is started where another has stopped serves the same objects.
func TestData(t *testing.T) {
	backend := memory.New(memory.Options{})
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, opt := range map[string]kelsontest.Option{
		"folder": kelsontest.Folder(t.TempDir()), "backend": kelsontest.Backend(backend),
	} {
		t.Run(name, func(t *testing.T) {
			first := kelsontest.Start(t, opt)
			create(t, client(t, first.Config()), "kept")
			first.Stop()
			if got := names(t, client(t, kelsontest.Start(t, opt).Config())); got != "kept" {
				t.Errorf("config maps are %q", got)
			}
		})
	}
}

// An open watch does not hold up the end, and is ended by it.
func TestStop(t *testing.T) {
	s := kelsontest.Start(t, kelsontest.NoControllers())
	w, err := client(t, s.Config()).CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.Stop()
	s.Stop()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the end took %v, although watches are not waited for", took)
	}
	for e := range w.ResultChan() {
		t.Errorf("an event nobody caused: %v", e)
	}
	if _, err := client(t, s.Config()).Discovery().ServerVersion(); err == nil {
		t.Error("the server still answers")
	}
}

func TestNoLeak(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("server", func(t *testing.T) {
		c := client(t, kelsontest.Start(t).Config())
		create(t, c, "a")
		w, err := c.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.Stop()
	})
	goleak.VerifyNone(t, before)
}

// Many servers at once in one process, each with its own data and its own
// webhooks. With KELSON_LONG=1 they are a hundred.
func TestMany(t *testing.T) {
	many := testsize.Pick(8, 20, 100)
	servers := make([]*kelsontest.Server, many)
	var starting sync.WaitGroup
	for i := range servers {
		starting.Go(func() {
			s, err := kelsontest.New()
			if err != nil {
				t.Error(err)
				return
			}
			servers[i] = s
			hooks, err := s.Webhooks()
			if err == nil {
				err = hooks.Serve(http.NotFoundHandler())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	for i, s := range servers {
		if s != nil {
			create(t, client(t, s.Config()), fmt.Sprintf("of-%d", i))
		}
	}
	for i, s := range servers {
		if s == nil {
			continue
		}
		if got, own := names(t, client(t, s.User("jane", "system:masters"))), fmt.Sprintf("of-%d", i); got != own {
			t.Errorf("config maps are %q, and not %q alone", got, own)
		}
	}
	for _, s := range servers {
		if s != nil {
			starting.Go(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	starting.Wait()
}

func BenchmarkStart(b *testing.B) {
	for name, opts := range map[string][]kelsontest.Option{"memory": nil, "disk": {kelsontest.Disk()}} {
		b.Run(name, func(b *testing.B) {
			before := cpu(b)
			for b.Loop() {
				s, err := kelsontest.New(opts...) // which the benchmark does not hold on to
				if err == nil {
					err = s.Close()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/1000/float64(b.N), "CPU-ms/op")
		})
	}
}
