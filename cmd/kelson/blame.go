package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/history"
)

// exactMap is a JSON object whose numbers keep their digits.
type exactMap map[string]any

// UnmarshalJSON implements json.Unmarshaler.
func (m *exactMap) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode((*map[string]any)(m))
}

func newBlame(s streams) *cobra.Command {
	p := &past{s: s}
	var at string
	cmd := &cobra.Command{
		Use:   "blame KIND NAME",
		Short: "Show who set each field of an object, and when",
		Long: `Show an object as YAML, each line with the revision and the time at which it was last set, and
with who owns the field (managedFields). What was set before the history that is kept has
"<" before the oldest revision, and the time of its owner.`,
		Example: `  kelson blame deployment web -n shop
  kelson blame configmap web --at 14:05 -o json`,
		Args: kindAndName(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, q, err := p.questionAt(cmd, args, "at", at, "at")
			if err != nil {
				return err
			}
			var object exactMap
			if err := t.get(cmd.Context(), "at", q, &object); err != nil {
				return err
			}
			q.Del("at")
			changes, err := lastChanges(cmd.Context(), t, q, 5000)
			if err != nil {
				return err
			}
			lines, err := blame(object, changes)
			if err != nil {
				return err
			}
			return p.print(p.s.out, lines, func(w io.Writer) error {
				for _, l := range lines {
					revision := fmt.Sprint(l.Revision)
					switch {
					case l.Revision == 0:
						revision = "-"
					case l.Before:
						revision = "<" + revision
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", revision, localTime(l.Time, l.Before), clean(strings.Join(l.Owners, ",")), clean(l.Text))
				}
				return nil
			})
		},
	}
	p.bind(cmd.Flags())
	cmd.Flags().StringVar(&at, "at", "", "`moment` of the object: a time (14:05), a revision (81234), or how long ago (10m)")
	return cmd
}

// blameLine is a line of an object in YAML.
type blameLine struct {
	Text string `json:"text"`
	Path string `json:"path"`
	// Revision and Time are those of the last change; if Before is set, it was before the
	// history that is kept, which begins at Revision.
	Revision int64      `json:"revision,omitempty"`
	Before   bool       `json:"before,omitempty"`
	Time     *time.Time `json:"time,omitempty"`
	Owners   []string   `json:"owners,omitempty"`
}

// blame writes an object as lines of YAML, and finds out about each who set it when.
func blame(object map[string]any, changes *history.Changes) ([]blameLine, error) {
	owners, err := fieldOwners(object)
	if err != nil {
		return nil, err
	}
	meta, _ := object["metadata"].(map[string]any)
	revision := int64(0)
	fmt.Sscan(fmt.Sprint(meta["resourceVersion"]), &revision)
	delete(meta, "managedFields")
	var w lineWriter
	w.maps("", "", object)
	for i := range w.lines {
		l := &w.lines[i]
		if l.Path == "" {
			continue
		}
		entry := owners.find(l.Path)
		for _, e := range entry {
			l.Owners = append(l.Owners, e.Manager)
			if e.Time != nil && (l.Time == nil || e.Time.After(*l.Time)) {
				l.Time = &e.Time.Time
			}
		}
		l.Revision, l.Before = changes.Kept.Oldest, true
		for i := len(changes.Changes) - 1; i >= 0; i-- {
			c := &changes.Changes[i]
			if c.Revision <= revision && touches(c, l.Path) {
				l.Revision, l.Before, l.Time = c.Revision, false, c.Time
				break
			}
		}
	}
	return w.lines, nil
}

// touches reports whether a change has set a path, or something below it.
func touches(c *history.Change, path string) bool {
	if c.Verb == "create" {
		return true
	}
	return slices.ContainsFunc(c.Fields, func(f history.FieldChange) bool {
		return f.New != nil && (isBelow(f.Path, path) || isBelow(path, f.Path))
	})
}

// isBelow reports whether a path is another one or below it.
func isBelow(path, of string) bool {
	rest, ok := strings.CutPrefix(path, of)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// ownership is which entries of managedFields own a path.
type ownership map[string][]*metav1.ManagedFieldsEntry

// find returns the owners of a path, or of the nearest field above it that has some.
func (o ownership) find(path string) []*metav1.ManagedFieldsEntry {
	for path != "" {
		if entries := o[path]; len(entries) > 0 {
			return entries
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return nil
		}
		path = path[:cut]
	}
	return nil
}

// fieldOwners reads managedFields beside the object whose fields they name.
func fieldOwners(object map[string]any) (ownership, error) {
	var meta struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &meta)
	}
	if err != nil {
		return nil, err
	}
	all := ownership{}
	for i := range meta.Metadata.ManagedFields {
		entry := &meta.Metadata.ManagedFields[i]
		var set map[string]any
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		all.add(entry, "", set, object)
	}
	return all, nil
}

