package crd

import (
	"bytes"
	"fmt"
	"reflect"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"

	"github.com/apikeel/kelson/resource"
)

// table adds the printer columns of each version. Their JSON paths are parsed when a
// table is made.
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
		t := &printer{columns: own}
		def.Versions[i].Columns, def.Versions[i].Cells = columns, t.cells
	}
}

// printer makes the cells of rows from printer columns.
type printer struct {
	columns []apiextensions.CustomResourceColumnDefinition
}

func (p *printer) cells(obj resource.Object) ([]any, error) {
	cells := []any{obj.GetName()}
	for i := range p.columns {
		cells = append(cells, p.cell(&p.columns[i], content(obj)))
	}
	return cells, nil
}

// cell returns the value of a column, nil if there is none.
func (p *printer) cell(col *apiextensions.CustomResourceColumnDefinition, obj map[string]any) any {
	path := jsonpath.New(col.Name).AllowMissingKeys(true)
	if err := path.Parse("{" + col.JSONPath + "}"); err != nil {
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
