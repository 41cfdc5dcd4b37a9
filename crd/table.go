package crd

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"sync"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"

	"github.com/apikeel/kelson/resource"
)

// table adds the printer columns of each version.
func (c *custom) table(def *resource.Definition, versions []apiextensions.CustomResourceDefinitionVersion) {
	meta := metav1.ObjectMeta{}.SwaggerDoc()
	for i := range versions {
		var own []apiextensions.CustomResourceColumnDefinition
		own = append(own, versions[i].AdditionalPrinterColumns...)
		if len(own) == 0 {
			own = []apiextensions.CustomResourceColumnDefinition{{
				Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp", Description: meta["creationTimestamp"],
			}}
		}
		columns := []resource.Column{{Name: "Name", Type: "string", Format: "name", Description: meta["name"]}}
		for _, col := range own {
			description := col.Description
			if description == "" {
				description = fmt.Sprintf("Custom resource definition column (in JSONPath format): %s", col.JSONPath)
			}
			columns = append(columns, resource.Column{Name: col.Name, Type: col.Type, Format: col.Format, Description: description, Priority: col.Priority})
		}
		def.Versions[i].Columns, def.Versions[i].Cells = columns, newPrinter(own).cells
	}
}

// printer makes the cells of rows from printer columns.
type printer struct {
	columns []column
	// heavy is held while a path is evaluated that visits more than heavyWork values: it may take
	// 60 bytes for each, which no request holds memory for.
	heavy sync.Mutex
}

// heavyWork is how many values a path visits that is evaluated alone.
const heavyWork = 32 << 10

// column is a printer column of a version.
type column struct {
	*apiextensions.CustomResourceColumnDefinition
	// parse returns the JSON path, nil if it is wrong. Paths that are nothing but names need it for
	// values only that are no scalars.
	parse func() *jsonpath.JSONPath
}

func newPrinter(columns []apiextensions.CustomResourceColumnDefinition) *printer {
	p := &printer{columns: make([]column, len(columns))}
	for i := range columns {
		p.columns[i] = newColumn(&columns[i])
	}
	return p
}

func newColumn(col *apiextensions.CustomResourceColumnDefinition) column {
	parse := func() *jsonpath.JSONPath {
		path := jsonpath.New(col.Name).AllowMissingKeys(true)
		if err := path.Parse("{" + col.JSONPath + "}"); err != nil {
			return nil
		}
		return path
	}
	// A range changes the path that it is in while it is evaluated; others are parsed once.
	if !strings.Contains(col.JSONPath, "range") {
		parse = sync.OnceValue(parse)
	}
	return column{col, parse}
}

func (p *printer) cells(obj resource.Object) ([]any, error) {
	cells, left := []any{obj.GetName()}, maxRowWork
	for i := range p.columns {
		cells = append(cells, p.cell(&p.columns[i], content(obj), &left))
	}
	return cells, nil
}

// cell returns the value of a column, nil if there is none, or if it takes more work than is left.
func (p *printer) cell(col *column, obj map[string]any, left *int) any {
	if value, ok := scalarAt(obj, col.JSONPath); !ok {
		work := pathWork(col.JSONPath, obj)
		if work > min(maxPathWork, *left) {
			return nil
		}
		*left -= work
		if work > heavyWork {
			p.heavy.Lock()
			defer p.heavy.Unlock()
		}
		return col.find(obj)
	} else if value != nil && col.Type == "string" {
		return fmt.Sprint(value)
	} else {
		return convertCell(col.Type, value)
	}
}

// scalarAt returns the scalar at a JSON path that is nothing but names, as most are: nil if
// there is none. It is false for other paths and other values.
func scalarAt(obj map[string]any, path string) (value any, ok bool) {
	if !isNames(path) {
		return nil, false
	}
	value = obj
	for name := range strings.SplitSeq(path[1:], ".") {
		in, isMap := value.(map[string]any)
		if !isMap {
			return nil, false
		}
		if value, ok = in[name]; !ok {
			return nil, true
		}
	}
	switch value.(type) {
	case string, int64, float64, bool:
		return value, true
	}
	return nil, false
}

