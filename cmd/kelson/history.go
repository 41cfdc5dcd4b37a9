package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/apikeel/kelson/history"
)

func newHistory(s streams) *cobra.Command {
	p := &past{s: s}
	var since string
	var limit int
	var watch bool
	cmd := &cobra.Command{
		Use:   "history [KIND [NAME]]",
		Short: "Show what happened to an object or in a namespace",
		Long: `Show the changes of an object, of a kind, or of everything in a namespace: when, by whom,
and which fields. Deleted objects are there too. How far it goes back depends on the store:
'kelson serve --history 24h' keeps versions for a day.`,
		Example: `  kelson history configmap web
  kelson history deployments -n shop --since 1h
  kelson history -n shop --since 10m              # everything in a namespace, in order
  kelson history -n shop --watch`,
		Args: kindAndName(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, q, err := p.questionAt(cmd, args, "since", since, "from")
			if err != nil {
				return err
			}
			if limit < 1 {
				return usage(cmd, "--limit is a number above 0")
			}
			return p.showHistory(cmd.Context(), t, q, limit, watch)
		},
	}
	p.bindScope(cmd)
	cmd.Flags().StringVar(&since, "since", "", "first `moment`: a time, a revision, or how long ago (10m)")
	cmd.Flags().IntVar(&limit, "limit", 200, "show at most so many changes, the newest")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on showing changes when they happen")
	return cmd
}

// watchEvery is how often history --watch looks for changes.
const watchEvery = time.Second

// showHistory prints the last changes, oldest first, and goes on if it watches.
func (p *past) showHistory(ctx context.Context, t *target, q url.Values, limit int, watch bool) error {
	answer, err := lastChanges(ctx, t, q, limit)
	if err != nil {
		return err
	}
	if err := p.printChanges(answer, true); err != nil || !watch {
		return err
	}
	q.Del("from")
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
		q.Del("continue")
		q.Set("after", strconv.FormatInt(answer.Kept.Newest, 10))
		next, err := lastChanges(ctx, t, q, maxPages)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if answer = next; len(answer.Changes) > 0 {
			if err := p.printChanges(answer, false); err != nil {
				return err
			}
		}
	}
}

// lastChanges returns the newest changes, oldest first.
func lastChanges(ctx context.Context, t *target, q url.Values, limit int) (*history.Changes, error) {
	var all *history.Changes
	q.Set("limit", strconv.Itoa(min(limit, 500)))
	err := eachPage(ctx, t, "history", q, func(page *history.Changes) (string, bool) {
		if all == nil {
			all = page
		} else {
			all.Changes, all.Continue = append(all.Changes, page.Changes...), page.Continue
		}
		return page.Continue, len(all.Changes) < limit
	})
	if err != nil {
		return nil, err
	}
	all.Changes = all.Changes[:min(len(all.Changes), limit)]
	slices.Reverse(all.Changes)
	return all, nil
}

func (p *past) printChanges(answer *history.Changes, first bool) error {
	if p.output != "table" {
		return p.print(p.s.out, answer, nil)
	}
	c := colours(p.s.out)
	for i := range answer.Changes {
		ch := &answer.Changes[i]
		line := fmt.Sprintf("%-8d  %-20s  %-6s  %s  by %s", ch.Revision, localTime(ch.Time, ch.Estimated), ch.Verb, objectName(&ch.Ref), author(ch))
		if _, err := fmt.Fprintln(p.s.out, c.bold(line)); err != nil {
			return err
		}
		if ch.Error != "" {
			fmt.Fprintf(p.s.out, "    cannot be shown: %s\n", clean(ch.Error))
		}
		c.fields(p.s.out, &ch.Ref, ch.Fields, ch.More)
	}
	if first {
		printKept(p.s.err, &answer.Kept, len(answer.Changes))
		noteHidden(p.s.err, answer.Hidden)
	}
	return nil
}

// printKept tells how far back history goes.
func printKept(out io.Writer, k *history.Kept, n int) {
	if n == 0 {
		fmt.Fprintln(out, "Nothing has changed in the history that is kept.")
	}
	if k.Oldest > 0 {
		fmt.Fprintf(out, "History begins at revision %d", k.Oldest)
		if k.Since != nil {
			fmt.Fprintf(out, ", %s", k.Since.Local().Format(time.DateTime))
		}
		fmt.Fprintln(out, ".")
	}
	if k.Note != "" {
		fmt.Fprintln(out, "Note: "+clean(k.Note)+".")
	}
}
