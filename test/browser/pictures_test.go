package browser

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
)

var pictures = flag.String("pictures", "", "`folder` for the pictures of docs/console.md")

// TestPictures makes the pictures of docs/console.md, from a server with load:
//
//	go test . -run TestPictures -pictures ../../docs/images
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("makes the pictures of docs/console.md: give -pictures ../../docs/images")
	}
	needChromium(t)
	s, stop, err := newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "shop")
	shop(t, api, namespace)
	load(t, s, namespace)
	c := open(t, s.Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	eval[any](tab, "document.documentElement.dataset.theme = 'light'")
	take := func(name, address, ready string) {
		t.Helper()
		tab.view(address)
		tab.until(name, ready)
		tab.picture(filepath.Join(*pictures, "console-"+name+".png"))
	}
	const deployment = "/object/apps/v1/deployments/shop/web-0"
	take("objects", "/objects/core/v1/pods?namespace=shop", "document.body.innerText.includes('web-0-b3')")
	take("object", deployment, "[...document.querySelectorAll('main *')].some((e) => (e.shadowRoot || e).querySelector('.cm-content')?.textContent.includes('replicas'))")
	take("access", "/access?user=system:kube-scheduler", "document.querySelector('[role=grid]')")
	take("time", "/time?namespace=shop", "document.body.innerText.includes('deployments')")
	// Some minutes of load fit on the charts; most of one shows what they are.
	take("now", "/", "[...document.querySelectorAll('canvas')].length && document.body.innerText.includes('argocd') && (window.since ??= performance.now(), performance.now() - window.since > 40000)")
	eval[any](tab, "document.documentElement.dataset.theme = 'dark'")
	take("dark", "/objects/apps/v1/deployments?namespace=shop", "document.body.innerText.includes('web-4')")
	eval[any](tab, "document.documentElement.dataset.theme = 'light'")
	call(tab, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 390, Height: 750, DeviceScaleFactor: 1, Mobile: true})
	take("phone", deployment, "document.body.innerText.includes('web-0')")
}
