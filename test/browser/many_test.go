package browser

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
)

// podsInStore is a store with a namespace and n pods in it, as a server writes them. One in
// ten has the label team=red.
func podsInStore(t *testing.T, namespace string, n int) storage.Backend {
	t.Helper()
	store := memory.New(memory.Options{})
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion)
	var buffer bytes.Buffer
	create := func(key string, object runtime.Object) {
		buffer.Reset()
		if err := encoder.Encode(object, &buffer); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Create(context.Background(), "/registry/"+key, bytes.Clone(buffer.Bytes()), 0); err != nil {
			t.Fatal(err)
		}
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	create("namespaces/"+namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, UID: "namespace", CreationTimestamp: now}, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}})
	grace := int64(30)
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			Containers:    []corev1.Container{{Name: "web", Image: "registry.example/web:1", TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullIfNotPresent}},
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, SchedulerName: "default-scheduler", TerminationGracePeriodSeconds: &grace, SecurityContext: &corev1.PodSecurityContext{},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for i := range n {
		pod.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("pod-%06d", i), Namespace: namespace, UID: types.UID(fmt.Sprintf("uid-%d", i)), CreationTimestamp: now, Labels: map[string]string{"app": "web", "team": []string{"red", "blue"}[min(1, i%10)]}}
		create("pods/"+namespace+"/"+pod.Name, pod)
	}
	return store
}

// firstRow opens an address, and returns how long the page took to a row with the text, by
// the page's own clock: a test that asks is late.
func (tab *tab) firstRow(address, text string) time.Duration {
	tab.t.Helper()
	call(tab, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `{
		const look = () => {
			if (document.querySelector("[role=grid]")?.textContent.includes(` + quote(text) + `)) window.firstRow = performance.now();
			else requestAnimationFrame(look);
		};
		requestAnimationFrame(look);
	}`})
	tab.visit(address)
	tab.until("a row with "+text, "window.firstRow")
	return time.Duration(eval[float64](tab, "window.firstRow") * float64(time.Millisecond))
}

