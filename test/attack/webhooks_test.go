//go:build linux

package attack

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestAnswersOfWebhooks has webhooks of a tenant that answer small requests with as much as they may,
// in a server with little memory: it stays within it, answers everybody, and goes on.
func TestAnswersOfWebhooks(t *testing.T) {
	const limit, clients = 512 << 20, 16
	s, err := start(victim.cmd.Path, filepath.Join(t.TempDir(), "webhooks"), "--memory-limit", strconv.Itoa(limit))
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	long := strings.Repeat("x", 5<<20)
	copies := make([]string, 40)
	for i := range copies {
		copies[i] = fmt.Sprintf(`{"op":"copy","from":"/metadata","path":"/metadata/c%d"}`, i)
	}
	patches := map[string]string{
		"long":   `[{"op":"add","path":"/data/x","value":"` + long + `"}]`,
		"values": `[{"op":"add","path":"/metadata/managedFields","value":[` + strings.Repeat("{},", 1<<20) + `{}]}]`,
		"copies": "[" + strings.Join(copies, ",") + "]",
	}
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct{ UID string }
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := fields{"uid": review.Request.UID, "allowed": true}
		if patch, ok := patches[strings.TrimPrefix(r.URL.Path, "/")]; ok {
			answer["patchType"], answer["patch"] = "JSONPatch", base64.StdEncoding.EncodeToString([]byte(patch))
		} else {
			answer["auditAnnotations"], answer["warnings"] = fields{"a": long}, []string{long[:1<<20]}
		}
		_ = json.NewEncoder(w).Encode(fields{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})
	}))
	defer hook.Close()
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	register := func(kind, name string) error {
		_, err := s.do(s.admin, http.MethodPost, "/apis/admissionregistration.k8s.io/v1/"+strings.ToLower(kind)+"s", fields{
			"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": fields{"name": name},
			"webhooks": []any{fields{
				"name": name + ".example.com", "admissionReviewVersions": []string{"v1"}, "sideEffects": "None", "timeoutSeconds": 30, "failurePolicy": "Fail",
				"clientConfig":   fields{"url": hook.URL + "/" + name, "caBundle": bundle},
				"objectSelector": fields{"matchLabels": fields{"hook": name}},
				"rules":          []any{fields{"operations": []string{"CREATE"}, "apiGroups": []string{""}, "apiVersions": []string{"v1"}, "resources": []string{"configmaps"}}},
			}},
		})
		return err
	}
	for kind, names := range map[string][]string{"MutatingWebhookConfiguration": {"long", "values", "copies"}, "ValidatingWebhookConfiguration": {"annotations"}} {
		for _, name := range names {
			if err := register(kind, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"long", "values", "copies", "annotations"} {
		answers := map[string]int{}
		var mu sync.Mutex
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				_, err := s.do(s.admin, http.MethodPost, "/api/v1/namespaces/default/configmaps", fields{
					"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"name": fmt.Sprintf("%s-%d", name, i), "labels": fields{"hook": name}}, "data": fields{"a": "b"},
				})
				answer := "created"
				if err != nil {
					if answer = httpStatus.FindString(err.Error()); answer == "" {
						t.Errorf("%s: %v", name, err)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				answers[answer]++
			})
		}
		group.Wait()
		peak := resident(t, s, "VmHWM")
		t.Logf("%s: %v; at most %d MiB so far", name, answers, peak>>20)
		if !s.alive() {
			t.Fatalf("%s: the server has ended: %s", name, s.log.from(0))
		}
		if peak > limit {
			t.Errorf("%s: the server took %d MiB, want %d at most", name, peak>>20, limit>>20)
		}
	}
	if _, err := s.do(s.admin, http.MethodPost, "/api/v1/namespaces/default/configmaps", fields{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"name": "ordinary"},
	}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

var httpStatus = regexp.MustCompile(`\d{3} [A-Z][a-z]+`)
