package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Bounds of what is healthy.
const (
	// soonExpires is how long before its end a certificate is worth a warning. The
	// server renews its own 90 days before, when it starts or somebody connects.
	soonExpires = 30 * 24 * time.Hour
	// soonExpiresCA is the same for the authority, which nothing renews.
	soonExpiresCA = 365 * 24 * time.Hour
	// leastSpace is the free space in bytes below which the store is about to refuse
	// writes: it keeps 64 MiB in reserve.
	leastSpace   = 64 << 20
	littleSpace  = 1 << 30
	littleMemory = 128 << 20
	// shownUnsafe is how many files that others can change are named.
	shownUnsafe = 20
	fewFiles    = 4096
	// clockTolerance is how far files may be in the future.
	clockTolerance = time.Minute
	// answerTimeout is how long a running server has to answer.
	answerTimeout = 5 * time.Second
)

// How a finding was judged.
const (
	healthy = "ok"
	warning = "warning"
	problem = "problem"
)

// finding is the outcome of one check of 'kelson doctor'.
type finding struct {
	Check   string `json:"check"`
	Result  string `json:"result"` // healthy, warning or problem
	Message string `json:"message"`
	// Remedy is what to do about a warning or a problem.
	Remedy string `json:"remedy,omitempty"`
}

// doctor is one run of 'kelson doctor'.
type doctor struct {
	storageFlags
	address string
	port    int
	output  string
	salvage string // a data folder to write what can be read of the store into

	config   controlplane.Config
	running  bool // a server has the data folder open
	unread   bool // whether a server has it open is not known: the store belongs to another user
	findings []finding
}

func newDoctor(s streams) *cobra.Command {
	var d doctor
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a data folder, the machine and a running server",
		Long: `Check the data folder, all data in the store, the certificates, the clock, the
limits of the machine and the port, and say what is wrong and how to mend it.
A server that runs on the data folder may go on serving.

Give the flags that 'kelson serve' is given. The exit code is 0 if nothing is
wrong, warnings aside, and 1 otherwise.

With --salvage nothing is checked: what can be read of a damaged embedded store
is written into another data folder, and what is lost is named. The damaged one
stays as it is.`,
		Example: `  kelson doctor
  kelson doctor --data-dir /var/lib/kelson -o json
  kelson doctor --etcd-servers http://10.0.0.1:2379
  kelson doctor --data-dir /var/lib/kelson --salvage /var/lib/kelson-new`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.output != "text" && d.output != "json" {
				return usage(cmd, "--output=%s is not one of text and json", d.output)
			}
			var err error
			if d.config, err = d.storageFlags.config(); err != nil {
				return err
			}
			if d.salvage != "" {
				if !d.inFolder() {
					return usage(cmd, "--salvage is for the embedded store")
				}
				return runSalvage(cmd.Context(), s.out, d.dataDir, d.salvage)
			}
			d.examine(cmd.Context())
			return d.report(s.out)
		},
	}
	cmd.Flags().SortFlags = false
	d.storageFlags.bind(cmd.Flags())
	cmd.Flags().StringVar(&d.address, "bind-address", controlplane.DefaultBindAddress, "IP `address` that the server listens on")
	cmd.Flags().IntVar(&d.port, "secure-port", controlplane.DefaultSecurePort, "`port` that the server listens on")
	cmd.Flags().StringVar(&d.salvage, "salvage", "", "data `folder` to write what can be read of a damaged store into")
	cmd.Flags().StringVarP(&d.output, "output", "o", "text", "`form` of the answer: text or json")
	return cmd
}

// examine runs all checks.
func (d *doctor) examine(ctx context.Context) {
	if d.inFolder() {
		d.checkFolder()
	}
	d.checkStore(ctx)
	d.checkCertificates()
	d.checkClock()
	d.checkLimits()
	d.checkPort(ctx)
}

// inFolder reports whether the data is in the data folder.
func (d *doctor) inFolder() bool {
	return (d.storage == "" || d.storage == controlplane.StorageEngine) && len(d.servers) == 0 && d.config.Postgres.DSN == ""
}

