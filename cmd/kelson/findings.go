package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	accounts "github.com/apikeel/kelson/usage"
)

func newFindings(s streams) *cobra.Command {
	var a ask
	cmd := &cobra.Command{
		Use:   "findings",
		Short: "Show how the API is used that should not be",
		Long: `Show deprecated versions that are in use and by whom, clients that list everything
without pages, watches that are restarted all the time, the time and the failures of
admission webhooks, CustomResourceDefinitions that nobody uses, and the largest kinds
and objects by namespace. All since the server has started.

You need the right to get /debug/kelson/findings, and see what you may list.`,
		Example: `  kelson findings
  kelson findings -o json | jq '.deprecated[].user'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := a.connect()
			if err != nil {
				return err
			}
			var report accounts.Report
			if err := t.get(cmd.Context(), strings.TrimPrefix(accounts.FindingsPath, debugRoot), nil, &report); err != nil {
				return err
			}
			return a.print(s.out, &report, func(w io.Writer) error { return writeFindings(w, &report) })
		},
	}
	a.bind(cmd.Flags())
	return cmd
}

func writeFindings(w io.Writer, r *accounts.Report) error {
	fmt.Fprintf(w, "Since %s.\n", r.Since.Local().Format(time.DateTime))
	table := func(title, columns string, rows int, row func(i int) []any) {
		fmt.Fprintf(w, "\n%s:", title)
		if rows == 0 {
			fmt.Fprint(w, " none\n")
			return
		}
		fmt.Fprintf(w, "\n%s\n", columns)
		for i := range rows {
			for j, cell := range row(i) {
				if j > 0 {
					fmt.Fprint(w, "\t")
				}
				if text, ok := cell.(string); ok {
					cell = shownName(text)
				}
				fmt.Fprint(w, cell)
			}
			fmt.Fprintln(w)
		}
	}
	last := func(f accounts.Finding) string { return f.Last.Local().Format(time.DateTime) }
	table("Deprecated versions in use", "RESOURCE\tUSER\tAGENT\tTIMES\tLAST", len(r.Deprecated), func(i int) []any {
		f := r.Deprecated[i]
		return []any{f.Resource, f.User, f.Agent, f.Times, last(f)}
	})
	clients := func(list []accounts.Finding) func(i int) []any {
		return func(i int) []any {
			f := list[i]
			return []any{f.Resource, f.Namespace, f.User, f.Agent, f.Times, shortBytes(float64(f.Bytes)), last(f)}
		}
	}
	const columns = "RESOURCE\tNAMESPACE\tUSER\tAGENT\tTIMES\tBYTES\tLAST"
	table("Large lists without pages", columns, len(r.Unpaged), clients(r.Unpaged))
	table("Watches that ended within 30 seconds", columns, len(r.Restarted), clients(r.Restarted))
	table("Admission webhooks", "NAME\tTYPE\tREQUESTS\tTOTAL\tMEAN\tREJECTED\tFAILED\tFAILED OPEN", len(r.Webhooks), func(i int) []any {
		h := r.Webhooks[i]
		seconds := func(s float64) string {
			return time.Duration(s * float64(time.Second)).Round(10 * time.Microsecond).String()
		}
		return []any{h.Name, h.Type, h.Requests, seconds(h.TotalSeconds), seconds(h.MeanSeconds), h.Rejected, h.Failed, h.FailedOpen}
	})
	table("CustomResourceDefinitions that nobody has used", "NAME", len(r.Unused), func(i int) []any { return []any{r.Unused[i]} })
	table("Largest kinds in memory", "RESOURCE\tNAMESPACE\tOBJECTS\tBYTES", len(r.Kinds), func(i int) []any {
		k := r.Kinds[i]
		return []any{k.Resource, k.Namespace, k.Objects, shortBytes(float64(k.Bytes))}
	})
	table("Largest objects in memory", "RESOURCE\tNAMESPACE\tNAME\tBYTES", len(r.Objects), func(i int) []any {
		o := r.Objects[i]
		return []any{o.Resource, o.Namespace, o.Name, shortBytes(float64(o.Bytes))}
	})
	return nil
}
