package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/apikeel/kelson/history"
)

// This file has what the commands share that ask for the past: history, get, blame, diff
// and undo.

// maxPages bounds how many pages a command asks for.
const maxPages = 10_000

// past is a question about the past.
type past struct {
	ask
	all      bool // namespaces
	selector string
	s        streams
}

func (p *past) bindScope(cmd *cobra.Command) {
	p.bind(cmd.Flags())
	cmd.Flags().BoolVarP(&p.all, "all-namespaces", "A", false, "all namespaces")
	cmd.Flags().StringVarP(&p.selector, "selector", "l", "", "labels that objects must have (app=web)")
	cmd.Flags().SortFlags = false
}

// question returns the parameters of a question about a kind and a name, both of which may
// be missing.
func (p *past) question(t *target, args []string) (url.Values, error) {
	q := url.Values{}
	if p.selector != "" {
		q.Set("labelSelector", p.selector)
	}
	if len(args) == 0 {
		if !p.all {
			q.Set("namespace", t.namespace)
		}
		return q, nil
	}
	if kind, name, ok := strings.Cut(args[0], "/"); ok && len(args) == 1 {
		args = []string{kind, name}
	}
	m, err := t.resource(args[0])
	if err != nil {
		return nil, err
	}
	q.Set("group", m.Resource.Group)
	q.Set("version", m.Resource.Version)
	q.Set("resource", m.Resource.Resource)
	if m.Scope.Name() == meta.RESTScopeNameNamespace && !p.all {
		q.Set("namespace", t.namespace)
	}
	if len(args) > 1 {
		q.Set("name", args[1])
	}
	return q, nil
}

// questionAt connects to the server, and returns the parameters of a question. The moment
// that a flag names, if it is given, is one of them.
func (p *past) questionAt(cmd *cobra.Command, args []string, flag, text, parameter string) (*target, url.Values, error) {
	t, err := p.connect()
	if err != nil {
		return nil, nil, usageError{err}
	}
	when, err := moment(text, time.Now())
	if err != nil {
		return nil, nil, usage(cmd, "--%s: %w", flag, err)
	}
	q, err := p.question(t, args)
	if err == nil && when != "" {
		q.Set(parameter, when)
	}
	return t, q, err
}

// kindAndName allows a kind and a name, of which the first least are required.
func kindAndName(least int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		n := len(args)
		if n == 1 && strings.Contains(args[0], "/") {
			n = 2
		}
		switch {
		case n > 2:
			return usage(cmd, "give one KIND and one NAME, not %d arguments", n)
		case n < least && least == 1:
			return usage(cmd, "give a KIND, such as configmaps")
		case n < least:
			return usage(cmd, "give a KIND and a NAME, such as configmap web")
		}
		return nil
	}
}

// moment returns a moment as the server wants it: a revision, or a time. A person may also
// write a time of today (14:05), of a day (2026-05-01 14:05), or how long ago it was (10m).
func moment(text string, now time.Time) (string, error) {
	if text == "" || text == "now" {
		return text, nil
	}
	if _, err := strconv.ParseUint(text, 10, 62); err == nil {
		return text, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago).Format(time.RFC3339Nano), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.Format(time.RFC3339Nano), nil
	}
	for _, layout := range []string{time.TimeOnly, "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if at.After(now) {
				at = at.AddDate(0, 0, -1)
			}
			return at.Format(time.RFC3339Nano), nil
		}
	}
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t.Format(time.RFC3339Nano), nil
		}
	}
	return "", fmt.Errorf("%q is not a moment: give a revision (812), a time (14:05, 2026-05-01T14:05:00Z), or how long ago it was (10m)", text)
}

// palette colours text on a terminal, and leaves it as it is elsewhere.
type palette bool

// colours returns the palette for an output.
func colours(out io.Writer) palette {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return palette(err == nil && info.Mode()&os.ModeCharDevice != 0)
}

func (p palette) paint(code, text string) string {
	if !p {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p palette) red(text string) string   { return p.paint("31", text) }
func (p palette) green(text string) string { return p.paint("32", text) }
func (p palette) bold(text string) string  { return p.paint("1", text) }

// fields prints changed fields as a diff.
func (p palette) fields(out io.Writer, ref *history.Ref, fields []history.FieldChange, more bool) {
	for _, f := range fields {
		before, after := value(ref, &f, f.Old), value(ref, &f, f.New)
		path := clean(f.Path)
		if f.Old != nil {
			fmt.Fprintln(out, p.red("    - "+path+": "+before))
		}
		if f.New != nil {
			fmt.Fprintln(out, p.green("    + "+path+": "+after))
		}
	}
	if more {
		fmt.Fprintln(out, "    (and more fields)")
	}
}

// value shows the value of a field. What is in secrets is not shown in tables.
func value(ref *history.Ref, f *history.FieldChange, v []byte) string {
	if ref.Group == "" && ref.Resource == "secrets" && (strings.HasPrefix(f.Path, "data") || strings.HasPrefix(f.Path, "stringData")) {
		return fmt.Sprintf("*** (%d bytes)", len(v))
	}
	return clean(string(v))
}

func managers(all []history.Manager) string {
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = m.Name
		if m.Subresource != "" {
			names[i] += "/" + m.Subresource
		}
	}
	if len(names) == 0 {
		return "-"
	}
	return clean(strings.Join(names, ","))
}

// author says who has made a change: the managers of its fields, and the user, as far as
// they are known.
func author(c *history.Change) string {
	switch {
	case c.User == "":
		return managers(c.Managers)
	case len(c.Managers) == 0:
		return "user " + clean(c.User)
	}
	return managers(c.Managers) + ", user " + clean(c.User)
}

func objectName(ref *history.Ref) string {
	name := ref.Resource
	if ref.Group != "" {
		name += "." + ref.Group
	}
	name += "/" + ref.Name
	if ref.Namespace != "" {
		name += " -n " + ref.Namespace
	}
	return clean(name)
}

func localTime(t *time.Time, estimated bool) string {
	switch {
	case t == nil:
		return "-"
	case estimated:
		return "~" + t.Local().Format(time.DateTime)
	}
	return t.Local().Format(time.DateTime)
}

// noteHidden tells which resources are not in an answer, since the user may not list them.
func noteHidden(out io.Writer, hidden []string) {
	if n := len(hidden); n > 0 {
		fmt.Fprintf(out, "Not shown, since you may not list them: %s\n", clean(strings.Join(hidden, ", ")))
	}
}

// eachPage asks for the pages of an answer until there are no more, or f returns false.
func eachPage[T any](ctx context.Context, t *target, page string, q url.Values, f func(*T) (token string, more bool)) error {
	for range maxPages {
		var answer T
		if err := t.get(ctx, page, q, &answer); err != nil {
			return err
		}
		token, more := f(&answer)
		if !more || token == "" {
			return nil
		}
		q.Set("continue", token)
	}
	return fmt.Errorf("the answer has more than %d pages; ask for less", maxPages)
}