func (d *doctor) find(check, result, remedy, format string, args ...any) {
	d.findings = append(d.findings, finding{check, result, fmt.Sprintf(format, args...), remedy})
}

// checkFolder looks at the data folder: who may use it, and how much room there is.
func (d *doctor) checkFolder() {
	const name = "data folder"
	info, err := os.Stat(d.dataDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.find(name, warning, "start a server with 'kelson serve --data-dir "+d.dataDir+"', or name its folder with --data-dir", "%s does not exist: no server has used it yet", d.dataDir)
		return
	case err != nil:
		d.find(name, problem, "run this as the user of the server", "%v", err)
		return
	case !info.IsDir():
		d.find(name, problem, "name a folder with --data-dir", "%s is not a folder", d.dataDir)
		return
	}
	found := len(d.findings)
	for i, unsafe := range controlplane.FindUnsafe(d.dataDir, true) {
		if i == shownUnsafe {
			d.find(name, problem, "look at the owners and modes of all files in it", "there are more files that others can change")
			break
		}
		d.find(name, problem, unsafe.Remedy, "%s %s", unsafe.Path, unsafe.Reason)
	}
	if !isOwner(info) {
		d.find(name, warning, "run the server as its owner, or, if you trust what is in it: chown -R", "%s belongs to another user: a server of this one refuses it", d.dataDir)
	}
	if file, err := os.CreateTemp(d.dataDir, ".doctor-*"); err != nil {
		d.find(name, problem, "make the user of the server its owner, and mount the disk for writing", "%s cannot be written to: %v", d.dataDir, errors.Unwrap(err))
	} else {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}
	switch free, ok := freeSpace(d.dataDir); {
	case ok && free < leastSpace:
		d.find(name, problem, "free some space", "the disk of %s has %s left, and the store refuses writes below %s", d.dataDir, size(free), size(leastSpace))
	case ok && free < littleSpace:
		d.find(name, warning, "free some space", "the disk of %s has %s left", d.dataDir, size(free))
	case len(d.findings) > found:
	case ok:
		d.find(name, healthy, "", "%s can be written to, %s free", d.dataDir, size(free))
	default:
		d.find(name, healthy, "", "%s can be written to", d.dataDir)
	}
}

// checkStore reads everything in the store. If a server has the data folder open, the
// server reads it.
func (d *doctor) checkStore(ctx context.Context) {
	const name = "store"
	if d.inFolder() {
		dir := controlplane.StoreDir(d.dataDir)
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			d.find(name, healthy, "", "there is none in %s yet", d.dataDir)
			return
		}
		// Opening a store writes files, which would be those of another user.
		if d.unread = err == nil && !isOwner(info); d.unread {
			d.find(name, warning, "run this as the owner of "+dir, "was not read: it belongs to another user")
			return
		}
		d.running = d.isRunning()
	}
	summary, err := d.config.Snapshot(ctx, io.Discard, nil)
	if err == nil && d.inFolder() && !d.running {
		err = d.verify(ctx)
	}
	switch {
	case err == nil && d.running:
		d.find(name, healthy, "", "revision %d, %d keys, %s, all read by the server that is running", summary.Revision, summary.Keys, size(summary.Bytes))
	case err == nil:
		d.find(name, healthy, "", "revision %d, %d keys, %s, all read", summary.Revision, summary.Keys, size(summary.Bytes))
	case errors.Is(err, engine.ErrNewerFormat):
		d.find(name, problem, "install the version of Kelson that wrote it, or a newer one", "%v", err)
	case errors.Is(err, engine.ErrDamaged):
		d.find(name, problem, "keep a copy of the folder; restore the newest snapshot into another one with 'kelson snapshot restore', or see what is left with 'kelson doctor --salvage FOLDER'", "%v", err)
	case errors.Is(err, engine.ErrNotStore):
		d.find(name, problem, "name the data folder of a server with --data-dir", "%v", err)
	case errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission):
		d.find(name, problem, "mend the data folder first", "was not read: %v", err)
	case errors.Is(err, storage.ErrUnavailable):
		d.find(name, problem, "start it, and check its address and the network", "%v", err)
	default:
		d.find(name, problem, "keep a copy of the folder, and restore the newest snapshot into another one with 'kelson snapshot restore'", "cannot be read: %v", err)
	}
}

