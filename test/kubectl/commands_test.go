package kubectl

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: "nginx:1"}]
`

const configMap = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue}
`

const pod = `apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: p}}
spec:
  containers: [{name: c, image: nginx}]
`

func TestCreateAndApply(t *testing.T) {
	s := start(t)
	s.file("web.yaml", deployment)
	s.file("settings.yaml", configMap)
	s.run("create -f @settings.yaml --dry-run=server", "configmap/settings created (server dry run)")
	s.fails("get configmap settings", "NotFound")
	s.run("create -f @settings.yaml", "configmap/settings created")
	s.fails("create -f @settings.yaml", "AlreadyExists")
	s.run("create namespace work", "namespace/work created")
	s.run("create secret generic s --from-literal=a=b -n work", "secret/s created")

	s.run("apply -f @web.yaml", "deployment.apps/web created")
	s.run("apply -f @web.yaml", "deployment.apps/web unchanged")
	s.file("web.yaml", strings.Replace(deployment, "nginx:1", "nginx:2", 1))
	s.run("apply -f @web.yaml --dry-run=server", "deployment.apps/web configured (server dry run)")
	s.run("apply -f @web.yaml", "deployment.apps/web configured")
	s.run("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}", "nginx:2")
	s.run("apply --server-side --force-conflicts -f @web.yaml", "deployment.apps/web serverside-applied")
	s.run("apply --server-side --force-conflicts -f @settings.yaml", "configmap/settings serverside-applied")
	s.file("settings.yaml", strings.Replace(configMap, "blue", "red", 1))
	s.fails("apply --server-side --field-manager=other -f @settings.yaml", "conflict")
	s.file("typo.yaml", configMap+"dta: {}\n")
	s.fails("create -f @typo.yaml", "unknown field \"dta\"")
}

func TestDiff(t *testing.T) {
	if _, err := exec.LookPath("diff"); err != nil {
		t.Skip(err)
	}
	s := start(t)
	s.file("settings.yaml", configMap)
	s.run("apply -f @settings.yaml")
	s.run("diff -f @settings.yaml")
	s.file("settings.yaml", strings.Replace(configMap, "blue", "red", 1))
	out, err := s.try(t.Context(), "diff -f @settings.yaml")
	if err == nil || !strings.Contains(err.Error(), "exit code 1") || !strings.Contains(out, "+  color: red") {
		t.Errorf("diff: %v\n%s", err, out)
	}
}

func TestChange(t *testing.T) {
	s := start(t)
	s.file("web.yaml", deployment)
	s.run("create -f @web.yaml")
	s.run(`patch deployment web -p {"spec":{"paused":true}}`, "deployment.apps/web patched")
	s.run(`patch deployment web --type=merge -p {"spec":{"minReadySeconds":3}}`, "patched")
	s.run(`patch deployment web --type=json -p [{"op":"replace","path":"/spec/paused","value":false}]`, "patched")
	s.run(`patch deployment web --subresource=status --type=merge -p {"status":{"replicas":1}}`, "patched")
	s.run("label deployment web tier=front", "deployment.apps/web labeled")
	s.fails("label deployment web tier=back", "already has a value")
	s.run("label deployment web tier=back --overwrite", "labeled")
	s.run("annotate deployment web why=test", "deployment.apps/web annotated")
	s.run("annotate deployment web why-", "annotated")
	s.run("set image deployment/web c=nginx:3", "image updated")
	s.run("scale deployment web --replicas=5", "deployment.apps/web scaled")
	s.fails("scale deployment web --current-replicas=4 --replicas=6", "Expected replicas to be 4")
	s.run("get deployments -l tier=back -o jsonpath={.items[*].spec.replicas}", "5")
}

func TestGet(t *testing.T) {
	s := start(t)
	s.file("web.yaml", deployment)
	s.file("p.yaml", pod)
	s.run("create -f @web.yaml")
	s.run("create -f @p.yaml")
	s.run("get deployments", "NAME   READY   UP-TO-DATE   AVAILABLE   AGE", "web    0/2")
	s.run("get deployments -o wide", "CONTAINERS   IMAGES    SELECTOR", "nginx:1   app=web")
	s.run("get pods -A -o wide", "NAMESPACE", "NOMINATED NODE", "Pending")
	s.run("get deployment web -o yaml", "kind: Deployment", "progressDeadlineSeconds: 600")
	s.run("get deployment web -o json", `"kind": "Deployment"`)
	s.run("get deployments -o jsonpath={.items[*].metadata.name}", "web")
	s.run("get pods -o custom-columns=N:.metadata.name,I:.spec.containers[*].image", "N     I", "p     nginx")
	s.run("get deploy,po -o name", "deployment.apps/web", "pod/p")
	s.run("get namespaces", "kube-system", "Active")
	s.run("get pods --field-selector=status.phase=Running")
	s.run("get all", "pod/p", "deployment.apps/web")
	s.run("get --raw /readyz", "ok")
	s.run("describe deployment web", "Replicas:               2 desired", "StrategyType:           RollingUpdate")
	s.run("describe pod p", "Status:           Pending", "Image:        nginx")
	s.run("describe namespace default", "Status:       Active")
	s.run("explain deployment.spec.strategy", "FIELD: strategy <DeploymentStrategy>", "RollingUpdate")
	s.run("explain pods --recursive", "containers")
	s.run("api-resources", "deployments", "apps/v1", "configmaps")
	s.run("api-versions", "apps/v1", "events.k8s.io/v1")
	s.run("get --raw /version", `"gitVersion": "v1.37`)
	s.run("cluster-info", "is running at")
	s.run("events")
}

