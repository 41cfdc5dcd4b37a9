package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/apikeel/kelson/history"
)

func newDiff(s streams) *cobra.Command {
	p := &past{s: s}
	var from, to string
	cmd := &cobra.Command{
		Use:   "diff [KIND [NAME]] --from MOMENT",
		Short: "Show what differs between two moments",
		Example: `  kelson diff --from 14:05 --to 14:20 -n shop
  kelson diff deployments -A --from 1h
  kelson diff configmap web --from 81234 --to 81300`,
		Args: kindAndName(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := p.connect()
			if err != nil {
				return usageError{err}
			}
			if from == "" {
				return usage(cmd, "--from is missing")
			}
			q, err := p.question(t, args)
			if err != nil {
				return err
			}
			if err := setMoments(cmd, q, from, to); err != nil {
				return err
			}
			answer, err := differences(cmd.Context(), t, q)
			if err != nil {
				return err
			}
			return p.printDifferences(answer)
		},
	}
	p.bindScope(cmd)
	cmd.Flags().StringVar(&from, "from", "", "first `moment`: a time (14:05), a revision (81234), or how long ago (10m)")
	cmd.Flags().StringVar(&to, "to", "now", "second `moment`")
	return cmd
}

// setMoments sets the parameters from and to.
func setMoments(cmd *cobra.Command, q url.Values, from, to string) error {
	now := time.Now()
	for name, text := range map[string]string{"from": from, "to": to} {
		when, err := moment(text, now)
		if err != nil {
			return usage(cmd, "--%s: %w", name, err)
		}
		q.Set(name, when)
	}
	return nil
}

// differences returns the pages of a comparison together.
func differences(ctx context.Context, t *target, q url.Values) (*history.Differences, error) {
	var all *history.Differences
	q.Set("limit", "500")
	q.Del("continue")
	err := eachPage(ctx, t, "diff", q, func(page *history.Differences) (string, bool) {
		if all == nil {
			all = page
		} else {
			all.Items = append(all.Items, page.Items...)
		}
		return page.Continue, true
	})
	if all != nil {
		all.Continue = ""
	}
	return all, err
}

func (p *past) printDifferences(answer *history.Differences) error {
	if p.output != "table" {
		return p.print(p.s.out, answer, nil)
	}
	c := colours(p.s.out)
	fmt.Fprintf(p.s.err, "From revision %d to %d:\n", answer.From, answer.To)
	for i := range answer.Items {
		item := &answer.Items[i]
		line := objectName(&item.Ref)
		switch item.Verb {
		case "create":
			line = c.green("+ " + line)
		case "delete":
			line = c.red("- " + line)
		default:
			line = c.bold("~ " + line)
		}
		if _, err := fmt.Fprintln(p.s.out, line); err != nil {
			return err
		}
		if item.Error != "" {
			fmt.Fprintf(p.s.out, "    cannot be shown: %s\n", clean(item.Error))
		}
		c.fields(p.s.out, &item.Ref, item.Fields, item.More)
	}
	if len(answer.Items) == 0 {
		fmt.Fprintln(p.s.err, "There is no difference.")
	}
	noteHidden(p.s.err, answer.Hidden)
	return nil
}
