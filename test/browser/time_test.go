package browser

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// kelson is the program, which is built once.
var kelson struct {
	once sync.Once
	dir  string // to be removed; empty if nothing was built
	file string
	err  error
}

var kelsonFile = flag.String("kelson", "", "`file` of the program kelson, instead of one that is built")

func buildKelson() {
	if *kelsonFile != "" {
		kelson.file = *kelsonFile
		return
	}
	dir, err := os.MkdirTemp("", "kelson-browser-program-")
	if err != nil {
		kelson.err = err
		return
	}
	kelson.dir, kelson.file = dir, filepath.Join(dir, "kelson")
	if out, err := exec.Command("go", "build", "-o", kelson.file, "github.com/apikeel/kelson/cmd/kelson").CombinedOutput(); err != nil {
		kelson.err = fmt.Errorf("%w: %s", err, out)
	}
}

// runConsole runs 'kelson console' until the test ends, and returns the link that it prints.
// The action undo is of that program alone.
func runConsole(t *testing.T, config *rest.Config) (link string) {
	t.Helper()
	kelson.once.Do(buildKelson)
	if kelson.err != nil {
		t.Fatal(kelson.err)
	}
	args := []string{"console", "--open=false", "--kubeconfig", writeKubeconfig(t, config, "test")}
	if *pageDir != "" {
		args = append(args, "--page-dir", *pageDir)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, kelson.file, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was ended
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if at := regexp.MustCompile(`http://\S+#key=\S+`).FindString(lines.Text()); at != "" {
			return at
		}
	}
	t.Fatalf("kelson console has printed no link: %v", lines.Err())
	return ""
}

