package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// quotaOf makes a quota, and counts nothing as used, as its controller would.
func quotaOf(t *testing.T, client kubernetes.Interface, hard corev1.ResourceList) {
	t.Helper()
	quotas := client.CoreV1().ResourceQuotas("default")
	q := must(quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: named("q"), Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{}))(t)
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{}}
	for name := range hard {
		q.Status.Used[name] = resource.MustParse("0")
	}
	must(quotas.UpdateStatus(t.Context(), q, metav1.UpdateOptions{}))(t)
}

func used(t *testing.T, client kubernetes.Interface, name corev1.ResourceName) int64 {
	t.Helper()
	q := must(client.CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{}))(t)
	quantity := q.Status.Used[name]
	return quantity.Value()
}

// TestQuotaUnderFire lets many create at once, on two servers, more than a quota
// allows: exactly what it allows comes to be.
func TestQuotaUnderFire(t *testing.T) {
	const each, limit = 2, 40
	creators := testsize.Pick(24, 64, 64)
	cluster := etcdtest.Start(t)
	var clients []kubernetes.Interface
	for range 2 {
		clients = append(clients, client(t, kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.Backend(openEtcd(t, cluster)))))
	}
	quotaOf(t, clients[0], corev1.ResourceList{"count/configmaps": resource.MustParse(fmt.Sprint(limit))})
	// The other server must know the quota, or it knows of no limit.
	if n := used(t, clients[1], "count/configmaps"); n != 0 {
		t.Fatalf("%d are used before anything is created", n)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	made, refused := 0, 0
	for i := range creators {
		all.Go(func() {
			maps := clients[i%2].CoreV1().ConfigMaps("default")
			for j := range each {
				_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: named(fmt.Sprintf("m-%d-%d", i, j))}, metav1.CreateOptions{})
				mu.Lock()
				switch {
				case err == nil:
					made++
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: q, requested: count/configmaps=1"):
					refused++
				default:
					t.Errorf("create: %v", err)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	there := must(clients[0].CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}))(t)
	if made != limit || len(there.Items) != limit || refused != creators*each-limit {
		t.Errorf("%d were created and %d refused, and there are %d; the limit is %d", made, refused, len(there.Items), limit)
	}
	if n := used(t, clients[0], "count/configmaps"); n != limit {
		t.Errorf("%d are said to be used", n)
	}
}

// TestQuotaGivenBack checks that a create that fails after it was charged uses
// nothing, and that a dry run does not either.
func TestQuotaGivenBack(t *testing.T) {
	c := client(t, kelsontest.Start(t, kelsontest.NoControllers()))
	quotaOf(t, c, corev1.ResourceList{"count/configmaps": resource.MustParse("5")})
	maps := c.CoreV1().ConfigMaps("default")
	for i := range 10 {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: named("same")}, metav1.CreateOptions{})
		if i > 0 && !apierrors.IsAlreadyExists(err) || i == 0 && err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
		must(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: named("dry")}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))(t)
	}
	if n := used(t, c, "count/configmaps"); n != 1 {
		t.Errorf("%d are said to be used, there is 1", n)
	}
}

// ban is a plugin of a library user.
type ban struct{}

func (ban) Name() string { return "BanNames" }

func (ban) Handles(t admission.Target) bool {
	return t.Resource == "configmaps" && t.Operation == admission.Create
}

func (ban) Validate(_ context.Context, a *admission.Attributes) error {
	if a.Name == "banned" {
		return a.Forbidden(errors.New("this name may not be used, please choose another"))
	}
	return nil
}

// seal is another, which lets nobody into pods.
type seal struct{}

func (seal) Name() string { return "SealPods" }

func (seal) Handles(t admission.Target) bool { return t.Operation == admission.Connect }

func (seal) Validate(_ context.Context, a *admission.Attributes) error {
	return a.Forbidden(errors.New("it is sealed"))
}

// TestOwnPlugin adds plugins, and switches one off.
func TestOwnPlugin(t *testing.T) {
	c := client(t, kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.Admission(plugin.Config{Disable: []string{"ServiceAccount"}}, ban{}, seal{})))
	_, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: named("banned")}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "please choose another") {
		t.Errorf("a banned name: %v", err)
	}
	must(c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: named("fine")}, metav1.CreateOptions{}))(t)
	pod := must(c.CoreV1().Pods("default").Create(t.Context(), benchPod(1), metav1.CreateOptions{}))(t)
	if pod.Spec.ServiceAccountName != "" || len(pod.Spec.Tolerations) != 2 {
		t.Errorf("the pod has the account %q and the tolerations %v", pod.Spec.ServiceAccountName, pod.Spec.Tolerations)
	}
	err = c.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(pod.Name).SubResource("exec").Do(t.Context()).Error()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "it is sealed") {
		t.Errorf("exec: %v", err)
	}
	if _, err := c.CoreV1().Pods("default").GetLogs(pod.Name, &corev1.PodLogOptions{Container: pod.Spec.Containers[0].Name}).DoRaw(t.Context()); err != nil {
		t.Errorf("the log, which is only read: %v", err)
	}
}