// add notes an entry as the owner of the fields of a set, which are below a path.
func (o ownership) add(entry *metav1.ManagedFieldsEntry, path string, set map[string]any, v any) {
	if len(set) == 0 {
		if path != "" {
			o[path] = append(o[path], entry)
		}
		return
	}
	for name, below := range set {
		below, _ := below.(map[string]any)
		kind, rest, _ := strings.Cut(name, ":")
		switch v := v.(type) {
		case map[string]any:
			if child, ok := v[rest]; ok && kind == "f" {
				o.add(entry, history.Join(path, rest), below, child)
			}
		case []any:
			for i, item := range v {
				if itemMatches(kind, rest, item, i) {
					o.add(entry, path+"["+history.ItemName(item, history.ListKey(v), i)+"]", below, item)
				}
			}
		}
	}
}

// itemMatches reports whether a name in managedFields is that of an item of a list: by the
// fields of its key, by its value, or by its place.
func itemMatches(kind, rest string, item any, i int) bool {
	switch kind {
	case "k":
		var key map[string]any
		m, ok := item.(map[string]any)
		if !ok || json.Unmarshal([]byte(rest), &key) != nil {
			return false
		}
		for name, want := range key {
			if fmt.Sprint(m[name]) != fmt.Sprint(want) {
				return false
			}
		}
		return true
	case "v":
		text, err := json.Marshal(item)
		return err == nil && string(text) == rest
	case "i":
		return rest == fmt.Sprint(i)
	}
	return false
}

// lineWriter writes an object as YAML, and knows the path of every line.
type lineWriter struct{ lines []blameLine }

func (w *lineWriter) add(path, text string) {
	w.lines = append(w.lines, blameLine{Text: text, Path: path})
}

// maps writes the fields of a map. The first line has first instead of the indent.
func (w *lineWriter) maps(path, indent string, m map[string]any) {
	keys := slices.Sorted(maps.Keys(m))
	if path == "" { // as people write it
		slices.SortStableFunc(keys, func(a, b string) int { return rank(a) - rank(b) })
	}
	for _, key := range keys {
		w.value(history.Join(path, key), indent, yamlText(key)+":", m[key])
	}
}

func rank(key string) int {
	if i := slices.Index([]string{"apiVersion", "kind", "metadata"}, key); i >= 0 {
		return i
	}
	return 3
}

// value writes a value behind a prefix: on the same line, or below it.
func (w *lineWriter) value(path, indent, prefix string, v any) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) > 0 {
			w.add(path, indent+prefix)
			w.maps(path, indent+"  ", v)
			return
		}
		w.add(path, indent+prefix+" {}")
	case []any:
		if len(v) == 0 {
			w.add(path, indent+prefix+" []")
			return
		}
		w.add(path, indent+prefix)
		w.list(path, indent, v)
	default:
		w.add(path, indent+prefix+" "+yamlText(v))
	}
}

func (w *lineWriter) list(path, indent string, list []any) {
	key := history.ListKey(list)
	for i, item := range list {
		at, begin := path+"["+history.ItemName(item, key, i)+"]", len(w.lines)
		switch item := item.(type) {
		case map[string]any:
			w.maps(at, indent+"  ", item)
		case []any:
			w.list(at, indent+"  ", item)
		default:
			w.add(at, indent+"  "+yamlText(item))
		}
		if begin == len(w.lines) {
			w.add(at, indent+"  {}")
		}
		w.lines[begin].Text = indent + "- " + strings.TrimPrefix(w.lines[begin].Text, indent+"  ")
	}
}

// yamlText writes a scalar on one line: a string that could be read as something else is
// in quotes.
func yamlText(v any) string {
	text, isString := v.(string)
	if !isString {
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(b)
	}
	plain := text != "" && strings.IndexFunc(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./", r))
	}) < 0 && text[0] != '-' && text[0] != '.' && (text[0] < '0' || text[0] > '9')
	switch strings.ToLower(text) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		plain = false
	}
	if plain {
		return text
	}
	b, _ := json.Marshal(text)
	return string(b)
}
