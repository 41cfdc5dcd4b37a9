package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/postgres"
)

// Run opens the store and serves until ctx ends. That is no error.
func (c Config) Run(ctx context.Context) error {
	if err := c.complete(); err != nil {
		return err
	}
	if err := c.checkOwner(); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	store, err := c.open(ctx)
	if errors.Is(err, engine.ErrLocked) && c.Serving.PermitPortSharing {
		store, err = c.takeOver(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		if earlier := c.CheckFiles(ctx, false); earlier != nil {
			return earlier
		}
		return err
	}
	// A server that others cannot ask is worth more than none: some file
	// systems have no sockets.
	var door *control
	if c.Storage == StorageEngine {
		if err := clearBranches(c.DataDir); err != nil {
			c.Logger.Warn("what is left of branches cannot be removed", "error", err)
		}
		if door, err = listen(c.DataDir, store, func() { end(kelson.ErrReplaced) }, c.Logger); err != nil {
			c.Logger.Warn("no control socket: snapshots can only be taken when this process has ended", "error", err)
		}
	}
	if err = c.openElsewhere(ctx); err == nil {
		err = c.serve(ctx, store)
	} else if earlier := c.CheckFiles(ctx, true); earlier != nil && ctx.Err() == nil {
		err = earlier
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	// The socket goes first: as long as the store is locked it is ours.
	return errors.Join(err, door.close(), c.closeElsewhere(), store.Close())
}

// CheckFiles returns the first thing that is wrong with the files of encryption,
// authentication, authorization and auditing, and of admission if it is asked for.
// kube-apiserver reads them before it needs etcd.
func (c Config) CheckFiles(ctx context.Context, admission bool) error {
	c.Storage, c.Etcd, c.EtcdOverrides, c.elsewhere, c.Postgres = StorageMemory, etcd.Options{}, nil, nil, postgres.Options{}
	c.defaults()
	backend, err := c.open(ctx)
	if err != nil {
		return err
	}
	a, err := c.assemble(ctx, backend, nil)
	if err == nil {
		if admission {
			err = a.admission()
		}
		err = errors.Join(err, a.close())
	}
	return errors.Join(err, backend.Close())
}

// serve answers requests until ctx ends.
func (c *Config) serve(ctx context.Context, store storage.Backend) error {
	authority, err := c.authority()
	if err != nil {
		return err
	}
	c.warnOfClock(authority)
	server, err := c.Server(ctx, store, authority)
	if err != nil {
		return err
	}
	server.Addr, server.Listener = c.addr(), c.listener
	// On a store that both can use, the server that this one replaces works until this one
	// is ready.
	server.ListenWhenReady = c.Serving.PermitPortSharing && store.Shared() && *c.SecurePort != 0
	var telling sync.WaitGroup
	if server.Listen() == nil {
		go tidy(ctx, server, c.Logger)
		if c.NotifySocket != "" {
			ended, end := context.WithCancel(context.Background())
			defer telling.Wait() // a process that has ended tells nothing
			defer end()
			telling.Go(func() { tellManager(ended, c.NotifySocket, server.Signals(), c.Logger) })
		}
		if err = c.writeKubeconfig(authority, server.URL()); err == nil {
			err = c.greet(server.URL())
		}
		if err != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			cancel() // Run closes what there is
		}
	}
	return errors.Join(err, server.Run(ctx))
}

// tidy prepares what clients ask a new server for first, gives back to the system what only
// the start has needed, and later what only the work of a while has: without it, a server with
// nothing to do keeps it for minutes.
func tidy(ctx context.Context, server *kelson.Server, log *slog.Logger) {
	select {
	case <-server.Signals().MuxAndDiscoveryComplete.Happened():
	case <-server.Signals().ShutdownInitiated.Happened():
		return
	case <-ctx.Done():
		return
	}
	if api, ok := server.API.(*aggregator.Server); ok {
		if err := api.OpenAPI().Prepare(); err != nil {
			log.Error("preparing the index of OpenAPI documents", "error", err)
		}
	}
	giveBack(ctx, log)
}

// writeKubeconfig writes the administrator's kubeconfig, and notes in the data
// folder where it is.
func (c *Config) writeKubeconfig(authority *pki.Authority, url string) error {
	if c.Kubeconfig == "" {
		return nil
	}
	var trusted [][]byte
	for _, file := range c.shown() {
		cert, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		trusted = append(trusted, cert)
	}
	if err := authority.WriteKubeconfig(c.Kubeconfig, url, trusted...); err != nil {
		return err
	}
	if !c.keeps() {
		return nil
	}
	note := kubeconfigNote(c.DataDir)
	here, err := filepath.Abs(KubeconfigFile(c.DataDir))
	if err != nil {
		return err
	}
	file, err := filepath.Abs(c.Kubeconfig)
	switch {
	case err != nil:
		return err
	case file != here:
		return os.WriteFile(note, []byte(file+"\n"), 0o600)
	}
	if err := os.Remove(note); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// shown are the files with certificates that clients may see, that of those who
// ask for no name first.
func (c *Config) shown() (files []string) {
	switch s := &c.Serving; {
	case s.Certificate.CertFile != "":
		files = append(files, s.Certificate.CertFile)
	case s.CertDir != "":
		files = append(files, filepath.Join(s.CertDir, "apiserver.crt"))
	}
	for _, pair := range c.Serving.SNI {
		files = append(files, pair.CertFile)
	}
	return files
}

// authority returns the certificates, those of the data folder unless nothing
// is kept.
func (c *Config) authority() (*pki.Authority, error) {
	if !c.keeps() {
		return pki.New(c.hosts()...)
	}
	return pki.Open(filepath.Join(c.DataDir, "pki"), c.hosts()...)
}

// warnOfClock warns if the clock is before the time at which the server's authority was
// made: clients whose clock is right are served, but certificates that are issued now
// begin too early, and clients on this machine trust none.
func (c *Config) warnOfClock(authority *pki.Authority) {
	if from := authority.ValidFrom(); time.Now().Before(from) {
		c.Logger.Warn("the clock of this machine is wrong: the certificates of this server are not valid yet, and clients here refuse them; set the clock, and start the server again",
			"clock", time.Now().UTC().Format(time.DateTime), "validFrom", from.UTC().Format(time.DateTime))
	}
}

// hosts are the names and addresses under which this server is reached, beside
// those that all servers have.
func (c *Config) hosts() []string {
	hosts := []string{c.BindAddress}
	if host, _, err := net.SplitHostPort(c.Serving.ExternalHostname); err == nil {
		hosts = append(hosts, host)
	} else {
		hosts = append(hosts, c.Serving.ExternalHostname)
	}
	if ip := c.Serving.AdvertiseAddress; ip != nil {
		hosts = append(hosts, ip.String())
	} else if bind := net.ParseIP(c.BindAddress); bind.IsUnspecified() {
		// Without a network there is no other address.
		if ip, err := utilnet.ResolveBindAddress(bind); err == nil {
			hosts = append(hosts, ip.String())
		}
	}
	for _, cidr := range c.ServiceCIDRs {
		hosts = append(hosts, cidr.Masked().Addr().Next().String())
	}
	return hosts
}

// greet tells the person who started the server what to do next.
func (c *Config) greet(url string) error {
	if c.Kubeconfig == "" {
		return nil // it is for programs
	}
	_, err := fmt.Fprintf(c.Out, `Kelson serves the Kubernetes API at %s
It keeps its data %s. Press Ctrl-C to stop.

In another terminal:
  kubectl --kubeconfig %s get namespaces
`, url, c.describe(), quote(c.Kubeconfig))
	return err
}

// quote returns text as one word for a shell.
func quote(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%,=", r) || r > unicode.MaxASCII
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