func TestTimeGoesBack(t *testing.T) {
	t.Parallel()
	s := server(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "time-travel")
	maps := api.CoreV1().ConfigMaps(namespace)
	ctx := t.Context()
	hostile := "<script>alert(1)</script> \u202egpj.exe"
	long := strings.Repeat("long.", 50) + "abc" // 253 characters
	for name, value := range map[string]string{"kept": "same", "changed": "before", "deleted": hostile, long: "long"} {
		newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Data: map[string]string{"k": value}})
	}
	newSecret(t, api, namespace, "password")
	was, err := maps.Get(ctx, "deleted", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	then := list.ResourceVersion
	for name, patch := range map[string]string{"changed": `{"data":{"k":"after"}}`, long: `{"data":{"k":"\u202eafter"}}`} {
		if _, err := maps.Patch(ctx, name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{FieldManager: "the-changer"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := api.CoreV1().Secrets(namespace).Patch(ctx, "password", "application/merge-patch+json", []byte(`{"stringData":{"password":"correct horse"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new", Namespace: namespace}})

	tab := newTab(t)
	tab.visit(runConsole(t, s.Token("time-traveller", "system:masters")))
	tab.untilRole("button", "Log out")
	where := "/time?namespace=" + namespace
	tab.view(where)
	tab.untilPart("Moment", "now")
	tab.untilPart("Moment", "Kept for 1h")
	// The slider goes by changes, and to a revision.
	tab.click("button", "◂ Change before")
	tab.until("a moment of the past", "new URLSearchParams(location.search).get('at')")
	tab.untilPart("Moment", "revision")
	tab.click("button", "Now")
	tab.until("now", "!new URLSearchParams(location.search).get('at')")
	tab.set("textbox", "Go to", then)
	eval[any](tab, "document.querySelector('section[aria-label=Moment] form').requestSubmit()")
	tab.untilPart("Moment", "revision "+then)
	tab.set("textbox", "Go to", "no moment")
	eval[any](tab, "document.querySelector('section[aria-label=Moment] form').requestSubmit()")
	tab.untilPart("Moment", "is not a moment")

	// The list as it was: with what is gone, and without what is new.
	tab.view(where + "&at=" + then)
	tab.on("button", "configmaps 5", "function() { this.click() }") // with kube-root-ca.crt
	const state = "configmaps at that moment"
	tab.untilPart(state, "deleted")
	for _, name := range []string{"kept", "changed", long} {
		if tab.row(state, name) == nil {
			t.Errorf("the list as it was has no %s: %q", name, tab.rows(state))
		}
	}
	if row := tab.row(state, "new"); row != nil {
		t.Errorf("the list as it was has %q, which is newer", row)
	}
	tab.click("button", "deleted")
	tab.untilText("<script>alert(1)</script>")
	tab.untilText(`\u202egpj.exe`)
	tab.harmless()
	tab.accessible()
	tab.click("button", "Close")
	// By the slider itself: at its end is now.
	tab.on("slider", "Moment of the past", `function() { this.value = this.max; this.dispatchEvent(new Event("input", { bubbles: true })) }`)
	tab.until("now", "!new URLSearchParams(location.search).get('at')")
	tab.eventually("the list of now", func() bool { return tab.row(state, "new") != nil && tab.row(state, "deleted") == nil })
	tab.on("slider", "Moment of the past", `function() { this.value = this.min; this.dispatchEvent(new Event("input", { bubbles: true })) }`)
	tab.until("the beginning", "new URLSearchParams(location.search).get('at')")
	tab.eventually("the list of the beginning", func() bool { return strings.Contains(tab.part(state), "There were none.") })

	// What changed, by whom.
	tab.view(where + "&tab=changes")
	tab.untilPart("Changes", "deleted configmaps "+namespace+"/deleted")
	tab.untilPart("Changes", "changed configmaps "+namespace+"/changed by the-changer")

	// What is different from then to now.
	tab.view(where + "&tab=compare&from=" + then)
	tab.untilPart("Compare", "1 created, 3 changed, 1 deleted from revision "+then)
	eval[any](tab, "document.querySelectorAll('section[aria-label=Compare] details > summary').forEach((s) => s.click())")
	tab.until("the fields", `[...document.querySelectorAll("table.changes tr")].some((r) => r.querySelector("th").innerText === "data.k" && r.querySelector("del")?.innerText === "before" && r.querySelector("ins")?.innerText === "after")`)
	tab.untilPart("Compare", `\u202eafter`)
	tab.harmless()
	for _, secret := range []string{"aHVudGVyMg", "hunter2", "correct horse", "Y29ycmVjdCBob3JzZQ"} {
		if eval[bool](tab, "document.body.innerText.includes("+quote(secret)+")") {
			t.Errorf("the comparison shows %s, which is secret", secret)
		}
	}
	tab.accessible()

	// Undo: a plan first, and nothing is written before it is wanted.
	tab.view(where + "&tab=undo&at=" + then)
	tab.click("button", "Make a plan")
	tab.untilPart("Plan", "1 to create, 3 to change, 1 to delete, 0 cannot come back")
	for _, step := range []string{"create configmaps " + namespace + "/deleted", "change configmaps " + namespace + "/changed", "delete configmaps " + namespace + "/new", "change secrets " + namespace + "/password"} {
		if got := tab.part("Plan"); !strings.Contains(got, step) {
			t.Errorf("the plan has no step %q: %q", step, got)
		}
	}
	asBefore := func(when string) {
		t.Helper()
		if _, err := maps.Get(ctx, "deleted", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: the deleted object: %v, want it not found", when, err)
		}
		if m, err := maps.Get(ctx, "changed", metav1.GetOptions{}); err != nil || m.Data["k"] != "after" {
			t.Errorf("%s: the changed object is %v (%v), want it unchanged", when, m.Data, err)
		}
	}
	asBefore("with a plan")
	tab.harmless()
	tab.accessible()
	tab.click("button", "Undo this: 5 objects")
	tab.untilRole("dialog", "Undo this?")
	tab.click("button", "No")
	tab.until("no question", "!document.querySelector('dialog[open]')")
	asBefore("after No")
	tab.click("button", "Undo this: 5 objects")
	tab.click("button", "Undo")
	tab.untilPart("What was done", "5 done, 0 failed.")
	back, err := maps.Get(ctx, "deleted", metav1.GetOptions{})
	if err != nil || back.Data["k"] != was.Data["k"] {
		t.Errorf("the deleted object: got %v (%v), want it back with %q", back.Data, err, was.Data["k"])
	}
	if m, err := maps.Get(ctx, "changed", metav1.GetOptions{}); err != nil || m.Data["k"] != "before" {
		t.Errorf("the changed object: got %v (%v), want what it was", m.Data, err)
	}
	if _, err := maps.Get(ctx, "new", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the new object: %v, want it gone", err)
	}
	if secret, err := api.CoreV1().Secrets(namespace).Get(ctx, "password", metav1.GetOptions{}); err != nil || string(secret.Data["password"]) != "hunter2" {
		t.Errorf("the secret: got %q (%v), want what it was", secret.Data["password"], err)
	}
	if m, err := maps.Get(ctx, "kept", metav1.GetOptions{}); err != nil || m.Data["k"] != "same" {
		t.Errorf("what was not changed is %v (%v), want it as it was", m.Data, err)
	}
	tab.click("button", "Make a plan")
	tab.untilPart("Plan", "There is nothing to undo.")
}