// TestMissingAccount creates pods in a namespace without a service account.
func TestMissingAccount(t *testing.T) {
	c := client(t, kelsontest.Start(t, kelsontest.NoControllers()))
	ns := must(c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: named("fresh")}, metav1.CreateOptions{}))(t)
	pod := benchPod(1)
	pod.Namespace, pod.Spec.AutomountServiceAccountToken = ns.Name, nil
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if made := must(c.CoreV1().Pods(ns.Name).Create(t.Context(), pod, dry))(t); made.Spec.ServiceAccountName != "default" {
		t.Errorf("a dry run has the account %q", made.Spec.ServiceAccountName)
	}
	if _, err := c.CoreV1().ServiceAccounts(ns.Name).Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a dry run, the account is there: %v", err)
	}
	made := must(c.CoreV1().Pods(ns.Name).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	if n := len(made.Spec.Volumes); n == 0 || !strings.HasPrefix(made.Spec.Volumes[n-1].Name, "kube-api-access-") {
		t.Errorf("the pod has no token: %v", made.Spec.Volumes)
	}
	if err := c.CoreV1().ServiceAccounts(ns.Name).Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("the account was not made: %v", err)
	}
	if _, err := c.CoreV1().Pods(ns.Name).Create(t.Context(), pod, dry); !apierrors.IsForbidden(err) {
		t.Errorf("after the account was deleted: %v", err)
	}
}

// policyOn is a policy about the creation of something.
func policyOn(group, resource string, expressions ...string) *registrationv1.ValidatingAdmissionPolicy {
	p := &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: registrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: registrationv1.RuleWithOperations{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}}}},
		},
	}
	for _, e := range expressions {
		p.Spec.Validations = append(p.Spec.Validations, registrationv1.Validation{Expression: e})
	}
	return p
}

// TestPolicyStatus checks that the mistakes in a policy are in its status, for
// built-in kinds and by what each field is.
func TestPolicyStatus(t *testing.T) {
	c := client(t, kelsontest.Start(t))
	policies := c.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	p := must(policies.Create(t.Context(), policyOn("apps", "deployments", "object.spec.replicas > 1", "object.spec.replicas > '1'"), metav1.CreateOptions{}))(t)
	for deadline := time.Now().Add(30 * time.Second); p.Status.ObservedGeneration != p.Generation; {
		if time.Now().After(deadline) {
			t.Fatalf("the status is %+v", p.Status)
		}
		p = must(policies.Get(t.Context(), "p", metav1.GetOptions{}))(t)
	}
	w := p.Status.TypeChecking.ExpressionWarnings
	if len(w) != 1 || w[0].FieldRef != "spec.validations[1].expression" || !strings.Contains(w[0].Warning, "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'") {
		t.Errorf("%+v", w)
	}
}

// hundredPolicies makes a hundred policies that are about all writes, but under
// conditions that none meets.
func hundredPolicies(b *testing.B, c kubernetes.Interface) {
	for i := range 100 {
		name := fmt.Sprint("p-", i)
		p := policyOn("*", "*", "false")
		p.Name = name
		p.Spec.MatchConditions = []registrationv1.MatchCondition{{Name: "c", Expression: fmt.Sprintf("object.metadata.name == 'never-%d'", i)}}
		_, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(b.Context(), p, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		_, err = c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(b.Context(), &registrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       registrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []registrationv1.ValidationAction{registrationv1.Deny}},
		}, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate is what a create costs without admission, with the plugins of
// every server, and with a hundred policies that do not match.
func BenchmarkCreate(b *testing.B) {
	all, _ := plugin.Names()
	for _, kind := range []string{"configmap", "pod"} {
		for _, with := range []struct {
			name string
			cfg  plugin.Config
		}{{"off", plugin.Config{Disable: all}}, {"on", plugin.Config{}}, {"policies", plugin.Config{}}} {
			b.Run(kind+"/"+with.name, func(b *testing.B) {
				server := kelsontest.Start(b, kelsontest.NoControllers(), kelsontest.Admission(with.cfg))
				c := kubernetes.NewForConfigOrDie(server.Config())
				if with.name == "policies" {
					hundredPolicies(b, c)
				}
				i := 0
				create := func() {
					i++
					var err error
					if kind == "pod" {
						_, err = c.CoreV1().Pods("default").Create(b.Context(), benchPod(i), metav1.CreateOptions{})
					} else {
						_, err = c.CoreV1().ConfigMaps("default").Create(b.Context(), &corev1.ConfigMap{
							ObjectMeta: named(fmt.Sprint("m-", i)), Data: map[string]string{"key": "value"}}, metav1.CreateOptions{})
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				for range 10 { // what is made once is not what a create costs
					create()
				}
				b.ReportAllocs()
				before := cpuTime(b)
				for b.Loop() {
					create()
				}
				b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

// cpuTime is what the process, client and server, has used.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
