package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/history"
)

func newUndo(s streams) *cobra.Command {
	u := &undo{past: past{s: s}, uids: map[types.UID]types.UID{}, owners: map[types.UID]bool{}}
	var to string
	cmd := &cobra.Command{
		Use:   "undo [KIND [NAME]] --to MOMENT",
		Short: "Bring an object or a namespace back to what it was",
		Long: `Bring an object, all objects of a kind, or everything in a namespace back to what it was at a
moment. It first shows what it would do, and asks. It writes through the API as you, with
your rights and through admission, each write after a dry run. A deleted namespace comes back
with its objects; what cannot come back is listed. Status is left to controllers.`,
		Example: `  kelson undo configmap web --to 14:05
  kelson undo -n shop --to 10m                    # also if the namespace was deleted
  kelson undo deployments -n shop -l app=web --to 81234 --yes
  kelson undo -n shop --to 14:05 --dry-run        # only show what it would do`,
		Args: kindAndName(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := u.connect()
			if err != nil {
				return usageError{err}
			}
			switch {
			case to == "":
				return usage(cmd, "--to is missing: the moment to go back to")
			case len(args) == 0 && !cmd.Flags().Changed("namespace") && !u.all:
				return usage(cmd, "give a KIND and a NAME, or a namespace with -n, or -A")
			case u.output != "table" && !u.yes && !u.only:
				return usage(cmd, "--output=%s needs --yes or --dry-run, since nobody is asked then", u.output)
			}
			q, err := u.question(t, args)
			if err != nil {
				return err
			}
			if err := setMoments(cmd, q, "now", to); err != nil {
				return err
			}
			u.t, u.q = t, q
			return u.run(cmd.Context(), len(args) == 0 && !u.all)
		},
	}
	u.bindScope(cmd)
	cmd.Flags().StringVar(&to, "to", "", "`moment` to go back to: a time (14:05), a revision (81234), or how long ago (10m)")
	cmd.Flags().BoolVarP(&u.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&u.only, "dry-run", false, "only show what it would do")
	return cmd
}

// undo brings objects back to what they were.
type undo struct {
	past
	yes, only bool
	t         *target
	q         url.Values
	mu        sync.Mutex // guards uids and owners while steps are done
	// uids maps the UIDs that objects had to those that they have now.
	uids map[types.UID]types.UID
	// owners tells of owners that were looked up whether they are there.
	owners map[types.UID]bool
}

// undoStep is a write that brings one object back.
type undoStep struct {
	history.Ref
	// Action is create, update or delete; skip for what cannot come back.
	Action string `json:"action"`
	// Conflicts are the writers, besides the first, whose later changes are undone too.
	Conflicts []string `json:"conflicts,omitempty"`
	Notes     []string `json:"notes,omitempty"`
	// Result is done, would be done, or failed.
	Result string `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`

	fields []history.FieldChange
	more   bool // there are fields that are not in fields
	// ownStatus: status is written apart from the rest, by who makes it true.
	ownStatus bool
	// late: it is written after all others, since an address or a port of the service, or of one that
	// owns the object, is taken.
	late     atomic.Bool
	rank     int                        // steps of a lower one come first
	was, now *unstructured.Unstructured // as it was, and as it is; nil if it was not or is not
}

// undoManager is the field manager of the writes.
const undoManager = "kelson-undo"

// run makes the plan, shows it, asks, and writes.
func (u *undo) run(ctx context.Context, wholeNamespace bool) error {
	if wholeNamespace {
		if err := u.awaitEndOf(ctx, u.t.namespace); err != nil {
			return err
		}
	}
	answer, err := differences(ctx, u.t, withWriters(u.q))
	if err != nil {
		return err
	}
	steps, err := u.plan(answer)
	if err != nil {
		return err
	}
	if u.output == "table" {
		if err := u.printPlan(steps, answer.Hidden); err != nil || len(steps) == 0 {
			return err
		}
	}
	if allSkipped(steps) {
		return u.refuse(answer, steps)
	}
	if !u.only && !u.yes {
		fmt.Fprint(u.s.err, "Undo this? [y/N] ")
		line, _ := bufio.NewReader(u.s.in).ReadString('\n')
		if word := strings.ToLower(strings.TrimSpace(line)); word != "y" && word != "yes" {
			return errors.New("nothing was done")
		}
	}
	failed := u.apply(ctx, steps)
	// Objects of a definition that has come back can be read only now.
	if slices.ContainsFunc(steps, func(s *undoStep) bool { return s.first() && s.Resource != "namespaces" && s.Result == "done" }) {
		more, err := u.planAgain(ctx, steps)
		if err != nil {
			return err
		}
		failed += u.apply(ctx, more)
		steps = append(steps, more...)
	}
	if u.output != "table" {
		if err := u.printSteps(answer, steps); err != nil {
			return err
		}
	} else {
		u.printResult(steps)
	}
	if failed > 0 {
		return errShown
	}
	return nil
}

