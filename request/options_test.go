package request

import "testing"

// TestListOptionsHaveOneMeaning: the limit, and whether a watch begins with all objects, are the
// same for those who charge for them and those who serve them.
func TestListOptionsHaveOneMeaning(t *testing.T) {
	for _, c := range []struct {
		query           string
		limit, uncached int64
		selects, reads  bool
	}{
		{"", 0, 0, false, true},
		{"limit=5", 5, 5, false, true},
		{"limit=-5", 0, 0, false, true},
		{"limit=x", 0, 0, false, true},
		{"limit=5&timeoutSeconds=x", 0, 0, false, true},
		{"limit=5&resourceVersion=0", 0, 5, false, true},
		{"limit=5&resourceVersion=000", 0, 5, false, true},
		{"limit=5&resourceVersion=", 5, 5, false, true},
		{"limit=5&resourceVersion=7", 5, 5, false, false},
		{"limit=5&resourceVersion=-0", 5, 5, false, false},
		{"limit=5&resourceVersion=99999999999999999999", 5, 5, false, false},
		{"resourceVersion=7&sendInitialEvents=true", 0, 0, false, true},
		{"resourceVersion=7&sendInitialEvents=0", 0, 0, false, false},
		{"resourceVersion=7&resourceVersion=0", 0, 0, false, false},
		{"resourceVersion=0&sendInitialEvents=false", 0, 0, false, true},
		{"labelSelector=a", 0, 0, true, true},
		{"labelSelector=((", 0, 0, false, true},
		{"fieldSelector=metadata.name%3Da", 0, 0, true, true},
		{"shardSelector=a", 0, 0, true, true},
		{"labelSelector=&fieldSelector=", 0, 0, false, true},
	} {
		q, err := ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		i := Info{Query: q}
		o := i.ListOptions()
		if o.PageLimit(false) != c.limit || o.PageLimit(true) != c.uncached || o.Selects() != c.selects || o.ReadsState() != c.reads {
			t.Errorf("%s: got limits %d and %d, selects %t, reads %t; want %d, %d, %t, %t", c.query,
				o.PageLimit(false), o.PageLimit(true), o.Selects(), o.ReadsState(), c.limit, c.uncached, c.selects, c.reads)
		}
		if i.ListOptions() != o {
			t.Errorf("%s: options are parsed again", c.query)
		}
	}
}

// FuzzListOptions looks for panics, and for errors beside values.
func FuzzListOptions(f *testing.F) {
	f.Add("limit=1&resourceVersion=0&labelSelector=a%3Db&fieldSelector=c!%3Dd&watch=1")
	f.Add("labelSelector=a+in+(b,c),!d&sendInitialEvents&timeoutSeconds=-1")
	f.Fuzz(func(t *testing.T, text string) {
		q, err := ParseQuery(text)
		if err != nil {
			t.Skip(err)
		}
		o := (&Info{Query: q}).ListOptions()
		if o.Labels == nil || o.Fields == nil || o.LabelsErr != nil && !o.Labels.Empty() || o.FieldsErr != nil && !o.Fields.Empty() {
			t.Errorf("%q: got selectors %v %v beside errors %v %v", text, o.Labels, o.Fields, o.LabelsErr, o.FieldsErr)
		}
		if o.NumberErr != nil && (o.Limit != 0 || o.TimeoutSeconds != 0) || o.RevisionErr != nil && o.Revision != 0 || o.Revision < 0 || o.PageLimit(true) < o.PageLimit(false) {
			t.Errorf("%q: got %+v", text, o)
		}
	})
}
