package kelsontest_test

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// whoami asks the server who a client is.
func whoami(t testing.TB, config *rest.Config) (authenticationv1.UserInfo, error) {
	t.Helper()
	review, err := client(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

func TestUsers(t *testing.T) {
	s := kelsontest.Start(t)
	file := func(config *rest.Config) *rest.Config {
		path, err := s.KubeconfigFile(config)
		if err != nil {
			t.Fatal(err)
		}
		read, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		return read
	}
	jane, joe := s.User("jane", "dev", "ops"), s.Token("joe", "dev")
	for name, config := range map[string]*rest.Config{"jane": jane, "joe": joe} {
		for _, config := range []*rest.Config{config, file(config)} {
			user, err := whoami(t, config)
			if err != nil {
				t.Fatal(err)
			}
			if user.Username != name || !slices.Contains(user.Groups, "dev") || !slices.Contains(user.Groups, "system:authenticated") {
				t.Errorf("%s is %+v", name, user)
			}
		}
		_, err := client(t, config).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s may list: %v", name, err)
		}
	}
	create(t, client(t, s.User("boss", "system:masters")), "a")
	create(t, client(t, file(nil)), "b")
}

func TestExpireTokens(t *testing.T) {
	s := kelsontest.Start(t)
	token := func() *rest.Config {
		answer, err := client(t, s.Config()).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		config := rest.AnonymousClientConfig(s.Config())
		config.BearerToken = answer.Status.Token
		return config
	}
	known := func(config *rest.Config, want bool) {
		t.Helper()
		if _, err := whoami(t, config); (err == nil) != want {
			t.Errorf("known: %v, and not %v: %v", err == nil, want, err)
		} else if err != nil && !apierrors.IsUnauthorized(err) {
			t.Error(err)
		}
	}
	joe, used, unused := s.Token("joe"), token(), token()
	known(joe, true)
	known(used, true)
	s.ExpireTokens()
	known(joe, false)
	known(used, false)
	known(unused, false)
	known(s.Config(), true)
	known(s.Token("joe"), true)
	fresh := token()
	known(fresh, true)

	// Service accounts' end by the clock, too.
	s.Clock().Advance(2 * time.Hour)
	known(fresh, false)
	known(token(), true)
}

func TestClock(t *testing.T) {
	s := kelsontest.Start(t)
	c := client(t, s.Config())
	stamp := func(name string) time.Time {
		cm := newMap(name)
		cm.Data = map[string]string{"a": "b"}
		cm, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if managed := cm.ManagedFields[0].Time; !managed.Equal(&cm.CreationTimestamp) {
			t.Errorf("fields were set at %v", managed)
		}
		return cm.CreationTimestamp.UTC()
	}
	at := time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC)
	s.Clock().Freeze(at)
	if got := stamp("a"); !got.Equal(at) {
		t.Errorf("created at %v", got)
	}
	s.Clock().Advance(time.Hour)
	if got := stamp("b"); !got.Equal(at.Add(time.Hour)) {
		t.Errorf("created at %v", got)
	}
	s.Clock().Resume()
	if got := stamp("c").Sub(at); got < time.Hour || got > 2*time.Hour {
		t.Errorf("created after %v", got)
	}
	s.Clock().Reset()
	if age := time.Since(stamp("d")); age < -time.Minute || age > time.Hour {
		t.Errorf("created %v ago", age)
	}
}

// Programs get at a server by a file.
func TestKubectl(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("there is no kubectl")
	}
	s := kelsontest.Start(t)
	path, err := s.KubeconfigFile(nil)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), kubectl, "--kubeconfig", path, "get", "namespace", "default").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
