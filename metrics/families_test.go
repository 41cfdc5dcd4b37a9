package metrics

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/metrics/measure"
)

var _ admission.Metrics = (*Families)(nil)

func TestFamilies(t *testing.T) {
	r := New()
	m := NewFamilies(r)
	for metric, labels := range map[string]int{
		admission.StepDuration: 3, admission.PluginDuration: 4, admission.WebhookDuration: 4, admission.WebhookRequests: 5, admission.WebhookRejections: 5,
		admission.WebhookFailOpen: 2, admission.ConditionDuration: 4, admission.ConditionErrors: 4, admission.ConditionExclusions: 4,
		admission.ValidatingChecks: 4, admission.ValidatingDuration: 4, admission.MutatingChecks: 3, admission.MutatingDuration: 3,
	} {
		m.Series(metric, []string{"a", "b", "c", "d", "e"}[:labels]...).Observe(1)
		if text := show(t, r); !strings.Contains(text, "\n"+metric+"{") && !strings.Contains(text, "\n"+metric+"_sum{") {
			t.Errorf("no %s", metric)
		}
	}
	kept := m.Series(admission.WebhookFailOpen, "n", "admit")
	for range 2 {
		kept.Observe(1)
	}
	if want := `apiserver_admission_webhook_fail_open_count{name="n",type="admit"} 2`; !strings.Contains(show(t, r), want) {
		t.Errorf("no %s", want)
	}
	r.Handler(true).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("DELETE", "/metrics", nil))
	kept.Observe(1)
	for _, want := range []string{
		`apiserver_admission_webhook_fail_open_count{name="n",type="admit"} 1`, "apiserver_cel_compilation_duration_seconds_count 0",
		"apiserver_webhooks_x509_missing_san_total 0", `pod_security_exemptions_total{request_operation="create",resource="pod",subresource=""} 0`,
	} {
		if !strings.Contains(show(t, r), want) {
			t.Errorf("after a reset, no %s", want)
		}
	}
	for i := range maxNamed + 10 {
		m.Series(admission.WebhookFailOpen, fmt.Sprint(i), "admit").Observe(1)
	}
	if n := strings.Count(show(t, r), "webhook_fail_open_count{"); n > maxNamed+1 {
		t.Errorf("there are %d series", n)
	}
}

// TestConfigs: what a configuration is that is read again, and how that went.
func TestConfigs(t *testing.T) {
	r := New()
	m := NewFamilies(r)
	for _, what := range []string{measure.Encryption, measure.Authentication, measure.Authorization} {
		measure.ConfigRead(m, what, []byte("a"))
		measure.ConfigReloaded(m, what, []byte("b"), nil)
		measure.ConfigReloaded(m, what, []byte("c"), errors.New("no"))
		text, prefix := show(t, r), "\napiserver_"+what+"_config_controller_"
		for _, status := range []string{"success", "failure"} {
			if !strings.Contains(text, prefix+"automatic_reload_last_timestamp_seconds{apiserver_id_hash=\"sha256:") || !strings.Contains(text, `status="`+status+`"} 1`) {
				t.Errorf("%s: nothing of a %s", what, status)
			}
		}
		const hash = `hash="sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"} 1` // of b
		if strings.Count(text, prefix+"last_config_info{") != 1 || !strings.Contains(text, hash) {
			t.Errorf("%s: it is not told that it is the second one", what)
		}
	}
}

// TestNames: there is a metric of every name in package measure.
func TestNames(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "measure/measure.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.BasicLit); ok && v.Kind == token.STRING && strings.Contains(v.Value, "_") {
			name, _ := strconv.Unquote(v.Value)
			if names++; allFamilies()[name] == nil {
				t.Errorf("there is no %s", name)
			}
		}
		return true
	})
	if names < 20 {
		t.Errorf("only %d names were found", names)
	}
}

// TestKeysOfAnIssuerThatIsGoneAreForgotten: an issuer whose tokens are no longer accepted
// leaves no series, and others keep theirs.
func TestKeysOfAnIssuerThatIsGoneAreForgotten(t *testing.T) {
	r := New()
	m := NewFamilies(r)
	measure.IssuerIsGone(m, "https://never.example.com")
	for _, issuer := range []string{"https://a.example.com", "https://b.example.com"} {
		measure.KeysWereFetched(m, issuer, []byte("keys"), nil)
		measure.KeysWereFetched(m, issuer, nil, errors.New("down"))
	}
	measure.IssuerIsGone(m, "https://a.example.com")
	text := show(t, r)
	for issuer, want := range map[string]int{"https://a.example.com": 0, "https://b.example.com": 3} {
		if got := strings.Count(text, measure.Hash([]byte(issuer))); got != want {
			t.Errorf("%s: got %d series, want %d", issuer, got, want)
		}
	}
}
