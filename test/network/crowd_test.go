package network

import (
	"io"
	"net/http"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// limitCrowd has flow control give one seat to the user crowd, who may do
// everything, takes the seat until the test ends, and returns the user's token:
// every request of the crowd is refused.
func limitCrowd(t *testing.T, c *cluster) (token string) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(c.Config())
	level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	level.Spec = flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited,
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: new(int32), BorrowingLimitPercent: new(int32), // none: a request is let in if there is no other
			LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
		},
	}
	schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "crowd"}}
	schema.Spec = flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level.Name}, MatchingPrecedence: 2,
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "crowd"}}},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
				Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true,
			}},
		}},
	}
	role := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "crowd"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "crowd"}},
	}
	if _, err := client.FlowcontrolV1().PriorityLevelConfigurations().Create(t.Context(), level, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	schema, err := client.FlowcontrolV1().FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token = c.Token("crowd").BearerToken
	occupy(t, c, token, string(schema.UID))
	return token
}

// occupy takes the seat of the crowd until the test ends, with requests whose
// bodies never end, and waits until others are refused.
func occupy(t *testing.T, c *cluster, token, schema string) {
	t.Helper()
	// With HTTP/2: net/http answers a refused request of HTTP/1.1 only when it has read the
	// body, so that one which came too early would wait and have no seat.
	client := &http.Client{Transport: c.transport(t, true)}
	send := func(method string, body io.Reader) (status int, schema string, err error) {
		req, err := http.NewRequestWithContext(t.Context(), method, c.URL()+collection, body)
		if err != nil {
			return 0, "", err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("X-Kubernetes-Pf-Flowschema-Uid"), nil
	}
	waitFor := func(what string, ok func(status int, schema string) bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; {
			status, got, err := send(http.MethodGet, nil)
			switch {
			case err != nil:
				t.Fatal(err)
			case ok(status, got):
				return
			case time.Now().After(deadline):
				t.Fatalf("got %d by flow schema %s, want %s", status, got, what)
			}
		}
	}
	// A request that came before the schema has a seat elsewhere.
	waitFor("schema "+schema, func(_ int, got string) bool { return got == schema })
	done := make(chan struct{})
	go func() {
		defer close(done)
		for t.Context().Err() == nil {
			// The request before may still have the seat, so that this one is refused. The
			// body never ends, but the transport closes it when the refusal arrives, and
			// send returns.
			body, writer := io.Pipe()
			go func() { _, _ = writer.Write([]byte("{")) }()
			_, _, _ = send(http.MethodPost, body)
		}
	}()
	t.Cleanup(func() { <-done })
	waitFor("429", func(status int, _ string) bool { return status == http.StatusTooManyRequests })
}
