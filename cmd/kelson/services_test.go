package main

import "testing"

func TestParsePorts(t *testing.T) {
	for text, want := range map[string][2]int32{
		"30000-32767":   {30000, 32767},
		"30000 - 30010": {30000, 30010},
		"30000+10":      {30000, 30010},
		"30000":         {30000, 30000},
	} {
		if first, last, err := parsePorts(text); err != nil || first != want[0] || last != want[1] {
			t.Errorf("%q: %d to %d, %v", text, first, last, err)
		}
	}
	for _, text := range []string{"", "a", "1-", "-1", "1-b", "70000", "1+x"} {
		if first, last, err := parsePorts(text); err == nil {
			t.Errorf("%q is %d to %d", text, first, last)
		}
	}
}