// A watch shows what is there, and then what changes.
func TestGetWatch(t *testing.T) {
	s := start(t)
	s.file("settings.yaml", configMap)
	s.run("create -f @settings.yaml")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The first change may come before the watch: there are more.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	ended, changed := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-ended:
				changed <- nil
				return
			case <-tick.C:
			}
			patch := fmt.Appendf(nil, `{"data":{"n":"%d"}}`, n)
			if _, err := s.client.CoreV1().ConfigMaps("default").Patch(ctx, "settings", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				changed <- err
				return
			}
		}
	}()
	// The watch ends at the time-out of requests.
	out, err := s.try(ctx, "get configmap settings -w --output-watch-events --request-timeout=2s")
	close(ended)
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "ADDED      settings") || !strings.Contains(out, "MODIFIED   settings") {
		t.Errorf("get -w: %v\n%s", err, out)
	}
}

func TestEdit(t *testing.T) {
	if _, err := exec.LookPath("sed"); err != nil {
		t.Skip(err)
	}
	t.Setenv("KUBE_EDITOR", "sed -i s/blue/green/")
	s := start(t)
	s.file("settings.yaml", configMap)
	s.run("create -f @settings.yaml")
	s.run("edit configmap settings", "configmap/settings edited")
	s.run("get configmap settings -o jsonpath={.data.color}", "green")
}

// The test does what the controllers would.
func TestRolloutAndWait(t *testing.T) {
	s := start(t)
	s.file("web.yaml", deployment)
	s.file("p.yaml", pod)
	s.run("create -f @web.yaml")
	s.run("create -f @p.yaml")
	done := make(chan error, 2)
	go func() {
		_, err := s.client.AppsV1().Deployments("default").Patch(t.Context(), "web", types.MergePatchType, []byte(
			`{"status":{"observedGeneration":1,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2}}`), metav1.PatchOptions{}, "status")
		done <- err
	}()
	s.run("rollout status deployment web --timeout=20s", "successfully rolled out")
	go func() {
		_, err := s.client.CoreV1().Pods("default").Patch(t.Context(), "p", types.MergePatchType, []byte(
			`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
		done <- err
	}()
	s.run("wait pod/p --for=condition=Ready --timeout=20s", "pod/p condition met")
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	s.run("rollout restart deployment web", "restarted")
	s.run("wait pod/p --for=jsonpath={.status.phase}=Pending --timeout=20s", "condition met")
}

func TestDelete(t *testing.T) {
	s := start(t)
	s.file("web.yaml", deployment)
	s.file("p.yaml", pod)
	// A dependent goes with its owner, before or after it, or stays.
	for _, cascade := range []string{"foreground", "background", "orphan"} {
		s.run("create -f @web.yaml")
		uid := s.run("get deployment web -o jsonpath={.metadata.uid}")
		name := "of-" + cascade
		s.run("create configmap " + name)
		s.run(fmt.Sprintf(`patch configmap %s --type=merge -p {"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"%s"}]}}`, name, uid), "patched")
		s.run("delete deployment web --cascade="+cascade, "deleted")
		s.fails("get deployment web", "NotFound")
		if cascade == "orphan" {
			s.run("get configmap "+name+" -o jsonpath={.metadata.name}{.metadata.ownerReferences}", name)
		} else {
			s.run("wait --for=delete configmap/" + name + " --timeout=20s")
		}
	}

	s.run("create -f @p.yaml")
	s.bind("p")
	s.run("delete pod p --grace-period=100 --wait=false", "deleted")
	s.run("get pod p -o jsonpath={.metadata.deletionGracePeriodSeconds}", "100")
	s.run("delete pod p --dry-run=server", "deleted")
	s.run("delete pod p --force --grace-period=0", "force deleted")
	s.fails("get pod p", "NotFound")
	s.run("create configmap a", "created")
	s.run("delete configmaps --all", `configmap "a" deleted`)
	s.run("create namespace away", "created")
	s.run("create configmap a -n away", "created")
	s.run("delete namespace away", "deleted")
	s.fails("get namespace away", "NotFound")
}

// TestAuth asks who one is, and what one may do.
func TestAuth(t *testing.T) {
	s := start(t)
	s.run("auth whoami", "kubernetes-admin", "system:masters")
	s.run("auth can-i delete nodes", "yes")
	s.fails("get pods --as jane", `User "jane" cannot list resource "pods"`)
	s.run("create role reader --verb=get,list --resource=pods", "created")
	s.run("create rolebinding readers --role=reader --user=jane --serviceaccount=default:robot", "created")
	s.run("auth can-i get pods --as jane", "yes")
	s.run("auth can-i --list --as jane", "pods", "get list")
	s.run("get pods --as jane")
	s.fails("get secrets --as jane", `User "jane" cannot list resource "secrets"`)
	s.run("create serviceaccount robot", "created")
	token := strings.TrimSpace(s.run("create token robot --duration=1h"))
	robot := s.withToken(token)
	robot.run("auth whoami", "system:serviceaccount:default:robot")
	robot.run("get pods")
	robot.fails("get nodes", `User "system:serviceaccount:default:robot" cannot list resource "nodes"`)
	s.withToken("wrong").fails("get pods", "You must be logged in to the server")
}

// bind puts a pod on a node, from where it cannot be deleted at once.
func (s *shell) bind(name string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	err := s.client.CoreV1().Pods("default").Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}