// allSkipped reports whether there is something to undo, and nothing of it can come back.
func allSkipped(steps []*undoStep) bool {
	return len(steps) > 0 && !slices.ContainsFunc(steps, func(s *undoStep) bool { return s.Action != "skip" })
}

// refuse says that nothing of a plan can be done, without a question.
func (u *undo) refuse(answer *history.Differences, steps []*undoStep) error {
	if u.output != "table" {
		if err := u.printSteps(answer, steps); err != nil {
			return err
		}
	}
	return fmt.Errorf("nothing was done: none of %d objects can come back", len(steps))
}

// printSteps prints a plan and what has become of it as a document.
func (u *undo) printSteps(answer *history.Differences, steps []*undoStep) error {
	return u.print(u.s.out, map[string]any{"from": answer.From, "to": answer.To, "steps": steps, "hidden": answer.Hidden}, nil)
}

// planAgain returns the steps that were not there when the first plan was made.
func (u *undo) planAgain(ctx context.Context, known []*undoStep) ([]*undoStep, error) {
	answer, err := differences(ctx, u.t, u.q)
	if err != nil {
		return nil, err
	}
	steps, err := u.plan(answer)
	return slices.DeleteFunc(steps, func(s *undoStep) bool {
		return s.Action == "skip" || slices.ContainsFunc(known, func(k *undoStep) bool { return k.Ref == s.Ref })
	}), err
}

func withWriters(q url.Values) url.Values {
	q.Set("writers", "true")
	return q
}

// namespaceEnd is how long undo waits for a namespace that is being deleted.
const namespaceEnd = 2 * time.Minute

// awaitEndOf waits for a namespace that is being deleted to be gone: nothing can be made in
// it before.
func (u *undo) awaitEndOf(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, namespaceEnd)
	defer cancel()
	ref := &history.Ref{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: name}
	for said := false; ; {
		now, err := u.send(ctx, http.MethodGet, ref, nil, nil)
		if err != nil || now.GetDeletionTimestamp() == nil {
			return nil // or the plan says what is wrong
		}
		if !said {
			fmt.Fprintf(u.s.err, "Waiting for the end of namespace %s, which is being deleted.\n", clean(name))
			said = true
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("namespace %s is still being deleted; try again when it is gone", name)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (u *undo) printPlan(steps []*undoStep, hidden []string) error {
	if len(steps) == 0 {
		fmt.Fprintln(u.s.err, "There is nothing to undo.")
		noteHidden(u.s.err, hidden)
		return nil
	}
	counts := map[string]int{}
	err := u.print(u.s.out, nil, func(w io.Writer) error {
		fmt.Fprintln(w, "ACTION\tOBJECT\tALSO UNDOES CHANGES BY\tNOTE")
		for _, s := range steps {
			counts[s.Action]++
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Action, objectName(&s.Ref), clean(strings.Join(s.Conflicts, ",")), clean(strings.Join(s.Notes, "; ")))
		}
		return nil
	})
	fmt.Fprintf(u.s.err, "%d to create, %d to update, %d to delete, %d cannot come back.\n", counts["create"], counts["update"], counts["delete"], counts["skip"])
	noteHidden(u.s.err, hidden)
	return err
}

func (u *undo) printResult(steps []*undoStep) {
	counts := map[string]int{}
	for _, s := range steps {
		counts[s.Result]++
		for _, note := range s.Notes {
			if s.Action != "skip" {
				fmt.Fprintf(u.s.err, "%s: %s\n", objectName(&s.Ref), clean(note))
			}
		}
		if s.Error != "" {
			fmt.Fprintf(u.s.err, "%s: failed to %s: %s\n", objectName(&s.Ref), s.Action, clean(s.Error))
		}
	}
	if u.only {
		fmt.Fprintf(u.s.err, "%d would be done, %d would fail.\n", counts["would be done"], counts["failed"])
		return
	}
	fmt.Fprintf(u.s.err, "%d done, %d failed.\n", counts["done"], counts["failed"])
}
