package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newGet(s streams) *cobra.Command {
	p := &past{s: s}
	var at, fields string
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "Show objects as they were at a moment",
		Long: `Show an object, or a list of objects, as it was at a moment: a revision, a time, or how long
ago. Without --at it is what there is now.`,
		Example: `  kelson get configmap web --at 14:05 -o yaml
  kelson get pods -n shop --at 10m -l app=web
  kelson get deployments -A --at 81234`,
		Args: kindAndName(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, q, err := p.questionAt(cmd, args, "at", at, "at")
			if err != nil {
				return err
			}
			q.Set("limit", "500")
			if fields != "" {
				q.Set("fieldSelector", fields)
			}
			if p.output != "table" {
				return p.getObjects(cmd, t, q)
			}
			q.Set("table", "true")
			first := true
			return p.print(p.s.out, nil, func(w io.Writer) error {
				return eachPage(cmd.Context(), t, "at", q, func(table *metav1.Table) (string, bool) {
					if first && len(table.Rows) == 0 {
						fmt.Fprintln(p.s.err, "No objects were there.")
					} else {
						printTable(w, table, first, p.all)
					}
					first = false
					return table.Continue, true
				})
			})
		},
	}
	p.bindScope(cmd)
	cmd.Flags().StringVar(&at, "at", "", "`moment`: a time (14:05), a revision (81234), or how long ago (10m)")
	cmd.Flags().StringVar(&fields, "field-selector", "", "fields that objects must have (metadata.name=web)")
	return cmd
}

// getObjects prints an object, or a list with the items of all pages.
func (p *past) getObjects(cmd *cobra.Command, t *target, q map[string][]string) error {
	var whole map[string]any
	var items []any
	err := eachPage(cmd.Context(), t, "at", q, func(page *exactMap) (string, bool) {
		if whole == nil {
			whole = *page
		}
		list, isList := (*page)["items"].([]any)
		items = append(items, list...)
		meta, _ := (*page)["metadata"].(map[string]any)
		token, _ := meta["continue"].(string)
		return token, isList
	})
	if err != nil {
		return err
	}
	if meta, ok := whole["metadata"].(map[string]any); ok && whole["items"] != nil {
		whole["items"] = items
		delete(meta, "continue")
	}
	return p.print(p.s.out, whole, nil)
}

// printTable prints the rows of a table, with the columns that kubectl shows without -o wide.
func printTable(w io.Writer, table *metav1.Table, header, namespaces bool) {
	var cells []string
	if namespaces {
		cells = append(cells, "NAMESPACE")
	}
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			cells = append(cells, strings.ToUpper(clean(column.Name)))
		}
	}
	if header {
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	for _, row := range table.Rows {
		cells = cells[:0]
		if namespaces {
			var object metav1.PartialObjectMetadata
			_ = json.Unmarshal(row.Object.Raw, &object)
			cells = append(cells, clean(object.Namespace))
		}
		for i, cell := range row.Cells {
			if i >= len(table.ColumnDefinitions) || table.ColumnDefinitions[i].Priority != 0 {
				continue
			}
			switch v := cell.(type) {
			case nil:
				cells = append(cells, "<none>")
			case float64:
				cells = append(cells, strconv.FormatFloat(v, 'f', -1, 64))
			default:
				cells = append(cells, clean(fmt.Sprint(v)))
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
}
