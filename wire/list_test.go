package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/resource"
)

// failedItem is an ItemError.
type failedItem struct{ index int }

func (f failedItem) Error() string { return fmt.Sprintf("index %d", f.index) }

func (f failedItem) InList(position func(int) int) error { return failedItem{position(f.index)} }

// TestConvertedRows: a table of another version asks for no object twice.
func TestConvertedRows(t *testing.T) {
	hub, other := things(t, false)
	var all []*Record
	for i := range 3 {
		obj := thing()
		obj.SetName(fmt.Sprint(i))
		stored, err := EncodeStored(hub.Definition, obj)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, NewRecord(Record{Key: obj.GetName(), Revision: int64(i + 1)}, stored, nil, nil, nil, nil))
	}
	alone := 0
	convert := other.Version.FromHub
	other.Version.FromHub = func(obj resource.Object) (resource.Object, error) {
		alone++
		return convert(obj)
	}
	other.Version.FromHubAll = func(objs []resource.Object) (out []resource.Object, err error) {
		for _, obj := range objs {
			converted, err := convert(obj)
			if err != nil {
				return nil, err
			}
			out = append(out, converted)
		}
		return out, nil
	}
	other.Version.Cells = func(obj resource.Object) ([]any, error) {
		return []any{obj.GetObjectKind().GroupVersionKind().Version, obj.GetName()}, nil
	}
	for _, include := range []Include{IncludeMetadata, IncludeNone, IncludeObject} {
		e := &Encoder{Served: other, Format: Format{Media: JSON, Shape: ShapeTable}, Include: include}
		if err := e.Convert(all); err != nil {
			t.Fatal(err)
		}
		for i, rec := range all {
			row, err := e.appendRow(nil, rec)
			if want := fmt.Sprintf(`{"cells":["v2","%d"],`, i); err != nil || !strings.HasPrefix(string(row), want) {
				t.Errorf("got %.300s, %v, want %s", row, err, want)
			}
		}
	}
	if alone != 0 {
		t.Errorf("%d objects were converted alone", alone)
	}
}

// TestConvertInParts: a list is converted in parts of so many objects and of such a weight.
func TestConvertInParts(t *testing.T) {
	hub, other := things(t, false)
	records := func(n, fields int) (all []*Record) {
		obj := thing()
		obj.Object["spec"] = map[string]any{"list": slices.Repeat([]any{map[string]any{}}, fields)}
		for i := range n {
			obj.SetName(fmt.Sprint(i))
			stored, err := EncodeStored(hub.Definition, obj)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, NewRecord(Record{Key: obj.GetName(), Revision: int64(i + 1)}, stored, nil, nil, nil, nil))
		}
		return all
	}
	var parts []int
	var failed error
	other.Version.FromHubAll = func(objs []resource.Object) ([]resource.Object, error) {
		parts = append(parts, len(objs))
		out := make([]resource.Object, len(objs))
		for i, obj := range objs {
			out[i], _ = other.Version.FromHub(obj)
		}
		return out, failed
	}
	heavy := convertWeight/(objectWeight+itemWeight+len("{},"))/2 - 20
	for _, c := range []struct {
		objects, fields int
		want            []int
	}{
		{convertAtOnce + 1, 1, []int{convertAtOnce, 1}},
		{5, heavy, []int{2, 2, 1}},
		{2, 3 * heavy, []int{1, 1}},
		{0, 0, nil},
	} {
		parts = nil
		e := &Encoder{Served: other, Format: Format{Media: JSON}}
		all := records(c.objects, c.fields)
		if err := e.Convert(all); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(parts, c.want) {
			t.Errorf("%d objects of %d fields: converted in parts of %d, want %d", c.objects, c.fields, parts, c.want)
		}
		for _, rec := range all {
			if b, err := e.recordJSON(rec); err != nil || !strings.Contains(string(b), `"apiVersion":"example.com/v2"`) {
				t.Fatalf("got %.200s, %v", b, err)
			}
		}
	}
	failed = errors.New("no")
	e := &Encoder{Served: other, Format: Format{Media: JSON}}
	if err := e.Convert(records(1, 1)); !errors.As(err, new(*ConversionError)) {
		t.Errorf("got %v, want that of the conversion", err)
	}
	// The error about an object says where in the list it is, whatever part it is converted in.
	all, bad := records(convertAtOnce+3, 1), convertAtOnce+1
	failed = nil
	if err := e.Convert(all[:2]); err != nil { // which are not converted again
		t.Fatal(err)
	}
	other.Version.FromHubAll = func(objs []resource.Object) ([]resource.Object, error) {
		for i, obj := range objs {
			if obj.GetName() == fmt.Sprint(bad) {
				return nil, fmt.Errorf("pruned: %w", failedItem{i})
			}
		}
		return objs, nil
	}
	var item failedItem
	if err := e.Convert(all); !errors.As(err, &item) || item.index != bad {
		t.Errorf("got %v, want an error about index %d", err, bad)
	}
}
