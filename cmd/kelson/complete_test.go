//go:build unix

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/cobra"
)

// TestPlaceholders has usage lines as commands have them.
func TestPlaceholders(t *testing.T) {
	for use, want := range map[string]string{
		"undo [KIND [NAME]] --to MOMENT":                  "KIND NAME",
		"why USER VERB RESOURCE [NAME] | --last USER":     "USER VERB RESOURCE NAME",
		"run [flags] [-- COMMAND [ARGUMENT...]]":          "flags",
		"blame KIND NAME":                                 "KIND NAME",
		"top":                                             "",
		"migrate --from SRC --to DST":                     "",
		"kelson-with-arguments KIND [NAME...] [--flag X]": "KIND NAME",
	} {
		if got := strings.Join(placeholders(use), " "); got != want {
			t.Errorf("placeholders of %q: got %q, want %q", use, got, want)
		}
	}
}

// TestArgumentsAreCompletedFromTheServer: kinds with their group, and names in the
// namespace, are those of a running server; without one there are none.
func TestArgumentsAreCompletedFromTheServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	serve(t, "--data-dir", dir)
	newClient(t, controlplane.KubeconfigFile(dir)).ready()
	complete := func(kubeconfig string, args ...string) []string {
		t.Helper()
		var a ask
		sub := &cobra.Command{Use: "show VERB KIND [NAME]", Run: func(*cobra.Command, []string) {}}
		a.bind(sub.Flags())
		root := &cobra.Command{Use: "kelson"}
		root.AddCommand(sub)
		completeArguments(root)
		if err := sub.ParseFlags([]string{"--kubeconfig", kubeconfig}); err != nil {
			t.Fatal(err)
		}
		all, directive := sub.ValidArgsFunction(sub, args, "")
		if directive != cobra.ShellCompDirectiveNoFileComp {
			t.Errorf("completion: got the directive %v, want no files", directive)
		}
		return all
	}
	file := controlplane.KubeconfigFile(dir)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "deletecollection"},
		{[]string{"get"}, "configmaps\tv1 ConfigMap"},
		{[]string{"get"}, "deployments.apps\tapps/v1 Deployment"},
		{[]string{"get", "namespaces"}, "kube-system"},
		{[]string{"get", "ns"}, "kube-public"},
		{[]string{"get", "deployments.apps"}, ""},
		{[]string{"get", "clusterroles.rbac.authorization.k8s.io"}, "cluster-admin"},
		{[]string{"get", "services"}, "kubernetes"},
		{[]string{"get", "nonsense"}, ""},
		{[]string{"get", "services", "kubernetes"}, ""},
	} {
		if got := complete(file, c.args...); c.want != "" && !slices.Contains(got, c.want) || c.want == "" && len(got) > 0 {
			t.Errorf("completion after %q: got %q, want %q", c.args, got, c.want)
		}
	}
	if got := complete(filepath.Join(dir, "absent"), "get"); len(got) > 0 {
		t.Errorf("completion without a server: got %q, want nothing", got)
	}
}
