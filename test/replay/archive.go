package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Archive is a file of recordings. Its format is that of txtar: sections that begin with a
// line "-- name --". A step has two of them, named after its recording and its number:
//
//	-- machinery/accept:get-0/1/request --
//	GET /api/v1/namespaces/{{ns}}/configmaps/cm
//	Accept: application/json
//	@retry-until 200
//
//	-- machinery/accept:get-0/1/response --
//	200 OK
//	Audit-Id: <uid>
//	Content-Type: application/json
//
//	{"apiVersion": "v1", "data": {"a": "b"}, …
//
// A value of a request header may be quoted; "" for Authorization means no credentials.
// The head of a section ends with an empty line, which may be left out if there is no body.
// A body is JSON, laid out as layout does, whose spaces are dropped before it is sent. If it
// is a JSON string, its value is the body. Lines with an @ set fields of Step:
//
//	@brief, @watch, @ordered, @retry-until STATUS, @retry-match TEXT, @body-from STEP
//	@text         the body is text as it stands, without the last line feed
//	@base64       the body is binary
//	@serial       in step 0: the recording needs a server of its own
//	@own          in a response: the answer is one of the server under test
//
// A step without a response is one that is still to be recorded.
type Archive struct {
	Path string
	// Comment is the text before the first section.
	Comment    string
	Recordings []*Recording
}

// ReadArchives reads all archives in a folder.
func ReadArchives(dir string) (archives []*Archive, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no archives", dir)
	}
	for _, file := range files {
		a, readErr := ReadArchive(file)
		archives, err = append(archives, a), errors.Join(err, readErr)
	}
	return archives, err
}

// ReadArchive reads an archive.
func ReadArchive(path string) (*Archive, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	a, err := parseArchive(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s:%w", path, err)
	}
	a.Path = path
	return a, nil
}

// Write writes the archive to its file.
func (a *Archive) Write() error { return os.WriteFile(a.Path, []byte(a.Format()), 0o644) }

// parseArchive parses the text of an archive. Errors begin with the number of a line.
func parseArchive(text string) (*Archive, error) {
	a := &Archive{}
	var name string // of the section; "" is the comment
	begin, line := 0, 1
	end := func(at, lines int) error {
		if name == "" {
			a.Comment = text[:at]
		} else if err := a.addSection(name, text[begin:at]); err != nil {
			return fmt.Errorf("%d: %s: %w", line, name, err)
		}
		line = lines
		return nil
	}
	at, lines := 0, 0
	for l := range strings.Lines(text) {
		lines++
		if next := sectionName(l); next != "" {
			if err := end(at, lines); err != nil {
				return nil, err
			}
			name, begin = next, at+len(l)
		}
		at += len(l)
	}
	return a, end(at, lines)
}

// sectionName returns the name in a line that begins a section; other lines have none.
func sectionName(line string) string {
	name, ok := strings.CutPrefix(line, "-- ")
	if !ok {
		return ""
	}
	if name, ok = strings.CutSuffix(strings.TrimSuffix(name, "\n"), " --"); !ok {
		return ""
	}
	return name
}

// addSection adds a request to the archive, or a response to the request before it.
func (a *Archive) addSection(name, text string) error {
	rest, what := cutLast(name)
	id, number := cutLast(rest)
	n, err := strconv.Atoi(number)
	if err != nil || id == "" || what != "request" && what != "response" {
		return errors.New("the name of a section is ID/NUMBER/request or ID/NUMBER/response")
	}
	var last *Recording
	if len(a.Recordings) > 0 {
		last = a.Recordings[len(a.Recordings)-1]
	}
	if what == "response" {
		if last == nil || last.ID != id || n != len(last.Steps)-1 || last.Steps[n].Status != 0 {
			return errors.New("a response stands after the request that it answers")
		}
		return last.Steps[n].parseResponse(text)
	}
	if n == 0 {
		if slices.ContainsFunc(a.Recordings, func(r *Recording) bool { return r.ID == id }) {
			return errors.New("there are two recordings of this name")
		}
		last = &Recording{ID: id}
		a.Recordings = append(a.Recordings, last)
	}
	if last == nil || last.ID != id || n != len(last.Steps) {
		return errors.New("the steps of a recording stand together, and their numbers are 0, 1, 2 …")
	}
	last.Steps = append(last.Steps, Step{})
	return last.parseRequest(&last.Steps[n], text)
}

