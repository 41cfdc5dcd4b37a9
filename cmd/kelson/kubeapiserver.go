package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/textlog"
	"github.com/apikeel/kelson/storage"
	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// kubeName is the command, and the name of a link to the program, with kube-apiserver's
// command line.
const kubeName = "kube-apiserver"

// idleHeader is a response header of the idle etcd, by which the server recognizes that
// it stores nothing.
const idleHeader = "Kelson-Idle"

// kubeDefaults are the defaults of kube-apiserver where those of 'kelson serve' differ.
func kubeDefaults() map[string]string {
	return map[string]string{
		"bind-address":       "0.0.0.0",
		"allow-privileged":   "false",
		"authorization-mode": "AlwaysAllow",
		"cert-dir":           "/var/run/kubernetes",
		"controllers":        "-*", // they run in kube-controller-manager
		"encryption-provider-config-automatic-reload": "false",
		"lease-reuse-duration-seconds":                "60",
	}
}

// kubeError is a mistake in kube-apiserver's command line, printed as kube-apiserver
// does.
type kubeError struct{ error }

func newKubeAPIServer(s streams) *cobra.Command {
	var flags serveFlags
	cmd := &cobra.Command{
		Use:   kubeName,
		Short: "Serve with the command line of kube-apiserver",
		Long: `Serve with the flags and the defaults of kube-apiserver, so that what starts that
server can start this one. A link to this program with the name kube-apiserver
does the same.

Objects are in etcd. Nothing else is kept but the certificate in --cert-dir.`,
		Args: func(_ *cobra.Command, args []string) error {
			if slices.ContainsFunc(args, func(arg string) bool { return arg != "" }) {
				return kubeError{fmt.Errorf("%q does not take any arguments, got %q", kubeName, args)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.version != "" {
				return flags.version.show(s.out)
			}
			return serveAsKube(cmd, &flags, s)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return kubeError{err} })
	flags.bind(cmd.Flags())
	for name, value := range kubeDefaults() {
		cmd.Flags().Lookup(name).DefValue = value
	}
	return cmd
}

func serveAsKube(cmd *cobra.Command, flags *serveFlags, s streams) error {
	config, err := kubeConfig(cmd, flags, s.err)
	if err == nil {
		boundProcess(config.Memory)
		err = config.Run(cmd.Context())
	}
	if err != nil {
		if config.Logger == nil {
			config.Logger = slog.New(textlog.New(s.err, slog.LevelInfo))
		}
		config.Logger.Error("command failed", "err", kubeText(err))
		return errShown
	}
	return nil
}

// kubeText returns an error in kube-apiserver's form, with all mistakes of a command
// line in one list.
func kubeText(err error) string {
	if errors.Is(err, storage.ErrUnavailable) {
		return explain(err)
	}
	return utilerrors.NewAggregate(joined(err)).Error()
}

// joined returns the errors that were joined into err.
func joined(err error) (all []error) {
	several, ok := err.(interface{ Unwrap() []error })
	if !ok || errors.Join(several.Unwrap()...).Error() != err.Error() {
		return []error{err} // its text has more than theirs
	}
	for _, err := range several.Unwrap() {
		all = append(all, joined(err)...)
	}
	return all
}

// kubeConfig returns the configuration for kube-apiserver's flags.
func kubeConfig(cmd *cobra.Command, flags *serveFlags, w io.Writer) (controlplane.Config, error) {
	given := cmd.Flags().Changed
	for name, value := range kubeDefaults() {
		if given(name) || name == "authorization-mode" && given("authorization-config") {
			continue
		}
		if err := cmd.Flags().Lookup(name).Value.Set(value); err != nil {
			return controlplane.Config{}, err
		}
	}
	idle := flags.storage == "" && idling(cmd.Context(), flags.servers)
	if idle {
		flags.storage, flags.servers = controlplane.StorageMemory, nil
	}
	config, err := flags.config(cmd, w)
	if err != nil {
		return config, err
	}
	config.NoFolder = !given("data-dir")
	if !given("service-cluster-ip-range") {
		config.Logger.Warn("No CIDR for service cluster IPs specified. Default value which was 10.0.0.0/24 is deprecated and will be removed in future releases. Please specify it using --service-cluster-ip-range on kube-apiserver.")
	}
	if idle {
		envtestControllers(&config, given("controllers"))
		config.Logger.Info("etcd keeps nothing: the data is in memory")
	}
	return config, nil
}

// required refuses a command line without the flags that kube-apiserver requires.
func (f *serveFlags) required(s *setup) {
	if s.config.Storage == "" && len(f.servers) == 0 && !f.postgres.Given() {
		s.refuse(checkEtcd, errors.New("--etcd-servers must be specified"))
	}
	// 0 takes a free port, which kube-apiserver refuses.
	if f.port < 0 || f.port > 65535 {
		s.refuse(checkServing, fmt.Errorf("--secure-port %d must be between 1 and 65535, inclusive. It cannot be turned off with 0", f.port))
	}
	accounts := s.config.Authentication.ServiceAccounts
	issuer := len(accounts.Issuers) > 0 && accounts.Issuers[0] != ""
	switch {
	case accounts.SigningKeyFile == "" && !issuer && len(s.config.Authentication.APIAudiences) == 0:
		s.refuse(checkTokens, errors.New("--service-account-signing-key-file and --service-account-issuer are required flags"))
	case !issuer || accounts.SigningKeyFile == "" && accounts.SigningEndpoint == "":
		s.refuse(checkTokens, errors.New("--service-account-signing-key-file, --service-account-issuer, and --api-audiences should be specified together"))
	}
}

// idling reports whether an etcd is the idle one.
func idling(ctx context.Context, servers []string) bool {
	if len(servers) != 1 || !strings.HasPrefix(servers[0], "http://") {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(servers[0], "/")+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false // opening the store reports why it cannot be reached
	}
	defer resp.Body.Close()
	return resp.Header.Get(idleHeader) != ""
}