// verify reads what a snapshot does not have: the history, and whether it is without gaps.
func (d *doctor) verify(ctx context.Context) error {
	store, err := controlplane.OpenFolder(d.dataDir)
	if err != nil {
		return err
	}
	return errors.Join(store.Verify(ctx), store.Close())
}

// isRunning reports whether another process has the store of the data folder open.
func (d *doctor) isRunning() bool {
	store, err := controlplane.OpenFolder(d.dataDir)
	if err == nil {
		_ = store.Close()
	}
	return errors.Is(err, engine.ErrLocked)
}

// checkCertificates looks at the certificates and keys of the data folder.
func (d *doctor) checkCertificates() {
	const name = "certificates"
	files, _ := filepath.Glob(filepath.Join(d.dataDir, "*", "*"))
	count, found := 0, len(d.findings)
	first := time.Time{}
	for _, file := range files {
		ext := filepath.Ext(file)
		if ext != ".crt" && ext != ".pem" && ext != ".key" {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			d.find(name, problem, "run this as the user of the server", "%v", err)
			continue
		}
		if info, err := os.Stat(file); err == nil && strings.Contains(string(content), "PRIVATE KEY") && info.Mode().Perm()&0o077 != 0 {
			d.find(name, problem, "chmod 600 "+file, "others can read the key in %s (mode %04o)", file, info.Mode().Perm())
		}
		if ext == ".key" {
			continue
		}
		block, _ := pem.Decode(content)
		var cert *x509.Certificate
		if block != nil {
			cert, err = x509.ParseCertificate(block.Bytes)
		}
		if cert == nil || err != nil {
			d.find(name, problem, "restore the file from a copy of the folder", "there is no certificate in %s", file)
			continue
		}
		count++
		if first.IsZero() || cert.NotAfter.Before(first) {
			first = cert.NotAfter
		}
		d.checkValidity(name, file, cert)
	}
	switch {
	case len(d.findings) > found:
	case count == 0:
		d.find(name, healthy, "", "there are none in %s yet", d.dataDir)
	default:
		d.find(name, healthy, "", "%d, the first ends on %s", count, first.UTC().Format(time.DateOnly))
	}
}

// checkValidity looks at the period in which a certificate is valid.
func (d *doctor) checkValidity(name, file string, cert *x509.Certificate) {
	now := time.Now()
	remedy, soon := "start the server again: it renews the certificate, and writes a new kubeconfig", soonExpires
	if cert.IsCA {
		remedy, soon = "nothing renews an authority: see 'Certificates' in docs/operations.md for a new one", soonExpiresCA
	}
	switch {
	case now.Before(cert.NotBefore):
		d.find(name, problem, "set the clock of this machine", "%s is not valid before %s, and the clock says %s", file, cert.NotBefore.UTC().Format(time.DateTime), now.UTC().Format(time.DateTime))
	case now.After(cert.NotAfter):
		d.find(name, problem, remedy, "%s ended on %s", file, cert.NotAfter.UTC().Format(time.DateOnly))
	case now.Add(soon).After(cert.NotAfter):
		d.find(name, warning, remedy, "%s ends on %s", file, cert.NotAfter.UTC().Format(time.DateOnly))
	}
}

// checkClock compares the clock with the times of the files in the data folder.
func (d *doctor) checkClock() {
	const name = "clock"
	newest, file := time.Time{}, ""
	_ = filepath.WalkDir(d.dataDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // such a file is a finding of another check
		}
		if info, err := entry.Info(); err == nil && info.ModTime().After(newest) {
			newest, file = info.ModTime(), path
		}
		return nil
	})
	if ahead := time.Until(newest); file != "" && ahead > clockTolerance {
		d.find(name, problem, "set the clock, and have it kept by NTP", "it is wrong: %s was written %s from now", file, ahead.Round(time.Second))
		return
	}
	d.find(name, healthy, "", "%s", time.Now().UTC().Format(time.RFC3339))
}