// mainThread is for how many seconds the main thread of the page has had a CPU. It is counted
// from the first call on.
func (tab *tab) mainThread() float64 {
	tab.t.Helper()
	call(tab, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	for _, m := range call(tab, performance.GetMetrics, cdp.Empty{}).Metrics {
		if m.Name == "TaskDuration" {
			return m.Value
		}
	}
	tab.t.Fatal("the browser has no metric TaskDuration")
	return 0
}

// inSight is JavaScript for the texts of the rows that can be seen, from top to bottom.
const inSight = `(() => {
	const grid = document.querySelector("[role=grid]"), box = grid.getBoundingClientRect();
	return [...grid.querySelectorAll(".grid-row:not([hidden])")]
		.map((e) => [e.getBoundingClientRect(), e.innerText])
		.filter(([r]) => r.top >= box.top - 1 && r.bottom <= box.bottom + 1)
		.sort(([a], [b]) => a.top - b.top)
		.map(([, text]) => text);
})()`

// TestManyPods has 10,000 pods, and 100,000 with KELSON_LONG.
func TestManyPods(t *testing.T) {
	n := 10_000
	if os.Getenv("KELSON_LONG") != "" {
		n = 100_000
	} else {
		t.Parallel()
	}
	needChromium(t)
	const namespace = "many"
	s := kelsontest.Start(t, kelsontest.Backend(podsInStore(t, namespace, n)))
	api := client(t, s.Config())
	if list, err := api.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{Limit: 1}); err != nil || len(list.Items) != 1 || list.RemainingItemCount == nil || int(*list.RemainingItemCount) != n-1 {
		t.Fatalf("a list of one pod: %v %v, want that %d remain", list, err, n-1)
	}
	c := open(t, s.Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	took := tab.firstRow(c.url()+"/objects/core/v1/pods?namespace="+namespace, "pod-000003")
	t.Logf("the first rows of %d were there after %v", n, took)
	// It is a third of a second on a machine of one's own; others may compile meanwhile.
	if most := 3 * time.Second; took > most {
		t.Errorf("the first rows of %d were there after %v, want %v at most", n, took, most)
	}
	count := func(what string) string {
		return "document.querySelector('[aria-label=\"Number of rows\"]')?.innerText === " + quote(what)
	}
	grouped := func(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
	tab.until("all rows", count(grouped(n)+" objects"))

	// Rows are elements only where they are in sight.
	few := func(where string) {
		t.Helper()
		if got := eval[int](tab, "document.querySelectorAll('[role=row]').length"); got > 100 {
			t.Errorf("%s the page has %d elements for rows, want at most 100", where, got)
		}
		if got := eval[int](tab, "document.querySelectorAll('main *').length"); got > 3000 {
			t.Errorf("%s the page has %d elements, want at most 3000", where, got)
		}
	}
	few("at the top")
	const grid = "document.querySelector('[role=grid]')"
	middle := fmt.Sprintf("pod-%06d", n/2)
	eval[any](tab, fmt.Sprintf("%s.scrollTop = %d * %s.querySelector('.grid-row').offsetHeight, 1", grid, n/2, grid))
	tab.until("the middle", inSight+".some((r) => r.includes("+quote(middle)+"))")
	few("in the middle")

	// What comes before does not move what is read, and is counted.
	top := eval[string](tab, inSight+"[2].slice(0, 10)")
	first := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "aaa-first", Labels: map[string]string{"team": "red"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}}}
	if _, err := api.CoreV1().Pods(namespace).Create(t.Context(), first, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tab.until("one more", count(grouped(n+1)+" objects"))
	tab.until("the same rows in sight", inSight+"[2].startsWith("+quote(top)+")")
	// A change of a row in sight is seen.
	pod, err := api.CoreV1().Pods(namespace).Get(t.Context(), middle, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodFailed
	if _, err := api.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	tab.until("the change", inSight+".some((r) => r.includes("+quote(middle)+") && r.includes('Failed'))")
	if err := api.CoreV1().Pods(namespace).Delete(t.Context(), middle, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	tab.until("the deletion", "!"+inSight+".some((r) => r.includes("+quote(middle)+"))")
	tab.until("one less", count(grouped(n)+" objects"))

	eval[any](tab, grid+".scrollTop = "+grid+".scrollHeight, 1")
	last := fmt.Sprintf("pod-%06d", n-1)
	tab.until("the end", inSight+".at(-1)?.includes("+quote(last)+")")
	few("at the end")

	some := fmt.Sprintf("pod-%06d", n-77)
	tab.set("searchbox", "Filter rows by text", some)
	tab.until("one row", count("1 of "+grouped(n))+" && "+inSight+".length === 1 && "+inSight+"[0].includes("+quote(some)+")")
	tab.set("searchbox", "Filter rows by text", "")
	tab.until("all rows", count(grouped(n)+" objects"))
	tab.set("textbox", "Label selector", "team=red")
	tab.until("the rows with the label", count(grouped(n/10)+" objects")+" && "+inSight+"[0].includes('aaa-first') && "+inSight+"[1].includes('pod-000000') && "+inSight+"[2].includes('pod-000010')")
	if os.Getenv("KELSON_LONG") == "" {
		return
	}
	tab.set("textbox", "Label selector", "")
	tab.until("all rows", count(grouped(n)+" objects"))
	// Other processes lengthen a frame, but not the time for which the page works for it.
	const steps = 300
	longest, before := 0.0, tab.mainThread()
	for range steps {
		eval[any](tab, fmt.Sprintf("%s.scrollTop += %[1]s.scrollHeight / %d, new Promise(requestAnimationFrame)", grid, steps))
		now := tab.mainThread()
		longest, before = max(longest, 1000*(now-before)), now
	}
	t.Logf("the page worked %.0f ms at most for one frame", longest)
	if longest > 100 {
		t.Errorf("the page worked %.0f ms for one frame, want at most 100", longest)
	}
	frames := eval[[]float64](tab, fmt.Sprintf(`(async () => {
		const grid = %s, frames = [];
		for (let i = 0, last = performance.now(); i < %d; i++) {
			grid.scrollTop -= grid.scrollHeight / %[2]d;
			await new Promise(requestAnimationFrame);
			const now = performance.now();
			frames.push(now - last);
			last = now;
		}
		return frames;
	})()`, grid, steps))
	slices.Sort(frames)
	most := frames[len(frames)*9/10]
	t.Logf("nine of ten frames took %.0f ms at most, the longest %.0f ms", most, frames[len(frames)-1])
	if most > 100 {
		t.Errorf("nine of ten frames took %.0f ms at most, want 100", most)
	}
}
