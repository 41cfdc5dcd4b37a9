package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// FieldChange is a field that differs between two versions of an object. Old or New is
// absent if the field is not there.
type FieldChange struct {
	Path string          `json:"path"`
	Old  json.RawMessage `json:"old,omitempty"`
	New  json.RawMessage `json:"new,omitempty"`
}

const (
	// maxFields is how many fields of one change are shown.
	maxFields = 2000
	// maxValue is how many bytes of a value are shown; of a longer one its size.
	maxValue = 16 << 10
	// maxPath is how long a path is below which no fields are told apart.
	maxPath = 1 << 10
	// maxFieldBytes bounds paths and values of one change.
	maxFieldBytes = 512 << 10
)

// sizeOf is how many bytes fields have.
func sizeOf(fields []FieldChange) (n int) {
	for i := range fields {
		n += fields[i].size()
	}
	return n
}

func (f *FieldChange) size() int { return len(f.Path) + len(f.Old) + len(f.New) }

// compare returns the fields in which two objects differ, in the order of their paths,
// without those that every write changes. more says that there are others.
func compare(before, after map[string]any) (all []FieldChange, more bool) {
	c := comparison{}
	c.maps("", before, after)
	return c.all, c.more
}

type comparison struct {
	all   []FieldChange
	bytes int // of all
	more  bool
}

// ignored are the fields that every write changes.
func ignored(path string) bool {
	return path == "metadata.managedFields" || path == "metadata.resourceVersion" || path == "metadata.generation"
}

func (c *comparison) add(path string, before, after any) {
	if len(c.all) == maxFields || c.bytes > maxFieldBytes {
		c.more = true
		return
	}
	f := FieldChange{Path: path, Old: shorten(before), New: shorten(after)}
	c.all, c.bytes = append(c.all, f), c.bytes+f.size()
}

// missing is a field that is not there.
type missing struct{}

func shorten(v any) json.RawMessage {
	if v == (any)(missing{}) {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil || len(b) > maxValue {
		b, _ = json.Marshal(fmt.Sprintf("(%d bytes)", len(b)))
	}
	return b
}

func (c *comparison) maps(path string, before, after map[string]any) {
	keys := map[string]bool{}
	for key := range before {
		keys[key] = true
	}
	for key := range after {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		old, had := before[key]
		now, has := after[key]
		c.field(Join(path, key), old, had, now, has)
	}
}

func (c *comparison) field(path string, before any, had bool, after any, has bool) {
	switch {
	case ignored(path) || had && has && reflect.DeepEqual(before, after):
		return
	case !had:
		c.leaves(path, after, func(path string, v any) { c.add(path, missing{}, v) })
		return
	case !has:
		c.leaves(path, before, func(path string, v any) { c.add(path, v, missing{}) })
		return
	case c.more || len(path) > maxPath:
		c.add(path, before, after)
		return
	}
	switch old := before.(type) {
	case map[string]any:
		if now, ok := after.(map[string]any); ok {
			c.maps(path, old, now)
			return
		}
	case []any:
		if now, ok := after.([]any); ok {
			c.lists(path, old, now)
			return
		}
	}
	c.add(path, before, after)
}

// lists compares lists of objects by the field that names their items, and others by their
// place.
func (c *comparison) lists(path string, before, after []any) {
	key := ListKey(append(slices.Clone(before), after...))
	old, oldKeys := index(before, key)
	now, nowKeys := index(after, key)
	for _, item := range oldKeys {
		v, has := now[item]
		c.field(path+"["+item+"]", old[item], true, v, has)
	}
	for _, item := range nowKeys {
		if _, had := old[item]; !had {
			c.field(path+"["+item+"]", nil, false, now[item], true)
		}
	}
}

// ListKey returns the field that names the items of a list of maps; "" if there is none.
func ListKey(list []any) string {
	for _, key := range []string{"name", "key", "type", "uid", "ip", "containerPort", "port"} {
		if all := len(list) > 0; all {
			for _, item := range list {
				m, ok := item.(map[string]any)
				if ok {
					switch m[key].(type) {
					case string, json.Number, float64, int64:
					default:
						ok = false
					}
				}
				all = all && ok
			}
			if all {
				return key
			}
		}
	}
	return ""
}

// index returns the items of a list by their names in paths, and these in order. Items of
// the same name are named by their place.
func index(list []any, key string) (map[string]any, []string) {
	items, names := make(map[string]any, len(list)), make([]string, 0, len(list))
	for i, item := range list {
		name := ItemName(item, key, i)
		if _, twice := items[name]; twice {
			name = strconv.Itoa(i)
		}
		items[name] = item
		names = append(names, name)
	}
	return items, names
}

// ItemName names an item of a list in a path: by its key, or by its place.
func ItemName(item any, key string, i int) string {
	if m, ok := item.(map[string]any); ok && key != "" {
		return key + "=" + fmt.Sprint(m[key])
	}
	return strconv.Itoa(i)
}

// leaves calls f for what is not a map with fields, below and at a path.
func (c *comparison) leaves(path string, v any, f func(path string, v any)) {
	if ignored(path) {
		return
	}
	m, ok := v.(map[string]any)
	if !ok || len(m) == 0 || c.more || len(path) > maxPath {
		f(path, v)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		c.leaves(Join(path, key), m[key], f)
	}
}

// Join adds the name of a field to a path. A name that has more than letters, digits and
// dashes is in quotes.
func Join(path, key string) string {
	plain := key != "" && strings.IndexFunc(key, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '$')
	}) < 0
	switch {
	case !plain:
		return path + "[" + strconv.Quote(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}