func cutLast(s string) (before, after string) {
	i := strings.LastIndexByte(s, '/')
	return s[:max(i, 0)], s[i+1:]
}

// A head is what stands before the body of a section.
type head struct {
	first      string // line
	headers    [][2]string
	directives map[string]string
}

func parseHead(text string) (h head, body string, err error) {
	top, body, _ := strings.Cut(text, "\n\n")
	h.directives = map[string]string{}
	for i, line := range strings.Split(strings.TrimSuffix(top, "\n"), "\n") {
		switch name, value, ok := strings.Cut(line, ":"); {
		case i == 0:
			h.first = line
		case strings.HasPrefix(line, "@"):
			name, value, _ := strings.Cut(line[1:], " ")
			h.directives[name] = value
		case !ok:
			return h, "", fmt.Errorf("%q is neither a header nor a directive", line)
		default:
			h.headers = append(h.headers, [2]string{name, strings.TrimPrefix(value, " ")})
		}
	}
	return h, body, nil
}

// take returns the value of a directive and removes it.
func (h *head) take(name string) (value string, ok bool) {
	value, ok = h.directives[name]
	delete(h.directives, name)
	return value, ok
}

// takeNumber is take for a directive that has a number.
func (h *head) takeNumber(name string) (n int, ok bool, err error) {
	value, ok := h.take(name)
	if ok {
		n, err = strconv.Atoi(value)
	}
	return n, ok, err
}

func (h *head) rest() error {
	for name := range h.directives {
		return fmt.Errorf("@%s is not known here", name)
	}
	return nil
}

func (r *Recording) parseRequest(s *Step, text string) (err error) {
	h, body, err := parseHead(text)
	if err != nil {
		return err
	}
	var ok bool
	if s.Method, s.Path, ok = strings.Cut(h.first, " "); !ok || !strings.HasPrefix(s.Path, "/") {
		return fmt.Errorf("the first line is METHOD /PATH, not %q", h.first)
	}
	for _, pair := range h.headers {
		if s.Headers == nil {
			s.Headers = map[string]string{}
		}
		if strings.HasPrefix(pair[1], `"`) {
			if err := json.Unmarshal([]byte(pair[1]), &pair[1]); err != nil {
				return fmt.Errorf("the value of %s: %w", pair[0], err)
			}
		}
		s.Headers[pair[0]] = pair[1]
	}
	if len(r.Steps) == 1 {
		_, r.Serial = h.take("serial")
	}
	_, s.Brief = h.take("brief")
	_, s.Watch = h.take("watch")
	_, s.Ordered = h.take("ordered")
	s.RetryMatch, _ = h.take("retry-match")
	if s.RetryUntil, _, err = h.takeNumber("retry-until"); err != nil {
		return err
	}
	if n, ok, err := h.takeNumber("body-from"); err != nil {
		return err
	} else if ok {
		s.BodyFrom = &n
	}
	if _, ok := h.take("base64"); ok {
		s.BodyEncoding = "base64"
		h.directives["text"] = ""
	}
	if s.Body, err = h.parseBody(body); err != nil {
		return err
	}
	return h.rest()
}

func (s *Step) parseResponse(text string) error {
	h, body, err := parseHead(text)
	if err != nil {
		return err
	}
	code, _, _ := strings.Cut(h.first, " ")
	if s.Status, err = strconv.Atoi(code); err != nil || s.Status < 100 {
		return fmt.Errorf("the first line begins with the status, not %q", h.first)
	}
	_, s.Own = h.take("own")
	if !s.Brief {
		s.ResponseHeaders = map[string]any{"Audit-Id": false}
	}
	for _, pair := range h.headers {
		switch key, value := pair[0], pair[1]; {
		case s.Brief:
			return errors.New("of a brief step, only the status is recorded")
		case key == "Audit-Id":
			s.ResponseHeaders[key] = true
		case key == "Warning":
			all, _ := s.ResponseHeaders[key].([]any)
			s.ResponseHeaders[key] = append(all, value)
		default:
			s.ResponseHeaders[key] = value
		}
	}
	if s.ResponseBody, err = h.parseBody(body); err != nil {
		return err
	}
	return h.rest()
}