// checkLimits looks at what the process may use of the machine.
func (d *doctor) checkLimits() {
	if memory := budget.Available(); memory < littleMemory {
		d.find("memory", warning, "give it 128 MiB or more, or bound it with --memory-limit", "%s may be used", size(memory))
	} else {
		d.find("memory", healthy, "", "%s may be used", size(memory))
	}
	if files, ok := openFiles(); ok && files < fewFiles {
		d.find("open files", warning, "raise it: 'ulimit -n 65536', or LimitNOFILE=65536 in the systemd unit", "%d may be open, and each client is one", files)
	} else if ok {
		d.find("open files", healthy, "", "%d may be open", files)
	}
}

// checkPort asks the server that is running, or looks whether one could listen.
func (d *doctor) checkPort(ctx context.Context) {
	address := net.JoinHostPort(d.address, strconv.Itoa(d.port))
	if d.running {
		d.checkServer(ctx)
		return
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		result, remedy := problem, "stop what listens there, or choose another port with --secure-port"
		if d.unread || !d.inFolder() {
			result, remedy = warning, "if that is not this server, choose another port with --secure-port"
		}
		d.find("port", result, remedy, "%s cannot be used: %v", address, errors.Unwrap(err))
		return
	}
	_ = listener.Close()
	d.find("port", healthy, "", "%s is free", address)
}

// checkServer asks a server whether it is ready, as the administrator.
func (d *doctor) checkServer(ctx context.Context) {
	const name = "server"
	file, _ := controlplane.FindKubeconfig(d.dataDir)
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		d.find(name, problem, "start the server again: it writes the kubeconfig when it listens", "has the data folder open, and its kubeconfig cannot be read: %v", configfile.Unquoted(err))
		return
	}
	config.Timeout = answerTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		d.find(name, problem, "start the server again: it writes the kubeconfig when it listens", "%v", err)
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz?verbose", nil)
	if err != nil {
		d.find(name, problem, "", "%v", err)
		return
	}
	resp, err := client.Do(req)
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		d.find(name, problem, "set the clock if it is wrong; else start the server again", "at %s shows a certificate that is refused: %v", config.Host, untrusted.Err)
		return
	case err != nil:
		d.find(name, problem, "look at its log; it may be starting or ending", "has the data folder open, and does not answer at %s: %v", config.Host, err)
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode == http.StatusOK {
		d.find(name, healthy, "", "answers at %s, and is ready", config.Host)
		return
	}
	var failed []string
	for line := range strings.Lines(string(text)) {
		if check, ok := strings.CutPrefix(line, "[-]"); ok {
			failed = append(failed, strings.Fields(check)[0])
		}
	}
	d.find(name, problem, "look at its log for these checks", "answers at %s with %s: %s", config.Host, resp.Status, strings.Join(failed, ", "))
}

// report prints the findings. A problem makes the exit code 1.
func (d *doctor) report(out io.Writer) error {
	problems := 0
	for _, f := range d.findings {
		if f.Result == problem {
			problems++
		}
	}
	if d.output == "json" {
		text, err := json.MarshalIndent(struct {
			Healthy  bool      `json:"healthy"`
			Version  string    `json:"version"`
			Findings []finding `json:"findings"`
		}{problems == 0, version(), d.findings}, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\n", text)
	} else {
		for _, f := range d.findings {
			fmt.Fprintf(out, "%-8s  %-13s %s\n", f.Result, f.Check, f.Message)
			if f.Remedy != "" {
				fmt.Fprintf(out, "%-8s  %-13s → %s\n", "", "", f.Remedy)
			}
		}
	}
	if problems > 0 {
		return errShown
	}
	return nil
}
