// Package replay repeats exchanges that were recorded from kube-apiserver
// v1.37.1 and compares the answers.
//
// A [Recording] is a few steps, each a request and its answer, that need nothing
// but a name of their own. {{ns}} in a request stands for that name,
// {{2:metadata.uid}} for a value out of the answer to step 2, and {{repeat 5 x}}
// for xxxxx. In answers, values that differ from run to run are <uid>, <rv>,
// <time> and so on. testdata has the recordings as text, see [Archive]; a
// [Player] sends them to a server. The command record, one folder down, writes
// the answers of a kube-apiserver into the archives; docs/contributing/recording.md
// is the recipe.
package replay

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Recording is a short scenario.
type Recording struct {
	ID string
	// Serial ones look at all objects of a kind, so that there may be no others.
	Serial bool
	Steps  []Step
}

// Step is a request and what was answered.
type Step struct {
	Method, Path string
	// Headers of the request. An Authorization of "" means no credentials.
	Headers map[string]string
	// Body is JSON, or a string with text of any kind.
	Body json.RawMessage
	// BodyFrom takes the answer to a step as the body. Body then has the values
	// to change in it by JSON pointer; null removes one.
	BodyFrom *int
	// BodyEncoding is base64 if Body is binary.
	BodyEncoding string
	// Watch says that the answer is a stream of events.
	Watch bool
	// Ordered says that problems are in an order that is always the same.
	Ordered bool
	// Brief steps only prepare others: their status is all that counts.
	Brief bool
	// RetryUntil and RetryMatch say to ask again until an answer has this
	// status and contains this text.
	RetryUntil int
	RetryMatch string

	// Status is 0 if the answer is still to be recorded.
	Status int
	// Own says that the answer is one of the server under test, for want of a
	// reference that could be asked.
	Own             bool
	ResponseHeaders map[string]any
	ResponseBody    json.RawMessage
}

// needsNamespace tells whether a namespace of the recording's name must exist.
func (r *Recording) needsNamespace() bool {
	return slices.ContainsFunc(r.Steps, func(s Step) bool {
		return strings.Contains(s.Path+"/", "/namespaces/{{ns}}/")
	})
}

// harmless tells whether the recording leaves nothing behind, so that others
// like it can run in the same namespace.
func (r *Recording) harmless() bool {
	return !slices.ContainsFunc(r.Steps, func(s Step) bool {
		return s.Method != "POST" || !strings.Contains(s.Path, "dryRun=All")
	})
}

// placeholders fills in what the text of a request leaves open.
type placeholders struct {
	name    string
	answers []any
}

var (
	valuePattern  = regexp.MustCompile(`\{\{(\d+):([^{}]+)\}\}`)
	repeatPattern = regexp.MustCompile(`\{\{repeat (\d+) (.*?)\}\}`)
)

func (p *placeholders) fill(text string) (_ string, err error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	text = strings.ReplaceAll(text, "{{ns}}", p.name)
	text = valuePattern.ReplaceAllStringFunc(text, func(found string) string {
		part := valuePattern.FindStringSubmatch(found)
		n, _ := strconv.Atoi(part[1])
		if n < len(p.answers) {
			if v := find(p.answers[n], strings.Split(part[2], ".")...); v != nil {
				if s, ok := v.(string); ok {
					return s
				}
				return encode(v)
			}
		}
		err = fmt.Errorf("the answers so far have nothing for %s", found)
		return found
	})
	return repeatPattern.ReplaceAllStringFunc(text, func(found string) string {
		part := repeatPattern.FindStringSubmatch(found)
		n, _ := strconv.Atoi(part[1])
		return strings.Repeat(part[2], n)
	}), err
}

// body returns the body of a request.
func (p *placeholders) body(s *Step) (string, error) {
	if s.BodyFrom != nil {
		return p.changed(s)
	}
	text := string(s.Body)
	if strings.HasPrefix(text, `"`) {
		if err := json.Unmarshal(s.Body, &text); err != nil {
			return "", err
		}
	}
	if s.BodyEncoding == "base64" {
		raw, err := base64.StdEncoding.DecodeString(text)
		return string(raw), err
	}
	return p.fill(text)
}

// changed returns an earlier answer with some changes.
func (p *placeholders) changed(s *Step) (string, error) {
	if *s.BodyFrom >= len(p.answers) {
		return "", fmt.Errorf("the body is to be the answer to step %d, which is still to come", *s.BodyFrom)
	}
	text, err := p.fill(string(s.Body))
	if err != nil {
		return "", err
	}
	obj := decode(encode(p.answers[*s.BodyFrom]))
	changes, _ := decode(text).(map[string]any)
	for _, pointer := range sortedKeys(changes) {
		path := strings.Split(pointer, "/")[1:]
		for i := range path {
			path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(path[i])
		}
		if !set(obj, path, changes[pointer]) {
			return "", fmt.Errorf("step %d has no place for %s", *s.BodyFrom, pointer)
		}
	}
	return encode(obj), nil
}

// find follows a path of keys and indices; nil is what is not there.
func find(v any, path ...string) any {
	for _, key := range path {
		switch in := v.(type) {
		case map[string]any:
			v = in[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// set changes the value at a path, and makes the objects on the way to it. A nil
// value removes what is there.
func set(v any, path []string, value any) bool {
	key, last := path[0], len(path) == 1
	switch in := v.(type) {
	case map[string]any:
		switch {
		case last && value == nil:
			delete(in, key)
			return true
		case last:
			in[key] = value
			return true
		case in[key] == nil:
			in[key] = map[string]any{}
		}
		return set(in[key], path[1:], value)
	case []any:
		i, err := strconv.Atoi(key)
		if err != nil || i < 0 || i >= len(in) {
			return false
		}
		if last {
			in[i] = value
			return true
		}
		return set(in[i], path[1:], value)
	}
	return false
}

// decode parses JSON; nil is what is none. Numbers stay as they are written.
func decode(text string) (v any) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil || d.More() {
		return nil
	}
	return v
}

func encode(v any) string {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // everything here came from JSON
	}
	return strings.TrimSpace(out.String())
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
