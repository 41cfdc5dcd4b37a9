// Command record plays the requests in archives of package replay on a kube-apiserver, and
// writes its answers into them. Answers that differ only in what package replay does not
// compare stay as they are, so recording twice changes nothing.
//
//	go run ./test/replay/record -kubeconfig FILE test/replay/testdata/machinery/*.txtar
//
// docs/contributing/recording.md says how to start the kube-apiserver.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/test/replay"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "record:", err)
		}
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	server, kubeconfig, token, ca    string
	insecure, missing, serial, check bool
	filter                           *regexp.Regexp
	attempts, atOnce                 int
	files                            []string
}

func parse(args []string, out io.Writer) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("record", flag.ContinueOnError)
	flags.SetOutput(out)
	// Not $KUBECONFIG, which may name a cluster that somebody needs.
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KELSON_REFERENCE"), "`file` that says where the server is and who asks: an administrator")
	flags.StringVar(&o.server, "server", "", "`URL` of the server, instead of that in -kubeconfig")
	flags.StringVar(&o.token, "token", "", "bearer token, instead of the credentials in -kubeconfig")
	flags.StringVar(&o.ca, "certificate-authority", "", "`file` with the certificates that the server is trusted by")
	flags.BoolVar(&o.insecure, "insecure-skip-tls-verify", false, "trust any server")
	filter := flags.String("filter", "", "`pattern` of the names of the recordings to play; all, unless told otherwise")
	flags.BoolVar(&o.missing, "missing", false, "play only recordings in which an answer is missing or is one of Kelson (@own)")
	flags.BoolVar(&o.serial, "serial", false, "play @serial recordings too, and only them: the server must be new, so do this with one at a time")
	flags.BoolVar(&o.check, "check", false, "write nothing, and fail if something would be written")
	flags.IntVar(&o.attempts, "attempts", 3, "how often to play a recording whose answers differ before they are written")
	flags.IntVar(&o.atOnce, "at-once", 8, "how many recordings to play at a time")
	flags.Usage = func() {
		fmt.Fprintln(out, "usage: record -kubeconfig FILE | -server URL -token TOKEN [flags] ARCHIVE...")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if o.filter, err = regexp.Compile(*filter); err != nil {
		return nil, fmt.Errorf("-filter: %w", err)
	}
	o.files = flags.Args()
	switch {
	case o.server == "" && o.kubeconfig == "":
		return nil, errors.New("-server or -kubeconfig must be given")
	case len(o.files) == 0:
		return nil, errors.New("no archives are given")
	case o.attempts < 1 || o.atOnce < 1:
		return nil, errors.New("-attempts and -at-once must be at least 1")
	}
	if o.serial {
		o.atOnce = 1
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	var archives []*replay.Archive
	for _, file := range o.files {
		a, err := replay.ReadArchive(file)
		if err != nil {
			return err
		}
		archives = append(archives, a)
	}
	player, err := o.connect(ctx)
	if err != nil {
		return err
	}
	var all total
	for _, a := range archives {
		part := o.record(ctx, player, a, out)
		all.played, all.changed, all.failed = all.played+part.played, all.changed+part.changed, all.failed+part.failed
		// What was answered before an error is kept.
		if part.changed > 0 && !o.check {
			if err := a.Write(); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(out, "%d recordings played, %d changed, %d failed\n", all.played, all.changed, all.failed)
	switch {
	case all.failed > 0:
		return fmt.Errorf("%d recordings could not be played", all.failed)
	case o.check && all.changed > 0:
		return fmt.Errorf("%d recordings differ", all.changed)
	}
	return nil
}

// connect returns a player for the server.
func (o *options) connect(ctx context.Context) (*replay.Player, error) {
	config, err := clientcmd.BuildConfigFromFlags(o.server, o.kubeconfig)
	if err != nil {
		return nil, err
	}
	if o.token != "" {
		config = rest.AnonymousClientConfig(config)
		config.BearerToken = o.token
	}
	if o.ca != "" {
		config.TLSClientConfig.CAFile, config.TLSClientConfig.CAData = o.ca, nil
	}
	if o.insecure {
		config.TLSClientConfig = rest.TLSClientConfig{Insecure: true, CertFile: config.CertFile, KeyFile: config.KeyFile, CertData: config.CertData, KeyData: config.KeyData}
	}
	admin, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	nobody, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		return nil, err
	}
	return replay.NewPlayer(ctx, config.Host, admin, nobody)
}

// total counts recordings.
type total struct{ played, changed, failed int }

// record plays the recordings of an archive that are wanted, and changes them.
func (o *options) record(ctx context.Context, p *replay.Player, a *replay.Archive, out io.Writer) (sum total) {
	var mu sync.Mutex // protects sum and out
	var players sync.WaitGroup
	next := make(chan *replay.Recording)
	for range o.atOnce {
		players.Go(func() {
			for r := range next {
				changes, err := o.recordOne(ctx, p, r)
				mu.Lock()
				sum.played++
				if err != nil {
					sum.failed++
					fmt.Fprintf(out, "%s: %v\n", r.ID, err)
				} else if len(changes) > 0 {
					sum.changed++
				}
				for _, c := range changes {
					fmt.Fprintf(out, "%s: %s\n", r.ID, c)
				}
				mu.Unlock()
			}
		})
	}
	for _, r := range a.Recordings {
		if ctx.Err() == nil && r.Serial == o.serial && o.filter.MatchString(r.ID) && (!o.missing || needsReference(r)) {
			next <- r
		}
	}
	close(next)
	players.Wait()
	return sum
}

// recordOne plays a recording until its answers are as recorded, and keeps those of the
// last attempt. Some answers are not the same each time, and these should not change with
// each run of this command.
func (o *options) recordOne(ctx context.Context, p *replay.Player, r *replay.Recording) ([]string, error) {
	was := slices.Clone(r.Steps)
	for attempt := 1; ; attempt++ {
		copy(r.Steps, was)
		own := needsReference(r)
		changes, err := p.Record(ctx, r)
		if err != nil {
			copy(r.Steps, was)
			return nil, err
		}
		if len(changes) == 0 && own {
			changes = []string{"the reference answers the same; @own is removed"}
		}
		if len(changes) == 0 || own || attempt == o.attempts {
			return changes, nil
		}
	}
}

// needsReference reports whether a recording has answers that are not those of a
// kube-apiserver.
func needsReference(r *replay.Recording) bool {
	return slices.ContainsFunc(r.Steps, func(s replay.Step) bool { return s.Status == 0 || s.Own })
}