// isNames reports whether a JSON path is nothing but names.
func isNames(path string) bool {
	begins := false // a name
	for i := range len(path) {
		c := path[i]
		switch isLetter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'; {
		case c == '.' && !begins:
			begins = true
		case isLetter && i > 0 || '0' <= c && c <= '9' && i > 0 && !begins:
			begins = false
		default:
			return false
		}
	}
	return path != "" && !begins
}

// maxPathWork is how many values a JSON path may visit in an object, and maxRowWork those of all
// columns of a row together. A path that could visit more finds nothing: a few dozen characters are
// enough for years of work.
const maxPathWork, maxRowWork = 2 << 20, 4 << 20

// copiesAtOnce is how many values are copied in the time in which one is visited.
const copiesAtOnce = 32

// pathWork returns a bound of how many values a JSON path visits in an object, more than
// maxPathWork if they are too many to be counted. What visits each value once at most is not
// counted. Each ".." visits all that is below each of the values that it begins at, which are as
// many as the object is deep if they are below each other, and copies what it has found once for
// each level. Each part of a union visits what it selects again, as do the actions of a path that
// has several, and a range has what follows it done twice if it has no end.
func pathWork(path string, obj map[string]any) int {
	if !strings.Contains(path, "..") && !strings.ContainsAny(path, ",}*") {
		return 0
	}
	work, text, depth := extent(obj)
	if strings.Contains(path, "*") {
		work += text // a wildcard goes through the bytes of a text
	}
	times := func(n int) { work = min(work, maxPathWork+1) * min(n, maxPathWork+1) }
	if recursive := strings.Count(path, ".."); recursive > 0 {
		work += text
		for range recursive - 1 {
			times(depth)
		}
		times(max(copiesAtOnce, depth))
		work /= copiesAtOnce
	}
	for union := range strings.SplitSeq(path, "]") {
		times(1 + strings.Count(union, ","))
	}
	if actions := strings.Count(path, "}"); actions > 0 {
		times(1 + actions)
		for range strings.Count(path, "range") {
			times(2)
		}
	}
	return work
}

// extent returns how many values a JSON value consists of, how many bytes of text are in it, which
// ".." visits one by one, and how deep it is.
func extent(value any) (values, text, depth int) {
	inside := func(inner any) {
		n, bytes, below := extent(inner)
		values, text, depth = values+n, text+bytes, max(depth, below)
	}
	switch value := value.(type) {
	case map[string]any:
		for _, inner := range value {
			inside(inner)
		}
	case []any:
		for _, inner := range value {
			inside(inner)
		}
	case string:
		text = len(value)
	}
	return values + 1, text, depth + 1
}

// find returns the value of a column at any JSON path, nil if there is none.
func (col *column) find(obj map[string]any) any {
	path := col.parse()
	if path == nil {
		return nil
	}
	results, err := path.FindResults(obj)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return nil
	}
	value := results[0][0].Interface()
	if col.Type == "string" {
		var text bytes.Buffer
		if err := path.PrintResults(&text, []reflect.Value{reflect.ValueOf(value)}); err != nil {
			return nil
		}
		return text.String()
	}
	return convertCell(col.Type, value)
}

// convertCell converts a value to the type of its column; nil if it has another type.
func convertCell(kind string, value any) any {
	switch kind {
	case "integer":
		switch v := value.(type) {
		case int64:
			return v
		case float64:
			return int64(v)
		}
	case "number":
		switch v := value.(type) {
		case int64:
			return float64(v)
		case float64:
			return v
		}
	case "boolean":
		if v, ok := value.(bool); ok {
			return v
		}
	case "date":
		if v, ok := value.(string); ok {
			var t metav1.Time
			if t.UnmarshalQueryParameter(v) != nil {
				return "<invalid>"
			}
			return resource.Since(t.Time)
		}
	}
	return nil
}
