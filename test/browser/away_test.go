package browser

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/console"
)

// isAwaySaid is JavaScript for whether the page says that the server is away.
const isAwaySaid = `[...document.querySelectorAll("[role=alert]")].some((e) => e.checkVisibility() && /cannot be reached|is away/.test(e.innerText))`

// TestViewsSayThatTheServerIsAway lets the server go away and come back while views are
// open, and opens views while the server is away.
func TestViewsSayThatTheServerIsAway(t *testing.T) {
	t.Parallel()
	s := server(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "away")
	for _, name := range []string{"one", "two"} {
		newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Data: map[string]string{"k": "v"}})
	}
	shows := func(part, text string) string {
		return "document.querySelector('[aria-label='+CSS.escape(" + quote(part) + ")+']')?.innerText.includes(" + quote(text) + ")"
	}
	yaml := func(text string) string {
		return "[...document.querySelectorAll('main *')].some((e) => (e.shadowRoot || e).querySelector('.cm-content')?.textContent.includes(" + quote(text) + "))"
	}
	views := []struct {
		address string
		ready   string // when the view shows what is there
		changed string // when the view shows what was written while the server was away
	}{
		{"/", "document.querySelector('.now .state [role=status]')?.innerText.includes('live')", ""},
		{"/objects/core/v1/configmaps?namespace=" + namespace, shows("ConfigMap objects", "one"), shows("ConfigMap objects", "written-while-away")},
		{"/object/core/v1/configmaps/" + namespace + "/one", yaml("k: "), yaml("changed-while-away")},
		{"/access?user=zoe&namespace=" + namespace + "&can=get&resource=configmaps", shows("Rights of zoe", "configmaps") + " && " + shows("Who can", "can get configmaps"), ""},
		{"/apis", shows("Groups", "apps") + " && " + shows("Groups", "requests") + " && !document.querySelector('main').innerText.includes('cannot read')", ""},
		{"/apis?tab=definitions", shows("Definitions", "what it serves is built in"), ""},
		{"/apis?tab=admission", "document.querySelectorAll('section[aria-label=Admission] p.quiet').length === 2", ""},
		{"/apis?tab=findings", shows("Findings", "Largest kinds"), ""},
		{"/explorer", "document.querySelectorAll('#explorer-paths option').length > 50", ""},
		{"/time?namespace=" + namespace + "&kind=/configmaps", shows("Kinds at that moment", "configmaps") + " && " + shows("configmaps at that moment", "one"), ""},
		{"/time?namespace=" + namespace + "&tab=changes", shows("Changes", "away/one"), shows("Changes", "written-while-away")},
		{"/time?namespace=" + namespace + "&tab=compare", shows("Compare", "created"), ""},
	}
	c := open(t, s.Config(), nil)
	tabs := make([]*tab, len(views))
	for i, view := range views {
		tabs[i] = newTab(t)
		tabs[i].logIn(c)
		tabs[i].view(view.address)
		tabs[i].until("what is there", view.ready)
	}
	for i, view := range views {
		if eval[bool](tabs[i], isAwaySaid) {
			t.Errorf("%s says that the server is away while it is there", view.address)
		}
	}
	each := func(what string, script func(i int) string) {
		t.Helper()
		for i, view := range views {
			if script := script(i); script != "" {
				tabs[i].until(view.address+": "+what, script)
			}
		}
	}
	back := func(i int) string {
		return "!(" + isAwaySaid + ") && !document.querySelector('.failure') && " + views[i].ready
	}
	c.goAway()
	each("that the server is away", func(int) string { return isAwaySaid })
	tabs[0].accessible()
	newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "written-while-away", Namespace: namespace}})
	if _, err := api.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "one", "application/merge-patch+json", fmt.Appendf(nil, `{"data":{"k":%q}}`, "changed-while-away"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.comeBack()
	each("the view as before", back)
	each("what has changed", func(i int) string { return views[i].changed })

	// From another view, while the server is away.
	for _, tab := range tabs {
		tab.view("/objects")
	}
	c.goAway()
	for i, view := range views {
		eval[bool](tabs[i], "history.pushState(null, '', "+quote(view.address)+"), window.dispatchEvent(new Event('kelson-route'))")
	}
	each("that the server is away", func(int) string { return isAwaySaid })
	c.comeBack()
	each("the view", back)
}

// discoveryAway is a transport that cannot connect for /api and /apis until isBack is set.
type discoveryAway struct {
	http.RoundTripper
	isBack *atomic.Bool
}

func (d discoveryAway) RoundTrip(r *http.Request) (*http.Response, error) {
	if !d.isBack.Load() && (r.URL.Path == "/api" || r.URL.Path == "/apis") {
		return nil, errors.New("connection refused, says the test")
	}
	return d.RoundTripper.RoundTrip(r)
}

// TestFirstDiscoveryFails opens views that need discovery while it alone cannot be reached.
func TestFirstDiscoveryFails(t *testing.T) {
	t.Parallel()
	s := server(t)
	views := []struct {
		address, key string // the key is pressed in the view
		knows        string // when what discovery says is in the view
	}{
		{"/explorer", "", "document.querySelector('#explorer-paths option[value=\"/apis/apps/v1/deployments\"]')"},
		{"/access?user=zoe&namespace=default", "", "document.querySelector('#access-resources option[value=\"deployments.apps\"]')"},
		{"/time?tab=changes", "", "document.querySelector('select option[value=\"apps/deployments\"]')"},
		{"/", "g", "document.querySelector('#palette-entries')?.innerText.includes('configmaps')"},
	}
	var isBack atomic.Bool
	tabs := make([]*tab, len(views))
	c := open(t, s.Config(), func(c *console.Config) { c.Transport = discoveryAway{c.Transport, &isBack} })
	for i, view := range views {
		tabs[i] = newTab(t)
		tabs[i].logIn(c)
		tabs[i].view(view.address)
		if view.key != "" {
			tabs[i].shortcut(view.key)
		}
		tabs[i].until(view.address+": that the server is away", isAwaySaid)
		if eval[bool](tabs[i], "Boolean("+view.knows+")") {
			t.Errorf("%s knows what discovery says, want that it cannot be reached", view.address)
		}
	}
	isBack.Store(true)
	for i, view := range views {
		tabs[i].until(view.address+": what discovery says", "!("+isAwaySaid+") && !document.querySelector('.failure') && "+view.knows)
	}
}
