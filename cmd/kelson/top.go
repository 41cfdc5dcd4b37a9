package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	accounts "github.com/apikeel/kelson/usage"
)

// topFlags are the flags of kelson top.
type topFlags struct {
	ask
	by, sort string
	since    time.Duration
	rows     int
	only     map[string]*string // by dimension
	once     bool
	every    time.Duration
}

func newTop(s streams) *cobra.Command {
	f := topFlags{only: map[string]*string{}}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show who uses the server, and how much",
		Long: `Show what clients cost the server: requests, CPU time, bytes, memory, seats of flow
control, watches, and reads and writes of the store, by user, by user agent, by
resource, by namespace, by priority level, or by verb.

On a terminal the table is drawn again every two seconds, and keys change it:

  u a r n l v    by user, agent, resource, namespace, level, verb
  c e b m s w x  sort by CPU, requests, bytes, memory, seats, watches, refused
  j k            select the row below, above (or arrow keys)
  Enter          show what the selected row is made of
  Backspace      go back
  q              quit

CPU time is that of the process, shared out to requests by the time that their
handlers worked. Memory and seats are averages. You need the right to get
/debug/kelson/top; resources and namespaces are shown if you may list them.`,
		Example: `  kelson top
  kelson top --by namespace --sort bytes
  kelson top --since 1h --by user
  kelson top --once -o json --by agent --user system:serviceaccount:apps:builder`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, s) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.by, "by", "user", "`dimension` of the rows: "+strings.Join(accounts.Dimensions(), ", "))
	fs.StringVar(&f.sort, "sort", "cpu", "`key` by which rows are sorted: "+strings.Join(accounts.Sorts(), ", "))
	fs.DurationVar(&f.since, "since", 0, "`time` that the table is about, up to a day (default the last 10s)")
	fs.IntVar(&f.rows, "rows", 20, "largest `number` of rows")
	fs.BoolVar(&f.once, "once", false, "print the table once")
	fs.DurationVar(&f.every, "interval", 2*time.Second, "`time` between two tables on a terminal")
	for _, d := range accounts.Dimensions() {
		name := d
		if d == "namespace" {
			name = "in-namespace" // --namespace is that of the context
		}
		f.only[d] = fs.String(name, "", "only requests of this `"+d+"`, of the last seconds")
	}
	f.bind(fs)
	return cmd
}

// query is what the flags ask for.
func (f *topFlags) query(cmd *cobra.Command) (q accounts.Query, err error) {
	index := func(flag, value string, known []string) int {
		i := slices.Index(known, value)
		if i < 0 {
			err = usageError{fmt.Errorf("--%s=%s is not one of %s; see '%s --help'", flag, shownName(value), strings.Join(known, ", "), cmd.CommandPath())}
		}
		return i
	}
	q = accounts.Query{Since: f.since, Sort: f.sort, Rows: f.rows, By: accounts.Dimension(index("by", f.by, accounts.Dimensions()))}
	index("sort", f.sort, accounts.Sorts())
	for i, d := range accounts.Dimensions() {
		if name := *f.only[d]; name != "" {
			if q.Only == nil {
				q.Only = map[accounts.Dimension]string{}
			}
			q.Only[accounts.Dimension(i)] = name
		}
	}
	return q, err
}

func (f *topFlags) run(cmd *cobra.Command, s streams) error {
	q, err := f.query(cmd)
	if err != nil {
		return err
	}
	t, err := f.connect()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	in, isFile := s.in.(*os.File)
	if out, ok := s.out.(*os.File); ok && isFile && !f.once && f.output == "table" && f.since == 0 && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd())) {
		live := &liveTop{query: q, every: max(f.every, 100*time.Millisecond), ask: func(ctx context.Context, q accounts.Query) (*accounts.Top, error) { return askTop(ctx, t, q) }}
		return live.onTerminal(ctx, in, out)
	}
	top, err := askTop(ctx, t, q)
	if err != nil {
		return err
	}
	return f.print(s.out, top, func(w io.Writer) error { return writeTop(w, top, -1) })
}

func askTop(ctx context.Context, t *target, q accounts.Query) (*accounts.Top, error) {
	var top accounts.Top
	err := t.get(ctx, strings.TrimPrefix(accounts.TopPath, debugRoot), q.Values(), &top)
	return &top, err
}

// writeTop writes the table; its columns are separated by tabs. One row can be marked.
func writeTop(w io.Writer, top *accounts.Top, marked int) error {
	var only []string
	for _, d := range accounts.Dimensions() {
		if name, ok := top.Only[d]; ok {
			only = append(only, d+" "+shownName(name))
		}
	}
	about := ""
	if len(only) > 0 {
		about = " of " + strings.Join(only, ", ")
	}
	fmt.Fprintf(w, "By %s%s, last %s. CPU: process %.0f%%, requests %.0f%%, of %d00%%. Requests: %.1f/s. Watches: %d.\n\n",
		top.By, about, (time.Duration(top.Seconds * float64(time.Second))).Round(time.Second), 100*top.ProcessCPUSeconds/max(top.Seconds, 0.001), top.Total.CPUPercent, top.Processors,
		top.Total.RequestsPerSecond, top.Total.OpenWatches)
	mark := func(text string) string {
		if marked >= 0 {
			return text
		}
		return ""
	}
	fmt.Fprintf(w, "%s%s\tREQ/S\tCPU%%\tBYTES/S\tMEMORY\tSEATS\tWATCHES\tREADS/S\tWRITES/S\tREFUSED\tFAILED\tMEAN WAIT\n", mark("  "), strings.ToUpper(top.By))
	rows := top.Rows
	for _, more := range []*accounts.Row{top.Others, top.Hidden} {
		if more != nil {
			rows = append(rows[:len(rows):len(rows)], *more)
		}
	}
	seconds := max(top.Seconds, 0.001)
	for i, r := range rows {
		prefix := mark("  ")
		if i == marked {
			prefix = "> "
		}
		wait := time.Duration(r.QueueWaitSeconds / float64(max(1, r.Requests)) * float64(time.Second))
		if _, err := fmt.Fprintf(w, "%s%s\t%.1f\t%.1f\t%s\t%s\t%.2f\t%d\t%.1f\t%.1f\t%d\t%d\t%s\n", prefix, shownName(r.Name), r.RequestsPerSecond, r.CPUPercent,
			shortBytes(float64(r.BytesOut)/seconds), shortBytes(float64(r.MemoryBytes)), r.Seats, r.OpenWatches,
			float64(r.StoreReads)/seconds, float64(r.StoreWrites)/seconds, r.Refused, r.Failed, wait.Round(100*time.Microsecond)); err != nil {
			return err
		}
	}
	return nil
}

// shortBytes is a number of bytes with three digits and a unit.
func shortBytes(n float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if n < 1000 {
			digits := 0
			if unit != "B" && n < 100 {
				digits = 1
			}
			return strconv.FormatFloat(n, 'f', digits, 64) + unit
		}
		n /= 1000
	}
	return strconv.FormatFloat(n, 'f', 1, 64) + "TB"
}

// longestShown is the largest number of characters of a name in a table.
const longestShown = 72

// shownName makes a name that a client has chosen safe for a terminal: what is not printable
// is escaped, and long names are cut.
func shownName(name string) string {
	name = strings.ReplaceAll(name, `\`, `\\`)
	if runes := []rune(name); len(runes) > longestShown {
		return clean(string(runes[:longestShown])) + "…"
	}
	return clean(name)
}
