// Package kubectl runs the real kubectl, as a library, and a controller-runtime
// manager against a server. It is a module of its own, since nobody who uses
// the server needs either.
package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// patience is how long something may take to happen on a busy machine.
const patience = 30 * time.Second

// one lets one command run at a time: how kubectl exits on an error is a global
// of its own.
var one sync.Mutex

// shell is a server and what kubectl needs to reach it.
type shell struct {
	*testing.T
	dir    string
	client kubernetes.Interface
}

func start(t *testing.T) *shell {
	t.Helper()
	server := kelsontest.Start(t)
	client, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{T: t, dir: t.TempDir(), client: client}
	s.file("kubeconfig", string(server.Kubeconfig()))
	return s
}

// withToken is another user of the same server.
func (s *shell) withToken(token string) *shell {
	s.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(s.dir, "kubeconfig"))
	if err != nil {
		s.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &api.AuthInfo{Token: token}
	}
	content, err := clientcmd.Write(*config)
	if err != nil {
		s.Fatal(err)
	}
	other := &shell{T: s.T, dir: s.TempDir(), client: s.client}
	other.file("kubeconfig", string(content))
	return other
}

// file writes a file and returns its path.
func (s *shell) file(name, content string) string {
	s.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
	return path
}

// exit is how a command that fails ends.
type exit struct {
	message string
	code    int
}

// try runs kubectl. Words of the line are split at spaces, and @name stands for
// the path of a file.
func (s *shell) try(ctx context.Context, line string) (out string, err error) {
	one.Lock()
	defer one.Unlock()
	var stdout, stderr bytes.Buffer
	defer func() {
		out = stdout.String()
		if cause := recover(); cause != nil {
			e, ours := cause.(exit)
			if !ours {
				panic(cause)
			}
			if e.code != 0 {
				err = fmt.Errorf("exit code %d: %s", e.code, e.message)
			}
		}
		if err != nil {
			err = errors.Join(err, errors.New(stderr.String()))
		}
	}()
	cmdutil.BehaviorOnFatal(func(message string, code int) { panic(exit{message, code}) })
	defer cmdutil.DefaultBehaviorOnFatal()

	path, cache := filepath.Join(s.dir, "kubeconfig"), filepath.Join(s.dir, "cache")
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig, flags.CacheDir = &path, &cache
	args := strings.Fields(line)
	for i, arg := range args {
		if name, ok := strings.CutPrefix(arg, "@"); ok {
			args[i] = filepath.Join(s.dir, name)
		}
	}
	command := cmd.NewKubectlCommand(cmd.KubectlOptions{
		ConfigFlags: flags, Arguments: append([]string{"kubectl"}, args...),
		IOStreams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr},
	})
	command.SetArgs(args)
	command.SetOut(&stdout)
	command.SetErr(&stderr)
	return "", command.ExecuteContext(ctx)
}

// run runs kubectl and checks that its output has some texts.
func (s *shell) run(line string, want ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	out, err := s.try(ctx, line)
	if err != nil {
		s.Errorf("kubectl %s: %v", line, err)
	}
	for _, text := range want {
		if !strings.Contains(out, text) {
			s.Errorf("kubectl %s: no %q in:\n%s", line, text, out)
		}
	}
	return out
}

// fails runs kubectl and checks that it fails with some text.
func (s *shell) fails(line, want string) {
	s.Helper()
	out, err := s.try(s.Context(), line)
	if err == nil || !strings.Contains(err.Error(), want) {
		s.Errorf("kubectl %s: %v, want an error with %q; output:\n%s", line, err, want, out)
	}
}
