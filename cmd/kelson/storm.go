package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	accounts "github.com/apikeel/kelson/usage"
)

// exitStorm is the exit code of kelson storm --check during a storm.
const exitStorm = 3

func newStorm(s streams) *cobra.Command {
	var a ask
	var check, apply bool
	cmd := &cobra.Command{
		Use:   "storm",
		Short: "Name the client that overloads the server",
		Long: `Say whether the server has too much to do, which client is the likeliest cause, and
what to do about it: a priority level and a flow schema that limit the client, as
'kubectl apply -f -' takes them.

The exit code is 0; with --check it is 3 during a storm. You need the right to get
/debug/kelson/storm.`,
		Example: `  kelson storm
  kelson storm --apply | kubectl apply -f -
  kelson storm --check || notify-someone`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := a.connect()
			if err != nil {
				return err
			}
			var storm accounts.Storm
			if err := t.get(cmd.Context(), strings.TrimPrefix(accounts.StormPath, debugRoot), nil, &storm); err != nil {
				return err
			}
			if apply {
				err = writeObjects(s.out, &storm)
			} else {
				err = a.print(s.out, &storm, func(w io.Writer) error { return writeStorm(w, &storm) })
			}
			if err == nil && check && storm.Overloaded {
				return exitCode(exitStorm)
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&check, "check", false, "exit with code 3 during a storm")
	fs.BoolVar(&apply, "apply", false, "print only the objects that limit the client")
	a.bind(fs)
	return cmd
}

// writeStorm writes the page for a person.
func writeStorm(w io.Writer, storm *accounts.Storm) error {
	for _, words := range storm.Words {
		fmt.Fprintf(w, "%s\n", clean(words))
	}
	if len(storm.Clients) > 0 {
		fmt.Fprintf(w, "\nUSER\tAGENT\tLEVEL\tLOAD\tCPU\tSEATS\tREQUESTS\tREQ/S\tREFUSED\tMOSTLY\n")
	}
	for _, c := range storm.Clients {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f%%\t%.0f%%\t%.0f%%\t%.0f%%\t%.1f\t%d\t%s\n", shownName(c.User), shownName(c.Agent), shownName(c.Level),
			100*c.Load, 100*c.CPUShare, 100*c.SeatShare, 100*c.RequestShare, c.RequestsPerSecond, c.Refused, shownName(c.Mostly))
	}
	if len(storm.Apply) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return writeObjects(w, storm)
}

// writeObjects writes the objects that limit the client.
func writeObjects(w io.Writer, storm *accounts.Storm) error {
	for i, object := range storm.Apply {
		text, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		// YAML escapes what is not printable; tabs would be cells of the table.
		if _, err := fmt.Fprint(w, strings.ReplaceAll(string(text), "\t", "  ")); err != nil {
			return err
		}
	}
	return nil
}