// parseBody returns a body as JSON.
func (h *head) parseBody(text string) (json.RawMessage, error) {
	if _, ok := h.take("text"); ok {
		return json.RawMessage(encode(strings.TrimSuffix(text, "\n"))), nil
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var out bytes.Buffer
	if err := json.Compact(&out, []byte(text)); err != nil {
		return nil, fmt.Errorf("the body is not JSON (@text is for others): %w", err)
	}
	return out.Bytes(), nil
}

// Format returns the text of the archive.
func (a *Archive) Format() string {
	var out strings.Builder
	out.WriteString(a.Comment)
	for _, r := range a.Recordings {
		for i := range r.Steps {
			s := &r.Steps[i]
			fmt.Fprintf(&out, "-- %s/%d/request --\n", r.ID, i)
			s.formatRequest(&out, r.Serial && i == 0)
			if s.Status != 0 {
				fmt.Fprintf(&out, "-- %s/%d/response --\n", r.ID, i)
				s.formatResponse(&out)
			}
		}
	}
	return out.String()
}

func (s *Step) formatRequest(out *strings.Builder, serial bool) {
	fmt.Fprintf(out, "%s %s\n", s.Method, s.Path)
	for _, k := range slices.Sorted(maps.Keys(s.Headers)) {
		v := s.Headers[k]
		if v == "" || v != strings.TrimSpace(v) || v[0] == '"' {
			v = encode(v)
		}
		out.WriteString(k + ": " + v + "\n")
	}
	for _, d := range []struct {
		set  bool
		text string
	}{
		{serial, "serial"}, {s.Brief, "brief"}, {s.Watch, "watch"}, {s.Ordered, "ordered"},
		{s.RetryUntil != 0, fmt.Sprintf("retry-until %d", s.RetryUntil)},
		{s.RetryMatch != "", "retry-match " + s.RetryMatch},
	} {
		if d.set {
			out.WriteString("@" + d.text + "\n")
		}
	}
	if s.BodyFrom != nil {
		fmt.Fprintf(out, "@body-from %d\n", *s.BodyFrom)
	}
	formatBody(out, s.Body, s.BodyEncoding == "base64")
}

func (s *Step) formatResponse(out *strings.Builder) {
	out.WriteString(strings.TrimSpace(fmt.Sprintf("%d %s", s.Status, http.StatusText(s.Status))) + "\n")
	if s.Own {
		out.WriteString("@own\n")
	}
	if s.Brief {
		return
	}
	for _, k := range sortedKeys(s.ResponseHeaders) {
		switch v := s.ResponseHeaders[k].(type) {
		case bool:
			if v {
				out.WriteString(k + ": <uid>\n")
			}
		case string:
			out.WriteString(k + ": " + v + "\n")
		case []any:
			for _, v := range v {
				fmt.Fprintf(out, "%s: %s\n", k, v)
			}
		}
	}
	if body := decode(string(s.ResponseBody)); body != nil {
		formatBody(out, json.RawMessage(encode(body)), false) // keys in order
	}
}

// formatBody writes a body and the empty line before it.
func formatBody(out *strings.Builder, body json.RawMessage, base64 bool) {
	if body == nil {
		return
	}
	var text string
	switch {
	case body[0] != '"' || json.Unmarshal(body, &text) != nil:
		var compact bytes.Buffer
		if err := json.Compact(&compact, body); err != nil {
			panic(err) // it came from JSON
		}
		out.WriteString("\n" + layout(compact.Bytes()) + "\n")
	case base64:
		out.WriteString("@base64\n\n" + text + "\n")
	case isPlain(text):
		out.WriteString("@text\n\n" + text + "\n")
	default:
		out.WriteString("\n" + encode(text) + "\n")
	}
}

// isPlain reports whether a text can stand in an archive and be read and edited there.
func isPlain(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if sectionName(line) != "" || strings.TrimRightFunc(line, unicode.IsSpace) != line ||
			strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			return false
		}
	}
	return text != "" && utf8.ValidString(text)
}
