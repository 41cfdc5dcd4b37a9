package controlplane

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission/quota"
	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/builtin/scheduling"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/controller/feed"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
)

// controllers returns all controllers that a server can run.
func (a *assembly) controllers(f *feed.Feed) []controller.Controller {
	var others resource.Follower
	if a.places.shared() {
		others = a.resources.Follow(schema.GroupResource{Resource: "resourcequotas"})
	}
	a.charges = quota.NewLedger(others, nil)
	all := []controller.Controller{
		controller.Namespaces(a.NamespaceDelay), controller.GarbageCollector(a.InventedOwners), controller.ServiceAccounts(), controller.Aggregation(a.aggregated.take),
		controller.TTLAfterFinished(), controller.ClaimProtection(), controller.VolumeProtection(), controller.Approving(),
		controller.RequestCleaner(), controller.PodRequestCleaner(), controller.LegacyTokens(), controller.Migrations(),
		controller.Quotas(a.own.QuotaRecounts(a.charges, f, rest.AdmissionObjects{Handler: a.resources}, quota.Settings{NoDevices: !a.Gates.Enabled(deviceAllocation)})),
		controller.PolicyStatus(a.checker().Check),
	}
	if a.Gates.Enabled(scheduling.GenericWorkload) {
		all = append(all, controller.GroupProtection())
	}
	if a.Gates.Enabled(storageVersionAPI) {
		all = append(all, controller.StorageVersions())
	}
	var certificates []byte
	if a.authority != nil {
		certificates = a.authority.CertificatePEM()
		all = append(all, controller.RootCA(certificates), controller.Signing(a.authority.Sign))
	}
	return append(all, controller.Tokens(certificates, func(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
		key, err := a.tokenKey()
		if err != nil {
			return "", err
		}
		return serviceaccount.IssueLegacy(key, account, secret)
	}))
}

// tokenKey is what the tokens in secrets are signed with.
func (a *assembly) tokenKey() (crypto.Signer, error) {
	if a.signer != nil {
		return a.signer, nil
	}
	if a.Authentication.ServiceAccounts.SigningKeyFile == "" {
		return nil, errors.New("tokens of service accounts are signed elsewhere, which does not sign those in secrets")
	}
	data, err := os.ReadFile(a.Authentication.ServiceAccounts.SigningKeyFile)
	if err != nil {
		return nil, err
	}
	return serviceaccount.ParsePrivateKey(data)
}

// newManager makes what runs the controllers, or says what is wrong with the choice
// of them.
func (a *assembly) newManager() error {
	f := &feed.Feed{Backends: a.places.backends(), Place: a.places.of, Catalog: a.catalogs.get}
	a.catalogs.onChange = f.CatalogChanged
	queues := metrics.NewQueues(a.registry)
	m := &controller.Manager{
		Queues:      func(name string) controller.QueueMetrics { return queues.Queue(name) },
		Controllers: a.controllers(f), Enabled: a.Controllers, Feed: f, Logger: a.Logger, Now: a.Now, Jumps: a.Jumps, Busy: a.outer.Busy,
		Client: func(user request.User) *controller.Client {
			return &controller.Client{Transport: a.outer.Loopback(user)}
		},
	}
	elect := a.places.shared()
	if a.LeaderElect != nil {
		elect = *a.LeaderElect
	}
	if elect {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		m.Elect = &controller.Election{
			Identity: fmt.Sprintf("%s_%d_%p", host, os.Getpid(), a),
			Kind: func() *controller.Kind {
				k, _ := f.Served("coordination.k8s.io", "leases")
				return k
			},
		}
	}
	a.manager = m
	_, err := controller.Enabled(m.Controllers, m.Enabled)
	return err
}

// runsController reports whether a controller is among those that this server runs.
func (a *assembly) runsController(name string) bool {
	if a.manager == nil {
		return false // the server is only assembled in order to check its files
	}
	on, err := controller.Enabled(a.manager.Controllers, a.manager.Enabled)
	return err == nil && slices.ContainsFunc(on, func(c controller.Controller) bool { return c.Name == name })
}

// startControllers runs the controllers, and returns when they have done what
// there was to do at the start: who finds the server ready finds the service
// accounts too. It does not wait for that on a store with very many objects.
func (a *assembly) startControllers(ctx context.Context) error {
	m := a.manager
	if err := a.own.EnsureNamespaces(ctx); err != nil {
		return err
	}
	ready := make(chan struct{})
	a.running.Go(func() {
		// What they are told of was written by clients: it must not end the server.
		if err := protect.Call(func() error { return m.Run(ctx, func() { close(ready) }) }); err != nil {
			a.Logger.Error("controllers do not run", "error", err, "stack", protect.StackOf(err))
		}
	})
	select {
	case <-ready:
	case <-ctx.Done():
	}
	return nil
}
